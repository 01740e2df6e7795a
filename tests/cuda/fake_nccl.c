/*
 * fake_nccl.c - a fake of NCCL, for ranks of one process.
 *
 * A communicator is formed when all its members have called. The n-th collective of each member meets the n-th of
 * the others, and all end together. Kinds, sizes or types that differ are reported as a fault, and such a collective
 * never ends. An abort ends the member's own kernels, and only those.
 *
 * Only a GPU can show how NCCL moves data, what it does by itself (connections, registration, protocols), when its
 * calls wait for other ranks, and how its kernels run beside others.
 */
#include "tests/cuda/fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/values.h"

#define MEMBERS_MAX 4
#define MEETINGS 1024u /* more than are ever under way */

typedef enum fake_what { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, REDUCE, BROADCAST } fake_what;

typedef struct fake_meeting {
    int arrived, left;
    bool over;
    const fake_work *parts[MEMBERS_MAX];
} fake_meeting;

typedef struct fake_group {
    ncclUniqueId id;
    int size, joined;
    fake_meeting meetings[MEETINGS];
    struct fake_group *next;
} fake_group;

typedef struct fake_comm {
    fake_group *group;
    int rank;
    uint64_t launched, ended;
    bool aborted, gone;
    struct fake_comm *next;
} fake_comm;

static fake_group *groups;
static fake_comm *comms;
static int kept_out = -1;
static unsigned waiting; /* members that wait for the others of their group */

/* ---- Sums ---- */

static trib_dtype type_of(int type)
{
    switch (type) {
    case ncclInt8:
        return TRIB_INT8;
    case ncclUint8:
        return TRIB_UINT8;
    case ncclInt32:
        return TRIB_INT32;
    case ncclInt64:
        return TRIB_INT64;
    case ncclFloat16:
        return TRIB_FLOAT16;
    case ncclBfloat16:
        return TRIB_BFLOAT16;
    case ncclFloat64:
        return TRIB_FLOAT64;
    default:
        return TRIB_FLOAT32;
    }
}

static double join(int reduce, double one, double other)
{
    switch (reduce) {
    case ncclMin:
        return one < other ? one : other;
    case ncclMax:
        return one > other ? one : other;
    default:
        return one + other;
    }
}

/* Reduces elements [begin, begin + count) of the members' sources; the caller frees the result. */
static void *reduce(const fake_group *group, const fake_meeting *meeting, size_t begin, size_t count)
{
    const fake_kernel *first = &meeting->parts[0]->kernel;
    const trib_dtype type = type_of(first->type);
    void *sum = malloc(count * 8 + 1);
    for (size_t i = 0; sum != NULL && i < count; i++) {
        double value = values_load(type, first->source, begin + i);
        for (int rank = 1; rank < group->size; rank++) {
            value = join(first->reduce, value, values_load(type, meeting->parts[rank]->kernel.source, begin + i));
        }
        value = first->reduce == ncclAvg ? value / group->size : value;
        values_store(type, sum, i, values_round(type, value));
    }
    return sum;
}

static void give_sums(const fake_group *group, const fake_meeting *meeting)
{
    const fake_kernel *first = &meeting->parts[0]->kernel;
    const bool scatters = first->what == REDUCE_SCATTER;
    const size_t bytes = first->count * trib_dtype_size(type_of(first->type));
    unsigned char *sum = reduce(group, meeting, 0, scatters ? first->count * (size_t)group->size : first->count);
    for (int rank = 0; sum != NULL && rank < group->size; rank++) {
        if (first->what != REDUCE || rank == first->root) {
            memcpy(meeting->parts[rank]->kernel.target, sum + (scatters ? bytes * (size_t)rank : 0), bytes);
        }
    }
    free(sum);
}

static void gather(const fake_group *group, const fake_meeting *meeting)
{
    const size_t shard = meeting->parts[0]->kernel.count;
    for (int from = 0; from < group->size; from++) {
        for (int to = 0; to < group->size; to++) {
            memmove((unsigned char *)meeting->parts[to]->kernel.target + shard * (size_t)from,
                    meeting->parts[from]->kernel.source, shard);
        }
    }
}

static void spread(const fake_group *group, const fake_meeting *meeting)
{
    const fake_kernel *root = &meeting->parts[meeting->parts[0]->kernel.root]->kernel;
    for (int to = 0; to < group->size; to++) {
        memmove(meeting->parts[to]->kernel.target, root->source, root->count); /* the root's target may be its source */
    }
}

/* ---- Meetings; called with the mutex held ---- */

static bool are_alike(const fake_kernel *one, const fake_kernel *other)
{
    return one->what == other->what && one->count == other->count && one->type == other->type &&
           one->reduce == other->reduce && one->root == other->root;
}

/* Begins a collective of which all members are there. Returns false if they have come for different ones. */
static bool hold(const fake_group *group, const fake_meeting *meeting)
{
    const fake_kernel *first = &meeting->parts[0]->kernel;
    for (int rank = 1; rank < group->size; rank++) {
        if (!are_alike(first, &meeting->parts[rank]->kernel)) {
            fake_fault("ranks have come to a collective for different things");
            return false;
        }
    }
    if (first->count * trib_dtype_size(type_of(first->type)) >= FAKE_TOUCHED_MAX) {
        return true;
    }
    if (first->what == ALL_GATHER) {
        gather(group, meeting);
    } else if (first->what == BROADCAST) {
        spread(group, meeting);
    } else {
        give_sums(group, meeting);
    }
    return true;
}

static bool end(fake_comm *comm)
{
    comm->ended++;
    return true;
}

/* Returns true if the collective is over. */
static bool meet(fake_work *work)
{
    fake_comm *comm = work->kernel.owner;
    fake_group *group = comm->group;
    fake_meeting *meeting = &group->meetings[work->kernel.number % MEETINGS];
    const bool is_here = meeting->parts[comm->rank] == work;
    if (comm->aborted) {
        if (is_here && !meeting->over) {
            meeting->parts[comm->rank] = NULL;
            meeting->arrived--;
        }
        return end(comm);
    }
    if (!is_here) {
        meeting->parts[comm->rank] = work;
        meeting->arrived++;
        meeting->over = meeting->arrived == group->size && hold(group, meeting);
    }
    if (!meeting->over) {
        return false;
    }
    meeting->left++;
    if (meeting->left == group->size) {
        *meeting = (fake_meeting){.arrived = 0};
    }
    pthread_cond_broadcast(&fake_moved);
    return end(comm);
}

static bool tell(fake_work *work, fake_moment moment)
{
    fake_comm *comm = work->kernel.owner;
    if (moment == FAKE_LAUNCHED) {
        work->kernel.number = comm->launched++;
        return true;
    }
    return meet(work);
}

static ncclResult_t launch(fake_kernel kernel, ncclComm_t where, cudaStream_t stream)
{
    fake_comm *comm = (fake_comm *)(void *)where;
    pthread_mutex_lock(&fake_mutex);
    const bool gone = comm->gone;
    if (gone) {
        fake_fault("a collective of a communicator that is gone");
    }
    pthread_mutex_unlock(&fake_mutex);
    if (gone || fake_fails(FAKE_COLLECTIVE)) {
        return ncclInternalError;
    }
    kernel.owner = comm;
    const fake_work work = {.kind = FAKE_KERNEL, .tell = tell, .kernel = kernel};
    return fake_launch(stream, &work) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/* ---- NCCL's functions ---- */

static ncclResult_t make_id(ncclUniqueId *id)
{
    static uint64_t made;
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&fake_mutex);
    made++;
    memcpy(id->internal, &made, sizeof made);
    pthread_mutex_unlock(&fake_mutex);
    return ncclSuccess;
}

/* Called with the mutex held. */
static fake_group *group_of(const ncclUniqueId *id, int size)
{
    fake_group *group = groups;
    while (group != NULL && memcmp(&group->id, id, sizeof *id) != 0) {
        group = group->next;
    }
    if (group == NULL) {
        group = calloc(1, sizeof *group);
        if (group == NULL) {
            abort();
        }
        group->id = *id;
        group->size = size;
        group->next = groups;
        groups = group;
    }
    return group;
}

static ncclResult_t comm_init(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    fake_comm *comm = calloc(1, sizeof *comm);
    (void)config;
    if (comm == NULL || size > MEMBERS_MAX) {
        abort();
    }
    pthread_mutex_lock(&fake_mutex);
    waiting++;
    while (kept_out == rank) {
        pthread_cond_wait(&fake_moved, &fake_mutex);
    }
    fake_group *group = group_of(&id, size);
    group->joined++;
    pthread_cond_broadcast(&fake_moved);
    while (group->joined < size) {
        pthread_cond_wait(&fake_moved, &fake_mutex);
    }
    waiting--;
    comm->group = group;
    comm->rank = rank;
    comm->next = comms;
    comms = comm;
    fake_counted()->communicators++;
    pthread_mutex_unlock(&fake_mutex);
    *out = (ncclComm_t)(void *)comm;
    return ncclSuccess;
}

/* Waits for everything that was launched. */
static ncclResult_t comm_finalize(ncclComm_t where)
{
    const fake_comm *comm = (const fake_comm *)(void *)where;
    pthread_mutex_lock(&fake_mutex);
    while (comm->ended < comm->launched) {
        pthread_cond_wait(&fake_moved, &fake_mutex);
    }
    pthread_mutex_unlock(&fake_mutex);
    return ncclSuccess;
}

static ncclResult_t comm_go(fake_comm *comm, bool aborts)
{
    pthread_mutex_lock(&fake_mutex);
    if (comm->gone) {
        fake_fault("a communicator goes twice");
    }
    comm->gone = true;
    comm->aborted = aborts;
    fake_counted()->aborted += aborts ? 1 : 0;
    fake_counted()->communicators--;
    pthread_cond_broadcast(&fake_moved);
    pthread_mutex_unlock(&fake_mutex);
    return ncclSuccess;
}

static ncclResult_t comm_destroy(ncclComm_t comm)
{
    return comm_go((fake_comm *)(void *)comm, false);
}

static ncclResult_t comm_abort(ncclComm_t comm)
{
    return comm_go((fake_comm *)(void *)comm, true);
}

static ncclResult_t comm_error(ncclComm_t where, ncclResult_t *state)
{
    const fake_comm *comm = (const fake_comm *)(void *)where;
    pthread_mutex_lock(&fake_mutex);
    if (comm->gone) {
        fake_fault("a question to a communicator that is gone");
    }
    pthread_mutex_unlock(&fake_mutex);
    *state = ncclSuccess;
    return ncclSuccess;
}

static const char *error_text(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "a call failed (fake)";
}

static const char *last_error(ncclComm_t comm)
{
    (void)comm;
    return "";
}

static ncclResult_t reduce_to(const void *source, void *target, size_t count, ncclDataType_t type, ncclRedOp_t op,
                              int root, ncclComm_t comm, cudaStream_t stream)
{
    return launch((fake_kernel){REDUCE, NULL, source, target, count, (int)type, (int)op, root, 0}, comm, stream);
}

static ncclResult_t broadcast(const void *source, void *target, size_t count, ncclDataType_t type, int root,
                              ncclComm_t comm, cudaStream_t stream)
{
    return launch((fake_kernel){BROADCAST, NULL, source, target, count, (int)type, 0, root, 0}, comm, stream);
}

static ncclResult_t all_reduce(const void *source, void *target, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return launch((fake_kernel){ALL_REDUCE, NULL, source, target, count, (int)type, (int)op, 0, 0}, comm, stream);
}

static ncclResult_t reduce_scatter(const void *source, void *target, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, cudaStream_t stream)
{
    return launch((fake_kernel){REDUCE_SCATTER, NULL, source, target, count, (int)type, (int)op, 0, 0}, comm, stream);
}

static ncclResult_t all_gather(const void *source, void *target, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream)
{
    return launch((fake_kernel){ALL_GATHER, NULL, source, target, count, (int)type, 0, 0, 0}, comm, stream);
}

static ncclResult_t group_call(void)
{
    return ncclSuccess;
}

void *fake_nccl_symbol(const char *name)
{
    typedef void (*function)(void);
    static const struct {
        const char *name;
        function function;
    } all[] = {
        {"ncclGetUniqueId", (function)make_id},        {"ncclCommInitRankConfig", (function)comm_init},
        {"ncclCommFinalize", (function)comm_finalize}, {"ncclCommDestroy", (function)comm_destroy},
        {"ncclCommAbort", (function)comm_abort},       {"ncclCommGetAsyncError", (function)comm_error},
        {"ncclGetErrorString", (function)error_text},  {"ncclGetLastError", (function)last_error},
        {"ncclReduce", (function)reduce_to},           {"ncclBroadcast", (function)broadcast},
        {"ncclAllReduce", (function)all_reduce},       {"ncclReduceScatter", (function)reduce_scatter},
        {"ncclAllGather", (function)all_gather},       {"ncclGroupStart", (function)group_call},
        {"ncclGroupEnd", (function)group_call},
    };
    void *symbol = NULL;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(name, all[i].name) == 0) {
            memcpy(&symbol, &all[i].function, sizeof symbol);
        }
    }
    return symbol;
}

/* ---- For tests ---- */

void fake_nccl_keep_out(int rank)
{
    pthread_mutex_lock(&fake_mutex);
    kept_out = rank;
    pthread_mutex_unlock(&fake_mutex);
}

void fake_nccl_let_in(void)
{
    pthread_mutex_lock(&fake_mutex);
    kept_out = -1;
    pthread_cond_broadcast(&fake_moved);
    pthread_mutex_unlock(&fake_mutex);
}

bool fake_nccl_close(void)
{
    pthread_mutex_lock(&fake_mutex);
    bool all_gone = waiting == 0;
    for (const fake_comm *comm = comms; comm != NULL; comm = comm->next) {
        all_gone = all_gone && comm->gone;
    }
    while (all_gone && comms != NULL) {
        fake_comm *next = comms->next;
        free(comms);
        comms = next;
    }
    while (all_gone && groups != NULL) {
        fake_group *next = groups->next;
        free(groups);
        groups = next;
    }
    pthread_mutex_unlock(&fake_mutex);
    return all_gone;
}
