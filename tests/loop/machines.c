/* machines.c - see machines.h. */
#include "tests/loop/machines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static machines_shape next;
static char hosts[JOB_MEMBERS_MAX][128];

static void tweak(trib_config *config, int member)
{
    const int machine = config->rank >= 0 ? config->rank / next.local : 20 + member;
    const int count = next.hosts > 0 ? next.hosts : 1;
    size_t size = 0;
    for (int i = 0; i < count; i++) {
        size += (size_t)snprintf(hosts[member] + size, sizeof hosts[member] - size, "%s127.0.%d.%d", i > 0 ? "," : "",
                                 (member + i) % count, 1 + machine);
        assert_true(size < sizeof hosts[member]);
    }
    config->listen = hosts[member];
    config->local_sum = next.mode;
    config->reactors = next.reactors;
    config->colocate = next.colocate;
    config->chunk_bytes = 4096;
    config->partition_bytes = 16384;
    config->close_timeout_ns = INT64_C(1000000000);
}

void machines_open(job *jobs, int workers, int servers, machines_shape shape)
{
    next = shape;
    job_open(jobs, workers, servers, tweak);
}

trib_engine_info machines_info(trib_engine *engine)
{
    trib_engine_info info = {.struct_size = sizeof info};
    assert_int_equal(trib_engine_get_info(engine, &info), TRIB_OK);
    return info;
}
