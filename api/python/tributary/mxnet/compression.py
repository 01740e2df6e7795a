"""Compression of gradients before they are sent, in the framework: a cast. Its classes have Horovod's interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..codecs import CodecCompressor, NoneCompressor


class FP16Compressor:
    """Sends 16-bit floats (IEEE binary16)."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Returns what is sent, and a context for decompress()."""
        is_float = np.issubdtype(np.dtype(tensor.dtype), np.floating)
        return (tensor.astype('float16'), tensor.dtype) if is_float else (tensor, None)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Returns the reduced tensor as the caller wants it."""
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """The compressors that arguments named `compression` take."""

    none = NoneCompressor
    fp16 = FP16Compressor

    @staticmethod
    def codec(codec: Any, min_bytes: int | None = None) -> CodecCompressor:
        """The engine's codec of that text, "onebit,ef=vanilla", or of BytePS's compression_params. Smaller tensors
        travel as they are."""
        return CodecCompressor(codec, min_bytes)
