/* hash.h - includes uthash. By default uthash ends the process when memory runs out. Here an element that could not be
 * added has hh.tbl NULL instead. */
#ifndef TRIB_ENGINE_BASE_HASH_H
#define TRIB_ENGINE_BASE_HASH_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#endif
