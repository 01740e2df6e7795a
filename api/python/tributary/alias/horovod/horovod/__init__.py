"""Stands in for Horovod: `import horovod.torch as hvd` gets tributary.torch. On the path with `tributary run --as
horovod`."""

from tributary.aliasing import install
from tributary.runner import run  # noqa: F401

install(__name__, __path__)
