"""How sums travel: codecs as texts (docs/codecs.md)."""

from __future__ import annotations

import os
from typing import Any

from .errors import ArgumentError

_TWO_WAY = ('onebit', 'topk')  # BytePS compresses sums, too; of its codecs these can be here
_WORDS = ('compressor', 'k', 'seed', 'scaling', 'partition', 'normalize', 'ef', 'momentum', 'mu')
# Scripts of BytePS give the words of all compressors at once, and each takes its own.
_TAKEN_BY = {
    'k': ('topk', 'randomk', 'dithering'),
    'scaling': ('onebit',),
    'partition': ('dithering',),
    'normalize': ('dithering',),
}


def min_bytes():
    """Smaller tensors travel as they are: BytePS's BYTEPS_MIN_COMPRESS_BYTES, else 64 KiB."""
    return int(os.environ.get('BYTEPS_MIN_COMPRESS_BYTES') or 65536)


class NoneCompressor:
    """Sends the tensor as it is."""

    @staticmethod
    def compress(tensor):
        """Returns what is sent, and a context for decompress()."""
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        """Returns the reduced tensor as the caller wants it."""
        return tensor


class CodecCompressor(NoneCompressor):
    """Says how the engine sends tensors, and leaves them as they are itself."""

    def __init__(self, codec, least=None):
        self.text, self.min_bytes = codec_text(codec), min_bytes() if least is None else least


class Compression:
    """The compressors that arguments named `compression` take."""

    none = NoneCompressor

    @staticmethod
    def codec(codec: Any, min_bytes: int | None = None) -> CodecCompressor:
        """The engine's codec of that text, "onebit,ef=vanilla", or of BytePS's compression_params. Smaller tensors
        travel as they are."""
        return CodecCompressor(codec, min_bytes)


def checked(compression):
    """Returns what is a compression, one of Compression or the like, and refuses all else."""
    if not hasattr(compression, 'compress') or not hasattr(compression, 'decompress'):
        raise ArgumentError('compression: it must be one of those of Compression, and is %r' % (compression,))
    return compression


def codec_of(compression, nbytes):
    """Returns the text of the codec that a compression names for a tensor of so many bytes, or None."""
    text = getattr(compression, 'text', None)
    return text if text is None or nbytes >= compression.min_bytes else 'none'


def codec_text(codec):
    """Returns the text of a codec: a text as it is, or one that says what BytePS's compression_params say."""
    if isinstance(codec, str):
        return codec
    unknown = sorted(set(codec) - set(_WORDS))
    if unknown or 'compressor' not in codec:
        raise ArgumentError(
            'compression_params: %s; known are %s'
            % ('unknown %s' % ', '.join(unknown) if unknown else 'no compressor is named', ', '.join(_WORDS))
        )
    kind = codec['compressor']
    if not kind:
        return 'none'
    given = [word for word in _WORDS if codec.get(word) not in (None, '') and kind in _TAKEN_BY.get(word, (kind,))]
    words = ['%s=%s' % (word, codec[word]) for word in given]
    return ','.join(words + (['two_way'] if kind in _TWO_WAY else []))
