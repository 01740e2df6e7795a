/*
 * job_settings.h - the settings that the coordinator's process decides for the whole job ([job] in trib_config).
 *
 * JOIN carries a member's own values. They have no effect, so the coordinator says which ones differ: somebody set them
 * for some processes only.
 */
#ifndef TRIB_ENGINE_JOB_SETTINGS_H
#define TRIB_ENGINE_JOB_SETTINGS_H

#include "engine/wire/wire.h"

#define TRIB_JOB_SETTINGS 8u

/* Values in the order of the table in job_settings.c. */
typedef struct trib_job_settings {
    uint64_t values[TRIB_JOB_SETTINGS];
} trib_job_settings;

trib_job_settings trib_job_settings_of(const trib_config *config);
void trib_job_settings_put(trib_writer *writer, const trib_job_settings *settings);
void trib_job_settings_get(trib_reader *reader, trib_job_settings *settings_out);
/* Writes "NAME (VARIABLE) is X there and Y in the job" for each setting that differs and whose bit in *told_io is not
 * set, and sets its bit. "": nothing to tell. */
void trib_job_settings_compare(const trib_job_settings *theirs, const trib_job_settings *ours, uint32_t *told_io,
                               char *text, size_t size);

#endif
