"""Compression of gradients before they are sent, in the framework: a cast. Its classes have Horovod's interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import codecs


# How BytePS names the words of compression_params for a tensor, and some of their values.
_WORDS = {
    'byteps_compressor_type': ('compressor', {}),
    'byteps_compressor_onebit_scaling': ('scaling', {'true': True, 'True': True, 'false': False, 'False': False}),
    'byteps_compressor_k': ('k', {}),
    'byteps_ef_type': ('ef', {}),
    'byteps_momentum_type': ('momentum', {}),
    'byteps_momentum_mu': ('mu', {}),
    'byteps_seed': ('seed', {}),
    'byteps_dithering_partition': ('partition', {'0': 'linear', '1': 'natural'}),
    'byteps_dithering_normalize': ('normalize', {'0': 'max', '1': 'l2'}),
}


def params_of(keywords: dict[str, Any]) -> dict[str, Any]:
    """Returns the compression_params that the keywords of BytePS's byteps_declare_tensor() stand for."""
    params = {}
    for keyword, value in keywords.items():
        word, values = _WORDS.get(keyword, (keyword, {}))
        params[word] = values.get(value, value)
    return params


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


class Compression(codecs.Compression):
    """The compressors that arguments named `compression` take."""

    fp16 = FP16Compressor
