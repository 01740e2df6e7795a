/*
 * store_sim.h - a store (engine/job/store.h) in virtual time, which all engines of a simulated job share. It may be
 * slow, be away, lose answers, be reached by some only, and lie.
 */
#ifndef TRIB_API_ENV_SIM_STORE_SIM_H
#define TRIB_API_ENV_SIM_STORE_SIM_H

#include "engine/job/store.h"
#include "engine/sim/reactor_sim.h"

typedef enum trib_sim_lie {
    TRIB_SIM_TRUTH,
    TRIB_SIM_LIE_FORGETS,  /* a swap is said to be carried out, and is not */
    TRIB_SIM_LIE_STALE,    /* reads are of the first record */
    TRIB_SIM_LIE_GARBAGE,  /* records are other texts */
    TRIB_SIM_LIE_LOSES,    /* there is no record any more */
    TRIB_SIM_LIE_TWO_WINS, /* a swap is carried out whatever the revision is */
    TRIB_SIM_LIE_COUNT,
} trib_sim_lie;

typedef struct trib_sim_store {
    trib_sim *sim;
    trib_sim_stream random;
    int64_t delay_ns;     /* longest delay of a message, drawn anew for each */
    uint64_t lost_one_in; /* one in so many answers is lost, after the request was carried out; 0: none */
    /* one in so many swaps is carried out when the next swap comes, and is not answered; 0: none */
    uint64_t late_one_in;
    bool is_away; /* nothing is carried out, nothing answers */
    trib_sim_lie lie;
    /* true for the reactors that reach the store; NULL: all do */
    bool (*reaches)(void *user, const trib_reactor *reactor);
    void *user;
    /* The store's content. */
    uint64_t revision;
    char record[TRIB_STORE_TEXT_MAX], first[TRIB_STORE_TEXT_MAX];
    char sign[sizeof(trib_address)];
    const void *sign_of; /* the handle that has written the sign */
    int64_t fades_ns;    /* time at which the sign fades */
    uint64_t swaps;      /* number of swaps that were carried out */
    trib_store_request late;
    const struct trib_sim_store_handle *late_of; /* the handle that requested the late swap; NULL: none is late */
} trib_sim_store;

void trib_sim_store_init(trib_sim_store *self, trib_sim *sim);

/* One engine's access to the store (trib_env's store). NULL if out of memory. */
typedef struct trib_sim_store_handle trib_sim_store_handle;
trib_sim_store_handle *trib_sim_store_open(trib_sim_store *store);
void trib_sim_store_free(trib_sim_store_handle *handle);
extern const trib_store_ops trib_sim_store_ops;

#endif
