/* pages.h - pages from the kernel, as extents (extents.h) are made of. Any thread. */
#ifndef TRIB_NUMA_PAGES_H
#define TRIB_NUMA_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Maps zeroed memory aligned to TRIB_EXTENT_BYTES, of which size is a multiple; NULL: there is none. Has the form of
 * trib_arena_params.map. */
void *trib_pages_map(void *user, size_t size);
void trib_pages_unmap(void *user, void *base, size_t size);
/* A file of that size without a name, which can be sealed, and not executed: some systems want that said. -1: errno
 * says why; EFBIG: files' sizes are limited. label: for people who look at maps. */
int trib_pages_file(const char *label, size_t size);

/* As trib_pages_map, but maps a file of trib_pages_file, which another process can map, too, and nobody can make
 * shorter. A child that does not exec has the same pages, but for engine/base/fork.h. NULL also where files or
 * descriptors are limited. */
void *trib_pages_map_shared(size_t size, int *fd_out);
/* Gives the pages back, even if other processes have them mapped, and closes the file. */
void trib_pages_unmap_shared(void *base, size_t size, int fd);
/* Maps trib_pages_map_shared's memory of another process for reading. NULL: it is no such memory, is less than size, or
 * cannot be mapped. */
void *trib_pages_map_foreign(int fd, size_t size);
/* False: not possible; the kernel then chooses the node. */
bool trib_pages_bind(void *base, size_t size, int32_t node);

#endif
