/* sum_aggregator.c - makes a summation, and offers it as an aggregator (aggregator.h). */
#include "engine/aggregate/sum_tree.h"
#include "engine/base/container_of.h"

trib_aggregator *trib_sum_aggregator(trib_summation *self)
{
    return &self->base;
}

trib_summation *trib_sum_aggregator_summation(trib_aggregator *aggregator)
{
    trib_assert(aggregator->ops == &trib_sum_aggregator_ops);
    return trib_container_of(aggregator, trib_summation, base);
}

static const trib_summation *const_of(const trib_aggregator *aggregator)
{
    trib_assert(aggregator->ops == &trib_sum_aggregator_ops);
    return (const trib_summation *)((const char *)aggregator - offsetof(trib_summation, base));
}

static trib_status recv_target(trib_aggregator *self, const trib_contribution *what, void **buffer_out,
                               trib_error *error)
{
    return trib_summation_recv_target(trib_sum_aggregator_summation(self), what, buffer_out, error);
}

static trib_status sum_at(trib_aggregator *self, const trib_contribution *what, void **sum_out, trib_error *error)
{
    return trib_summation_sum_at(trib_sum_aggregator_summation(self), what, sum_out, error);
}

static trib_status take_arrived(trib_aggregator *self, const trib_contribution *what, const trib_arrived *arrived,
                                trib_error *error)
{
    return trib_summation_arrived(trib_sum_aggregator_summation(self), what, arrived, error);
}

static void abandon_buffer(trib_aggregator *self, void *buffer)
{
    trib_summation_abandon(trib_sum_aggregator_summation(self), buffer);
}

static void give_back_sum(trib_aggregator *self, trib_sum_buffer *sum)
{
    trib_summation_sent(trib_sum_aggregator_summation(self), sum);
}

static trib_status withdraw_contributor(trib_aggregator *self, const trib_contribution *what, trib_status why,
                                        const char *text)
{
    return trib_summation_withdraw(trib_sum_aggregator_summation(self), what, why, text);
}

static void scan_stalls(trib_aggregator *self, int64_t older_than_ns, uint32_t limit, trib_stalled *stalled)
{
    trib_summation_stalls(trib_sum_aggregator_summation(self), older_than_ns, limit, stalled);
}

static void refuse_gone(trib_aggregator *self, trib_is_gone *is_gone)
{
    trib_summation_refuse_gone(trib_sum_aggregator_summation(self), is_gone);
}

static void fill_absent(trib_aggregator *self, const trib_contribution *what, trib_is_gone *is_absent)
{
    trib_summation_fill(trib_sum_aggregator_summation(self), what, is_absent);
}

static void notify_waiting(trib_aggregator *self, const trib_contribution *what, trib_waits *notify, void *user)
{
    trib_summation_each_waiting(trib_sum_aggregator_summation(self), what, notify, user);
}

static bool owes_others(const trib_aggregator *self, uint32_t contributor, trib_is_gone *is_gone)
{
    return trib_summation_owes(const_of(self), contributor, is_gone);
}

static void forget_key(trib_aggregator *self, const trib_contribution *what)
{
    trib_summation_forget(trib_sum_aggregator_summation(self), what);
}

static bool is_idle(const trib_aggregator *self)
{
    return trib_summation_is_idle(const_of(self));
}

static void destroy_summation(trib_aggregator *self)
{
    trib_summation_destroy(trib_sum_aggregator_summation(self));
}

const trib_aggregator_ops trib_sum_aggregator_ops = {
    .name = "sum",
    .recv_target = recv_target,
    .sum_at = sum_at,
    .arrived = take_arrived,
    .abandon = abandon_buffer,
    .sent = give_back_sum,
    .withdraw = withdraw_contributor,
    .scan = scan_stalls,
    .refuse_gone = refuse_gone,
    .fill = fill_absent,
    .each_waiting = notify_waiting,
    .owes = owes_others,
    .forget = forget_key,
    .is_idle = is_idle,
    .destroy = destroy_summation,
};

/* ---- Queries ---- */

bool trib_summation_is_idle(const trib_summation *self)
{
    return self->live_rounds == 0;
}

uint32_t trib_summation_keys(const trib_summation *self)
{
    return self->keys.count;
}

/* ---- Opening and closing ---- */

static void *zeroed(size_t size)
{
    return calloc(1, size);
}

trib_status trib_summation_create(const trib_summation_config *config, trib_summation **out)
{
    trib_assert(config->contributor_count >= 1 && config->contributor_count <= TRIB_CONTRIBUTORS_MAX);
    trib_assert(config->chunk_bytes > 0);
    trib_summation *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    self->base.ops = &trib_sum_aggregator_ops;
    self->config = *config;
    self->memory_alloc = zeroed;
    const trib_status status = trib_sum_memory_init(self);
    if (status != TRIB_OK) {
        free(self);
        return status;
    }
    *out = self;
    return TRIB_OK;
}

void trib_summation_destroy(trib_summation *self)
{
    if (self != NULL) {
        trib_assert_slow(trib_sum_memory_is_consistent(self));
        trib_sum_memory_free(self);
        free(self->neutral);
        free(self);
    }
}
