/*
 * fork.h - closes in a forked child the descriptors of engines, and makes engines foreign there.
 *
 * A child that does not exec has a copy of the parent's memory and of its descriptors, but none of its threads. Nothing
 * of an engine works there, and what is worse, connections and addresses would live as long as the child: peers would
 * not see that the parent has died. So a handler, which runs in the child before fork returns, closes the descriptors
 * that engines own and makes every engine there foreign. Why this needs state of the process's:
 * docs/decisions/0003-fork.md.
 *
 * Invariants
 * - The handler takes no lock and reads atomics only: it does not matter what other threads were doing at the fork.
 * - A descriptor is disowned before it is closed. Afterwards its number may be somebody else's.
 */
#ifndef TRIB_ENGINE_BASE_FORK_H
#define TRIB_ENGINE_BASE_FORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* From now on forks of this process are seen. May be called any number of times. False: out of memory. */
bool trib_fork_watch(void);

/* A number for this process: another in a child than in its parent. */
uint32_t trib_fork_process(void);

/* Any thread. The descriptor is closed in children, until it is disowned. */
void trib_fork_own(int fd);
void trib_fork_disown(int fd);
/* Any thread. Memory that maps the beginning of that file, which other processes map too. A child gets it as private
 * memory: the parent does not see what the child writes. The file is owned. False: there is no room to remember the
 * memory. */
bool trib_fork_own_memory(void *base, size_t size, int fd);
void trib_fork_disown_memory(void *base);
/* The descriptor, which is owned, is watched by a loop of the caller's. A child may go on running that loop, and libev
 * ends a process in which a watched descriptor is not open: so in the child an eventfd that is always ready takes its
 * number. */
void trib_fork_stand_in(int fd);

/* Disowns and closes. A socket is shut down first, so that it ends even if a process has a copy in which no handler
 * ran. */
void trib_fork_close(int fd);
void trib_fork_close_socket(int fd);

#endif
