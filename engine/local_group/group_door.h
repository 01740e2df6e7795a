/*
 * group_door.h - the door: the local ranks of a machine agree on one collective through a page of memory that they share.
 *
 * Where a rank has nothing else under way it does not tell the leader what it is ready for: it goes to the door. Who comes
 * last lets all through, and each sees that by itself. That takes a look at memory instead of two messages. Who waits there and
 * has something else for the group, has an operation fail, loses patience or is about to sleep breaks the door up, as does who has
 * anything for the leader; then all tell the leader.
 *
 * Why the order stays the same everywhere. When a collective X is let through, every rank waits at the door, and has nothing else
 * announced: it came so, and it leaves the door, which settles X, before it announces anything. Take another collective Y that the
 * leader orders. For that all ranks have announced it to the leader. Who did so before it came to the door with X has had the
 * order of Y, and begun it; for one of them that means that all have announced Y by then, and so all before they came with X:
 * everywhere Y is before X. Else all announce Y when they have passed: everywhere X is before Y. Two that came by the door are in
 * the order of their generations, as each takes all ranks.
 *
 * Where nothing is under way on core 0 the call that hands an operation in goes to the door itself for a moment
 * (group_door_call.c); who goes away from it before all have come has not been there.
 *
 * That what a rank was told has been carried out before it comes is not needed for this: while the device is busy there is no
 * hurry, and the leader knows priorities. A rank counts as elsewhere until what it has told the leader is ordered or called off,
 * so one by the leader is enough for all to be back: a rank that lags sends others there once, not for ever.
 */
#ifndef TRIB_ENGINE_GROUP_DOOR_H
#define TRIB_ENGINE_GROUP_DOOR_H

#include "engine/device/device_task.h"
#include "engine/local_group/group_door_page.h"

#define TRIB_DOOR_NAME_SIZE 64

/* Whose turn it is to go to the door for this rank. */
typedef enum trib_door_turn {
    TRIB_DOOR_KEPT,  /* core 0's */
    TRIB_DOOR_FREE,  /* whoever calls may take it, or core 0 take it back */
    TRIB_DOOR_TAKEN, /* a call's */
    TRIB_DOOR_WANTED /* a call's, and core 0 waits for it */
} trib_door_turn;

/* A rank's side of it; what no comment says otherwise of belongs to core 0. */
typedef struct trib_door {
    trib_door_page *page;      /* NULL: there is none */
    trib_device_task *waiting; /* at the door; NULL: nobody */
    uint32_t generation;       /* that it came in */
    bool is_here, elsewhere;   /* this rank is counted so */
    bool tired;                /* the loop would sleep */
    trib_timer patience;
    trib_poller poller;
    int fd; /* the maker's; else -1 */
    atomic_int turn;
    trib_post turn_post;            /* it comes back, and is wanted */
    trib_device_task *held;         /* until then, newest first */
    uint32_t calls_vain, calls_let; /* in a row; that are not to go there. Whose turn it is */
    char name[TRIB_DOOR_NAME_SIZE];
} trib_door;

#endif
