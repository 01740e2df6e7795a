/* config.h - a configuration: checked for trib_engine_create, and taken from the environment. */
#ifndef TRIB_API_CONFIG_CONFIG_H
#define TRIB_API_CONFIG_CONFIG_H

#include "engine/base/log.h"

/* TRIB_INVALID unless trib_config_init filled it for a struct of this library's size. */
TRIB_CHECKED trib_status trib_config_check_size(const trib_config *given, trib_error *error);
/* Checks every field and puts defaults where there is 0 or NULL. *checked_out is written on success only;
 * TRIB_INVALID with a text that names the field, its value and what is allowed. */
TRIB_CHECKED trib_status trib_config_check(const trib_config *given, trib_config *checked_out, trib_error *error);

/* Rank, counts, coordinator and the job's name from the launcher's variables. TRIB_INVALID if one of them makes no
 * sense, or the launcher has said that there are several processes, but not which of them this one is. */
TRIB_CHECKED trib_status trib_config_take_launcher(trib_config *config, trib_error *error);

/* True if config->coordinator comes from trib_config_take_launcher, and not from the program. */
bool trib_config_is_launchers_address(const trib_config *config);

/* This process's number among the job's processes on this machine, and their count, as the launcher says; false, and 0
 * of 1, if none does. */
bool trib_config_local(uint32_t *index_out, uint32_t *count_out);
/* TRIB_INVALID, with its name, if TRIB_LOCAL_RANK, TRIB_LOCAL_COUNT, TRIB_DEVICE_RANK or TRIB_DEVICE_COUNT makes no
 * sense: these are set by hand. */
TRIB_CHECKED trib_status trib_config_check_local(trib_error *error);
/* Takes the device from the value of TRIB_DEVICE; its ranks come from TRIB_DEVICE_RANK and TRIB_DEVICE_COUNT, else from
 * trib_config_local. NULL: changes nothing. */
void trib_config_take_device(trib_config *config, const char *device);

/* The token: the first line of `token` (TRIB_TOKEN), else of the file at `path` (TRIB_TOKEN_FILE); both NULL: as it
 * was. The text stays until this thread's next call. */
TRIB_CHECKED trib_status trib_config_take_token(trib_config *config, const char *token, const char *path,
                                                trib_error *error);

/* Logs a warning for each TRIB_ variable that is no setting, with the name that was probably meant. */
void trib_config_warn_of_unknown_names(const trib_config *config);

#endif
