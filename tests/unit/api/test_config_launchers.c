/* test_config_launchers.c - rank, size and coordinator from the variables of each launcher, and which of them counts.
 * */
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
        cmocka_unit_test(torchrun),   cmocka_unit_test(open_mpi),
        cmocka_unit_test(hydra),      cmocka_unit_test(slurm),
        cmocka_unit_test(byteps),     cmocka_unit_test(precedence),
        cmocka_unit_test(local_size), cmocka_unit_test(local_ranks_by_hand),
    };
    /* The cases empty the environment, in which cmocka would look up how to report them. */
    const char *output = getenv("CMOCKA_MESSAGE_OUTPUT");
    if (output != NULL && strcmp(output, "TAP") == 0) {
        cmocka_set_message_output(CM_OUTPUT_TAP);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
