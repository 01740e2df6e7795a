"""Horovod's place of what all its bindings share: horovod.common is tributary.common."""
