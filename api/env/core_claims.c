/* core_claims.c - see core_claims.h. A name is "tributary-cores/JOB/PROCESS.FD/CPU,CPU,...": job and process in
 * hexadecimal. */
#include "api/env/core_claims.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/descriptor.h"
#include "engine/base/fork.h"

#define PREFIX "tributary-cores/"

static uint32_t mix_text(uint32_t hash, const char *text)
{
    for (; text != NULL && *text != '\0'; text++) { /* FNV-1a */
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    }
    return hash;
}

uint32_t trib_core_claims_job(const trib_config *config)
{
    const uint32_t hash = mix_text(mix_text(2166136261u, config->job), config->coordinator);
    if (config->worker_count + config->server_count > 1) {
        return hash;
    }
    char process[16];
    snprintf(process, sizeof process, "%d", (int)getpid());
    return mix_text(hash, process);
}

static bool plan_has(const trib_place_plan *plan, int32_t cpu)
{
    for (uint32_t i = 0; plan != NULL && i < plan->reactor_count; i++) {
        if (plan->reactors[i].cpu == cpu) {
            return true;
        }
    }
    return false;
}

/* Any process can have written such a name, so nothing is taken for granted: "JOB/PROCESS.FD/CPU,CPU,...". */
static void read_claim(const char *text, uint32_t job, const trib_place_plan *mine, trib_place_cpus *taken)
{
    char *end = NULL;
    const uint32_t other = (uint32_t)strtoul(text, &end, 16);
    const char *list = *end == '/' ? strchr(end + 1, '/') : NULL;
    if (other == job || list == NULL) {
        return;
    }
    for (const char *at = list; *at == '/' || *at == ','; at = end) {
        const long cpu = strtol(at + 1, &end, 10);
        if (end == at + 1 || cpu < 0 || cpu >= TRIB_PLACE_CPUS_MAX) {
            return;
        }
        if (other < job || !plan_has(mine, (int32_t)cpu)) {
            trib_place_cpus_add(taken, (int32_t)cpu);
        }
    }
}

void trib_core_claims_begin(trib_core_claims_reading *reading, uint32_t job, const trib_place_plan *mine,
                            trib_place_cpus *taken_out)
{
    *taken_out = (trib_place_cpus){.bits = {0}};
    reading->job = job;
    reading->mine = mine;
    reading->taken = taken_out;
    reading->used = 0;
    reading->fd = trib_descriptor_keep(open("/proc/net/unix", O_RDONLY | O_CLOEXEC));
    if (reading->fd >= 0) {
        trib_fork_own(reading->fd);
    }
}

static void read_line(const trib_core_claims_reading *reading, const char *line)
{
    const char *name = strstr(line, "@" PREFIX);
    if (name != NULL) {
        read_claim(name + strlen("@" PREFIX), reading->job, reading->mine, reading->taken);
    }
}

bool trib_core_claims_read_more(trib_core_claims_reading *reading)
{
    const size_t room = sizeof reading->text - 1 - reading->used;
    const ssize_t got = reading->fd < 0 ? 0 : read(reading->fd, reading->text + reading->used, room);
    if (got <= 0) {
        trib_core_claims_end(reading);
        return false;
    }
    reading->used += (size_t)got;
    reading->text[reading->used] = '\0';
    char *line = reading->text;
    for (char *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        read_line(reading, line);
    }
    reading->used -= (size_t)(line - reading->text);
    memmove(reading->text, line, reading->used);
    if (reading->used == sizeof reading->text - 1) {
        reading->used = 0; /* no name is as long as that */
    }
    return true;
}

void trib_core_claims_end(trib_core_claims_reading *reading)
{
    if (reading->fd >= 0) {
        trib_fork_close(reading->fd);
    }
    reading->fd = -1;
}

void trib_core_claims_read(uint32_t job, const trib_place_plan *mine, trib_place_cpus *taken_out)
{
    trib_core_claims_reading reading;
    trib_core_claims_begin(&reading, job, mine, taken_out);
    while (trib_core_claims_read_more(&reading)) {}
}

bool trib_core_claims_overlap(const trib_place_plan *plan, const trib_place_cpus *taken)
{
    for (uint32_t i = 0; i < plan->reactor_count; i++) {
        if (plan->reactors[i].cpu >= 0 && trib_place_cpus_have(taken, plan->reactors[i].cpu)) {
            return true;
        }
    }
    return false;
}

int trib_core_claims_make(uint32_t job, const trib_place_plan *plan)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX}; /* a path that begins with a zero byte is abstract: no file */
    char *const path = name.sun_path + 1;
    const size_t size = sizeof name.sun_path - 1;
    const int fd = trib_descriptor_keep(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd < 0) {
        return -1;
    }
    size_t used = (size_t)snprintf(path, size, PREFIX "%08x/%x.%d/", job, (unsigned)getpid(), fd);
    bool has_some = false;
    for (uint32_t i = 0; i < plan->reactor_count; i++) {
        char cpu[16];
        const int length = snprintf(cpu, sizeof cpu, "%s%d", has_some ? "," : "", (int)plan->reactors[i].cpu);
        if (plan->reactors[i].cpu >= 0 && used + (size_t)length < size) { /* sixteen numbers of three digits do fit */
            memcpy(path + used, cpu, (size_t)length);
            used += (size_t)length;
            has_some = true;
        }
    }
    const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + used);
    if (!has_some || bind(fd, (const struct sockaddr *)&name, length) != 0) {
        close(fd);
        return -1;
    }
    trib_fork_own(fd);
    return fd;
}

void trib_core_claims_drop(int fd)
{
    if (fd >= 0) {
        trib_fork_close(fd);
    }
}
