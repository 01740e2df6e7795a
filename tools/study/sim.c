/*
 * sim.c - `tributary sim`: training steps of a model on a simulated cluster, in virtual time, compared with a ring.
 *
 * Looks inside the library: the engines are those of production, on simulated reactors and links (tools/study/).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "tools/cli/commands.h"
#include "tools/cli/json_out.h"
#include "tools/cli/options.h"
#include "tools/cli/plural.h"
#include "tools/study/step.h"

#define RING_BUCKET (UINT64_C(25) * 1000 * 1000)

typedef struct sim_options {
    const char *model;
    study_step_config step;
    double compute, device_gb;
    int64_t hop_ns, skew_ns;
    study_model **models; /* by rank, if the workers compute apart */
    int costs;            /* an index of costs_words */
    bool json, quiet;
    char trace[4096]; /* pattern of the trace files; "": none */
} sim_options;

enum { COSTS_TCP, COSTS_RDMA };
static const char *const costs_words[] = {[COSTS_TCP] = "tcp", [COSTS_RDMA] = "rdma", NULL};

typedef struct sim_values {
    uint64_t rate_bits;
    uint32_t credit;
    int local_sum;
    const char *trace, *codec;
} sim_values;

/* Makes the folder, or checks that the members can write to it. */
static bool prepare_folder(sim_options *self, const char *text, char *wants)
{
    if (snprintf(self->trace, sizeof self->trace, "%s/%%r.trib", text) >= (int)sizeof self->trace) {
        errno = ENAMETOOLONG;
    } else if (mkdir(text, 0777) == 0 || (errno == EEXIST && access(text, W_OK) == 0)) {
        return true;
    }
    snprintf(wants, OPTION_WANTS_MAX, "%s", strerror(errno));
    return false;
}

/* Sets the values that the configuration has in several places, and checks options that depend on each other. */
static int apply_options(sim_options *self, const option_table *table, const sim_values *values)
{
    sim_job_config *job = &self->step.job;
    trib_config *engine = &job->engine;
    job->link.egress_bits = job->link.ingress_bits = values->rate_bits;
    engine->push_credit_bytes = engine->pull_credit_bytes = values->credit;
    engine->local_sum = (trib_local_sum)values->local_sum;
    job->costs = self->costs == COSTS_RDMA ? trib_sim_costs_rdma() : trib_sim_costs_default();
    char wants[OPTION_WANTS_MAX];
    trib_error error = {.text = ""};
    if (values->codec != NULL &&
        study_codec_option(values->codec, &self->step.codec, &self->step.codec_ratio, &error) != TRIB_OK) {
        fprintf(stderr, "tributary sim: --codec: %s\n", error.text);
        return 2;
    }
    if (values->trace != NULL && !prepare_folder(self, values->trace, wants)) {
        return options_reject(table, "--trace", values->trace, wants);
    }
    engine->trace = values->trace != NULL ? self->trace : NULL;
    if (job->per_machine > 0 && job->workers % job->per_machine != 0) {
        fprintf(stderr, "tributary sim: --per-machine %u: %u workers (-n) cannot be %u on each machine\n",
                job->per_machine, job->workers, job->per_machine);
        return 2;
    }
    if (engine->partition_bytes % engine->chunk_bytes != 0 || (engine->chunk_bytes & (engine->chunk_bytes - 1)) != 0) {
        fprintf(stderr, "tributary sim: a chunk is a power of two, a partition a multiple of it\n");
        return 2;
    }
    return -1;
}

static int parse_options(sim_options *self, int argc, char **argv)
{
    sim_job_config *job = &self->step.job;
    trib_config *engine = &job->engine;
    sim_values values = {
        .rate_bits = job->link.egress_bits, .credit = engine->push_credit_bytes, .local_sum = engine->local_sum};
    const option_row rows[] = {
        {OPTION_TEXT("--model", &self->model, "NAME|FILE",
                     "resnet50 (the default), vgg16, bert-large, gpt2-large or a CSV file")},
        {OPTION_COUNT("-n", &job->workers, 1, 2048, "machines that train; default 8")},
        {OPTION_COUNT("-s", &job->servers, 0, 2048, "machines that only sum; default 0")},
        {OPTION_RATE("--rate", &values.rate_bits, "10gbit", "each machine's link, each way")},
        {OPTION_TIME("--latency", &job->link.latency_ns, "15us", "from a machine to the switch")},
        {OPTION_NUMBER("--goodput", &job->net.goodput, "0.956", 0.01, 1, "share of the rate that carries data")},
        {OPTION_COUNT("--reactors", &engine->reactors, 1, 16, "of each member; default 1")},
        {OPTION_COUNT("--cores", &job->cores, 1, 1024, "of each machine; default 4")},
        {OPTION_SIZE("--window", &job->net.window_bytes, "1M", 1024, 1u << 30, "bytes in flight on a connection")},
        {OPTION_CHOICE("--costs", &self->costs, costs_words, "tcp|rdma", "what a message costs the processor")},
        {OPTION_SET("--one-machine", &job->one_machine,
                    "the members share the cores, as hosts in network namespaces of one machine do")},
        {OPTION_COUNT("--per-machine", &job->per_machine, 1, 64,
                      "consecutive workers on one machine, which share its link; -n is a multiple of it; servers have "
                      "machines of their own; default 1")},
        {OPTION_CHOICE("--local-sum", &values.local_sum, option_when_words, "WHEN",
                       "whether the workers of a machine sum first")},
        {OPTION_RATE("--local-rate", &job->net.local_bits, "200gbit", "between processes of a machine")},
        {OPTION_SIZE("--partition", &engine->partition_bytes, "1M", 4096, 1u << 30, "as in trib_config")},
        {OPTION_SIZE("--chunk", &engine->chunk_bytes, "256K", 4096, 1u << 20, "as in trib_config, a power of two")},
        {OPTION_SIZE("--credit", &values.credit, "1M", 4096, 1u << 30, "of PUSH and of PULL, as in trib_config")},
        {OPTION_CLEAR("--no-priorities", &self->step.priorities, "gradients go in the order in which they are ready")},
        {OPTION_SET("--cross-barrier", &self->step.cross_barrier,
                    "a layer's forward pass waits for that layer's gradients only")},
        {OPTION_TEXT("--codec", &values.codec, "CODEC|RATIO",
                     "as in TRIB_CODEC, measured on this machine; or bytes on the wire per byte of gradient, at no "
                     "cost; default 1")},
        {OPTION_NUMBER("--compute", &self->compute, "1.0", 0.0001, 10000,
                       "factor on the model's times, for another device")},
        {OPTION_TIME("--skew", &self->skew_ns, "0s", "between the backward passes of the first and the last worker")},
        {OPTION_NUMBER("--device-rate", &self->device_gb, "10", 0, 100000,
                       "GB/s at which a machine's GPUs sum and copy, each way; 0, the default: no limit")},
        {OPTION_TIME("--hop", &self->hop_ns, "15us", "cost of each move of the ring, beside its bytes")},
        {OPTION_TEXT("--trace", &values.trace, "DIR", "each member writes a trace there, for tributary trace")},
        {OPTION_COUNT("--iters", &self->step.iterations, 1, 200, "steps; default 3")},
        {OPTION_SEED("--seed", &job->seed, "default 1")},
        {OPTION_SET("--json", &self->json, "one JSON object")},
        {OPTION_SET("--quiet", &self->quiet, "no progress")},
    };
    const option_table table = {
        .command = "sim",
        .usage = "[options]     training steps in virtual time, and a ring all-reduce beside them",
        .rows = rows,
        .count = sizeof rows / sizeof rows[0],
    };
    const int status = options_parse(&table, argc, argv);
    return status >= 0 ? status : apply_options(self, &table, &values);
}

static void show_progress(void *user, uint32_t iteration, uint32_t iterations)
{
    const sim_options *self = user;
    if (!self->quiet && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\riteration %u of %u%s", iteration, iterations, iteration == iterations ? "\n" : "");
    }
}

/* The assumptions behind the times, beside the options that are printed anyway. Whether it was given or is the default,
 * it is assumed of every machine. */
static json_t *pack_assumptions(const sim_options *self, const study_model *model)
{
    const sim_job_config *job = &self->step.job;
    return json_pack("{s:I, s:f, s:I, s:i, s:i, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:i, s:b, s:I}", "latency_ns",
                     (json_int_t)job->link.latency_ns, "goodput", job->net.goodput, "window_bytes",
                     (json_int_t)job->net.window_bytes, "cores", (int)job->cores, "reactors", (int)job->engine.reactors,
                     "costs", costs_words[self->costs], "wake_ns", (json_int_t)job->costs.wake_ns, "local_rate_bits",
                     (json_int_t)job->net.local_bits, "forward_ms", (double)model->forward_ns / 1e6, "backward_ms",
                     (double)model->backward_ns / 1e6, "optimizer_ms", (double)model->optimizer_ns / 1e6,
                     "device_gb_per_s", self->device_gb, "ring_hop_ns", (json_int_t)self->hop_ns, "loss", 0,
                     "one_machine", job->one_machine, "skew_ns", (json_int_t)self->skew_ns);
}

static void print_assumptions(const sim_options *self, const study_model *model)
{
    const sim_job_config *job = &self->step.job;
    printf("  assumed: compute of the model's list (forward %.2f ms, backward %.2f ms, optimizer %.2f ms) on every "
           "machine,\n           ",
           (double)model->forward_ns / 1e6, (double)model->backward_ns / 1e6, (double)model->optimizer_ns / 1e6);
    if (self->skew_ns > 0) {
        printf("backward passes that begin evenly over %.3g ms, compute is the last one's;\n           ",
               (double)self->skew_ns / 1e6);
    }
    if (self->device_gb > 0) {
        printf("GPUs that copy %.3g GB/s each way;\n           ", self->device_gb);
    } else {
        printf("GPUs that copy and sum in no time;\n           ");
    }
    printf("%.3g us to the switch, %.3g of the rate for data, %u KiB in flight a connection, no loss, no other "
           "traffic;\n           %u core%s a machine, %u reactor%s a member, a message's cost as of %s "
           "(docs/simulation.md);\n           the ring: buckets of %.0f MB, %.3g us a move beside its bytes\n",
           (double)job->link.latency_ns / 1e3, job->net.goodput, job->net.window_bytes >> 10, job->cores,
           plural(job->cores), job->engine.reactors, plural(job->engine.reactors), costs_words[self->costs],
           (double)RING_BUCKET / 1e6, (double)self->hop_ns / 1e3);
}

static bool print_json(const sim_options *self, const study_model *model, const study_step_result *result,
                       int64_t ring_ns)
{
    const sim_job_config *job = &self->step.job;
    json_t *out = json_pack(
        "{s:s, s:i, s:i, s:i, s:I, s:I, s:b, s:b, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:f}", "model",
        model->name, "workers", (int)job->workers, "servers", (int)job->servers, "local_sum", (int)result->local_size,
        "bytes", (json_int_t)model->bytes, "rate_bits", (json_int_t)job->link.egress_bits, "priorities",
        self->step.priorities, "cross_barrier", self->step.cross_barrier, "seed", (json_int_t)job->seed, "codec",
        self->step.codec_ratio * study_codec_ratio(&self->step.codec), "step_ms", (double)result->step_ns / 1e6,
        "compute_ms", (double)result->compute_ns / 1e6, "t_opt_ms", result->t_opt_ns / 1e6, "efficiency",
        (double)result->compute_ns / (double)result->step_ns, "ring_step_ms", (double)ring_ns / 1e6, "ring_efficiency",
        (double)result->compute_ns / (double)ring_ns, "events", (json_int_t)result->events, "wall_seconds",
        result->wall_seconds);
    if (out != NULL) {
        json_object_set_new(out, "assumptions", pack_assumptions(self, model));
    }
    return json_out("sim", out, 0);
}

static bool print_text(const sim_options *self, const study_model *model, const study_step_result *result,
                       int64_t ring_ns)
{
    const sim_job_config *job = &self->step.job;
    const double step = (double)result->step_ns / 1e6, compute = (double)result->compute_ns / 1e6;
    const double ring = (double)ring_ns / 1e6;
    printf("%s: %u gradients, %.1f MB; %u worker%s + %u server%s, %.3g Gbit/s; %s, %s\n", model->name, model->count,
           (double)model->bytes / 1e6, job->workers, plural(job->workers), job->servers, plural(job->servers),
           (double)job->link.egress_bits / 1e9, self->step.priorities ? "priorities" : "no priorities",
           self->step.cross_barrier ? "each layer waits for its own" : "a barrier after each step");
    if (job->per_machine > 1) {
        printf("  %u workers a machine; %s\n", job->per_machine,
               result->local_size > 0 ? "they sum first" : "each pushes its own");
    }
    printf("  compute              %10.2f ms\n", compute);
    if (result->t_opt_ns > 0) {
        printf("  least exchange time  %10.2f ms  (t_opt; %.2f of compute)\n", result->t_opt_ns / 1e6,
               result->t_opt_ns / 1e6 / compute);
    }
    printf("  step                 %10.2f ms  efficiency %5.1f %%\n", step, 100 * compute / step);
    printf("  step with a ring     %10.2f ms  efficiency %5.1f %%\n", ring, 100 * compute / ring);
    if (self->step.codec.text[0] != '\0') {
        printf("  %s: encodes %.2f GB/s, decodes %.2f GB/s, measured here; the ring has its bytes, at no cost\n",
               self->step.codec.text, 1 / self->step.codec.speed.encode_ns, 1 / self->step.codec.speed.decode_ns);
    }
    print_assumptions(self, model);
    printf("  simulated in %.2f s, %llu events, seed %llu\n", result->wall_seconds, (unsigned long long)result->events,
           (unsigned long long)job->seed);
    return true;
}

/* The backward passes begin evenly over the skew. The step's own model is that of the last worker. */
static bool spread_workers(sim_options *self, const study_model *model)
{
    const uint32_t workers = self->step.job.workers;
    self->models = calloc(workers, sizeof *self->models);
    for (uint32_t i = 0; self->models != NULL && i < workers; i++) {
        const double place = workers > 1 ? (double)i / (workers - 1) : 0;
        self->models[i] = study_model_late(model, (int64_t)((double)self->skew_ns * place));
        if (self->models[i] == NULL) {
            return false;
        }
    }
    if (self->models != NULL) {
        self->step.models = (const study_model *const *)self->models;
        self->step.model = self->models[workers - 1];
    }
    return self->models != NULL;
}

static void free_models(sim_options *self, study_model *model)
{
    for (uint32_t i = 0; self->models != NULL && i < self->step.job.workers; i++) {
        free(self->models[i]);
    }
    free(self->models);
    free(model);
}

int sim_command(int argc, char **argv)
{
    sim_options self = {.model = "resnet50",
                        .step = {.job = sim_job_config_default(8, 0),
                                 .iterations = 3,
                                 .priorities = true,
                                 .codec_ratio = 1,
                                 .progress = show_progress},
                        .compute = 1,
                        .hop_ns = 15000};
    self.step.user = &self;
    int status = parse_options(&self, argc, argv);
    if (status >= 0) {
        return status;
    }
    trib_error error = {.status = TRIB_OK};
    study_model *model = study_model_load(self.model, &error);
    if (model == NULL) {
        fprintf(stderr, "tributary sim: %s\n", error.text);
        return 1;
    }
    study_model_scale(model, self.compute);
    self.step.model = model;
    if (self.skew_ns > 0 && !spread_workers(&self, model)) {
        fprintf(stderr, "tributary sim: out of memory\n");
        free_models(&self, model);
        return 1;
    }
    self.step.device_bytes_ns = self.device_gb;
    study_step_result result;
    if (study_step_run(&self.step, &result, &error) != TRIB_OK) {
        fprintf(stderr, "tributary sim: %s\n", error.text);
        free_models(&self, model);
        return 1;
    }
    const int64_t ring_ns = study_ring_step(&self.step, RING_BUCKET, self.hop_ns);
    const bool fine = (self.json ? print_json : print_text)(&self, model, &result, ring_ns);
    free_models(&self, model);
    return fine ? 0 : 1;
}
