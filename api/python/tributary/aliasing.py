"""Makes modules of another package resolve to this one's: horovod.torch to tributary.torch, and so on."""

import importlib
import importlib.abc
import importlib.machinery
import sys


# Modules that lie elsewhere here. A package holds all names of the modules that have been split there.
_PLACES = {
    'byteps.keras': 'keras.byteps',
    'byteps.keras.callbacks': 'keras.byteps_callbacks',
    'byteps.mxnet.ops': 'mxnet',
    'byteps.server': 'byteps_server',
    'byteps.tensorflow.keras': 'keras.byteps',
    'byteps.tensorflow.keras.callbacks': 'keras.byteps_callbacks',
    'byteps.tensorflow.ops': 'tensorflow',
    'byteps.torch.ops': 'torch',
    'byteps.torch.parallel.distributed': 'torch.parallel',
    'horovod.common.process_sets': 'process_sets',
    'horovod.mxnet.functions': 'mxnet',
    'horovod.mxnet.mpi_ops': 'mxnet',
    'horovod.tensorflow.mpi_ops': 'tensorflow',
    'horovod.torch.elastic.sampler': 'torch.elastic',
    'horovod.torch.elastic.state': 'torch.elastic',
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, package):
        self._prefix = package + '.'

    def find_spec(self, name, path=None, target=None):
        if not name.startswith(self._prefix):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        place = 'tributary.' + _PLACES.get(spec.name, spec.name[len(self._prefix) :])
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as problem:
            if problem.name is None or not (place + '.').startswith(problem.name + '.'):
                raise  # something that the module needs
            raise ModuleNotFoundError(
                '%s: tributary stands in for %s here and has no such part: see "What is not there" in docs/python.md'
                % (spec.name, self._prefix[:-1]),
                name=spec.name,
            ) from None

    def exec_module(self, module):
        """The module has been executed under its own name."""


def install(package, path):
    """Lets imports of `package`'s modules find the modules of that name here."""
    del path[:]  # nothing of it lies on disk
    sys.meta_path.insert(0, _Finder(package))
