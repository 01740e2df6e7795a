/* config_local.c - which of a machine's processes this is, as the launcher says; see config_env.c for all else. */
#include <errno.h>
#include <stdlib.h>

#include "api/config/config.h"

static bool read_number(const char *name, long low, long high, long *value)
{
    const char *text = getenv(name);
    char *end = NULL;
    errno = 0;
    *value = text == NULL ? low - 1 : strtol(text, &end, 10);
    return text != NULL && end != text && *end == '\0' && errno == 0 && *value >= low && *value <= high;
}

/* Such a process would train alone, and nobody would notice before the results are looked at. */
trib_status trib_config_check_alone(trib_error *error)
{
    static const char *const names[][2] = {
        {"WORLD_SIZE", "RANK"},
        {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
        {"PMI_SIZE", "PMI_RANK"},
        {"SLURM_NTASKS", "SLURM_PROCID"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *rank = getenv(names[i][1]);
        long count = 0;
        if ((rank == NULL || rank[0] == '\0') && read_number(names[i][0], 2, 1 << 20, &count)) {
            return trib_error_set(
                error, TRIB_INVALID,
                "%s=\"%ld\" is set, but %s is not: start all processes by the launcher that sets both, or "
                "set TRIB_RANK and TRIB_WORKERS; TRIB_WORKERS=1 alone is for a job of one process",
                names[i][0], count, names[i][1]);
        }
    }
    return TRIB_OK;
}

/* What a launcher says about itself is advice, and what makes no sense as if it were not there. These are somebody's own. */
trib_status trib_config_check_local(trib_error *error)
{
    static const struct {
        const char *name;
        long low, high;
    } numbers[] = {{"TRIB_LOCAL_RANK", 0, 4095}, {"TRIB_LOCAL_COUNT", 1, 4096}};
    long found[2] = {0, 4096};
    for (size_t i = 0; i < 2; i++) {
        const char *text = getenv(numbers[i].name);
        if (text != NULL && text[0] != '\0' &&
            !read_number(numbers[i].name, numbers[i].low, numbers[i].high, &found[i])) {
            return trib_error_set(error, TRIB_INVALID, "%s=\"%.80s\": must be a number, %ld to %ld", numbers[i].name,
                                  text, numbers[i].low, numbers[i].high);
        }
    }
    if (found[0] >= found[1]) {
        return trib_error_set(error, TRIB_INVALID,
                              "TRIB_LOCAL_RANK=\"%ld\": must be less than TRIB_LOCAL_COUNT, which is %ld", found[0],
                              found[1]);
    }
    return TRIB_OK;
}

bool trib_config_local(uint32_t *index_out, uint32_t *count_out)
{
    static const char *const names[][2] = {
        {"TRIB_LOCAL_RANK", "TRIB_LOCAL_COUNT"},
        {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    };
    *index_out = 0;
    *count_out = 1;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        long index = 0, count = 1;
        if (!read_number(names[i][0], 0, 4095, &index)) {
            continue;
        }
        const char *text = getenv(names[i][1]);
        const bool has_count = text != NULL && text[0] != '\0';
        if ((!has_count || read_number(names[i][1], 1, 4096, &count)) && index < (has_count ? count : 1)) {
            *index_out = (uint32_t)index;
            *count_out = (uint32_t)(has_count ? count : 1);
            return has_count;
        }
    }
    return false;
}
