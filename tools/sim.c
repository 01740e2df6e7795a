/*
 * sim.c - `tributary sim`: training steps of a model on a cluster that is not there, in virtual time, beside a ring.
 *
 * Looks inside the library: the engines are those of production, on simulated reactors and links (tools/study/).
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "tools/commands.h"
#include "tools/json_out.h"
#include "tools/option.h"
#include "tools/plural.h"
#include "tools/study/parse.h"
#include "tools/study/step.h"

#define RING_BUCKET (UINT64_C(25) * 1000 * 1000)

typedef struct sim_options {
    const char *model;
    study_step_config step;
    double compute, device_gb;
    int64_t hop_ns;
    bool json, quiet;
    char trace[4096]; /* where each member's goes; "": nowhere */
} sim_options;

static void usage(FILE *out)
{
    fprintf(out,
            "usage: tributary sim [options]       training steps in virtual time, and a ring all-reduce beside them\n"
            "  --model NAME|FILE      resnet50, vgg16, bert-large, gpt2-large or a CSV file    (resnet50)\n"
            "  -n WORKERS -s SERVERS  machines that train, 1..2048 (8), and that only sum, 0..2048 (0)\n"
            "  --rate 10gbit          each machine's link, each way, 1kbit..100000gbit\n"
            "  --latency 15us         from it to the switch, up to 1000000s\n"
            "  --goodput 0.956        share of the rate that carries data, 0.01..1\n"
            "  --reactors N --cores N of each member, 1..16 (1), 1..1024 (4)\n"
            "  --window 1M            bytes of a connection under way, 1K..1G\n"
            "  --costs tcp|rdma       what a message costs the processor (tcp)\n"
            "  --one-machine          the members share the cores, as hosts in network namespaces of one machine do\n"
            "  --per-machine N        workers after one another on one machine, whose link they share, 1..64 (1);\n"
            "                         as many on each, so -n is a multiple of it; servers have machines of their own\n"
            "  --local-sum auto|on|off   whether those sum first\n"
            "  --local-rate 200gbit   between processes of a machine, 1kbit..100000gbit\n"
            "  --partition 1M --chunk 256K --credit 1M    as in trib_config: 4K..1G, a power of two 4K..1M, 4K..1G\n"
            "  --no-priorities        gradients go in the order in which they are ready\n"
            "  --cross-barrier        a layer's forward pass waits for that layer's gradients only\n"
            "  --codec 0.5            bytes on the wire per byte of gradient, 0.0001..1 (1)\n"
            "  --compute 1.0          factor on the model's times, 0.0001..10000: another device\n"
            "  --device-rate 10       GB/s at which a machine's GPUs sum among themselves and copy, each way, up to "
            "100000\n"
            "                         (0: as fast as can be)\n"
            "  --hop 15us             cost of each of the ring's moves, beside its bytes, up to 1000000s\n"
            "  --trace DIR            each member writes a trace there, for `tributary trace`\n"
            "  --iters N              1..200 (3)     --seed N (1)     --json     --quiet\n");
}

static bool parse_costs(const char *text, trib_sim_costs *costs_out, char *wants)
{
    const bool rdma = strcmp(text, "rdma") == 0;
    *costs_out = rdma ? trib_sim_costs_rdma() : trib_sim_costs_default();
    snprintf(wants, STUDY_WANTS_MAX, "must be tcp or rdma");
    return rdma || strcmp(text, "tcp") == 0;
}

static bool parse_local_sum(const char *text, trib_local_sum *out, char *wants)
{
    int when = TRIB_LOCAL_SUM_AUTO;
    const bool fine = study_parse_when(text, &when, wants);
    *out = (trib_local_sum)when;
    return fine;
}

/* A folder that the members can write to. */
static bool parse_folder(sim_options *self, const char *text, char *wants)
{
    if (snprintf(self->trace, sizeof self->trace, "%s/%%r.trib", text) >= (int)sizeof self->trace) {
        errno = ENAMETOOLONG;
    } else if (mkdir(text, 0777) == 0 || (errno == EEXIST && access(text, W_OK) == 0)) {
        return true;
    }
    snprintf(wants, STUDY_WANTS_MAX, "%s", strerror(errno));
    return false;
}

static bool parse_option(sim_options *self, int option, const char *text, char *wants)
{
    sim_job_config *job = &self->step.job;
    trib_config *engine = &job->engine;
    switch (option) {
    case 'm':
        self->model = text;
        return true;
    case 'n':
        return study_parse_count(text, 1, 2048, &job->workers, wants);
    case 's':
        return study_parse_count(text, 0, 2048, &job->servers, wants);
    case 'r':
        return study_parse_rate(text, &job->link.egress_bits, wants) &&
               (job->link.ingress_bits = job->link.egress_bits);
    case 'l':
        return study_parse_time(text, &job->link.latency_ns, wants);
    case 'g':
        return study_parse_number(text, 0.01, 1, &job->net.goodput, wants);
    case 'R':
        return study_parse_count(text, 1, 16, &engine->reactors, wants);
    case 'c':
        return study_parse_count(text, 1, 1024, &job->cores, wants);
    case 'c' + 256:
        return parse_costs(text, &job->costs, wants);
    case 'o' + 256:
        job->one_machine = true;
        return true;
    case 'm' + 256:
        return study_parse_count(text, 1, 64, &job->per_machine, wants);
    case 's' + 256:
        return parse_local_sum(text, &engine->local_sum, wants);
    case 'r' + 256:
        return study_parse_rate(text, &job->net.local_bits, wants);
    case 'w':
        return study_parse_size(text, 1024, 1u << 30, &job->net.window_bytes, wants);
    case 'p':
        return study_parse_size(text, 4096, 1u << 30, &engine->partition_bytes, wants);
    case 'k':
        return study_parse_size(text, 4096, 1u << 20, &engine->chunk_bytes, wants);
    case 'C':
        return study_parse_size(text, 4096, 1u << 30, &engine->push_credit_bytes, wants) &&
               (engine->pull_credit_bytes = engine->push_credit_bytes);
    case 'P':
        self->step.priorities = false;
        return true;
    case 'x':
        self->step.cross_barrier = true;
        return true;
    case 'o':
        return study_parse_number(text, 0.0001, 1, &self->step.codec_ratio, wants);
    case 'f':
        return study_parse_number(text, 0.0001, 10000, &self->compute, wants);
    case 'D':
        return study_parse_number(text, 0, 100000, &self->device_gb, wants);
    case 'H':
        return study_parse_time(text, &self->hop_ns, wants);
    case 'i':
        return study_parse_count(text, 1, 200, &self->step.iterations, wants);
    case 'S':
        return study_parse_seed(text, &job->seed, wants);
    case 't':
        engine->trace = self->trace;
        return parse_folder(self, text, wants);
    case 'j':
        self->json = true;
        return true;
    case 'q':
        self->quiet = true;
        return true;
    default:
        return false;
    }
}

/* Below 0: go on; else the exit status. */
static int parse(sim_options *self, int argc, char **argv)
{
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},
        {"rate", required_argument, NULL, 'r'},
        {"latency", required_argument, NULL, 'l'},
        {"goodput", required_argument, NULL, 'g'},
        {"reactors", required_argument, NULL, 'R'},
        {"cores", required_argument, NULL, 'c'},
        {"costs", required_argument, NULL, 'c' + 256},
        {"one-machine", no_argument, NULL, 'o' + 256},
        {"window", required_argument, NULL, 'w'},
        {"per-machine", required_argument, NULL, 'm' + 256},
        {"local-sum", required_argument, NULL, 's' + 256},
        {"local-rate", required_argument, NULL, 'r' + 256},
        {"partition", required_argument, NULL, 'p'},
        {"chunk", required_argument, NULL, 'k'},
        {"credit", required_argument, NULL, 'C'},
        {"no-priorities", no_argument, NULL, 'P'},
        {"cross-barrier", no_argument, NULL, 'x'},
        {"codec", required_argument, NULL, 'o'},
        {"compute", required_argument, NULL, 'f'},
        {"device-rate", required_argument, NULL, 'D'},
        {"hop", required_argument, NULL, 'H'},
        {"iters", required_argument, NULL, 'i'},
        {"seed", required_argument, NULL, 'S'},
        {"trace", required_argument, NULL, 't'},
        {"json", no_argument, NULL, 'j'},
        {"quiet", no_argument, NULL, 'q'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    char wants[STUDY_WANTS_MAX] = "";
    for (int option; (option = getopt_long(argc, argv, "n:s:h", options, NULL)) != -1;) {
        if (option == 'h') {
            usage(stdout);
            return 0;
        }
        if (option == '?') {
            usage(stderr);
            return 2;
        }
        if (!parse_option(self, option, optarg, wants)) {
            return option_refused("sim", options, option, optarg, wants);
        }
    }
    if (optind < argc) {
        return option_unexpected("sim", argv[optind]);
    }
    const sim_job_config *job = &self->step.job;
    if (job->per_machine > 0 && job->workers % job->per_machine != 0) {
        fprintf(stderr, "tributary sim: --per-machine %u: %u workers (-n) cannot be %u on each machine\n",
                job->per_machine, job->workers, job->per_machine);
        return 2;
    }
    const trib_config *engine = &self->step.job.engine;
    if (engine->partition_bytes % engine->chunk_bytes != 0 || (engine->chunk_bytes & (engine->chunk_bytes - 1)) != 0) {
        fprintf(stderr, "tributary sim: a chunk is a power of two, a partition a multiple of it\n");
        return 2;
    }
    return -1;
}

static void show_progress(void *user, uint32_t iteration, uint32_t iterations)
{
    const sim_options *self = user;
    if (!self->quiet && isatty(STDERR_FILENO)) {
        fprintf(stderr, "\riteration %u of %u%s", iteration, iterations, iteration == iterations ? "\n" : "");
    }
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
        self->step.codec_ratio, "step_ms", (double)result->step_ns / 1e6, "compute_ms",
        (double)result->compute_ns / 1e6, "t_opt_ms", result->t_opt_ns / 1e6, "efficiency",
        (double)result->compute_ns / (double)result->step_ns, "ring_step_ms", (double)ring_ns / 1e6, "ring_efficiency",
        (double)result->compute_ns / (double)ring_ns, "events", (json_int_t)result->events, "wall_seconds",
        result->wall_seconds);
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
    printf("  step with a ring     %10.2f ms  efficiency %5.1f %%  (buckets of 25 MB)\n", ring, 100 * compute / ring);
    printf("  simulated in %.2f s, %llu events, seed %llu\n", result->wall_seconds, (unsigned long long)result->events,
           (unsigned long long)job->seed);
    return true;
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
    int status = parse(&self, argc, argv);
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
    self.step.device_bytes_ns = self.device_gb;
    study_step_result result;
    if (study_step_run(&self.step, &result, &error) != TRIB_OK) {
        fprintf(stderr, "tributary sim: %s\n", error.text);
        free(model);
        return 1;
    }
    const int64_t ring_ns = study_ring_step(&self.step, RING_BUCKET, self.hop_ns);
    const bool fine = (self.json ? print_json : print_text)(&self, model, &result, ring_ns);
    free(model);
    return fine ? 0 : 1;
}
