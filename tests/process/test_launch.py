#!/usr/bin/env python3
"""Starts examples/hello under each installed launcher, and under environments like those of the others.

Prints `ok NAME` / `not ok NAME: why` / `skip NAME: why`.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from cases import PIPES, comes_true  # noqa: E402
from ports import free_port  # noqa: E402
from launch_bed import HELLO, N, TOOL, clean_env, run_cases_or_skip  # noqa: E402


def check(outputs, workers=N):
    text = ''.join(outputs)
    for rank in range(workers):
        sums = ' '.join(str(workers * (i + 1)) for i in range(3))
        assert 'worker %d of %d: %s' % (rank, workers, sums) in text, text[-600:]


def under(command):
    done = subprocess.run(command + [HELLO], env=clean_env(), timeout=60, **PIPES)
    assert done.returncode == 0, 'status %d: %s' % (done.returncode, done.stdout[-600:])
    check([done.stdout])


def by_hand(environments, workers=N):
    """Runs pairs of (command, environment); all must end with status 0."""
    children = [subprocess.Popen(c, env=e, **PIPES) for c, e in environments]
    try:
        outputs = [c.communicate(timeout=60)[0] for c in children]
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
    for child, output in zip(children, outputs):
        assert child.returncode == 0, 'status %d: %s' % (child.returncode, output[-600:])
    check(outputs, workers)


def torchrun():
    port = free_port()
    by_hand(
        [
            (
                [HELLO],
                clean_env(
                    RANK=r, WORLD_SIZE=N, LOCAL_RANK=r, LOCAL_WORLD_SIZE=N, MASTER_ADDR='127.0.0.1', MASTER_PORT=port
                ),
            )
            for r in range(N)
        ]
    )


def slurm():
    by_hand(
        [
            (
                [HELLO],
                clean_env(
                    SLURM_PROCID=r,
                    SLURM_NTASKS=N,
                    SLURM_LOCALID=r,
                    SLURM_NNODES=1,
                    SLURM_STEP_ID=0,
                    SLURM_JOB_ID=os.getpid(),
                    SLURM_STEP_NODELIST='node[07-09]',
                ),
            )
            for r in range(N)
        ]
    )


def byteps():
    port = free_port()
    common = dict(DMLC_NUM_WORKER=N, DMLC_NUM_SERVER=1, DMLC_PS_ROOT_URI='127.0.0.1', DMLC_PS_ROOT_PORT=port)
    by_hand(
        [
            ([TOOL, 'coordinator'], clean_env(DMLC_ROLE='scheduler', **common)),
            ([TOOL, 'server'], clean_env(DMLC_ROLE='server', **common)),
        ]
        + [([HELLO], clean_env(DMLC_ROLE='worker', DMLC_WORKER_ID=r, **common)) for r in range(N)]
    )


def byteps_several_a_machine():
    """Two machines with two processes each. The scheduler and the server count machines, as BytePS's launcher does."""
    common = dict(DMLC_NUM_WORKER=2, DMLC_NUM_SERVER=1, DMLC_PS_ROOT_URI='127.0.0.1', DMLC_PS_ROOT_PORT=free_port())
    by_hand(
        [
            ([TOOL, 'coordinator'], clean_env(DMLC_ROLE='scheduler', **common)),
            ([TOOL, 'server'], clean_env(DMLC_ROLE='server', **common)),
        ]
        + [
            (
                [HELLO],
                clean_env(DMLC_ROLE='worker', DMLC_WORKER_ID=m, BYTEPS_LOCAL_RANK=r, BYTEPS_LOCAL_SIZE=2, **common),
            )
            for m in range(2)
            for r in range(2)
        ],
        4,
    )
    # One machine needs no scheduler.
    by_hand(
        [
            ([HELLO], clean_env(DMLC_ROLE='worker', DMLC_NUM_WORKER=1, BYTEPS_LOCAL_RANK=r, BYTEPS_LOCAL_SIZE=2))
            for r in range(2)
        ],
        2,
    )


def slurm_with_pmi():
    """srun --mpi=pmi2 sets two variables that Hydra sets, too."""
    by_hand(
        [
            (
                [HELLO],
                clean_env(
                    SLURM_PROCID=r,
                    SLURM_NTASKS=N,
                    SLURM_NNODES=1,
                    SLURM_STEP_ID=0,
                    SLURM_JOB_ID=os.getpid(),
                    PMI_RANK=r,
                    PMI_SIZE=N,
                ),
            )
            for r in range(N)
        ]
    )


def batch_without_srun():
    """A Slurm batch script has rank 0 of all tasks, and is one process. The program says at once what to do."""
    started = time.monotonic()
    refuses(
        [HELLO],
        clean_env(SLURM_PROCID=0, SLURM_NTASKS=8, SLURM_NNODES=2, SLURM_JOB_ID=7, SLURM_JOB_NODELIST='a,b'),
        'srun PROGRAM',
    )
    assert time.monotonic() - started < 10


def torchrun_inside_mpirun():
    """mpirun has started torchrun once, or once for each machine; torchrun has started the processes."""
    for outer in (
        dict(OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=1, OMPI_COMM_WORLD_LOCAL_SIZE=1),
        dict(OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2, OMPI_COMM_WORLD_LOCAL_SIZE=2),
    ):
        port = free_port()
        by_hand(
            [
                (
                    [HELLO],
                    clean_env(
                        RANK=r,
                        WORLD_SIZE=N,
                        LOCAL_RANK=r,
                        LOCAL_WORLD_SIZE=N,
                        MASTER_ADDR='127.0.0.1',
                        MASTER_PORT=port,
                        TORCHELASTIC_RUN_ID='none',
                        **outer,
                    ),
                )
                for r in range(N)
            ]
        )
    refuses(
        [HELLO],
        clean_env(RANK=0, WORLD_SIZE=3, OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2),
        'OMPI_COMM_WORLD_RANK=0 of OMPI_COMM_WORLD_SIZE=2 and RANK=0 of WORLD_SIZE=3 contradict each other',
    )


def launcher_is_named():
    """Errors about the coordinator's address name the variable that it comes from."""
    port = free_port()
    short = dict(TRIB_JOIN_TIMEOUT=1)
    refuses(
        [HELLO],
        clean_env(
            DMLC_ROLE='worker',
            DMLC_NUM_WORKER=2,
            DMLC_WORKER_ID=0,
            DMLC_PS_ROOT_URI='127.0.0.1',
            DMLC_PS_ROOT_PORT=port,
            **short,
        ),
        '; DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT must say where rank 0 runs',
    )
    refuses(
        [HELLO],
        clean_env(DMLC_ROLE='worker', DMLC_NUM_WORKER=2, DMLC_WORKER_ID=0),
        'set DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT',
    )
    refuses(
        [HELLO],
        clean_env(RANK=1, WORLD_SIZE=2, MASTER_ADDR='127.0.0.1', MASTER_PORT=port, **short),
        '; MASTER_ADDR and MASTER_PORT must say',
    )
    refuses(
        [HELLO],
        clean_env(OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=4, OMPI_COMM_WORLD_LOCAL_SIZE=2),
        'the same on all members (OMPI_COMM_WORLD_LOCAL_SIZE counts one machine of several)',
    )
    refuses(
        [HELLO],
        clean_env(PMI_RANK=1, PMI_SIZE=2, MPI_LOCALNRANKS=2, **short),
        '(now loopback, as MPI_LOCALNRANKS is that of one machine)',
    )
    refuses(
        [HELLO],
        clean_env(RANK=1, WORLD_SIZE=2, MASTER_ADDR='nobody.invalid', MASTER_PORT=port, **short),
        '(MASTER_ADDR and MASTER_PORT)',
    )


def server_by_itself():
    port = free_port()
    env = dict(TRIB_WORKERS=N, TRIB_SERVERS=1, TRIB_COORDINATOR='127.0.0.1:%d' % port)
    by_hand(
        [([TOOL, 'server', '--workers', str(N), '--servers', '1', '--coordinator', '127.0.0.1:%d' % port], clean_env())]
        + [([HELLO], clean_env(TRIB_RANK=r, **env)) for r in range(N)]
    )


def token_file_that_is_given():
    """A given token file takes precedence over a token in the environment, which may be another job's."""
    port = free_port()
    with tempfile.NamedTemporaryFile('w') as token:
        token.write('the one that is given\n')
        token.flush()
        env = dict(TRIB_WORKERS=N, TRIB_SERVERS=1, TRIB_COORDINATOR='127.0.0.1:%d' % port, TRIB_JOIN_TIMEOUT='20')
        by_hand(
            [([TOOL, 'server', '--token-file', token.name], clean_env(TRIB_TOKEN='of another job', **env))]
            + [([HELLO], clean_env(TRIB_RANK=r, TRIB_TOKEN_FILE=token.name, **env)) for r in range(N)]
        )


def refuses(command, env, text):
    done = subprocess.run(command, env=env, timeout=30, **PIPES)
    assert done.returncode != 0 and text in done.stdout, 'status %d: %s' % (done.returncode, done.stdout[-600:])


def bad_input():
    refuses([HELLO], clean_env(TRIB_RANK='x'), 'TRIB_RANK="x"')
    refuses([HELLO], clean_env(TRIB_RANK=0, TRIB_WORKERS=2), 'TRIB_COORDINATOR')
    refuses([HELLO], clean_env(TRIB_CHUNK_BYTES='5000'), 'chunk_bytes 5000')
    refuses([HELLO], clean_env(TRIB_RANK=0, TRIB_WORKERS=2, TRIB_COORDINATOR='192.0.2.1:999'), 'token')
    refuses([HELLO], clean_env(RANK=0, WORLD_SIZE='many'), 'WORLD_SIZE')
    refuses([TOOL, 'run', '-n', '0', '--', 'true'], clean_env(), '-n 0')
    refuses([TOOL, 'run', '-n', '2'], clean_env(), 'which program')
    refuses([TOOL, 'run', '-n', '1', '--', '/nonexistent'], clean_env(), '/nonexistent')
    refuses([TOOL, 'nonsense'], clean_env(), 'nonsense')
    refuses([TOOL, 'info', '--nonsense'], clean_env(), '--nonsense')
    refuses([TOOL, 'bench', '--sizes', '4K,many'], clean_env(), '4K,many')
    refuses([TOOL, 'bench', '--sizes', '3'], clean_env(), 'less than one element')
    refuses([TOOL, 'sim', '--model', 'nobodys'], clean_env(), 'TRIB_MODELS')
    two = dict(TRIB_RANK=0, TRIB_WORKERS=2)
    for listen in ('127.0.0.1:80', 'localhost', '127.0.0.1,', '[::1]'):
        refuses(
            [HELLO],
            clean_env(TRIB_COORDINATOR='127.0.0.1:9', TRIB_LISTEN=listen, **two),
            'numeric address without a port',
        )
    refuses([HELLO], clean_env(TRIB_COORDINATOR='127.0.0.1:22x', **two), 'its port is no number')
    refuses(
        [HELLO], clean_env(TRIB_COORDINATOR='nobody.invalid:22', TRIB_JOIN_TIMEOUT='1', **two), 'or DNS must know it'
    )
    refuses(
        [HELLO], clean_env(TRIB_COORDINATOR='10.0.0.300:22', TRIB_JOIN_TIMEOUT='3600', **two), 'address "10.0.0.300:22"'
    )
    refuses(
        [TOOL, 'run', '--host', 'nobody.invalid', '--', 'true'],
        clean_env(),
        '--host nobody.invalid: must be an IPv4 address',
    )
    refuses([TOOL, 'coordinator', '--coordinator', '127.0.0.1:0'], clean_env(), 'choose a port')
    for rank in 0, 1:
        refuses(
            [HELLO],
            clean_env(TRIB_COORDINATOR='127.0.0.1:0', TRIB_RANK=rank, TRIB_WORKERS=2),
            'coordinator 127.0.0.1:0: choose a port',
        )


def external_coordinator_forgotten():
    """Rank 0 finds its coordinator's port taken, and names the likely cause."""
    with socket.create_server(('127.0.0.1', 0)) as taken:
        refuses(
            [HELLO],
            clean_env(TRIB_RANK=0, TRIB_WORKERS=2, TRIB_COORDINATOR='127.0.0.1:%d' % taken.getsockname()[1]),
            'TRIB_EXTERNAL_COORDINATOR',
        )
        refuses(
            [HELLO],
            clean_env(TRIB_RANK=0, TRIB_WORKERS=2, TRIB_COORDINATOR='127.0.0.1:%d' % taken.getsockname()[1]),
            'TRIB_COORDINATOR must be an address of this machine with a port that is free',
        )


def coordinator_elsewhere():
    """No process listens at the address. The error names the address, and tells what is wrong with it."""
    port = free_port()
    refuses(
        [HELLO],
        clean_env(TRIB_RANK=1, TRIB_WORKERS=2, TRIB_JOIN_TIMEOUT=1, TRIB_COORDINATOR='127.0.0.1:%d' % port),
        'Connection refused; TRIB_COORDINATOR must say where rank 0 runs',
    )
    refuses(
        [HELLO],
        clean_env(TRIB_RANK=1, TRIB_WORKERS=2, TRIB_JOIN_TIMEOUT=1, TRIB_COORDINATOR='127.0.0.1:%d' % port),
        'could not reach the coordinator at 127.0.0.1:%d' % port,
    )


def another_program_listens():
    """A web server listens at the address. The error names the address and the variable that sets it."""

    def answer():
        with server.accept()[0] as connection:
            connection.sendall(b'HTTP/1.1 400 Bad Request\r\n' + 200 * b'x')
            while connection.recv(4096):
                pass

    with socket.create_server(('127.0.0.1', 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        address = '127.0.0.1:%d' % server.getsockname()[1]
        refuses(
            [HELLO],
            clean_env(TRIB_RANK=1, TRIB_WORKERS=2, TRIB_COORDINATOR=address),
            'could not join at %s: not a frame of this protocol (first bytes 48 54 54 50): the other side is another '
            'program' % address,
        )


def coordinator_waits():
    """A coordinator that waits for a job ends with status 1 after SIGTERM, as its help says."""
    child = subprocess.Popen(
        [TOOL, 'coordinator', '--workers', '2', '--coordinator', '127.0.0.1:%d' % free_port()], env=clean_env(), **PIPES
    )
    try:
        # It blocks the signals that it waits for before it starts its first thread.
        assert comes_true(lambda: len(os.listdir('/proc/%d/task' % child.pid)) > 1), 'it has no thread'
        child.terminate()
        output = child.communicate(timeout=30)[0]
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 1, 'status %d: %s' % (child.returncode, output[-600:])


LAUNCHERS = [
    ('open_mpi', ['mpirun.openmpi', '--allow-run-as-root', '--oversubscribe', '-n', str(N)]),
    ('mpich', ['mpiexec.hydra', '-n', str(N)]),
]
CASES = [
    ('like_torchrun', torchrun),
    ('like_slurm', slurm),
    ('like_byteps', byteps),
    ('byteps_several_a_machine', byteps_several_a_machine),
    ('slurm_with_pmi', slurm_with_pmi),
    ('batch_without_srun', batch_without_srun),
    ('torchrun_inside_mpirun', torchrun_inside_mpirun),
    ('launcher_is_named', launcher_is_named),
    ('server_by_itself', server_by_itself),
    ('token_file_that_is_given', token_file_that_is_given),
    ('bad_input', bad_input),
    ('external_coordinator_forgotten', external_coordinator_forgotten),
    ('coordinator_elsewhere', coordinator_elsewhere),
    ('another_program_listens', another_program_listens),
    ('coordinator_waits', coordinator_waits),
]


def main():
    return run_cases_or_skip(
        [(n, lambda c=c: under(c)) if shutil.which(c[0]) else (n, None) for n, c in LAUNCHERS] + CASES
    )


if __name__ == '__main__':
    sys.exit(main())
