/*
 * scarcity.h - memory that runs out on purpose, and a ledger of blocks that were not freed.
 *
 * The program that wraps them (test_alloc_failure.c) sends the library's allocations through here: malloc, calloc,
 * realloc, strdup, and blocks of arenas. Allocations by other libraries do not count. One thread only.
 */
#ifndef TRIB_TESTS_LOOP_SCARCITY_H
#define TRIB_TESTS_LOOP_SCARCITY_H

#include <stdbool.h>
#include <stddef.h>

typedef enum scarcity_kind {
    SCARCITY_NONE,   /* counts, and fails nothing */
    SCARCITY_ONCE,   /* fails the n-th allocation */
    SCARCITY_LASTING /* fails the n-th allocation and all later ones */
} scarcity_kind;

/* Starts counting allocations from 1, with an empty ledger. */
void scarcity_begin(scarcity_kind kind, size_t nth);
/* Stops counting; returns the number of allocations. */
size_t scarcity_end(void);
/* Returns how many blocks since scarcity_begin were not freed. *where_out is the number of the first of them. */
size_t scarcity_left(size_t *where_out);

/* For the wrappers: returns whether the next allocation may succeed. */
bool scarcity_allows(void);
void scarcity_note(const void *block);
void scarcity_forget(const void *block);

#endif
