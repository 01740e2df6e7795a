"""How sums travel: codecs as texts (docs/codecs.md)."""

from .errors import ArgumentError

_TWO_WAY = ('onebit', 'topk')  # BytePS compresses sums, too; of its codecs these can be here
_WORDS = ('compressor', 'k', 'seed', 'scaling', 'partition', 'normalize', 'ef', 'momentum', 'mu')


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
    words = ['%s=%s' % (word, codec[word]) for word in _WORDS if codec.get(word) is not None]
    return ','.join(words + (['two_way'] if codec['compressor'] in _TWO_WAY else []))
