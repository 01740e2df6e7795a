"""DistributedOptimizer: sums each gradient while the backward pass computes the next ones (Horovod's and BytePS's)."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from .. import codecs, job
from ..errors import ArgumentError, UnsupportedError
from ..process_sets import ProcessSet, global_process_set
from ..reductions import Average, Sum, reduction_of
from .compression import Compression, codec_for
from .elements import used_here
from .ops import allreduce, submit_allreduce
from .sparse import sparse_allreduce_async


def find_duplicates(listed):
    """Returns the elements that stand in a list more than once."""
    seen = set()
    return {element for element in listed if element in seen or seen.add(element)}


def _named(optimizer, named_parameters):
    """Returns pairs of name and parameter for every parameter of the optimizer."""
    owned = [parameter for group in optimizer.param_groups for parameter in group['params']]
    if named_parameters is None:
        return [
            ('allreduce.noname.%d.%d' % (g, i), parameter)
            for g, group in enumerate(optimizer.param_groups)
            for i, parameter in enumerate(group['params'])
        ]
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise ArgumentError(
            'named_parameters: a sequence of tuples (name, parameter), usually model.named_parameters()'
        )
    duplicates = find_duplicates([name for name, _ in named])
    if duplicates:
        raise ArgumentError('named_parameters: names stand more than once: %s' % ', '.join(sorted(duplicates)))
    unnamed = {id(parameter) for parameter in owned} - {id(parameter) for _, parameter in named}
    if unnamed:
        raise ArgumentError(
            'named_parameters lacks %d parameters of the optimizer: pass model.named_parameters() of all models'
            % len(unnamed)
        )
    mine = {id(parameter) for parameter in owned}
    return [(name, parameter) for name, parameter in named if id(parameter) in mine]


class _Exchange:
    """Sums the gradients of one optimizer. The hook of each parameter submits its gradient when the backward pass has
    made it; finish() waits for all."""

    awaited = 'step() or synchronize(): with several backward passes a step give backward_passes_per_step'
    counts = {}  # how many optimizers have used a name, for each init()
    generation = 0

    def __init__(
        self, named, compression, passes, op, predivide, groups, sparse_as_dense, process_set=global_process_set
    ):
        if _Exchange.generation != job.generation():
            _Exchange.counts, _Exchange.generation = {}, job.generation()
        self.compression, self.passes, self.op = codecs.checked(compression), passes, op
        self.process_set, self.predivide, self.prescale = process_set, predivide, 1.0 / predivide
        self.sparse_as_dense = sparse_as_dense
        self.sparse_dims = {}  # of gradients that are dense while they travel
        self.names, self.order, self.handles, self.delays, self.hooks = {}, {}, {}, {}, []
        self.group_of, self.group_ready = {}, {}
        self.is_complete = False  # a scaler has waited for the sums, and no gradient was made since
        for name, parameter in named:
            self._name(name, parameter)
        for number, group in enumerate(groups):
            for parameter in group:
                self.group_of[parameter] = (number, list(group))
        self._enter_job()
        for _, parameter in named:
            if parameter.requires_grad and self.is_member:
                self._watch(parameter)

    def _name(self, name, parameter):
        # Two models of one process may have parameters of one name; their gradients must not meet.
        use = _Exchange.counts[name] = _Exchange.counts.get(name, -1) + 1
        self.names[parameter] = 'gradient.' + (name if use == 0 else '%s#%d' % (name, use))
        self.order[parameter] = len(self.order)
        self.delays[parameter] = self.passes

    def add_group(self, groups):
        """Takes in the last group of parameters, which has been added to the optimizer."""
        for index, parameter in enumerate(groups[-1]['params']):
            self._name('added.%d.%d' % (len(groups) - 1, index), parameter)
            if parameter.requires_grad and self.is_member:
                self._watch(parameter)

    def _enter_job(self):
        """Begins with the engine of the last init(). Sums that were under way in an engine before are gone."""
        self.job_generation = job.generation()
        self.is_member = self.process_set.included()
        # Sum and not Average where the division happens in two halves, one before and one after the sum.
        self.wire_op, self.postscale = self.op, 1.0
        if self.predivide != 1.0:
            job.refuse_continue('gradient_predivide_factor')
            self.wire_op, self.postscale = Sum, self.predivide / (self.process_set.size() or 1)
        self.handles.clear()
        self.group_ready.clear()
        self.is_complete = False
        self.set_passes(self.passes)

    def follow_job(self):
        """Called where a step may begin: the job may have begun anew since the last one."""
        if self.job_generation != job.generation():
            self._enter_job()

    def _watch(self, parameter):
        if hasattr(parameter, 'register_post_accumulate_grad_hook'):
            self.hooks.append(parameter.register_post_accumulate_grad_hook(self._gradient_is_made))
        else:  # before PyTorch 2.1: the node that accumulates, which lives as long as something refers to it
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            self.hooks.append(node.register_hook(lambda *_unused, p=parameter: self._gradient_is_made(p)))
            self.hooks.append(node)

    def _gradient_is_made(self, parameter):
        self.follow_job()
        self.is_complete = False
        if parameter in self.handles:
            raise RuntimeError('%s: its gradient was computed again before %s' % (self.names[parameter], self.awaited))
        self.delays[parameter] -= 1
        if self.delays[parameter] == 0:
            self._ready(parameter)

    def _ready(self, parameter):
        if parameter not in self.group_of:
            self._submit(parameter)
            return
        number, group = self.group_of[parameter]
        ready = self.group_ready.setdefault(number, set())
        ready.add(parameter)
        if len(ready) == len(group):  # grouped gradients leave together
            del self.group_ready[number]
            for member in group:
                self._submit(member)

    def _submit(self, parameter):
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)  # unused on this worker; others may have used it
        gradient = parameter.grad
        if gradient.is_sparse and not self.sparse_as_dense:
            self.handles[parameter] = (
                sparse_allreduce_async(gradient, self.names[parameter], self.op, self.process_set),
                None,
                None,
            )
            return
        if gradient.is_sparse:
            self.sparse_dims[parameter] = gradient.sparse_dim()
            gradient = parameter.grad = gradient.to_dense()
        compressed, context = self.compression.compress(gradient)
        output = compressed.detach()
        handle = submit_allreduce(
            output,
            output,
            self.names[parameter],
            self.wire_op,
            self.prescale,
            self.postscale,
            -self.order[parameter],
            self.process_set,
            codec_for(self.compression, compressed),
        )
        self.handles[parameter] = (handle, compressed, context)

    def finish(self):
        """Submits what no hook has submitted, waits for all gradients and puts the sums in their places."""
        self.follow_job()
        if not self.is_member:
            return  # this worker trains alone
        for group in list(self.group_ready.values()):
            for parameter in group:
                if parameter not in self.handles:
                    self._submit(parameter)
        self.group_ready.clear()
        for parameter in self.names:
            if parameter.requires_grad and parameter not in self.handles:
                self._submit(parameter)
        try:
            while self.handles:
                self.finish_one(next(iter(self.handles)))
        finally:
            self.handles.clear()

    def step(self, update, closure):
        """Waits for all gradients and calls the optimizer's own step(). A closure makes gradients within it, as often
        as the optimizer likes, so the sums are waited for there, and its loss is the mean of all workers', by which an
        optimizer such as LBFGS decides alike on all of them."""
        if closure is None:
            self.finish()
            return update()
        is_summed = bool(self.handles)  # backward() came before step()
        if is_summed:
            self.finish()

        def summed():
            loss = closure()
            if self.handles or not is_summed:
                self.finish()
            if self.is_member and isinstance(loss, torch.Tensor):
                with torch.no_grad():
                    loss = allreduce(loss, name='closure.loss', op=Average, process_set=self.process_set)
            return loss

        return update(summed)

    def finish_one(self, parameter):
        """Waits for one parameter's gradient and puts its sum in its place."""
        handle, compressed, context = self.handles.pop(parameter)
        result = handle.wait()
        self.delays[parameter] = self.passes
        if compressed is None:
            parameter.grad = result  # sparse: other indices than this worker's may be in it
            return
        restored = self.compression.decompress(used_here(compressed), context)
        if parameter in self.sparse_dims:  # an optimizer for sparse gradients takes no others
            parameter.grad = restored.to_sparse(self.sparse_dims.pop(parameter))
            return
        if restored is not parameter.grad:
            parameter.grad.copy_(restored)

    def set_passes(self, passes):
        self.passes = passes
        for parameter in self.delays:
            self.delays[parameter] = passes


_Scaler = getattr(torch.amp, 'GradScaler', torch.cuda.amp.GradScaler)
_unscale = _Scaler._unscale_grads_


@functools.wraps(_unscale)
def _unscale_sums(scaler, optimizer, *arguments):
    """A scaler of gradients divides them in place and looks for infinite ones: not before their sums have come."""
    if hasattr(optimizer, '_finish_for_scaler'):
        optimizer._finish_for_scaler()
    return _unscale(scaler, optimizer, *arguments)


def _ending_steps(step):
    """A scaler leaves the optimizer's step out where gradients are infinite."""

    @functools.wraps(step)
    def scaler_step(scaler, optimizer, *arguments, **keywords):
        try:
            return step(scaler, optimizer, *arguments, **keywords)
        finally:
            getattr(optimizer, '_end_step', lambda: None)()

    return scaler_step


_Scaler._unscale_grads_ = _unscale_sums
_Scaler.step = _ending_steps(_Scaler.step)


class _DistributedOptimizer(torch.optim.Optimizer):
    """What the class that DistributedOptimizer() makes adds to the optimizer's own."""

    def __reduce_ex__(self, protocol):
        raise UnsupportedError(
            'optimizer: a DistributedOptimizer is neither pickled nor copied, as a copy would sum nothing: take its '
            'state_dict()'
        )

    def set_backward_passes_per_step(self, passes):
        """How many backward passes are accumulated before a gradient is sent."""
        self._exchange.set_passes(passes)

    def synchronize(self):
        """Waits for the sums of all gradients. step() does so itself; call it before clipping, and step() inside
        skip_synchronize() then."""
        if not self._exchange.is_complete:
            self._exchange.finish()
        self._is_synchronized = True

    def _finish_for_scaler(self):
        """Waits for sums that are under way, or that others wait for. The next step() finds gradients complete."""
        is_awaited = self._should_synchronize and not (self._is_synchronized or self._exchange.is_complete)
        if self._exchange.handles or is_awaited:
            self._exchange.finish()
            self._exchange.is_complete = True

    def _end_step(self):
        """The next sums are those of other gradients."""
        self._is_synchronized = self._exchange.is_complete = False

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Inside, step() does not wait for gradients: synchronize() was called before."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure=None):
        """Waits for the gradients' sums and updates the parameters."""
        is_awaited, is_synchronized = self._should_synchronize and not self._exchange.is_complete, self._is_synchronized
        self._end_step()
        if is_awaited:
            if is_synchronized:
                warnings.warn(
                    'optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): the '
                    'gradients are summed a second time',
                    stacklevel=2,
                )
            return self._exchange.step(super(self.__class__, self).step, closure)
        return super(self.__class__, self).step(closure)

    def add_param_group(self, group):
        """Adds parameters, whose gradients are summed from now on, too."""
        super(self.__class__, self).add_param_group(group)
        self._exchange.add_group(self.param_groups)

    def zero_grad(self, *arguments, **keywords):
        """Clears the gradients. None may be under way."""
        self._exchange.follow_job()
        if self._exchange.handles:
            raise RuntimeError(
                'zero_grad() was called between backward() and step() or synchronize(): a sum would be lost'
            )
        self._exchange.is_complete = False
        return super(self.__class__, self).zero_grad(*arguments, **keywords)


def _checked_groups(named, num_groups, groups):
    parameters = [parameter for _, parameter in named if parameter.requires_grad]
    if num_groups:
        warnings.warn('num_groups is Horovod\'s older argument: use groups', DeprecationWarning, stacklevel=3)
        groups = groups or num_groups
    if groups is None:
        return []
    if isinstance(groups, list):
        known, seen = {id(parameter) for parameter in parameters}, set()
        for parameter in (parameter for group in groups for parameter in group):
            if id(parameter) not in known or id(parameter) in seen:
                raise ArgumentError('groups: lists of parameters of the optimizer, each in one list at most')
            seen.add(id(parameter))
        return groups
    if not isinstance(groups, int) or groups < 0:
        raise ArgumentError('groups: a number, or a list of lists of parameters')
    size = -(-len(parameters) // groups) if groups else 0
    return [parameters[i : i + size] for i in range(0, len(parameters), size)] if groups else []


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: str = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | list[list[torch.nn.Parameter]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns an optimizer that updates parameters with the reduction of all workers' gradients.

    optimizer                 any optimizer of PyTorch; the result is of a class derived from its class
    named_parameters          model.named_parameters(); names must be the same on all workers
    compression               Compression.none, .fp16 or .bf16, or .codec("onebit,ef=vanilla"): docs/codecs.md
    backward_passes_per_step  passes that are accumulated before a gradient is sent
    op                        Average or Sum
    gradient_predivide_factor with Average: gradients are divided by it before and by size/factor after the sum
    groups                    a number, or lists of parameters that are sent together
    sparse_as_dense           makes sparse gradients dense before they are sent; else indices and values are gathered
    """
    op = reduction_of(op)
    if isinstance(getattr(optimizer, '_exchange', None), _Exchange):
        raise ArgumentError('optimizer: it is a DistributedOptimizer already: use it as it is, or give the one inside')
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ArgumentError('gradient_predivide_factor needs op=Average')
    if backward_passes_per_step < 1:
        raise ArgumentError('backward_passes_per_step must be at least 1')
    named = _named(optimizer, named_parameters)
    grouped = _checked_groups(named, num_groups, groups)
    kind = type(optimizer.__class__.__name__, (optimizer.__class__,), dict(_DistributedOptimizer.__dict__))
    made = kind.__new__(kind)
    made.__dict__.update((name, value) for name, value in optimizer.__dict__.items() if name not in kind.__dict__)
    optimizer._opt_called = True  # a scheduler that was made for it counts its steps, and it makes none any more
    made._exchange = _Exchange(
        named,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        grouped,
        sparse_as_dense,
        process_set,
    )
    made._parameter_names = {parameter: name for name, parameter in named}
    made._is_synchronized, made._should_synchronize = False, True
    return made
