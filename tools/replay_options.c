/* replay_options.c - see replay_options.h. */
#include "tools/replay_options.h"

#include <getopt.h>
#include <stdlib.h>

#include "api/config/config.h"
#include "tools/option.h"
#include "tools/study/parse.h"

#define DISTANCE_WORTH_A_WORD 0.1

static void usage(const replay_options *self, FILE *out)
{
    const bool tune = strcmp(self->name, "tune") == 0;
    fprintf(
        out,
        "usage: tributary %s [options] FILE...     %s\n"
        "settings, as recorded unless they are given:\n"
        "  -n WORKERS -s SERVERS  1..2048, 0..2048  --colocate auto|on|off\n"
        "  --per-machine N        workers on each machine, which share its link, 1..64\n"
        "  --local-sum auto|on|off   whether those sum first, so that one contribution leaves a machine\n"
        "  --partition 1M --chunk 256K --credit 1M    4K..1G, a power of two 4K..1M, 4K..1G\n"
        "  --no-priorities        all gradients alike, in the order in which they are ready\n"
        "  --priorities           what forward needs first goes first, whatever was recorded\n"
        "  --cross-barrier        a layer's forward pass waits for that layer's gradients only\n"
        "  --codec 0.5            bytes on the wire per byte of gradient, 0.0001..1\n"
        "  --compute 0.5          factor on the recorded times between operations, 0.0001..10000: another device\n"
        "  --rate 10gbit          links in the prediction, 1kbit..100000gbit\n"
        "the world of the recording, estimated from it unless given:\n"
        "  --recorded-rate 1gbit  its links, 1kbit..100000gbit\n"
        "  --latency 15us         from a machine to the switch, up to 1000000s\n"
        "  --cores N              of each machine, 1..1024   --one-machine  --many-machines   where members were\n"
        "  --recorded-forward 9ms its forward pass went on by layers, without a barrier, and takes that long\n"
        "  --reactors N           of each member, 1..16      --window 1M   bytes of a connection under way, 1K..1G\n"
        "  --local-rate 200gbit   at which a process sends to others of its machine, 1kbit..100000gbit\n"
        "  --iters N              1..200 (3)     --json     --quiet\n",
        self->name,
        tune ? "searches the settings under which a recorded step is fastest"
             : "a recorded step again, under other settings");
    if (!tune) {
        fprintf(out,
                "  --live                 on real transports, on this machine: tributary run ... -- tributary step\n"
                "  --export FILE.csv      writes the step as a model for tributary sim and tributary step\n");
    }
}

static void note(replay_options *self, const char *name, const char *text)
{
    const size_t used = strlen(self->changes);
    snprintf(self->changes + used, sizeof self->changes - used, "%s%s%s%s", used > 0 ? ", " : "", name,
             text != NULL ? " " : "", text != NULL ? text : "");
}

static bool parse_world(replay_options *self, int option, const char *text, char *wants)
{
    switch (option) {
    case 'B':
        return study_parse_rate(text, &self->recorded_rate_bits, wants);
    case 'F':
        return study_parse_time(text, &self->forward_ns, wants);
    case 'l':
        return study_parse_time(text, &self->latency_ns, wants);
    case 'c':
        return study_parse_count(text, 1, 1024, &self->cores, wants);
    case '1':
        self->one_machine = 1;
        return true;
    case 'm':
        self->one_machine = 0;
        return true;
    case 'R':
        return study_parse_count(text, 1, 16, &self->reactors, wants);
    case 'w':
        return study_parse_size(text, 1024, 1u << 30, &self->window, wants);
    case 'b':
        return study_parse_rate(text, &self->local_rate_bits, wants);
    case 'i':
        return study_parse_count(text, 1, 200, &self->iterations, wants);
    case 'j':
        self->json = true;
        return true;
    case 'q':
        self->quiet = true;
        return true;
    case 'L':
        self->live = true;
        return true;
    case 'e':
        self->export = text;
        return true;
    default:
        return false;
    }
}

static bool parse_setting(replay_options *self, int option, const char *text, char *wants)
{
    uint32_t servers = 0;
    switch (option) {
    case 'n':
        return study_parse_count(text, 1, 2048, &self->workers, wants);
    case 's':
        if (!study_parse_count(text, 0, 2048, &servers, wants)) {
            return false;
        }
        self->servers = servers;
        return true;
    case 'o':
        return study_parse_when(text, &self->colocate, wants);
    case 'M':
        return study_parse_count(text, 1, 64, &self->per_machine, wants);
    case 'S':
        return study_parse_when(text, &self->local_sum, wants);
    case 'p':
        return study_parse_size(text, 4096, 1u << 30, &self->partition, wants);
    case 'k':
        return study_parse_size(text, 4096, 1u << 20, &self->chunk, wants);
    case 'C':
        return study_parse_size(text, 4096, 1u << 30, &self->credit, wants);
    case 'P':
        self->no_priorities = true;
        return true;
    case 'O':
        self->by_order = true;
        return true;
    case 'x':
        self->cross_barrier = true;
        return true;
    case 'd':
        return study_parse_number(text, 0.0001, 1, &self->codec, wants);
    case 'f':
        return study_parse_number(text, 0.0001, 10000, &self->compute, wants);
    case 'r':
        return study_parse_rate(text, &self->rate_bits, wants);
    default:
        return false;
    }
}

int replay_options_parse(replay_options *self, int argc, char **argv)
{
    static const struct option options[] = {
        {"colocate", required_argument, NULL, 'o'},
        {"per-machine", required_argument, NULL, 'M'},
        {"local-sum", required_argument, NULL, 'S'},
        {"local-rate", required_argument, NULL, 'b'},
        {"partition", required_argument, NULL, 'p'},
        {"chunk", required_argument, NULL, 'k'},
        {"credit", required_argument, NULL, 'C'},
        {"no-priorities", no_argument, NULL, 'P'},
        {"priorities", no_argument, NULL, 'O'},
        {"cross-barrier", no_argument, NULL, 'x'},
        {"codec", required_argument, NULL, 'd'},
        {"compute", required_argument, NULL, 'f'},
        {"rate", required_argument, NULL, 'r'},
        {"recorded-forward", required_argument, NULL, 'F'},
        {"recorded-rate", required_argument, NULL, 'B'},
        {"latency", required_argument, NULL, 'l'},
        {"cores", required_argument, NULL, 'c'},
        {"one-machine", no_argument, NULL, '1'},
        {"many-machines", no_argument, NULL, 'm'},
        {"reactors", required_argument, NULL, 'R'},
        {"window", required_argument, NULL, 'w'},
        {"iters", required_argument, NULL, 'i'},
        {"json", no_argument, NULL, 'j'},
        {"quiet", no_argument, NULL, 'q'},
        {"live", no_argument, NULL, 'L'},
        {"export", required_argument, NULL, 'e'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    const bool tune = strcmp(self->name, "tune") == 0;
    self->servers = self->latency_ns = self->forward_ns = -1;
    self->colocate = self->one_machine = self->local_sum = -1;
    for (int option, index = -1; (option = getopt_long(argc, argv, "n:s:h", options, &index)) != -1; index = -1) {
        if (option == 'h') {
            usage(self, stdout);
            return 0;
        }
        char name[32];
        if (index >= 0) {
            snprintf(name, sizeof name, "--%s", options[index].name);
        } else {
            snprintf(name, sizeof name, "-%c", option);
        }
        const bool setting = strchr("nsoMSpkCPOxdfr", option) != NULL;
        if (option == '?') {
            usage(self, stderr);
            return 2;
        }
        char wants[STUDY_WANTS_MAX] = "is an option of tributary replay";
        if ((tune && (option == 'L' || option == 'e')) ||
            !(setting ? parse_setting : parse_world)(self, option, optarg, wants)) {
            return option_refused(self->name, options, option, optarg, wants);
        }
        if (setting) {
            note(self, name, optarg);
        }
    }
    if (optind == argc || (self->no_priorities && self->by_order)) {
        fprintf(stderr, optind == argc ? "tributary %s: which traces?\n\n" : "tributary %s: priorities or none?\n\n",
                self->name);
        usage(self, stderr);
        return 2;
    }
    return -1;
}

bool replay_options_load(const replay_options *self, char *const *paths, uint32_t count, study_replay *replay)
{
    trace_run *run = NULL;
    trace_stats stats;
    trib_error error = {.status = TRIB_OK};
    if (trace_run_load(paths, count, &run, &error) != TRIB_OK) {
        fprintf(stderr, "tributary %s: %s\n", self->name, error.text);
        return false;
    }
    trib_status status = trace_stats_make(run, &stats) ? TRIB_OK : TRIB_NO_MEMORY;
    snprintf(error.text, sizeof error.text, "out of memory");
    if (status == TRIB_OK) {
        status = study_replay_make(run, &stats, replay, &error);
        for (uint32_t i = 0; i < run->warning_count && !self->quiet; i++) {
            fprintf(stderr, "tributary %s: note: %s\n", self->name, run->warnings[i]);
        }
        trace_stats_free(&stats);
    }
    trace_run_free(run);
    if (status != TRIB_OK) {
        fprintf(stderr, "tributary %s: %s\n", self->name, error.text);
    } else if (replay->left_out > 0 && !self->quiet) {
        fprintf(stderr, "tributary %s: note: %u workers' steps are not those of the first one: they take its times\n",
                self->name, replay->left_out);
    }
    if (status == TRIB_OK && replay->uneven[0] != '\0') {
        fprintf(stderr, "tributary %s: note: %s\n", self->name, replay->uneven);
    }
    if (status == TRIB_OK && !replay->rate_known && self->recorded_rate_bits == 0 &&
        replay->step.job.workers + replay->step.job.servers > 1) {
        fprintf(stderr,
                "tributary %s: at which rate links ran only those who sum have seen, and not all of their traces are "
                "here: tell --recorded-rate\n",
                self->name);
        study_replay_free(replay);
        return false;
    }
    if (status == TRIB_OK && self->forward_ns >= 0) {
        study_replay_set_forward(replay, self->forward_ns);
    }
    return status == TRIB_OK;
}

void replay_options_world(const replay_options *self, study_step_config *step)
{
    sim_job_config *job = &step->job;
    if (self->recorded_rate_bits > 0) {
        job->link.egress_bits = job->link.ingress_bits = self->recorded_rate_bits;
    }
    job->link.latency_ns = self->latency_ns >= 0 ? self->latency_ns : job->link.latency_ns;
    job->cores = self->cores > 0 ? self->cores : job->cores;
    job->one_machine = self->one_machine >= 0 ? self->one_machine == 1 : job->one_machine;
    job->net.window_bytes = self->window > 0 ? self->window : job->net.window_bytes;
    job->net.local_bits = self->local_rate_bits > 0 ? self->local_rate_bits : job->net.local_bits;
    step->iterations = self->iterations > 0 ? self->iterations : step->iterations;
}

bool replay_options_apply(const replay_options *self, const study_replay *replay, study_step_config *step)
{
    sim_job_config *job = &step->job;
    trib_config *engine = &job->engine;
    const uint32_t workers = job->workers, servers = job->servers;
    job->workers = self->workers > 0 ? self->workers : workers;
    job->servers = self->servers >= 0 ? (uint32_t)self->servers : servers;
    if (self->colocate >= 0) {
        engine->colocate = (trib_colocate)self->colocate;
    } else if (job->workers != workers || job->servers != servers) {
        engine->colocate = TRIB_COLOCATE_AUTO;
    }
    const uint32_t shared = self->per_machine > 0 ? self->per_machine : 1;
    if (job->workers % shared != 0) {
        fprintf(stderr, "tributary %s: %u workers cannot be %u on each machine\n", self->name, job->workers, shared);
        return false;
    }
    job->per_machine = self->per_machine;
    if (replay->one_host && self->per_machine > 0 && self->one_machine < 0) {
        job->one_machine = false; /* asked for are machines that were not there, not namespaces of this one */
    }
    if (self->local_sum >= 0) {
        engine->local_sum = (trib_local_sum)self->local_sum;
    } else if (job->workers != workers || self->per_machine > 0) {
        engine->local_sum = TRIB_LOCAL_SUM_AUTO;
    }
    engine->chunk_bytes = self->chunk > 0 ? self->chunk : engine->chunk_bytes;
    engine->partition_bytes = self->partition > 0 ? self->partition : engine->partition_bytes;
    if (self->chunk > engine->partition_bytes && self->partition == 0) {
        engine->partition_bytes = self->chunk;
    } else if (self->partition > 0 && self->chunk == 0) {
        while (engine->chunk_bytes > 4096 && engine->partition_bytes % engine->chunk_bytes != 0) {
            engine->chunk_bytes /= 2;
        }
    }
    engine->push_credit_bytes = self->credit > 0 ? self->credit : engine->push_credit_bytes;
    engine->pull_credit_bytes = self->credit > 0 ? self->credit : engine->pull_credit_bytes;
    step->priorities = step->priorities && !self->no_priorities;
    step->by_order = self->by_order;
    step->cross_barrier = step->cross_barrier || self->cross_barrier;
    step->codec_ratio = self->codec > 0 ? self->codec : step->codec_ratio;
    if (self->rate_bits > 0) {
        job->link.egress_bits = job->link.ingress_bits = self->rate_bits;
    }
    for (uint32_t i = 0; self->compute > 0 && i < replay->model_count; i++) {
        study_model_scale(replay->models[i], self->compute);
    }
    trib_config checked;
    trib_config given = *engine;
    trib_error error = {.status = TRIB_OK};
    given.worker_count = (int32_t)job->workers;
    given.server_count = (int32_t)job->servers;
    given.coordinator = "n0:1";
    if (trib_config_check(&given, &checked, &error) != TRIB_OK) {
        fprintf(stderr, "tributary %s: %s\n", self->name, error.text);
        return false;
    }
    return true;
}

void replay_print_rate(const replay_options *self, const study_replay *replay, FILE *out)
{
    if (replay->one_host) {
        fprintf(out, "all members were on one machine: nothing goes over a link unless --per-machine says so\n");
    } else if (self->recorded_rate_bits > 0) {
        fprintf(out, "links of the recording: %.4g Gbit/s, as told\n", (double)self->recorded_rate_bits / 1e9);
    } else if (replay->rate_told) {
        fprintf(out, "links of the recording: %.4g Gbit/s, as its job was configured (the busiest held %.4g Gbit/s)\n",
                (double)replay->step.job.link.egress_bits / 1e9, replay->payload_bits / 1e9);
    } else {
        fprintf(out, "links of the recording: %.4g Gbit/s, estimated: the busiest held %.4g Gbit/s of payload%s\n",
                (double)replay->step.job.link.egress_bits / 1e9, replay->payload_bits / 1e9,
                replay->busy < 0.5 ? "; none was busy for long, so they may be faster: tell --recorded-rate" : "");
    }
}

void replay_print_distance(double recorded_ns, double replayed_ns, FILE *out)
{
    const double off = recorded_ns > 0 ? replayed_ns / recorded_ns - 1 : 0;
    if (off > DISTANCE_WORTH_A_WORD || off < -DISTANCE_WORTH_A_WORD) {
        fprintf(out,
                "note: the replay takes %+.0f %% against the recording: something limited it that is not simulated so "
                "(the\n"
                "      links' rate, the CPUs, what else ran). Compare predictions with the replay, and measure what "
                "matters\n",
                100 * off);
    }
}
