/*
 * fuzz_config.c - for any environment, settings and launchers' variables are accepted, or rejected by name, and
 * accepted values are checked like a caller's own.
 *
 * The input is lines of NAME=VALUE. Names that this library does not read, and the one that names a file, are left
 * out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/config/config.h"
#include "api/config/settings.h"
#include "transports/tcp/tcp_internal.h"

#define LINES_MAX 64
#define LINE_BYTES_MAX 1024

static const char *const launcher_names[] = {"RANK",
                                             "WORLD_SIZE",
                                             "MASTER_ADDR",
                                             "MASTER_PORT",
                                             "LOCAL_RANK",
                                             "LOCAL_WORLD_SIZE",
                                             "OMPI_COMM_WORLD_RANK",
                                             "OMPI_COMM_WORLD_SIZE",
                                             "OMPI_COMM_WORLD_LOCAL_RANK",
                                             "OMPI_COMM_WORLD_LOCAL_SIZE",
                                             "PMIX_NAMESPACE",
                                             "PMI_RANK",
                                             "PMI_SIZE",
                                             "MPI_LOCALRANKID",
                                             "MPI_LOCALNRANKS",
                                             "SLURM_PROCID",
                                             "SLURM_NTASKS",
                                             "SLURM_STEP_NODELIST",
                                             "SLURM_JOB_NODELIST",
                                             "SLURM_JOB_ID",
                                             "SLURM_STEP_ID",
                                             "SLURM_NNODES",
                                             "DMLC_ROLE",
                                             "DMLC_NUM_WORKER",
                                             "DMLC_NUM_SERVER",
                                             "DMLC_WORKER_ID",
                                             "DMLC_PS_ROOT_URI",
                                             "DMLC_PS_ROOT_PORT",
                                             "BYTEPS_LOCAL_RANK",
                                             "BYTEPS_LOCAL_SIZE",
                                             "SLURM_STEP_NUM_TASKS",
                                             "TORCHELASTIC_RUN_ID"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static bool begins_with(const char *line, const char *name)
{
    const size_t length = strlen(name);
    return strncmp(line, name, length) == 0 && line[length] == '=';
}

static bool is_known(const char *line)
{
    for (size_t i = 0; i < sizeof launcher_names / sizeof launcher_names[0]; i++) {
        if (begins_with(line, launcher_names[i])) {
            return true;
        }
    }
    for (size_t i = 0; i < trib_settings_count; i++) {
        if (trib_settings[i].variable != NULL && begins_with(line, trib_settings[i].variable)) {
            return !begins_with(line, "TRIB_TOKEN_FILE");
        }
    }
    return false;
}

/* Turns the input into an environment: pointers to its lines, in text. */
static void make_environment(char *text, char *lines[LINES_MAX + 1])
{
    size_t count = 0;
    for (char *line = text; line != NULL && count < LINES_MAX;) {
        char *end = strchr(line, '\n');
        if (end != NULL) {
            *end = '\0';
        }
        if (is_known(line) && strlen(line) < LINE_BYTES_MAX) {
            lines[count++] = line;
        }
        line = end == NULL ? NULL : end + 1;
    }
    lines[count] = NULL;
}

static void require_refusal(trib_status status, const trib_error *error)
{
    require(status == TRIB_INVALID && error->status == status);
    require(memchr(error->text, '\0', sizeof error->text) != NULL && error->text[0] != '\0');
}

static void try_settings(void)
{
    trib_config before, config, checked;
    trib_error error = {.text = ""};
    memset(&before, 0, sizeof before);
    trib_config_init(&before, sizeof before);
    memcpy(&config, &before, sizeof config);
    trib_status status = trib_config_from_env(&config, &error);
    if (status != TRIB_OK) {
        require_refusal(status, &error);
        require(memcmp(&config, &before, sizeof config) == 0); /* a rejection leaves it unchanged */
        return;
    }
    status = trib_config_check(&config, &checked, &error);
    if (status != TRIB_OK) {
        require_refusal(status, &error);
        return;
    }
    const bool worker = (checked.roles & TRIB_ROLE_WORKER) != 0;
    require(checked.worker_count >= 1 && checked.rank >= (worker ? 0 : -1) &&
            checked.rank < (worker                     ? checked.worker_count
                            : checked.server_count > 0 ? checked.server_count
                                                       : 0));
    require(checked.chunk_bytes > 0 && checked.partition_bytes >= checked.chunk_bytes);
}

/* Addresses come from the environment and from other members alike. */
static void try_address(const char *text)
{
    trib_address address, again;
    struct sockaddr_storage parsed, parsed_again;
    socklen_t size = 0;
    (void)snprintf(address.text, sizeof address.text, "%s", text);
    if (trib_tcp_address_parse(&address, &parsed, &size) == TRIB_OK) {
        require(size > 0 && size <= sizeof parsed);
        trib_tcp_address_format(&parsed, &again);
        require(trib_tcp_address_parse(&again, &parsed_again, &size) == TRIB_OK);
        require(memcmp(&parsed, &parsed_again, size) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    char *lines[LINES_MAX + 1];
    char **kept = environ;
    require(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    make_environment(text, lines);
    environ = lines;
    uint32_t index = 0, count = 0;
    (void)trib_config_local(&index, &count);
    require(index < count);
    try_settings();
    environ = kept;
    for (size_t i = 0; lines[i] != NULL; i++) {
        try_address(strchr(lines[i], '=') + 1);
    }
    free(text);
    return 0;
}
