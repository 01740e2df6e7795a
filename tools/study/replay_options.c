/* replay_options.c - see replay_options.h. */
#include "tools/study/replay_options.h"

#include <getopt.h>
#include <stdlib.h>

#include "api/config/config.h"
#include "tools/cli/options.h"

#define DISTANCE_NOTED 0.1

static int parse_rows(replay_options *self, const option_row *rows, size_t count, int argc, char **argv)
{
    const bool tune = strcmp(self->name, "tune") == 0;
    const option_table table = {
        .command = self->name,
        .usage = tune ? "[options] FILE...     searches the settings under which a recorded step is fastest"
                      : "[options] FILE...     a recorded step again, under other settings",
        .rows = rows,
        .count = count - (tune ? 2 : 0),
        .notes = "The settings (-n to --rate) are those of the recording unless they are given. The others describe "
                 "the recording,\nfrom which they are estimated unless they are given; docs/trace.md.\n",
        .takes_operands = true,
        .changes = self->changes,
        .changes_size = sizeof self->changes,
    };
    return options_parse(&table, argc, argv);
}

static int parse_table(replay_options *self, int argc, char **argv)
{
    bool many_machines = false, one_machine = false;
    const option_row rows[] = {
        {OPTION_COUNT("-n", &self->workers, 1, 2048, "workers"), .is_change = true},
        {OPTION_COUNT("-s", &self->servers, 0, 2048, "servers"), .is_change = true},
        {OPTION_CHOICE("--colocate", &self->colocate, option_when_words, "WHEN", "whether workers sum a share too"),
         .is_change = true},
        {OPTION_COUNT("--per-machine", &self->per_machine, 1, 64, "workers on each machine, which share its link"),
         .is_change = true},
        {OPTION_CHOICE("--local-sum", &self->local_sum, option_when_words, "WHEN",
                       "whether the workers of a machine sum first, so that one contribution leaves it"),
         .is_change = true},
        {OPTION_SIZE("--partition", &self->partition, "1M", 4096, 1u << 30, "as in trib_config"), .is_change = true},
        {OPTION_SIZE("--chunk", &self->chunk, "256K", 4096, 1u << 20, "as in trib_config, a power of two"),
         .is_change = true},
        {OPTION_SIZE("--credit", &self->credit, "1M", 4096, 1u << 30, "of PUSH and of PULL, as in trib_config"),
         .is_change = true},
        {OPTION_SET("--no-priorities", &self->no_priorities, "gradients go in the order in which they are ready"),
         .is_change = true},
        {OPTION_SET("--priorities", &self->by_order, "the gradients of the first layers go first"), .is_change = true},
        {OPTION_SET("--cross-barrier", &self->cross_barrier,
                    "a layer's forward pass waits for that layer's gradients only"),
         .is_change = true},
        {OPTION_NUMBER("--codec", &self->codec, "0.5", 0.0001, 1, "bytes on the wire per byte of gradient"),
         .is_change = true},
        {OPTION_NUMBER("--compute", &self->compute, "0.5", 0.0001, 10000,
                       "factor on the recorded times between operations, for another device"),
         .is_change = true},
        {OPTION_RATE("--rate", &self->rate_bits, "10gbit", "links in the prediction"), .is_change = true},
        {OPTION_RATE("--recorded-rate", &self->recorded_rate_bits, "1gbit", "links of the recording")},
        {OPTION_TIME("--recorded-forward", &self->forward_ns, "9ms",
                     "the recorded forward pass went on by layers, without a barrier, and takes that long")},
        {OPTION_TIME("--latency", &self->latency_ns, "15us", "from a machine to the switch")},
        {OPTION_COUNT("--cores", &self->cores, 1, 1024, "of each machine")},
        {OPTION_SET("--one-machine", &one_machine, "the members ran on one machine")},
        {OPTION_SET("--many-machines", &many_machines, "each member ran on a machine of its own")},
        {OPTION_COUNT("--reactors", &self->reactors, 1, 16, "of each member")},
        {OPTION_SIZE("--window", &self->window, "1M", 1024, 1u << 30, "bytes in flight on a connection")},
        {OPTION_RATE("--local-rate", &self->local_rate_bits, "200gbit", "between processes of a machine")},
        {OPTION_COUNT("--iters", &self->iterations, 1, 200, "steps; default 3")},
        {OPTION_SET("--json", &self->json, "one JSON object")},
        {OPTION_SET("--quiet", &self->quiet, "no progress and no notes")},
        /* The last rows are those of replay alone. */
        {OPTION_SET("--live", &self->live, "on real transports, on this machine: tributary run ... -- tributary step")},
        {OPTION_TEXT("--export", &self->export, "FILE.csv",
                     "writes the step as a model for tributary sim and tributary step")},
    };
    const int status = parse_rows(self, rows, sizeof rows / sizeof rows[0], argc, argv);
    self->one_machine = one_machine ? 1 : many_machines ? 0 : -1;
    return status;
}

int replay_options_parse(replay_options *self, int argc, char **argv)
{
    self->servers = REPLAY_AS_RECORDED;
    self->latency_ns = self->forward_ns = -1;
    self->colocate = self->local_sum = -1;
    const int status = parse_table(self, argc, argv);
    if (status < 0 && (optind == argc || (self->no_priorities && self->by_order))) {
        fprintf(stderr, "tributary %s: %s (tributary %s --help)\n", self->name,
                optind == argc ? "which traces?" : "--no-priorities excludes --priorities", self->name);
        return 2;
    }
    return status;
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
        fprintf(stderr,
                "tributary %s: note: %u workers' steps differ from those of the first one: they take its times\n",
                self->name, replay->left_out);
    }
    if (status == TRIB_OK && replay->uneven[0] != '\0') {
        fprintf(stderr, "tributary %s: note: %s\n", self->name, replay->uneven);
    }
    if (status == TRIB_OK && !replay->rate_known && self->recorded_rate_bits == 0 &&
        replay->step.job.workers + replay->step.job.servers > 1) {
        fprintf(stderr,
                "tributary %s: only servers see the rate of links, and some of their traces are missing: give "
                "--recorded-rate\n",
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
    job->servers = self->servers != REPLAY_AS_RECORDED ? self->servers : servers;
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
        job->one_machine = false; /* the new machines replace the namespaces of this one */
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
        fprintf(out, "all members were on one machine: there are no links without --per-machine\n");
    } else if (self->recorded_rate_bits > 0) {
        fprintf(out, "links of the recording: %.4g Gbit/s, as given\n", (double)self->recorded_rate_bits / 1e9);
    } else if (replay->rate_told) {
        fprintf(out, "links of the recording: %.4g Gbit/s, as its job was configured (the busiest held %.4g Gbit/s)\n",
                (double)replay->step.job.link.egress_bits / 1e9, replay->payload_bits / 1e9);
    } else {
        fprintf(out, "links of the recording: %.4g Gbit/s, estimated: the busiest held %.4g Gbit/s of payload%s\n",
                (double)replay->step.job.link.egress_bits / 1e9, replay->payload_bits / 1e9,
                replay->busy < 0.5 ? "; none was busy for long, so they may be faster: give --recorded-rate" : "");
    }
}

void replay_print_distance(double recorded_ns, double replayed_ns, FILE *out)
{
    const double off = recorded_ns > 0 ? replayed_ns / recorded_ns - 1 : 0;
    if (off > DISTANCE_NOTED || off < -DISTANCE_NOTED) {
        fprintf(
            out,
            "note: the replayed step is %+.0f %% off the recorded one: something that is not simulated exactly limited "
            "it\n"
            "      (the links' rate, the CPUs, other load). Compare predictions with the replay, and measure what "
            "matters\n",
            100 * off);
    }
}
