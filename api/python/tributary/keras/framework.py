"""The Keras that is bound: Keras 3, or Keras 2 where it is TensorFlow's (older than 2.16, or TF_USE_LEGACY_KERAS=1)."""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

keras = importlib.import_module(
    'tf_keras' if os.environ.get('TF_USE_LEGACY_KERAS', '').lower() in ('1', 'true') else 'keras'
)


def to_numpy(value: Any) -> np.ndarray:
    """Returns the elements of a tensor or variable, or of what numpy takes."""
    ops = getattr(keras, 'ops', None)  # Keras 3
    is_known = ops is not None and (ops.is_tensor(value) or isinstance(value, keras.Variable))
    return np.array(ops.convert_to_numpy(value) if is_known else value, order='C')


def momentums_of(optimizer: Any) -> list[Any]:
    """Returns the variables in which an optimizer with a momentum accumulates its steps. Those that have a variable of
    that name and no momentum, such as Adam, accumulate gradients there."""
    if not hasattr(optimizer, 'momentum'):
        return []
    if hasattr(optimizer, '_slots'):  # Keras 2's older ones
        return [slots['momentum'] for slots in optimizer._slots.values() if 'momentum' in slots]
    return getattr(optimizer, 'momentums', None) or getattr(optimizer, '_momentums', None) or []


def variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables of an optimizer: a method of Keras 2's older ones, and an attribute of others."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)
