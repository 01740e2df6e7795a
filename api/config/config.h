/* config.h - checking a configuration; used by trib_engine_create. */
#ifndef TRIB_API_CONFIG_H
#define TRIB_API_CONFIG_H

#include "engine/base/log.h"

/* Was it filled by trib_config_init, for a struct of this library's size? */
TRIB_CHECKED trib_status trib_config_check_size(const trib_config *given, trib_error *error);
/* Checks every field and puts defaults where there is 0 or NULL. *checked_out is written on success only;
 * TRIB_INVALID with a text that names the field, its value and what is allowed. */
TRIB_CHECKED trib_status trib_config_check(const trib_config *given, trib_config *checked_out, trib_error *error);

/* Which of how many processes of the job on this machine this one is, as its launcher says; false, and 0 of 1, if none
 * does. */
bool trib_config_local(uint32_t *index_out, uint32_t *count_out);
/* No launcher has said which process this is, but has one said that there are several? TRIB_INVALID, naming the variable. */
TRIB_CHECKED trib_status trib_config_check_alone(trib_error *error);
/* Can the variables that say so in place of a launcher be understood? TRIB_INVALID, naming the one that cannot. */
TRIB_CHECKED trib_status trib_config_check_local(trib_error *error);
/* TRIB_DEVICE, with what trib_config_local says; NULL: nothing. */
void trib_config_take_device(trib_config *config, const char *device);

/* The token: the first line of `token` (TRIB_TOKEN), else of the file at `path` (TRIB_TOKEN_FILE); both NULL: as it was. The
 * text stays until this thread's next call. */
TRIB_CHECKED trib_status trib_config_take_token(trib_config *config, const char *token, const char *path,
                                                trib_error *error);

/* A line of warning, where the configuration's go, for each TRIB_ variable that is no setting, with the one that is
 * meant. */
void trib_config_check_names(const trib_config *config);

#endif
