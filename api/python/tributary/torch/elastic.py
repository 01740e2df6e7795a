"""Elastic training with PyTorch: Horovod's TorchState and ElasticSampler (tributary.elastic has the rules)."""

import copy
import math
import random

import torch

from .. import job
from ..elastic import ObjectState, State, run
from ..errors import ArgumentError
from .functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = [
    'ElasticSampler',
    'ModelStateHandler',
    'ObjectState',
    'OptimizerStateHandler',
    'SamplerStateHandler',
    'State',
    'StateHandler',
    'TorchState',
    'get_handler_registry',
    'run',
    'set_handler_registry',
]


class ElasticSampler(torch.utils.data.Sampler):
    """Deals what is left of an epoch's data to the workers that are there. Call record_batch() after each batch and put
    the sampler into the TorchState. After a change of hosts no sample of the epoch is read twice; after a loss those of
    the lost worker are, and those since the last commit."""

    def __init__(self, dataset, shuffle=True, seed=0):
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch, self.processed_indices = 0, set()
        self.reset()

    def set_epoch(self, epoch):
        """Begins an epoch, with another order if shuffle is set. Call it at the end of each epoch."""
        self.epoch, self.processed_indices = epoch, set()
        self.reset()

    def record_batch(self, batch_idx, batch_size):
        """Notes that this worker has used batch number batch_idx of the epoch since the last change."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices):
        """Notes which elements of the data set this worker has used."""
        self.processed_indices.update(indices)

    @property
    def processed_num(self):
        """How many samples of the epoch this worker knows to be used: its own, and at a sync() those of all."""
        return len(self.processed_indices)

    def get_indices(self, batch_idx, batch_size):
        """Returns the elements of the data set that belong to a batch of this worker. Batches count from where it began
        to read, by an iteration or by this function, also when a state has been restored since."""
        self._read = self.indices if self._read is None else self._read
        return self._read[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self):
        return {'epoch': self.epoch, 'processed_indices': copy.copy(self.processed_indices)}

    def load_state_dict(self, state_dict):
        self.epoch, self.processed_indices = state_dict['epoch'], set(state_dict['processed_indices'])
        self._deal()

    def reset(self):
        """Deals what is left to the workers that are there now, who begin to read anew."""
        self._read = None
        self._deal()

    def _deal(self):
        self.num_replicas = job.size() if job.is_initialized() else 1
        self.rank = job.rank() if job.is_initialized() else 0
        left = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(left)
        self.remaining_indices = left
        self.num_samples = math.ceil(len(left) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        # All workers take as many steps: the last ones begin the list anew.
        padded = left * math.ceil(self.total_size / len(left)) if left else []
        self.indices = padded[: self.total_size][self.rank :: self.num_replicas]

    def __iter__(self):
        self._read = self.indices
        return iter(self._read)

    def __len__(self):
        return len(self.indices)


class _Handler:
    """What TorchState does with an object that has state_dict() and load_state_dict()."""

    def __init__(self, value):
        self.value = value
        self.save()

    def save(self):
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self):
        self.value.load_state_dict(copy.deepcopy(self.saved))

    def sync(self):
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), 0))
        self.save()


StateHandler = _Handler  # Horovod's name


class ModelStateHandler(_Handler):
    def sync(self):
        broadcast_parameters(self.value.state_dict(), 0)
        self.save()


class OptimizerStateHandler(_Handler):
    def sync(self):
        broadcast_optimizer_state(self.value, 0)
        self.save()


class SamplerStateHandler(_Handler):
    """The samples that an epoch has used are those of all workers."""

    def sync(self):
        states = allgather_object(self.value.state_dict())
        epoch = states[0]['epoch']
        used = set().union(*(state['processed_indices'] for state in states if state['epoch'] == epoch))
        self.value.load_state_dict({'epoch': epoch, 'processed_indices': used})
        self.save()


_registry = [
    (ElasticSampler, SamplerStateHandler),
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
]


def get_handler_registry():
    """Returns the pairs of a class and the handler of its objects, the first that fits counts."""
    return _registry


def set_handler_registry(registry):
    """Replaces the pairs of get_handler_registry()."""
    global _registry
    _registry = registry


def _handler_of(value):
    for kind, handler in _registry:
        if isinstance(value, kind):
            return handler(value)
    return None


class TorchState(ObjectState):
    """The state of models, optimizers, samplers and plain values: TorchState(model=model, optimizer=optimizer,
    batch=0). Each is an attribute."""

    def __init__(self, model=None, optimizer=None, **attributes):
        values = dict(attributes)
        if model is not None:
            values['model'] = model
        if optimizer is not None:
            values['optimizer'] = optimizer
        handled = {name: _handler_of(value) for name, value in values.items()}
        self._handlers = {name: handler for name, handler in handled.items() if handler is not None}
        for name in self._handlers:
            self.__dict__[name] = values.pop(name)
        super().__init__(**values)

    def __setattr__(self, name, value):
        handlers = self.__dict__.get('_handlers', {})
        if name in handlers:
            made = _handler_of(value)
            if made is None:
                raise ArgumentError('%s: a %s cannot take its place' % (name, type(value).__name__))
            handlers[name] = made
        super().__setattr__(name, value)

    def save(self):
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self):
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self):
        for name in sorted(self._handlers):
            self._handlers[name].sync()
        super().sync()

    def before_change(self):
        # Workers that are going to leave are still there to say what they have read.
        for name in sorted(self._handlers):
            if isinstance(self._handlers[name], SamplerStateHandler):
                self._handlers[name].sync()

    def reset(self):
        for handler in self._handlers.values():
            if isinstance(handler, SamplerStateHandler):
                handler.value.reset()
