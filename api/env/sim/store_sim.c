/* store_sim.c - see store_sim.h. A request takes two ways, each with a delay of its own, by timers of its reactor. */
#include "api/env/sim/store_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"

#define PATIENCE_NS (2 * INT64_C(1000000000)) /* time limit of a request */

struct trib_sim_store_handle {
    trib_sim_store *store;
    trib_store_request *request; /* the request under way; NULL: none */
    trib_timer timer;
    bool is_stopped;
};

void trib_sim_store_init(trib_sim_store *self, trib_sim *sim)
{
    *self = (trib_sim_store){.sim = sim, .random = trib_sim_stream_make(sim, 0x5709e), .delay_ns = 1000000};
}

trib_sim_store_handle *trib_sim_store_open(trib_sim_store *store)
{
    trib_sim_store_handle *self = calloc(1, sizeof *self);
    if (self != NULL) {
        self->store = store;
    }
    return self;
}

void trib_sim_store_free(trib_sim_store_handle *handle)
{
    free(handle);
}

static void write_sign(const trib_sim_store_handle *self, const trib_store_request *request)
{
    trib_sim_store *store = self->store;
    snprintf(store->sign, sizeof store->sign, "%s", request->sign);
    store->sign_of = self;
    store->fades_ns = trib_sim_now(store->sim) + request->fades_ns;
}

static void read_record(trib_sim_store *store, trib_store_request *request)
{
    const bool is_garbage = store->lie == TRIB_SIM_LIE_GARBAGE && store->revision != 0;
    request->revision = store->lie == TRIB_SIM_LIE_LOSES ? 0 : store->revision;
    snprintf(request->record, sizeof request->record, "%s",
             is_garbage                         ? "{\"kind\": \"lease\"}"
             : store->lie == TRIB_SIM_LIE_STALE ? store->first
                                                : store->record);
}

static void swap(const trib_sim_store_handle *self, trib_store_request *request)
{
    trib_sim_store *store = self->store;
    request->is_swapped = request->revision == store->revision || store->lie == TRIB_SIM_LIE_TWO_WINS;
    if (request->is_swapped && store->lie != TRIB_SIM_LIE_FORGETS) {
        snprintf(store->record, sizeof store->record, "%s", request->record);
        snprintf(store->first, sizeof store->first, "%s", store->revision == 0 ? store->record : store->first);
        store->revision++;
        store->swaps++;
        write_sign(self, request);
    }
}

static void carry_out(trib_sim_store_handle *self, trib_store_request *request)
{
    trib_sim_store *store = self->store;
    if (store->sign[0] != '\0' && trib_sim_now(store->sim) >= store->fades_ns) {
        store->sign[0] = '\0';
    }
    if (request->kind == TRIB_STORE_SWAP && store->late_of != NULL) {
        swap(store->late_of, &store->late);
        store->late_of = NULL;
    }
    if (request->kind == TRIB_STORE_SWAP) {
        swap(self, request);
    }
    if (request->kind == TRIB_STORE_KEEP) {
        write_sign(self, request);
    } else if (request->kind == TRIB_STORE_GET) {
        snprintf(request->sign, sizeof request->sign, "%s", store->sign);
    }
    read_record(store, request);
}

static int64_t draw_delay(trib_sim_store *store)
{
    return 1 + (int64_t)trib_sim_draw_below(&store->random, (uint64_t)store->delay_ns + 1);
}

static void answer(trib_reactor *reactor, trib_timer *timer)
{
    trib_sim_store_handle *self = timer->user;
    trib_store_request *request = self->request;
    self->request = NULL;
    trib_reactor_post(reactor, &request->done);
}

static void arrive(trib_reactor *reactor, trib_timer *timer)
{
    trib_sim_store_handle *self = timer->user;
    trib_sim_store *store = self->store;
    trib_store_request *request = self->request;
    const bool is_reached = !store->is_away && (store->reaches == NULL || store->reaches(store->user, reactor));
    const bool is_late = is_reached && request->kind == TRIB_STORE_SWAP && store->late_one_in > 0 &&
                         trib_sim_draw_one_in(&store->random, store->late_one_in);
    if (is_late) {
        store->late = *request;
        store->late_of = self;
    } else if (is_reached) {
        carry_out(self, request);
    }
    request->is_answered =
        is_reached && !is_late && !(store->lost_one_in > 0 && trib_sim_draw_one_in(&store->random, store->lost_one_in));
    snprintf(request->why, sizeof request->why, "no answer within %.1f s", (double)PATIENCE_NS / 1e9);
    timer->fired = answer;
    trib_timer_arm(reactor, timer, trib_now(reactor) + (request->is_answered ? draw_delay(store) : PATIENCE_NS));
}

static void begin(void *handle, trib_store_request *request)
{
    trib_sim_store_handle *self = handle;
    trib_assert(self->request == NULL && !self->is_stopped);
    self->request = request;
    self->timer.fired = arrive;
    self->timer.user = self;
    trib_timer_arm(request->reactor, &self->timer, trib_now(request->reactor) + draw_delay(self->store));
}

static void stop(void *handle, bool takes_sign)
{
    trib_sim_store_handle *self = handle;
    if (self->request != NULL) {
        trib_timer_stop(self->request->reactor, &self->timer);
        self->request = NULL;
    }
    if (self->store->sign_of == self && takes_sign) {
        self->store->sign[0] = '\0';
        self->store->sign_of = NULL;
    }
    self->is_stopped = true;
}

const trib_store_ops trib_sim_store_ops = {.begin = begin, .stop = stop};
