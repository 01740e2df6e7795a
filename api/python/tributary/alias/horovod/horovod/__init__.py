"""Stands in for Horovod: `import horovod.torch as hvd` gets tributary.torch. On the path with `tributary run --as
horovod`."""

from tributary.aliasing import install
from tributary.runner import run  # noqa: F401

__version__ = '0.28.1'  # whose names are here; scripts ask for it

install(__name__, __path__)
