/* shrink.c - training that goes on when a worker is lost, and that workers may join: every worker fits a line to points
 * of its own by gradient descent, with the average of all gradients.
 *
 *     shrink STEPS [BOUNDARY]
 *
 * Start the workers with TRIB_SURVIVE=workers, each with its TRIB_RANK, and kill any but rank 0. An operation that ends
 * with TRIB_EPOCH_CHANGED does so on every worker that is left: they go on together, with new ranks. A worker that is
 * started with TRIB_RANK=-1 joins then, or at the next step that BOUNDARY divides. */
#include <stdio.h>
#include <stdlib.h>
#include <tributary.h>

enum { POINTS = 64 };

typedef struct training {
    trib_engine *engine;
    trib_tensor *gradient_tensor, *state_tensor;
    trib_membership now;
    double state[3]; /* slope, offset, and the next step: what a worker must have to go on */
} training;

static trib_status declare(training *self, const char *name, uint64_t count, trib_tensor **out, trib_error *error)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = TRIB_FLOAT64;
    desc.count = count;
    return trib_tensor_declare(self->engine, &desc, out, error);
}

/* Begins the operation and waits for it, in place. */
static trib_status exchange(training *self, trib_tensor *tensor, double *data, bool is_sum, trib_error *error)
{
    trib_op *op = NULL;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = data;
    params.reduce = TRIB_AVG;
    trib_status status =
        is_sum ? trib_push_pull(self->engine, &params, &op, error) : trib_broadcast(self->engine, &params, &op, error);
    if (status == TRIB_OK) {
        status = trib_op_wait(op, -1, error);
    }
    trib_op_release(op);
    return status;
}

/* The gradient of the squared error, over points of y = 3 x + 1 that no other rank has. */
static void compute(const training *self, double gradient[2])
{
    gradient[0] = gradient[1] = 0;
    for (int i = 0; i < POINTS; i++) {
        const double x = (i * self->now.worker_count + self->now.rank) / (double)(POINTS * self->now.worker_count);
        const double wrong = self->state[0] * x + self->state[1] - (3 * x + 1);
        gradient[0] += 2 * wrong * x / POINTS;
        gradient[1] += 2 * wrong / POINTS;
    }
}

static trib_status step(training *self, trib_error *error)
{
    double gradient[2];
    compute(self, gradient);
    const trib_status status = exchange(self, self->gradient_tensor, gradient, true, error);
    if (status == TRIB_OK) {
        self->state[0] -= 0.5 * gradient[0];
        self->state[1] -= 0.5 * gradient[1];
        self->state[2] += 1;
    }
    return status;
}

/* All get what rank 0 has. A step succeeds on all workers or on none, so only those that have just joined need it. */
static trib_status share_state(training *self, trib_error *error)
{
    printf("step %g: epoch %u, rank %d of %d (%s)\n", self->state[2], self->now.epoch, self->now.rank,
           self->now.worker_count, self->now.text);
    fflush(stdout);
    return exchange(self, self->state_tensor, self->state, false, error);
}

/* All that are left meet here. */
static trib_status go_on(training *self, trib_error *error)
{
    trib_status status = trib_membership_advance(self->engine, NULL, NULL, error);
    if (status == TRIB_OK) {
        status = trib_membership_wait(self->engine, -1, &self->now, error);
    }
    return status == TRIB_OK ? share_state(self, error) : status;
}

int main(int argc, char **argv)
{
    const double steps = argc > 1 ? atof(argv[1]) : 1000;
    const long boundary = argc > 2 ? atol(argv[2]) : 0;
    training self = {.now = {.struct_size = sizeof self.now}};
    trib_error error = {0};
    trib_config config;
    trib_config_init(&config, sizeof config);
    trib_status status = trib_config_from_env(&config, &error);
    status = status == TRIB_OK ? trib_engine_create(&config, &self.engine, &error) : status;
    status = status == TRIB_OK ? declare(&self, "gradient", 2, &self.gradient_tensor, &error) : status;
    status = status == TRIB_OK ? declare(&self, "state", 3, &self.state_tensor, &error) : status;
    status = status == TRIB_OK ? trib_engine_wait_ready(self.engine, -1, &error) : status;
    status = status == TRIB_OK ? trib_membership_get(self.engine, &self.now) : status;
    status = status == TRIB_OK ? share_state(&self, &error) : status;
    while ((status == TRIB_OK && self.state[2] < steps) || status == TRIB_EPOCH_CHANGED) {
        if (status == TRIB_OK) {
            status = step(&self, &error);
        }
        if (status == TRIB_OK && boundary > 0 && (long)self.state[2] % boundary == 0) {
            status = go_on(&self, &error);
        }
        while (status == TRIB_EPOCH_CHANGED) {
            status = go_on(&self, &error);
        }
    }
    if (status == TRIB_OK) {
        printf("rank %d of %d: y = %.6f x + %.6f after %g steps\n", self.now.rank, self.now.worker_count, self.state[0],
               self.state[1], self.state[2]);
    } else {
        fprintf(stderr, "%s: %s\n", trib_status_name(status), error.text);
    }
    trib_engine_destroy(self.engine);
    return status == TRIB_OK ? 0 : 1;
}
