/*
 * test_config.c - settings from the environment of every launcher, their precedence, and what wrong ones are told.
 *
 * Each case starts from an empty environment, so that the launcher that runs the tests does not take part.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/config/config.h"
#include "api/tributary.h"

#define SECOND INT64_C(1000000000)

/* Names and values in turn, NULL at the end. */
static void set_all(const char *const *pairs)
{
    clearenv();
    for (size_t i = 0; pairs[i] != NULL; i += 2) {
        assert_int_equal(setenv(pairs[i], pairs[i + 1], 1), 0);
    }
}

static trib_config read_env(const char *const *pairs)
{
    set_all(pairs);
    trib_config config;
    trib_config_init(&config, sizeof config);
    trib_error error = {.status = TRIB_OK};
    if (trib_config_from_env(&config, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return config;
}

#define READ(...) read_env((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

/* The environment is refused, nothing is written, and the text has the two words. */
static void refused_env(const char *const *pairs, const char *name, const char *allowed)
{
    set_all(pairs);
    trib_config config, before;
    trib_config_init(&config, sizeof config);
    config.rank = 7;
    config.job = "before";
    memcpy(&before, &config, sizeof before);
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_config_from_env(&config, &error), TRIB_INVALID);
    assert_int_equal(error.status, TRIB_INVALID);
    if (strstr(error.text, name) == NULL || strstr(error.text, allowed) == NULL) {
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", error.text, name, allowed);
    }
    assert_memory_equal(&config, &before, sizeof before);
    assert_int_equal(trib_config_from_env(&config, NULL), TRIB_INVALID);
}

#define REFUSED(name, allowed, ...) refused_env((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL}, name, allowed)

/* ---- Environments ---- */

static void nothing_changes_nothing(void **state)
{
    (void)state;
    trib_config defaults, config = READ();
    trib_config_init(&defaults, sizeof defaults);
    assert_memory_equal(&config, &defaults, sizeof config);
    config = READ("TRIB_RANK", "", "TRIB_WORKERS", "", "TRIB_LOG", "", "RANK", "3", "DMLC_ROLE", "");
    assert_int_equal(config.rank, 0);
    assert_int_equal(config.worker_count, 1);
}

static void own_variables(void **state)
{
    (void)state;
    trib_config config = READ(
        "TRIB_RANK", "2", "TRIB_WORKERS", "4", "TRIB_SERVERS", "3", "TRIB_REACTORS", "5", "TRIB_ROLE", "worker+server",
        "TRIB_COORDINATOR", "host:7", "TRIB_LISTEN", "10.0.0.1", "TRIB_JOB", "j", "TRIB_TRANSPORT", "tcp", "TRIB_TOKEN",
        "t", "TRIB_PARTITION_BYTES", "2M", "TRIB_CHUNK_BYTES", "64KiB", "TRIB_PUSH_CREDIT", "131072",
        "TRIB_PULL_CREDIT", "1G", "TRIB_JOIN_TIMEOUT", "5m", "TRIB_OP_TIMEOUT", "0.5", "TRIB_PEER_TIMEOUT", "200ms",
        "TRIB_CLOSE_TIMEOUT", "3s", "TRIB_BANDWIDTH", "10gbit", "TRIB_SUM_ORDER", "ARRIVAL", "TRIB_COLOCATE", "off",
        "TRIB_LOCAL_SUM", "on", "TRIB_SHARES", "follow", "TRIB_LOG", "debug", "TRIB_BUSY_POLL", "yes", "TRIB_PIN",
        "false", "TRIB_EXTERNAL_COORDINATOR", "1", "TRIB_BUSY_POLL_TIME", "50us", "TRIB_GPU_DIRECT", "off");
    assert_int_equal(config.rank, 2);
    assert_int_equal(config.worker_count, 4);
    assert_int_equal(config.server_count, 3);
    assert_int_equal(config.reactors, 5);
    assert_int_equal(config.roles, TRIB_ROLE_WORKER | TRIB_ROLE_SERVER);
    assert_string_equal(config.coordinator, "host:7");
    assert_string_equal(config.listen, "10.0.0.1");
    assert_string_equal(config.job, "j");
    assert_string_equal(config.transport, "tcp");
    assert_string_equal(config.token, "t");
    assert_int_equal(config.partition_bytes, 2 << 20);
    assert_int_equal(config.chunk_bytes, 64 << 10);
    assert_int_equal(config.push_credit_bytes, 131072);
    assert_int_equal(config.pull_credit_bytes, 1 << 30);
    assert_int_equal(config.join_timeout_ns, 300 * SECOND);
    assert_int_equal(config.op_timeout_ns, SECOND / 2);
    assert_int_equal(config.peer_timeout_ns, SECOND / 5);
    assert_int_equal(config.close_timeout_ns, 3 * SECOND);
    assert_int_equal(config.bandwidth_bits, UINT64_C(10000000000));
    assert_int_equal(config.sum_order, TRIB_ORDER_ARRIVAL);
    assert_int_equal(config.colocate, TRIB_COLOCATE_OFF);
    assert_int_equal(config.local_sum, TRIB_LOCAL_SUM_ON);
    assert_int_equal(config.shares, TRIB_SHARES_FOLLOW);
    assert_int_equal(config.gpu_direct, TRIB_GPU_DIRECT_OFF);
    assert_int_equal(config.log_level, TRIB_LOG_DEBUG);
    assert_true(config.busy_poll);
    assert_int_equal(config.busy_poll_ns, 50000);
    assert_false(config.pin);
    assert_true(config.external_coordinator);
    assert_int_equal(READ("TRIB_ROLE", "coordinator").roles, TRIB_ROLE_COORDINATOR);
    assert_int_equal(READ("TRIB_BANDWIDTH", "1000000").bandwidth_bits, 1000000);
}

/* The first line of either is the token, without its line end; TRIB_TOKEN goes before the file. */
static void token_from_file(void **state)
{
    (void)state;
    char path[] = "/tmp/tributary-token-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "first line\r\nsecond", 18), 18);
    assert_string_equal(READ("TRIB_TOKEN_FILE", path).token, "first line");
    assert_string_equal(READ("TRIB_TOKEN_FILE", path, "TRIB_TOKEN", "direct").token, "direct");
    static const char *const texts[] = {"first line", "first line\n", "first line\r\nsecond"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        assert_string_equal(READ("TRIB_TOKEN", texts[i]).token, "first line");
    }
    REFUSED("TRIB_TOKEN", "first line is the token", "TRIB_TOKEN", "\nsecond");
    /* Longer than what is kept: half a token would not be the token. */
    char longer[600];
    memset(longer, 'x', sizeof longer);
    assert_int_equal(pwrite(fd, longer, sizeof longer, 0), sizeof longer);
    REFUSED("TRIB_TOKEN_FILE", "1 to 511 bytes", "TRIB_TOKEN_FILE", path);
    assert_int_equal(ftruncate(fd, 511), 0);
    assert_int_equal(strlen(READ("TRIB_TOKEN_FILE", path).token), 511);
    assert_int_equal(ftruncate(fd, 0), 0);
    REFUSED("TRIB_TOKEN_FILE", "first line is the token", "TRIB_TOKEN_FILE", path);
    assert_int_equal(pwrite(fd, "\n", 1, 0), 1);
    REFUSED("TRIB_TOKEN_FILE", "first line is the token", "TRIB_TOKEN_FILE", path);
    close(fd);
    unlink(path);
    REFUSED("TRIB_TOKEN_FILE", "No such file", "TRIB_TOKEN_FILE", path);
    REFUSED("TRIB_TOKEN_FILE", "/tmp", "TRIB_TOKEN_FILE", "/tmp");
}

static void torchrun(void **state)
{
    (void)state;
    trib_config config = READ("RANK", "3", "WORLD_SIZE", "8", "MASTER_ADDR", "node0", "MASTER_PORT", "29500");
    assert_int_equal(config.rank, 3);
    assert_int_equal(config.worker_count, 8);
    /* The port itself is the launcher's store. */
    assert_string_equal(config.coordinator, "node0:29501");
    config = READ("RANK", "0", "WORLD_SIZE", "1", "MASTER_ADDR", "fd00::1", "MASTER_PORT", "65534");
    assert_string_equal(config.coordinator, "[fd00::1]:65535");
    assert_null(READ("RANK", "0", "WORLD_SIZE", "2").coordinator);
    assert_null(READ("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "a").coordinator);
    REFUSED("MASTER_PORT", "1 to 65534", "RANK", "0", "WORLD_SIZE", "1", "MASTER_ADDR", "a", "MASTER_PORT", "65535");
    REFUSED("RANK", "0 to", "RANK", "-1", "WORLD_SIZE", "1");
    REFUSED("WORLD_SIZE", "1 to", "RANK", "0", "WORLD_SIZE", "0");
}

/* All on one machine: a port that is a function of what only they have in common, and below the kernel's range. */
static void check_local(const trib_config *config, const char *job_prefix)
{
    int port = 0;
    assert_int_equal(sscanf(config->coordinator, "127.0.0.1:%d", &port), 1);
    assert_in_range(port, 20000, 29999);
    assert_int_equal(strncmp(config->job, job_prefix, strlen(job_prefix)), 0);
}

static void open_mpi(void **state)
{
    (void)state;
    trib_config config = READ("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_SIZE",
                              "2", "PMIX_NAMESPACE", "space");
    assert_int_equal(config.rank, 1);
    assert_int_equal(config.worker_count, 2);
    check_local(&config, "ompi-space-");
    char first[64];
    snprintf(first, sizeof first, "%s", config.coordinator);
    config = READ("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_SIZE", "2",
                  "PMIX_NAMESPACE", "space");
    assert_string_equal(config.coordinator, first);
    config = READ("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_SIZE", "2",
                  "PMIX_NAMESPACE", "other");
    assert_string_not_equal(config.coordinator, first);
    /* Several machines: nobody says where rank 0 is. */
    config = READ("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "4", "OMPI_COMM_WORLD_LOCAL_SIZE", "2");
    assert_null(config.coordinator);
    REFUSED("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK is set", "OMPI_COMM_WORLD_RANK", "1");
    REFUSED("OMPI_COMM_WORLD_RANK", "a number", "OMPI_COMM_WORLD_RANK", "one", "OMPI_COMM_WORLD_SIZE", "2");
    REFUSED("OMPI_COMM_WORLD_LOCAL_SIZE", "a number", "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2",
            "OMPI_COMM_WORLD_LOCAL_SIZE", "2x");
}

static void hydra(void **state)
{
    (void)state;
    trib_config config = READ("PMI_RANK", "1", "PMI_SIZE", "2", "MPI_LOCALNRANKS", "2");
    assert_int_equal(config.rank, 1);
    assert_int_equal(config.worker_count, 2);
    check_local(&config, "hydra-");
    assert_null(READ("PMI_RANK", "1", "PMI_SIZE", "4", "MPI_LOCALNRANKS", "2").coordinator);
    assert_null(READ("PMI_RANK", "1", "PMI_SIZE", "4").coordinator);
    REFUSED("PMI_SIZE", "PMI_RANK is set", "PMI_RANK", "1");
    REFUSED("MPI_LOCALNRANKS", "1 to", "PMI_RANK", "1", "PMI_SIZE", "2", "MPI_LOCALNRANKS", "0");
}

static void slurm(void **state)
{
    (void)state;
    trib_config config = READ("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_JOB_ID", "77", "SLURM_NNODES", "1");
    assert_int_equal(config.rank, 1);
    assert_int_equal(config.worker_count, 2);
    check_local(&config, "slurm-77-0");
    static const char *const lists[][2] = {
        {"a[03-07,9],b", "a03:"}, {"a,b", "a:"}, {"a", "a:"}, {"n[12,14]", "n12:"}, {"rack1-[5]", "rack1-5:"}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        config = READ("SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_JOB_ID", "77", "SLURM_STEP_ID", "3",
                      "SLURM_NNODES", "2", "SLURM_JOB_NODELIST", lists[i][0]);
        assert_int_equal(strncmp(config.coordinator, lists[i][1], strlen(lists[i][1])), 0);
        assert_string_equal(config.job, "slurm-77-3");
    }
    config = READ("SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_NNODES", "2", "SLURM_JOB_NODELIST", "whole",
                  "SLURM_STEP_NODELIST", "part");
    assert_int_equal(strncmp(config.coordinator, "part:", 5), 0);
    assert_null(READ("SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_NNODES", "2").coordinator);
    /* Inside a job, but not started by srun: one process of its own. */
    assert_int_equal(READ("SLURM_JOB_ID", "77", "SLURM_PROCID", "4").worker_count, 1);
    REFUSED("SLURM_NTASKS", "1 to", "SLURM_PROCID", "1", "SLURM_NTASKS", "many");
    REFUSED("SLURM_NTASKS", "SLURM_PROCID is not", "SLURM_NTASKS", "8");
    REFUSED("WORLD_SIZE", "RANK is not", "WORLD_SIZE", "4", "MASTER_ADDR", "a");
    assert_int_equal(READ("WORLD_SIZE", "1").worker_count, 1);
    assert_int_equal(READ("WORLD_SIZE", "4", "TRIB_WORKERS", "1").worker_count, 1);
    assert_int_equal(READ("WORLD_SIZE", "4", "TRIB_RANK", "0").worker_count, 1);
    assert_int_equal(READ("SLURM_NTASKS", "8", "TRIB_ROLE", "server").roles, TRIB_ROLE_SERVER);
}

static void byteps(void **state)
{
    (void)state;
    trib_config config = READ("DMLC_ROLE", "worker", "DMLC_NUM_WORKER", "2", "DMLC_NUM_SERVER", "3", "DMLC_WORKER_ID",
                              "1", "DMLC_PS_ROOT_URI", "10.0.0.1", "DMLC_PS_ROOT_PORT", "1234");
    assert_int_equal(config.roles, TRIB_ROLE_WORKER);
    assert_int_equal(config.rank, 1);
    assert_int_equal(config.worker_count, 2);
    assert_int_equal(config.server_count, 3);
    assert_string_equal(config.coordinator, "10.0.0.1:1234");
    assert_true(config.external_coordinator);
    config = READ("DMLC_ROLE", "server", "DMLC_WORKER_ID", "1");
    assert_int_equal(config.roles, TRIB_ROLE_SERVER);
    assert_int_equal(config.rank, -1);
    assert_null(config.coordinator);
    assert_int_equal(READ("DMLC_ROLE", "scheduler").roles, TRIB_ROLE_COORDINATOR);
    config = READ("DMLC_ROLE", "worker", "DMLC_PS_ROOT_URI", "fd00::1", "DMLC_PS_ROOT_PORT", "1234");
    assert_string_equal(config.coordinator, "[fd00::1]:1234");
    REFUSED("DMLC_ROLE", "worker server scheduler", "DMLC_ROLE", "boss");
    REFUSED("DMLC_NUM_WORKER", "1 to", "DMLC_ROLE", "worker", "DMLC_NUM_WORKER", "0");
    REFUSED("DMLC_NUM_SERVER", "0 to", "DMLC_ROLE", "worker", "DMLC_NUM_SERVER", "-2");
    REFUSED("DMLC_WORKER_ID", "0 to", "DMLC_ROLE", "worker", "DMLC_WORKER_ID", "a");
    REFUSED("DMLC_PS_ROOT_PORT", "1 to 65535", "DMLC_ROLE", "worker", "DMLC_PS_ROOT_PORT", "65536");
}

/* ---- Precedence ---- */

static void precedence(void **state)
{
    (void)state;
    /* TRIB_RANK: ours, whatever else is there, even if that is wrong. */
    trib_config config = READ("TRIB_RANK", "1", "TRIB_WORKERS", "2", "DMLC_ROLE", "boss", "RANK", "x", "WORLD_SIZE",
                              "y", "MASTER_ADDR", "m", "MASTER_PORT", "1");
    assert_int_equal(config.rank, 1);
    assert_int_equal(config.worker_count, 2);
    assert_null(config.coordinator);
    /* Without it the launcher says who, and single TRIB_ variables correct it. */
    config = READ("RANK", "3", "WORLD_SIZE", "8", "MASTER_ADDR", "m", "MASTER_PORT", "1", "TRIB_COORDINATOR", "c:2",
                  "TRIB_WORKERS", "9", "TRIB_JOB", "mine");
    assert_int_equal(config.rank, 3);
    assert_int_equal(config.worker_count, 9);
    assert_string_equal(config.coordinator, "c:2");
    assert_string_equal(config.job, "mine");
    /* One launcher inside another: BytePS, Open MPI, torchrun, Hydra, Slurm, in this order. */
    static const char *const nested[] = {"SLURM_PROCID",
                                         "5",
                                         "SLURM_NTASKS",
                                         "50",
                                         "PMI_RANK",
                                         "4",
                                         "PMI_SIZE",
                                         "40",
                                         "RANK",
                                         "3",
                                         "WORLD_SIZE",
                                         "30",
                                         "OMPI_COMM_WORLD_RANK",
                                         "2",
                                         "OMPI_COMM_WORLD_SIZE",
                                         "20",
                                         "DMLC_ROLE",
                                         "worker",
                                         "DMLC_WORKER_ID",
                                         "1",
                                         "DMLC_NUM_WORKER",
                                         "10"};
    static const size_t used[] = {4, 8, 12, 16, 22};
    for (size_t i = 0; i < 5; i++) {
        const char *pairs[24] = {NULL};
        memcpy(pairs, nested, used[i] * sizeof pairs[0]);
        config = read_env(pairs);
        assert_int_equal(config.rank, 5 - (int)i);
        assert_int_equal(config.worker_count, (5 - (int)i) * 10);
    }
}

/* What the caller had set stays where the environment is silent. */
static void fields_stay(void **state)
{
    (void)state;
    set_all((const char *const[]){"TRIB_WORKERS", "6", NULL});
    trib_config config;
    trib_config_init(&config, sizeof config);
    config.rank = 3;
    config.chunk_bytes = 8192;
    config.coordinator = "there:1";
    config.token = "t";
    config.roles = TRIB_ROLE_SERVER;
    config.busy_poll = true;
    assert_int_equal(trib_config_from_env(&config, NULL), TRIB_OK);
    assert_int_equal(config.rank, 3);
    assert_int_equal(config.worker_count, 6);
    assert_int_equal(config.chunk_bytes, 8192);
    assert_string_equal(config.coordinator, "there:1");
    assert_string_equal(config.token, "t");
    assert_int_equal(config.roles, TRIB_ROLE_SERVER);
    assert_true(config.busy_poll);
}

/* ---- Wrong values ---- */

static void wrong_values(void **state)
{
    (void)state;
    static const char *const wrong[][3] = {
        {"TRIB_RANK", "two", "0 to 1048576"},
        {"TRIB_RANK", "-1", "0 to 1048576"},
        {"TRIB_RANK", "1.5", "0 to 1048576"},
        {"TRIB_RANK", "99999999999999999999", "0 to 1048576"},
        {"TRIB_WORKERS", "0", "1 to 1048576"},
        {"TRIB_SERVERS", "-1", "0 to 1048576"},
        {"TRIB_REACTORS", "17", "0 to 16"},
        {"TRIB_ROLE", "boss", "worker, server, coordinator"},
        {"TRIB_ROLE", "worker+", "joined by +"},
        {"TRIB_ROLE", "+worker", "joined by +"},
        {"TRIB_ROLE", "worker,server", "joined by +"},
        {"TRIB_PARTITION_BYTES", "much", "256K"},
        {"TRIB_PARTITION_BYTES", "1Q", "256K"},
        {"TRIB_CHUNK_BYTES", "-1", "256K"},
        {"TRIB_CHUNK_BYTES", "nan", "256K"},
        {"TRIB_CHUNK_BYTES", "0", "256K"},
        {"TRIB_CHUNK_BYTES", "0.5", "256K"},
        {"TRIB_PUSH_CREDIT", "2G", "256K"},
        {"TRIB_PULL_CREDIT", "1e999", "256K"},
        {"TRIB_JOIN_TIMEOUT", "0", "above 0"},
        {"TRIB_OP_TIMEOUT", "-3", "above 0"},
        {"TRIB_PEER_TIMEOUT", "5h", "above 0"},
        {"TRIB_PEER_TIMEOUT", "nan", "above 0"},
        {"TRIB_PEER_TIMEOUT", "1e-12", "above 0"},
        {"TRIB_CLOSE_TIMEOUT", "inf", "above 0"},
        {"TRIB_CLOSE_TIMEOUT", "soon", "above 0"},
        {"TRIB_BANDWIDTH", "fast", "10gbit"},
        {"TRIB_BANDWIDTH", "-1gbit", "10gbit"},
        {"TRIB_BANDWIDTH", "1e16", "10gbit"},
        {"TRIB_BANDWIDTH", "nan", "10gbit"},
        {"TRIB_SUM_ORDER", "random", "rank arrival"},
        {"TRIB_COLOCATE", "maybe", "auto off on"},
        {"TRIB_LOG", "loud", "none error warn info debug trace"},
        {"TRIB_BUSY_POLL", "2", "yes"},
        {"TRIB_BUSY_POLL_TIME", "0", "above 0"},
        {"TRIB_PIN", "maybe", "yes"},
        {"TRIB_EXTERNAL_COORDINATOR", "x", "yes"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        REFUSED(wrong[i][0], wrong[i][2], wrong[i][0], wrong[i][1]);
        REFUSED(wrong[i][0], wrong[i][1], wrong[i][0], wrong[i][1]);
    }
}

/* A value that is far too long is cut in the text, not in the name or in what is allowed. */
static void long_values(void **state)
{
    (void)state;
    char value[5000];
    memset(value, 'z', sizeof value);
    value[sizeof value - 1] = '\0';
    static const char *const names[] = {"TRIB_RANK", "TRIB_ROLE", "TRIB_LOG", "TRIB_CHUNK_BYTES", "TRIB_OP_TIMEOUT"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        REFUSED(names[i], "must be", names[i], value);
    }
    /* A host that does not fit is not cut to another one. */
    REFUSED("MASTER_ADDR", "bytes", "RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", value, "MASTER_PORT", "5");
    REFUSED("DMLC_PS_ROOT_URI", "bytes", "DMLC_ROLE", "worker", "DMLC_PS_ROOT_URI", value, "DMLC_PS_ROOT_PORT", "5");
    REFUSED("SLURM_STEP_NODELIST", "bytes", "SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_NNODES", "2",
            "SLURM_STEP_NODELIST", value);
}

static void not_initialised(void **state)
{
    (void)state;
    clearenv();
    trib_config config;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_config_from_env(NULL, &error), TRIB_INVALID);
    assert_non_null(strstr(error.text, "config is NULL"));
    trib_config_init(&config, sizeof config - 8); /* as a program does that was built against another header */
    assert_int_equal(trib_config_from_env(&config, &error), TRIB_INVALID);
    assert_non_null(
        strstr(error.text, "trib_config.struct_size is 336, this library knows 344: call trib_config_init and"));
}

/* Whoever sets these by hand is told what is wrong; a launcher's own are passed over. */
static void local_ranks_by_hand(void **state)
{
    (void)state;
    REFUSED("TRIB_LOCAL_RANK", "0 to 4095", "TRIB_LOCAL_RANK", "x");
    REFUSED("TRIB_LOCAL_RANK", "0 to 4095", "TRIB_LOCAL_RANK", "-1");
    REFUSED("TRIB_LOCAL_COUNT", "1 to 4096", "TRIB_LOCAL_COUNT", "0");
    REFUSED("TRIB_LOCAL_COUNT", "1 to 4096", "TRIB_LOCAL_COUNT", "4 ");
    REFUSED("TRIB_LOCAL_RANK", "less than TRIB_LOCAL_COUNT", "TRIB_LOCAL_RANK", "4", "TRIB_LOCAL_COUNT", "4");
    (void)READ("TRIB_LOCAL_RANK", "3", "TRIB_LOCAL_COUNT", "4");
    (void)READ("TRIB_LOCAL_RANK", "", "TRIB_LOCAL_COUNT", "4");
    (void)READ("LOCAL_RANK", "x", "LOCAL_WORLD_SIZE", "0");
}

static void local_size(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"TRIB_LOCAL_RANK", "TRIB_LOCAL_COUNT"},
                                           {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                           {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"}};
    uint32_t index = 9, count = 9;
    for (size_t i = 0; i < 4; i++) {
        set_all((const char *const[]){names[i][0], "2", names[i][1], "4", NULL});
        assert_true(trib_config_local(&index, &count));
        assert_int_equal(index, 2);
        assert_int_equal(count, 4);
        /* Advice, not a setting: what makes no sense is as if it were not there. */
        set_all((const char *const[]){names[i][0], "4", names[i][1], "4", NULL});
        assert_false(trib_config_local(&index, &count));
        assert_int_equal(index, 0);
        assert_int_equal(count, 1);
        set_all((const char *const[]){names[i][0], "1", names[i][1], "x", NULL});
        assert_false(trib_config_local(&index, &count));
        assert_int_equal(count, 1);
        set_all((const char *const[]){names[i][0], "0", NULL}); /* the first, of nobody knows how many */
        assert_false(trib_config_local(&index, &count));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_changes_nothing),
        cmocka_unit_test(own_variables),
        cmocka_unit_test(token_from_file),
        cmocka_unit_test(torchrun),
        cmocka_unit_test(open_mpi),
        cmocka_unit_test(hydra),
        cmocka_unit_test(slurm),
        cmocka_unit_test(byteps),
        cmocka_unit_test(precedence),
        cmocka_unit_test(fields_stay),
        cmocka_unit_test(wrong_values),
        cmocka_unit_test(long_values),
        cmocka_unit_test(not_initialised),
        cmocka_unit_test(local_size),
        cmocka_unit_test(local_ranks_by_hand),
    };
    /* The cases empty the environment, in which cmocka would look up how to report them. */
    const char *output = getenv("CMOCKA_MESSAGE_OUTPUT");
    if (output != NULL && strcmp(output, "TAP") == 0) {
        cmocka_set_message_output(CM_OUTPUT_TAP);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
