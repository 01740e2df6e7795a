/*
 * step.c - `tributary step`: runs training steps of a model as a worker of a real job, with real transports and
 * buffers of the right sizes; computing is simulated by pauses. tools/study/step.h runs the same steps in virtual
 * time, so that the two can be compared.
 *
 * A sleep that takes too long does not delay the following parts: the beginning of each part is computed and slept
 * until.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "api/tributary.h"
#include "tools/cli/commands.h"
#include "tools/cli/json_out.h"
#include "tools/cli/options.h"
#include "tools/cli/part.h"
#include "tools/cli/plural.h"
#include "tools/study/model.h"
#include "tools/trace/compare.h"

#define ITERATIONS_MAX 1000u

typedef struct live_gradient {
    struct live_step *step;
    trib_tensor *tensor;
    void *buffer;              /* of its sum */
    float *contents;           /* with --random; NULL: the sum replaces the zeros */
    int64_t given_ns, back_ns; /* when it was submitted, and when its latest sum was back; 0: it is not back */
} live_gradient;

typedef struct live_step {
    const char *name;
    study_model *model;
    uint32_t iterations;
    double compute;
    bool priorities, cross_barrier, together, random, json;
    trib_engine *engine;
    trib_engine_info info;
    live_gradient *gradients;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint32_t missing; /* sums that are not back yet */
    int64_t last_back_ns;
    trib_error failure;
    int64_t began_ns[ITERATIONS_MAX + 2];
    int64_t
        first_needed_ns[ITERATIONS_MAX + 1]; /* time of the last gradient's exchange, which the next step needs first */
    uint32_t first_needed_count;
} live_step;

static void sleep_until(int64_t at_ns)
{
    struct timespec at = {.tv_sec = at_ns / INT64_C(1000000000), .tv_nsec = at_ns % INT64_C(1000000000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) != 0) {}
}

static void check_status(const live_step *self, trib_status status, const trib_error *error, const char *what)
{
    part_check("step", self->engine, status, error, what);
}

/* ---- Exchanges ---- */

static void on_done(const trib_result *result, void *user)
{
    live_gradient *gradient = user;
    live_step *self = gradient->step;
    pthread_mutex_lock(&self->mutex);
    if (result->status != TRIB_OK && self->failure.status == TRIB_OK) {
        self->failure.status = result->status;
        snprintf(self->failure.text, sizeof self->failure.text, "%.*s", (int)sizeof self->failure.text - 1,
                 result->text);
    }
    gradient->back_ns = self->last_back_ns = part_now_ns();
    if (gradient == &self->gradients[self->model->count - 1] && self->first_needed_count <= self->iterations) {
        self->first_needed_ns[self->first_needed_count++] = gradient->back_ns - gradient->given_ns;
    }
    self->missing--;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->mutex);
}

static void submit_gradient(live_step *self, uint32_t index)
{
    live_gradient *gradient = &self->gradients[index];
    pthread_mutex_lock(&self->mutex);
    gradient->back_ns = 0;
    gradient->given_ns = part_now_ns();
    pthread_mutex_unlock(&self->mutex);
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = gradient->tensor;
    params.input = gradient->contents != NULL ? gradient->contents : gradient->buffer;
    params.output = gradient->buffer;
    params.done_cb = on_done;
    params.user = gradient;
    trib_error error = {.status = TRIB_OK};
    check_status(self, trib_push_pull(self->engine, &params, NULL, &error), &error, "push_pull");
}

/* Waits for the gradient's sum, or for all sums (NULL), and returns when the last of them was back. Every
 * operation has a deadline. */
static int64_t wait_back(live_step *self, const live_gradient *gradient)
{
    pthread_mutex_lock(&self->mutex);
    while (gradient != NULL ? gradient->back_ns == 0 : self->missing > 0) {
        pthread_cond_wait(&self->changed, &self->mutex);
    }
    const int64_t at_ns = gradient != NULL ? gradient->back_ns : self->last_back_ns;
    const trib_error failure = self->failure;
    pthread_mutex_unlock(&self->mutex);
    check_status(self, failure.status, &failure, "exchange");
    return at_ns;
}

/* ---- Computing: each part answers when it ends ---- */

static int64_t run_forward(live_step *self, int64_t at_ns, bool first)
{
    const study_model *model = self->model;
    if (!self->cross_barrier || first) {
        return at_ns + model->forward_ns;
    }
    for (uint32_t i = model->count; i-- > 0;) {
        const int64_t back_ns = wait_back(self, &self->gradients[i]);
        at_ns = at_ns > back_ns ? at_ns : back_ns;
        at_ns += model->tensors[i].forward_ns + model->optimizer_ns / (int64_t)model->count;
    }
    return at_ns;
}

/* A barrier. Workers that end a step at different times submit their gradients at different times, and then each
 * waits for the last. */
static int64_t meet_workers(live_step *self, int64_t at_ns)
{
    sleep_until(at_ns);
    part_barrier("step", self->engine);
    return part_now_ns();
}

static int64_t run_backward(live_step *self, int64_t began_ns)
{
    const study_model *model = self->model;
    pthread_mutex_lock(&self->mutex);
    self->missing = model->count;
    pthread_mutex_unlock(&self->mutex);
    for (uint32_t i = 0; i < model->count; i++) {
        sleep_until(began_ns + model->tensors[i].ready_ns);
        submit_gradient(self, i);
    }
    return began_ns + model->backward_ns;
}

static void run_steps(live_step *self)
{
    int64_t at_ns = part_now_ns();
    for (uint32_t i = 0; i <= self->iterations + 1; i++) {
        self->began_ns[i] = at_ns;
        if (i == self->iterations + 1) {
            break;
        }
        at_ns = run_forward(self, at_ns, i == 0);
        at_ns = run_backward(self, self->together ? meet_workers(self, at_ns) : at_ns);
        if (!self->cross_barrier) {
            const int64_t back_ns = wait_back(self, NULL);
            at_ns = (at_ns > back_ns ? at_ns : back_ns) + self->model->optimizer_ns;
        }
    }
    (void)wait_back(self, NULL);
}

/* ---- The whole ---- */

/* Sums of three random numbers lie around 0 much as gradients do. */
static float *random_contents(const live_step *self, uint64_t bytes, uint64_t seed)
{
    float *contents = part_alloc("step", self->engine, bytes);
    for (uint64_t i = 0; i < bytes / 4; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        contents[i] = (float)((int64_t)(seed >> 43) + (int64_t)(seed >> 22 & 0x1fffff) +
                              (int64_t)(seed >> 1 & 0x1fffff) - 3 * (1 << 20)) /
                      (1 << 20);
    }
    return contents;
}

static void declare_all(live_step *self)
{
    const study_model *model = self->model;
    trib_error error = {.status = TRIB_OK};
    self->gradients = part_zalloc("step", self->engine, model->count, sizeof *self->gradients);
    for (uint32_t i = 0; i < model->count; i++) {
        trib_tensor_desc desc;
        trib_tensor_desc_init(&desc, sizeof desc);
        desc.name = model->tensors[i].name;
        desc.count = model->tensors[i].bytes / 4;
        desc.priority = self->priorities ? (int32_t)i : 0;
        self->gradients[i].step = self;
        check_status(self, trib_tensor_declare(self->engine, &desc, &self->gradients[i].tensor, &error), &error,
                     desc.name);
        self->gradients[i].buffer = part_alloc("step", self->engine, model->tensors[i].bytes);
        memset(self->gradients[i].buffer, 0, model->tensors[i].bytes);
        if (self->random) {
            self->gradients[i].contents =
                random_contents(self, model->tensors[i].bytes, (uint64_t)self->info.rank << 32 | i);
        }
    }
}

static bool report_steps(live_step *self)
{
    int64_t steps[ITERATIONS_MAX];
    for (uint32_t i = 0; i < self->iterations; i++) {
        steps[i] = self->began_ns[i + 2] - self->began_ns[i + 1];
    }
    qsort(steps, self->iterations, sizeof steps[0], compare_i64_values);
    const double step = (double)steps[self->iterations / 2] / 1e6;
    const double low = (double)steps[self->iterations / 4] / 1e6, high = (double)steps[self->iterations * 3 / 4] / 1e6;
    /* The first step is not measured here either. */
    const uint32_t seen = self->first_needed_count - 1;
    qsort(self->first_needed_ns + 1, seen, sizeof self->first_needed_ns[0], compare_i64_values);
    const double first_needed = (double)self->first_needed_ns[1 + seen / 2] / 1e6;
    const study_model *model = self->model;
    const double compute = (double)(model->forward_ns + model->backward_ns + model->optimizer_ns) / 1e6;
    if (self->json) {
        json_t *out =
            json_pack("{s:s, s:i, s:i, s:I, s:b, s:b, s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "model", model->name,
                      "workers", self->info.worker_count, "servers", self->info.server_count, "bytes",
                      (json_int_t)model->bytes, "priorities", self->priorities, "cross_barrier", self->cross_barrier,
                      "iterations", (int)self->iterations, "step_ms", step, "quartile_1_ms", low, "quartile_3_ms", high,
                      "compute_ms", compute, "efficiency", compute / step, "first_needed_ms", first_needed);
        return json_out("step", out, 0);
    }
    printf("%s: %u gradients, %.1f MB; %d worker%s + %d server%s; %s, %s\n", model->name, model->count,
           (double)model->bytes / 1e6, self->info.worker_count, plural(self->info.worker_count),
           self->info.server_count, plural(self->info.server_count), self->priorities ? "priorities" : "no priorities",
           self->cross_barrier ? "each layer waits for its own" : "a barrier after each step");
    printf("  compute  %10.2f ms\n  step     %10.2f ms  (quartiles %.2f, %.2f; %u steps)  efficiency %.1f %%\n",
           compute, step, low, high, self->iterations, 100 * compute / step);
    printf("  the gradient that the next step needs first (%.1f KB) was back %.2f ms after it was handed in\n",
           (double)model->tensors[model->count - 1].bytes / 1e3, first_needed);
    return true;
}

static int parse_options(live_step *self, int argc, char **argv)
{
    const option_row rows[] = {
        {OPTION_TEXT("--model", &self->name, "NAME|FILE",
                     "resnet50 (the default), vgg16, bert-large, gpt2-large or a CSV file")},
        {OPTION_COUNT("--iters", &self->iterations, 1, ITERATIONS_MAX,
                      "steps that are measured, after one that is not; default 5")},
        {OPTION_NUMBER("--compute", &self->compute, "1.0", 0.0001, 10000, "factor on the model's times; default 1")},
        {OPTION_CLEAR("--no-priorities", &self->priorities, "gradients go in the order in which they are ready")},
        {OPTION_SET("--cross-barrier", &self->cross_barrier,
                    "a layer's forward pass waits for that layer's gradients only")},
        {OPTION_SET("--together", &self->together, "all workers begin each backward pass at the same time")},
        {OPTION_SET("--random", &self->random, "gradients are random numbers, the same in each step; else zeros")},
        {OPTION_SET("--json", &self->json, "one JSON object")},
    };
    const option_table table = {
        .command = "step",
        .usage = "[options]     training steps of a model, in a job: tributary run -n 4 -s 2 -- tributary step",
        .rows = rows,
        .count = sizeof rows / sizeof rows[0],
    };
    return options_parse(&table, argc, argv);
}

int step_command(int argc, char **argv)
{
    live_step self = {.name = "resnet50", .iterations = 5, .compute = 1, .priorities = true};
    int status = parse_options(&self, argc, argv);
    if (status >= 0) {
        return status;
    }
    trib_error error = {.status = TRIB_OK};
    self.model = study_model_load(self.name, &error);
    check_status(&self, self.model != NULL ? TRIB_OK : TRIB_INVALID, &error, "model");
    study_model_scale(self.model, self.compute);
    pthread_mutex_init(&self.mutex, NULL);
    pthread_cond_init(&self.changed, NULL);
    self.engine = part_join("step", &self.info);
    declare_all(&self);
    run_steps(&self);
    const bool fine = self.info.rank != 0 || report_steps(&self);
    for (uint32_t i = 0; i < self.model->count; i++) {
        trib_free(self.engine, self.gradients[i].buffer);
        trib_free(self.engine, self.gradients[i].contents);
    }
    (void)trib_engine_destroy(self.engine);
    free(self.gradients);
    free(self.model);
    return fine ? 0 : 1;
}
