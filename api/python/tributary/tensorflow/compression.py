"""Compression of gradients before they are sent, in the framework: a cast. Its classes have Horovod's interface."""

import tensorflow as tf

from .. import codecs


class FP16Compressor:
    """Sends 16-bit floats (IEEE binary16)."""

    @staticmethod
    def compress(tensor):
        """Returns what is sent, and a context for decompress()."""
        return (tf.cast(tensor, tf.float16), tensor.dtype) if tensor.dtype.is_floating else (tensor, None)

    @staticmethod
    def decompress(tensor, ctx):
        """Returns the reduced tensor as the caller wants it."""
        return tensor if ctx is None else tf.cast(tensor, ctx)


class Compression(codecs.Compression):
    """The compressors that arguments named `compression` take."""

    fp16 = FP16Compressor
