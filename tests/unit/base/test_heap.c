/* test_heap.c - the heap gives elements out in order, after any sequence of insertions, moves and removals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/base/heap.h"

#define ELEMENTS 500u

typedef struct element {
    trib_min_heap_node node;
    trib_min_heap_key key;
} element;

static void *allocate(void *user, size_t size)
{
    uint32_t *left = user;
    return (*left)-- > 0 ? malloc(size) : NULL;
}

static uint64_t draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static void test_order(void **state)
{
    (void)state;
    static element elements[ELEMENTS];
    uint32_t allocations = 16, left = 0;
    uint64_t chance = 1;
    trib_min_heap heap = {.slots = NULL};
    assert_true(trib_min_heap_reserve(&heap, ELEMENTS, allocate, &allocations));
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        elements[i].key = (trib_min_heap_key){.major = draw(&chance) % 16, .minor = draw(&chance)};
        trib_min_heap_insert(&heap, &elements[i].node, elements[i].key);
    }
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        if (i % 3 == 0) {
            trib_min_heap_remove(&heap, &elements[i].node);
            assert_int_equal(elements[i].node.place, 0);
        } else if (i % 3 == 1) {
            elements[i].key.major = draw(&chance) % 16;
            trib_min_heap_update(&heap, &elements[i].node, elements[i].key);
        }
        left += i % 3 != 0;
    }
    assert_int_equal(heap.count, left);
    trib_min_heap_key last = {.major = 0};
    for (trib_min_heap_node *node; (node = trib_min_heap_first(&heap)) != NULL; left--) {
        const element *first = (const element *)(const void *)node;
        assert_false(trib_min_heap_key_is_less(&first->key, &last));
        last = first->key;
        trib_min_heap_remove(&heap, node);
    }
    assert_int_equal(left, 0);
    trib_min_heap_close(&heap);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    uint32_t allocations = 1;
    element one = {.key = {.major = 1}};
    trib_min_heap heap = {.slots = NULL};
    assert_true(trib_min_heap_reserve(&heap, 1, allocate, &allocations));
    trib_min_heap_insert(&heap, &one.node, one.key);
    assert_false(trib_min_heap_reserve(&heap, heap.capacity + 1, allocate, &allocations));
    assert_ptr_equal(trib_min_heap_first(&heap), &one.node); /* nothing is lost */
    trib_min_heap_close(&heap);
}

static void test_doubles(void **state)
{
    (void)state;
    const double numbers[] = {0, 1e-300, 0.5, 1, 1.5, 4096, 1e18, 1e300};
    for (uint32_t i = 1; i < sizeof numbers / sizeof numbers[0]; i++) {
        assert_true(trib_min_heap_key_of_double(numbers[i - 1]) < trib_min_heap_key_of_double(numbers[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_doubles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
