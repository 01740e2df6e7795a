/*
 * run_kin.h - the processes of `tributary run`, those that they started, and so on.
 *
 * A worker is often a shell script, and a shell that is ended leaves behind what it started. So run adopts what its
 * processes leave, and signals reach all.
 */
#ifndef TRIB_TOOLS_RUN_KIN_H
#define TRIB_TOOLS_RUN_KIN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* From here on this process is the parent of what its processes leave behind. */
void run_kin_adopt(void);
/* To all, but for those of that process group (0: none of it is); how many that were. Where /proc cannot be read nobody is
 * found. */
size_t run_kin_signal(int number, pid_t spared_group);
/* How many there are that have not ended; the first of them are written out: "sleep (4711), python3 (4712)". */
size_t run_kin_name(char *text, size_t size);

#endif
