"""Stands in for BytePS: `import byteps.torch as bps` gets tributary.torch. On the path with `tributary run --as
byteps`."""

from tributary.aliasing import install

install(__name__, __path__)
