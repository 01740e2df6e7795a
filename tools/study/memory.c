/* memory.c - see memory.h. */
#include "tools/study/memory.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/worker/op.h"
#include "tools/study/job.h"

#define TAKEN_PER_LEFT 32 /* the end of a job takes much less memory than this share of it */

/* Returns the number after the word in a file, or at its beginning (word NULL); UINT64_MAX: there is none. */
static uint64_t number_in(const char *path, const char *word)
{
    char line[160];
    unsigned long long number = 0;
    bool found = false;
    FILE *in = fopen(path, "re");
    while (in != NULL && !found && fgets(line, sizeof line, in) != NULL) {
        const size_t skip = word == NULL ? 0 : strlen(word);
        found = (word == NULL || strncmp(line, word, skip) == 0) && sscanf(line + skip, " %llu", &number) == 1;
    }
    if (in != NULL) {
        (void)fclose(in); /* the file was only read */
    }
    return found ? number : UINT64_MAX;
}

static uint64_t left_of(uint64_t limit, uint64_t used)
{
    return limit == UINT64_MAX || used == UINT64_MAX ? UINT64_MAX : limit > used ? limit - used : 0;
}

static uint64_t left_in_machine(void)
{
    const uint64_t kib = number_in("/proc/meminfo", "MemAvailable:"), swap = number_in("/proc/meminfo", "SwapFree:");
    return kib == UINT64_MAX ? UINT64_MAX : (kib + (swap == UINT64_MAX ? 0 : swap)) * 1024;
}

/* Returns the memory left in this process's control group, in either version of the interface. The kernel drops
 * cached pages of files when memory is needed, so they count as free. */
static uint64_t left_in_group(void)
{
    static const char *const files[][4] = {
        {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
         "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"}};
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < sizeof files / sizeof files[0]; i++) {
        const uint64_t used = number_in(files[i][1], NULL), idle = number_in(files[i][2], files[i][3]);
        const uint64_t left =
            left_of(number_in(files[i][0], NULL), idle == UINT64_MAX || idle > used ? used : used - idle);
        least = left < least ? left : least;
    }
    return least;
}

static uint64_t read_taken(void)
{
    unsigned long long pages = 0;
    FILE *in = fopen("/proc/self/statm", "re");
    const bool found = in != NULL && fscanf(in, "%*u %llu", &pages) == 1;
    if (in != NULL) {
        (void)fclose(in); /* the file was only read */
    }
    return found ? pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

study_memory study_memory_sample(void)
{
    const uint64_t machine = left_in_machine(), group = left_in_group();
    return (study_memory){.taken = read_taken(), .left = machine < group ? machine : group};
}

bool study_memory_is_short(const study_memory *memory)
{
    return memory->left < memory->taken / TAKEN_PER_LEFT;
}

/* A lower bound: what each worker keeps of each gradient, with a single partition, and both ends of the links of one
 * reactor. */
static uint64_t bytes_needed(const sim_job_config *job, uint32_t gradients)
{
    const uint64_t workers = job->workers, servers = job->servers;
    const bool workers_sum = servers == 0 || (job->engine.colocate != TRIB_COLOCATE_OFF && servers < workers &&
                                              !job->one_machine && job->per_machine <= 1);
    const uint64_t links = workers * (servers + (workers_sum ? workers - 1 : 0));
    return workers * gradients * (sizeof(trib_tensor) + sizeof(trib_task)) + links * 2 * sizeof(trib_link);
}

trib_status study_memory_check(const study_memory *memory, const sim_job_config *job, uint32_t gradients,
                               trib_error *error)
{
    const uint64_t needed = bytes_needed(job, gradients);
    if (needed <= memory->left) {
        return TRIB_OK;
    }
    return trib_error_set(error, TRIB_NO_MEMORY,
                          "%u workers and %u servers with %u gradients need at least %.1f GiB of memory, and %.1f GiB "
                          "are left: take fewer workers, or fewer gradients",
                          job->workers, job->servers, gradients, (double)needed / (1 << 30),
                          (double)memory->left / (1 << 30));
}
