/* container_of.h - finds the struct that a member is embedded in. */
#ifndef TRIB_ENGINE_BASE_CONTAINER_OF_H
#define TRIB_ENGINE_BASE_CONTAINER_OF_H

#include <stddef.h>

/* Returns the struct of that type whose `member` is at pointer. The compiler rejects a pointer of another type. */
#define trib_container_of(pointer, type, member)                                                                       \
    ((type *)((char *)(1 ? (pointer) : &((type *)0)->member) - offsetof(type, member)))

#endif
