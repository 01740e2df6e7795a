/*
 * fork.h - what a fork copies of an engine, and what is done about it in the child.
 *
 * A child that does not exec has a copy of the parent's memory and of its descriptors, but none of its threads. Nothing
 * of an engine works there, and what is worse, connections and addresses would live as long as the child: peers would
 * not see that the parent has died. So a handler, which runs in the child before fork returns, closes the descriptors
 * that engines own and makes every engine there foreign. Why this needs state of the process's: docs/decisions/0003-fork.md.
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

/* From now on forks of this process are seen. Any number of times. False: there was no memory. */
bool trib_fork_watch(void);

/* Which process this is: another number in a child than in its parent. */
uint32_t trib_fork_process(void);

/* Any thread: the descriptor is not for children. */
void trib_fork_own(int fd);
void trib_fork_disown(int fd);
/* Any thread: memory that maps the beginning of that file for others too. A child gets it as if it were its own: what it writes is
 * its own, and of the rest it sees what the parent has. The file is owned. False: there is no room to remember it. */
bool trib_fork_own_memory(void *base, size_t size, int fd);
void trib_fork_disown_memory(void *base);
/* It is owned, and a loop that is not the engine's watches it, which the child may go on running: libev ends a process in which
 * such a descriptor is not open. There something else takes its place, which is ready for everything at once. */
void trib_fork_stand_in(int fd);

/* Disowns and closes. A socket is shut down first, so that it ends even if a process has it that no handler ran in. */
void trib_fork_close(int fd);
void trib_fork_close_socket(int fd);

#endif
