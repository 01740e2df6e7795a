"""Callbacks for fit() with BytePS's order of arguments, for byteps.keras.callbacks."""

from . import callbacks
from .callbacks import BroadcastGlobalVariablesCallback, MetricAverageCallback  # noqa: F401 (names of this module)


class LearningRateScheduleCallback(callbacks.LearningRateScheduleCallback):
    """As callbacks.LearningRateScheduleCallback, but for a number as the multiplier, which stays the same."""

    def __init__(
        self,
        multiplier,
        start_epoch=0,
        end_epoch=None,
        staircase=True,
        momentum_correction=True,
        steps_per_epoch=None,
        initial_lr=None,
    ):
        factor = multiplier if callable(multiplier) else lambda epoch: multiplier
        staircase = staircase or not callable(multiplier)
        super().__init__(initial_lr, factor, start_epoch, end_epoch, staircase, momentum_correction, steps_per_epoch)


class LearningRateWarmupCallback(callbacks.LearningRateWarmupCallback):
    """As callbacks.LearningRateWarmupCallback."""

    def __init__(self, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0, initial_lr=None):
        super().__init__(initial_lr, warmup_epochs, momentum_correction, steps_per_epoch, verbose)
