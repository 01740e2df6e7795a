"""A backend for torch.distributed: init_process_group('tributary').

The group of all processes has an engine, whose unique id goes through the group's store; other groups are groups of
that engine. Point-to-point messages are not supported."""

import collections
import contextlib
import logging
import os
import threading
import types

import torch
import torch.distributed as dist
import tributary_torch

from .. import _abi, job
from ..bootstrap import unique_id
from ..engine import Engine
from ..errors import ArgumentError, TributaryError, UnsupportedError
from . import device, exchange, futures, places
from .calls import Timed, ends_coalescing, nanoseconds, with_short_forms
from .elements import contiguous, is_plain, used_here
from .factors import multiplied, parts_of, reduction_and_factor
from .fits import check_fit, check_parts, check_received, deal
from .work import Work


def _device_kinds():
    """Returns the types of devices whose tensors a group takes."""
    return ['cpu', 'cuda'] if torch.cuda.is_available() else ['cpu']


class ProcessGroup(dist.ProcessGroup):
    """A process group whose collectives an engine carries out."""

    def __init__(self, group, rank, ranks, timeout_ns):
        """group: of the engine, or the engine itself; ranks: its members, by their numbers in the engine."""
        super().__init__(rank, len(ranks))
        self._group, self._timed_group = group, Timed(group, timeout_ns)
        self._rank, self._size, self._ranks = rank, len(ranks), ranks
        self._name = self._description = ''
        self._splits = collections.Counter()  # without a name, by their members
        self._coalescing = threading.local()  # .handles: of this thread's calls since start_coalescing()

    # The base class keeps these texts in its backends, and this group has none.
    def _set_group_name(self, name):
        self._name = name

    def _set_group_desc(self, text):
        self._description = text

    # It is its own backend on each device.
    def _get_backend(self, device):
        return self

    group_name = property(lambda self: self._name)
    group_desc = property(lambda self: self._description)

    # PyTorch's checkpoints, and others that have no tensor at hand, look here for where one may lie.
    _device_types = property(lambda self: [torch.device(kind) for kind in _device_kinds()])

    def getBackendName(self):
        return 'tributary'

    def size(self):
        return self._size

    def rank(self):
        return self._rank

    def set_timeout(self, timeout):
        self._timed_group.timeout_ns = nanoseconds(timeout)

    _set_default_timeout = set_timeout

    def _timed(self, opts):
        """Returns what a call submits to: its own timeout comes before the group's."""
        timeout_ns = nanoseconds(getattr(opts, 'timeout', opts))
        return Timed(self._group, timeout_ns) if timeout_ns else self._timed_group

    supports_splitting = True

    # With a device PyTorch would have new_group() split as NCCL's groups do.
    bound_device_id = property(lambda self: None, lambda self, device: None)

    def eager_connect_single_device(self, device):
        """Does nothing: a group is connected when it is made."""

    def split_group(self, ranks, timeout=None, opts=None, group_name=None, group_desc=None, device_types=None):
        if self._rank not in ranks:
            return None
        members = [self._ranks[rank] for rank in ranks]
        if group_name is None:
            name = '%s:split:%s' % (self._name, '_'.join(map(str, members)))
            group_name = '%s:%d' % (name, self._splits[name])
            self._splits[name] += 1
        engine = self._group if isinstance(self._group, Engine) else self._group.engine
        timeout_ns = nanoseconds(timeout) or self._timed_group.timeout_ns
        group = ProcessGroup(
            engine.group('c10d.%s' % group_name, members), ranks.index(self._rank), members, timeout_ns
        )
        group._set_group_name(group_name)
        group._set_group_desc(group_desc or '')
        return group

    # With NCCL the calls between these two begin together. Here each begins at once, and one work stands for all.
    def start_coalescing(self, device):
        self._coalescing.handles = []

    def end_coalescing(self, device):
        handles = vars(self._coalescing).pop('handles', None)
        if handles is None:
            raise ArgumentError('end_coalescing() without start_coalescing() on the same thread, or after an error')
        return self._work(exchange.merged(handles, lambda: None), [])

    _start_coalescing, _end_coalescing = start_coalescing, end_coalescing

    def _work(self, handle, value, is_in_place=False):
        handles = getattr(self._coalescing, 'handles', None)
        if handles is not None:
            handles.append(handle)
        return Work(handle, value, futures.next_line(self._timed_group), is_in_place)

    def _is_filled(self, output):
        """Returns whether the engine itself writes to the output, so that no copy follows."""
        return is_plain(output) and (self._timed_group.has_device or not output.is_cuda)

    def _in_place(self, tensors, begin):
        """Runs a collective on tensors in place; what is not contiguous goes through a copy."""
        copies = [contiguous(tensor, 'tensor') for tensor in tensors]
        handles = [begin(copy) for copy in copies]
        apart = [(tensor, copy) for tensor, copy in zip(tensors, copies) if tensor.data_ptr() != copy.data_ptr()]
        if len(handles) == 1 and not apart:  # nearly all calls
            return self._work(handles[0], list(tensors), is_in_place=True)

        def finish():
            for tensor, copy in apart:
                tensor.detach().copy_(used_here(copy))

        return self._work(exchange.merged(handles, finish), list(tensors), is_in_place=not apart)

    @with_short_forms
    def allreduce(self, tensors, opts=None):
        (reduce, factor), engine = reduction_and_factor(opts), self._timed(opts)
        if any(tensor.layout == torch.sparse_coo for tensor in tensors):
            return self._sum_sparse(engine, tensors, reduce, factor)

        def begin(tensor):
            parts = parts_of(tensor, reduce)
            return exchange.all_reduce(engine, multiplied(parts, factor), parts, reduce)

        return self._in_place(tensors, begin)

    def allreduce_coalesced(self, tensors, opts=None):
        return self.allreduce(tensors, opts or dist.AllreduceOptions())

    def _sum_sparse(self, engine, tensors, reduce, factor):
        """Sums sparse tensors in place: workers gather indices and values, and add up where indices meet."""
        if reduce != _abi.TRIB_SUM or any(tensor.layout != torch.sparse_coo for tensor in tensors):
            raise UnsupportedError('tributary: sparse tensors can only be summed, and with sparse ones alone')
        parts = [multiplied(tensor.detach(), factor).coalesce() for tensor in tensors]
        indices = [exchange.all_gather(engine, part.indices().t().contiguous()) for part in parts]
        values = [exchange.all_gather(engine, part.values().contiguous()) for part in parts]

        def finish():
            for tensor, part, where, what in zip(tensors, parts, indices, values):
                places = where.wait()[0].view(-1, part.sparse_dim()).t()
                numbers = what.wait()[0].view(-1, *part.values().shape[1:])
                total = torch.sparse_coo_tensor(places, numbers, tensor.shape, check_invariants=False).coalesce()
                with torch.no_grad():  # what detach() returns has indices and values of its own
                    tensor.copy_(total)

        return self._work(exchange.merged(indices + values, finish), list(tensors))

    @with_short_forms
    def reduce(self, tensors, opts):
        (reduce, factor), engine, root = reduction_and_factor(opts), self._timed(opts), self._root(opts)
        sources = [contiguous(tensor, 'tensor') for tensor in tensors]
        scratch = [torch.empty_like(source) for source in sources]
        handles = [
            exchange.reduce_to(
                engine, multiplied(parts_of(source, reduce), factor), parts_of(landing, reduce), root, reduce
            )
            for source, landing in zip(sources, scratch)
        ]

        def finish():
            if self._rank == root:
                for tensor, landing in zip(tensors, scratch):
                    tensor.detach().copy_(used_here(landing))

        return self._work(exchange.merged(handles, finish), list(tensors))

    @with_short_forms
    def broadcast(self, tensors, opts):
        engine, root = self._timed(opts), self._root(opts)
        return self._in_place(tensors, lambda tensor: exchange.broadcast(engine, tensor, root))

    def _landing(self, output):
        """Returns memory for a result: the output's own, if the engine may fill that, or some to be copied from."""
        return (
            output.detach() if is_plain(output) else torch.empty(output.shape, dtype=output.dtype, device=output.device)
        )

    @staticmethod
    def _landed(handle, output, landing):
        """Returns a handle whose result is in the output."""
        return (
            handle
            if landing.data_ptr() == output.data_ptr()
            else exchange.merged([handle], lambda: output.detach().copy_(used_here(landing)))
        )

    def _root(self, opts):
        """Returns the root of a call, and refuses what is no rank before the call is counted."""
        if not 0 <= opts.rootRank < self._size:
            raise ArgumentError('root %d is not a rank below %d' % (opts.rootRank, self._size))
        return opts.rootRank

    def _gather(self, outputs, source, value, opts):
        source, engine = contiguous(source, 'input'), self._timed(opts)
        check_parts('all_gather', outputs, self._size)
        if all(output.numel() == source.numel() for output in outputs):  # as all_gather_single(), which may be called
            whole = source.new_empty(len(outputs) * source.numel())  # instead on other ranks
            handle = exchange.all_gather_into(engine, whole, source)
            sizes = [source.numel()] * len(outputs)
            return self._work(
                exchange.merged([handle], lambda: deal('all_gather', outputs, (used_here(whole), sizes))), value
            )
        handle = exchange.all_gather(engine, source.reshape(-1))
        return self._work(exchange.merged([handle], lambda: deal('all_gather', outputs, handle.wait())), value)

    @with_short_forms
    def allgather(self, outputs, inputs, opts=None):
        works = [self._gather(listed, source, outputs, opts) for listed, source in zip(outputs, inputs)]
        return (
            works[0]
            if len(works) == 1
            else self._work(exchange.merged([work._handle for work in works], lambda: None), outputs)
        )

    def allgather_coalesced(self, outputs, inputs, opts=None):
        return self.allgather(list(map(list, zip(*outputs))), inputs, opts or dist.AllgatherOptions())

    @ends_coalescing
    def all_gather_single(self, output, source, opts=None):
        check_fit(output, source, output.numel() == source.numel() * self._size)
        landing = self._landing(output)
        handle = exchange.all_gather_into(self._timed(opts), landing, contiguous(source, 'input'))
        return self._work(self._landed(handle, output, landing), output, self._is_filled(output))

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        works = [self.all_gather_single(output, source, opts) for output, source in zip(outputs, inputs)]
        return self._work(exchange.merged([work._handle for work in works], lambda: None), outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    @with_short_forms
    def gather(self, outputs, inputs, opts):
        # Everybody sends to the root, and nobody to anybody else.
        source, root = contiguous(inputs[0], 'input').reshape(-1), self._root(opts)
        if self._rank == root:
            check_parts('gather', outputs[0], self._size)
        lengths = [source.numel() if r == root else 0 for r in range(self._size)]
        # Ranks that differ in the root are told as those that differ in the call.
        handle = exchange.all_to_all(self._timed(opts), source, lengths, kind='gather_to_%d' % root)

        def finish():
            if self._rank == root:
                deal('gather', outputs[0], handle.wait())

        return self._work(exchange.merged([handle], finish), outputs)

    @ends_coalescing
    def gather_single(self, output, source, opts=None):
        parts, opts = [], opts or dist.GatherOptions()
        if self._rank == opts.rootRank:
            check_fit(output, source, output.numel() == source.numel() * self._size)
            parts = list(output.view(self._size, -1).unbind(0))
        return self.gather([parts], [source], opts)

    gather_into_tensor = gather_single

    @with_short_forms
    def scatter(self, outputs, inputs, opts):
        output, root = outputs[0], self._root(opts)
        source, lengths = output.new_empty(0), [0] * self._size
        if self._rank == root:
            check_parts('scatter', inputs[0], self._size)
            for part in inputs[0]:
                check_fit(output, part, part.numel() == output.numel())
            source = torch.cat([contiguous(part, 'input').reshape(-1) for part in inputs[0]])
            lengths = [output.numel()] * self._size
        handle = exchange.all_to_all(self._timed(opts), source, lengths, kind='scatter_from_%d' % root)

        def finish():
            received, lengths = handle.wait()
            check_received('scatter', [output.numel() if r == root else 0 for r in range(self._size)], lengths)
            output.detach().copy_(received.view(output.shape))

        return self._work(exchange.merged([handle], finish), outputs)

    def _scatter_sum(self, output, source, opts):
        check_fit(output, source)
        landing, (reduce, factor) = self._landing(output), reduction_and_factor(opts)
        source = multiplied(parts_of(source, reduce), factor)
        handle = exchange.reduce_scatter(self._timed(opts), parts_of(landing, reduce), source, reduce)
        return self._landed(handle, output, landing)

    @with_short_forms
    def reduce_scatter(self, outputs, inputs, opts=None):
        handles = [
            self._scatter_sum(output, torch.cat([contiguous(part, 'input').reshape(-1) for part in listed]), opts)
            for output, listed in zip(outputs, inputs)
        ]
        return self._work(exchange.merged(handles, lambda: None), outputs)

    @ends_coalescing
    def reduce_scatter_single(self, output, source, opts=None):
        check_fit(output, source, output.numel() * self._size == source.numel())
        handle = self._scatter_sum(output, contiguous(source, 'input'), opts)
        return self._work(handle, output, self._is_filled(output))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        works = [self.reduce_scatter_single(output, source, opts) for output, source in zip(outputs, inputs)]
        return self._work(exchange.merged([work._handle for work in works], lambda: None), outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    @with_short_forms
    def alltoall(self, outputs, inputs, opts=None):
        check_parts('all_to_all', inputs, self._size)
        check_parts('all_to_all', outputs, self._size)
        source = torch.cat([contiguous(part, 'input').reshape(-1) for part in inputs])
        handle = exchange.all_to_all(self._timed(opts), source, [part.numel() for part in inputs])

        return self._work(exchange.merged([handle], lambda: deal('all_to_all', outputs, handle.wait())), outputs)

    @ends_coalescing
    def all_to_all_single(self, output, source, output_splits=None, input_splits=None, opts=None, timeout=None):
        source = contiguous(source, 'input')
        row = torch.Size(source.shape[1:]).numel()
        lengths = self._rows_for_each(source, input_splits, 'input')
        rooms = self._rows_for_each(output, output_splits, 'output')
        check_fit(output, source)
        if row == 0:  # nothing is sent
            lengths, rooms, row = [0] * self._size, [0] * self._size, 1
        handle = exchange.all_to_all(self._timed(opts or timeout), source, lengths, row)

        def finish():
            received, sent = handle.wait()
            check_received('all_to_all_single', [room * row for room in rooms], [length * row for length in sent])
            output.detach().copy_(received.view(output.shape))

        return self._work(exchange.merged([handle], finish), output)

    def _rows_for_each(self, tensor, splits, what):
        """Returns how many rows of a tensor belong to each worker."""
        rows = tensor.shape[0] if tensor.dim() else 1
        lengths = list(splits) if splits else [rows // self._size] * self._size
        if len(lengths) != self._size or min(lengths) < 0 or sum(lengths) != rows:
            raise ArgumentError(
                'all_to_all_single: %s of %d rows: %s for %d workers'
                % (what, rows, 'splits %s' % lengths if splits else 'they cannot be dealt evenly', self._size)
            )
        return lengths

    alltoall_base = all_to_all_single

    @with_short_forms
    def barrier(self, opts=None):
        if torch.cuda.is_initialized():  # as with NCCL, what the stream had to do before is done on all workers
            torch.cuda.current_stream().synchronize()
        flag = torch.zeros(1, dtype=torch.uint8, device='cpu')
        return self._work(exchange.all_reduce(self._timed(opts), flag, flag, _abi.TRIB_MAX, kind='barrier'), None)

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        opts = dist.BarrierOptions()
        opts.timeout = timeout or opts.timeout
        self.barrier(opts).wait()  # it fails on all that have come, and says who has not

    @ends_coalescing
    def send(self, *_unused, **_also_unused):
        raise UnsupportedError(
            'tributary: send() and recv() are not supported: a process group of gloo can do them beside this one'
        )

    recv = recv_anysource = send

    def shutdown(self):
        try:
            self._group.close()  # It ends at the latest with the deadlines of what is under way.
        except TributaryError as problem:
            if problem.status == _abi.TRIB_STATE:  # else it has ended before
                _logger.warning('tributary: group %s ends with the job only: %s', self._name, problem)

    def abort(self):
        self._group.give_up()
        self.shutdown()


_logger = logging.getLogger('tributary')
_world = {}  # the engine of the group of all processes, under the name 'engine'


def create(opts, _backend_options=None):
    futures.has_order()  # marks the main thread before its first backward pass, which PyTorch's threads may run
    store, rank, size = opts.store, opts.group_rank, opts.group_size
    ranks = list(opts.global_ranks_in_group) or list(range(size))
    timeout_ns = nanoseconds(opts.timeout) or 300 * 10**9
    # The ranks of other groups are listed, but for a further world that a program makes beside the first.
    is_world = not opts.global_ranks_in_group and not dist.is_initialized()
    world = _world.get('engine')
    if is_world and world is not None:
        world.close()  # an init_process_group() that failed later than here has left it
    elif opts.global_ranks_in_group and world is not None and world.is_open():
        return ProcessGroup(world.group('c10d.%s' % opts.group_id, ranks), rank, ranks, timeout_ns)
    if job.is_continue(os.environ.get('TRIB_SURVIVE')):
        raise UnsupportedError(
            'TRIB_SURVIVE=continue: torch.distributed divides by a number of workers that stays: take '
            'TRIB_SURVIVE=workers, or tributary.torch'
        )
    if rank == 0:
        is_said = any(os.environ.get(name) for name in ('TRIB_COORDINATOR', 'TRIB_LISTEN', 'TRIB_INTERFACE'))
        store.set('tributary', unique_id(None if is_said else places.own_address(places.host_of(store)) + ':0').hex())
    own_id = store.get('tributary').decode()
    place = places.exchange(store, own_id, rank, size)
    try:
        engine = Engine(
            rank=rank,
            worker_count=size,
            server_count=0,
            unique_id=bytes.fromhex(own_id),
            op_timeout_ns=timeout_ns,
            **device.choose_at(place),
        )
        try:
            engine.wait_ready()
        except BaseException:
            engine.close()
            raise
    finally:  # all have read it, as all have told their places
        if rank == 0:
            store.delete_key('tributary')  # a group that is made later has an id of its own
    places.forget(store, own_id, rank)
    if is_world:
        _world['engine'] = engine
    return ProcessGroup(engine, rank, list(range(size)), timeout_ns)


def _keep_from_compiler(kind):
    """A compiled module that calls a method, as DistributedDataParallel does from C++, would have it compiled, too: the
    compiler ends then, as it lets nobody read attributes of a group. Importing torch._dynamo for its decorator would
    cost seconds. The names are private to PyTorch: with a version that has others, only such programs lack this."""
    with contextlib.suppress(AttributeError, TypeError):
        frames = torch._C._dynamo.eval_frame
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        for function in vars(kind).values():
            if isinstance(function, types.FunctionType):
                frames.set_code_exec_strategy(function.__code__, skip)


_keep_from_compiler(ProcessGroup)
_keep_from_compiler(Work)
tributary_torch.register()
