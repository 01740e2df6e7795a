"""Compression of gradients before they are sent, in the framework: a cast. Its classes have Horovod's interface."""

import torch

from .. import codecs


class Compressor:
    """Compresses a tensor before the reduction, and restores its type afterwards."""

    @staticmethod
    def compress(tensor):
        """Returns what is sent, and a context for decompress()."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor, ctx):
        """Returns the reduced tensor as the caller wants it."""
        raise NotImplementedError


class NoneCompressor(codecs.NoneCompressor, Compressor):
    """Sends the tensor as it is."""


class _CastCompressor(Compressor):
    target = None

    @classmethod
    def compress(cls, tensor):
        if tensor.dtype.is_floating_point and tensor.dtype != cls.target:
            return tensor.to(cls.target), tensor.dtype
        return tensor, None

    @classmethod
    def decompress(cls, tensor, ctx):
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(_CastCompressor):
    """Sends 16-bit floats (IEEE binary16)."""

    target = torch.float16


class BF16Compressor(_CastCompressor):
    """Sends bfloat16."""

    target = torch.bfloat16


class Compression(codecs.Compression):
    """The compressors that arguments named `compression` take."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor


def codec_for(compression, tensor):
    """Returns the codec that a compression names for a tensor, or None."""
    return codecs.codec_of(compression, tensor.numel() * tensor.element_size())
