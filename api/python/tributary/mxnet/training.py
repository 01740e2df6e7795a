"""Optimizer, trainer and key-value store of MXNet whose gradients are summed over all workers."""

from __future__ import annotations

import types
from typing import Any

import mxnet as mx

from .. import job
from ..codecs import CodecCompressor, checked
from ..errors import ArgumentError
from ..process_sets import ProcessSet, by_id, resolve
from ..reductions import REDUCTIONS, Average, Sum
from .compression import Compression
from .ops import broadcast_, exchange, scale


class DistributedOptimizer(mx.optimizer.Optimizer):
    """Averages each gradient over the workers of a set (None: all) before the optimizer's own update. As with Horovod,
    a worker outside the set updates by its own gradients."""

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet | None = None,
    ) -> None:
        if not hasattr(optimizer, 'update'):
            raise ArgumentError('optimizer: it must be one of mx.optimizer, and is %r' % (optimizer,))
        if isinstance(optimizer, DistributedOptimizer):
            raise ArgumentError('optimizer: it is a DistributedOptimizer already: use it as it is')
        self._process_set = resolve(process_set)
        self._optimizer, self._predivide = optimizer, gradient_predivide_factor

    def __getattr__(self, name):
        return getattr(self._optimizer, name)

    def __reduce_ex__(self, protocol):  # MXNet pickles and copies optimizers
        return _wrapped, (self._optimizer, self._predivide, self._process_set.process_set_id)

    def create_state(self, index, weight):
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index, weight):
        return self._optimizer.create_state_multi_precision(index, weight)

    def _average(self, index, gradient):
        if self._process_set.included() is False:
            return
        for i, grad in zip(index, gradient) if isinstance(index, (tuple, list)) else [(index, gradient)]:
            scale(grad, 1.0 / self._predivide)
            op = Average if self._predivide == 1.0 else Sum
            priority = -i if isinstance(i, int) else 0
            exchange(grad, 'gradient.%s' % i, REDUCTIONS[op], priority=priority, process_set=self._process_set)
            scale(grad, 1.0 if op == Average else self._predivide / self._process_set.size())

    def update(self, index, weight, grad, state):
        self._average(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index, weight, grad, state):
        self._average(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr):
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult):
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult):
        self._optimizer.set_wd_mult(args_wd_mult)


def _wrapped(optimizer, predivide, process_set_id):
    return DistributedOptimizer(optimizer, predivide, process_set=by_id(process_set_id))


def _compression(params, optimizer_params):
    """Reads BytePS's compression_params. Their momentum takes the place of the optimizer's, whose factor is mu."""
    if not params:
        return Compression.none, optimizer_params
    if not isinstance(params, dict):
        raise ArgumentError('compression_params: it must be a dict, and is %r' % (params,))
    params, optimizer_params = dict(params), dict(optimizer_params or {})
    if params.pop('fp16', False):
        params['compressor'] = params.get('compressor') or 'fp16'
    if params.get('momentum') and 'mu' not in params:
        if 'momentum' not in optimizer_params:
            raise ArgumentError('compression_params: momentum needs mu, or a momentum in optimizer_params')
        params['mu'] = optimizer_params.pop('momentum')
    return CodecCompressor(params), optimizer_params


class DistributedTrainer(mx.gluon.Trainer):
    """A gluon Trainer that sums gradients over the workers of a set (None: all), first layers first, and begins with
    the root's parameters. As with Horovod, a worker outside the set trains by its own gradients. root_rank: a rank of
    the job; None for the first of the set. compression: Horovod's argument; compression_params: BytePS's."""

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        root_rank: int | None = None,
        compression_params: dict[str, Any] | None = None,
        prefix: str | None = None,
        gradient_predivide_factor: float = 1.0,
        process_set: ProcessSet | None = None,
        compression: Any = Compression.none,
        **_unused: Any,
    ) -> None:
        self._process_set = resolve(process_set)
        of_params, optimizer_params = _compression(compression_params, optimizer_params)
        self._compression = of_params if compression_params else checked(compression)
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer._optimizer  # this class averages itself
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._predivide = gradient_predivide_factor
        # BytePS's codecs get gradients that are divided already: one that sends signs alone has no other size.
        self._divides_before, self._batch_size = bool(compression_params), 1
        self._root_rank = (self._process_set.ranks or [0])[0] if root_rank is None else root_rank
        self._prefix = prefix or ''

    def _init_params(self):
        """MXNet's: gives all workers the root's values of the parameters that have some by now."""
        waiting, self._params_to_init = self._params_to_init, []
        if self._process_set.included() is False:
            return
        for parameter in waiting:
            if parameter._deferred_init:
                self._params_to_init.append(parameter)
                continue
            index = next(i for i, each in enumerate(self._params) if each is parameter)
            name = '%sparameter.%d' % (self._prefix, index)
            broadcast_(parameter.list_data()[0], self._root_rank, name, process_set=self._process_set)

    def step(self, batch_size: int, ignore_stale_grad: bool = False) -> None:
        """Sums the gradients and updates the parameters; gradients are divided by batch_size."""
        self._batch_size = batch_size if self._divides_before else 1
        super().step(batch_size, ignore_stale_grad)
        self._batch_size = 1

    def _check_and_rescale_grad(self, scale):
        """MXNet's: the optimizer multiplies gradients by it. How many workers there are may change between steps."""
        factor = self._batch_size if self._divides_before else self._predivide / self._process_set.size()
        super()._check_and_rescale_grad(scale * factor)

    def _allreduce_grads(self):
        divisor = self._batch_size * self._process_set.size() if self._divides_before else self._predivide
        is_member = self._process_set.included() is not False
        if not (is_member or self._divides_before):
            return
        for index, parameter in enumerate(self._params):
            if parameter.grad_req != 'null':
                gradient = parameter.list_grad()[0]
                scale(gradient, 1.0 / divisor)
                if not is_member:
                    continue
                sent, context = self._compression.compress(gradient)
                exchange(
                    sent,
                    '%sgradient.%d' % (self._prefix, index),
                    REDUCTIONS[Sum],
                    priority=-index,
                    process_set=self._process_set,
                    compression=self._compression,
                )
                if sent is not gradient:
                    gradient[:] = self._compression.decompress(sent, context)


def _broadcast_when_initialized(parameter, root_rank, name):
    """Lets a parameter whose shape is not known yet be broadcast when it is."""
    initialize = parameter._init_impl

    def initialized(self, *arguments, **keywords):
        initialize(*arguments, **keywords)
        broadcast_(self.data(), root_rank, name)

    parameter._init_impl = types.MethodType(initialized, parameter)


def broadcast_parameters(params: dict[str, Any], root_rank: int = 0, prefix: str | None = None) -> None:
    """Gives all workers the root's parameters: a dict of arrays or of gluon Parameters. Those that are not initialized
    yet follow when they are."""
    if not hasattr(params, 'items'):
        raise ArgumentError('params: a dict of parameters is needed, not %s' % type(params).__name__)
    for key, parameter in sorted(params.items()):
        name = '%sparameter.%s' % (prefix or '', key)
        if isinstance(parameter, mx.gluon.parameter.Parameter):
            try:
                parameter = parameter.data()
            except mx.gluon.parameter.DeferredInitializationError:
                _broadcast_when_initialized(parameter, root_rank, name)
                continue
        broadcast_(parameter, root_rank, name)


if hasattr(mx.kvstore, 'KVStoreBase'):

    @mx.kvstore.KVStoreBase.register
    class KVStore(mx.kvstore.KVStoreBase):
        """A key-value store for gluon.Trainer(kvstore=KVStore()). Pass an instance: by a name MXNet trains alone, and
        does not say so."""

        def __init__(self):
            super().__init__()

        def broadcast(self, key, value, out, priority=0):
            """Gives all workers the first worker's value."""
            first = value[0] if isinstance(value, list) else value
            broadcast_(first, 0, 'key.%s' % key, priority)
            self._copy(first, out)

        def pushpull(self, key, value, out=None, priority=0):
            """Sums a value over all workers."""
            first = value[0] if isinstance(value, list) else value
            exchange(first, 'pushpull.%s' % key, REDUCTIONS[Sum], priority=priority)
            self._copy(first, out)

        @staticmethod
        def _copy(first, out):
            for target in out if isinstance(out, list) else [] if out is None else [out]:
                if target is not first:
                    first.copyto(target)

        @staticmethod
        def is_capable(capability):
            """False: the optimizer runs in the workers."""
            return False

        @property
        def type(self):
            return 'dist_tributary'

        @property
        def rank(self):
            return job.rank()

        @property
        def num_workers(self):
            return job.size()
else:
    KVStore = None
