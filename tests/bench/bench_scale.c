/*
 * bench_scale.c - measures the memory and processor time of each of many connections and keys on one server.
 *
 *     build/release/tests/bench_scale                   2 workers, 100 to 10,000 keys, then 10 to 1,000 workers
 *     build/release/tests/bench_scale WORKERS KEYS...   that many workers; each KEYS is a total of tensors
 *
 * The server and the coordinator have a process each, so that the kernel's figures for a process are about one of
 * them. The workers are engines without threads of their own, many of them on one loop. Times are of the processor,
 * not of the clock: they mean the same on a busy machine.
 */
#include <ev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/tributary.h"

enum { PROCESSES = 4, COUNT = 256, ROUNDS = 3, STEPS_MAX = 8, PORT = 41990 };

/* Orders for a worker process. */
typedef struct order {
    uint32_t keys;   /* total of tensors, which are declared if missing; 0: exit */
    uint32_t rounds; /* sums of each of them; 0: one, for which it is declared first */
} order;

typedef struct bed {
    uint32_t first, count, workers; /* ranks of this process */
    trib_engine **engines;
    struct ev_loop *loop;
    uint32_t ready, going, failed;
    float buffer[COUNT];
} bed;

static void die(const char *what, const trib_error *error)
{
    fprintf(stderr, "bench_scale: %s: %s\n", what, error->text);
    exit(1);
}

static trib_config config_of(uint32_t workers)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    static char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%d", PORT);
    config.coordinator = address;
    config.external_coordinator = true;
    config.worker_count = (int32_t)workers;
    config.server_count = 1;
    config.colocate = TRIB_COLOCATE_OFF;
    config.transport = "tcp";
    config.reactors = 1;
    config.pin = false;
    config.join_timeout_ns = INT64_C(120000000000);
    config.peer_timeout_ns = INT64_C(60000000000);
    return config;
}

/* ---- Workers ---- */

static void on_ready(trib_engine *engine, const trib_error *error, void *user)
{
    (void)engine;
    bed *self = user;
    if (error->status != TRIB_OK) {
        die("did not join", error);
    }
    self->ready++;
}

static void on_done(const trib_result *result, void *user)
{
    bed *self = user;
    self->going--;
    self->failed += result->status != TRIB_OK;
}

static void begin(bed *self, uint32_t rank, uint32_t key)
{
    char name[32];
    snprintf(name, sizeof name, "layer.%u.weight", key);
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = TRIB_FLOAT32;
    desc.count = COUNT;
    trib_error error = {.status = TRIB_OK};
    trib_op_params params;
    trib_op_params_init(&params, sizeof params);
    if (trib_tensor_declare(self->engines[rank], &desc, &params.tensor, &error) != TRIB_OK) {
        die("declare", &error);
    }
    params.input = params.output = self->buffer; /* the values of the sums do not matter here */
    params.done_cb = on_done;
    params.user = self;
    if (trib_push_pull(self->engines[rank], &params, NULL, &error) != TRIB_OK) {
        die("push_pull", &error);
    }
    self->going++;
}

static void work(uint32_t first, uint32_t count, uint32_t workers, int orders, int answers)
{
    bed self = {.first = first, .count = count, .workers = workers, .loop = ev_loop_new(EVFLAG_AUTO)};
    self.engines = calloc(count + 1, sizeof(trib_engine *));
    for (uint32_t i = 0; i < count; i++) {
        trib_config config = config_of(workers);
        config.mode = TRIB_MODE_ATTACHED;
        config.loop = self.loop;
        config.rank = (int32_t)(first + i);
        config.ready_cb = on_ready;
        config.ready_user = &self;
        trib_error error = {.status = TRIB_OK};
        if (trib_engine_create(&config, &self.engines[i], &error) != TRIB_OK) {
            die("a worker", &error);
        }
    }
    while (self.ready < count) {
        ev_run(self.loop, EVRUN_ONCE);
    }
    order what;
    uint32_t keys = 0;
    while (write(answers, &self.failed, sizeof self.failed) > 0 && read(orders, &what, sizeof what) == sizeof what) {
        for (uint32_t round = 0; round < (what.rounds > 0 ? what.rounds : 1); round++) {
            for (uint32_t key = what.rounds > 0 ? 0 : keys; key < what.keys; key++) {
                for (uint32_t i = 0; i < count; i++) {
                    begin(&self, i, key);
                }
            }
            while (self.going > 0) {
                ev_run(self.loop, EVRUN_ONCE);
            }
        }
        keys = what.keys;
    }
    _exit(0); /* the job ends with its processes */
}

/* ---- The server, the coordinator ---- */

static void serve(uint32_t roles, uint32_t workers)
{
    trib_config config = config_of(workers);
    config.roles = roles;
    config.rank = -1;
    config.log_level = TRIB_LOG_NONE;
    trib_engine *engine = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trib_engine_create(&config, &engine, &error) != TRIB_OK) {
        die(roles == TRIB_ROLE_SERVER ? "the server" : "the coordinator", &error);
    }
    for (;;) {
        pause();
    }
}

/* ---- Looking at processes ---- */

typedef struct look {
    double memory, cpu_s;
} look;

static look look_at(pid_t pid)
{
    char path[64], line[256];
    look seen = {.memory = 0};
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        double kib = 0;
        if (sscanf(line, "Private_Dirty: %lf", &kib) == 1) {
            seen.memory += kib * 1024;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    clockid_t clock;
    struct timespec spent;
    if (clock_getcpuclockid(pid, &clock) == 0 && clock_gettime(clock, &spent) == 0) {
        seen.cpu_s = (double)spent.tv_sec + (double)spent.tv_nsec / 1e9;
    }
    return seen;
}

typedef struct job {
    pid_t server, coordinator, workers[PROCESSES];
    int orders[PROCESSES][2], answers[PROCESSES][2];
    uint32_t processes;
} job;

static void await(job *self)
{
    for (uint32_t i = 0; i < self->processes; i++) {
        uint32_t failed = 1;
        if (read(self->answers[i][0], &failed, sizeof failed) != sizeof failed || failed > 0) {
            fprintf(stderr, "bench_scale: workers failed\n");
            exit(1);
        }
    }
}

static void tell(job *self, order what)
{
    for (uint32_t i = 0; i < self->processes; i++) {
        if (write(self->orders[i][1], &what, sizeof what) != sizeof what) {
            exit(1);
        }
    }
    await(self);
}

static pid_t start(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return child;
}

static void open_job(job *self, uint32_t workers)
{
    *self = (job){.processes = workers < PROCESSES ? workers : PROCESSES};
    if ((self->coordinator = start()) == 0) {
        serve(TRIB_ROLE_COORDINATOR, workers);
    }
    if ((self->server = start()) == 0) {
        serve(TRIB_ROLE_SERVER, workers);
    }
    for (uint32_t i = 0; i < self->processes; i++) {
        if (pipe(self->orders[i]) != 0 || pipe(self->answers[i]) != 0) {
            perror("pipe");
            exit(1);
        }
        const uint32_t first = workers * i / self->processes, end = workers * (i + 1) / self->processes;
        if ((self->workers[i] = start()) == 0) {
            work(first, end - first, workers, self->orders[i][0], self->answers[i][1]);
        }
    }
    await(self);
}

static void close_job(const job *self)
{
    for (uint32_t i = 0; i < self->processes; i++) {
        kill(self->workers[i], SIGKILL);
        waitpid(self->workers[i], NULL, 0);
        for (uint32_t end = 0; end < 2; end++) {
            close(self->orders[i][end]);
            close(self->answers[i][end]);
        }
    }
    kill(self->server, SIGKILL);
    kill(self->coordinator, SIGKILL);
    waitpid(self->server, NULL, 0);
    waitpid(self->coordinator, NULL, 0);
}

/* ---- Measuring ---- */

static void measure(uint32_t workers, const uint32_t *steps, uint32_t count)
{
    job bench;
    open_job(&bench, workers);
    const look server_0 = look_at(bench.server), coordinator_0 = look_at(bench.coordinator);
    printf("%u workers have joined: server %.1f MB, %.2f s; coordinator %.1f MB, %.2f s\n", workers,
           server_0.memory / 1e6, server_0.cpu_s, coordinator_0.memory / 1e6, coordinator_0.cpu_s);
    printf("%10s %16s %16s %16s %16s %16s\n", "keys", "server B/key", "coord. B/key", "declare us", "coord. us",
           "sum us");
    uint32_t before = 0;
    for (uint32_t i = 0; i < count; i++) {
        const look server_1 = look_at(bench.server), coordinator_1 = look_at(bench.coordinator);
        const look worker_1 = look_at(bench.workers[0]);
        tell(&bench, (order){.keys = steps[i]});
        const look server_2 = look_at(bench.server), coordinator_2 = look_at(bench.coordinator);
        const look worker_2 = look_at(bench.workers[0]);
        tell(&bench, (order){.keys = steps[i], .rounds = ROUNDS});
        const look server_3 = look_at(bench.server);
        const double fresh = (double)(steps[i] - before) * workers, sums = (double)steps[i] * workers * ROUNDS;
        const uint32_t mine = workers / bench.processes;
        printf("%10u %16.0f %16.0f %16.2f %16.2f %16.2f\n", steps[i], (server_3.memory - server_0.memory) / steps[i],
               (coordinator_2.memory - coordinator_0.memory) / steps[i],
               (worker_2.cpu_s - worker_1.cpu_s) / ((double)(steps[i] - before) * mine) * 1e6,
               (coordinator_2.cpu_s - coordinator_1.cpu_s) / fresh * 1e6,
               (server_3.cpu_s - server_2.cpu_s) / sums * 1e6);
        (void)server_1;
        fflush(stdout);
        before = steps[i];
    }
    close_job(&bench);
}

static void raise_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    raise_limit();
    uint32_t steps[STEPS_MAX] = {100, 1000, 10000}, count = 3;
    if (argc > 2) {
        for (count = 0; count < STEPS_MAX && (int)count + 2 < argc; count++) {
            steps[count] = (uint32_t)strtoul(argv[count + 2], NULL, 10);
        }
        measure((uint32_t)strtoul(argv[1], NULL, 10), steps, count);
        return 0;
    }
    measure(2, steps, count);
    const uint32_t few[] = {16};
    for (uint32_t workers = 10; workers <= 1000; workers *= 10) {
        measure(workers, few, 1);
    }
    return 0;
}
