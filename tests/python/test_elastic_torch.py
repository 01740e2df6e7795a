#!/usr/bin/env python3
"""Elastic training with PyTorch: workers are killed, hosts come and go, torchrun starts all again. Prints `ok NAME` /
`not ok NAME: why`, or one `skip NAME: why` and exits with 77.
"""

import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(os.path.dirname(HERE), 'process'))
import elastic_bed  # noqa: E402
import python_bed  # noqa: E402
from cases import PIPES, Outlet, job_settings, read_until, run_cases  # noqa: E402
from elastic_bed import Job, all_have_trained, open_gate  # noqa: E402


def worker_is_lost(python):
    with tempfile.TemporaryDirectory() as folder:
        gate = folder + '/gate'
        job = Job('--elastic', '1:3', '--', python, HERE + '/elastic_cases.py', gate)
        for rank in 1, 0:  # rank 0 has the state; another one has it, too
            job.has_size(3)
            victim = next(pid for pid, each in job.steps().items() if each[1] == rank)
            job.kill(victim)
            job.comes_to(lambda steps, victim=victim: victim not in steps, 'the end of the worker that was killed')
        job.has_size(3)
        open_gate(gate)
        output = job.end(seconds=120)
    assert output.count('was ended by signal 9') == 2, output[-2500:]
    all_have_trained(output, 3)


def goes_on_in_the_process(python):
    """Without a launcher: a worker is killed, another one joins, and no process that is left is started again."""
    with tempfile.TemporaryDirectory() as folder:
        survive_and_join(python, folder + '/gate')


def survive_and_join(python, gate):
    env = python_bed.environment(**job_settings(3, TRIB_SURVIVE='workers'))

    def start(rank):
        command = [python, HERE + '/elastic_cases.py', gate]
        worker = subprocess.Popen(command, env=dict(env, TRIB_RANK=str(rank)), **PIPES)
        Outlet(worker)  # a worker that comes late must find the others at work
        return worker

    workers = [start(rank) for rank in range(3)]
    try:
        read_until(workers[0], 'rank 0 of 3')
        workers[1].kill()
        read_until(workers[0], 'rank 0 of 2')
        workers.append(start(-1))
        read_until(workers[3], 'rank 2 of 3')
        open_gate(gate)
        lines = []
        for worker in workers[0], workers[2], workers[3]:
            read_until(worker, '^trained', lines, python_bed.TIMEOUT)
            assert worker.wait(python_bed.TIMEOUT) == 0, ''.join(list(worker.stdout))[-2500:]
        all_have_trained(''.join(lines), 3)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def hosts_change(python):
    with tempfile.TemporaryDirectory() as folder:

        def show(text):
            with open(folder + '/new', 'w', encoding='ascii') as file:
                file.write(text)
            os.rename(folder + '/new', folder + '/hosts')

        with open(folder + '/discover', 'w', encoding='ascii') as file:
            file.write('#!/bin/sh\ncat %s/hosts\n' % folder)
        os.chmod(folder + '/discover', 0o755)
        show('a:1\nb:1\n')
        options = ('--discover', folder + '/discover', *elastic_bed.AWAY)
        job = Job('--elastic', '1:3', *options, '--', python, HERE + '/elastic_cases.py', folder + '/gate')
        job.has_size(2)
        show('a:1\nb:2\n')
        job.has_size(3)
        show('b:2\n')
        job.has_size(2)
        open_gate(folder + '/gate')
        output = job.end(seconds=120)
    all_have_trained(output, 2)
    assert 'Traceback' not in output, output[-2500:]


def digits_with_chaos(python):
    """The example learns in spite of kills."""
    example = python_bed.SOURCE + '/examples/python/elastic_digits.py'
    options = ('--epochs', '12', '--pause', '0.1', '--chaos', '3')
    output = Job('--elastic', '1:3', '--host-failures', '0', '--', python, example, *options).end(seconds=200)
    accuracy = float(re.search(r'accuracy ([\d.]+) %', output).group(1))
    assert output.count('was ended by signal 9') == 3, output[-2500:]
    assert accuracy > 93, accuracy


def torchrun_starts_again(python):
    """torchrun starts all workers anew after a loss; the new ones join a job of their own, at the same address. The
    workers share one output: each line is a single argument of print(), so that no other worker's falls into it."""
    program = (
        'import os, torch, tributary.torch as hvd; hvd.init(); again = int(os.environ["TORCHELASTIC_RESTART_COUNT"]);\n'
        'value = hvd.allreduce(torch.ones(3) * (hvd.rank() + 1), op=hvd.Sum)\n'
        'assert value.tolist() == [6, 6, 6], value\n'
        'again < 2 and hvd.rank() == again and os._exit(5)\n'
        'hvd.allreduce(torch.ones(1)); print("attempt %d is right" % again, flush=True); hvd.shutdown()'
    )
    with tempfile.NamedTemporaryFile('w', suffix='.py') as file:
        file.write(program)
        file.flush()
        command = [
            python,
            '-m',
            'torch.distributed.run',
            '--nnodes',
            '1:2',
            '--nproc-per-node',
            '3',
            '--max-restarts',
            '3',
        ]
        # At each start torchrun waits for more nodes than the least, half a minute if it is not told.
        command += ['--rdzv-backend', 'c10d', '--rdzv-endpoint', '127.0.0.1:0']
        command += ['--rdzv-conf', 'last_call_timeout=1', file.name]
        output = python_bed.run(command, python_bed.environment(PYTHONWARNINGS='ignore'))
    assert output.count('attempt 2 is right') == 3, output[-2500:]


def main():
    python, reason = python_bed.interpreter('torch')
    if python is None:
        print('skip elastic_torch: ' + reason)
        return 77
    cases = worker_is_lost, goes_on_in_the_process, hosts_change, digits_with_chaos, torchrun_starts_again
    return run_cases(
        [
            (case.__name__, lambda case=case: case(python))
            for case in cases
            if len(sys.argv) < 2 or case.__name__ in sys.argv[1:]
        ]
    )


if __name__ == '__main__':
    sys.exit(main())
