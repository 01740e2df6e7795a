/* container_of.h - from a member to the struct that it is embedded in. */
#ifndef TRIB_ENGINE_BASE_CONTAINER_OF_H
#define TRIB_ENGINE_BASE_CONTAINER_OF_H

#include <stddef.h>

/* The struct of that type whose `member` is at pointer. The compiler refuses a pointer of another type. */
#define trib_container_of(pointer, type, member)                                                                       \
    ((type *)((char *)(1 ? (pointer) : &((type *)0)->member) - offsetof(type, member)))

#endif
