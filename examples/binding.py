#!/usr/bin/env python3
"""binding.py - a binding of Tributary for Python, with ctypes and nothing else, and a model that is trained with it.

    tributary run -n 4 -- python3 binding.py [STEPS]

The engine has threads of its own (TRIB_MODE_QUEUE). One Python thread waits on the engine's descriptor and dispatches.
Callbacks run on that thread, and each completes a concurrent.futures.Future. A wait for a future can be interrupted by
Ctrl-C; a coroutine waits for asyncio.wrap_future(future). Comments say where a binding easily goes wrong, and
docs/binding.md has the rest.
"""

import atexit
import collections
import ctypes
import itertools
import os
import random
import select
import sys
import threading
from array import array
from concurrent.futures import Future

# ---- The header, in Python. tests/process/test_binding.py compares it with tributary.h, and so should your tests ----

TRIB_OK, TRIB_CLOSED, TRIB_MODE_QUEUE = 0, -60, 1
TRIB_SUM, TRIB_AVG, TRIB_MIN, TRIB_MAX = range(4)
TRIB_FLOAT32, TRIB_FLOAT64, TRIB_FLOAT16, TRIB_BFLOAT16, TRIB_INT8, TRIB_UINT8, TRIB_INT32, TRIB_INT64 = range(8)
TRIB_ERROR_TEXT_SIZE = 384

TYPES = {
    'i32': ctypes.c_int32,
    'u32': ctypes.c_uint32,
    'i64': ctypes.c_int64,
    'u64': ctypes.c_uint64,
    'f64': ctypes.c_double,
    'bool': ctypes.c_bool,
    'text': ctypes.c_char_p,
    'pointer': ctypes.c_void_p,
    'size': ctypes.c_size_t,
    'words1': ctypes.c_uint64 * 1,
    'words7': ctypes.c_uint64 * 7,
    'message': ctypes.c_char * TRIB_ERROR_TEXT_SIZE,
    'nothing': None,
}


def layout(text):
    """Makes the fields of a struct from 'TYPE NAME NAME...; TYPE NAME...'. An enum is an i32."""
    return [(name, TYPES[kind]) for kind, *names in (part.split() for part in text.split(';')) for name in names]


class trib_error(ctypes.Structure):
    _fields_ = layout('i32 status; message text')


class trib_config(ctypes.Structure):
    __slots__ = ()  # so a misspelt field is an error, and not an attribute that nothing reads
    _fields_ = layout('''u32 struct_size flags; i32 mode; u32 roles; i32 rank worker_count server_count colocate;
        bool external_coordinator; text coordinator listen job token transport; u32 reactors partition_bytes
        chunk_bytes push_credit_bytes pull_credit_bytes ops_max; u64 bandwidth_bits; i32 sum_order; bool busy_poll pin;
        i64 join_timeout_ns op_timeout_ns peer_timeout_ns close_timeout_ns; pointer loop ready_cb ready_user ended_cb
        ended_user; i32 log_level; pointer log_cb log_user; text trace; u64 trace_bytes;
        text device; i32 device_index local_size local_rank local_sum; i64 busy_poll_ns;
        i32 shares gpu_direct; text coordinator_source; i32 checksum survive;
        text codec; u64 codec_min_bytes; pointer unique_id oob_cb oob_user codecs;
        u32 codec_count quorum; text codec_library store; i64 quorum_timeout_ns; words1 reserved''')


class trib_tensor_desc(ctypes.Structure):
    __slots__ = ()
    _fields_ = layout('''u32 struct_size flags; text name; i32 dtype priority; u64 count; pointer shape;
        u32 dims; i32 layout; pointer splits; u64 row; pointer group; u32 split_count quorum;
        text codec; u32 name_length name_begin''')


class trib_result(ctypes.Structure):
    _fields_ = layout('i32 status; u32 contributors; u64 bytes; i64 duration_ns; text tensor text')


trib_done_cb = ctypes.CFUNCTYPE(None, ctypes.POINTER(trib_result), ctypes.c_void_p)
trib_closed_cb = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
TYPES['done_cb'] = trib_done_cb


class trib_op_params(ctypes.Structure):
    __slots__ = ()
    _fields_ = layout('''u32 struct_size flags; pointer tensor input output; i32 reduce root priority;
        bool has_priority; i64 timeout_ns; done_cb done_cb; pointer user stream; u64 bytes; u32 step;
        i32 kind; u64 input_bytes output_bytes; pointer group; i32 dtype; u32 reserved_32; f64 prescale postscale;
        words1 reserved''')


# The result of each function, then its arguments. Every function needs them: without them ctypes cuts pointers and
# sizes to an int.
FUNCTIONS = {
    'trib_status_name': 'text i32',
    'trib_config_init': 'nothing pointer size',
    'trib_config_from_env': 'i32 pointer pointer',
    'trib_engine_create': 'i32 pointer pointer pointer',
    'trib_engine_get_fd': 'i32 pointer',
    'trib_engine_dispatch': 'size pointer size',
    'trib_engine_close': 'nothing pointer pointer pointer',
    'trib_engine_destroy': 'i32 pointer',
    'trib_tensor_desc_init': 'nothing pointer size',
    'trib_tensor_declare': 'i32 pointer pointer pointer pointer',
    'trib_op_params_init': 'nothing pointer size',
    'trib_push_pull': 'i32 pointer pointer pointer pointer',
    'trib_broadcast': 'i32 pointer pointer pointer pointer',
}


def load():
    """Loads the library that the system finds (LD_LIBRARY_PATH comes first), or else the one that was built or unpacked
    around this file."""
    tree, problems = os.path.dirname(os.path.dirname(os.path.abspath(__file__))), []
    for folder in '', tree + '/lib/', tree + '/build/release/':
        try:
            # CDLL, not PyDLL: CDLL releases the interpreter's lock in each call, and other threads' callbacks need it.
            library = ctypes.CDLL(folder + 'libtributary.so.0')
            break
        except OSError as error:
            problems.append(str(error))
    else:
        raise OSError('; '.join(problems))
    for name, text in FUNCTIONS.items():
        function, (result, *arguments) = getattr(library, name), text.split()
        function.restype, function.argtypes = TYPES[result], [TYPES[argument] for argument in arguments]
    return library


lib = load()

# ---- The binding ----


class TributaryError(Exception):
    """The field `status` is the number. The text has the status's name and the engine's text, which names tensor and
    peer."""

    def __init__(self, status, text):
        super().__init__('%s: %s' % (lib.trib_status_name(status).decode(), text.decode(errors='replace')))
        self.status = status


def call(function, *arguments):
    """Calls a function whose last argument is a trib_error and which returns a trib_status."""
    error = trib_error()
    status = function(*arguments, ctypes.byref(error))
    if status != TRIB_OK:
        raise TributaryError(status, error.text)


def initialised(struct, init):
    """Initialises a struct. Only the library knows the defaults, and it rejects a size that is not its own."""
    init(ctypes.byref(struct), ctypes.sizeof(struct))
    return struct


Tensor = collections.namedtuple('Tensor', 'handle name format count')
# Keys are the letters of memoryview.format, so that numpy's arrays work as well. There is no letter for bfloat16.
DTYPES = {
    'f': TRIB_FLOAT32,
    'd': TRIB_FLOAT64,
    'e': TRIB_FLOAT16,
    'b': TRIB_INT8,
    'B': TRIB_UINT8,
    'i': TRIB_INT32,
    'l': TRIB_INT64,
    'q': TRIB_INT64,
}


def memory_of(tensor, data):
    """Returns the memory of an array, which cannot be freed or resized while the returned object lives. The engine is
    told no size, so the size must fit."""
    view = memoryview(data)
    if not view.c_contiguous or (view.format, view.nbytes // view.itemsize) != (tensor.format, tensor.count):
        raise ValueError('%s: needs %d contiguous elements of type %s' % (tensor.name, tensor.count, tensor.format))
    return (ctypes.c_char * view.nbytes).from_buffer(data)


class Engine:
    """Takes part in the job that the environment describes. Methods may be called from any thread. A function given to
    a future's add_done_callback runs on the thread that dispatches: it may submit, and may not wait for a future or
    close."""

    def __init__(self, **settings):
        """settings: fields of trib_config that are not in the environment."""
        # Strings in config point into the environment. Nothing may change it before create has copied them.
        config = initialised(trib_config(), lib.trib_config_init)
        call(lib.trib_config_from_env, ctypes.byref(config))
        config.mode = TRIB_MODE_QUEUE
        for name, value in settings.items():
            setattr(config, name, value)
        self.rank, self.worker_count = config.rank, config.worker_count
        self._engine = ctypes.c_void_p()
        call(lib.trib_engine_create, ctypes.byref(config), ctypes.byref(self._engine))
        self._process = os.getpid()
        self._lock = threading.Lock()  # no thread may be inside a call when the engine is destroyed
        # The engine keeps bare addresses. Their owners must be kept here: the callbacks, and each operation's memory.
        self._done_cb, self._closed_cb = trib_done_cb(self._done), trib_closed_cb(self._closed)
        self._in_flight = {}
        self._keys = itertools.count(1)  # not 0, because ctypes turns 0 into None
        self._is_closed, self._has_ended = False, threading.Event()
        # The thread is a daemon: the interpreter waits for other threads before atexit, and would wait forever if the
        # engine was not closed.
        threading.Thread(target=self._dispatch, name='tributary', daemon=True).start()
        atexit.register(self.close)  # the engine's threads write to arrays, so they must end before the interpreter

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        """Closes the engine. Operations in flight complete first, with TRIB_CLOSED. There is no __del__: it would run
        on whichever thread collects garbage."""
        if os.getpid() != self._process:
            return  # a forked child: the engine is its parent's, the thread is missing, the lock may be held forever
        with self._lock:
            lib.trib_engine_close(self._engine, self._closed_cb, None)
        # No thread may dispatch any more when the engine is destroyed. This is not join(): a Ctrl-C in it makes Python
        # 3.9 to 3.12 take the thread for ended, and the next call (atexit calls this once more) would not wait.
        self._has_ended.wait()
        with self._lock:
            engine, self._engine = self._engine, None
        lib.trib_engine_destroy(engine)  # does nothing with None
        atexit.unregister(self.close)

    def declare(self, name, like, priority=0):
        """Declares a tensor of the type and size of an array. Ranks' tensors of one name belong together; -priority is
        the layer's index."""
        view = memoryview(like)
        if view.format not in DTYPES:
            raise TypeError('%s: elements of type %s cannot be summed' % (name, view.format))
        count = view.nbytes // view.itemsize
        return Tensor(self.declare_as(name, DTYPES[view.format], count, priority), name, view.format, count)

    def declare_as(self, name, dtype, count, priority=0, flags=0):
        """Declares a tensor in memory that memoryview does not know (pytorch.py); returns only the handle."""
        if '\0' in name:
            raise ValueError('%r: C would take what stands before the NUL for the name' % name)
        desc = initialised(trib_tensor_desc(), lib.trib_tensor_desc_init)
        desc.name, desc.dtype, desc.count, desc.priority, desc.flags = name.encode(), dtype, count, priority, flags
        handle = ctypes.c_void_p()
        self._call(lib.trib_tensor_declare, ctypes.byref(desc), ctypes.byref(handle))
        return handle

    def push_pull(self, tensor, data, output=None, reduce=TRIB_AVG):
        """Returns a future of output, or of data if in place, with the reduction over all ranks' data. Leave the arrays
        alone until the future is done."""
        return self._submit(lib.trib_push_pull, tensor, data, data if output is None else output, reduce)

    def broadcast(self, tensor, data, root=0):
        return self._submit(lib.trib_broadcast, tensor, data, data, root=root)

    def _call(self, function, *arguments):
        if os.getpid() != self._process:
            raise RuntimeError('the engine belongs to the process that this one was forked from')
        with self._lock:
            if self._engine is None:
                raise TributaryError(TRIB_CLOSED, b'the engine has been closed')
            call(function, self._engine, *arguments)

    def _submit(self, function, tensor, data, output, reduce=TRIB_SUM, root=0):
        inputs, outputs = memory_of(tensor, data), memory_of(tensor, output)
        return self.submit(
            function,
            tensor.handle,
            ctypes.addressof(inputs),
            ctypes.addressof(outputs),
            (output, inputs, outputs),
            reduce=reduce,
            root=root,
        )

    def submit(self, function, handle, source, target, used, op=None, **fields):
        """Submits an operation on bare addresses. `used` holds the owners of that memory, kept until the operation is
        complete; the first of them is the future's result."""
        future, key = Future(), next(self._keys)
        future.set_running_or_notify_cancel()  # so cancel() returns False: dropping a future ends no operation
        params = initialised(trib_op_params(), lib.trib_op_params_init)
        params.tensor, params.input, params.output, params.done_cb, params.user = (
            handle,
            source,
            target,
            self._done_cb,
            key,
        )
        for name, value in fields.items():
            setattr(params, name, value)
        self._in_flight[key] = (future, *used)  # before the call: the callback may run before it returns
        try:
            self._call(function, ctypes.byref(params), op)
        except (TributaryError, RuntimeError):  # no others: after a KeyboardInterrupt the operation may be accepted
            del self._in_flight[key]
            raise
        return future

    def _dispatch(self):
        poll = select.poll()
        poll.register(lib.trib_engine_get_fd(self._engine), select.POLLIN)
        while not self._is_closed:
            poll.poll()
            lib.trib_engine_dispatch(self._engine, 0)
        self._has_ended.set()

    # Callbacks. ctypes drops exceptions that they raise, so they do very little. Python runs signal handlers on the
    # main thread only, so no KeyboardInterrupt comes in between here. A result's strings are gone when its callback
    # returns, so the callback copies them.

    def _done(self, result, key):
        # The memory is released first, because a waiting thread may resize the array at once.
        future, output = self._in_flight.pop(key)[:2]
        if result.contents.status == TRIB_OK:
            future.set_result(output)
        else:
            future.set_exception(TributaryError(result.contents.status, result.contents.text))

    def _closed(self, engine, user):
        self._is_closed = True


# ---- A model: linear regression by stochastic gradient descent, each rank with samples of its own ----

FEATURES, BATCH, RATE = 8, 16, 0.3


def gradients(weights, bias, batch):
    """Returns the gradients of half the mean squared error, by weights and by bias, and that error."""
    slopes, slope, loss = array('d', bytes(8 * FEATURES)), 0.0, 0.0
    for features, wanted in batch:
        error = sum(w * x for w, x in zip(weights, features)) + bias[0] - wanted
        slope, loss = slope + error / BATCH, loss + error * error / BATCH
        for i, x in enumerate(features):
            slopes[i] += error * x / BATCH
    return slopes, array('d', [slope]), array('d', [loss])


def train(engine, steps):
    """Trains and returns the loss of each step, which is the mean over all ranks, like the gradients."""
    rng = random.Random(engine.rank)

    def sample():
        features = [rng.uniform(-1, 1) for _ in range(FEATURES)]
        return features, sum((i - 3) * x for i, x in enumerate(features)) + 0.5 + rng.gauss(0, 0.01)

    # Each rank begins with other values, and then gets rank 0's.
    values = {'weights': array('d', (rng.gauss(0, 1) for _ in range(FEATURES))), 'bias': array('d', [rng.gauss(0, 1)])}
    tensors = {name: engine.declare(name, value, -layer) for layer, (name, value) in enumerate(values.items())}
    loss_tensor, losses = engine.declare('loss', array('d', [0]), -len(values)), []
    for future in [engine.broadcast(tensors[name], values[name]) for name in values]:
        future.result()
    for step in range(steps):
        *slopes, loss = gradients(*values.values(), [sample() for _ in range(BATCH)])
        futures = {name: engine.push_pull(tensors[name], slope) for name, slope in zip(values, slopes)}
        loss = engine.push_pull(loss_tensor, loss)
        for name, future in futures.items():  # each before its own next use, while others are still under way
            for i, slope in enumerate(future.result()):  # raises the engine's error
                values[name][i] -= RATE * slope
        losses.append(loss.result()[0])
        if engine.rank == 0 and step % 20 == 0:
            print('step %d: loss %.4f' % (step, losses[-1]), flush=True)
    for name, mine in values.items():
        least, most = (
            engine.push_pull(tensors[name], mine, array('d', mine), reduce) for reduce in (TRIB_MIN, TRIB_MAX)
        )
        if not least.result() == mine == most.result():
            raise RuntimeError('%s: not the same on all ranks' % name)
    return losses


def main():
    words = sys.argv[1:] or ['100']
    if len(words) != 1 or not words[0].isdecimal() or int(words[0]) < 1:
        sys.exit('usage: tributary run -n 4 -- python3 binding.py [STEPS]')
    with Engine() as engine:
        losses = train(engine, int(words[0]))
        if not losses[-1] < losses[0] / 2:
            raise RuntimeError('the loss did not fall: %s' % losses)
        print(
            'worker %d of %d: loss %.4f, then %.4f; the same weights on all ranks'
            % (engine.rank, engine.worker_count, losses[0], losses[-1]),
            flush=True,
        )


if __name__ == '__main__':
    main()
