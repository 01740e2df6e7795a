/* replay.c - see replay.h. */
#include "tools/study/replay.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEP_BYTES_MAX (1ULL << 40)
#define STEP_NS_MAX INT64_C(600000000000)
#define PARTS_MEMBERS_MAX 64u /* larger jobs run without parts: their traces would be too large */

static bool is_colocated(const trace_run *run)
{
    for (uint32_t id = 0; id < run->tensor_count; id++) {
        const trace_tensor *tensor = run->tensors[id];
        for (uint32_t i = 0; tensor != NULL && i < tensor->partition_count; i++) {
            if (tensor->owners[i].member < run->worker_count) {
                return true;
            }
        }
    }
    return false;
}

/* Tells from names such as "rank 3 (host:pid)" and "server 0 (host:pid)" whether all members are on one host. */
static bool is_one_machine(const trace_file *file)
{
    const char *first = NULL;
    size_t length = 0;
    for (uint32_t i = 0; i < file->member_count; i++) {
        const char *open = strchr(file->members[i].name, '('), *colon = open != NULL ? strrchr(open, ':') : NULL;
        if (colon == NULL ||
            (first != NULL && ((size_t)(colon - open) != length || memcmp(first, open, length) != 0))) {
            return false;
        }
        first = open;
        length = (size_t)(colon - open);
    }
    return file->member_count > 1;
}

static void set_reactors(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)link;
    const study_replay *replay = job->config.user;
    config->reactors = member < job->config.workers ? replay->worker_reactors : replay->server_reactors;
}

/* Returns the number of workers on rank 0's machine, if every machine has as many workers, of consecutive ranks. */
static uint32_t even_machines(const trace_run *run)
{
    uint32_t each = 1;
    while (each < run->worker_count && trace_run_machine(run, each) == 0) {
        each++;
    }
    for (uint32_t i = 0; i < run->worker_count; i++) {
        if (run->worker_count % each != 0 || trace_run_machine(run, i) != i - i % each) {
            return 0;
        }
    }
    return each;
}

static bool note_machines(const trace_run *run, study_replay *replay)
{
    const uint32_t members = run->worker_count + run->server_count;
    replay->machine_of = calloc((size_t)members + 1, sizeof *replay->machine_of);
    if (replay->machine_of == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < members; i++) {
        replay->machine_of[i] = trace_run_machine(run, i);
        replay->servers_are_guests =
            replay->servers_are_guests || (i >= run->worker_count && replay->machine_of[i] < run->worker_count);
    }
    replay->per_machine = even_machines(run);
    replay->local_size = run->local_size;
    replay->one_host = run->one_host;
    replay->step.job.engine.local_sum = run->local_size > 0 ? TRIB_LOCAL_SUM_ON : TRIB_LOCAL_SUM_OFF;
    return true;
}

/* Tells whether the traces of all servers are there: only servers record the traffic on links. */
static bool are_all_servers_there(const trace_run *run)
{
    const trace_file *file = run->processes[0].file;
    for (uint32_t i = 0; i < file->member_count; i++) {
        if (file->members[i].sums && trace_run_member(run, i) == NULL) {
            return false;
        }
    }
    return true;
}

static void fill_settings(const trace_run *run, const trace_stats *stats, study_replay *replay)
{
    const trace_file *file = run->processes[0].file;
    study_step_config *step = &replay->step;
    sim_job_config *job = &step->job;
    *job = sim_job_config_default(run->worker_count, run->server_count);
    job->engine.partition_bytes = file->partition_bytes;
    job->engine.chunk_bytes = file->chunk_bytes;
    job->engine.push_credit_bytes = file->push_credit;
    job->engine.pull_credit_bytes = file->pull_credit;
    job->engine.sum_order = file->sum_order;
    job->engine.colocate = is_colocated(run) ? TRIB_COLOCATE_ON : TRIB_COLOCATE_OFF;
    job->one_machine = is_one_machine(file);
    job->cores = file->cpu_count > 0 ? file->cpu_count : job->cores;
    job->net.local_memory = strcmp(file->transport, "tcp") != 0;
    replay->rate_told = file->bandwidth > 0;
    const double bits = replay->rate_told ? (double)file->bandwidth : stats->fastest_bits / STUDY_GOODPUT;
    replay->rate_known = bits >= 1e4 && bits <= 1e14 && (replay->rate_told || are_all_servers_there(run));
    if (run->one_host) {
        replay->rate_known = true; /* there is no link */
    } else if (replay->rate_known) {
        job->link.egress_bits = job->link.ingress_bits = (uint64_t)bits;
    }
    replay->worker_reactors = replay->server_reactors = 1;
    for (uint32_t i = 0; i < file->member_count; i++) {
        const uint32_t reactors =
            file->members[i].reactors > 0 && file->members[i].reactors <= 16 ? file->members[i].reactors : 1;
        *(i < run->worker_count ? &replay->worker_reactors : &replay->server_reactors) = reactors;
    }
    job->tweak = set_reactors;
    step->iterations = 3;
    step->priorities = true;
    step->codec_ratio = 1;
}

/* Limits the size of a model: the events of a simulated step grow with its bytes, and heartbeats with its time. */
static bool is_sensible(const study_model *model)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < model->count; i++) {
        if (model->tensors[i].bytes > STEP_BYTES_MAX) {
            return false;
        }
        bytes += model->tensors[i].bytes;
    }
    return bytes <= STEP_BYTES_MAX && model->forward_ns <= STEP_NS_MAX && model->backward_ns <= STEP_NS_MAX;
}

static bool all_equal(const study_model *model)
{
    for (uint32_t i = 1; i < model->count; i++) {
        if (model->tensors[i].priority != model->tensors[0].priority) {
            return false;
        }
    }
    return true;
}

/* A replay without what is in every step would predict other steps. What happens now and then is left out. */
static trib_status check_others(const trace_run *run, const trace_stats *stats, trib_error *error)
{
    for (uint32_t i = 0; i < stats->steps_count; i++) {
        const trace_steps *steps = &stats->steps[i];
        if (steps->other_count > 0 && steps->other_count >= steps->count) {
            char buffer[48];
            return trib_error_set(error, TRIB_UNSUPPORTED,
                                  "the recorded steps have operations that cannot be replayed (%llu, such as one on "
                                  "tensor \"%.110s\"): bytes of unknown length, tensors that the engine names, tensors "
                                  "on devices, and all but all-reduces in traces of an older version",
                                  (unsigned long long)steps->other_count,
                                  trace_tensor_name(run, steps->other, buffer, sizeof buffer));
        }
    }
    return TRIB_OK;
}

trib_status study_replay_make(const trace_run *run, const trace_stats *stats, study_replay *replay, trib_error *error)
{
    *replay = (study_replay){.payload_bits = stats->fastest_bits};
    const trib_status status = check_others(run, stats, error);
    if (status != TRIB_OK) {
        return status;
    }
    replay->models = calloc((size_t)stats->steps_count + 1, sizeof *replay->models);
    if (replay->models == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
    }
    for (uint32_t i = 0; i < stats->steps_count; i++) {
        const trace_steps *steps = &stats->steps[i];
        if (steps->count == 0) {
            continue;
        }
        study_model *model = study_replay_model(run, steps);
        if (model == NULL) {
            study_replay_free(replay);
            return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
        }
        if (!is_sensible(model)) {
            free(model);
            study_replay_free(replay);
            return trib_error_set(error, TRIB_INVALID,
                                  "the recorded steps are longer than %lld s or larger than %llu GiB",
                                  (long long)(STEP_NS_MAX / 1000000000), STEP_BYTES_MAX >> 30);
        }
        if (replay->model_count > 0 && study_replay_hash(model) != study_replay_hash(replay->models[0])) {
            replay->left_out++;
            free(model);
            continue;
        }
        if (replay->model_count++ == 0) {
            replay->step_ns = steps->step_ns;
            replay->steps = steps->count;
            replay->tensors = steps->op_count;
            replay->bytes = steps->bytes;
            replay->compute_ns = model->forward_ns + model->backward_ns;
            replay->equal_priorities = all_equal(model);
            replay->step.cross_barrier = steps->overlapped;
        }
        replay->models[replay->model_count - 1] = model;
    }
    if (replay->model_count == 0) {
        study_replay_free(replay);
        return trib_error_set(error, TRIB_INVALID,
                              "these traces have no steps to replay: no worker submitted the same tensors at least "
                              "twice, or the workers' files are not among them");
    }
    fill_settings(run, stats, replay);
    if (!note_machines(run, replay)) {
        study_replay_free(replay);
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
    }
    replay->step.model = replay->models[0];
    const trib_status groups = study_replay_check_groups(run, replay, error);
    if (groups != TRIB_OK) {
        study_replay_free(replay);
        return groups;
    }
    study_replay_note_links(run, stats, replay->uneven, sizeof replay->uneven);
    for (uint32_t i = 0; i < run->worker_count + run->server_count; i++) {
        const trace_link_use *use = &stats->links[i];
        const double most = use->out_used > use->in_used ? use->out_used : use->in_used;
        replay->busy = most > replay->busy ? most : replay->busy;
    }
    return TRIB_OK;
}

void study_replay_set_forward(study_replay *replay, int64_t forward_ns)
{
    for (uint32_t i = 0; i < replay->model_count; i++) {
        replay->models[i]->forward_ns = forward_ns;
        study_replay_share_forward(replay->models[i]);
    }
    replay->compute_ns = forward_ns + replay->models[0]->backward_ns;
    replay->step.cross_barrier = true;
}

void study_replay_free(study_replay *replay)
{
    for (uint32_t i = 0; i < replay->model_count; i++) {
        free(replay->models[i]);
    }
    free(replay->models);
    free(replay->machine_of);
    *replay = (study_replay){.model_count = 0};
}

/* ---- Running ---- */

static trib_status read_parts(const char *folder, uint32_t workers, uint32_t servers, trace_stats *parts,
                              trib_error *error)
{
    char *paths[PARTS_MEMBERS_MAX], texts[PARTS_MEMBERS_MAX][96];
    for (uint32_t i = 0; i < workers + servers; i++) {
        snprintf(texts[i], sizeof texts[i], "%s/%s%u", folder, i < workers ? "rank" : "server",
                 i < workers ? i : i - workers);
        paths[i] = texts[i];
    }
    trace_run *run = NULL;
    trib_status status = trace_run_load(paths, workers + servers, &run, error);
    if (status == TRIB_OK && !trace_stats_make(run, parts)) {
        status = trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the parts of a step");
    }
    trace_run_free(run);
    return status;
}

/* Removes all files of the folder, including those of a job that failed. */
static void remove_traces(const char *folder)
{
    DIR *open = opendir(folder);
    for (const struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;) {
        if (entry->d_name[0] != '.') {
            char path[400];
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            unlink(path);
        }
    }
    if (open != NULL) {
        closedir(open);
    }
    rmdir(folder);
}

/* Places the members on machines as in the recording: as many workers on each, with or without servers. NULL: out
 * of memory. */
static uint32_t *place_members(const study_replay *replay, const sim_job_config *job)
{
    const uint32_t workers = job->workers, members = workers + job->servers, asked = job->per_machine;
    const sim_job_config *recorded = &replay->step.job;
    const bool as_recorded = asked == 0 && workers == recorded->workers && job->servers == recorded->servers;
    const bool one_host = asked == 0 && replay->one_host, guests = asked == 0 && replay->servers_are_guests;
    const uint32_t wanted = asked > 0 ? asked : replay->per_machine;
    const uint32_t each = wanted > 0 && workers % wanted == 0 ? wanted : 1;
    uint32_t *machine_of = calloc((size_t)members + 1, sizeof *machine_of);
    for (uint32_t i = 0; machine_of != NULL && i < members; i++) {
        const uint32_t worker = i < workers ? i : (i - workers) * each % workers;
        machine_of[i] = as_recorded             ? replay->machine_of[i]
                        : one_host              ? 0
                        : i < workers || guests ? worker - worker % each
                                                : i;
    }
    return machine_of;
}

static void take_turns(const study_replay *replay, const study_model **by_rank, uint32_t workers)
{
    for (uint32_t rank = 0; rank < workers; rank++) {
        by_rank[rank] = replay->models[rank % replay->model_count];
    }
}

trib_status study_replay_run(const study_replay *replay, const study_step_config *step, study_step_result *result,
                             trace_stats *parts, trib_error *error)
{
    study_step_config mine = *step;
    const uint32_t workers = mine.job.workers, servers = mine.job.servers;
    const double least_s = (double)replay->bytes * mine.codec_ratio * study_codec_ratio(&mine.codec) * 8 /
                           (double)mine.job.link.egress_bits;
    if (workers + servers > 1 && least_s > (double)STEP_NS_MAX / 1e9) {
        return trib_error_set(error, TRIB_INVALID,
                              "the %.1f MB of a step need %.0f s at %.3g Gbit/s: too long to replay",
                              (double)replay->bytes / 1e6, least_s, (double)mine.job.link.egress_bits / 1e9);
    }
    if (replay->has_groups && workers != replay->step.job.workers) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "the recorded steps have groups of workers: they are replayed with as many workers");
    }
    char folder[] = "/tmp/tributary-replay-XXXXXX", pattern[64];
    const study_model **by_rank = calloc(workers, sizeof(const study_model *));
    uint32_t *machine_of = place_members(replay, &mine.job);
    if (by_rank == NULL || machine_of == NULL) {
        free(by_rank);
        free(machine_of);
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory");
    }
    mine.job.machine_of = machine_of;
    take_turns(replay, by_rank, workers);
    mine.models = by_rank;
    /* The pointer is used to read the number of reactors only; nothing is changed through it. */
    mine.job.user = (void *)(uintptr_t)replay;
    if (parts != NULL) {
        *parts = (trace_stats){.limit_name = "none"};
    }
    bool traced = parts != NULL && workers + servers <= PARTS_MEMBERS_MAX;
    if (traced) {
        traced = mkdtemp(folder) != NULL;
        snprintf(pattern, sizeof pattern, "%s/%%r", folder);
        mine.job.engine.trace = traced ? pattern : NULL;
    }
    trib_status status = study_step_run(&mine, result, error);
    if (status == TRIB_OK && traced) {
        status = read_parts(folder, workers, servers, parts, error);
        if (mine.job.one_machine && !mine.job.net.local_memory && strcmp(parts->limit_name, TRACE_LIMIT_MEMORY) == 0) {
            parts->limit_name = TRACE_LIMIT_LOOPBACK; /* the simulated transport has one name for both */
        }
    }
    if (traced) {
        remove_traces(folder);
    }
    free(machine_of);
    free(by_rank);
    return status;
}

/* ---- A file of it ---- */

void study_replay_export(const study_replay *replay, const char *name, FILE *out)
{
    const study_model *model = replay->models[0];
    fprintf(out, "# %s: recorded; forward %.3f us, backward %.3f us, optimizer 0 us\ntensor,elements,ready_us\n", name,
            (double)model->forward_ns / 1e3, (double)model->backward_ns / 1e3);
    for (uint32_t i = 0; i < model->count; i++) {
        const study_tensor *tensor = &model->tensors[i];
        fprintf(out, "%s,%llu,%.3f\n", tensor->name, (unsigned long long)((tensor->bytes + 3) / 4),
                (double)tensor->ready_ns / 1e3);
    }
}
