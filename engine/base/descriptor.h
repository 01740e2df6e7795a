/*
 * descriptor.h - keeps the library's descriptors off the numbers 0, 1 and 2.
 *
 * A host may have closed its standard input, output or error. The kernel gives out the lowest free number, so a socket
 * of the library would become the host's standard error, and what the host prints would go to a peer.
 */
#ifndef TRIB_ENGINE_BASE_DESCRIPTOR_H
#define TRIB_ENGINE_BASE_DESCRIPTOR_H

#include <stdio.h>

#define TRIB_DESCRIPTOR_FIRST 3

/* Every descriptor that the library opens or receives goes through this call at once (tools/lint checks that). Returns
 * the descriptor, or another one for the same file, which a program that the host executes does not get. -1 with errno
 * if fd is negative, or if no number is free; then the descriptor is closed. */
int trib_descriptor_keep(int fd);

/* As fopen(path, "re"). */
FILE *trib_descriptor_open_text(const char *path);

/* Holds the free numbers below TRIB_DESCRIPTOR_FIRST while another library opens descriptors of its own, and those that
 * other threads of the library give back meanwhile. Several threads may have a guard. Any thread. */
void trib_descriptor_guard_begin(void);
void trib_descriptor_guard_end(void); /* leaves errno as it is */

#endif
