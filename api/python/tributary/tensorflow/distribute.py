"""BytePS's cross-device operations for tf.distribute, which are refused with a text."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedError

_TEXT = (
    '%s: strategies of tf.distribute are not supported. Start one process for each device (tributary run), and use '
    'DistributedOptimizer or DistributedGradientTape of tributary.tensorflow'
)


class _Refused:
    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        raise UnsupportedError(_TEXT % type(self).__name__)


class MirroredStrategy(_Refused):
    """BytePS's strategy of one process with several devices."""


class BytepsCrossDeviceOps(_Refused):
    """BytePS's base of operations between devices."""


class BytepsAllReduce(_Refused):
    """BytePS's all-reduce between devices."""
