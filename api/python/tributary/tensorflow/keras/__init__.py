"""Horovod's place of the binding of Keras: horovod.tensorflow.keras is tributary.keras."""

from ...keras import *  # noqa: F401,F403
from ...keras import callbacks, elastic  # noqa: F401
