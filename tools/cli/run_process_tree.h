/*
 * run_process_tree.h - the processes of `tributary run` and all their descendants.
 *
 * A worker is often a shell script, and a shell that is ended leaves its children behind. So run adopts orphaned
 * descendants, and signals reach all of them.
 */
#ifndef TRIB_TOOLS_CLI_RUN_PROCESS_TREE_H
#define TRIB_TOOLS_CLI_RUN_PROCESS_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Makes this process the parent of orphaned descendants from now on. */
void process_tree_adopt(void);
/* Sends the signal to all descendants but those of the spared process group (0: none is spared). Returns how many
 * got it; 0 where /proc cannot be read. */
size_t process_tree_signal(int number, pid_t spared_group);
/* Returns the number of running descendants, and writes the first of them into text: "sleep (4711), python3
 * (4712)". */
size_t process_tree_describe(char *text, size_t size);

#endif
