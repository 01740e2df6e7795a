/* hash.h - includes uthash. By default uthash ends the process when memory runs out. Here an element that could not be
 * added has hh.tbl NULL instead. */
#ifndef TRIB_ENGINE_BASE_HASH_H
#define TRIB_ENGINE_BASE_HASH_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#ifdef __clang_analyzer__
/* clang's analyzer does not see through uthash that the head of a hash changes, and reports uses of freed memory. A
 * function that may do anything stands in for it. */
void trib_hash_take_out(void *head, void *element);
#undef HASH_DEL
#define HASH_DEL(head, element) trib_hash_take_out(&(head), element)
#endif

#endif
