/* test_cuda_wait.c - which streams may wait for work that has not been launched (stages/cuda/cuda_wait.c). */
#include "tests/cuda/wait_bed.h"

/* ---- Cases ---- */

/* Two of the engine's streams copy, three need queues of any kind, and one of the program's is not seen. */
static void as_many_as_have_queues_of_their_own(void **state)
{
    (void)state;
    is_shared = false;
    assert_room(NULL, NULL, 1);
    assert_room("1", NULL, 0);
    assert_room("2", NULL, 0);
    assert_room("4", NULL, 0);
    assert_room("5", NULL, 1);
    assert_room("8", NULL, 4);
    assert_room("32", NULL, 28);
    assert_room("1000", NULL, 28);
    assert_room("", NULL, 1);
    assert_room("many", NULL, 1);
    assert_room("0", NULL, 1);
    assert_room("-1", NULL, 1);
    assert_room("16 ", NULL, 12);
    assert_room(NULL, "2", 0);
    assert_room(NULL, "5", 2);
    assert_room(NULL, "32", 4);
    assert_room("16", "2", 0);
    assert_room("16", "4", 1);
    assert_room("16", "32", 12);
    is_shared = true; /* MPS */
    assert_room(NULL, NULL, 0);
    assert_room("1", NULL, 0);
    assert_room("32", "32", 0);
    is_shared = false;
}

static void a_machine_alone_copies_nothing(void **state)
{
    (void)state;
    alone = true;
    assert_room(NULL, NULL, 2); /* the stand-in for a collective of one rank copies */
    size = 8;
    assert_room(NULL, NULL, 3);
    assert_room("1", NULL, 0);
    assert_room("3", NULL, 1);
    assert_room("8", NULL, 6);
    assert_room("8", "4", 3);
    alone = false;
    assert_room(NULL, NULL, 1);
    size = 1;
}

/* Other streams that the program submits are counted, too. */
static void streams_without_waits_count(void **state)
{
    (void)state;
    open_with("8");
    assert_int_equal(wait_for(0, 0), TRIB_OK);
    for (uintptr_t i = 0; i < 4; i++) {
        cuda_stream_note(&device, stream_of(i));
    }
    assert_int_equal(wait_for(0, 1), TRIB_OK);
    cuda_stream_note(&device, stream_of(4));
    assert_int_equal(wait_for(0, 2), TRIB_BUSY);
    assert_int_equal(wait_for(3, 0), TRIB_BUSY);
    for (uintptr_t i = 5; i < 100; i++) {
        cuda_stream_note(&device, stream_of(i));
    }
    assert_int_equal(wait_for(200, 2), TRIB_BUSY);
    cuda_semaphore_note_launched(&device, &semaphores[0]);
    assert_int_equal(wait_for(200, 0), TRIB_OK); /* launched: it holds up nothing */
}

/* Work that a stream waits for may hold up nothing; the stream itself needs a queue all the same. */
static void waiting_streams_count(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) {
        open_with(NULL);
        if (way == 0) {
            semaphore_words[0] = 1; /* the semaphore is open */
        } else {
            cuda_semaphore_note_launched(&device, &semaphores[0]); /* launched */
        }
        assert_int_equal(wait_for(0, 0), TRIB_OK);
        assert_int_equal(wait_for(1, 1), TRIB_BUSY); /* there is room for one of them */
    }
}

/* A stream that waited already might hold up those that are still to come. */
static void nobody_waits_while_streams_come_anew(void **state)
{
    (void)state;
    open_with("32");
    assert_int_equal(wait_at_once(0, 0), TRIB_BUSY);
    for (uintptr_t i = 1; i < 4; i++) {
        cuda_stream_note(&device, stream_of(i));
    }
    for (int i = 0; i < 15; i++) { /* four times each */
        assert_int_equal(wait_at_once((uintptr_t)i % 4, 0), TRIB_BUSY);
    }
    assert_int_equal(wait_at_once(3, 0), TRIB_OK);
    cuda_stream_note(&device, stream_of(4));
    assert_int_equal(wait_at_once(0, 1), TRIB_BUSY);
    come_often(&device, stream_of(0));
    assert_int_equal(wait_at_once(0, 1), TRIB_OK);
}

static void idle_streams_are_forgotten(void **state)
{
    (void)state;
    open_with(NULL);
    cuda_stream_note(&device, stream_of(0));
    now_ns += INT64_C(6000000000);
    assert_int_equal(wait_for(1, 0), TRIB_BUSY);
    now_ns += INT64_C(5000000000);
    assert_int_equal(wait_for(1, 0), TRIB_OK);   /* stream 0 is forgotten */
    assert_int_equal(wait_for(2, 1), TRIB_BUSY); /* stream 1 is not */
    cuda_semaphore_note_launched(&device, &semaphores[0]);
    semaphores[0].value = 2;
    now_ns += INT64_C(11000000000);
    assert_int_equal(wait_for(3, 0), TRIB_OK);
    now_ns += INT64_C(11000000000);
    assert_int_equal(wait_for(4, 1), TRIB_BUSY); /* stream 3 has waited all the time */
    cuda_semaphore_note_launched(&device, &semaphores[0]);
    now_ns += INT64_C(11000000000);
    assert_int_equal(wait_for(5, 1), TRIB_OK);
}

/* A program that goes on with some of its streams may use the others again. */
static void idle_streams_count_until_others_come_often(void **state)
{
    (void)state;
    open_with("32");
    cuda_stream_note(&device, stream_of(0));
    assert_int_equal(wait_for(1, 0), TRIB_OK);
    cuda_semaphore_note_launched(&device, &semaphores[0]);
    semaphores[0].value = 2;
    now_ns += INT64_C(6000000000);
    cuda_stream_note(&device, stream_of(1));
    now_ns += INT64_C(6000000000);
    assert_int_equal(wait_at_once(1, 0), TRIB_BUSY); /* stream 0 is forgotten */
    assert_int_equal(wait_for(1, 0), TRIB_OK);
}

static void one_queue_awaits_no_unlaunched_work(void **state)
{
    (void)state;
    open_with("1");
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(cuda_stream_wait(&device, stream_of(0), &semaphores[0], &error), TRIB_BUSY);
    assert_non_null(strstr(error.text, "CUDA_DEVICE_MAX_CONNECTIONS"));
    assert_int_equal(words, 0);
    cuda_semaphore_note_launched(&device, &semaphores[0]);
    assert_int_equal(told, 1);
    assert_int_equal(wait_for(0, 0), TRIB_OK);
    assert_int_equal(words, 0);
    assert_int_equal(events, 1);
    semaphores[0].value = 2; /* of the next operation */
    assert_int_equal(wait_for(0, 0), TRIB_BUSY);
    semaphore_words[0] = 2; /* the semaphore is open */
    assert_int_equal(wait_for(0, 0), TRIB_OK);
    assert_int_equal(words, 0);
    assert_int_equal(events, 1);
}

/* Loading a kernel would wait for the stream, and nothing could be launched meanwhile. */
static void lazy_loading_awaits_no_unlaunched_work(void **state)
{
    (void)state;
    trib_error error = {.status = TRIB_OK};
    loading = &lazy;
    open_with("32");
    come_often(&device, stream_of(0));
    assert_int_equal(cuda_stream_wait(&device, stream_of(0), &semaphores[0], &error), TRIB_BUSY);
    assert_non_null(strstr(error.text, "CUDA_MODULE_LOADING=EAGER"));
    assert_int_equal(words, 0);
    cuda_semaphore_note_launched(&device, &semaphores[0]);
    assert_int_equal(told, 1);
    assert_int_equal(wait_for(0, 0), TRIB_OK);
    assert_int_equal(words, 0);
    assert_int_equal(events, 1);
    loading = NULL; /* this driver loads nothing late */
    open_with("32");
    assert_int_equal(wait_for(0, 0), TRIB_OK);
    loading = &eager;
}

static void one_stream_may_wait_for_many(void **state)
{
    (void)state;
    open_with(NULL);
    for (int i = 0; i < SEMAPHORES; i++) {
        assert_int_equal(wait_for(0, i), TRIB_OK);
        assert_int_equal(wait_for(0, i), TRIB_OK);
    }
    for (int i = 0; i < SEMAPHORES; i++) {
        assert_int_equal(wait_for(1, SEMAPHORES - 1), TRIB_BUSY);
        cuda_semaphore_note_launched(&device, &semaphores[i]);
    }
    assert_int_equal(told, SEMAPHORES); /* reported each time that a stream was rejected since */
    assert_int_equal(wait_for(1, SEMAPHORES - 1), TRIB_OK);
    semaphores[0].value = 2;
    assert_int_equal(wait_for(0, 0), TRIB_BUSY);
    cuda_semaphore_note_launched(&device, &semaphores[0]);
    assert_int_equal(told, SEMAPHORES + 1);
    cuda_semaphore_note_launched(&device, &semaphores[1]);
    assert_int_equal(told, SEMAPHORES + 1); /* no stream was rejected since */
}

/* A new thread may have the handle of an earlier one, and a new stream the handle of a destroyed one: the earlier
 * ones still wait. */
static void streams_that_are_gone_still_count(void **state)
{
    (void)state;
    has_ids = true;
    open_with(NULL);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        trib_status status = TRIB_OK;
        assert_int_equal(pthread_create(&thread, NULL, wait_on_own_stream, &status), 0);
        pthread_join(thread, NULL);
        assert_int_equal(status, i == 0 ? TRIB_OK : TRIB_BUSY);
    }
    open_with(NULL);
    assert_int_equal(wait_for(0, 0), TRIB_OK);
    replaced = 1;
    assert_int_equal(wait_for(0, 1), TRIB_BUSY);
    cuda_semaphore_note_launched(&device, &semaphores[1]);
    assert_int_equal(wait_for(0, 1), TRIB_OK);
    replaced = 0;
    has_ids = false;
}

static void the_default_stream_is_one(void **state)
{
    (void)state;
    trib_error error = {.status = TRIB_OK};
    has_ids = true;
    open_with(NULL);
    come_often(&device, NULL);
    assert_int_equal(cuda_stream_wait(&device, NULL, &semaphores[0], &error), TRIB_OK);
    assert_int_equal(cuda_stream_wait(&device, cudaStreamLegacy, &semaphores[1], &error), TRIB_OK);
    has_ids = false;
}

/* An engine has its own streams, but the queues are the GPU's. */
static void engines_on_one_gpu_share_its_queues(void **state)
{
    (void)state;
    static trib_device other;
    static cuda_semaphore_event end;
    uint32_t word = 0;
    const trib_device_semaphore semaphore = {.word = &word, .value = 1, .event = &end};
    trib_error error = {.status = TRIB_OK};
    open_with("10"); /* for two engines: 3 of the program's */
    other = (trib_device){.driver = driver_now(), .params = {.launched = launched, .engine = &other}};
    pthread_mutex_init(&other.mutex, NULL);
    cuda_registry_join(&other);
    come_often(&other, stream_of(0));
    come_often(&other, stream_of(1));
    assert_int_equal(cuda_stream_wait(&other, stream_of(0), &semaphore, &error), TRIB_OK);
    assert_int_equal(cuda_stream_wait(&other, stream_of(1), &semaphore, &error), TRIB_OK);
    assert_int_equal(wait_for(2, 0), TRIB_OK);
    assert_int_equal(wait_for(2, 1), TRIB_OK);
    assert_int_equal(wait_for(3, 0), TRIB_BUSY);
    assert_int_equal(cuda_stream_wait(&other, stream_of(0), &semaphore, &error), TRIB_BUSY);
    cuda_semaphore_note_launched(&other, &semaphore);
    device.index = 1; /* the queues of another GPU, which has no engine */
    assert_int_equal(wait_for(4, 2), TRIB_OK);
    cuda_semaphore_note_launched(&device, &semaphores[2]);
    device.index = 0;
    cuda_registry_leave(&other);
    assert_int_equal(wait_for(3, 3), TRIB_OK);
    /* When the last engine leaves, everything is forgotten. */
    launch_all();
    cuda_registry_leave(&device);
    cuda_registry_leave(&device); /* leaving twice is allowed */
    cuda_registry_join(&device);
    semaphores[4].value = 2;
    for (uintptr_t i = 10; i < 16; i++) {
        assert_int_equal(wait_for(i, 4), TRIB_OK);
    }
    assert_int_equal(wait_for(16, 4), TRIB_BUSY);
}

/* The streams have one handle. */
static void streams_of_threads_are_counted_one_by_one(void **state)
{
    (void)state;
    open_with(NULL);
    trib_error error = {.status = TRIB_OK};
    come_often(&device, cudaStreamPerThread);
    assert_int_equal(cuda_stream_wait(&device, cudaStreamPerThread, &semaphores[0], &error), TRIB_OK);
    assert_int_equal(cuda_stream_wait(&device, cudaStreamPerThread, &semaphores[1], &error), TRIB_OK);
    pthread_t other;
    trib_status status = TRIB_OK;
    assert_int_equal(pthread_create(&other, NULL, wait_on_own_stream, &status), 0);
    pthread_join(other, NULL);
    assert_int_equal(status, TRIB_BUSY);
}

static void launched_semaphore_delays_no_wait(void **state)
{
    (void)state;
    open_with("1");
    cuda_semaphore_note_launched(&device, &semaphores[0]);
    assert_int_equal(wait_for(0, 0), TRIB_OK);
    assert_int_equal(events, 1);
    is_captured = true;
    assert_int_equal(wait_for(0, 0), TRIB_UNSUPPORTED);
    assert_int_equal(wait_for(0, 1), TRIB_UNSUPPORTED);
    assert_int_equal(words, 0);
}

/* The word is only written for streams that wait for it already. */
static void launched_work_is_awaited_by_an_event(void **state)
{
    (void)state;
    open_with("5"); /* there is room for one */
    assert_int_equal(wait_for(0, 0), TRIB_OK);
    assert_int_equal(words, 1);
    assert_int_equal(cuda_semaphore_signal_behind(&device, &semaphores[0], stream_of(9)), CUDA_SUCCESS);
    assert_string_equal(steps, "ew");
    assert_int_equal(wait_for(1, 1), TRIB_BUSY);
    assert_int_equal(told, 0);
    assert_int_equal(cuda_semaphore_signal_behind(&device, &semaphores[1], stream_of(9)), CUDA_SUCCESS);
    assert_string_equal(steps, "ewe");
    assert_int_equal(told, 1);
    assert_int_equal(wait_for(1, 0), TRIB_OK);
    assert_int_equal(wait_for(1, 1), TRIB_OK);
    assert_int_equal(events, 2);
    assert_int_equal(words, 1);
    semaphore_words[0] = 1; /* the semaphore is open */
    assert_int_equal(wait_for(0, 0), TRIB_OK);
    assert_int_equal(events, 2);
}

static void failed_launch_is_not_awaited(void **state)
{
    (void)state;
    open_with("5");
    assert_int_equal(wait_for(0, 0), TRIB_OK);
    cannot_write = true;
    assert_int_equal(cuda_semaphore_signal_behind(&device, &semaphores[0], stream_of(9)), CUDA_ERROR_UNKNOWN);
    cannot_write = false;
    fails = true;
    assert_int_equal(cuda_semaphore_signal_behind(&device, &semaphores[0], stream_of(9)), CUDA_ERROR_INVALID_VALUE);
    fails = false;
    assert_string_equal(steps, "ewe"); /* without the event nothing is written */
    assert_int_equal(wait_for(1, 0), TRIB_BUSY);
    assert_int_equal(events, 0);
}

static void a_stream_that_cannot_be_made_to_wait_is_an_error(void **state)
{
    trib_error error = {.status = TRIB_OK};
    (void)state;
    open_with(NULL);
    cuda_semaphore_note_launched(&device, &semaphores[0]);
    fails = true;
    assert_int_equal(cuda_stream_wait(&device, stream_of(0), &semaphores[0], &error), TRIB_SYSTEM);
    fails = false;
    assert_non_null(strstr(error.text, "it failed"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_many_as_have_queues_of_their_own),
        cmocka_unit_test(one_queue_awaits_no_unlaunched_work),
        cmocka_unit_test(lazy_loading_awaits_no_unlaunched_work),
        cmocka_unit_test(one_stream_may_wait_for_many),
        cmocka_unit_test(a_machine_alone_copies_nothing),
        cmocka_unit_test(streams_without_waits_count),
        cmocka_unit_test(waiting_streams_count),
        cmocka_unit_test(nobody_waits_while_streams_come_anew),
        cmocka_unit_test(idle_streams_are_forgotten),
        cmocka_unit_test(idle_streams_count_until_others_come_often),
        cmocka_unit_test(engines_on_one_gpu_share_its_queues),
        cmocka_unit_test(streams_that_are_gone_still_count),
        cmocka_unit_test(the_default_stream_is_one),
        cmocka_unit_test(streams_of_threads_are_counted_one_by_one),
        cmocka_unit_test(launched_semaphore_delays_no_wait),
        cmocka_unit_test(launched_work_is_awaited_by_an_event),
        cmocka_unit_test(failed_launch_is_not_awaited),
        cmocka_unit_test(a_stream_that_cannot_be_made_to_wait_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
