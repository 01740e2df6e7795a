/* test_config_launchers.c - rank, size and coordinator from the variables of each launcher, and which of them
 * counts. */
#include "tests/unit/api/config_cases.h"

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

/* All processes are on one machine. The port follows from values that only this job's processes share, and lies below
 * the kernel's range. */
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
    /* Several machines: no variable says where rank 0 is. */
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
    assert_null(READ("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_NNODES", "2").coordinator);
    /* Slurm's own PMI sets two of Hydra's variables, too. */
    config = READ("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_JOB_ID", "77", "SLURM_STEP_ID", "0", "SLURM_NNODES",
                  "1", "PMI_RANK", "1", "PMI_SIZE", "2");
    assert_int_equal(config.rank, 1);
    check_local(&config, "slurm-77-0");
    REFUSED("SLURM_PROCID=1 of SLURM_NTASKS=2", "PMI_RANK=0 of PMI_SIZE=2", "SLURM_PROCID", "1", "SLURM_NTASKS", "2",
            "PMI_RANK", "0", "PMI_SIZE", "2");
    /* A batch script has the variables of rank 0, but is a single process. */
    REFUSED("SLURM_NTASKS=\"8\"", "srun", "SLURM_PROCID", "0", "SLURM_NTASKS", "8", "SLURM_JOB_ID", "77",
            "SLURM_NNODES", "2", "SLURM_JOB_NODELIST", "a,b");
    assert_int_equal(READ("SLURM_PROCID", "0", "SLURM_NTASKS", "8", "TRIB_WORKERS", "1").worker_count, 1);
    assert_int_equal(READ("SLURM_PROCID", "0", "SLURM_NTASKS", "1", "SLURM_JOB_ID", "77").worker_count, 1);
    /* Inside a job, but not started by srun: one process of its own. */
    assert_int_equal(READ("SLURM_JOB_ID", "77", "SLURM_PROCID", "4").worker_count, 1);
    REFUSED("SLURM_NTASKS", "1 to", "SLURM_PROCID", "1", "SLURM_NTASKS", "many");
    REFUSED("SLURM_NTASKS", "SLURM_PROCID is not", "SLURM_NTASKS", "8");
    REFUSED("WORLD_SIZE", "RANK is not", "WORLD_SIZE", "4", "MASTER_ADDR", "a");
    trib_config told = {.struct_size = 0};
    trib_config_init(&told, sizeof told);
    told.worker_count = 4; /* by the program itself */
    assert_int_equal(trib_config_from_env(&told, NULL), TRIB_OK);
    assert_int_equal(told.worker_count, 4);
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
    config = READ("DMLC_ROLE", "worker", "DMLC_NUM_WORKER", "2", "DMLC_WORKER_ID", "1", "BYTEPS_LOCAL_RANK", "2",
                  "BYTEPS_LOCAL_SIZE", "4", "DMLC_PS_ROOT_URI", "10.0.0.1", "DMLC_PS_ROOT_PORT", "1234");
    assert_int_equal(config.rank, 6);
    assert_int_equal(config.worker_count, 8);
    /* One machine, and no scheduler. */
    config = READ("DMLC_ROLE", "worker", "DMLC_NUM_WORKER", "1", "BYTEPS_LOCAL_RANK", "1", "BYTEPS_LOCAL_SIZE", "4");
    assert_int_equal(config.rank, 1);
    assert_int_equal(config.worker_count, 4);
    assert_false(config.external_coordinator);
    check_local(&config, "byteps-");
    REFUSED("DMLC_WORKER_ID", "DMLC_NUM_WORKER, which is 2", "DMLC_ROLE", "worker", "DMLC_NUM_WORKER", "2");
    REFUSED("DMLC_WORKER_ID=\"2\"", "DMLC_NUM_WORKER, which is 2", "DMLC_ROLE", "worker", "DMLC_NUM_WORKER", "2",
            "DMLC_WORKER_ID", "2");
    REFUSED("BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE, which is 4", "DMLC_ROLE", "worker", "BYTEPS_LOCAL_SIZE", "4");
    REFUSED("BYTEPS_LOCAL_RANK=\"4\"", "BYTEPS_LOCAL_SIZE, which is 4", "DMLC_ROLE", "worker", "BYTEPS_LOCAL_RANK", "4",
            "BYTEPS_LOCAL_SIZE", "4");
    REFUSED("DMLC_NUM_WORKER x BYTEPS_LOCAL_SIZE", "8000 workers", "DMLC_ROLE", "worker", "DMLC_NUM_WORKER", "1000",
            "DMLC_WORKER_ID", "0", "BYTEPS_LOCAL_RANK", "0", "BYTEPS_LOCAL_SIZE", "8");
    REFUSED("DMLC_NUM_WORKER=\"2\"", "DMLC_ROLE is not", "DMLC_NUM_WORKER", "2");
    REFUSED("DMLC_PS_ROOT_PORT", "1 to 65535", "DMLC_ROLE", "worker", "DMLC_PS_ROOT_PORT", "65536");
}

static void precedence(void **state)
{
    (void)state;
    /* With TRIB_RANK our variables count, whatever the launcher's are, even if those are wrong. */
    trib_config config = READ("TRIB_RANK", "1", "TRIB_WORKERS", "2", "DMLC_ROLE", "boss", "RANK", "x", "WORLD_SIZE",
                              "y", "MASTER_ADDR", "m", "MASTER_PORT", "1");
    assert_int_equal(config.rank, 1);
    assert_int_equal(config.worker_count, 2);
    assert_null(config.coordinator);
    /* Without TRIB_RANK the launcher's variables give the rank, and single TRIB_ variables override the rest. */
    config = READ("RANK", "3", "WORLD_SIZE", "8", "MASTER_ADDR", "m", "MASTER_PORT", "1", "TRIB_COORDINATOR", "c:2",
                  "TRIB_WORKERS", "9", "TRIB_JOB", "mine");
    assert_int_equal(config.rank, 3);
    assert_int_equal(config.worker_count, 9);
    assert_string_equal(config.coordinator, "c:2");
    assert_string_equal(config.job, "mine");
}

/* The configuration remembers which variables gave the coordinator's address, for error texts. */
static void source_of_the_address(void **state)
{
    (void)state;
    assert_string_equal(READ("RANK", "0", "WORLD_SIZE", "2").coordinator_source, "MASTER_ADDR and MASTER_PORT");
    assert_string_equal(READ("DMLC_ROLE", "server").coordinator_source, "DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT");
    assert_string_equal(READ("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_NNODES", "2", "SLURM_JOB_NODELIST", "a,b")
                            .coordinator_source,
                        "SLURM_JOB_NODELIST");
    assert_null(READ("RANK", "0", "WORLD_SIZE", "2", "TRIB_COORDINATOR", "a:1").coordinator_source);
    assert_string_equal(READ("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_NNODES", "2").coordinator_source,
                        "SLURM_STEP_NODELIST");
    /* A launcher that names no host has said something else, which decides. */
    assert_string_equal(READ("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "SLURM_NNODES", "1").coordinator_source,
                        "TRIB_COORDINATOR (now loopback, as SLURM_NNODES is that of one machine)");
    assert_string_equal(READ("PMI_RANK", "1", "PMI_SIZE", "4", "MPI_LOCALNRANKS", "2").coordinator_source,
                        "TRIB_COORDINATOR (MPI_LOCALNRANKS counts one machine of several)");
    assert_string_equal(READ("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2").coordinator_source,
                        "TRIB_COORDINATOR (OMPI_COMM_WORLD_LOCAL_SIZE is not set)");
    assert_null(READ("TRIB_RANK", "0").coordinator_source);
}

/* An address of the program's own goes before the launcher's, whatever that was. */
static void address_of_the_program(void **state)
{
    (void)state;
    trib_config config = READ("RANK", "0", "WORLD_SIZE", "2", "MASTER_ADDR", "a", "MASTER_PORT", "1");
    assert_true(trib_config_is_launchers_address(&config));
    config.coordinator = "a:2";
    assert_false(trib_config_is_launchers_address(&config));
    config = READ("PMI_RANK", "1", "PMI_SIZE", "2", "MPI_LOCALNRANKS", "2");
    assert_true(trib_config_is_launchers_address(&config));
    config = READ("TRIB_COORDINATOR", "a:2");
    assert_false(trib_config_is_launchers_address(&config));
}

/* Two launchers, outer and inner: the inner one counts, whichever they are. */
static void nested(void **state)
{
    (void)state;
    /* Torchrun in each of two processes of mpirun, or in one: its own variable says that it started this process. */
    trib_config config =
        READ("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2", "OMPI_COMM_WORLD_LOCAL_SIZE", "1", "RANK", "1",
             "WORLD_SIZE", "8", "TORCHELASTIC_RUN_ID", "none", "MASTER_ADDR", "m", "MASTER_PORT", "1");
    assert_int_equal(config.rank, 1);
    assert_int_equal(config.worker_count, 8);
    assert_string_equal(config.coordinator, "m:2");
    config = READ("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "1", "OMPI_COMM_WORLD_LOCAL_SIZE", "1", "RANK",
                  "3", "WORLD_SIZE", "4");
    assert_int_equal(config.rank, 3);
    assert_int_equal(config.worker_count, 4);
    /* Variables that a script has set from Slurm's, for each process or for several in each. */
    config = READ("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "RANK", "1", "WORLD_SIZE", "2", "SLURM_JOB_ID", "7");
    assert_int_equal(config.rank, 1);
    check_local(&config, "slurm-7-");
    config = READ("SLURM_PROCID", "1", "SLURM_NTASKS", "2", "RANK", "6", "WORLD_SIZE", "8", "MASTER_ADDR", "m",
                  "MASTER_PORT", "1");
    assert_int_equal(config.rank, 6);
    config = READ("PMI_RANK", "1", "PMI_SIZE", "2", "MPI_LOCALNRANKS", "1", "RANK", "5", "WORLD_SIZE", "8");
    assert_int_equal(config.rank, 5);
    assert_int_equal(config.worker_count, 8);
    /* mpirun in a batch script, and started by srun on each node. */
    config = READ("SLURM_PROCID", "0", "SLURM_NTASKS", "8", "OMPI_COMM_WORLD_RANK", "3", "OMPI_COMM_WORLD_SIZE", "4");
    assert_int_equal(config.rank, 3);
    config = READ("SLURM_PROCID", "1", "SLURM_NTASKS", "3", "SLURM_STEP_ID", "0", "PMI_RANK", "0", "PMI_SIZE", "4",
                  "MPI_LOCALNRANKS", "2");
    assert_int_equal(config.worker_count, 4);
    /* Loops in a batch script. */
    config = READ("SLURM_PROCID", "0", "SLURM_NTASKS", "8", "RANK", "2", "WORLD_SIZE", "3");
    assert_int_equal(config.rank, 2);
    /* BytePS's variables are set by hand, for whatever starts the processes. */
    config = READ("DMLC_ROLE", "worker", "DMLC_WORKER_ID", "1", "DMLC_NUM_WORKER", "10", "OMPI_COMM_WORLD_RANK", "2",
                  "OMPI_COMM_WORLD_SIZE", "20");
    assert_int_equal(config.rank, 1);
    assert_int_equal(config.worker_count, 10);
}

static void contradictions(void **state)
{
    (void)state;
    REFUSED("RANK=0 of WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=1 of OMPI_COMM_WORLD_SIZE=2", "RANK", "0", "WORLD_SIZE",
            "2", "OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2");
    REFUSED("RANK=0 of WORLD_SIZE=3", "SLURM_PROCID=0 of SLURM_NTASKS=2", "RANK", "0", "WORLD_SIZE", "3",
            "SLURM_PROCID", "0", "SLURM_NTASKS", "2", "SLURM_STEP_ID", "0");
    REFUSED("OMPI_COMM_WORLD_RANK=1 of", "PMI_RANK=1 of PMI_SIZE=3", "OMPI_COMM_WORLD_RANK", "1",
            "OMPI_COMM_WORLD_SIZE", "2", "PMI_RANK", "1", "PMI_SIZE", "3", "MPI_LOCALNRANKS", "3");
    REFUSED("RANK=\"4\"", "less than WORLD_SIZE, which is 4", "RANK", "4", "WORLD_SIZE", "4");
    /* A rank without its count is ignored. */
    assert_int_equal(READ("OMPI_COMM_WORLD_RANK", "1", "OMPI_COMM_WORLD_SIZE", "2", "PMI_RANK", "7").rank, 1);
}

/* Variables that are set by hand are refused if they make no sense; a launcher's own are passed over. */
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
                                           {"BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"},
                                           {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
                                           {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                           {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"}};
    uint32_t index = 9, count = 9;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        set_all((const char *const[]){names[i][0], "2", names[i][1], "4", NULL});
        assert_true(trib_config_local(&index, &count));
        assert_int_equal(index, 2);
        assert_int_equal(count, 4);
        /* A launcher's local rank is advice, not a setting, so a nonsensical one is ignored. */
        set_all((const char *const[]){names[i][0], "4", names[i][1], "4", NULL});
        assert_false(trib_config_local(&index, &count));
        assert_int_equal(index, 0);
        assert_int_equal(count, 1);
        set_all((const char *const[]){names[i][0], "1", names[i][1], "x", NULL});
        assert_false(trib_config_local(&index, &count));
        assert_int_equal(count, 1);
        set_all((const char *const[]){names[i][0], "0", NULL}); /* local rank 0, without a count */
        assert_false(trib_config_local(&index, &count));
    }
}

/* Processes that share a machine's cores may be more than its workers with a GPU. */
static void device_ranks(void **state)
{
    (void)state;
    trib_config config = READ("TRIB_DEVICE", "cuda", "TRIB_LOCAL_RANK", "1", "TRIB_LOCAL_COUNT", "4", "TRIB_RANK", "1",
                              "TRIB_WORKERS", "4", "TRIB_COORDINATOR", "127.0.0.1:9");
    assert_int_equal(config.local_rank, 1);
    assert_int_equal(config.local_size, 4);
    config = READ("TRIB_DEVICE", "cuda", "TRIB_LOCAL_RANK", "5", "TRIB_LOCAL_COUNT", "8", "TRIB_DEVICE_RANK", "1",
                  "TRIB_DEVICE_COUNT", "4", "TRIB_RANK", "1", "TRIB_WORKERS", "4", "TRIB_COORDINATOR", "127.0.0.1:9");
    assert_int_equal(config.local_rank, 1);
    assert_int_equal(config.local_size, 4);
    trib_config checked;
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_config_check(&config, &checked, &error), TRIB_OK);
    /* A server in the same environment has no device. */
    config = READ("TRIB_DEVICE", "cuda", "TRIB_LOCAL_RANK", "5", "TRIB_LOCAL_COUNT", "8", "TRIB_WORKERS", "4",
                  "TRIB_SERVERS", "4", "TRIB_COORDINATOR", "127.0.0.1:9");
    config.roles = TRIB_ROLE_SERVER;
    assert_int_equal(trib_config_check(&config, &checked, &error), TRIB_OK);
    assert_int_equal(checked.local_size, 1);
    REFUSED("TRIB_DEVICE_RANK", "0 to 63", "TRIB_DEVICE_RANK", "64");
    REFUSED("TRIB_DEVICE_RANK", "less than TRIB_DEVICE_COUNT", "TRIB_DEVICE_RANK", "4", "TRIB_DEVICE_COUNT", "4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(torchrun),
        cmocka_unit_test(open_mpi),
        cmocka_unit_test(hydra),
        cmocka_unit_test(slurm),
        cmocka_unit_test(byteps),
        cmocka_unit_test(precedence),
        cmocka_unit_test(source_of_the_address),
        cmocka_unit_test(address_of_the_program),
        cmocka_unit_test(nested),
        cmocka_unit_test(contradictions),
        cmocka_unit_test(local_size),
        cmocka_unit_test(local_ranks_by_hand),
        cmocka_unit_test(device_ranks),
    };
    /* The cases empty the environment, in which cmocka would look up how to report them. */
    const char *output = getenv("CMOCKA_MESSAGE_OUTPUT");
    if (output != NULL && strcmp(output, "TAP") == 0) {
        cmocka_set_message_output(CM_OUTPUT_TAP);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
