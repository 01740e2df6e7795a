/*
 * bench.c - `tributary bench`: measures an operation for several sizes, checks every result once, and compares the
 * times with the bound t_opt.
 *
 * Outside a job, -n starts one through `tributary run`. Inside a job every worker measures; the time of an iteration
 * is that of the slowest worker (a MAX over the workers), and rank 0 prints.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "api/tributary.h"
#include "tools/cli/bench_batch.h"
#include "tools/cli/bench_ops.h"
#include "tools/cli/commands.h"
#include "tools/cli/json_out.h"
#include "tools/cli/options.h"
#include "tools/cli/part.h"
#include "tools/cli/plural.h"
#include "tools/cli/run_options.h"
#include "tools/trace/compare.h"

#define SIZES_MAX 32
#define ITERATIONS_MAX 10000
#define BATCH_MAX 30000
#define WARMUP 3
#define GOODPUT 0.956 /* share of the line rate left for payload: TCP over Ethernet with an MTU of 1500 */

typedef struct bench {
    uint32_t workers, servers; /* members of the job to start; 0 workers: this process is in a job already */
    bool json;
    int op; /* an index into bench_ops */
    trib_dtype dtype;
    uint64_t sizes[SIZES_MAX];
    int size_count;
    uint32_t iterations, batch;
    int64_t pause_ns;
    uint64_t rate_bits;
    trib_engine *engine;
    trib_engine_info info;
    int64_t *times; /* ns per iteration: first of this worker, then of the slowest */
    trib_tensor *times_tensor, *cpu_tensor, *wrong_tensor;
    uint64_t wrong;               /* wrong elements of all results */
    uint32_t prescale, postscale; /* 0: none */
} bench;

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static bool parse_size(const char *text, char **end, uint64_t *value)
{
    double number = strtod(text, end);
    const char *units = "KMG";
    const char *unit = **end != '\0' ? strchr(units, **end) : NULL;
    for (const char *at = units; unit != NULL && at <= unit; at++) {
        number *= 1024;
    }
    *end += unit != NULL;
    const bool fine = number >= 1 && number <= 1e12;
    *value = fine ? (uint64_t)number : 0;
    return fine;
}

static bool parse_sizes(bench *self, const char *text)
{
    self->size_count = 0;
    while (self->size_count < SIZES_MAX) {
        char *end = NULL;
        if (!parse_size(text, &end, &self->sizes[self->size_count]) || end == text || (*end != ',' && *end != '\0')) {
            return false;
        }
        self->size_count++;
        if (*end == '\0') {
            return true;
        }
        text = end + 1;
    }
    return false;
}

static bool parse_dtype(bench *self, const char *text)
{
    for (int i = 0; i < TRIB_DTYPE_COUNT; i++) {
        if (strcmp(trib_dtype_name((trib_dtype)i), text) == 0) {
            self->dtype = (trib_dtype)i;
            return true;
        }
    }
    return false;
}

/* Checks the options that a row of the table cannot describe. */
static int check_options(bench *self, const option_table *table, const char *sizes, const char *dtype)
{
    if (!parse_sizes(self, sizes)) {
        return options_reject(table, "--sizes", sizes,
                              "must be up to 32 sizes of 1 to 1e12 bytes with commas between, such as 64K,1M,1.5G");
    }
    if (!parse_dtype(self, dtype)) {
        return options_reject(table, "--dtype", dtype, "must be a type, such as float32 or bfloat16");
    }
    const uint32_t factor = self->prescale != 0 ? self->prescale : self->postscale;
    if (factor != 0 && (!bench_ops[self->op].sums || self->batch > 0)) {
        char text[16];
        snprintf(text, sizeof text, "%u", factor);
        return options_reject(table, self->prescale != 0 ? "--prescale" : "--postscale", text,
                              "goes with an --op that sums, and not with --batch");
    }
    for (int i = 0; i < self->size_count; i++) {
        if (self->sizes[i] < trib_dtype_size(self->dtype)) {
            fprintf(stderr, "tributary bench: --sizes: %llu bytes are less than one element of %s\n",
                    (unsigned long long)self->sizes[i], trib_dtype_name(self->dtype));
            return 2;
        }
    }
    return -1;
}

static int parse_options(bench *self, int argc, char **argv)
{
    const char *sizes = "4K,64K,1M,16M,64M", *dtype = "float32";
    uint32_t servers = UINT32_MAX;
    const option_row rows[] = {
        {OPTION_COUNT("-n", &self->workers, 1, RUN_COUNT_MAX, "starts a job of so many workers")},
        {OPTION_COUNT("-s", &servers, 0, RUN_COUNT_MAX, "and of so many servers; default 0")},
        {OPTION_CHOICE("--op", &self->op, bench_op_names, "OP", "default push_pull")},
        {OPTION_TEXT("--sizes", &sizes, "4K,1M,...", "bytes; default 4K,64K,1M,16M,64M")},
        {OPTION_COUNT("--iters", &self->iterations, 1, ITERATIONS_MAX, "default 30")},
        {OPTION_TEXT("--dtype", &dtype, "TYPE", "float32 (the default), float64, float16, bfloat16, int32, ...")},
        {OPTION_RATE("--rate", &self->rate_bits, "1gbit",
                     "of the links: prints the bound t_opt, and the ratio of the time to it")},
        {OPTION_TIME("--pause", &self->pause_ns, "50ms",
                     "before every exchange, as a training program has between its steps")},
        {OPTION_COUNT("--batch", &self->batch, 1, BATCH_MAX,
                      "so many operations of each size: handed over one by one, in a batch, prepared")},
        {OPTION_COUNT("--prescale", &self->prescale, 1, 4, "a factor of what workers give; of sums")},
        {OPTION_COUNT("--postscale", &self->postscale, 1, 4, "a factor of the result; of sums")},
        {OPTION_SET("--json", &self->json, "one JSON object")},
    };
    const option_table table = {
        .command = "bench",
        .usage = "[-n WORKERS [-s SERVERS]] [options]",
        .rows = rows,
        .count = sizeof rows / sizeof rows[0],
        .notes = "Without -n the process takes part in the job that its launcher started (tributary run, mpirun, "
                 "torchrun, ...);\nwithout a launcher it is a job of one worker.\n",
    };
    const int status = options_parse(&table, argc, argv);
    if (status >= 0) {
        return status;
    }
    if (servers != UINT32_MAX && self->workers == 0) {
        char text[16];
        snprintf(text, sizeof text, "%u", servers);
        return options_reject(&table, "-s", text,
                              "goes with -n WORKERS, for a job that is started; one that has begun has its servers");
    }
    self->servers = servers != UINT32_MAX ? servers : 0;
    return check_options(self, &table, sizes, dtype);
}

/* Tells whether the word is -n or -s. `tributary run` gets these; a bench that found them again would start
 * another job. */
static bool is_of_run(const char *word)
{
    return word[0] == '-' && (word[1] == 'n' || word[1] == 's');
}

/* Replaces this process by `tributary run`, whose program is this command again. */
static int run_as_job(const bench *self, int argc, char **argv)
{
    char own[4096], workers[16], servers[16];
    const char *fixed[] = {"tributary", "run", "-n", workers, "-s", servers, "--bind", "--", own, "bench"};
    const size_t fixed_count = sizeof fixed / sizeof fixed[0];
    const char **words = calloc(fixed_count + (size_t)argc + 1, sizeof *words);
    const ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (words != NULL && length > 0) {
        own[length] = '\0';
        snprintf(workers, sizeof workers, "%u", self->workers);
        snprintf(servers, sizeof servers, "%u", self->servers);
        memcpy(words, fixed, sizeof fixed);
        size_t count = fixed_count;
        for (int i = 1; i < argc; i++) {
            if (is_of_run(argv[i])) {
                i += argv[i][2] == '\0'; /* otherwise the number is part of this word */
            } else {
                words[count++] = argv[i];
            }
        }
        execv(own, (char *const *)(uintptr_t)words);
    }
    perror("tributary bench");
    free(words);
    return 1;
}

static void check_status(const bench *self, trib_status status, const trib_error *error, const char *what)
{
    part_check("bench", self->engine, status, error, what);
}

/* A tensor of the case, in equal slices where the operation has them. */
static trib_tensor *declare_case(bench *self, const bench_case *what)
{
    char name[64];
    snprintf(name, sizeof name, "bench %llu", (unsigned long long)what->count);
    uint64_t *splits = part_zalloc("bench", self->engine, what->workers, sizeof *splits);
    for (uint64_t i = 0; i < what->workers; i++) {
        splits[i] = what->slice;
    }
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = what->dtype;
    desc.layout = what->op->layout;
    desc.count = desc.layout == TRIB_SLICES ? what->slice : desc.layout == TRIB_PAIRS ? 0 : what->count;
    desc.splits = desc.layout == TRIB_PAIRS ? splits : NULL;
    desc.split_count = desc.layout == TRIB_PAIRS ? (uint32_t)what->workers : 0;
    trib_tensor *tensor = NULL;
    trib_error error = {.status = TRIB_OK};
    check_status(self, trib_tensor_declare(self->engine, &desc, &tensor, &error), &error, name);
    free(splits);
    return tensor;
}

static void await(bench *self, trib_status status, trib_op **op, trib_error *error)
{
    check_status(self, status, error, "exchange");
    check_status(self, trib_op_wait(*op, -1, error), error, "exchange");
    trib_op_release(*op);
}

static void run_exchange(bench *self, const bench_case *what, trib_tensor *tensor)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    bench_set_buffers(what, &params);
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    await(self, what->op->run(self->engine, &params, &op, &error), &op, &error);
}

/* Reduces a figure over the workers. */
static void run_sum(bench *self, trib_tensor *tensor, void *data, trib_reduce reduce)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = data;
    params.reduce = reduce;
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    await(self, trib_all_reduce(self->engine, &params, &op, &error), &op, &error);
}

/* Starts an iteration: all workers meet and then pause; the differences of their wake-ups are small beside the
 * pause. */
static void begin_together(bench *self)
{
    part_barrier("bench", self->engine);
    struct timespec left = {.tv_sec = self->pause_ns / 1000000000, .tv_nsec = self->pause_ns % 1000000000};
    while (self->pause_ns > 0 && nanosleep(&left, &left) != 0) {} /* a signal interrupted the sleep */
}

/* The number of wrong elements on all workers. */
static uint64_t check_once(bench *self, const bench_case *what, trib_tensor *tensor)
{
    bench_fill(what);
    run_exchange(self, what, tensor);
    int64_t wrong = (int64_t)bench_count_wrong(what);
    run_sum(self, self->wrong_tensor, &wrong, TRIB_SUM);
    return (uint64_t)wrong;
}

/* A row as nccl-tests print it, and beside it the bound and what it costs. */
typedef struct bench_row {
    uint64_t bytes, count, wrong;
    double p50, p99, algbw, busbw, t_opt, cpu_per_gb; /* seconds, GB/s, CPU seconds for each GB */
} bench_row;

/* A link's least time: of all-reduce and broadcast as the placement has it, of others their bytes on the bus. */
static double least_time(const bench *self, const bench_case *what, uint64_t bytes)
{
    const bool to_all = what->op->layout == TRIB_WHOLE && what->op->run != trib_reduce_to;
    const double factor = to_all ? self->info.t_opt_factor : bench_bus_factor(what);
    return self->rate_bits > 0 ? factor * (double)bytes * 8 / ((double)self->rate_bits * GOODPUT) : 0;
}

static bench_row make_row(bench *self, const bench_case *what, double cpu, uint64_t wrong)
{
    const uint64_t bytes = what->count * trib_dtype_size(what->dtype);
    qsort(self->times, self->iterations, sizeof *self->times, compare_i64_values);
    bench_row row = {.bytes = bytes, .count = what->count, .wrong = wrong};
    row.p50 = (double)self->times[self->iterations / 2] / 1e9;
    row.p99 = (double)self->times[self->iterations * 99 / 100] / 1e9;
    row.algbw = (double)bytes / row.p50 / 1e9;
    row.busbw = row.algbw * bench_bus_factor(what);
    row.t_opt = least_time(self, what, bytes);
    row.cpu_per_gb = bytes > 0 ? cpu / ((double)bytes * self->iterations / 1e9) : 0;
    return row;
}

static void report_row(const bench *self, const bench_case *what, const bench_row *row, json_t *rows)
{
    const char *redop = what->op->sums ? "sum" : "none";
    if (self->json) {
        json_array_append_new(rows, json_pack("{s:I,s:I,s:s,s:s,s:f,s:f,s:f,s:f,s:I,s:f,s:f}", "bytes",
                                              (json_int_t)row->bytes, "count", (json_int_t)row->count, "type",
                                              trib_dtype_name(what->dtype), "redop", redop, "p50_us", row->p50 * 1e6,
                                              "p99_us", row->p99 * 1e6, "algbw_gb_s", row->algbw, "busbw_gb_s",
                                              row->busbw, "wrong", (json_int_t)row->wrong, "t_opt_us", row->t_opt * 1e6,
                                              "worker_cpu_s_per_gb", row->cpu_per_gb));
        return;
    }
    printf("%12llu %12llu %9s %6s %11.1f %9.3f %9.3f %7llu %11.1f ", (unsigned long long)row->bytes,
           (unsigned long long)row->count, trib_dtype_name(what->dtype), redop, row->p50 * 1e6, row->algbw, row->busbw,
           (unsigned long long)row->wrong, row->p99 * 1e6);
    if (row->t_opt > 0) {
        printf("%12.1f %7.3f ", row->t_opt * 1e6, row->p50 / row->t_opt);
    } else {
        printf("%12s %7s ", "-", "-");
    }
    printf("%10.3f\n", row->cpu_per_gb);
    fflush(stdout);
}

static void measure_size(bench *self, uint64_t bytes, json_t *rows)
{
    const bench_op *op = &bench_ops[self->op];
    const uint64_t workers = (uint64_t)self->info.worker_count;
    bench_case what = {.op = op,
                       .dtype = self->dtype,
                       .rank = (uint64_t)self->info.rank,
                       .workers = workers,
                       .prescale = self->prescale,
                       .postscale = self->postscale,
                       .count = bench_count(op, bytes / trib_dtype_size(self->dtype), workers)};
    what.slice = op->layout == TRIB_WHOLE ? 0 : what.count / workers;
    const uint64_t size = what.count * trib_dtype_size(self->dtype);
    trib_tensor *tensor = declare_case(self, &what);
    what.data = part_alloc("bench", self->engine, size > 0 ? size : 1);
    what.other = op->layout == TRIB_PAIRS ? part_alloc("bench", self->engine, size > 0 ? size : 1) : NULL;
    const uint64_t wrong = check_once(self, &what, tensor);
    self->wrong += wrong;
    memset(what.data, 0, size);
    double cpu = 0;
    for (int i = -WARMUP; i < (int)self->iterations; i++) {
        begin_together(self);
        double cpu_before = cpu_seconds();
        int64_t begin = part_now_ns();
        run_exchange(self, &what, tensor);
        if (i >= 0) {
            self->times[i] = part_now_ns() - begin;
            cpu += cpu_seconds() - cpu_before;
        }
    }
    run_sum(self, self->times_tensor, self->times, TRIB_MAX);
    run_sum(self, self->cpu_tensor, &cpu, TRIB_SUM);
    if (self->info.rank == 0) {
        const bench_row row = make_row(self, &what, cpu, wrong);
        report_row(self, &what, &row, rows);
    }
    trib_free(self->engine, what.data);
    trib_free(self->engine, what.other);
}

static void print_head(const bench *self)
{
    printf("%s of %s: %d worker%s, %d server%s, %d summing, %u iteration%s, slowest worker's time\n",
           bench_ops[self->op].name, trib_dtype_name(self->dtype), self->info.worker_count,
           plural(self->info.worker_count), self->info.server_count, plural(self->info.server_count),
           self->info.summing_count, self->iterations, plural(self->iterations));
    if (self->info.local_sum > 0) {
        printf("(the %u workers of each machine sum first: t_opt is that of %d machines)\n", self->info.local_sum,
               self->info.worker_count / (int)self->info.local_sum);
    }
    printf("%12s %12s %9s %6s %11s %9s %9s %7s %11s %12s %7s %10s\n", "size", "count", "type", "redop", "time us",
           "algbw", "busbw", "wrong", "p99 us", "t_opt us", "ratio", "CPU s/GB");
    printf("(time: the median; algbw, busbw: GB/s, as nccl-tests count; CPU: the workers' processes, colocated servers "
           "with them)\n");
}

static bool measure_all(bench *self)
{
    self->times = part_zalloc("bench", self->engine, self->iterations, sizeof *self->times);
    self->times_tensor = part_declare("bench", self->engine, "bench times", TRIB_INT64, self->iterations);
    self->cpu_tensor = part_declare("bench", self->engine, "bench cpu", TRIB_FLOAT64, 1);
    self->wrong_tensor = part_declare("bench", self->engine, "bench wrong", TRIB_INT64, 1);
    json_t *rows = json_array();
    bool fine = true;
    if (self->info.rank == 0 && !self->json && self->batch == 0) {
        print_head(self);
    }
    for (int i = 0; i < self->size_count && self->batch == 0; i++) {
        measure_size(self, self->sizes[i], rows);
    }
    for (int i = 0; i < self->size_count && self->batch > 0; i++) {
        const size_t element = trib_dtype_size(self->dtype);
        const bench_batch batch = {.engine = self->engine,
                                   .info = self->info,
                                   .count = self->batch,
                                   .iterations = self->iterations,
                                   .bytes = self->sizes[i] / element * element,
                                   .dtype = self->dtype};
        bench_batch_measure(&batch, self->json ? rows : NULL);
    }
    if (self->info.rank == 0 && self->json) {
        json_t *whole =
            json_pack("{s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:f,s:O}", "op", bench_ops[self->op].name, "dtype",
                      trib_dtype_name(self->dtype), "workers", self->info.worker_count, "servers",
                      self->info.server_count, "summing", self->info.summing_count, "iterations", (int)self->iterations,
                      "local_sum", (int)self->info.local_sum, "t_opt_factor", self->info.t_opt_factor, "rows", rows);
        fine = json_out("bench", whole, 6);
    }
    json_decref(rows);
    free(self->times);
    return fine;
}

int bench_command(int argc, char **argv)
{
    bench self = {.iterations = 30};
    int status = parse_options(&self, argc, argv);
    if (status >= 0) {
        return status;
    }
    if (self.workers > 0) {
        return run_as_job(&self, argc, argv);
    }
    self.engine = part_join("bench", &self.info);
    const bool fine = measure_all(&self);
    (void)trib_engine_destroy(self.engine);
    if (self.wrong > 0) {
        fprintf(stderr, "tributary bench: %llu elements of results are wrong\n", (unsigned long long)self.wrong);
    }
    return fine && self.wrong == 0 ? 0 : 1;
}
