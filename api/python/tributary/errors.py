"""The exceptions of the package. All are RuntimeErrors, as in the libraries whose scripts run over this one."""

import sys


class TributaryError(RuntimeError):
    """An engine's error. `status` is the number of the C API, `status_name` its name; the text says what happened,
    which tensor and peer it concerns, and what to do."""

    ag_pass_through = True  # AutoGraph of TensorFlow, which wraps errors of other classes into its own, lets it through

    def __init__(self, text, status=0, status_name=''):
        super().__init__('%s: %s' % (status_name, text) if status_name else text)
        self.status, self.status_name = status, status_name


class NotInitializedError(TributaryError, ValueError):
    """A call came before init() or after shutdown()."""


class ArgumentError(TributaryError, ValueError):
    """An argument cannot be right on any worker."""


class MismatchError(TributaryError):
    """Workers disagree about a tensor or an operation. All of them get this error; the job goes on."""


class JobLostError(TributaryError):
    """A member was lost or has left, so the job is over for this engine. Elastic training catches it and begins
    anew."""


class MembershipChangedError(JobLostError):
    """A worker was lost in a job that goes on without it (TRIB_SURVIVE=workers). The operation failed on every worker
    that is left, and Engine.advance() goes on."""


class HostsUpdatedInterrupt(Exception):
    """The launcher has workers to add or to take away. Not an error: tributary.elastic.run() begins the next attempt.
    skip_sync: nobody comes, so the state need not be given to anyone."""

    def __init__(self, skip_sync=False):
        super().__init__('the hosts of the job have changed')
        self.skip_sync = skip_sync


class UnsupportedError(TributaryError, NotImplementedError):
    """This build, machine or framework cannot do it."""


# A program in which one of these is raised goes on, or was about to end well.
_NO_FAILURES = (HostsUpdatedInterrupt, JobLostError, GeneratorExit, StopIteration, StopAsyncIteration)


def is_failing(is_exit=False):
    """Returns whether the caller handles an exception by which the program ends. is_exit: the interpreter exits, and
    may have printed it already."""
    kind, problem, _ = sys.exc_info()
    if kind is None and is_exit and not hasattr(sys, 'ps1'):  # an interactive session keeps errors of long ago
        kind = getattr(sys, 'last_type', None)
    is_healthy = isinstance(problem, SystemExit) and problem.code in (None, 0)
    return kind is not None and not is_healthy and not issubclass(kind, _NO_FAILURES)
