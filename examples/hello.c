/* hello.c - the smallest program that embeds Tributary: every worker hands in three numbers and gets their sum over all
 * workers. Alone it is a job of one worker; under "tributary run -n 4 -- hello" the numbers come back four times as
 * large. */
#include <stdio.h>
#include <tributary.h>

int main(void)
{
    float gradient[3] = {1, 2, 3};
    trib_error error = {0};
    trib_engine *engine = NULL;
    trib_op *op = NULL;
    trib_config config;
    trib_config_init(&config, sizeof config);
    trib_tensor_desc tensor;
    trib_tensor_desc_init(&tensor, sizeof tensor);
    tensor.name = "gradient";
    tensor.count = 3; /* of TRIB_FLOAT32, the default type */
    trib_op_params sum;
    trib_op_params_init(&sum, sizeof sum);
    sum.input = gradient;
    sum.output = gradient;

    bool ok = trib_config_from_env(&config, &error) == TRIB_OK &&
              trib_engine_create(&config, &engine, &error) == TRIB_OK &&
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
