/* hash.h - uthash, which by default ends the process when memory runs out; here an element that was not added has
 * hh.tbl NULL. */
#ifndef TRIB_ENGINE_BASE_HASH_H
#define TRIB_ENGINE_BASE_HASH_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#endif
