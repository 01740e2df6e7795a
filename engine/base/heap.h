/*
 * heap.h - a binary heap of elements of any type, the least first. Any element can be taken out.
 *
 * An element embeds a trib_min_heap_node, which holds the element's place. Keys are kept beside the pointers, so that
 * comparisons stay in one array. Equal keys have no order.
 *
 * Invariants
 *
 * - slots[i].node->place == i + 1 for each i < count; the place of a node that is in no heap is 0.
 * - No slot's key is less than its parent's.
 * - Only trib_min_heap_reserve allocates.
 */
#ifndef TRIB_ENGINE_BASE_HEAP_H
#define TRIB_ENGINE_BASE_HEAP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/assert.h"

#define TRIB_MIN_HEAP_CAPACITY_FIRST 64u

/* Embedded in an element. It must be zeroed before its first use. */
typedef struct trib_min_heap_node {
    uint32_t place; /* place in the heap, counted from 1; 0: in no heap */
} trib_min_heap_node;

/* The order of elements: by major, then by minor, lower first. */
typedef struct trib_min_heap_key {
    uint64_t major, minor;
} trib_min_heap_key;

typedef struct trib_min_heap_slot {
    trib_min_heap_key key;
    trib_min_heap_node *node;
} trib_min_heap_slot;

/* The heap. It must be zeroed before its first use. */
typedef struct trib_min_heap {
    trib_min_heap_slot *slots;
    uint32_t count, capacity; /* in slots */
} trib_min_heap;

/* Makes a part of a key from a number, which must not be negative. */
static inline uint64_t trib_min_heap_key_of_double(double number)
{
    uint64_t bits;
    trib_assert(number >= 0);
    memcpy(&bits, &number, sizeof bits); /* the bits of such IEEE 754 numbers have the same order as the numbers */
    return bits;
}

static inline bool trib_min_heap_key_is_less(const trib_min_heap_key *a, const trib_min_heap_key *b)
{
    return a->major != b->major ? a->major < b->major : a->minor < b->minor;
}

/* Returns the least element. NULL: the heap is empty. */
static inline trib_min_heap_node *trib_min_heap_first(const trib_min_heap *heap)
{
    return heap->count > 0 ? heap->slots[0].node : NULL;
}

/* Makes room for that many elements. The memory from `allocate` is freed with free(). Returns false if there is no
 * memory. */
static inline bool trib_min_heap_reserve(trib_min_heap *heap, uint32_t count,
                                         void *(*allocate)(void *user, size_t size), void *user)
{
    if (count <= heap->capacity) {
        return true;
    }
    uint32_t capacity = heap->capacity == 0 ? TRIB_MIN_HEAP_CAPACITY_FIRST : heap->capacity * 2;
    capacity = capacity < count ? count : capacity;
    trib_min_heap_slot *slots = allocate(user, capacity * sizeof *slots);
    if (slots == NULL) {
        return false;
    }
    if (heap->count > 0) {
        memcpy(slots, heap->slots, heap->count * sizeof *slots);
    }
    free(heap->slots);
    heap->slots = slots;
    heap->capacity = capacity;
    return true;
}

static inline void trib_min_heap_put_slot(trib_min_heap *heap, uint32_t index, trib_min_heap_slot slot)
{
    heap->slots[index] = slot;
    slot.node->place = index + 1;
}

static inline void trib_min_heap_sift_down(trib_min_heap *heap, uint32_t index, trib_min_heap_slot slot)
{
    for (;;) {
        uint32_t least = 2 * index + 1;
        if (least >= heap->count) {
            break;
        }
        if (least + 1 < heap->count &&
            trib_min_heap_key_is_less(&heap->slots[least + 1].key, &heap->slots[least].key)) {
            least++;
        }
        if (!trib_min_heap_key_is_less(&heap->slots[least].key, &slot.key)) {
            break;
        }
        trib_min_heap_put_slot(heap, index, heap->slots[least]);
        index = least;
    }
    trib_min_heap_put_slot(heap, index, slot);
}

/* Puts the slot where it belongs, beginning at that index, which must be free. */
static inline void trib_min_heap_sift(trib_min_heap *heap, uint32_t index, trib_min_heap_slot slot)
{
    const uint32_t from = index;
    while (index > 0) {
        const uint32_t parent = (index - 1) / 2;
        if (!trib_min_heap_key_is_less(&slot.key, &heap->slots[parent].key)) {
            break;
        }
        trib_min_heap_put_slot(heap, index, heap->slots[parent]);
        index = parent;
    }
    if (index < from) {
        trib_min_heap_put_slot(heap, index, slot);
    } else {
        trib_min_heap_sift_down(heap, index, slot);
    }
}

/* Inserts a node that is in no heap. There must be room for it. */
static inline void trib_min_heap_insert(trib_min_heap *heap, trib_min_heap_node *node, trib_min_heap_key key)
{
    trib_assert(node->place == 0 && heap->count < heap->capacity);
    heap->count++;
    trib_min_heap_sift(heap, heap->count - 1, (trib_min_heap_slot){.key = key, .node = node});
}

/* Gives an element of the heap another key. */
static inline void trib_min_heap_update(trib_min_heap *heap, trib_min_heap_node *node, trib_min_heap_key key)
{
    trib_assert(node->place > 0 && heap->slots[node->place - 1].node == node);
    trib_min_heap_sift(heap, node->place - 1, (trib_min_heap_slot){.key = key, .node = node});
}

/* Takes out an element, which must be in the heap. */
static inline void trib_min_heap_remove(trib_min_heap *heap, trib_min_heap_node *node)
{
    const uint32_t index = node->place - 1;
    trib_assert(node->place > 0 && node->place <= heap->count && heap->slots[index].node == node);
    node->place = 0;
    heap->count--;
    if (index < heap->count) {
        trib_min_heap_sift(heap, index, heap->slots[heap->count]);
    }
}

/* Frees the heap's memory. Elements that are left keep places that are not valid any more. */
static inline void trib_min_heap_close(trib_min_heap *heap)
{
    free(heap->slots);
    *heap = (trib_min_heap){.slots = NULL};
}

#endif
