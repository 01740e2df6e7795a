/* main.c - sums with the codec of steps.c. */
#include <stdio.h>

#include "steps.h"

int main(void)
{
    float gradient[3] = {1.2f, -2.0f, 0.1f};
    trib_error error = {0};
    trib_engine *engine = NULL;
    trib_op *op = NULL;
    trib_config config;
    trib_config_init(&config, sizeof config);
    trib_tensor_desc tensor;
    trib_tensor_desc_init(&tensor, sizeof tensor);
    tensor.name = "gradient";
    tensor.count = 3;
    tensor.codec = "steps,ratio=0.5,ef=vanilla";
    trib_op_params sum;
    trib_op_params_init(&sum, sizeof sum);
    sum.input = sum.output = gradient;

    bool ok = trib_config_from_env(&config, &error) == TRIB_OK;
    if (config.codec_library == NULL) { /* else the codec comes from there */
        config.codecs = &steps;
        config.codec_count = 1;
    }
    ok = ok && trib_engine_create(&config, &engine, &error) == TRIB_OK &&
         trib_tensor_declare(engine, &tensor, &sum.tensor, &error) == TRIB_OK &&
         trib_push_pull(engine, &sum, &op, &error) == TRIB_OK && trib_op_wait(op, -1, &error) == TRIB_OK;
    if (ok) {
        printf("worker %d of %d: %g %g %g\n", config.rank, config.worker_count, gradient[0], gradient[1], gradient[2]);
    } else {
        fprintf(stderr, "%s: %s\n", trib_status_name(error.status), error.text);
    }
    trib_op_release(op);
    trib_engine_destroy(engine);
    return ok ? 0 : 1;
}
