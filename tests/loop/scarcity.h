/*
 * scarcity.h - memory that runs out on purpose, and a ledger of what is not given back.
 *
 * The program that wraps them (test_alloc_failure.c) has the library's allocations go through here: malloc, calloc, realloc,
 * strdup, and blocks of arenas. What other libraries allocate for themselves does not. One thread only.
 */
#ifndef TRIB_TESTS_LOOP_SCARCITY_H
#define TRIB_TESTS_LOOP_SCARCITY_H

#include <stdbool.h>
#include <stddef.h>

typedef enum scarcity_kind {
    SCARCITY_NONE,   /* only counts */
    SCARCITY_ONCE,   /* the n-th allocation fails */
    SCARCITY_LASTING /* it and all after it fail */
} scarcity_kind;

/* From here on allocations count from 1. Forgets what an earlier ledger held. */
void scarcity_begin(scarcity_kind kind, size_t nth);
/* Until here; answers how many were asked for. */
size_t scarcity_end(void);
/* How many of those since scarcity_begin were not freed; *where_out: the number of the first of them. */
size_t scarcity_left(size_t *where_out);

/* For the wrappers: may the allocation that is asked for succeed? */
bool scarcity_allows(void);
void scarcity_note(const void *block);
void scarcity_forget(const void *block);

#endif
