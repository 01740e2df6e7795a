"""Elastic training with Keras: Horovod's KerasState (TensorFlowKerasState) and its callbacks (tributary.elastic has the
rules)."""

from ..elastic import HostsUpdatedInterrupt, ObjectState, State, run
from .core import broadcast_variables
from .framework import keras, to_numpy, variables_of

__all__ = [
    'CommitStateCallback',
    'HostsUpdatedInterrupt',
    'KerasState',
    'ObjectState',
    'State',
    'TensorFlowKerasState',
    'UpdateBatchStateCallback',
    'UpdateEpochStateCallback',
    'VariablesState',
    'run',
]


class VariablesState(ObjectState):
    """A state of variables, and of plain values as attributes."""

    def __init__(self, variables, **attributes):
        self._variables, self._values = variables, []
        super().__init__(**attributes)

    def save(self):
        self._values = [to_numpy(variable) for variable in self._variables()]
        super().save()

    def restore(self):
        self._assign()
        super().restore()

    def sync(self):
        broadcast_variables(self._variables(), 0)
        super().sync()
        self.save()

    def _assign(self):
        for variable, value in zip(self._variables(), self._values):
            variable.assign(value)


class KerasState(VariablesState):
    """The state of a model and its optimizer, and of plain values: KerasState(model, batch=0, epoch=0)."""

    def __init__(self, model, optimizer=None, backend=None, **attributes):
        self.model, self.optimizer = model, optimizer or model.optimizer
        if self.optimizer is not None and not getattr(self.optimizer, 'built', True):
            self.optimizer.build(model.trainable_variables)  # all workers have the same variables from now on
        super().__init__(self._all_variables, **attributes)

    def _all_variables(self):
        return [*self.model.variables, *(variables_of(self.optimizer) if self.optimizer is not None else ())]


TensorFlowKerasState = KerasState


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state every so many batches."""

    def __init__(self, state, batches_per_commit=1):
        super().__init__()
        self._state, self._every, self._left = state, batches_per_commit, batches_per_commit

    def on_train_begin(self, logs=None):
        self._left = self._every

    def on_batch_end(self, batch, logs=None):
        self._left -= 1
        if self._left == 0:
            self._left = self._every
            self._state.commit()

    def on_epoch_end(self, epoch, logs=None):
        self._state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps the number of the batch in state.batch, and goes on there after a change in the middle of an epoch."""

    def __init__(self, state):
        super().__init__()
        self._state, self._first = state, 0

    def on_train_begin(self, logs=None):
        self._first = self._state.batch

    def on_epoch_begin(self, epoch, logs=None):
        if self.params.get('steps') and self._first:
            self.params['steps'] -= self._first

    def on_batch_end(self, batch, logs=None):
        self._state.batch = self._first + batch + 1

    def on_epoch_end(self, epoch, logs=None):
        self._state.batch = self._first = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps in state.epoch how many epochs are over, counted on after a change."""

    def __init__(self, state):
        super().__init__()
        self._state, self._first = state, 0

    def on_train_begin(self, logs=None):
        self._first = self._state.epoch

    def on_epoch_end(self, epoch, logs=None):
        self._state.epoch = self._first + epoch + 1
