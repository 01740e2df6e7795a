/* test_declared.c - the coordinator's answer about a declared tensor arrives with wrong fields. The worker names the
 * tensor and ends its part in the job; it neither hangs nor takes one tensor for another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/link/link.h"
#include "engine/server/server_tensor.h"
#include "engine/worker/op.h"
#include "tests/loop/job.h"

/* The number that every tensor is given; UINT32_MAX leaves each its own. */
static atomic_uint number;

__typeof__(trib_link_send_copy) __real_trib_link_send_copy, __wrap_trib_link_send_copy;
void __wrap_trib_link_send_copy(trib_link *link, trib_frame frame, const void *payload, size_t size)
{
    const uint32_t wrong = atomic_load(&number);
    if (frame.type == TRIB_FRAME_DECLARED && wrong != UINT32_MAX) {
        frame.aux = wrong;
    }
    __real_trib_link_send_copy(link, frame, payload, size);
}

/* The server of a wrong number's tensor believes it, so that the worker alone can notice. */
__typeof__(trib_server_check_tensor) __real_trib_server_check_tensor, __wrap_trib_server_check_tensor;
trib_status __wrap_trib_server_check_tensor(const trib_link *link, const trib_frame *frame, trib_error *error)
{
    const bool is_wrong = atomic_load(&number) != UINT32_MAX;
    return is_wrong ? TRIB_OK : __real_trib_server_check_tensor(link, frame, error);
}

static void declare_and_sum(uint32_t wrong, const char *bad_tensor)
{
    job jobs;
    float data[4] = {0};
    static const char *const names[] = {"first", "second"};
    trib_op *ops[2] = {NULL}, *barrier = NULL;
    trib_error error = {.status = TRIB_OK};
    job_open(&jobs, 1, 0, NULL);
    assert_int_equal(trib_barrier(jobs.engines[0], NULL, &barrier, &error), TRIB_OK);
    assert_int_equal(job_wait(barrier, &error), TRIB_OK); /* the barrier's internal tensor has its number now */
    atomic_store(&number, wrong);
    for (int i = 0; i < 2; i++) {
        trib_tensor_desc desc;
        trib_tensor_desc_init(&desc, sizeof desc);
        desc.name = names[i];
        desc.dtype = TRIB_FLOAT32;
        desc.count = 4;
        trib_tensor *tensor = NULL;
        trib_op_params params;
        trib_op_params_init(&params, sizeof params);
        params.input = params.output = data;
        if (trib_tensor_declare(jobs.engines[0], &desc, &tensor, &error) == TRIB_OK) {
            params.tensor = tensor;
            if (trib_push_pull(jobs.engines[0], &params, &ops[i], &error) == TRIB_OK) {
                (void)trib_op_wait(ops[i], -1, &error);
            }
        }
    }
    /* The job is over now, or at the latest with the second tensor. */
    char words[64];
    snprintf(words, sizeof words, "tensor \"%s\" has the number %u", bad_tensor, wrong);
    if (strstr(error.text, words) == NULL) {
        fail_msg("\"%s\" is not in: %s", words, error.text);
    }
    for (int i = 0; i < 2; i++) {
        trib_op_release(ops[i]);
    }
    job_close(&jobs);
    atomic_store(&number, UINT32_MAX);
}

static void impossible_numbers(void **state)
{
    (void)state;
    declare_and_sum(UINT32_C(1) << 31, "first");
    declare_and_sum(TRIB_TENSORS_MAX, "first");
}

static void one_number_for_two(void **state)
{
    (void)state;
    declare_and_sum(0, "first"); /* the barrier's tensor has number 0 */
    declare_and_sum(TRIB_TENSORS_MAX - 1, "second");
}

int main(void)
{
    atomic_store(&number, UINT32_MAX);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_numbers),
        cmocka_unit_test(one_number_for_two),
    };
    return cmocka_run_group_tests_name("numbers of tensors", tests, NULL, NULL);
}
