/* step.c - see step.h. */
#include "tools/study/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/study/exchange.h"
#include "tools/trace/compare.h"

#define JOIN_LIMIT_NS INT64_C(3600000000000)
#define ITERATIONS_MAX 256u
#define SECOND INT64_C(1000000000)
#define LOOK_EVENTS 4096u

struct study;

/* One gradient of one worker. */
typedef struct gradient {
    struct trainer *trainer;
    uint32_t index;
    trib_tensor *tensor;
    void *buffer, *output; /* output is a part of the same memory, or all of it */
    uint64_t output_bytes;
    bool back;                 /* the sum of the latest iteration is back */
    trib_sim_event into, from; /* events: it has passed the device on its way in, and on its way back */
} gradient;

/* One worker. */
typedef struct trainer {
    struct study *study;
    uint32_t rank, iteration;
    trib_sim_event next; /* the end of the device's computation */
    uint32_t layer;      /* forward: the layers that are done; backward: the gradients that are ready */
    bool forward, waiting;
    uint32_t missing; /* sums that are not back yet */
    int64_t backward_began_ns;
    int64_t into_free_ns, from_free_ns; /* when the device has finished its previous input */
    gradient *gradients;
} trainer;

typedef struct study {
    const study_step_config *config;
    trib_codec_desc codec;
    sim_job *job;
    trainer *trainers;
    uint32_t finished;                    /* workers that have finished all iterations */
    uint32_t asked;                       /* calls of has_room */
    int64_t began_ns[ITERATIONS_MAX + 2]; /* when rank 0's iterations began */
    trib_error failure;
    trib_error untraced; /* the error of a trace that could not be written */
} study;

static trib_sim *world_of(const trainer *self)
{
    return self->study->job->sim;
}

static void fail_study(study *self, const trib_error *error)
{
    if (self->failure.status == TRIB_OK) {
        self->failure = *error;
    }
}

static void go_on(trainer *self);

/* ---- Exchanges ---- */

static const study_model *model_of(const trainer *self)
{
    const study_step_config *config = self->study->config;
    return config->models != NULL ? config->models[self->rank] : config->model;
}

/* Passes the bytes through the device, after its previous input. */
static void pass_device(const trainer *self, int64_t *free_ns, uint64_t bytes, trib_sim_event *event)
{
    const double rate = self->study->config->device_bytes_ns;
    const int64_t now_ns = trib_sim_now(world_of(self));
    const int64_t begin_ns = *free_ns > now_ns ? *free_ns : now_ns;
    *free_ns = rate > 0 ? begin_ns + (int64_t)((double)bytes / rate) : now_ns;
    trib_sim_set(world_of(self), event, *free_ns);
}

static void sum_back(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    gradient *mine = (gradient *)((char *)event - offsetof(gradient, from));
    trainer *self = mine->trainer;
    mine->back = true;
    self->missing--;
    if (self->waiting) {
        go_on(self);
    }
}

static void on_done(const trib_result *result, void *user)
{
    gradient *mine = user;
    trainer *self = mine->trainer;
    if (result->status != TRIB_OK) {
        trib_error error = {.status = result->status};
        snprintf(error.text, sizeof error.text, "%.*s", (int)sizeof error.text - 1, result->text);
        fail_study(self->study, &error);
        return;
    }
    pass_device(self, &self->from_free_ns, model_of(self)->tensors[mine->index].bytes, &mine->from);
}

static void submit_gradient(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    gradient *mine = (gradient *)((char *)event - offsetof(gradient, into));
    trainer *self = mine->trainer;
    const study_tensor *tensor = &model_of(self)->tensors[mine->index];
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = mine->tensor;
    params.kind = tensor->kind;
    params.root = study_exchange_root(tensor, self->study->config->job.workers);
    params.input = mine->buffer;
    params.output = mine->output;
    params.output_bytes = mine->output_bytes;
    params.done_cb = on_done;
    params.user = mine;
    trib_error error = {.status = TRIB_OK};
    if (trib_submit_batch(self->study->job->members[self->rank].engine, &params, 1, NULL, &error) != TRIB_OK) {
        fail_study(self->study, &error);
    }
}

/* ---- Computing ---- */

static void begin_computing(trainer *self, int64_t ns)
{
    trib_sim_set(world_of(self), &self->next, trib_sim_now(world_of(self)) + ns);
}

static void begin_iteration(trainer *self)
{
    study *whole = self->study;
    const uint32_t last = whole->config->iterations + 1;
    if (self->rank == 0) {
        whole->began_ns[self->iteration] = trib_sim_now(world_of(self));
        if (whole->config->progress != NULL) {
            whole->config->progress(whole->config->user, self->iteration, last);
        }
    }
    if (self->iteration == last) {
        whole->finished++;
        return;
    }
    self->forward = true;
    self->layer = 0;
    go_on(self);
}

static void begin_backward(trainer *self)
{
    self->forward = false;
    self->layer = 0;
    self->iteration++;
    self->missing = model_of(self)->count;
    self->backward_began_ns = trib_sim_now(world_of(self));
    begin_computing(self, model_of(self)->tensors[0].ready_ns);
}

/* Continues forward layer by layer; without a barrier a layer includes its part of the optimizer. */
static void forward_on(trainer *self)
{
    const study_step_config *config = self->study->config;
    const study_model *model = model_of(self);
    if (!config->cross_barrier) {
        if (self->missing > 0) {
            self->waiting = true;
        } else if (self->layer == 0) {
            self->layer = model->count;
            begin_computing(self, model->forward_ns);
        } else {
            begin_backward(self);
        }
        return;
    }
    if (self->layer == model->count) {
        begin_backward(self);
        return;
    }
    const uint32_t index = model->count - 1 - self->layer;
    if (self->iteration > 0 && !self->gradients[index].back) {
        self->waiting = true;
        return;
    }
    self->layer++;
    begin_computing(self, model->tensors[index].forward_ns +
                              (self->iteration > 0 ? model->optimizer_ns / (int64_t)model->count : 0));
}

/* Continues backward: a gradient is ready, or the pass has ended. */
static void backward_on(trainer *self)
{
    const study_step_config *config = self->study->config;
    const study_model *model = model_of(self);
    const int64_t began_ns = self->backward_began_ns, now_ns = trib_sim_now(world_of(self));
    while (self->layer < model->count && began_ns + model->tensors[self->layer].ready_ns <= now_ns) {
        gradient *mine = &self->gradients[self->layer];
        mine->back = false;
        pass_device(self, &self->into_free_ns, model->tensors[self->layer].bytes, &mine->into);
        self->layer++;
    }
    if (self->layer < model->count) {
        trib_sim_set(world_of(self), &self->next, began_ns + model->tensors[self->layer].ready_ns);
    } else if (now_ns < began_ns + model->backward_ns) {
        trib_sim_set(world_of(self), &self->next, began_ns + model->backward_ns);
    } else if (config->cross_barrier) {
        begin_iteration(self);
    } else if (self->missing > 0) {
        self->waiting = true;
    } else {
        self->forward = true;
        self->layer = UINT32_MAX; /* the optimizer */
        begin_computing(self, model->optimizer_ns);
    }
}

static void go_on(trainer *self)
{
    self->waiting = false;
    if (self->study->failure.status != TRIB_OK) {
        return;
    }
    if (!self->forward) {
        backward_on(self);
    } else if (self->layer == UINT32_MAX) {
        begin_iteration(self);
    } else {
        forward_on(self);
    }
}

static void end_computing(trib_sim *sim, trib_sim_event *event)
{
    (void)sim;
    go_on((trainer *)((char *)event - offsetof(trainer, next)));
}

/* ---- The whole ---- */

/* Declares a tensor and takes memory for its operations: twice the bytes of all slices, where there are any. */
static trib_status declare(trainer *self, uint32_t index, uint64_t *splits, trib_tensor_desc *desc, trib_error *error)
{
    const study_tensor *tensor = &model_of(self)->tensors[index];
    gradient *mine = &self->gradients[index];
    desc->name = tensor->name;
    const study_step_config *config = self->study->config;
    trib_engine *engine = self->study->job->members[self->rank].engine;
    const bool is_sliced = tensor->slices != NULL;
    const study_exchange_of of = {self->rank, config->job.workers, config->codec_ratio};
    mine->output_bytes = study_exchange_describe(tensor, &of, desc, splits);
    const size_t bytes = mine->output_bytes * (is_sliced ? 2 : 1) + 1;
    mine->buffer = config->has_contents ? calloc(1, bytes) : trib_sim_void_take(&self->study->job->nothing, bytes);
    mine->output = is_sliced ? (char *)mine->buffer + mine->output_bytes : mine->buffer;
    const trib_status status =
        tensor->ranks == NULL ? TRIB_OK : study_exchange_group(engine, tensor, &desc->group, error);
    return status != TRIB_OK ? status : trib_tensor_declare(engine, desc, &mine->tensor, error);
}

static trib_status declare_all(trainer *self, trib_error *error)
{
    const study_step_config *config = self->study->config;
    const study_model *model = model_of(self);
    uint64_t *splits = calloc(config->job.workers, sizeof *splits);
    self->gradients = calloc(model->count, sizeof *self->gradients);
    if (self->gradients == NULL || splits == NULL) {
        free(splits);
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the gradients of rank %u", self->rank);
    }
    trib_status status = TRIB_OK;
    for (uint32_t i = 0; i < model->count && status == TRIB_OK; i++) {
        gradient *mine = &self->gradients[i];
        trib_tensor_desc desc;
        trib_tensor_desc_init(&desc, sizeof desc);
        const bool own = model->own_priorities && !config->by_order;
        desc.priority = !config->priorities ? 0 : own ? model->tensors[i].priority : (int32_t)i;
        mine->trainer = self;
        mine->index = i;
        mine->into.fired = submit_gradient;
        mine->from.fired = sum_back;
        status = declare(self, i, splits, &desc, error);
    }
    free(splits);
    return status;
}

/* Tells whether there is memory to go on. It looks only now and then, because a look takes as long as a few
 * events. */
static bool has_room(study *self, uint32_t every)
{
    const study_step_config *config = self->config;
    if (self->asked++ % every != 0) {
        return true;
    }
    const study_memory memory = (config->look == NULL ? study_memory_sample : config->look)();
    if (study_memory_is_short(&memory)) {
        trib_error error;
        (void)trib_error_set(&error, TRIB_NO_MEMORY,
                             "%u workers and %u servers with %u gradients need more memory than there is: %.1f GiB are "
                             "taken, %.1f GiB left",
                             config->job.workers, config->job.servers, config->model->count,
                             (double)memory.taken / (1 << 30), (double)memory.left / (1 << 30));
        fail_study(self, &error);
    }
    return self->failure.status == TRIB_OK;
}

static trib_status open_trainers(study *self, trib_error *error)
{
    self->trainers = calloc(self->config->job.workers, sizeof *self->trainers);
    if (self->trainers == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for %u workers", self->config->job.workers);
    }
    for (uint32_t rank = 0; rank < self->config->job.workers; rank++) {
        trainer *one = &self->trainers[rank];
        one->study = self;
        one->rank = rank;
        one->next.fired = end_computing;
        trib_status status = declare_all(one, error);
        if (status != TRIB_OK || !has_room(self, 1)) {
            return status;
        }
    }
    for (uint32_t rank = 0; rank < self->config->job.workers; rank++) {
        begin_iteration(&self->trainers[rank]);
    }
    return TRIB_OK;
}

static bool is_over(sim_job *job, void *argument)
{
    study *self = argument;
    return self->finished == job->config.workers || self->failure.status != TRIB_OK || !has_room(self, LOOK_EVENTS);
}

static bool has_joined(sim_job *job, void *argument)
{
    return !has_room(argument, LOOK_EVENTS) || sim_job_all_ready(job, NULL);
}

static void measure_steps(study *self, study_step_result *result, uint64_t bytes_before)
{
    const study_step_config *config = self->config;
    int64_t steps[ITERATIONS_MAX];
    for (uint32_t i = 0; i < config->iterations; i++) {
        steps[i] = self->began_ns[i + 2] - self->began_ns[i + 1];
    }
    qsort(steps, config->iterations, sizeof steps[0], compare_i64_values);
    result->step_ns = steps[config->iterations / 2];
    result->compute_ns = config->model->forward_ns + config->model->backward_ns + config->model->optimizer_ns;
    trib_engine_info info = {.struct_size = sizeof info};
    trib_status status = trib_engine_get_info(self->job->members[0].engine, &info);
    const double bits = (double)config->model->bytes * config->codec_ratio * study_codec_ratio(&config->codec) * 8;
    result->local_size = status == TRIB_OK ? info.local_sum : 0;
    if (status == TRIB_OK && !sim_job_is_one_host(&config->job) && !config->model->is_mixed) {
        result->t_opt_ns =
            info.t_opt_factor * bits / ((double)config->job.link.egress_bits * config->job.net.goodput) * 1e9;
    }
    uint64_t most = 0;
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        const uint64_t sent = trib_sim_node_bytes_out(self->job->members[i].node);
        most = sent > most ? sent : most;
    }
    result->wire_bytes = (double)(most - bytes_before) / (config->iterations + 1);
    result->events = trib_sim_steps(self->job->sim);
}

/* Keeps the message of a trace that could not be written. Engines only log it, because the job has succeeded; a
 * caller who asked for traces has to know. */
static void note_untraced(trib_log_level level, const char *line, void *user)
{
    (void)level;
    study *self = user;
    const char *text = strstr(line, "no trace: ");
    if (text != NULL && self->untraced.status == TRIB_OK) {
        (void)trib_error_set(&self->untraced, TRIB_SYSTEM, "%s", text);
    }
}

static trib_status join_members(study *self, study_step_result *result, trib_error *error)
{
    const bool all = sim_job_run(self->job, JOIN_LIMIT_NS, has_joined, self);
    result->join_ns = trib_sim_now(self->job->sim);
    if (self->failure.status != TRIB_OK) {
        *error = self->failure;
        return error->status;
    }
    for (uint32_t i = 0; i < self->job->member_count; i++) {
        const sim_member *member = &self->job->members[i];
        if (member->ready.status != TRIB_OK) {
            *error = member->ready;
            return error->status;
        }
    }
    return all ? TRIB_OK
               : trib_error_set(error, TRIB_JOIN_FAILED, "not all members joined within %lld s of virtual time",
                                (long long)(JOIN_LIMIT_NS / SECOND));
}

static void free_gradients(trainer *self)
{
    for (uint32_t i = 0; self->gradients != NULL && self->study->config->has_contents && i < model_of(self)->count;
         i++) {
        free(self->gradients[i].buffer);
    }
    free(self->gradients);
}

static void close_study(study *self)
{
    if (self->trainers != NULL) {
        for (uint32_t rank = 0; rank < self->config->job.workers; rank++) {
            trib_sim_clear(self->job->sim, &self->trainers[rank].next);
        }
    }
    if (self->job != NULL && sim_job_close(self->job, 60 * SECOND)) {
        for (uint32_t rank = 0; self->trainers != NULL && rank < self->config->job.workers; rank++) {
            free_gradients(&self->trainers[rank]);
        }
        sim_job_free(self->job);
    }
    free(self->trainers);
}

/* Returns the size of the gradients of all workers and of the servers' state: a few chunks for each contributor
 * and key. */
static uint64_t addresses_for(const study_step_config *config)
{
    const double ratio = config->model->is_mixed ? 2 : config->codec_ratio; /* input and output apart */
    double all = (double)config->model->bytes * ratio * config->job.workers;
    for (uint32_t i = 0; i < config->job.workers && config->models != NULL && config->model->is_mixed; i++) {
        all += (double)config->models[i]->bytes * ratio; /* with groups, workers' bytes differ */
    }
    const uint64_t pages = (uint64_t)config->model->count * config->job.workers * 4096;
    return (uint64_t)(all * 6) + pages + (UINT64_C(1) << 36);
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

trib_status study_step_run(const study_step_config *config, study_step_result *result, trib_error *error)
{
    *result = (study_step_result){.step_ns = 0};
    if (config->iterations == 0 || config->iterations > ITERATIONS_MAX || config->model->count == 0) {
        return trib_error_set(error, TRIB_INVALID, "%u iterations of %u gradients: must be 1 to %u, and some",
                              config->iterations, config->model->count, ITERATIONS_MAX);
    }
    const study_memory memory = (config->look == NULL ? study_memory_sample : config->look)();
    const trib_status room = study_memory_check(&memory, &config->job, config->model->count, error);
    if (room != TRIB_OK) {
        return room;
    }
    const double began = seconds_now();
    study self = {.config = config, .failure = {.status = TRIB_OK}};
    sim_job_config job = config->job;
    job.void_bytes = config->has_contents ? 0 : addresses_for(config);
    job.engine.op_timeout_ns = -1;
    if (job.engine.trace != NULL) {
        job.engine.log_level = TRIB_LOG_ERROR;
        job.engine.log_cb = note_untraced;
        job.engine.log_user = &self;
    }
    sim_job_charge_links(&job);
    study_codec_apply(&config->codec, &self.codec, &job);
    self.job = sim_job_open(&job, error);
    trib_status status = self.job == NULL ? error->status : join_members(&self, result, error);
    if (self.job != NULL && status == TRIB_OK) {
        const uint64_t before = trib_sim_node_bytes_out(self.job->members[0].node);
        status = open_trainers(&self, error);
        const bool comes_to_an_end = status == TRIB_OK && sim_job_run(self.job, INT64_MAX, is_over, &self);
        if (self.failure.status != TRIB_OK) {
            *error = self.failure;
            status = self.failure.status;
        } else if (status == TRIB_OK && !comes_to_an_end) {
            status = trib_error_set(error, TRIB_TIMEOUT, "no event is left, and the steps are not finished");
        }
        if (status == TRIB_OK) {
            measure_steps(&self, result, before);
        }
    }
    close_study(&self);
    result->wall_seconds = seconds_now() - began;
    if (status == TRIB_OK && self.untraced.status != TRIB_OK) {
        *error = self.untraced;
    }
    return status == TRIB_OK ? self.untraced.status : status;
}
