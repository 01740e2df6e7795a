/*
 * summation.c - keys, rounds and who has contributed; the arithmetic along the tree is in sum_tree.c.
 *
 * A key is remembered by its last finished round and at most two live rounds. Rounds, chunk records and buffers come from free
 * lists that grow to what the job needs and stay, so the steady state allocates nothing.
 */
#include "engine/summation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sum_tree.h"

#define CHUNKS_MAX 65536u

/* ---- Keys ---- */

static uint64_t key_of(const trib_contribution *what)
{
    return (uint64_t)what->tensor << 32 | what->partition;
}

static sum_key *find_key(trib_summation *self, const trib_contribution *what)
{
    uint64_t id = key_of(what);
    sum_key *key = NULL;
    HASH_FIND(hh, self->keys, &id, sizeof id, key);
    if (key == NULL) {
        key = calloc(1, sizeof *key);
        if (key != NULL) {
            key->id = id;
            HASH_ADD(hh, self->keys, id, sizeof key->id, key);
        }
    }
    return key;
}

static sum_round *live_round(const sum_key *key, uint32_t round)
{
    for (sum_round *at = key->live; at != NULL; at = at->next) {
        if (at->what.round == round) {
            return at;
        }
    }
    return NULL;
}

static void free_round(sum_round *round)
{
    free(round->chunks);
    free(round->nodes);
    free(round->arrived);
    free(round->told);
    free(round);
}

/* A round with room for that many chunks, from the free list if one fits. */
static sum_round *take_round(trib_summation *self, uint32_t chunk_count)
{
    uint32_t n = self->config.contributor_count;
    for (sum_round **at = &self->free_rounds; *at != NULL; at = &(*at)->next) {
        if ((*at)->capacity >= chunk_count) {
            sum_round *found = *at;
            *at = found->next;
            return found;
        }
    }
    sum_round *round = calloc(1, sizeof *round);
    if (round == NULL) {
        return NULL;
    }
    round->capacity = chunk_count;
    round->chunks = calloc(chunk_count, sizeof *round->chunks);
    round->nodes = calloc((size_t)chunk_count * n, sizeof *round->nodes);
    round->arrived = calloc((size_t)chunk_count * n, 1);
    round->told = calloc(n, 1);
    if (round->chunks == NULL || round->nodes == NULL || round->arrived == NULL || round->told == NULL) {
        free_round(round);
        return NULL;
    }
    return round;
}

static sum_round *begin_round(trib_summation *self, sum_key *key, const trib_contribution *what)
{
    sum_round *round = take_round(self, what->chunk_count);
    if (round == NULL) {
        return NULL;
    }
    uint32_t n = self->config.contributor_count;
    memset(round->chunks, 0, what->chunk_count * sizeof *round->chunks);
    memset(round->nodes, 0, (size_t)what->chunk_count * n * sizeof *round->nodes);
    memset(round->arrived, 0, (size_t)what->chunk_count * n);
    memset(round->told, 0, n);
    round->key = key;
    round->what = *what;
    round->refused = TRIB_OK;
    round->told_count = 0;
    round->landings = 0;
    round->references = 0;
    round->chunks_done = 0;
    round->began_ns = trib_now(self->config.reactor);
    round->next = key->live;
    key->live = round;
    self->live_rounds++;
    return round;
}

/* The round is over when everybody has been served, or told, and nothing of it is on its way. */
static void try_end_round(trib_summation *self, sum_round *round)
{
    bool served = round->refused == TRIB_OK ? round->chunks_done == round->what.chunk_count
                                            : round->told_count == self->config.contributor_count;
    if (!served || round->references > 0 || round->landings > 0) {
        return;
    }
    sum_key *key = round->key;
    for (sum_round **at = &key->live; *at != NULL; at = &(*at)->next) {
        if (*at == round) {
            *at = round->next;
            break;
        }
    }
    if (round->what.round > key->finished) {
        key->finished = round->what.round;
    }
    if (round->refused != TRIB_OK && round->what.round > key->refused) {
        key->refused = round->what.round;
    }
    trib_sum_round_clear(self, round);
    round->next = self->free_rounds;
    self->free_rounds = round;
    self->live_rounds--;
}

/* ---- Refusing ---- */

static void tell(trib_summation *self, sum_round *round, uint32_t contributor)
{
    if (!round->told[contributor]) {
        round->told[contributor] = 1;
        round->told_count++;
        self->config.refused(self->config.user, contributor, &round->what, round->refused, round->text);
    }
}

static bool has_shown_up(const trib_summation *self, const sum_round *round, uint32_t contributor)
{
    for (uint32_t chunk = 0; chunk < round->what.chunk_count; chunk++) {
        if (round->arrived[(size_t)chunk * self->config.contributor_count + contributor]) {
            return true;
        }
    }
    return false;
}

static void refuse_round(trib_summation *self, sum_round *round, trib_status status, const char *text)
{
    if (round->refused != TRIB_OK) {
        return;
    }
    round->refused = status;
    snprintf(round->text, sizeof round->text, "%s", text);
    for (uint32_t i = 0; i < self->config.contributor_count; i++) {
        if (has_shown_up(self, round, i)) {
            tell(self, round, i);
        }
    }
    trib_sum_round_clear(self, round);
}

static void describe(const trib_contribution *what, char *text, size_t size)
{
    if (what->exchange == TRIB_EXCHANGE_BROADCAST) {
        snprintf(text, size, "rank %u says broadcast of %s from rank %u", what->contributor, trib_dtype_name(what->dtype),
                 what->root);
    } else {
        snprintf(text, size, "rank %u says %s of %s", what->contributor, trib_reduce_name(what->reduce),
                 trib_dtype_name(what->dtype));
    }
}

static bool agrees(const sum_round *round, const trib_contribution *what)
{
    const trib_contribution *first = &round->what;
    return first->exchange == what->exchange && first->dtype == what->dtype && first->reduce == what->reduce &&
           first->root == what->root && first->chunk_count == what->chunk_count;
}

static void check_agreement(trib_summation *self, sum_round *round, const trib_contribution *what)
{
    uint32_t known = what->chunk < round->what.chunk_count ? round->chunks[what->chunk].size : 0;
    bool sized = what->chunk < round->what.chunk_count && round->chunks[what->chunk].has_size;
    if (round->refused != TRIB_OK || (agrees(round, what) && (!sized || known == what->size))) {
        return;
    }
    char one[96], other[96], text[TRIB_ERROR_TEXT_SIZE];
    describe(&round->what, one, sizeof one);
    describe(what, other, sizeof other);
    snprintf(text, sizeof text, "the workers disagree in round %u: %s (%u chunks), %s (%u chunks of %u bytes)",
             what->round, one, round->what.chunk_count, other, what->chunk_count, what->size);
    refuse_round(self, round, TRIB_MISMATCH, text);
}

/* ---- Contributions ---- */

static trib_status check_bounds(const trib_summation *self, const trib_contribution *what, trib_error *error)
{
    if (what->contributor >= self->config.contributor_count || what->chunk_count == 0 ||
        what->chunk_count > CHUNKS_MAX || what->chunk >= what->chunk_count || what->size > self->config.chunk_bytes ||
        what->root >= self->config.contributor_count) {
        return trib_error_set(error, TRIB_PROTOCOL, "impossible contribution: rank %u, chunk %u of %u, %u bytes",
                              what->contributor, what->chunk, what->chunk_count, what->size);
    }
    return TRIB_OK;
}

static trib_status find_round(trib_summation *self, const trib_contribution *what, sum_round **round_out,
                              trib_error *error)
{
    trib_status status = check_bounds(self, what, error);
    if (status != TRIB_OK) {
        return status;
    }
    sum_key *key = find_key(self, what);
    sum_round *round = key == NULL ? NULL : live_round(key, what->round);
    if (key == NULL) {
        return TRIB_AGAIN;
    }
    if (round == NULL && what->round <= key->refused) {
        *round_out = NULL;
        return TRIB_OK; /* the rest of what was on its way when the round was refused */
    }
    if (round == NULL) {
        uint32_t newest = key->finished;
        for (sum_round *at = key->live; at != NULL; at = at->next) {
            newest = at->what.round > newest ? at->what.round : newest;
        }
        if (what->round <= key->finished || what->round > newest + 1) {
            return trib_error_set(error, TRIB_PROTOCOL, "rank %u contributes to round %u of a key whose round is %u",
                                  what->contributor, what->round, newest);
        }
        round = begin_round(self, key, what);
        if (round == NULL) {
            return TRIB_AGAIN;
        }
    }
    *round_out = round;
    check_agreement(self, round, what);
    return TRIB_OK;
}

static unsigned char *arrival_mark(const trib_summation *self, const sum_round *round, const trib_contribution *what)
{
    return &round->arrived[(size_t)what->chunk * self->config.contributor_count + what->contributor];
}

static trib_status check_duplicate(const trib_summation *self, const sum_round *round, const trib_contribution *what,
                                   trib_error *error)
{
    if (round->refused == TRIB_OK && *arrival_mark(self, round, what) != 0) {
        return trib_error_set(error, TRIB_PROTOCOL, "rank %u contributes twice to chunk %u of round %u",
                              what->contributor, what->chunk, what->round);
    }
    return TRIB_OK;
}

trib_status trib_summation_landing(trib_summation *self, const trib_contribution *what, void **buffer_out,
                                   trib_error *error)
{
    sum_round *round = NULL;
    trib_status status = find_round(self, what, &round, error);
    if (status == TRIB_OK && round != NULL) {
        status = check_duplicate(self, round, what, error);
    }
    if (status != TRIB_OK) {
        return status;
    }
    sum_block *block = trib_sum_block_take(self);
    if (block == NULL) {
        return TRIB_AGAIN;
    }
    block->landing = round;
    if (round != NULL) {
        round->landings++;
    }
    *buffer_out = block->data;
    return TRIB_OK;
}

void trib_summation_abandon(trib_summation *self, void *buffer)
{
    sum_block *block = trib_sum_block_of(self, buffer);
    sum_round *round = block->landing;
    block->landing = NULL;
    trib_sum_block_give(self, block);
    if (round != NULL) {
        round->landings--;
        try_end_round(self, round);
    }
}

/* Everything that has to be known of the chunk is there: it counts. block: its payload, NULL if none travels. */
static void take_in(trib_summation *self, sum_round *round, const trib_contribution *what, sum_block *block)
{
    if (round->refused != TRIB_OK) {
        if (block != NULL) {
            trib_sum_block_give(self, block);
        }
        tell(self, round, what->contributor);
        try_end_round(self, round);
        return;
    }
    sum_chunk *chunk = &round->chunks[what->chunk];
    *arrival_mark(self, round, what) = 1;
    chunk->size = what->size;
    chunk->has_size = true;
    chunk->arrived++;
    if (block != NULL) {
        self->bytes_in += what->size;
    }
    trib_sum_chunk_add(self, round, what, block);
    if (chunk->arrived == self->config.contributor_count) {
        round->chunks_done++;
        try_end_round(self, round);
    }
}

trib_status trib_summation_arrived(trib_summation *self, const trib_contribution *what, void *buffer,
                                   trib_error *error)
{
    sum_block *block = buffer == NULL ? NULL : trib_sum_block_of(self, buffer);
    sum_round *round = NULL;
    trib_status status = TRIB_OK;
    if (block != NULL) {
        round = block->landing;
        block->landing = NULL;
    } else {
        status = find_round(self, what, &round, error);
    }
    if (status == TRIB_OK && round == NULL) {
        if (block != NULL) {
            trib_sum_block_give(self, block);
        }
        return TRIB_OK;
    }
    if (block != NULL) {
        round->landings--;
    }
    if (status == TRIB_OK) {
        status = check_duplicate(self, round, what, error);
    }
    if (status != TRIB_OK) {
        if (block != NULL) {
            trib_sum_block_give(self, block);
            try_end_round(self, round);
        }
        return status == TRIB_AGAIN ? trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a round") : status;
    }
    take_in(self, round, what, block);
    return TRIB_OK;
}

trib_status trib_summation_lent(trib_summation *self, const trib_contribution *what, const void *payload,
                                trib_error *error)
{
    void *buffer = NULL;
    trib_status status = trib_summation_landing(self, what, &buffer, error);
    if (status == TRIB_AGAIN) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for a chunk");
    }
    if (status != TRIB_OK) {
        return status;
    }
    memcpy(buffer, payload, what->size);
    trib_charge(self->config.reactor, TRIB_COST_COPY, what->size);
    return trib_summation_arrived(self, what, buffer, error);
}

trib_status trib_summation_withdraw(trib_summation *self, const trib_contribution *given, trib_status why,
                                    const char *text)
{
    trib_contribution what = *given;
    trib_error error;
    sum_round *round = NULL;
    sum_key *key = find_key(self, &what);
    if (key == NULL || what.round <= key->finished) {
        return key == NULL ? TRIB_NO_MEMORY : TRIB_OK;
    }
    trib_status status = find_round(self, &what, &round, &error);
    if (status != TRIB_OK || round == NULL) {
        return status;
    }
    bool complete = true;
    for (uint32_t chunk = 0; chunk < round->what.chunk_count; chunk++) {
        complete = complete && round->arrived[(size_t)chunk * self->config.contributor_count + what.contributor];
    }
    if (!complete || round->refused != TRIB_OK) {
        refuse_round(self, round, why, text);
        if (!round->told[what.contributor]) {
            round->told[what.contributor] = 1; /* it knows */
            round->told_count++;
        }
        try_end_round(self, round);
    }
    return TRIB_OK;
}

void trib_summation_sent(trib_summation *self, trib_sum_buffer *sum)
{
    sum_round *round = sum->slot;
    trib_assert(round->references > 0);
    round->references--;
    trib_sum_buffer_unref(self, sum);
    try_end_round(self, round);
}

/* ---- Looking ---- */

static uint32_t count_missing(const trib_summation *self, const sum_round *round, uint32_t *lowest)
{
    uint32_t n = self->config.contributor_count, missing = 0;
    for (uint32_t i = n; i-- > 0;) {
        for (uint32_t chunk = 0; chunk < round->what.chunk_count; chunk++) {
            if (!round->arrived[(size_t)chunk * n + i]) {
                missing++;
                *lowest = i;
                break;
            }
        }
    }
    return missing;
}

void trib_summation_stalls(trib_summation *self, int64_t older_than_ns, uint32_t limit,
                           void (*stalled)(void *user, uint32_t receiver, const trib_contribution *what,
                                           uint32_t missing_rank, uint32_t missing_count))
{
    int64_t now_ns = trib_now(self->config.reactor);
    if (self->live_rounds == 0) {
        return;
    }
    sum_key *key, *next;
    HASH_ITER(hh, self->keys, key, next)
    {
        for (sum_round *round = key->live; round != NULL && limit > 0; round = round->next) {
            uint32_t lowest = 0, missing = 0;
            if (round->refused != TRIB_OK || now_ns - round->began_ns < older_than_ns ||
                (missing = count_missing(self, round, &lowest)) == 0) {
                continue;
            }
            for (uint32_t i = 0; i < self->config.contributor_count && limit > 0; i++) {
                if (has_shown_up(self, round, i)) {
                    stalled(self->config.user, i, &round->what, lowest, missing);
                    limit--;
                }
            }
        }
    }
}

bool trib_summation_is_idle(const trib_summation *self)
{
    return self->live_rounds == 0;
}

uint64_t trib_summation_bytes_in(const trib_summation *self)
{
    return self->bytes_in;
}

uint64_t trib_summation_bytes_out(const trib_summation *self)
{
    return self->bytes_out;
}

/* ---- Life ---- */

trib_status trib_summation_create(const trib_summation_config *config, trib_summation **out)
{
    trib_assert(config->contributor_count >= 1 && config->contributor_count <= TRIB_CONTRIBUTORS_MAX);
    trib_summation *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return TRIB_NO_MEMORY;
    }
    self->config = *config;
    *out = self;
    return TRIB_OK;
}

void trib_summation_destroy(trib_summation *self)
{
    if (self == NULL) {
        return;
    }
    sum_key *key, *next;
    HASH_ITER(hh, self->keys, key, next)
    {
        while (key->live != NULL) {
            sum_round *round = key->live;
            key->live = round->next;
            trib_sum_round_clear(self, round);
            free_round(round);
        }
        HASH_DEL(self->keys, key);
        free(key);
    }
    while (self->free_rounds != NULL) {
        sum_round *round = self->free_rounds;
        self->free_rounds = round->next;
        free_round(round);
    }
    trib_sum_blocks_free(self);
    free(self);
}
