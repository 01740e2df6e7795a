/*
 * bench.c - `tributary bench`: push_pull and broadcast over sizes, every result checked once, against the bound t_opt.
 *
 * Outside a job, -n starts one through `tributary run`. Inside, every worker measures, the slowest worker's time of an
 * iteration counts (a MAX over the workers), and rank 0 prints.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "api/tributary.h"
#include "tools/commands.h"
#include "tools/json_out.h"
#include "tools/option.h"
#include "tools/part.h"
#include "tools/plural.h"
#include "tools/run_options.h"
#include "tools/study/parse.h"

#define SIZES_MAX 32
#define ITERATIONS_MAX 10000
#define GOODPUT 0.956 /* of the line rate, TCP over Ethernet with an MTU of 1500 */

typedef struct bench {
    const char *workers, *servers;
    bool broadcast, json;
    trib_dtype dtype;
    uint64_t sizes[SIZES_MAX];
    int size_count, iterations, warmup;
    int64_t pause_ns;
    uint64_t rate_bits;
    trib_engine *engine;
    trib_engine_info info;
    int64_t *times; /* ns, of every iteration, this worker's and then the slowest's */
    trib_tensor *times_tensor, *cpu_tensor;
} bench;

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void usage(FILE *out)
{
    fprintf(
        out,
        "usage: tributary bench [-n WORKERS [-s SERVERS]] [options]\n"
        "  --op push_pull|broadcast   (push_pull)      --sizes 4K,64K,1M,16M,64M   bytes\n"
        "  --iters N                  (30)             --dtype float32|float64|float16|bfloat16|int32|...\n"
        "  --rate 1gbit               links' rate: prints the bound t_opt and how near to it the time is\n"
        "  --pause 50ms               before every exchange, as a training program has between its steps\n"
        "  --json                     one JSON object\n"
        "Without -n it takes part in the job that its launcher started (tributary run, mpirun, torchrun, ...); where\n"
        "there is none, in one of its own with one worker.\n");
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

static int parse(bench *self, int argc, char **argv)
{
    static const struct option options[] = {
        {"op", required_argument, NULL, 'o'},
        {"sizes", required_argument, NULL, 'z'},
        {"iters", required_argument, NULL, 'i'},
        {"dtype", required_argument, NULL, 'd'},
        {"rate", required_argument, NULL, 'r'},
        {"pause", required_argument, NULL, 'p'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    uint32_t iterations = 0, processes = 0;
    self->iterations = 30;
    self->warmup = 3;
    parse_sizes(self, "4K,64K,1M,16M,64M");
    for (int option; (option = getopt_long(argc, argv, "n:s:h", options, NULL)) != -1;) {
        bool fine = true;
        char range[STUDY_WANTS_MAX] = "";
        const char *wants = range;
        switch (option) {
        case 'n':
            self->workers = optarg;
            fine = study_parse_count(optarg, 1, RUN_COUNT_MAX, &processes, range);
            break;
        case 's':
            self->servers = optarg;
            fine = study_parse_count(optarg, 0, RUN_COUNT_MAX, &processes, range);
            break;
        case 'o':
            self->broadcast = strcmp(optarg, "broadcast") == 0;
            fine = self->broadcast || strcmp(optarg, "push_pull") == 0;
            wants = "must be push_pull or broadcast";
            break;
        case 'z':
            fine = parse_sizes(self, optarg);
            wants = "must be up to 32 sizes of 1 to 1e12 bytes with commas between, such as 64K,1M,1.5G";
            break;
        case 'i':
            fine = study_parse_count(optarg, 1, ITERATIONS_MAX, &iterations, range);
            self->iterations = (int)iterations;
            break;
        case 'd':
            fine = parse_dtype(self, optarg);
            wants = "must be a type, such as float32 or bfloat16";
            break;
        case 'r':
            fine = study_parse_rate(optarg, &self->rate_bits, range);
            break;
        case 'p':
            fine = study_parse_time(optarg, &self->pause_ns, range);
            break;
        case 'j':
            self->json = true;
            break;
        case 'h':
            usage(stdout);
            return 0;
        default:
            usage(stderr);
            return 2;
        }
        if (!fine) {
            return option_refused("bench", options, option, optarg, wants);
        }
    }
    if (optind < argc) {
        return option_unexpected("bench", argv[optind]);
    }
    if (self->servers != NULL && self->workers == NULL) {
        return option_refused("bench", options, 's', self->servers,
                              "goes with -n WORKERS, for a job that is started; one that has begun has its servers");
    }
    self->servers = self->servers != NULL ? self->servers : "0";
    for (int i = 0; i < self->size_count; i++) {
        if (self->sizes[i] < trib_dtype_size(self->dtype)) {
            fprintf(stderr, "tributary bench: --sizes: %llu bytes are less than one element of %s\n",
                    (unsigned long long)self->sizes[i], trib_dtype_name(self->dtype));
            return 2;
        }
    }
    return -1;
}

/* -n or -s, which `tributary run` gets: a bench that found them once more would start a job of its own. */
static bool is_of_run(const char *word)
{
    return word[0] == '-' && (word[1] == 'n' || word[1] == 's');
}

/* Starts itself again as the program of a job. */
static int run_as_job(const bench *self, int argc, char **argv)
{
    char **arguments = calloc((size_t)argc + 10, sizeof *arguments);
    char own[4096];
    char *fixed[] = {(char[]){"tributary"}, (char[]){"run"}, (char[]){"-n"},
                     strdup(self->workers), (char[]){"-s"},  strdup(self->servers),
                     (char[]){"--bind"},    (char[]){"--"},  own,
                     (char[]){"bench"}};
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    if (arguments == NULL || fixed[3] == NULL || fixed[5] == NULL || length < 0) {
        perror("tributary bench");
        free(arguments);
        free(fixed[3]);
        free(fixed[5]);
        return 1;
    }
    own[length] = '\0';
    int count = 0;
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        arguments[count++] = fixed[i];
    }
    for (int i = 1; i < argc; i++) {
        if (is_of_run(argv[i])) {
            i += argv[i][2] == '\0'; /* else the number is in the same word */
        } else {
            arguments[count++] = argv[i];
        }
    }
    execv(own, arguments);
    perror("tributary bench");
    free(arguments);
    free(fixed[3]);
    free(fixed[5]);
    return 1;
}

static void check(const bench *self, trib_status status, const trib_error *error, const char *what)
{
    part_check("bench", self->engine, status, error, what);
}

static trib_tensor *declare(bench *self, const char *name, trib_dtype dtype, uint64_t count)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = dtype;
    desc.count = count;
    trib_tensor *tensor = NULL;
    trib_error error = {.status = TRIB_OK};
    check(self, trib_tensor_declare(self->engine, &desc, &tensor, &error), &error, name);
    return tensor;
}

static void exchange(bench *self, trib_tensor *tensor, void *data, trib_reduce reduce, bool broadcast)
{
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    params.tensor = tensor;
    params.input = params.output = data;
    params.reduce = reduce;
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    check(self, (broadcast ? trib_broadcast : trib_push_pull)(self->engine, &params, &op, &error), &error, "exchange");
    check(self, trib_op_wait(op, -1, &error), &error, "exchange");
    trib_op_release(op);
}

static void barrier(bench *self)
{
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    check(self, trib_barrier(self->engine, NULL, &op, &error), &error, "barrier");
    check(self, trib_op_wait(op, -1, &error), &error, "barrier");
    trib_op_release(op);
}

/* All have met, and have let so much time pass: how late each wakes up is small beside it. */
static void begin_together(bench *self)
{
    barrier(self);
    struct timespec left = {.tv_sec = self->pause_ns / 1000000000, .tv_nsec = self->pause_ns % 1000000000};
    while (self->pause_ns > 0 && nanosleep(&left, &left) != 0) {} /* a signal */
}

/* Small whole numbers: exact in every type but int8, where they wrap alike on every worker. Checked for float32. */
static void check_once(bench *self, trib_tensor *tensor, void *data, uint64_t bytes)
{
    if (self->dtype != TRIB_FLOAT32) {
        exchange(self, tensor, data, TRIB_SUM, self->broadcast);
        return;
    }
    float *values = data;
    uint64_t count = bytes / 4;
    int n = self->info.worker_count;
    for (uint64_t i = 0; i < count; i++) {
        values[i] = (float)(i % 1009 + (uint64_t)self->info.rank);
    }
    exchange(self, tensor, data, TRIB_SUM, self->broadcast);
    for (uint64_t i = 0; i < count; i++) {
        float base = (float)(i % 1009);
        float expected = self->broadcast ? base : base * (float)n + (float)(n * (n - 1) / 2);
        if (values[i] != expected) {
            trib_error error = {.status = TRIB_SYSTEM};
            snprintf(error.text, sizeof error.text, "element %llu is %g, expected %g", (unsigned long long)i,
                     (double)values[i], (double)expected);
            check(self, error.status, &error, "WRONG RESULT");
        }
    }
    memset(data, 0, bytes);
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void report(bench *self, uint64_t bytes, double cpu, json_t *rows)
{
    qsort(self->times, (size_t)self->iterations, sizeof *self->times, compare);
    double p50 = (double)self->times[self->iterations / 2] / 1e9;
    double p99 = (double)self->times[self->iterations * 99 / 100] / 1e9;
    double t_opt =
        self->rate_bits > 0 ? self->info.t_opt_factor * (double)bytes * 8 / ((double)self->rate_bits * GOODPUT) : 0;
    double cpu_per_gb = bytes > 0 ? cpu / ((double)bytes * self->iterations / 1e9) : 0;
    if (self->json) {
        json_array_append_new(rows, json_pack("{s:I,s:f,s:f,s:f,s:f,s:f}", "bytes", (json_int_t)bytes, "p50_us",
                                              p50 * 1e6, "p99_us", p99 * 1e6, "algbw_gb_s", (double)bytes / p50 / 1e9,
                                              "t_opt_us", t_opt * 1e6, "worker_cpu_s_per_gb", cpu_per_gb));
        return;
    }
    printf("%12llu %12.1f %12.1f %10.3f ", (unsigned long long)bytes, p50 * 1e6, p99 * 1e6, (double)bytes / p50 / 1e9);
    if (t_opt > 0) {
        printf("%12.1f %7.3f ", t_opt * 1e6, p50 / t_opt);
    } else {
        printf("%12s %7s ", "-", "-");
    }
    printf("%10.3f\n", cpu_per_gb);
    fflush(stdout);
}

static void measure(bench *self, uint64_t bytes, json_t *rows)
{
    uint64_t count = bytes / trib_dtype_size(self->dtype);
    bytes = count * trib_dtype_size(self->dtype);
    char name[64];
    snprintf(name, sizeof name, "bench %llu", (unsigned long long)bytes);
    trib_tensor *tensor = declare(self, name, self->dtype, count);
    void *data = part_alloc("bench", self->engine, bytes > 0 ? bytes : 1);
    check_once(self, tensor, data, bytes);
    memset(data, 0, bytes);
    double cpu = 0;
    for (int i = -self->warmup; i < self->iterations; i++) {
        begin_together(self);
        double cpu_before = cpu_seconds();
        int64_t begin = part_now_ns();
        exchange(self, tensor, data, TRIB_SUM, self->broadcast);
        if (i >= 0) {
            self->times[i] = part_now_ns() - begin;
            cpu += cpu_seconds() - cpu_before;
        }
    }
    exchange(self, self->times_tensor, self->times, TRIB_MAX, false);
    exchange(self, self->cpu_tensor, &cpu, TRIB_SUM, false);
    if (self->info.rank == 0) {
        report(self, bytes, cpu, rows);
    }
    trib_free(self->engine, data);
}

static void print_head(const bench *self)
{
    printf("%s of %s: %d worker%s, %d server%s, %d summing, %d iteration%s, slowest worker's time\n",
           self->broadcast ? "broadcast" : "push_pull", trib_dtype_name(self->dtype), self->info.worker_count,
           plural(self->info.worker_count), self->info.server_count, plural(self->info.server_count),
           self->info.summing_count, self->iterations, plural(self->iterations));
    if (self->info.local_sum > 0) {
        printf("(the %u workers of each machine sum first: t_opt is that of %d machines)\n", self->info.local_sum,
               self->info.worker_count / (int)self->info.local_sum);
    }
    printf("%12s %12s %12s %10s %12s %7s %10s\n", "bytes", "p50 us", "p99 us", "GB/s", "t_opt us", "ratio", "CPU s/GB");
    printf("(CPU: the workers' processes, colocated servers with them; servers of their own not counted)\n");
}

static bool measure_all(bench *self)
{
    self->times = part_zalloc("bench", self->engine, (size_t)self->iterations, sizeof *self->times);
    self->times_tensor = declare(self, "bench times", TRIB_INT64, (uint64_t)self->iterations);
    self->cpu_tensor = declare(self, "bench cpu", TRIB_FLOAT64, 1);
    json_t *rows = json_array();
    bool fine = true;
    if (self->info.rank == 0 && !self->json) {
        print_head(self);
    }
    for (int i = 0; i < self->size_count; i++) {
        measure(self, self->sizes[i], rows);
    }
    if (self->info.rank == 0 && self->json) {
        json_t *whole =
            json_pack("{s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:f,s:O}", "op", self->broadcast ? "broadcast" : "push_pull",
                      "dtype", trib_dtype_name(self->dtype), "workers", self->info.worker_count, "servers",
                      self->info.server_count, "summing", self->info.summing_count, "iterations", self->iterations,
                      "local_sum", (int)self->info.local_sum, "t_opt_factor", self->info.t_opt_factor, "rows", rows);
        fine = json_out("bench", whole, 6);
    }
    json_decref(rows);
    free(self->times);
    return fine;
}

int bench_command(int argc, char **argv)
{
    bench self = {.json = false};
    int status = parse(&self, argc, argv);
    if (status >= 0) {
        return status;
    }
    if (self.workers != NULL) {
        return run_as_job(&self, argc, argv);
    }
    self.engine = part_join("bench", &self.info);
    const bool fine = measure_all(&self);
    (void)trib_engine_destroy(self.engine);
    return fine ? 0 : 1;
}
