"""Stands in for BytePS: `import byteps.torch as bps` gets tributary.torch. On the path with `tributary run --as
byteps`."""

from tributary.aliasing import install

__version__ = '0.2.5'  # whose names are here; scripts ask for it

install(__name__, __path__)
