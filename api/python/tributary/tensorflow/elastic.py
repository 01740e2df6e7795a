"""Elastic training with TensorFlow: Horovod's TensorFlowState and TensorFlowKerasState (tributary.elastic has the
rules)."""

from ..elastic import HostsUpdatedInterrupt, ObjectState, State, run
from ..keras.elastic import KerasState, TensorFlowKerasState, VariablesState

__all__ = [
    'HostsUpdatedInterrupt',
    'KerasState',
    'ObjectState',
    'State',
    'TensorFlowKerasState',
    'TensorFlowState',
    'VariablesState',
    'run',
]


class TensorFlowState(VariablesState):
    """A state of variables, and of plain values: TensorFlowState(model.variables, epoch=0)."""

    def __init__(self, variables=None, session=None, **attributes):
        super().__init__(lambda: variables or (), **attributes)
