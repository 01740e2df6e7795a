#!/usr/bin/env python3
"""Runs the programs of examples/ as the README describes: alone, and under the launcher with several numbers of workers
and servers. Checks exit codes and output, and that the README's embedding example is the compiled one.

The build's folder comes from TRIB_BUILD (default: build/release of this source tree). Prints one line per test: "ok
NAME", "not ok NAME: why" or "skip NAME: why". Exit code 0: all tests that ran passed; 1: a failure; 77: no test could
run.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(SOURCE, os.environ.get("TRIB_BUILD", "build/release"))
LAUNCHER = os.path.join(BUILD, "tributary")
# Ends a test that hangs; not a measure of speed. Instrumented builds on a busy machine stay far below it.
TIMEOUT_S = 180
JOBS = [(1, 0), (2, 0), (3, 2), (4, 0), (4, 2)]


class Failure(Exception):
    """A test's unexpected observation."""


class Skip(Exception):
    """The reason why a test cannot run here."""


def expect(condition, why):
    if not condition:
        raise Failure(why)


def example(name):
    path = os.path.join(BUILD, "examples", name)
    if not os.access(path, os.X_OK):
        source = os.path.join(SOURCE, "examples", name + ".c")
        if name in ("host_libuv", "host_libev"):
            raise Skip(f"{path} was not built (its loop's library may be missing)")
        raise Failure(f"{path} was not built from {source}")
    return path


def clean_environment():
    """An environment without the variables of a launcher that may have started this test. TRIB_LOG stays, for
    debugging."""
    foreign = ("TRIB_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "DMLC_", "TORCHELASTIC_")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    return {
        key: value
        for key, value in os.environ.items()
        if key == "TRIB_LOG" or not (key.startswith(foreign) or key in names)
    }


def run(command, codec_library=None):
    """Returns exit code, standard output and standard error. The process group is killed after TIMEOUT_S."""
    environment = clean_environment()
    if codec_library is not None:
        environment["TRIB_CODEC_LIBRARY"] = codec_library
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        said = tail(output + errors)
        raise Failure(f"{' '.join(command)}: still running after {TIMEOUT_S} s; it said: {said}") from None
    return process.returncode, output, errors


def tail(text):
    return " | ".join(text.strip().splitlines()[-4:])


def run_job(workers, servers, program, *arguments):
    """Runs a program under the launcher, or alone if workers is None. The program must succeed."""
    command = [program, *arguments]
    if workers is not None:
        if not os.access(LAUNCHER, os.X_OK):
            raise Failure(f"{LAUNCHER} was not built")
        command = [LAUNCHER, "run", "-n", str(workers), "-s", str(servers), "--", *command]
        if servers == 0:
            del command[4:6]
    code, output, errors = run(command)
    expect(code == 0, f"exit code {code}: {tail(output + errors)}")
    return output


def check_hello(workers, servers):
    output = run_job(workers, servers, example("hello"))
    count = workers or 1
    for rank in range(count):
        line = f"worker {rank} of {count}: {count} {2 * count} {3 * count}"
        found = re.findall(re.escape(line) + r"$", output, re.MULTILINE)
        expect(len(found) == 1, f"no single line '{line}' in: {output!r}")


def run_own_codec(workers, servers, library=None):
    words = [LAUNCHER, "run", "-n", str(workers)] + (["-s", str(servers)] if servers else [])
    return run(words + ["--", example("own_codec")], library)


def check_own_codec():
    """A program brings a codec. A server that has none of its own names what it lacks, or loads a library with it."""
    code, output, errors = run_own_codec(3, 0)
    expect(code == 0 and output.count("of 3: 3 -6 0") == 3, f"exit code {code}: {tail(output + errors)}")
    code, output, errors = run_own_codec(2, 1)
    expect(code != 0 and "is unknown to server 0" in errors, f"exit code {code}: {tail(output + errors)}")
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "steps.so")
        compiler, source = os.environ.get("CC", "cc"), os.path.join(SOURCE, "examples/own_codec/steps.c")
        caller = os.path.join(folder, "caller.c")  # an object that calls the library and is not linked with it
        with open(caller, "w", encoding="ascii") as file:
            file.write('#include "tributary.h"\nvoid fill(trib_codec_desc *one)\n')
            file.write("{\n    trib_codec_desc_init(one, sizeof *one);\n}\n")
        include = "-I" + os.path.join(SOURCE, "api")
        subprocess.run([compiler, "-shared", "-fPIC", include, "-o", library, source, caller], check=True)
        code, output, errors = run_own_codec(2, 1, library)
        expect(code == 0 and output.count("of 2: 2 -4 0") == 2, f"exit code {code}: {tail(output + errors)}")
    code, output, errors = run_own_codec(2, 1, "/nonexistent/steps.so")
    expect(code != 0 and "TRIB_CODEC_LIBRARY: it cannot be loaded" in errors, f"exit code {code}: {tail(errors)}")


def check_host(name, workers, servers):
    output = run_job(workers, servers, example(name))
    count = workers or 1
    for rank in range(count):
        line = f"{name}: worker {rank} of {count}: 300 sums, all exact"
        expect(output.count(line) == 1, f"no single line '{line}' in: {output!r}")


def check_digits(workers, servers, *arguments):
    output = run_job(workers, servers, example("digits"), "--json", *arguments)
    found = re.findall(r"\{\"workers\".*\}", output)
    expect(len(found) == 1, f"expected one JSON object, got: {output!r}")
    results = json.loads(found[0])
    expect(results["workers"] == (workers or 1), f"{results['workers']} workers")
    expect(results["servers"] == servers, f"{results['servers']} servers")
    expect(results["accuracy"] >= 0.95, f"accuracy {results['accuracy']}")
    expect(results["bit_identical"] is True, "the workers' weights are not bit-identical")
    expect(
        results["matches_reference"] is True and results["difference"] <= results["tolerance"],
        f"difference {results['difference']} from one process, tolerance {results['tolerance']}",
    )
    expect(results["passed"] is True, "passed is false")
    expect(results["exchange_mb_per_s"] > 0 and results["exchange_p50_us"] > 0, "no exchange was measured")
    return results["weights_hash"]


def check_digits_same_bits():
    """Sums are in rank order, so the place of summation must not change one bit of the weights."""
    hashes = {servers: check_digits(3, servers) for servers in (0, 1, 2)}
    expect(len(set(hashes.values())) == 1, f"weights differ with the number of servers: {hashes}")


def kill_all_at_work(workers, servers, path, saves):
    """Starts a training that saves, and kills all its processes at once some time after so many boundaries."""
    command = [
        LAUNCHER,
        "run",
        "-n",
        str(workers),
        *(["-s", str(servers)] if servers else []),
        "--",
        example("digits"),
        "--checkpoint",
        path,
        "--every",
        "3",
    ]
    job = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=clean_environment(),
        start_new_session=True,
    )
    said = []
    while saves > 0:
        said.append(job.stdout.readline())
        expect(said[-1] != "", f"it ended before it was killed: {tail(''.join(said))}")
        saves -= "saved after" in said[-1]
    job.kill()  # the kernel kills what it has started (PR_SET_PDEATHSIG)
    said.append(job.stdout.read())  # its end comes when all processes are gone
    job.wait()
    return "".join(said)


def check_digits_full_disk(path):
    """A checkpoint that finds no space leaves the one of before."""
    with open(path, "rb") as file:
        before = file.read()
    os.symlink("/dev/full", path + ".new")
    check_digits_refuses(["--checkpoint", path, "--epochs", "31"], 1, path, "as it was", "No space left")
    with open(path, "rb") as file:
        expect(file.read() == before, "the checkpoint of before is not as it was")


def check_digits_checkpoint():
    """A job that is killed as a whole goes on with other counts. No step is lost or done twice: the weights have the
    bits of a training without a break while the number of workers stays, and agree within rounding when it does not."""
    draw = random.Random(4)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "digits.checkpoint")
        kill_all_at_work(3, 0, path, draw.randrange(1, 40))
        said = kill_all_at_work(3, 2, path, draw.randrange(1, 40))
        expect("going on after" in said, f"it did not go on: {tail(said)}")
        expect(check_digits(3, 1, "--checkpoint", path) == check_digits(3, 0), "the weights have other bits")
        os.unlink(path)
        kill_all_at_work(4, 1, path, draw.randrange(1, 40))
        said = kill_all_at_work(2, 0, path, draw.randrange(1, 40))
        expect("going on after" in said, f"it did not go on: {tail(said)}")
        check_digits(3, 2, "--checkpoint", path)
        check_digits_full_disk(path)
        with open(path, "r+b") as file:
            file.truncate(1000)
        check_digits_refuses(["--checkpoint", path], 1, path, "damaged")


def check_digits_text():
    output = run_job(4, 2, example("digits"))
    for words in ("loss", "held-out accuracy", "MB/s", "p50", "bit-identical: ok", "largest relative difference"):
        expect(words in output, f"'{words}' is missing in: {output!r}")
    expect("FAILED" not in output, tail(output))


def check_digits_refuses(arguments, code_expected, *words):
    code, output, errors = run([example("digits"), *arguments])
    expect(code == code_expected, f"exit code {code} instead of {code_expected}: {tail(output + errors)}")
    for word in words:
        expect(word in errors, f"'{word}' is missing in: {errors!r}")


def check_digits_bad_data():
    with open(os.path.join(SOURCE, "examples", "digits", "digits.csv"), encoding="ascii") as file:
        lines = file.readlines()
    broken = {
        "short.csv": (lines[:-1], "1796 images"),
        "long.csv": (lines + lines[:1], "more than 1797"),
        "pixel.csv": (lines[:4] + [lines[4].replace(lines[4].split(",")[0], "17", 1)] + lines[5:], ":5:"),
        "word.csv": (["pixels and a digit\n"] + lines[1:], ":1:"),
        "empty.csv": ([], "0 images"),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (content, words) in broken.items():
            path = os.path.join(folder, name)
            with open(path, "w", encoding="ascii") as file:
                file.writelines(content)
            check_digits_refuses(["--data", path], 1, name, words)


def check_readme():
    """The first C block of the README is hello.c without its opening comment, byte for byte."""
    with open(os.path.join(SOURCE, "README.md"), encoding="utf-8", newline="") as file:
        block = re.search(r"^```c\n(.*?)^```$", file.read(), re.MULTILINE | re.DOTALL)
    expect(block is not None, "README.md has no ```c block")
    with open(os.path.join(SOURCE, "examples", "hello.c"), encoding="utf-8", newline="") as file:
        source = file.read()
    body = re.sub(r"\A/\*.*?\*/\n+", "", source, count=1, flags=re.DOTALL)
    printed, compiled = block.group(1).splitlines(), body.splitlines()
    for number, (left, right) in enumerate(zip(printed, compiled), 1):
        expect(left == right, f"line {number} of the block is {left!r}, in hello.c it is {right!r}")
    expect(block.group(1) == body, f"{len(printed)} lines in the block, {len(compiled)} in hello.c")


def check_names():
    """A program that links the archive gets only our global names. The compiler adds some: with two underscores, and
    DW.ref.NAME, which an unwinder looks up."""
    listing = subprocess.run(
        ["nm", "-g", "--defined-only", os.path.join(BUILD, "libtributary.a")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = {line.split()[2] for line in listing.splitlines() if len(line.split()) == 3}
    expect("trib_push_pull" in names, "the archive has no trib_push_pull")
    foreign = sorted(name for name in names if not name.startswith(("trib_", "__", "DW.ref.__")))
    expect(not foreign, f"{len(foreign)} global names without trib_: {' '.join(foreign[:5])}")


def check_search_path():
    """LD_LIBRARY_PATH takes precedence over the library's own search path."""
    dynamic = subprocess.run(
        ["readelf", "-d", os.path.join(BUILD, "libtributary.so")], capture_output=True, text=True, check=True
    ).stdout
    expect("(RUNPATH)" in dynamic and "(RPATH)" not in dynamic, "the library has an RPATH")


def tests():
    yield "archive_names", check_names
    yield "library_search_path", check_search_path
    yield "readme_example_is_hello", check_readme
    for workers, servers in [(None, 0)] + JOBS:
        label = "alone" if workers is None else f"{workers}w{servers}s"
        yield f"hello_{label}", lambda w=workers, s=servers: check_hello(w, s)
        for name in ("poll_loop", "host_libuv", "host_libev"):
            yield f"{name}_{label}", lambda n=name, w=workers, s=servers: check_host(n, w, s)
        yield f"digits_{label}", lambda w=workers, s=servers: check_digits(w, s)
    yield "digits_text", check_digits_text
    yield "own_codec", check_own_codec
    yield "digits_same_bits", check_digits_same_bits
    yield "digits_checkpoint", check_digits_checkpoint
    yield (
        "digits_missing_data",
        lambda: check_digits_refuses(
            ["--data", "/nonexistent/digits.csv"], 1, "/nonexistent/digits.csv", "No such file"
        ),
    )
    yield "digits_bad_data", check_digits_bad_data
    yield "digits_bad_epochs", lambda: check_digits_refuses(["--epochs", "many"], 2, "--epochs", "many")
    yield "digits_bad_option", lambda: check_digits_refuses(["--fast"], 2, "--fast", "usage")


def main():
    if not os.path.isdir(BUILD):
        print(f"skip examples: {BUILD} does not exist")
        return 77
    failed = ran = 0
    for name, test in tests():
        try:
            test()
            ran += 1
            print(f"ok {name}", flush=True)
        except Skip as skip:
            print(f"skip {name}: {skip}", flush=True)
        except (Failure, OSError, ValueError, KeyError) as failure:
            ran += 1
            failed += 1
            print(f"not ok {name}: {str(failure).strip()}", flush=True)
    if failed > 0:
        return 1
    return 0 if ran > 0 else 77


if __name__ == "__main__":
    sys.exit(main())
