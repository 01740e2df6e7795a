"""Callbacks for fit(), with Horovod's names and order of arguments."""

import math

import numpy as np

from .. import job
from ..tensor import AVG
from ..errors import ArgumentError
from .framework import keras, momentums_of, to_numpy, variables_of


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all workers the root's variables, of the model and its optimizer, before the first batch ends."""

    def __init__(self, root_rank, device='', local_variables=None):
        super().__init__()
        self.root_rank, self._has_model, self._is_done = root_rank, False, False

    def on_train_begin(self, logs=None):
        from .core import broadcast_variables

        if not self._is_done and self.model.built:  # else Keras makes the variables in the first batch
            broadcast_variables(self.model.variables, self.root_rank)
            self._has_model = True

    def on_train_batch_end(self, batch, logs=None):
        from .core import broadcast_variables

        if not self._is_done:  # the optimizer has its variables now
            model = [] if self._has_model else self.model.variables
            broadcast_variables([*model, *variables_of(self.model.optimizer)], self.root_rank)
            self._is_done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces the metrics of an epoch by their mean over all workers. It must come before callbacks that look at
    them."""

    def __init__(self, device=''):
        super().__init__()

    def on_epoch_end(self, epoch, logs=None):
        if not logs:
            return
        names = sorted(logs)
        values = np.array([float(logs[name]) for name in names])
        tensor = job.engine().declare_like('keras.metrics.%d' % len(names), values)
        logs.update(zip(names, tensor.push_pull(values, reduce=AVG).wait().tolist()))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies the initial learning rate by `multiplier`, a function of the epoch, from start_epoch to end_epoch; a
    number is raised to the power of the epochs since start_epoch. staircase: once an epoch, else with every batch,
    which needs steps_per_epoch where Keras does not know it. initial_lr: the optimizer's rate when training begins, by
    default. momentum_correction: the steps that the optimizer has accumulated are multiplied as the rate is (Goyal et
    al., 2017)."""

    def __init__(
        self,
        initial_lr=None,
        multiplier=None,
        start_epoch=0,
        end_epoch=None,
        staircase=True,
        momentum_correction=True,
        steps_per_epoch=None,
    ):
        super().__init__()
        if multiplier is None:
            raise ArgumentError('multiplier: it must be a number or a function of the epoch')
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier ** (epoch - start_epoch)
        self.staircase, self.steps_per_epoch, self._epoch = staircase, steps_per_epoch, 0
        self.momentum_correction = momentum_correction

    def _rate(self):
        return float(to_numpy(self.model.optimizer.learning_rate))

    def _adjust(self, epoch):
        if self._epoch >= self.start_epoch and (self.end_epoch is None or self._epoch < self.end_epoch):
            before, rate = self._rate(), self.initial_lr * self.multiplier(epoch)
            self.model.optimizer.learning_rate = rate
            if self.momentum_correction and before > 0 and not math.isclose(before, rate, rel_tol=1e-6):
                for momentum in momentums_of(self.model.optimizer):
                    momentum.assign(momentum * (rate / before))

    def on_train_begin(self, logs=None):
        if self.initial_lr is None:
            self.initial_lr = self._rate()
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get('steps')
            if not self.steps_per_epoch:
                raise ArgumentError(
                    '%s: Keras does not know how many steps an epoch has: pass steps_per_epoch' % type(self).__name__
                )

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch = epoch
        if self.staircase:
            self._adjust(epoch)

    def on_train_batch_begin(self, batch, logs=None):
        if not self.staircase:
            self._adjust(self._epoch + batch / self.steps_per_epoch)

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs['lr'] = self._rate()


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from about initial_lr / size to initial_lr, which the last batch of the first epochs has
    (Goyal et al., 2017)."""

    def __init__(self, initial_lr=None, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0):
        def multiplier(epoch):
            epoch += 1 / self.steps_per_epoch
            return 1.0 / job.size() * (epoch * (job.size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose, self.warmup_epochs = verbose, warmup_epochs

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose and job.rank() == 0:
            print('Epoch %d: finished gradual learning rate warmup to %g.' % (epoch + 1, self._rate()))


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Saves the best model, on the first worker only."""

    def __init__(
        self, monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', save_freq='epoch', filepath=None
    ):
        super().__init__(
            filepath or 'best.keras',
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )

    def on_epoch_end(self, epoch, logs=None):
        if job.rank() == 0:
            super().on_epoch_end(epoch, logs)
