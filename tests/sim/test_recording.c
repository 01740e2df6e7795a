/* test_recording.c - engines record traces, in virtual time and in a real job. The files are read back and merged. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/study/job.h"
#include "tools/trace/trace_stats.h"

#define SECOND INT64_C(1000000000)
#define WORKERS 3u
#define SERVERS 1u
#define MEMBERS (WORKERS + SERVERS)
#define ROUNDS 3u
#define TENSOR_BYTES 4300000u /* more than 64 whole partitions, so it is not cut finer */
#define CHUNK_BYTES 16384u
#define PARTITION_BYTES 65536u

static char folder[64], pattern[80];
static char paths[MEMBERS][128];
static uint32_t done;

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/trib-recording-%d", (int)getpid());
    snprintf(pattern, sizeof pattern, "%s/%%r", folder);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s%u", folder, i < WORKERS ? "rank" : "server", i % WORKERS);
    }
    return mkdir(folder, 0700);
}

static uint32_t files_in_folder(bool remove)
{
    uint32_t count = 0;
    DIR *open = opendir(folder);
    for (struct dirent *entry; (entry = readdir(open)) != NULL;) {
        if (entry->d_name[0] != '.') {
            char path[400];
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            count++;
            if (remove) {
                unlink(path);
            }
        }
    }
    closedir(open);
    return count;
}

static int remove_folder(void **state)
{
    (void)state;
    files_in_folder(true);
    return rmdir(folder);
}

static void on_done(const trib_result *result, void *user)
{
    (void)user;
    assert_int_equal(result->status, TRIB_OK);
    done++;
}

static void submit(trib_engine *engine, void *buffer)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "weights/\xc3\xa4";
    desc.count = TENSOR_BYTES / 4;
    desc.priority = 5;
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_tensor_declare(engine, &desc, &params.tensor, &error), TRIB_OK);
    params.input = params.output = buffer;
    params.done_cb = on_done;
    assert_int_equal(trib_push_pull(engine, &params, NULL, &error), TRIB_OK);
}

static bool are_done(sim_job *job, void *argument)
{
    (void)job;
    return done == *(const uint32_t *)argument;
}

static void set_trace(sim_job *job, uint32_t member, trib_config *config, trib_sim_link *link)
{
    (void)job;
    (void)member;
    (void)link;
    config->trace = pattern;
}

/* Each member's clock differs. Rank 0, the reference for the others, is not the one with the earliest clock. */
static int64_t ahead_of(uint32_t member)
{
    return (int64_t)((member * 7 + 3) % 5) * 1000 * SECOND + (int64_t)member * 12345;
}

static sim_job *open_job(void (*tweak)(sim_job *, uint32_t, trib_config *, trib_sim_link *))
{
    sim_job_config config = sim_job_config_default(WORKERS, SERVERS);
    config.engine.chunk_bytes = CHUNK_BYTES;
    config.engine.partition_bytes = PARTITION_BYTES;
    config.engine.push_credit_bytes = config.engine.pull_credit_bytes = PARTITION_BYTES;
    config.engine.reactors = 2;
    config.engine.colocate = TRIB_COLOCATE_OFF;
    config.engine.join_timeout_ns = 100000 * SECOND; /* the clocks jump while members join */
    config.tweak = tweak;
    trib_error error = {.status = TRIB_OK};
    sim_job *job = sim_job_open(&config, &error);
    if (job == NULL) {
        fail_msg("%s", error.text);
        return NULL; /* not reached; for analysers that do not know fail_msg */
    }
    for (uint32_t i = 0; i < MEMBERS; i++) {
        trib_sim_process_jump(job->members[i].process, ahead_of(i));
    }
    assert_true(sim_job_run(job, 60 * SECOND, sim_job_all_ready, NULL));
    return job;
}

static void run_rounds(sim_job *job, uint32_t rounds)
{
    unsigned char *buffers = calloc(WORKERS, TENSOR_BYTES);
    for (uint32_t round = 0; round < rounds; round++) {
        uint32_t wanted = done + WORKERS;
        for (uint32_t rank = 0; rank < WORKERS; rank++) {
            submit(job->members[rank].engine, buffers + (size_t)rank * TENSOR_BYTES);
        }
        assert_true(sim_job_run(job, trib_sim_now(job->sim) + 60 * SECOND, are_done, &wanted));
        sim_job_run(job, trib_sim_now(job->sim) + SECOND / 1000, NULL, NULL); /* the current turn is over */
    }
    free(buffers);
}

static void close_job(sim_job *job)
{
    assert_true(sim_job_close(job, 30 * SECOND));
    sim_job_free(job);
}

static trace_file *load(const char *path)
{
    trace_file *file = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trace_file_load(path, &file, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return file;
}

static uint32_t count_kind(const trace_file *file, trib_trace_kind kind)
{
    uint32_t count = 0;
    for (uint64_t i = 0; i < file->record_count; i++) {
        count += file->records[i].kind == kind && (kind >= TRIB_TRACE_LINK_READY || file->records[i].round > 0);
    }
    return count;
}

/* Checks that one partition in one round went through its stages in order. */
static void check_partition(const trace_file *file, uint32_t tag, uint32_t partition, uint32_t round)
{
    static const struct {
        uint8_t kind;
        const char *stage; /* that is entered */
    } order[] = {{TRIB_TRACE_ENTER, "COMPRESS"}, {TRIB_TRACE_ENTER, "PUSH"}, {TRIB_TRACE_START, NULL},
                 {TRIB_TRACE_EMITTED, NULL},     {TRIB_TRACE_ENTER, "PULL"}, {TRIB_TRACE_ENTER, "DECOMPRESS"},
                 {TRIB_TRACE_DONE, NULL}};
    uint32_t at = 0, landed = 0;
    int64_t before_ns = 0;
    const bool several = partition < TENSOR_BYTES / PARTITION_BYTES || TENSOR_BYTES % PARTITION_BYTES > CHUNK_BYTES;
    for (uint64_t i = 0; i < file->record_count; i++) {
        const trib_trace_record *record = &file->records[i];
        if (record->kind < TRIB_TRACE_ENTER || record->kind > TRIB_TRACE_STALL || record->tensor != tag ||
            record->partition != partition || record->round != round) {
            continue;
        }
        assert_true(record->at_ns >= before_ns);
        before_ns = record->at_ns;
        assert_int_equal(record->peer, WORKERS);
        if (record->kind == TRIB_TRACE_LANDED) {
            landed++;
            continue;
        }
        at += at == 3 && !several;
        assert_in_range(at, 0, 6);
        assert_int_equal(record->kind, order[at].kind);
        if (order[at].stage != NULL) {
            assert_string_equal(file->stages[record->stage], order[at].stage);
        }
        at++;
    }
    assert_int_equal(at, 7);
    assert_int_equal(landed, several);
}

static const trace_tensor *tensor_of(const trace_file *file, uint32_t *tag_out)
{
    for (uint32_t tag = 0; tag < file->tensor_count; tag++) {
        if (strcmp(file->tensors[tag].name, "weights/\xc3\xa4") == 0) {
            *tag_out = tag;
            return &file->tensors[tag];
        }
    }
    fail_msg("the tensor is not there");
    return NULL;
}

static void check_worker(const trace_file *file, uint32_t rank)
{
    uint32_t tag = 0;
    const trace_tensor *tensor = tensor_of(file, &tag);
    assert_int_equal(file->member, rank);
    assert_int_equal(file->reference, rank == 0);
    assert_int_equal(tensor->bytes, TENSOR_BYTES);
    assert_int_equal(tensor->priority, 5);
    assert_int_equal(tensor->partition_bytes, PARTITION_BYTES);
    assert_int_equal(tensor->partition_count, (TENSOR_BYTES + PARTITION_BYTES - 1) / PARTITION_BYTES);
    assert_int_equal(tensor->owners[0].member, WORKERS);
    assert_int_equal(count_kind(file, TRIB_TRACE_SUBMIT), ROUNDS);
    assert_int_equal(count_kind(file, TRIB_TRACE_COMPLETE), ROUNDS);
    assert_int_equal(count_kind(file, TRIB_TRACE_FAILED), 0);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        for (uint32_t partition = 0; partition < tensor->partition_count; partition++) {
            check_partition(file, tag, partition, round);
        }
    }
}

static void check_clock(const trace_file *file, uint32_t member)
{
    const int64_t true_ns = ahead_of(0) - ahead_of(member);
    assert_int_equal(file->sample_count > 0, member != 0);
    for (uint32_t i = 0; i < file->sample_count; i++) {
        const trib_clock_sample *sample = &file->samples[i];
        const int64_t off = sample->offset_ns - true_ns;
        assert_true(off <= (int64_t)sample->rtt_ns / 2 + 1 && off >= -(int64_t)sample->rtt_ns / 2 - 1);
    }
}

static void a_job_in_virtual_time(void **state)
{
    (void)state;
    sim_job *job = open_job(set_trace);
    run_rounds(job, ROUNDS);
    close_job(job);
    assert_int_equal(files_in_folder(false), MEMBERS);
    const uint32_t chunks = (TENSOR_BYTES + CHUNK_BYTES - 1) / CHUNK_BYTES * ROUNDS;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        trace_file *file = load(paths[i]);
        assert_int_equal(file->worker_count, WORKERS);
        assert_int_equal(file->server_count, SERVERS);
        assert_int_equal(file->member_count, MEMBERS);
        assert_int_equal(file->chunk_bytes, CHUNK_BYTES);
        assert_int_equal(file->cores_recorded, 2);
        assert_string_equal(file->transport, "sim");
        check_clock(file, i);
        if (i < WORKERS) {
            check_worker(file, i);
        } else {
            assert_int_equal(count_kind(file, TRIB_TRACE_SUM_ARRIVE), chunks * WORKERS);
            assert_int_equal(count_kind(file, TRIB_TRACE_SUM_COMPLETE), chunks);
            assert_int_equal(count_kind(file, TRIB_TRACE_SUM_SENT), chunks * WORKERS);
        }
        assert_int_equal(count_kind(file, TRIB_TRACE_JOINED), 2);
        assert_true(count_kind(file, TRIB_TRACE_LINK_READY) > 0);
        trace_file_free(file);
    }
}

/* ---- All files together ---- */

static trace_run *load_all(uint32_t count)
{
    char *list[MEMBERS];
    for (uint32_t i = 0; i < count; i++) {
        list[i] = paths[(i + 2) % MEMBERS]; /* the order does not matter */
    }
    trace_run *run = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trace_run_load(list, count, &run, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return run;
}

static void check_span(const trace_run *run, const trace_span *span)
{
    int64_t phases[TRACE_PHASE_COUNT], sum_ns = 0;
    assert_true(trace_span_phases(span, phases));
    for (unsigned i = 0; i < TRACE_PHASE_COUNT; i++) {
        assert_true(phases[i] >= 0);
        sum_ns += phases[i];
    }
    assert_int_equal(sum_ns, span->done_ns - span->enter_ns);
    assert_int_equal(span->owner, WORKERS);
    assert_true(span->last_peer < WORKERS);
    assert_int_equal(span->stay_count, 4);
    /* Across processes, on one clock. */
    const int64_t slack_ns = run->processes[span->process].clock_error_ns + run->processes[WORKERS].clock_error_ns;
    assert_true(span->start_ns <= span->arrive_first_ns + slack_ns);
    assert_true(span->arrive_first_ns <= span->arrive_last_ns);
    assert_true(span->arrive_last_ns <= span->complete_last_ns);
    assert_true(span->complete_first_ns <= span->landed_ns + slack_ns);
    assert_true(span->landed_ns <= span->done_ns);
}

static void on_one_clock(void **state)
{
    (void)state;
    trace_run *run = load_all(MEMBERS);
    assert_int_equal(run->process_count, MEMBERS);
    assert_int_equal(run->warning_count, 0);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        const trace_process *process = &run->processes[i];
        const int64_t at_ns = process->file->began_ns + SECOND;
        assert_int_equal(process->member, i);
        int64_t error_ns = 0;
        const int64_t off_ns = trace_clock_map(&process->clock, at_ns, &error_ns) - at_ns - (ahead_of(0) - ahead_of(i));
        assert_true(i == 0 || (off_ns <= error_ns && -off_ns <= error_ns));
        assert_true(process->clock_error_ns < SECOND / 1000);
    }
    const uint32_t partitions = (TENSOR_BYTES + PARTITION_BYTES - 1) / PARTITION_BYTES;
    assert_int_equal(run->span_count, partitions * ROUNDS * WORKERS);
    assert_int_equal(run->arrivals, run->span_count);
    assert_int_equal(run->early_arrivals, 0);
    for (uint64_t i = 0; i < run->span_count; i++) {
        check_span(run, &run->spans[i]);
    }
    for (uint64_t i = 1; i < run->event_count; i++) {
        assert_true(run->events[i].at_ns >= run->events[i - 1].at_ns);
    }
    trace_stats stats;
    assert_true(trace_stats_make(run, &stats));
    assert_int_equal(stats.operations, ROUNDS * WORKERS);
    assert_int_equal(stats.links[WORKERS].in_bytes, (uint64_t)TENSOR_BYTES * ROUNDS * WORKERS);
    assert_int_equal(stats.links[0].out_bytes, TENSOR_BYTES * ROUNDS);
    assert_int_equal(stats.links[0].in_bytes, TENSOR_BYTES * ROUNDS);
    assert_int_equal(stats.steps_count, WORKERS);
    assert_int_equal(stats.steps[1].op_count, 1);
    assert_int_equal(stats.steps[1].bytes, TENSOR_BYTES);
    assert_false(stats.steps[1].overlapped);
    trace_stats_free(&stats);
    trace_run_free(run);
}

/* Only the owner reads a trace. A link that somebody put at its name is replaced, and not followed. */
static void check_access(trib_engine *engine, const char *written)
{
    struct stat about;
    trib_error error = {.status = TRIB_OK};
    char link_path[128], other[128];
    assert_int_equal(stat(written, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    snprintf(other, sizeof other, "%s/other", folder);
    snprintf(link_path, sizeof link_path, "%s/link%%", folder);
    assert_int_equal(symlink(other, link_path), 0);
    snprintf(link_path, sizeof link_path, "%s/link%%%%", folder);
    assert_int_equal(trib_trace_write(engine, link_path, &error), TRIB_OK);
    assert_int_equal(access(other, F_OK), -1);
    snprintf(link_path, sizeof link_path, "%s/link%%", folder);
    assert_int_equal(lstat(link_path, &about), 0);
    assert_true(S_ISREG(about.st_mode));
    assert_int_equal(unlink(link_path), 0);
}

/* ---- On and off, and the size limit ---- */

static void at_run_time(void **state)
{
    (void)state;
    files_in_folder(true);
    sim_job *job = open_job(NULL);
    trib_engine *engine = job->members[1].engine;
    trib_error error = {.status = TRIB_OK};
    run_rounds(job, 1);
    assert_int_equal(trib_trace_write(engine, pattern, &error), TRIB_STATE);
    assert_int_equal(files_in_folder(false), 0);
    trib_trace_stop(engine);
    assert_int_equal(trib_trace_start(engine, 1 << 20, &error), TRIB_OK);
    assert_int_equal(trib_trace_start(engine, 1 << 21, &error), TRIB_STATE);
    run_rounds(job, 2);
    trib_trace_stop(engine);
    run_rounds(job, 1);
    assert_int_equal(trib_trace_write(engine, pattern, &error), TRIB_OK);
    trace_file *file = load(paths[1]);
    assert_int_equal(count_kind(file, TRIB_TRACE_SUBMIT), 2);
    assert_true(file->sample_count > 0);
    trace_file_free(file);
    /* A new start forgets the earlier recording. */
    assert_int_equal(trib_trace_start(engine, 0, &error), TRIB_OK);
    run_rounds(job, 1);
    assert_int_equal(trib_trace_write(engine, pattern, &error), TRIB_OK);
    file = load(paths[1]);
    assert_int_equal(count_kind(file, TRIB_TRACE_SUBMIT), 1);
    trace_file_free(file);
    /* The engine fills in a path's placeholders, and rejects a path that does not exist. */
    char path[128];
    snprintf(path, sizeof path, "%s/%%r-%%p-%%h%%%%", folder);
    assert_int_equal(trib_trace_write(engine, path, &error), TRIB_OK);
    snprintf(path, sizeof path, "%s/rank1-1001-n1%%", folder);
    assert_int_equal(access(path, R_OK), 0);
    check_access(engine, path);
    assert_int_equal(trib_trace_write(engine, "/nowhere/at/all", &error), TRIB_SYSTEM);
    assert_non_null(strstr(error.text, "/nowhere/at/all.rank1.1001.trib"));
    assert_int_equal(trib_trace_write(engine, "", &error), TRIB_INVALID);
    assert_int_equal(trib_trace_write(engine, "/tmp/%z", &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "%z is none of"));
    assert_int_equal(trib_trace_start(engine, UINT64_MAX, &error), TRIB_INVALID);
    assert_int_equal(files_in_folder(false), 2);
    close_job(job);
}

static void a_small_ring_says_what_it_lost(void **state)
{
    (void)state;
    sim_job *job = open_job(NULL);
    trib_engine *engine = job->members[WORKERS].engine;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_trace_start(engine, 1, &error), TRIB_OK);
    run_rounds(job, 8);
    assert_int_equal(trib_trace_write(engine, pattern, &error), TRIB_OK);
    trace_file *file = load(paths[3]);
    assert_int_equal(file->record_count, 512);
    assert_true(file->cores[0].lost > 0 && file->cores[1].lost > 0);
    for (uint32_t i = 0; i < 2; i++) {
        int64_t last_ns = 0;
        for (uint64_t k = 0; k < file->cores[i].count; k++) {
            const trib_trace_record *record = &file->cores[i].records[k];
            /* A sum is recorded as sent when it is acknowledged, with the time at which it left. */
            if (record->kind != TRIB_TRACE_SUM_SENT) {
                assert_true(record->at_ns >= last_ns);
                last_ns = record->at_ns;
            }
        }
    }
    trace_file_free(file);
    close_job(job);
}

static void a_real_engine(void **state)
{
    (void)state;
    trib_config config;
    trib_config_init(&config, sizeof config);
    trib_error error = {.status = TRIB_OK};
    trib_engine *engine = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s/real", folder);
    config.trace = path;
    assert_int_equal(trib_engine_create(&config, &engine, &error), TRIB_OK);
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = "numbers";
    desc.count = 100;
    float numbers[100] = {0};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.input = params.output = numbers;
    trib_op *op = NULL;
    assert_int_equal(trib_tensor_declare(engine, &desc, &params.tensor, &error), TRIB_OK);
    assert_int_equal(trib_push_pull(engine, &params, &op, &error), TRIB_OK);
    assert_int_equal(trib_op_wait(op, -1, &error), TRIB_OK);
    trib_op_release(op);
    assert_int_equal(trib_engine_destroy(engine), TRIB_OK);
    snprintf(path, sizeof path, "%s/real.rank0.%d.trib", folder, (int)getpid());
    trace_file *file = load(path);
    assert_int_equal(count_kind(file, TRIB_TRACE_COMPLETE), 1);
    assert_int_equal(count_kind(file, TRIB_TRACE_SUM_ARRIVE), 1);
    assert_true(file->cpu_count > 0);
    assert_true(file->written_ns > file->began_ns);
    trace_file_free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_in_virtual_time), cmocka_unit_test(on_one_clock),

        cmocka_unit_test(at_run_time),           cmocka_unit_test(a_small_ring_says_what_it_lost),
        cmocka_unit_test(a_real_engine),

    };
    return cmocka_run_group_tests_name("recorded jobs", tests, make_folder, remove_folder);
}
