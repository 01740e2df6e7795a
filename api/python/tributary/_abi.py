"""The public header as ctypes declarations. Made by tools/dev/pyabi.py from api/tributary.h: do not edit."""
# ruff: noqa
from ctypes import (CFUNCTYPE, Structure, c_bool, c_char, c_char_p, c_double, c_float, c_int, c_int16,
                    c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)

TRIB_VERSION_MAJOR = 0
TRIB_VERSION_MINOR = 1
TRIB_VERSION_PATCH = 0
TRIB_ERROR_TEXT_SIZE = 384
TRIB_UNIQUE_ID_SIZE = 256
TRIB_TENSOR_NAME_MAX = 255
TRIB_CODEC_NAME_MAX = 23
TRIB_CODECS_MAX = 64
TRIB_CODEC_STATE_MAX = 4096
TRIB_TENSOR_DIMS_MAX = 16
TRIB_TENSOR_DEVICE = 1
TRIB_TENSOR_NEW = 2
TRIB_TENSOR_NUMBERED = 4
TRIB_OP_ONCE = 1
TRIB_OP_ALLOCATE_OUTPUT = 2
TRIB_OK = 0
TRIB_PENDING = 1
TRIB_AGAIN = 2
TRIB_INVALID = -1
TRIB_STATE = -2
TRIB_BUSY = -3
TRIB_NO_MEMORY = -4
TRIB_TIMEOUT = -5
TRIB_CANCELLED = -6
TRIB_MISMATCH = -7
TRIB_WRONG_THREAD = -8
TRIB_UNSUPPORTED = -9
TRIB_PEER_LOST = -40
TRIB_PEER_LEFT = -41
TRIB_PROTOCOL = -42
TRIB_UNAUTHORIZED = -43
TRIB_JOIN_FAILED = -44
TRIB_EPOCH_CHANGED = -45
TRIB_CLOSED = -60
TRIB_SYSTEM = -61
TRIB_FLOAT32 = 0
TRIB_FLOAT64 = 1
TRIB_FLOAT16 = 2
TRIB_BFLOAT16 = 3
TRIB_INT8 = 4
TRIB_UINT8 = 5
TRIB_INT32 = 6
TRIB_INT64 = 7
TRIB_BOOL = 8
TRIB_INT16 = 9
TRIB_UINT16 = 10
TRIB_UINT32 = 11
TRIB_UINT64 = 12
TRIB_FLOAT8_E4M3 = 13
TRIB_FLOAT8_E5M2 = 14
TRIB_DTYPE_COUNT = 15
TRIB_SUM = 0
TRIB_AVG = 1
TRIB_MIN = 2
TRIB_MAX = 3
TRIB_PRODUCT = 4
TRIB_BIT_AND = 5
TRIB_BIT_OR = 6
TRIB_BIT_XOR = 7
TRIB_REDUCE_COUNT = 8
TRIB_MODE_THREADS = 0
TRIB_MODE_QUEUE = 1
TRIB_MODE_ATTACHED = 2
TRIB_ROLE_WORKER = 1
TRIB_ROLE_SERVER = 2
TRIB_ROLE_COORDINATOR = 4
TRIB_COLOCATE_AUTO = 0
TRIB_COLOCATE_OFF = 1
TRIB_COLOCATE_ON = 2
TRIB_ORDER_RANK = 0
TRIB_ORDER_ARRIVAL = 1
TRIB_LOCAL_SUM_AUTO = 0
TRIB_LOCAL_SUM_OFF = 1
TRIB_LOCAL_SUM_ON = 2
TRIB_SHARES_FIXED = 0
TRIB_SHARES_FOLLOW = 1
TRIB_CHECKSUM_AUTO = 0
TRIB_CHECKSUM_OFF = 1
TRIB_CHECKSUM_ON = 2
TRIB_SURVIVE_NOTHING = 0
TRIB_SURVIVE_SERVERS = 1
TRIB_SURVIVE_WORKERS = 2
TRIB_SURVIVE_CONTINUE = 3
TRIB_GPU_DIRECT_AUTO = 0
TRIB_GPU_DIRECT_OFF = 1
TRIB_LOG_NONE = 0
TRIB_LOG_ERROR = 1
TRIB_LOG_WARN = 2
TRIB_LOG_INFO = 3
TRIB_LOG_DEBUG = 4
TRIB_LOG_TRACE = 5
TRIB_WHOLE = 0
TRIB_SLICES = 1
TRIB_PAIRS = 2
TRIB_OP_PUSH_PULL = 0
TRIB_OP_BROADCAST = 1
TRIB_OP_REDUCE = 2
TRIB_OP_ALL_GATHER = 3
TRIB_OP_REDUCE_SCATTER = 4
TRIB_OP_ALL_TO_ALL = 5
TRIB_OP_KIND_COUNT = 6

trib_log_cb = CFUNCTYPE(None, c_int, c_char_p, c_void_p)

trib_ready_cb = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)

trib_ended_cb = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)

trib_oob_cb = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)

trib_closed_cb = CFUNCTYPE(None, c_void_p, c_void_p)

trib_membership_cb = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)

trib_codec_check_cb = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)

trib_codec_bound_cb = CFUNCTYPE(c_uint64, c_void_p)

trib_codec_encode_cb = CFUNCTYPE(c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t)

trib_codec_decode_cb = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_void_p)

trib_codec_library_fn = CFUNCTYPE(c_void_p, c_void_p)

trib_done_cb = CFUNCTYPE(None, c_void_p, c_void_p)


class trib_error(Structure):
    __slots__ = ()
    _fields_ = [
        ('status', c_int),
        ('text', c_char * 384),
    ]


class trib_unique_id(Structure):
    __slots__ = ()
    _fields_ = [
        ('bytes', c_char * 256),
    ]


class trib_config(Structure):
    __slots__ = ()
    _fields_ = [
        ('struct_size', c_uint32),
        ('flags', c_uint32),
        ('mode', c_int),
        ('roles', c_uint32),
        ('rank', c_int32),
        ('worker_count', c_int32),
        ('server_count', c_int32),
        ('colocate', c_int),
        ('external_coordinator', c_bool),
        ('coordinator', c_char_p),
        ('listen', c_char_p),
        ('job', c_char_p),
        ('token', c_char_p),
        ('transport', c_char_p),
        ('reactors', c_uint32),
        ('partition_bytes', c_uint32),
        ('chunk_bytes', c_uint32),
        ('push_credit_bytes', c_uint32),
        ('pull_credit_bytes', c_uint32),
        ('ops_max', c_uint32),
        ('bandwidth_bits', c_uint64),
        ('sum_order', c_int),
        ('busy_poll', c_bool),
        ('pin', c_bool),
        ('join_timeout_ns', c_int64),
        ('op_timeout_ns', c_int64),
        ('peer_timeout_ns', c_int64),
        ('close_timeout_ns', c_int64),
        ('loop', c_void_p),
        ('ready_cb', trib_ready_cb),
        ('ready_user', c_void_p),
        ('ended_cb', trib_ended_cb),
        ('ended_user', c_void_p),
        ('log_level', c_int),
        ('log_cb', trib_log_cb),
        ('log_user', c_void_p),
        ('trace', c_char_p),
        ('trace_bytes', c_uint64),
        ('device', c_char_p),
        ('device_index', c_int32),
        ('local_size', c_int32),
        ('local_rank', c_int32),
        ('local_sum', c_int),
        ('busy_poll_ns', c_int64),
        ('shares', c_int),
        ('gpu_direct', c_int),
        ('coordinator_source', c_char_p),
        ('checksum', c_int),
        ('survive', c_int),
        ('codec', c_char_p),
        ('codec_min_bytes', c_uint64),
        ('unique_id', c_void_p),
        ('oob_cb', trib_oob_cb),
        ('oob_user', c_void_p),
        ('codecs', c_void_p),
        ('codec_count', c_uint32),
        ('quorum', c_uint32),
        ('codec_library', c_char_p),
        ('store', c_char_p),
        ('quorum_timeout_ns', c_int64),
        ('reserved', c_uint64 * 1),
    ]


class trib_engine_info(Structure):
    __slots__ = ()
    _fields_ = [
        ('struct_size', c_uint32),
        ('rank', c_int32),
        ('worker_count', c_int32),
        ('server_count', c_int32),
        ('summing_count', c_int32),
        ('reactors', c_uint32),
        ('epoch', c_uint32),
        ('partition_bytes', c_uint32),
        ('chunk_bytes', c_uint32),
        ('t_opt_factor', c_double),
        ('local_sum', c_uint32),
        ('reserved_32', c_uint32),
        ('local_rank', c_int32),
        ('local_size', c_int32),
        ('cross_rank', c_int32),
        ('cross_size', c_int32),
        ('reserved', c_uint64 * 5),
    ]


class trib_job_member(Structure):
    __slots__ = ()
    _fields_ = [
        ('rank', c_int32),
        ('server', c_int32),
        ('roles', c_uint32),
        ('reactors', c_uint32),
        ('host', c_char * 64),
        ('address', c_char * 160),
        ('reserved', c_uint64 * 4),
    ]


class trib_setting_value(Structure):
    __slots__ = ()
    _fields_ = [
        ('variable', c_char_p),
        ('field', c_char_p),
        ('value', c_char * 256),
    ]


class trib_membership(Structure):
    __slots__ = ()
    _fields_ = [
        ('struct_size', c_uint32),
        ('epoch', c_uint32),
        ('status', c_int),
        ('rank', c_int32),
        ('worker_count', c_int32),
        ('server_count', c_int32),
        ('lost_count', c_uint32),
        ('text', c_char * 384),
        ('reserved', c_uint64 * 4),
    ]


class trib_group_desc(Structure):
    __slots__ = ()
    _fields_ = [
        ('struct_size', c_uint32),
        ('flags', c_uint32),
        ('name', c_char_p),
        ('ranks', c_void_p),
        ('rank_count', c_uint32),
        ('reserved_32', c_uint32),
        ('reserved', c_uint64 * 6),
    ]


class trib_codec_chunk(Structure):
    __slots__ = ()
    _fields_ = [
        ('user', c_void_p),
        ('seed', c_uint64),
        ('ratio', c_double),
        ('k', c_uint32),
        ('count', c_uint32),
        ('dtype', c_int),
        ('rank', c_uint32),
        ('tensor_key', c_uint64),
        ('round', c_uint64),
        ('first_element', c_uint64),
        ('partition_first', c_uint64),
        ('partition_count', c_uint64),
    ]


class trib_codec_desc(Structure):
    __slots__ = ()
    _fields_ = [
        ('struct_size', c_uint32),
        ('version', c_uint32),
        ('name', c_char_p),
        ('user', c_void_p),
        ('state_bytes', c_uint32),
        ('reserved_32', c_uint32),
        ('check', trib_codec_check_cb),
        ('bound', trib_codec_bound_cb),
        ('encode', trib_codec_encode_cb),
        ('decode', trib_codec_decode_cb),
        ('add_encoded', trib_codec_decode_cb),
        ('reserved', c_uint64),
    ]


class trib_tensor_desc(Structure):
    __slots__ = ()
    _fields_ = [
        ('struct_size', c_uint32),
        ('flags', c_uint32),
        ('name', c_char_p),
        ('dtype', c_int),
        ('priority', c_int32),
        ('count', c_uint64),
        ('shape', c_void_p),
        ('dims', c_uint32),
        ('layout', c_int),
        ('splits', c_void_p),
        ('row', c_uint64),
        ('group', c_void_p),
        ('split_count', c_uint32),
        ('quorum', c_uint32),
        ('codec', c_char_p),
        ('name_length', c_uint32),
        ('name_begin', c_uint32),
    ]


class trib_result(Structure):
    __slots__ = ()
    _fields_ = [
        ('status', c_int),
        ('contributors', c_uint32),
        ('bytes', c_uint64),
        ('duration_ns', c_int64),
        ('tensor', c_char_p),
        ('text', c_char_p),
    ]


class trib_op_params(Structure):
    __slots__ = ()
    _fields_ = [
        ('struct_size', c_uint32),
        ('flags', c_uint32),
        ('tensor', c_void_p),
        ('input', c_void_p),
        ('output', c_void_p),
        ('reduce', c_int),
        ('root', c_int32),
        ('priority', c_int32),
        ('has_priority', c_bool),
        ('timeout_ns', c_int64),
        ('done_cb', trib_done_cb),
        ('user', c_void_p),
        ('stream', c_void_p),
        ('bytes', c_uint64),
        ('step', c_uint32),
        ('kind', c_int),
        ('input_bytes', c_uint64),
        ('output_bytes', c_uint64),
        ('group', c_void_p),
        ('dtype', c_int),
        ('reserved_32', c_uint32),
        ('prescale', c_double),
        ('postscale', c_double),
        ('reserved', c_uint64 * 1),
    ]


class trib_boundary(Structure):
    __slots__ = ()
    _fields_ = [
        ('struct_size', c_uint32),
        ('epoch', c_uint32),
        ('number', c_uint64),
        ('operations', c_uint64),
        ('step', c_uint32),
        ('worker_count', c_int32),
        ('reserved', c_uint64 * 4),
    ]


class trib_waiting(Structure):
    __slots__ = ()
    _fields_ = [
        ('tensor', c_char * 256),
        ('partition', c_uint32),
        ('round', c_uint32),
        ('stage', c_char * 16),
        ('peer', c_char * 64),
        ('since_ns', c_int64),
    ]


class trib_stats(Structure):
    __slots__ = ()
    _fields_ = [
        ('struct_size', c_uint32),
        ('connections', c_uint32),
        ('ops_completed', c_uint64),
        ('ops_failed', c_uint64),
        ('ops_in_flight', c_uint64),
        ('bytes_pushed', c_uint64),
        ('bytes_pulled', c_uint64),
        ('bytes_summed', c_uint64),
        ('bytes_sum_sent', c_uint64),
        ('messages_sent', c_uint64),
        ('messages_received', c_uint64),
        ('system_calls', c_uint64),
        ('allocations', c_uint64),
        ('peers_refused', c_uint64),
        ('bytes_copied', c_uint64),
        ('bytes_relayed', c_uint64),
        ('bytes_direct', c_uint64),
        ('payloads_damaged', c_uint64),
        ('reserved', c_uint64 * 12),
    ]


# The result of each function, then its arguments.
FUNCTIONS = {
    'trib_all_gather': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_all_gather_bytes': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_all_reduce': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_all_to_all': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_alloc': (c_int, c_void_p, c_size_t, c_void_p),
    'trib_barrier': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_broadcast': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_broadcast_bytes': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_checkpoint': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_codec_desc_init': (None, c_void_p, c_size_t),
    'trib_config_from_env': (c_int, c_void_p, c_void_p),
    'trib_config_init': (None, c_void_p, c_size_t),
    'trib_describe_machine': (c_void_p,),
    'trib_dtype_is_float': (c_bool, c_int),
    'trib_dtype_name': (c_char_p, c_int),
    'trib_dtype_size': (c_size_t, c_int),
    'trib_engine_close': (None, c_void_p, c_void_p, c_void_p),
    'trib_engine_create': (c_int, c_void_p, c_void_p, c_void_p),
    'trib_engine_destroy': (c_int, c_void_p),
    'trib_engine_dispatch': (c_size_t, c_void_p, c_size_t),
    'trib_engine_drain': (c_int, c_void_p, c_void_p),
    'trib_engine_get_fd': (c_int, c_void_p),
    'trib_engine_get_info': (c_int, c_void_p, c_void_p),
    'trib_engine_get_members': (c_int, c_void_p, c_void_p, c_size_t, c_void_p),
    'trib_engine_get_settings': (c_int, c_void_p, c_void_p, c_size_t, c_void_p),
    'trib_engine_get_stats': (c_int, c_void_p, c_void_p),
    'trib_engine_wait_ready': (c_int, c_void_p, c_int64, c_void_p),
    'trib_engine_waiting': (c_int, c_void_p, c_void_p, c_size_t, c_void_p),
    'trib_free': (None, c_void_p, c_void_p),
    'trib_group_create': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_group_desc_init': (None, c_void_p, c_size_t),
    'trib_group_rank': (c_int32, c_void_p),
    'trib_group_release': (c_int, c_void_p, c_void_p),
    'trib_group_size': (c_int32, c_void_p),
    'trib_has_feature': (c_bool, c_char_p),
    'trib_join': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_membership_advance': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_membership_get': (c_int, c_void_p, c_void_p),
    'trib_membership_wait': (c_int, c_void_p, c_int64, c_void_p, c_void_p),
    'trib_membership_watch': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_memory_register': (c_int, c_void_p, c_void_p, c_size_t, c_void_p),
    'trib_memory_unregister': (c_int, c_void_p, c_void_p, c_void_p),
    'trib_op_boundary': (c_int, c_void_p, c_void_p, c_void_p),
    'trib_op_cancel': (None, c_void_p),
    'trib_op_contributors': (c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    'trib_op_counts': (c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    'trib_op_get_result': (c_int, c_void_p, c_void_p, c_void_p),
    'trib_op_output': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_op_params_init': (None, c_void_p, c_size_t),
    'trib_op_prepare': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_op_release': (None, c_void_p),
    'trib_op_start': (c_int, c_void_p, c_size_t, c_uint32, c_void_p),
    'trib_op_status': (c_int, c_void_p),
    'trib_op_stream_wait': (c_int, c_void_p, c_void_p, c_void_p),
    'trib_op_wait': (c_int, c_void_p, c_int64, c_void_p),
    'trib_op_wait_some': (c_int, c_void_p, c_size_t, c_size_t, c_int64, c_void_p, c_void_p, c_void_p),
    'trib_push_pull': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_reduce_name': (c_char_p, c_int),
    'trib_reduce_scatter': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_reduce_suits': (c_bool, c_int, c_int),
    'trib_reduce_to': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_status_name': (c_char_p, c_int),
    'trib_status_text': (c_char_p, c_int),
    'trib_submit_batch': (c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    'trib_tensor_counts': (c_int, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p),
    'trib_tensor_declare': (c_int, c_void_p, c_void_p, c_void_p, c_void_p),
    'trib_tensor_desc_init': (None, c_void_p, c_size_t),
    'trib_tensor_find': (c_int, c_void_p, c_char_p, c_void_p, c_void_p),
    'trib_tensor_release': (c_int, c_void_p, c_void_p),
    'trib_tensor_rounds': (c_int, c_void_p, c_void_p, c_void_p),
    'trib_trace_start': (c_int, c_void_p, c_uint64, c_void_p),
    'trib_trace_stop': (None, c_void_p),
    'trib_trace_write': (c_int, c_void_p, c_char_p, c_void_p),
    'trib_unique_id_create': (c_int, c_void_p, c_void_p),
    'trib_unique_id_create_at': (c_int, c_char_p, c_void_p, c_void_p),
    'trib_unique_id_release': (None, c_void_p),
    'trib_version': (c_char_p,),
    'trib_version_number': (c_uint32,),
}
