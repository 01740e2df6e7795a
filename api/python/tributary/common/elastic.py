"""Horovod's place of elastic training without a framework."""

from ..elastic import ObjectState, State, run_fn

__all__ = ['ObjectState', 'State', 'run_fn']
