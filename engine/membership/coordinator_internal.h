/*
 * coordinator_internal.h - declarations that the files of the coordinator share: coordinator.c (links and life),
 * coordinator_heartbeat.c (watching), coordinator_join.c (gathering), tensor_registry.c and tensor_placement.c
 * (tensors). All functions are called on core 0.
 */
#ifndef TRIB_ENGINE_COORDINATOR_INTERNAL_H
#define TRIB_ENGINE_COORDINATOR_INTERNAL_H

#include "engine/membership/coordinator.h"
#include "engine/base/hash.h"
#include "engine/cluster/partitioning.h"
#include "engine/cluster/rank_set.h"
#include "engine/codec/codec.h"
#include "engine/link/listeners.h"
#include "engine/membership/probe.h"

/* The operation that a worker waited for when it said so last (waits.h). */
typedef struct trib_wait {
    bool is_told;
    int64_t told_ns;
    uint32_t tag, round; /* the worker's own number of the tensor */
    uint32_t missing;    /* a rank that it waits for, or TRIB_NO_MEMBER */
    uint32_t use;        /* which operation of the tensor's name it is; 0: the worker cannot tell */
    uint32_t name_begin;
    uint32_t name_length; /* 0 with a use: the program numbers its operations */
    trib_collective collective;
} trib_wait;

/* A place in the job. The ranks come first, then the dedicated servers. A place's index is the id of its member. */
typedef struct trib_coordinator_slot {
    trib_link *link;
    trib_member_info info;
    bool joined, left;
    bool has_roster; /* the member has said that it has the roster */
    /* uneven_inputs.h: the worker has joined; the member has yet to hear that no worker counts as joined any more */
    bool is_out_of_data, join_unheard;
    bool advances;                        /* the member wants to go on in the next epoch (formation.h) */
    struct trib_registry_entry **tensors; /* by tag: tensors that the worker has declared and not released */
    uint32_t tensors_capacity;
    bool lost;             /* a lost server without which the job goes on; `left` is true, too */
    bool is_let_go;        /* a lost server that has asked to leave */
    bool asks_to_go;       /* a server that asks to leave, and waits for its turn */
    bool drains;           /* the server has asked to leave, and some worker may still need it */
    uint32_t loss_number;  /* number of the server's loss in the order of losses, from 1 on */
    uint32_t losses_taken; /* of a worker: number of lost servers that it has nothing to do with any more */
    uint64_t forgets_sent, forgets_answered;
    uint64_t serves_sent, serves_answered;
    int64_t away_since_ns; /* between epochs: when its link ended; 0: it has yet to come */
    int64_t asked_ns;      /* time of the first PING that the member has not answered; 0: none */
    trib_wait wait;
    char gone[TRIB_REASON_MAX]; /* the member that had this place before the job began, and why it went; "": none */
    /* gets the member's LOADS, and has room for the largest; NULL: LOADS land in the link's memory */
    void *loads_buffer;
} trib_coordinator_slot;

/* The tensor that the worker has declared with the tag and not released, or NULL. */
static inline struct trib_registry_entry *trib_slot_entry(const trib_coordinator_slot *slot, uint32_t tag)
{
    return tag < slot->tensors_capacity ? slot->tensors[tag] : NULL;
}

/* Marks of ranks in a registry entry's tags. */
#define TRIB_TAG_NONE UINT32_MAX           /* the rank has not declared the tensor */
#define TRIB_TAG_RELEASED (UINT32_MAX - 1) /* the rank has declared and released it */

/* A tensor number, which several tensors may have one after the other. */
typedef struct trib_tensor_number {
    uint32_t round_base;        /* rounds up to this one belong to tensors that have ended */
    uint32_t next;              /* the next free or forgotten number, plus one */
    const trib_rank_set *ranks; /* ranks of its tensor's group; NULL: all workers share the tensor */
    uint64_t forget;            /* FORGETs sent to each member up to and including this number's own */
} trib_tensor_number;
/* A group of workers as its first member described it. Its number is 0 while it waits for the number of a group that
 * ends. */
typedef struct trib_group_entry {
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_rank_set *ranks;
    uint32_t first_rank;
    bool is_known, bad; /* is_known: all members of the job know its ranks */
    trib_status bad_status;
    char bad_text[TRIB_ERROR_TEXT_SIZE];
    uint32_t *tags;          /* by rank, or a TRIB_TAG_* */
    uint32_t released_count; /* number of ranks that have released the group */
    bool is_ending;          /* all ranks have released it, so the members are told to forget it */
    uint32_t conflict;       /* the same number for the groups that are bad together; 0: none (group_conflict.c) */
    uint32_t sides;          /* of the search for conflicts, as are the next two fields */
    struct trib_group_entry *peer, *marked;
    unsigned char *knows; /* by member: it has answered that it knows the ranks */
    trib_dealer *dealer;  /* deals the group's tensors to its members and to servers; NULL: the job's dealer does */
    struct trib_group_entry *next;
} trib_group_entry;

/* True if the rank is in the group and has yet to ask for it. */
static inline bool trib_group_awaits(const trib_group_entry *entry, uint32_t rank)
{
    return trib_rank_set_index(entry->ranks, rank) != TRIB_RANK_ABSENT && entry->tags[rank] == TRIB_TAG_NONE;
}

/* The tensors of one name, in the order in which workers declare them. */
typedef struct trib_registry_name {
    char key[TRIB_TENSOR_NAME_MAX + 12]; /* the name, after the number of its group */
    struct trib_registry_entry *first, *last;
    UT_hash_handle hh;
    struct trib_registry_entry *undeclared[]; /* by rank: the oldest tensor that it has not declared, or NULL */
} trib_registry_name;

/* A tensor as the first worker declared it. */
typedef struct trib_registry_entry {
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_registry_name *named; /* the tensors of its name */
    trib_dtype dtype;
    trib_group_entry *group; /* NULL: all workers share it */
    trib_layout layout;
    uint64_t row;
    uint64_t *counts;       /* by slice, in elements; filled in as the workers declare */
    trib_partitioning *cut; /* NULL: not placed yet */
    uint64_t count;
    uint8_t dims; /* number of the tensor's dimensions; 0: no worker has given a shape */
    uint64_t shape[TRIB_TENSOR_DIMS_MAX];
    uint32_t shape_rank;              /* rank that gave the shape */
    char codec[TRIB_CODEC_TEXT_SIZE]; /* "none", the codec of its sums, or "auto" with its choices */
    uint32_t choice;                  /* number of the choice in auto's list, from 1 on; 0: none (codec_choice.h) */
    bool is_chosen;
    uint32_t local_size; /* local ranks that share the tensor on their devices; 0: the tensor is in host memory */
    uint32_t quorum;     /* 0: all workers contribute to its sums (server/quorum.h) */
    int64_t quorum_timeout_ns;
    uint32_t id, first_rank;
    bool bad;
    trib_status bad_status;
    char bad_text[TRIB_ERROR_TEXT_SIZE];
    trib_place_owner *owners;
    uint32_t partition_count, partition_bytes;
    uint32_t *tags; /* by rank, or a TRIB_TAG_* */
    /* by rank: the last round that had failed there when the worker joined or released the tensor; NULL: none has */
    uint32_t *given_up;
    uint32_t declared_count, released_count;
    uint32_t join_round;                         /* last round at the time when all had joined last (uneven_inputs.h) */
    uint32_t join_round_next;                    /* last round of the workers that have joined since */
    uint32_t rounds;                             /* largest number of operations of a worker that has released it */
    struct trib_registry_entry *later, *earlier; /* the next one and the one before of the same name */
    struct trib_registry_entry *newer, *older;   /* all tensors, in the order of their declaration */
    uint64_t serve;    /* SERVEs sent to each member up to and including this tensor's own; 0: none */
    char lacking[192]; /* names of members that do not have the codec */
    bool is_known;     /* all members that know partitions have answered */
    struct trib_registry_entry *serve_next; /* the next tensor that waits for answers */
    /* The owners in a new placement (rebalance.c); NULL: the tensor does not move. */
    trib_place_owner *owners_next;
    unsigned char *answered; /* by rank; NULL: the new placement has not been proposed yet */
    uint32_t answer_count, first_round;
    bool not_now;
} trib_registry_entry;

/* The numbered operation in which workers were found last to differ (waits.h). */
typedef struct trib_difference {
    uint32_t use; /* 0: there is none */
    const trib_group_entry *group;
    char text[TRIB_ERROR_TEXT_SIZE];
} trib_difference;

struct trib_rebalance_state;
struct trib_codec_chooser;

/* Workers that have no more data (uneven_inputs.h). */
typedef struct trib_uneven_inputs_state {
    uint32_t count, last; /* number of workers that have joined; the rank that joined last */
    bool is_ending;       /* the coordinator is telling members that the joins are over */
    uint32_t left;        /* a rank that left without joining, plus one; 0: none */
    uint32_t once, bytes[TRIB_GROUPS_MAX];
} trib_uneven_inputs_state;

struct trib_coordinator {
    trib_core *core;
    uint32_t worker_count, server_count;
    uint32_t joined, workers_left, losses;
    uint32_t early_leaver; /* the first server that left while workers were at work; TRIB_NO_MEMBER: none */
    trib_coordinator_slot *slots;
    bool running, over;
    bool stalled_locally; /* this process was stopped before the last heartbeat */
    trib_timer join_deadline, heartbeat;
    int64_t next_ping_ns;
    /* between epochs: since when members gather, and the age at which it is logged; 0: not yet */
    int64_t gathers_since_ns, stall_ns;
    uint32_t settings_told; /* a bit for each job-wide setting that was found to differ and is logged */
    trib_roster *roster;    /* owned by the coordinator */
    trib_dealer *dealer;
    struct trib_registry_name *registry;                      /* by name */
    struct trib_registry_entry *tensors_first, *tensors_last; /* all tensors (newer, older) */
    uint32_t tensors_alive;
    trib_tensor_number *numbers;
    uint32_t number_count, number_capacity;
    uint32_t number_free; /* the first free number, plus one; 0: none */
    /* the numbers that members have been told to forget, in the same form */
    uint32_t number_forgotten, number_forgotten_last;
    uint64_t forgets;
    uint64_t serves;
    struct trib_registry_entry *serve_first, *serve_last; /* placed tensors that members have yet to answer for */
    trib_group_entry *groups;                             /* newest first */
    trib_group_entry *groups_by_id[TRIB_GROUPS_MAX];      /* by number; NULL: it is free */
    uint32_t group_last, groups_numbered;                 /* the number that was given last, and how many are taken */
    uint32_t group_conflicts;                             /* so many so far */
    bool noticed;                                         /* the missing members were logged before the join deadline */
    uint32_t parked;                   /* members that wait for the end of the epoch to join (formation.h) */
    struct trib_commit_entry *commits; /* rounds that some workers are through with (commits.h) */
    struct trib_dispute *disputes;     /* members that do not reach each other (verdict.h) */
    trib_timer verdict;
    bool looks, looked_late; /* the timer is armed; it was late the last time */
    trib_timer knocking;     /* a boundary waits for members that are about to join (formation_join.c) */
    int64_t opened_ns, knocks_since_ns;
    trib_probes probes; /* by place, between epochs (formation_probe.c) */
    trib_timer probing;
    struct trib_quorum_call *quorum_calls; /* rounds whose set of contributors is being decided (quorums.h) */
    trib_uneven_inputs_state uneven;
    trib_difference difference;
    struct trib_rebalance_state *rebalance; /* NULL: shares are fixed */
    struct trib_codec_chooser *chooser;     /* NULL: no tensor has had the codec "auto" */
};

/* The peer of a link whose member waits for the end of the epoch to join. */
#define TRIB_PEER_PARKED (TRIB_NO_MEMBER - 1)

static inline uint32_t trib_coordinator_slots(const trib_coordinator *self)
{
    return self->worker_count + self->server_count;
}

/* With host sums, workers that sum for their machines know partitions, too. */
static inline bool trib_coordinator_knows_partitions(const trib_coordinator *self, uint32_t member)
{
    return self->roster->members[member].sums || self->roster->local_size > 0;
}

/* ---- coordinator.c ---- */
void trib_coordinator_notify_end(trib_link *link, const trib_cause *cause);
/* Tells all members that have not left, and their engines end. Only the first call counts. */
void trib_coordinator_end_job(trib_coordinator *self, const trib_cause *cause);
/* A member is lost: the coordinator has found that itself, or it is the coordinator's verdict on a report. */
void trib_coordinator_take_loss(trib_coordinator *self, const trib_cause *cause);

/* ---- coordinator_heartbeat.c ---- */
/* Begins to watch the members, after the roster was sent. */
void trib_coordinator_run(trib_coordinator *self);

/* ---- coordinator_join.c ---- */
/* Listens where members and workers that join look for the coordinator. *bound_out gets the address. */
TRIB_CHECKED trib_status trib_coordinator_listen(trib_coordinator *self, trib_address *bound_out, trib_error *error);
/* All places are taken: makes the roster, sends it, and runs. */
void trib_coordinator_start_running(trib_coordinator *self);
/* Runs when the join_deadline timer fires. */
void trib_coordinator_join_deadline_passed(trib_reactor *reactor, trib_timer *timer);
/* Between epochs: logs which programs hold up the change of the membership. */
void trib_coordinator_check_stall(trib_coordinator *self);
TRIB_CHECKED trib_status trib_coordinator_take_join(trib_coordinator *self, trib_link *link, const trib_frame *frame,
                                                    const void *payload, trib_error *error);

/* ---- tensor_registry.c, tensor_numbers.c ---- */
TRIB_CHECKED trib_status trib_registry_take_declare(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                                    const void *payload, trib_error *error);
TRIB_CHECKED trib_status trib_registry_take_release(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                                    trib_error *error);
TRIB_CHECKED trib_status trib_registry_take_forgotten(trib_coordinator *self, uint32_t member, trib_error *error);
/* A member has left. It releases nothing any more, and is not waited for. */
void trib_registry_member_left(trib_coordinator *self);
/* A worker has left: tensors that lack its declaration for their placement will never have it. */
void trib_registry_worker_left(trib_coordinator *self, uint32_t rank);
/* A worker has no more data: it declares nothing that others wait for, and need not release what it lacks. */
void trib_registry_worker_joined(trib_coordinator *self, uint32_t rank);
/* The tensor's last round that has failed on that rank; 0: none has. Returns false if there is no memory. */
TRIB_CHECKED bool trib_registry_note_given_up(const trib_coordinator *self, trib_registry_entry *entry, uint32_t rank,
                                              uint32_t round);
/* A rank has released the group: it declares nothing in it any more. */
void trib_registry_group_released(trib_coordinator *self, const trib_group_entry *group, uint32_t rank);
void trib_registry_clear(trib_coordinator *self);
/* The number of workers that share the tensor. */
static inline uint32_t trib_registry_sharers(const trib_coordinator *self, const trib_registry_entry *entry)
{
    return entry->group == NULL ? self->worker_count : entry->group->ranks->count;
}
/* Marks the tensor as unusable; the caller tells the workers. */
void trib_registry_mark_bad(const trib_coordinator *self, trib_registry_entry *entry, trib_status status,
                            const char *text);

/* Tells all workers that have declared the tensor that it is bad. */
void trib_registry_send_bad(const trib_coordinator *self, const trib_registry_entry *entry);

/* ---- tensor_placement.c ---- */
/* Makes a dealer for the members as `limit` leaves them: `limit` may exclude a member from summing. Returns NULL if no
 * member sums then, or if memory runs out. */
trib_dealer *trib_registry_make_dealer(const trib_coordinator *self,
                                       void (*limit)(const void *user, uint32_t member, trib_place_member *place),
                                       const void *user);
/* As trib_codec_chunk_least (op.h). */
uint32_t trib_registry_chunk_least(const trib_coordinator *self, const trib_registry_entry *entry);
/* Deals out the tensor's partitions. Returns false if memory runs out. A tensor that is too large becomes bad. */
TRIB_CHECKED bool trib_registry_place(trib_coordinator *self, trib_registry_entry *entry);
TRIB_CHECKED trib_status trib_registry_send_declared(trib_coordinator *self, const trib_registry_entry *entry,
                                                     uint32_t rank);

/* ---- tensor_serve.c ---- */
/* The tensor has been placed: tells the members that know partitions, and its workers when all have answered. */
TRIB_CHECKED trib_status trib_serve_begin(trib_coordinator *self, trib_registry_entry *entry);
/* Tells the workers of the tensors for which no answer is awaited any more. Called when a member is lost or gone. */
void trib_serves_check(trib_coordinator *self);
void trib_serve_ended(trib_coordinator *self, const trib_registry_entry *entry);
TRIB_CHECKED trib_status trib_serve_take_serving(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                                 trib_error *error);

/* ---- tensor_numbers.c ---- */
/* *number_out is TRIB_TENSORS_MAX if there is none left. Returns false if memory runs out. */
bool trib_number_take(trib_coordinator *self, uint32_t *number_out);
/* Gives back a number that was taken and not used. */
void trib_number_give(trib_coordinator *self, uint32_t number);
/* The tensor, which members know, has ended. The number comes back when all of them have forgotten its partitions. */
void trib_number_end(trib_coordinator *self, uint32_t number, uint32_t rounds, uint32_t partition_count);

/* The group, whose tensors have ended, is freed. */
void trib_numbers_group_ended(trib_coordinator *self, const trib_rank_set *ranks);

/* ---- group_conflict.c ---- */
/* The rank has just asked for the group. Returns a group of the name that can therefore not be made, nor this one: both
 * then have the number of a conflict, with others that are in it. NULL: there is none. */
const trib_group_entry *trib_group_find_conflict(trib_coordinator *self, trib_group_entry *entry, uint32_t rank);

/* ---- group_registry.c ---- */
TRIB_CHECKED trib_status trib_groups_take_create(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                                 const void *payload, trib_error *error);
TRIB_CHECKED trib_status trib_groups_take_known(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                                trib_error *error);
TRIB_CHECKED trib_status trib_groups_take_release(trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                                  trib_error *error);
TRIB_CHECKED trib_status trib_groups_take_forgotten(trib_coordinator *self, uint32_t member, const trib_frame *frame,
                                                    trib_error *error);
/* A member has left: nobody waits for its answer any more. */
void trib_groups_member_left(trib_coordinator *self);
/* NULL: there is no such group. */
trib_group_entry *trib_groups_find(const trib_coordinator *self, uint32_t id);
void trib_groups_clear(trib_coordinator *self);

#endif
