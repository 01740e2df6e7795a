/* job_settings.c - see job_settings.h. */
#include "engine/membership/job_settings.h"

#include <stdio.h>

static const struct {
    const char *name, *variable;
} rows[TRIB_JOB_SETTINGS] = {
    {"colocate", "TRIB_COLOCATE"},
    {"partition_bytes", "TRIB_PARTITION_BYTES"},
    {"chunk_bytes", "TRIB_CHUNK_BYTES"},
    {"sum_order", "TRIB_SUM_ORDER"},
    {"peer_timeout_ns", "TRIB_PEER_TIMEOUT"},
    {"local_sum", "TRIB_LOCAL_SUM"},
    {"shares", "TRIB_SHARES"},
    {"survive", "TRIB_SURVIVE"},
};

trib_job_settings trib_job_settings_of(const trib_config *config)
{
    return (trib_job_settings){{(uint64_t)config->colocate, config->partition_bytes, config->chunk_bytes,
                                (uint64_t)config->sum_order, (uint64_t)config->peer_timeout_ns,
                                (uint64_t)config->local_sum, (uint64_t)config->shares, (uint64_t)config->survive}};
}

void trib_job_settings_put(trib_writer *writer, const trib_job_settings *settings)
{
    for (uint32_t i = 0; i < TRIB_JOB_SETTINGS; i++) {
        trib_put_u64(writer, settings->values[i]);
    }
}

void trib_job_settings_get(trib_reader *reader, trib_job_settings *settings_out)
{
    for (uint32_t i = 0; i < TRIB_JOB_SETTINGS; i++) {
        settings_out->values[i] = trib_get_u64(reader);
    }
}

void trib_job_settings_compare(const trib_job_settings *theirs, const trib_job_settings *ours, uint32_t *told_io,
                               char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < TRIB_JOB_SETTINGS; i++) {
        if (theirs->values[i] == ours->values[i] || (*told_io >> i & 1) != 0) {
            continue;
        }
        *told_io |= 1u << i;
        const int length = snprintf(text + used, size - used, "%s%s (%s) is %llu there and %llu in the job",
                                    used == 0 ? "" : ", ", rows[i].name, rows[i].variable,
                                    (unsigned long long)theirs->values[i], (unsigned long long)ours->values[i]);
        used += length > 0 && (size_t)length < size - used ? (size_t)length : size - used - 1;
    }
}
