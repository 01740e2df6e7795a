"""Horovod's place of elastic training with Keras: horovod.tensorflow.keras.elastic is tributary.keras.elastic."""

from ...keras.elastic import *  # noqa: F401,F403
