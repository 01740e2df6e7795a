"""Horovod's and BytePS's place of the callbacks."""

from ...keras.callbacks import *  # noqa: F401,F403
