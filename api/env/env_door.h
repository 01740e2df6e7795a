/* env_door.h - see env_door.c, and trib_env.door_make and those with it. */
#ifndef TRIB_API_ENV_DOOR_H
#define TRIB_API_ENV_DOOR_H

#include "engine/local_group/group_door.h"

trib_door_page *trib_env_door_make(char name[TRIB_DOOR_NAME_SIZE], int *fd_out);
trib_door_page *trib_env_door_find(const char *name, const unsigned char *id);
void trib_env_door_drop(trib_door_page *page, int fd);

#endif
