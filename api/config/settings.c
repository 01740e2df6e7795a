/* settings.c - the table of settings (settings.h). A new setting is one row here and one field of trib_config. */
#include "api/config/settings.h"

#include <stddef.h>

#include "engine/cluster/roster.h"
#include "engine/tracer/tracer.h"
#include "transports/transport.h"

#define FIELD(name) .field = #name, .offset = offsetof(trib_config, name), .size = sizeof(((trib_config *)0)->name)
#define WORDS(...)                                                                                                     \
    .kind = TRIB_SETTING_CHOICE, .words = (const char *const[])                                                        \
    {                                                                                                                  \
        __VA_ARGS__, NULL                                                                                              \
    }
#define ONE_SECOND_NS INT64_C(1000000000)

/* In the order of the table in docs/operating.md; fields without a variable follow. */
const trib_setting trib_settings[] = {
    {"TRIB_ROLE", FIELD(roles), .kind = TRIB_SETTING_ROLES, .initial = "worker", .doc = "what this process does"},
    {"TRIB_RANK", FIELD(rank), .kind = TRIB_SETTING_INT, .low = -1, .high = TRIB_MEMBERS_MAX - 1, .initial = "0",
     .range_doc = "0..workers-1, or -1",
     .doc = "this worker's rank. If it is set, no launcher's variables are read. For a dedicated server the "
            "number that it gets in texts, 0..servers-1, if `TRIB_SERVERS` is set too and nobody has it; else "
            "the first that is free. -1: a worker that joins a job which is under way ([failure.md](failure.md))"},
    {"TRIB_WORKERS", FIELD(worker_count), .kind = TRIB_SETTING_INT, .low = 1, .high = TRIB_MEMBERS_MAX, .initial = "1",
     .doc = "workers in the job; with servers at most 4096"},
    {"TRIB_SERVERS", FIELD(server_count), .kind = TRIB_SETTING_INT, .high = TRIB_MEMBERS_MAX - 1, .initial = "0",
     .doc = "dedicated servers in the job"},
    {"TRIB_COORDINATOR", FIELD(coordinator), .kind = TRIB_SETTING_TEXT,
     .range_doc = "`host:port`, `[v6]:port`, several with commas",
     .doc = "where the coordinator listens, or may once it was elected; needed unless the job is one process"},
    {"TRIB_STORE", FIELD(store), .kind = TRIB_SETTING_TEXT, .range_doc = "`etcd://host:port/prefix`",
     .doc = "who coordinates, and where ([failure.md](failure.md#a-store)); several hosts with commas"},
    {"TRIB_EXTERNAL_COORDINATOR", FIELD(external_coordinator), .kind = TRIB_SETTING_BOOL, .initial = "no",
     .doc = "a process of its own keeps the membership"},
    {"TRIB_LISTEN", FIELD(listen), .kind = TRIB_SETTING_TEXT,
     .initial_doc = "loopback; with a token the address that leads to the coordinator",
     .range_doc = "addresses without port, or interfaces, several with commas",
     .doc = "where reactors listen ([several networks](#several-networks), [interfaces](#interfaces))"},
    {"TRIB_INTERFACE", .kind = TRIB_SETTING_TEXT, .is_read_apart = true, .range_doc = "`eth0`, `eth*`, `!docker*,!lo`",
     .doc = "interfaces where reactors listen; used only if `TRIB_LISTEN` is not set ([interfaces](#interfaces))"},
    {"TRIB_JOB", FIELD(job), .kind = TRIB_SETTING_TEXT, .initial = "default", .doc = "the job's name"},
    {"TRIB_TOKEN", FIELD(token), .kind = TRIB_SETTING_TEXT, .is_read_apart = true,
     .doc = "its first line is the token, 8 bytes or more; 32 random ones are best ([token](#token))"},
    {"TRIB_TOKEN_FILE", .kind = TRIB_SETTING_TEXT, .is_read_apart = true, .range_doc = "path",
     .doc = "a file whose first line is the token; used only if `TRIB_TOKEN` is not set"},
    {"TRIB_TRANSPORT", FIELD(transport), .kind = TRIB_SETTING_TEXT, .initial = "auto",
     .range_doc = "`auto`, `tcp`, `shm`, `rdma`",
     .doc = "`auto`: shared memory within a machine, between machines RDMA where both have it, else TCP"},
    {"TRIB_DEVICE", FIELD(device), .kind = TRIB_SETTING_TEXT, .initial = "none", .range_doc = "`none`, `cuda`",
     .doc = "tensors in GPU memory ([gpu.md](gpu.md))"},
    {"TRIB_GPU_DIRECT", FIELD(gpu_direct), WORDS("auto", "off"), .initial = "auto",
     .doc = "RDMA reads and writes registered device memory where it can ([rdma.md](rdma.md#gpudirect))"},
    {"TRIB_CHECKSUM", FIELD(checksum), WORDS("auto", "off", "on"), .initial = "auto",
     .doc =
         "are payloads sent with a CRC32C: `auto`: over TCP between machines, `on`: over shared memory and TCP within "
         "a machine too ([membership.md](membership.md#security))"},
    {"TRIB_REACTORS", FIELD(reactors), .kind = TRIB_SETTING_UINT, .high = TRIB_REACTORS_MAX, .initial = "0",
     .doc = "event loops; 0: the engine chooses, up to 4 ([several networks](#several-networks))"},
    {"TRIB_COLOCATE", FIELD(colocate), WORDS("auto", "off", "on"), .is_job_wide = true, .initial = "auto",
     .doc = "do workers sum ([placement.md](placement.md))"},
    {"TRIB_SUM_ORDER", FIELD(sum_order), WORDS("rank", "arrival"), .is_job_wide = true, .initial = "rank",
     .doc = "the order of adding ([server.md](server.md#determinism))"},
    {"TRIB_LOCAL_SUM", FIELD(local_sum), WORDS("auto", "off", "on"), .is_job_wide = true, .initial = "auto",
     .doc = "do the workers of a machine sum first ([host sums](#host-sums))"},
    {"TRIB_SHARES", FIELD(shares), WORDS("fixed", "follow"), .is_job_wide = true, .initial = "follow",
     .doc = "weights of members follow what links are seen to carry, or stay as `TRIB_BANDWIDTH` says"},
    {"TRIB_SURVIVE", FIELD(survive), WORDS("nothing", "servers", "workers", "continue"), .is_job_wide = true,
     .initial = "nothing", .doc = "whose loss the job goes on after, and how ([failure.md](failure.md))"},
    {"TRIB_QUORUM", FIELD(quorum), .kind = TRIB_SETTING_UINT, .high = TRIB_MEMBERS_MAX, .initial = "0",
     .doc = "sums go on without stragglers when so many workers have contributed; 0: all must "
            "([failure.md](failure.md#a-quorum))"},
    {"TRIB_QUORUM_TIMEOUT", FIELD(quorum_timeout_ns), .kind = TRIB_SETTING_TIME, .initial = "1s", .low = 1,
     .doc = "the time after the first contribution from which on a quorum is enough"},
    {"TRIB_PARTITION_BYTES", FIELD(partition_bytes), .kind = TRIB_SETTING_BYTES, .is_job_wide = true, .initial = "1M",
     .low = 1, .range_doc = "a multiple of the chunk, at most 65,536 chunks",
     .doc = "largest partition ([how tensors are cut](placement.md#how-fine-a-tensor-is-cut))"},
    {"TRIB_CHUNK_BYTES", FIELD(chunk_bytes), .kind = TRIB_SETTING_BYTES, .is_job_wide = true, .initial = "256K",
     .low = 4096, .high = TRIB_PAYLOAD_MAX, .range_doc = "a power of two, 4K..1M", .doc = "largest chunk"},
    {"TRIB_CODEC", FIELD(codec), .kind = TRIB_SETTING_TEXT, .range_doc = "as `onebit,ef=vanilla`, `auto`, or a list",
     .doc = "how sums of tensors travel that name no codec themselves, also by name and size "
            "([codecs.md](codecs.md#how-to-use))"},
    {"TRIB_CODEC_MIN_BYTES", FIELD(codec_min_bytes), .kind = TRIB_SETTING_BYTES, .initial = "64K",
     .doc = "smaller tensors travel as they are, unless they name a codec"},
    {"TRIB_CODEC_LIBRARY", FIELD(codec_library), .kind = TRIB_SETTING_TEXT, .range_doc = "path",
     .doc = "a shared object with codecs of your own, for members without a program, too "
            "([codecs.md](codecs.md#your-own))"},
    {"TRIB_PUSH_CREDIT", FIELD(push_credit_bytes), .kind = TRIB_SETTING_BYTES, .initial = "1M", .low = 1,
     .doc = "pushes that a reactor may have with the transport; less by slow links"},
    {"TRIB_PULL_CREDIT", FIELD(pull_credit_bytes), .kind = TRIB_SETTING_BYTES, .initial = "1M", .low = 1,
     .doc = "sums on their way out of a server, for each connection"},
    /* Below the least rate a unit was forgotten: no network that carries gradients is so slow. */
    {"TRIB_BANDWIDTH", FIELD(bandwidth_bits), .kind = TRIB_SETTING_RATE, .initial_doc = "like everyone's",
     .low = INT64_C(1000000), .high = INT64_C(1000000000000000), .range_doc = "`1mbit`.., such as `10gbit`",
     .doc = "this machine's link each way, of all networks together"},
    {"TRIB_JOIN_TIMEOUT", FIELD(join_timeout_ns), .kind = TRIB_SETTING_TIME, .initial = "60s", .low = 1,
     .doc = "until the job must have formed"},
    {"TRIB_OP_TIMEOUT", FIELD(op_timeout_ns), .kind = TRIB_SETTING_TIME, .initial = "300s",
     .low = INT64_MIN, /* below 0: none */
     .doc = "default deadline of an operation"},
    {"TRIB_PEER_TIMEOUT", FIELD(peer_timeout_ns), .kind = TRIB_SETTING_TIME, .is_job_wide = true, .initial = "10s",
     .low = 1, .doc = "silence after which a peer counts as lost"},
    {"TRIB_CLOSE_TIMEOUT", FIELD(close_timeout_ns), .kind = TRIB_SETTING_TIME, .initial = "5s", .low = 1,
     .doc = "most time that closing may take"},
    {"TRIB_BUSY_POLL", FIELD(busy_poll), .kind = TRIB_SETTING_BOOL, .initial = "no",
     .doc =
         "reactors spin, unless those of the machine's processes would leave no core to the callers (the log says so)"},
    {"TRIB_BUSY_POLL_TIME", FIELD(busy_poll_ns), .kind = TRIB_SETTING_TIME, .high = ONE_SECOND_NS,
     .initial_doc = "adaptive", .range_doc = "time above 0, at most 1s",
     .doc = "how long a reactor polls before it sleeps; without it the time adapts (with a GPU at least 500us if "
            "there are cores enough); `1us`: hardly at all"},
    {"TRIB_PIN", FIELD(pin), .kind = TRIB_SETTING_BOOL, .initial = "yes",
     .doc = "pin reactors to cores ([pinning](#pinning))"},
    {"TRIB_TRACE", FIELD(trace), .kind = TRIB_SETTING_TEXT, .range_doc = "path",
     .doc = "a trace is written to it, every 2 s and at the end ([trace.md](trace.md))"},
    {"TRIB_TRACE_BYTES", FIELD(trace_bytes), .kind = TRIB_SETTING_BYTES, .initial = "64M", .low = 1,
     .high = TRIB_TRACE_BYTES_MAX, .doc = "memory for the trace"},
    {"TRIB_LOG", FIELD(log_level), WORDS("none", "error", "warn", "info", "debug", "trace"), .initial = "warn",
     .doc = "level of the log"},
    {"TRIB_LOCAL_RANK", .kind = TRIB_SETTING_INT, .is_read_apart = true, .high = TRIB_MEMBERS_MAX - 1,
     .initial_doc = "from the launcher",
     .doc = "which of the job's processes on this host this is: who shares its cores"},
    {"TRIB_LOCAL_COUNT", .kind = TRIB_SETTING_INT, .is_read_apart = true, .low = 1, .high = TRIB_MEMBERS_MAX,
     .initial_doc = "from the launcher", .doc = "how many of them the host has"},
    {"TRIB_DEVICE_RANK", FIELD(local_rank), .kind = TRIB_SETTING_INT, .is_read_apart = true,
     .high = TRIB_LOCAL_SIZE_MAX - 1, .initial_doc = "`TRIB_LOCAL_RANK`",
     .doc = "which of the machine's workers with a GPU this is; servers have none"},
    {"TRIB_DEVICE_COUNT", FIELD(local_size), .kind = TRIB_SETTING_INT, .is_read_apart = true, .initial = "1", .low = 1,
     .high = TRIB_LOCAL_SIZE_MAX, .initial_doc = "`TRIB_LOCAL_COUNT`",
     .doc = "how many workers with a GPU each machine has; set it where servers share the machine"},
    {"TRIB_MODELS", .kind = TRIB_SETTING_TEXT, .is_read_apart = true, .range_doc = "path",
     .doc = "a folder where `sim` and `step` look for lists of gradients first"},
    {NULL, FIELD(mode), WORDS("threads", "queue", "attached"), .initial = "threads"},
    {NULL, FIELD(ops_max), .kind = TRIB_SETTING_UINT, .initial = "65536", .low = 1},
    {NULL, FIELD(device_index), .kind = TRIB_SETTING_INT, .initial = "-1", .low = -1, .high = INT32_MAX},
};

const size_t trib_settings_count = sizeof trib_settings / sizeof trib_settings[0];
