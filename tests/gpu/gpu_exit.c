/* gpu_exit.c - a process exits in the middle of its operations, as a process does that has found an error. */
#include <stdlib.h>

#include "tests/gpu/gpu_worker.h"

/* The engine lives, operations are under way, and the machine's other ranks exit at the same time. The process must
 * not crash: its exit status must be the one that it gives. */
void scenario_exit(rank *self)
{
    enum { OPERATIONS = 64 };
    void *device = NULL;
    check_cuda(cudaMalloc(&device, 8 << 20), "cudaMalloc");
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = declare(self, "ended", TRIB_FLOAT32, 2 << 20, 0);
    params.input = params.output = device;
    params.stream = self->stream;
    trib_op *op = push_pull(self, params.tensor, device, device, TRIB_SUM);
    trib_error error = {.status = TRIB_OK};
    trib_status status = trib_op_wait(op, 120 * INT64_C(1000000000), &error);
    for (int i = 0; i < OPERATIONS && status == TRIB_OK; i++) { /* otherwise another rank was faster and is gone */
        status = trib_push_pull(self->engine, &params, NULL, &error);
    }
    exit(0); /* NOLINT(concurrency-mt-unsafe): this call is what is tested */
}
