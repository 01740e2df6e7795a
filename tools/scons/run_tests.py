#!/usr/bin/env python3
"""Runs the test programs and scripts of one build, each under a deadline, and adds up their cases.

Programs are cmocka's and speak TAP; scripts under tests/process, tests/python, tests/cluster and tests/rdma print `ok
NAME`, `not ok NAME: why`, `skip NAME: why`. At the end stands `FAILED: PROGRAM: CASE (why)` for each that failed, and
last `N passed, N failed, N skipped`.
"""

import argparse
import concurrent.futures
import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

TAP = re.compile(r'^(not ok|ok) \d+ (?:- )?(.*)$')
# Seconds, for tests that need more than others: these boot machines, or begin a framework dozens of times.
FRAMEWORKS = 'test_torch.py', 'test_jax.py', 'test_tensorflow.py', 'test_keras.py'
DEADLINES = {'test_rdma.py': 1200, 'test_gpu.py': 3600, **dict.fromkeys(FRAMEWORKS, 1200)}
# Scripts that count what others on the machine would add to, pin reactors, shape links, boot machines or hold GPUs.
ALONE = (
    'tests/process/test_counters.py',
    'tests/process/test_run.py',
    'tests/cluster/',
    'tests/rdma/',
    'tests/gpu/',
)
SCRIPT = re.compile(r'^(not ok|ok|skip) ([^:]+)(?:: (.*))?$')


running = set()  # leaders of the running process groups
starts = threading.Lock()  # held while a program starts


def end_at_signals():
    """A thread looks for them, because the main thread could see one too late: one that comes just before it waits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, lambda number, frame: None)
    threading.Thread(target=lambda: end_all(os.read(reader, 1)[0]), daemon=True).start()


def end_all(number):
    """Ends the programs too, which have sessions of their own. No other program starts."""
    starts.acquire()
    for deadly in signal.SIGTERM, signal.SIGKILL:
        for pid in list(running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, deadly)
        time.sleep(1)  # to tidy up
    os._exit(128 + number)


def run(command, env, deadline):
    """Returns output, exit status and seconds of processor. The deadline, or the end of its leader, ends the whole
    process group. What has left that may keep the output open, so it is a file."""
    with tempfile.TemporaryFile('w+', errors='replace') as output:
        with starts:
            child = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            running.add(child.pid)
        late = threading.Event()

        def end():
            late.set()
            os.killpg(child.pid, signal.SIGKILL)

        timer = threading.Timer(deadline, end)
        timer.start()
        try:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        finally:
            timer.cancel()
            timer.join()  # before the process is reaped, so that its number is still its own
            running.discard(child.pid)
        os.killpg(child.pid, signal.SIGKILL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    used = usage.ru_utime + usage.ru_stime
    if late.is_set():
        return text + '\nkilled: not done within %d s\n' % deadline, -1, used
    return text, child.returncode, used


def cases_of_program(output):
    """cmocka writes `ok 1 - NAME`, `not ok 2 - NAME`, and for what was skipped `not ok 3 # SKIP NAME`. The reason is
    in a comment: of a skipped case before it, of a failed one after it. fail_msg() writes it to standard error."""
    cases, comment = [], ''
    errors = (line for line in output.splitlines() if line.startswith('ERROR: '))
    for line in output.splitlines():
        match = TAP.match(line)
        if match and match.group(2).upper().startswith('# SKIP'):
            cases.append((match.group(2)[len('# SKIP') :].strip(), 'skip', comment or 'no reason given'))
            comment = ''
        elif match:
            cases.append((match.group(2), 'pass' if match.group(1) == 'ok' else 'fail', ''))
            comment = ''
        elif line.startswith('# '):
            comment = line[2:]
            if cases and cases[-1][1:] == ('fail', ''):
                why = next(errors, comment) if comment.endswith(': error: Failure!') else comment
                cases[-1] = (cases[-1][0], 'fail', why)
    return cases


def cases_of_script(output):
    words = {'ok': 'pass', 'not ok': 'fail', 'skip': 'skip'}
    return [(m.group(2), words[m.group(1)], m.group(3) or '') for m in map(SCRIPT.match, output.splitlines()) if m]


def with_note(name, note):
    return '%s (%s)' % (name, note) if note else name


def run_one(path, build, deadline):
    """Returns the cases, the output and the seconds of processor."""
    env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT='TAP', TRIB_BUILD=build, PYTHONUNBUFFERED='1')
    # gcc 14 checks for uses of a stack frame after return by default, with fake frames that are not aligned for
    # vectors of 64 bytes: a kernel that uses these crashes.
    env.setdefault('ASAN_OPTIONS', 'detect_stack_use_after_return=0')
    env.setdefault('TSAN_OPTIONS', 'halt_on_error=1:suppressions=' + os.path.abspath('tests/tsan.supp'))
    script = path.endswith('.py')
    name = os.path.basename(path)
    if name.startswith('fuzz_'):
        corpus = 'tests/fuzz/corpus/' + name[len('fuzz_') :]
        output, status, used = run([path, corpus], env, deadline)
        return [(name + ' over its corpus', 'pass' if status == 0 else 'fail', '')], output, used
    if not script and name != 'test_topo':
        # For each engine hwloc would read the registers of all PCI devices, which takes a virtual machine 9 ms.
        env.setdefault('HWLOC_COMPONENTS', '-linux:pci')
        # And for each it would load its plugins, with the libraries of X11, OpenCL and ICU that they need.
        env.setdefault('HWLOC_PLUGINS_PATH', os.devnull)
    output, status, used = run([sys.executable, path] if script else [path], env, deadline)
    cases = cases_of_script(output) if script else cases_of_program(output)
    if status == 77 and not any(c[1] != 'skip' for c in cases):
        cases = cases or [(name, 'skip', output.strip().splitlines()[-1] if output.strip() else 'no reason given')]
    elif status != 0 and not any(c[1] == 'fail' for c in cases):
        cases.append((name, 'fail', 'exit status %d' % status))
    elif not cases:
        cases.append((name, 'fail', 'ran no test'))
    return cases, output, used


def run_all(paths, args):
    """Each path with its cases, output, time and time of processors, as they are done: as many at a time as args say,
    then those that need the machine for themselves."""

    def timed(path):
        began = time.monotonic()
        deadline = max(args.timeout, DEADLINES.get(os.path.basename(path), 0))
        cases, output, used = run_one(path, args.build, deadline)
        return path, cases, output, time.monotonic() - began, used

    alone = [p for p in paths if p.startswith(ALONE)]
    with concurrent.futures.ThreadPoolExecutor(max(args.jobs, 1)) as pool:
        for done in concurrent.futures.as_completed([pool.submit(timed, p) for p in paths if p not in alone]):
            yield done.result()
    for path in alone:
        yield timed(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--build', default='build/release')
    parser.add_argument('--no-scripts', action='store_true', help='test programs only')
    parser.add_argument(
        '--timeout', type=int, default=480, help='seconds for one program: against hangs, with room for a busy machine'
    )
    parser.add_argument('--jobs', type=int, default=1, help='programs and scripts at a time')
    parser.add_argument('--json', metavar='FILE')
    parser.add_argument(
        '--without', metavar='NAME', action='append', default=[], help='not those whose path contains this'
    )
    parser.add_argument('names', nargs='*', help='only those whose path contains one of these')
    args = parser.parse_args()
    end_at_signals()
    paths = [
        p
        for p in sorted(glob.glob(args.build + '/tests/test_*') + glob.glob(args.build + '/tests/fuzz_*'))
        if os.access(p, os.X_OK) and os.path.isfile(p)
    ]
    if not args.no_scripts:
        paths += sorted(
            glob.glob('tests/process/test_*.py')
            + glob.glob('tests/python/test_*.py')
            + glob.glob('tests/cluster/test_*.py')
            + glob.glob('tests/rdma/test_*.py')
            + glob.glob('tests/gpu/test_*.py')
        )
    paths = [p for p in paths if not args.names or any(n in p for n in args.names)]
    paths = [p for p in paths if not any(n in p for n in args.without)]
    totals, everything = {'pass': 0, 'fail': 0, 'skip': 0}, []
    for path, cases, output, seconds, used in run_all(paths, args):
        count = {k: sum(1 for c in cases if c[1] == k) for k in totals}
        print(
            '%-44s %3d passed %3d failed %3d skipped  %5.1f s, %5.1f s of processors'
            % (os.path.basename(path), count['pass'], count['fail'], count['skip'], seconds, used),
            flush=True,
        )
        for name, verdict, note in cases:
            if verdict == 'skip':
                print('  skipped %s: %s' % (name, note))
            everything.append({'program': path, 'case': name, 'verdict': verdict, 'note': note})
        if count['fail']:
            print('  failed: ' + ', '.join(with_note(c[0], c[2]) for c in cases if c[1] == 'fail'))
            print('\n'.join('  | ' + line for line in output.splitlines()[-60:]))
        for key in totals:
            totals[key] += count[key]
    if args.json:
        with open(args.json, 'w') as out:
            json.dump({'totals': totals, 'cases': everything}, out, indent=1)
    for one in everything:
        if one['verdict'] == 'fail':
            print('FAILED: %s: %s' % (os.path.basename(one['program']), with_note(one['case'], one['note'])))
    print('%d passed, %d failed, %d skipped' % (totals['pass'], totals['fail'], totals['skip']))
    return 1 if totals['fail'] or not totals['pass'] else 0


if __name__ == '__main__':
    sys.exit(main())
