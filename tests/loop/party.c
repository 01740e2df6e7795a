/* party.c - see party.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/loop/party.h"

void party_small_pieces(trib_config *config, int member)
{
    (void)member;
    config->chunk_bytes = CHUNK;
    config->partition_bytes = 2 * CHUNK;
    config->reactors = 2;
    config->op_timeout_ns = INT64_C(60000000000);
}

void party_dedicated(trib_config *config, int member)
{
    party_small_pieces(config, member);
    config->colocate = TRIB_COLOCATE_OFF;
}

void party_all_workers(party *self)
{
    self->count = (uint32_t)self->jobs.worker_count;
    for (uint32_t i = 0; i < self->count; i++) {
        self->ranks[i] = (int32_t)i;
        self->groups[i] = NULL;
    }
}

void party_make_group(party *self, const char *name, const int32_t *ranks, uint32_t count)
{
    self->count = count;
    for (uint32_t i = 0; i < count; i++) {
        trib_group_desc desc;
        trib_group_desc_init(&desc, sizeof desc);
        desc.name = name;
        desc.ranks = ranks;
        desc.rank_count = count;
        self->ranks[i] = ranks[i];
        trib_error error;
        if (trib_group_create(self->jobs.engines[ranks[i]], &desc, &self->groups[ranks[i]], &error) != TRIB_OK) {
            fail_msg("%s", error.text);
        }
        assert_int_equal(trib_group_rank(self->groups[ranks[i]]), i);
        assert_int_equal(trib_group_size(self->groups[ranks[i]]), count);
    }
}

trib_engine *party_engine_of(const party *self, uint32_t i)
{
    return self->jobs.engines[self->ranks[i]];
}

trib_tensor *party_declare(const party *self, uint32_t i, trib_tensor_desc desc)
{
    trib_tensor *tensor = NULL;
    trib_error error;
    desc.struct_size = sizeof desc;
    desc.group = self->groups[self->ranks[i]];
    if (trib_tensor_declare(party_engine_of(self, i), &desc, &tensor, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return tensor;
}

trib_op *party_submit(const party *self, uint32_t i, party_operation run, trib_op_params params)
{
    trib_op *op = NULL;
    trib_error error;
    params.struct_size = sizeof params;
    if (run(party_engine_of(self, i), &params, &op, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return op;
}

void party_succeeds(trib_op *op)
{
    trib_error error;
    if (job_wait(op, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
}

void party_fails_with(trib_op *op, trib_status status, const char *one, const char *other)
{
    trib_error error;
    assert_int_equal(job_wait(op, &error), status);
    if (strstr(error.text, one) == NULL || strstr(error.text, other) == NULL) {
        fail_msg("\"%s\" names neither \"%s\" nor \"%s\"", error.text, one, other);
    }
}
