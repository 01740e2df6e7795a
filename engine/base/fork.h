/*
 * fork.h - closes the descriptors of engines in a forked child, and makes the engines foreign there.
 *
 * A child that does not exec has a copy of the parent's memory and of its descriptors, but none of its threads. So no
 * part of an engine works there. Worse, connections and addresses would live as long as the child, and peers would not
 * see that the parent has died. A handler therefore runs in the child before fork returns. It closes the descriptors
 * that engines own, and makes every engine foreign. docs/decisions/0003-fork.md explains why this needs state of the
 * process.
 *
 * Invariants
 *
 * - The handler takes no lock and reads only atomics, so the other threads' state at the fork does not matter.
 * - A descriptor is disowned before it is closed. Afterwards its number may belong to somebody else.
 */
#ifndef TRIB_ENGINE_BASE_FORK_H
#define TRIB_ENGINE_BASE_FORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Begins to handle forks of this process. May be called any number of times. Returns false if there is no memory. */
bool trib_fork_watch(void);

/* Returns a number for this process. A child has another number than its parent. */
uint32_t trib_fork_process(void);

/* Any thread: marks the descriptor, which is closed in children until it is disowned. */
void trib_fork_own(int fd);
void trib_fork_disown(int fd);
/* Any thread: marks memory that maps the beginning of that file, which other processes map, too. A child gets it as
 * private memory, so the parent does not see what the child writes. The file is owned as well. Returns false if there
 * is no room to remember the memory. */
bool trib_fork_own_memory(void *base, size_t size, int fd);
void trib_fork_disown_memory(void *base);
/* Marks an owned descriptor that a loop of the caller watches. A child may go on running that loop, and libev ends a
 * process in which a watched descriptor is not open. So in the child an eventfd that is always ready takes the
 * descriptor's number. */
void trib_fork_stand_in(int fd);

/* Disown and close. A socket is shut down first, so that its connection ends even if a process in which no handler ran
 * has a copy. */
void trib_fork_close(int fd);
void trib_fork_close_socket(int fd);

#endif
