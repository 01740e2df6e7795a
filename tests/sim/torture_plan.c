/* torture_plan.c - draws a job and its faults from a seed. */
#include <string.h>

#include "tests/sim/torture.h"

#define MS INT64_C(1000000)
#define SECOND (1000 * MS)

static uint32_t between(trib_sim_stream *stream, uint32_t low, uint32_t high)
{
    return low + (uint32_t)trib_sim_draw_below(stream, high - low + 1);
}

/* Draws every order of magnitude with the same probability. */
static int64_t spread(trib_sim_stream *stream, int64_t low, int64_t high)
{
    uint32_t doublings = 0;
    for (int64_t top = low; top < high; top *= 2) {
        doublings++;
    }
    const int64_t base = low << trib_sim_draw_below(stream, doublings + 1);
    const int64_t value = base + (int64_t)trib_sim_draw_below(stream, (uint64_t)base);
    return value < high ? value : high;
}

static void draw_job(trib_sim_stream *stream, torture_plan *plan)
{
    plan->job = sim_job_config_default(between(stream, 1, 5), between(stream, 0, TORTURE_SERVERS_MAX));
    sim_job_config *job = &plan->job;
    job->servers = job->servers == 0 && torture_is_to_lose(plan->seed) ? TORTURE_SERVERS_MAX - 1 : job->servers;
    job->seed = plan->seed;
    job->cores = between(stream, 1, 4);
    job->one_machine = trib_sim_draw_one_in(stream, 4);
    static const uint64_t rates[] = {UINT64_C(100000000), UINT64_C(1000000000), UINT64_C(25000000000)};
    job->link.egress_bits = rates[between(stream, 0, 2)];
    job->link.ingress_bits = trib_sim_draw_one_in(stream, 4) ? rates[between(stream, 0, 2)] : job->link.egress_bits;
    job->link.latency_ns = spread(stream, 1000, 5 * MS);
    job->net.quantum_bytes = (uint32_t)spread(stream, 1000, 100000);
    job->net.window_bytes = (uint32_t)spread(stream, 10000, 1000000);
    job->net.unsent_bytes = (uint32_t)spread(stream, 1000, 300000);
    trib_config *engine = &job->engine;
    engine->reactors = between(stream, 1, 3);
    engine->chunk_bytes = 4096u << between(stream, 0, 2);
    engine->partition_bytes = engine->chunk_bytes * between(stream, 1, 5);
    engine->push_credit_bytes = (uint32_t)spread(stream, 4096, 1 << 20);
    engine->pull_credit_bytes = (uint32_t)spread(stream, 4096, 1 << 20);
    engine->sum_order = trib_sim_draw_one_in(stream, 3) ? TRIB_ORDER_ARRIVAL : TRIB_ORDER_RANK;
    engine->colocate = job->servers > 0 && trib_sim_draw_one_in(stream, 3) ? TRIB_COLOCATE_OFF : TRIB_COLOCATE_AUTO;
    engine->peer_timeout_ns = 2 * SECOND;
    engine->join_timeout_ns = 20 * SECOND;
    engine->op_timeout_ns = 40 * SECOND;
    engine->close_timeout_ns = 3 * SECOND;
}

static void draw_tensors(trib_sim_stream *stream, torture_plan *plan)
{
    plan->tensor_count = between(stream, 1, TORTURE_TENSORS_MAX);
    plan->window = trib_sim_draw_one_in(stream, 2) ? 0 : between(stream, 1, 8);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const bool broadcasts = trib_sim_draw_one_in(stream, 5);
        plan->tensors[i] = (torture_tensor){
            .dtype = (trib_dtype)between(stream, 0, TRIB_DTYPE_COUNT - 1),
            .count = trib_sim_draw_one_in(stream, 12) ? 0 : (uint32_t)spread(stream, 1, 30000),
            .rounds = between(stream, 1, 12),
            .reduce = between(stream, 0, 2) == 0 ? (trib_reduce)between(stream, TRIB_MIN, TRIB_MAX) : TRIB_SUM,
            .root = broadcasts ? (int32_t)between(stream, 0, plan->job.workers - 1) : -1,
        };
    }
    plan->cancels = trib_sim_draw_one_in(stream, 8) ? between(stream, 2, 20) : 0;
    plan->leaves = trib_sim_draw_one_in(stream, 2);
    plan->hurried = trib_sim_draw_one_in(stream, 8) ? between(stream, 2, 20) : 0;
}

static torture_fault draw_fault(trib_sim_stream *stream, const torture_plan *plan, bool may_end, int64_t horizon_ns)
{
    torture_fault fault = {
        .kind = (torture_kind)between(stream, 0, may_end ? TORTURE_KINDS - 1 : TORTURE_FORGET),
        .member = between(stream, 0, plan->job.workers + plan->job.servers - 1),
        .at_ns = (int64_t)trib_sim_draw_below(stream, (uint64_t)horizon_ns),
    };
    /* A fault that lasts longer than the peer timeout may end the job. One that lasts a quarter of it may not. */
    const int64_t limit_ns = plan->job.engine.peer_timeout_ns;
    const int64_t longest_ns = may_end ? 3 * limit_ns : limit_ns / 4;
    switch (fault.kind) {
    case TORTURE_SLOW:
        fault.amount = between(stream, 2, 20);
        break;
    case TORTURE_RELINK:
        fault.amount = (double)spread(stream, 20, 20000) * 1e6;
        break;
    case TORTURE_JUMP: /* no member is lost by a jump, however far */
        fault.for_ns = spread(stream, 1000, 3 * limit_ns);
        break;
    case TORTURE_HALF:
        fault.for_ns = spread(stream, MS / 10, longest_ns);
        fault.amount = between(stream, 0, 1);
        break;
    case TORTURE_ALLOC_FAILURE:
        fault.for_ns = spread(stream, MS, SECOND);
        fault.amount = between(stream, 1, 50);
        break;
    default:
        fault.for_ns = spread(stream, MS / 10, longest_ns);
        break;
    }
    return fault;
}

/* Drawn last, so that a seed's other draws do not depend on it. */
static void draw_devices(trib_sim_stream *stream, torture_plan *plan, int64_t horizon_ns)
{
    const uint32_t workers = plan->job.workers, local_size = between(stream, 1, workers);
    if (workers % local_size != 0) {
        return;
    }
    plan->local_size = local_size;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        plan->tensors[i].on_device = !trib_sim_draw_one_in(stream, 3);
    }
    if (plan->may_end && plan->fault_count < TORTURE_FAULTS_MAX && trib_sim_draw_one_in(stream, 3)) {
        plan->faults[plan->fault_count++] = (torture_fault){
            .kind = TORTURE_DEVICE,
            .member = between(stream, 0, workers - 1),
            .at_ns = (int64_t)trib_sim_draw_below(stream, (uint64_t)horizon_ns),
            .amount = between(stream, TRIB_HOST_FAULT_FAIL, TRIB_HOST_FAULT_HANG),
        };
    }
}

/* Some tensors are averaged or multiplied. Some sums are rounded: only a tree over ranks makes their order certain. */
static void draw_arithmetic(trib_sim_stream *stream, torture_plan *plan)
{
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        torture_tensor *what = &plan->tensors[i];
        const bool is_sum = what->root < 0 && what->reduce == TRIB_SUM, is_wide = what->dtype <= TRIB_FLOAT64;
        const bool averages = trib_sim_draw_one_in(stream, 4), rounds = !trib_sim_draw_one_in(stream, 3);
        if (is_sum && what->dtype != TRIB_INT64 && what->dtype != TRIB_BOOL && averages &&
            (is_wide || !what->on_device)) {
            what->reduce = TRIB_AVG;
        } else if (is_sum && rounds && !what->on_device && !trib_dtype_is_float(what->dtype)) {
            what->reduce = (trib_reduce)between(stream, TRIB_PRODUCT, TRIB_BIT_XOR);
        } else if (is_sum && rounds && !what->on_device && plan->job.engine.sum_order == TRIB_ORDER_RANK) {
            what->inexact = true;
        }
    }
}

/* Draws a worker that disagrees with the others, about a tensor or about one of its rounds. */
static void draw_odd(trib_sim_stream *stream, torture_plan *plan)
{
    plan->odd_rank = TORTURE_NOBODY;
    plan->odd_tensor = between(stream, 0, plan->tensor_count - 1);
    for (uint32_t i = 0; i < plan->tensor_count && plan->tensors[plan->odd_tensor].on_device; i++) {
        plan->odd_tensor = (plan->odd_tensor + 1) % plan->tensor_count;
    }
    const torture_tensor *what = &plan->tensors[plan->odd_tensor];
    const uint32_t rank = between(stream, 0, plan->job.workers - 1);
    const uint32_t round = between(stream, 0, what->rounds - 1);
    const bool whole = trib_sim_draw_one_in(stream, 2);
    if (trib_sim_draw_one_in(stream, 3) && plan->job.workers > 1 && !what->on_device) {
        plan->odd_rank = rank;
        plan->odd_round = whole ? -1 : (int32_t)round;
        plan->odd_exchange = plan->seed % 2 == 0;
        /* Late, so that the others are busy with the tensor when they hear of the dispute. */
        if (whole && plan->late_ns[rank] == 0) {
            plan->late_ns[rank] = spread(stream, MS, plan->leaves ? SECOND : 5 * SECOND);
        }
    }
}

static void draw_members(trib_sim_stream *stream, torture_plan *plan)
{
    const bool mixed = trib_sim_draw_one_in(stream, 3), uneven = trib_sim_draw_one_in(stream, 3);
    for (uint32_t i = 0; i < plan->job.workers + plan->job.servers; i++) {
        const uint32_t reactors = between(stream, 1, 3);
        const uint64_t bandwidth = (uint64_t)spread(stream, 100000000, INT64_C(25000000000));
        plan->reactors[i] = mixed ? reactors : plan->job.engine.reactors;
        plan->bandwidths[i] = uneven && !trib_sim_draw_one_in(stream, 4) ? bandwidth : 0;
    }
    const bool waits = trib_sim_draw_one_in(stream, 2);
    for (uint32_t i = 0; i < plan->job.workers; i++) {
        /* A worker that closes waits for the others for less than 3 s. */
        const int64_t late_ns = spread(stream, MS / 10, plan->leaves ? SECOND : 5 * SECOND);
        plan->late_ns[i] = waits && trib_sim_draw_one_in(stream, 2) ? late_ns : 0;
    }
    const uint32_t early_leaver = between(stream, 0, plan->job.workers - 1);
    plan->early_leaver = trib_sim_draw_one_in(stream, 6) && plan->job.workers > 1 ? early_leaver : TORTURE_NOBODY;
    plan->early_leaver_rounds = between(stream, 1, 3);
}

/* Only broadcasts of one root: the others have their bytes and leave, while one has yet to ask. */
static void draw_broadcasts(trib_sim_stream *stream, torture_plan *plan)
{
    const uint32_t workers = plan->job.workers, root = between(stream, 0, workers - 1);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        torture_tensor *what = &plan->tensors[i];
        what->root = (int32_t)root;
        what->on_device = false;
        what->rounds = what->rounds < 2 ? what->rounds : 2;
    }
    plan->late_ns[(root + 1) % workers] = spread(stream, 20 * MS, SECOND);
}

/* Newer parts of this test draw from a stream of their own. */
static void draw_more(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0x9e3779b97f4a7c15) + 5};
    trib_sim_stream ahead = {.state = plan->seed * UINT64_C(0x94d049bb133111eb) + 7};
    const bool broadcasts = trib_sim_draw_one_in(&stream, 10);
    plan->leaves = plan->leaves || broadcasts;
    draw_members(&stream, plan);
    if (broadcasts) {
        draw_broadcasts(&stream, plan);
    }
    draw_arithmetic(&stream, plan);
    draw_odd(&stream, plan);
    /* Some crowds are so large that tables and heaps grow. */
    const uint32_t crowd = trib_sim_draw_one_in(&stream, 2) ? TORTURE_CROWD_MAX : between(&stream, 30, 150);
    plan->crowd = trib_sim_draw_one_in(&stream, 6) ? crowd : 0;
    const uint32_t absent = between(&stream, 0, plan->job.workers + plan->job.servers - 1);
    plan->absent_ns = spread(&stream, MS, 8 * SECOND);
    plan->absent = trib_sim_draw_one_in(&stream, 6) ? absent : TORTURE_NOBODY;
    plan->shuffled = trib_sim_draw_one_in(&stream, 3);
    plan->in_place = trib_sim_draw_one_in(&stream, 3);
    plan->idles = trib_sim_draw_one_in(&stream, 3);
    if (plan->cancels == 0 && trib_sim_draw_one_in(&stream, 3)) {
        plan->cancels = between(&stream, 2, 8);
    }
    /* Many operations wait, and some of them are cancelled. */
    if (plan->crowd > 0 && trib_sim_draw_one_in(&stream, 2)) {
        plan->cancels = between(&stream, 2, 4);
        plan->job.engine.push_credit_bytes = 4096;
    }
    if (plan->hurried == 0 && trib_sim_draw_one_in(&stream, 3)) {
        plan->hurried = between(&stream, 2, 8);
    }
    plan->job.net.ahead = trib_sim_draw_one_in(&ahead, 3) ? between(&ahead, 1, TRIB_AHEAD_MAX - 1) : 0;
    plan->hurry_ns = 20 * MS;
    for (uint32_t i = 0; i < plan->job.workers; i++) {
        if (plan->late_ns[i] > 2 * SECOND) { /* a worker that waits for the late one has a deadline long before */
            plan->hurried = plan->hurried > 0 ? plan->hurried : 3;
        }
        if (plan->late_ns[i] >= SECOND && plan->seed % 4 > 0) { /* or it has been told by then whom it waits for */
            plan->hurry_ns = 2 * SECOND;
        }
    }
    if (plan->may_end && trib_sim_draw_one_in(&stream, 3)) { /* while many messages are on their way */
        plan->faults[0] = (torture_fault){.kind = TORTURE_RESET, .at_ns = spread(&stream, MS, 300 * MS)};
    }
    /* A fault meets other states while the job forms, and soon after, than later. */
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        const int64_t early_ns = spread(&stream, MS / 100, 30 * MS);
        plan->faults[i].at_ns = trib_sim_draw_one_in(&stream, 3) ? early_ns : plan->faults[i].at_ns;
        if (plan->faults[i].kind == TORTURE_ALLOC_FAILURE && trib_sim_draw_one_in(&stream, 2)) {
            plan->faults[i].amount = between(&stream, 1, 3);
        }
    }
}

/* Exactly one fault, so that nothing else ends the job or is its cause: an allocation fails, a process dies, or a
 * connection is reset, perhaps while the job forms. */
static void draw_single(torture_plan *plan)
{
    static const torture_kind kinds[] = {TORTURE_MISS, TORTURE_MISS, TORTURE_MISS, TORTURE_KILL, TORTURE_RESET};
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xc2b2ae3d27d4eb4f) + 9};
    const uint32_t member = between(&stream, 0, plan->job.workers + plan->job.servers - 1);
    const torture_kind kind = kinds[between(&stream, 0, 4)];
    const int64_t at_ns = spread(&stream, MS / 100, 300 * MS), early_ns = spread(&stream, MS / 100, 30 * MS);
    const int64_t nth = spread(&stream, 1, 40);
    if (plan->may_end && trib_sim_draw_one_in(&stream, 2)) {
        plan->fault_count = 1;
        plan->faults[0] = (torture_fault){.kind = kind,
                                          .member = member,
                                          .at_ns = kind == TORTURE_KILL ? at_ns : early_ns,
                                          .for_ns = 1,
                                          .amount = (double)nth};
    }
}

/* Workers share machines and sum there first. Workers are only added, so that earlier draws of a worker stay valid, and
 * the draws have a stream of their own. With three workers a machine the bits of rounded sums differ. */
static void draw_machines(torture_plan *plan)
{
    static const struct {
        uint32_t workers, each;
    } shapes[] = {{4, 2}, {6, 2}, {6, 3}, {8, 4}, {8, 2}};
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xbf58476d1ce4e5b9) + 3};
    const uint32_t which = between(&stream, 0, 4), workers = shapes[which].workers;
    if (!trib_sim_draw_one_in(&stream, 3) || workers < plan->job.workers ||
        (plan->local_size > 0 && workers % plan->local_size != 0)) {
        return;
    }
    plan->job.workers = workers;
    plan->job.per_machine = shapes[which].each;
    plan->job.links_apart = trib_sim_draw_one_in(&stream, 2);
    plan->job.engine.local_sum = TRIB_LOCAL_SUM_AUTO;
}

uint64_t torture_sum_bytes(const torture_plan *plan)
{
    uint64_t bytes = 1;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const torture_tensor *what = &plan->tensors[i];
        bytes += (uint64_t)what->count * what->rounds * trib_dtype_size(what->dtype);
    }
    return bytes;
}

/* Sums for one worker pile up in the servers' kernels or engines. Messages to it come late, a deadline finds parts of
 * an operation, and a reset nearly always hits the middle of a payload. One of these is added: a worker that starts its
 * last tensor when the others already wait for it, contributes and leaves; short deadlines; or a reset. In another
 * variant one worker comes late and disagrees about a tensor that is on all cores. Nothing else may go wrong. */
static void draw_narrow(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0x94d049bb133111eb) + 7};
    plan->narrow = plan->held_rank = TORTURE_NOBODY;
    const uint32_t workers = plan->job.workers, variant = between(&stream, 0, 5);
    const uint32_t narrow = 1 + between(&stream, 0, 1), size = between(&stream, 60000, 120000);
    const int64_t backlog_ns = between(&stream, 1200, 1800) * MS, held_ns = between(&stream, 550, 900) * MS;
    const int64_t reset_ns = between(&stream, 100, 1000) * MS;
    if (!trib_sim_draw_one_in(&stream, 3) || workers < 3 || plan->job.per_machine > 0 ||
        torture_is_to_lose(plan->seed)) {
        return;
    }
    sim_job_config *job = &plan->job;
    plan->hurry_ns = 20 * MS;
    plan->local_size = plan->fault_count = plan->cancels = plan->hurried = plan->crowd = plan->window = 0;
    plan->may_end = plan->shuffled = plan->leaves = false;
    plan->weather = (trib_sim_weather){.shred_one_in = 0};
    plan->early_leaver = plan->odd_rank = plan->absent = TORTURE_NOBODY;
    memset(plan->late_ns, 0, sizeof plan->late_ns);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        plan->tensors[i].rounds = 1;
        plan->tensors[i].root = -1;
        plan->tensors[i].on_device = false;
    }
    plan->tensors[0].count = size;
    job->link.egress_bits = job->link.ingress_bits = UINT64_C(1000000000);
    job->net.window_bytes = (uint32_t)(torture_sum_bytes(plan) / 100); /* the backlog leaves room for heartbeats */
    job->net.quantum_bytes = job->net.window_bytes / 4;
    const bool is_left = variant == 0 || variant > 3,
               in_engine = is_left && plan->seed % 2 == 1; /* otherwise sums pile up in the kernel */
    job->net.unsent_bytes = in_engine ? 1 << 15 : 1 << 20;
    job->engine.pull_credit_bytes = in_engine ? 1 << 14 : 4 << 20;
    if (in_engine) { /* the leaving worker sums too, and has time to send its sums */
        job->engine.colocate = TRIB_COLOCATE_ON;
        job->engine.close_timeout_ns = 10 * SECOND;
    }
    plan->narrow = narrow;
    plan->narrow_bits = torture_sum_bytes(plan) * 8 * SECOND / (uint64_t)backlog_ns + 20000;
    if (is_left) {
        plan->leaves = true;
        plan->held_rank = 3 - narrow;
        plan->held_tensor = plan->tensor_count - 1;
        plan->held_ns = held_ns;
    } else if (variant == 1) {
        plan->hurried = 2;
        plan->hurry_ns = backlog_ns;
    } else if (variant == 3) {
        plan->narrow = TORTURE_NOBODY;
        job->net.window_bytes = job->net.unsent_bytes;
        job->net.quantum_bytes = 65536;
        plan->odd_rank = narrow;
        plan->odd_tensor = 0;
        plan->odd_round = -1;
        plan->late_ns[narrow] = held_ns;
        job->engine.reactors = 2;
        for (uint32_t i = 0; i < workers + job->servers; i++) {
            plan->reactors[i] = 2;
        }
    } else {
        plan->may_end = true;
        plan->fault_count = 1;
        plan->faults[0] = (torture_fault){.kind = TORTURE_RESET, .member = narrow, .at_ns = reset_ns, .for_ns = 1};
    }
}

/* Moves partitions to other members again and again. Measurements alone would do so too seldom. */
static void draw_restless(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0x94d049bb133111eb) + 7};
    plan->restless_ns = trib_sim_draw_one_in(&stream, 2) ? spread(&stream, MS / 10, 100 * MS) : 0;
    plan->job.engine.shares = plan->restless_ns > 0 ? TRIB_SHARES_FOLLOW : TRIB_SHARES_FIXED;
}

/* Machines that sum first need the same number of reactors. */
static void even_machines(torture_plan *plan)
{
    bool rounds = false;
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        rounds = rounds || plan->tensors[i].inexact;
    }
    for (uint32_t i = 0; plan->job.per_machine > 0 && i < plan->job.workers; i++) {
        plan->reactors[i] = plan->reactors[0];
        plan->job.engine.local_sum = rounds ? TRIB_LOCAL_SUM_AUTO : TRIB_LOCAL_SUM_ON;
    }
}

/* Draws further links for all members, each in a network of its own, with other rates. */
static void draw_networks(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xd1342543de82ef95) + 23};
    const uint32_t count = plan->seed % 5 == 2 ? between(&stream, 1, TRIB_SIM_NETWORKS_MAX - 1) : 0;
    for (uint32_t i = 0; i < count; i++) {
        trib_sim_link *link = &plan->job.further[i];
        link->egress_bits = link->ingress_bits = (uint64_t)spread(&stream, 20000000, INT64_C(25000000000));
        link->latency_ns = spread(&stream, 1000, 5 * MS);
    }
}

/* Draws tensors whose buffers stay the same, on all workers or on some. */
static void draw_staying(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xbf58476d1ce4e5b9) + 53};
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const bool stays = trib_sim_draw_one_in(&stream, 2);
        const uint32_t some = between(&stream, 0, UINT8_MAX);
        plan->tensors[i].stays = !plan->tensors[i].on_device ? 0 : stays ? UINT8_MAX : some;
    }
}

/* Devices finish the same collective at different times. A rank may leave in the middle of it. */
static void draw_pace(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0x94d049bb133111eb) + 61};
    const int64_t pace_ns = spread(&stream, MS / 100, 4 * MS);
    plan->pace_ns = plan->local_size > 0 && !trib_sim_draw_one_in(&stream, 4) ? pace_ns : 0;
    plan->dawdler = trib_sim_draw_one_in(&stream, 3) ? between(&stream, 0, plan->job.workers - 1) : TORTURE_NOBODY;
    if (plan->pace_ns > 0 && plan->job.workers > 1 && trib_sim_draw_one_in(&stream, 5)) {
        plan->early_leaver = between(&stream, 0, plan->job.workers - 1);
        plan->early_leaver_rounds = between(&stream, 1, 6);
        plan->haste_ns = spread(&stream, MS / 100, 20 * MS);
    }
}

/* Draws chunks of the sizes of real jobs, which the engine cuts finer for most tensors. Most of these jobs have several
 * networks. */
static void draw_large(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0xda942042e4dd58b5) + 47};
    if ((plan->seed % 10 != 2 && plan->seed % 50 != 4) || plan->narrow != TORTURE_NOBODY) {
        return;
    }
    trib_config *engine = &plan->job.engine;
    engine->chunk_bytes = 65536u << between(&stream, 0, 4);
    engine->partition_bytes = engine->chunk_bytes * between(&stream, 1, 5);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        torture_tensor *what = &plan->tensors[i];
        what->rounds = what->rounds < 4 ? what->rounds : 4;
        what->count = trib_sim_draw_one_in(&stream, 2) ? (uint32_t)spread(&stream, 1000, 400000) : what->count;
    }
}

static void draw_lives(torture_plan *plan)
{
    trib_sim_stream stream = {.state = plan->seed * UINT64_C(0x9e6c63d0876a9a47) + 53};
    plan->lives = trib_sim_draw_one_in(&stream, 2) ? between(&stream, 1, 3) : 0;
}

void torture_draw(uint64_t seed, torture_plan *plan)
{
    memset(plan, 0, sizeof *plan);
    plan->seed = seed;
    trib_sim_stream stream = {.state = seed * UINT64_C(0xd1342543de82ef95) + 11};
    draw_job(&stream, plan);
    draw_tensors(&stream, plan);
    if (trib_sim_draw_one_in(&stream, 2)) {
        plan->weather = (trib_sim_weather){.shred_one_in = between(&stream, 2, 50),
                                           .delay_one_in = between(&stream, 2, 100),
                                           .delay_ns = spread(&stream, 1000, 20 * MS)};
    }
    /* no faults; harmless ones; any, twice as often */
    const uint32_t sort = between(&stream, 0, 3) % (torture_is_to_lose(seed) ? 2 : 4);
    plan->may_end = sort >= 2;
    plan->fault_count = sort == 0 ? 0 : between(&stream, 1, plan->may_end ? 3 : TORTURE_FAULTS_MAX);
    const int64_t horizon_ns = spread(&stream, MS, SECOND);
    for (uint32_t i = 0; i < plan->fault_count; i++) {
        plan->faults[i] = draw_fault(&stream, plan, plan->may_end, horizon_ns);
    }
    draw_devices(&stream, plan, horizon_ns);
    draw_machines(plan);
    draw_more(plan);
    draw_single(plan);
    draw_narrow(plan);
    even_machines(plan);
    plan->job.net.second_connections = seed % 4 != 1;
    plan->job.net.offloads = seed % 4 == 1 && plan->local_size > 0;
    draw_restless(plan);
    draw_networks(plan);
    draw_staying(plan);
    draw_pace(plan);
    draw_large(plan);
    draw_lives(plan);
    torture_draw_cuts(plan);
    torture_draw_dispute(plan);
    torture_draw_exchanges(plan);
    torture_draw_stutters(plan);
    plan->job.engine.checksum = TRIB_CHECKSUM_ON;
    torture_draw_regroups(plan);
}
