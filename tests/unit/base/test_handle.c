/* test_handle.c - a handle is accepted until it is closed and never again, and no other number is ever accepted. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/handle.h"

enum { OBJECTS = 10000, THREADS = 4, TURNS = 20000 };

static void a_closed_handle_is_never_accepted_again(void **state)
{
    (void)state;
    int object = 0;
    const uint32_t place = trib_handle_take_place(&object);
    uintptr_t before = 0;
    for (int i = 0; i < 1000; i++) {
        const uintptr_t handle = trib_handle_open(place, TRIB_HANDLE_OP);
        assert_int_not_equal(handle, before);
        assert_ptr_equal(trib_handle_find(handle, TRIB_HANDLE_OP), &object);
        assert_null(trib_handle_find(handle, TRIB_HANDLE_TENSOR));
        assert_null(trib_handle_find(before, TRIB_HANDLE_OP));
        assert_true(trib_handle_close(handle));
        assert_false(trib_handle_close(handle));
        assert_null(trib_handle_find(handle, TRIB_HANDLE_OP));
        before = handle;
    }
    const uintptr_t last = trib_handle_open(place, TRIB_HANDLE_OP);
    trib_handle_give_place(place);
    assert_null(trib_handle_find(last, TRIB_HANDLE_OP));
    assert_int_equal(trib_handle_take_place(&object), place); /* another object's now */
    assert_null(trib_handle_find(last, TRIB_HANDLE_OP));
    trib_handle_give_place(place);
}

static void anything_else_is_refused(void **state)
{
    (void)state;
    int object = 0;
    const uint32_t place = trib_handle_take_place(&object);
    const uintptr_t handle = trib_handle_open(place, TRIB_HANDLE_TENSOR);
    const uintptr_t wrong[] = {0, 1, 2, UINTPTR_MAX, (uintptr_t)&object, (uintptr_t)&object | 1, handle - 1};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_null(trib_handle_find(wrong[i], TRIB_HANDLE_TENSOR));
        assert_false(trib_handle_close(wrong[i]));
    }
    for (unsigned bit = 0; bit < 64; bit++) {
        assert_null(trib_handle_find(handle ^ (uintptr_t)1 << bit, TRIB_HANDLE_TENSOR));
    }
    assert_ptr_equal(trib_handle_find(handle, TRIB_HANDLE_TENSOR), &object);
    trib_handle_give_place(place);
}

static void places_are_used_again(void **state)
{
    (void)state;
    static char objects[OBJECTS];
    static uint32_t places[OBJECTS];
    uint32_t highest = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < OBJECTS; i++) {
            places[i] = trib_handle_take_place(&objects[i]);
            assert_true(places[i] != TRIB_NO_PLACE && (round == 0 || places[i] <= highest));
            highest = places[i] > highest ? places[i] : highest;
        }
        for (int i = 0; i < OBJECTS; i++) {
            const uintptr_t handle = trib_handle_open(places[i], TRIB_HANDLE_OP);
            assert_ptr_equal(trib_handle_find(handle, TRIB_HANDLE_OP), &objects[i]);
            trib_handle_give_place(places[i]);
        }
    }
}

static void *take_and_give(void *user)
{
    intptr_t wrong = 0;
    for (int i = 0; i < TURNS; i++) {
        char here;
        const uint32_t place = trib_handle_take_place(&here);
        const uintptr_t handle = trib_handle_open(place, TRIB_HANDLE_OP);
        wrong += trib_handle_find(handle, TRIB_HANDLE_OP) != &here;
        wrong += !trib_handle_close(handle);
        trib_handle_give_place(place);
    }
    (void)user;
    return (void *)wrong;
}

static void threads_do_not_get_the_same_place(void **state)
{
    (void)state;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, NULL), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *wrong = NULL;
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_closed_handle_is_never_accepted_again),
        cmocka_unit_test(anything_else_is_refused),
        cmocka_unit_test(places_are_used_again),
        cmocka_unit_test(threads_do_not_get_the_same_place),
    };
    return cmocka_run_group_tests_name("handles", tests, NULL, NULL);
}
