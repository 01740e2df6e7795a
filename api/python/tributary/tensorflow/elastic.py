"""Elastic training with TensorFlow: Horovod's TensorFlowState and TensorFlowKerasState (tributary.elastic has the
rules)."""

from ..elastic import HostsUpdatedInterrupt, ObjectState, State, run  # noqa: F401 (names of this module)
from ..keras.elastic import KerasState, TensorFlowKerasState, VariablesState  # noqa: F401


class TensorFlowState(VariablesState):
    """A state of variables, and of plain values: TensorFlowState(model.variables, epoch=0)."""

    def __init__(self, variables=None, session=None, **attributes):
        super().__init__(lambda: variables or (), **attributes)
