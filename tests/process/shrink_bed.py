"""A job that goes on without lost members: examples/shrink, or a program in Python."""

import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from cases import PIPES, job_settings  # noqa: E402

BUILD = os.environ.get('TRIB_BUILD', 'build/release')
# for programs in Python
PACKAGE = dict(
    PYTHONPATH=os.path.dirname(os.path.dirname(HERE)) + '/api/python', TRIBUTARY_LIBRARY=BUILD + '/libtributary.so.0'
)


class Job:
    """The processes of a job; none is left behind."""

    def __init__(self, workers, servers, transport, **settings):
        self.env = {k: v for k, v in os.environ.items() if not k.startswith('TRIB_')}
        self.env.update(job_settings(workers, servers, TRIB_SURVIVE='workers', TRIB_TRANSPORT=transport, **settings))
        self.servers, self.workers = [], []
        for _ in range(servers):
            self.start_server()

    def start_server(self, **settings):
        command = [BUILD + '/tributary', 'server']
        self.servers.append(subprocess.Popen(command, env=dict(self.env, **settings), **PIPES))

    def start(self, rank, *arguments):
        return self.start_worker(rank, [BUILD + '/examples/shrink', *arguments])

    def start_python(self, rank, program, *arguments, **settings):
        return self.start_worker(rank, [sys.executable, '-c', program, *arguments], **PACKAGE, **settings)

    def start_worker(self, rank, command, **settings):
        env = dict(self.env, TRIB_RANK=str(rank), **settings)
        self.workers.append(subprocess.Popen(command, env=env, **dict(PIPES, stdin=subprocess.PIPE)))
        return self.workers[-1]

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for process in self.servers + self.workers:
            process.kill()
            process.wait()
