"""Horovod's place of small functions: horovod.tensorflow.util is tributary.tensorflow.util."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    return tf.executing_eagerly()


def vars_to_refs(vars: Any) -> Any:
    """Returns the variables of a list, which may be nested, as tuples of what can be a key."""
    return tuple(vars_to_refs(one) for one in vars) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Returns the variables of vars_to_refs()."""
    return [refs_to_vars(one) for one in refs] if isinstance(refs, tuple) else refs.deref()
