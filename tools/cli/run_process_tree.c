/*
 * run_process_tree.c - lists the descendants of this process, from /proc.
 *
 * A process that starts while the list is read may be missed; callers repeat the call until no process is left.
 */
#include "tools/cli/run_process_tree.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define NAMED_MAX 4

typedef struct process_entry {
    pid_t pid, parent, group;
    bool below; /* a descendant of this process */
    bool ended; /* a zombie */
    char name[32];
} process_entry;

typedef struct process_list {
    process_entry *all;
    size_t count, capacity;
} process_list;

void process_tree_adopt(void)
{
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/* Parses "4711 (name) S 1 4700 ..."; the name may contain brackets and spaces. */
static bool read_entry(const char *pid, process_entry *out)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    const size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = '\0';
    const char *open = strchr(text, '(');
    char *close_at = strrchr(text, ')');
    if (open == NULL || close_at == NULL || close_at < open || strlen(close_at) < 5) {
        return false;
    }
    *close_at = '\0';
    char *rest = NULL;
    const pid_t parent = (pid_t)strtol(close_at + 4, &rest, 10);
    *out = (process_entry){.pid = (pid_t)strtol(pid, NULL, 10),
                           .parent = parent,
                           .group = (pid_t)strtol(rest, NULL, 10),
                           .ended = close_at[2] == 'Z' || close_at[2] == 'X'};
    snprintf(out->name, sizeof out->name, "%s", open + 1);
    return true;
}

static bool append_entry(process_list *self, const process_entry *one)
{
    if (self->count == self->capacity) {
        const size_t capacity = self->capacity == 0 ? 256 : 2 * self->capacity;
        process_entry *all = realloc(self->all, capacity * sizeof *all);
        if (all == NULL) {
            return false;
        }
        self->all = all;
        self->capacity = capacity;
    }
    self->all[self->count++] = *one;
    return true;
}

static int by_pid(const void *left, const void *right)
{
    const pid_t a = ((const process_entry *)left)->pid, b = ((const process_entry *)right)->pid;
    return a < b ? -1 : a > b;
}

static bool is_below(const process_list *self, const process_entry *one, pid_t top)
{
    const process_entry key = {.pid = one->parent};
    const process_entry *parent = bsearch(&key, self->all, self->count, sizeof *self->all, by_pid);
    return one->parent == top || (parent != NULL && parent->below);
}

/* A parent may have a higher number than its child, so the passes repeat until one adds nothing. */
static void mark_descendants(process_list *self)
{
    const pid_t top = getpid();
    if (self->count > 0) {
        qsort(self->all, self->count, sizeof *self->all, by_pid);
    }
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < self->count; i++) {
            if (!self->all[i].below && is_below(self, &self->all[i], top)) {
                self->all[i].below = true;
                more = true;
            }
        }
    }
}

static process_list list_processes(void)
{
    process_list self = {.all = NULL};
    DIR *folder = opendir("/proc");
    if (folder == NULL) {
        return self;
    }
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        process_entry one;
        if (isdigit((unsigned char)entry->d_name[0]) && read_entry(entry->d_name, &one) && !append_entry(&self, &one)) {
            break;
        }
    }
    closedir(folder);
    mark_descendants(&self);
    return self;
}

size_t process_tree_signal(int number, pid_t spared_group)
{
    process_list self = list_processes();
    size_t sent = 0;
    for (size_t i = 0; i < self.count; i++) {
        const process_entry *one = &self.all[i];
        if (one->below && !one->ended && (spared_group == 0 || one->group != spared_group)) {
            sent += kill(one->pid, number) == 0;
        }
    }
    free(self.all);
    return sent;
}

size_t process_tree_describe(char *text, size_t size)
{
    process_list self = list_processes();
    size_t found = 0, used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < self.count; i++) {
        const process_entry *one = &self.all[i];
        if (!one->below || one->ended) {
            continue;
        }
        if (found < NAMED_MAX && used < size) {
            used += (size_t)snprintf(text + used, size - used, "%s%s (%d)", found == 0 ? "" : ", ", one->name,
                                     (int)one->pid);
        } else if (found == NAMED_MAX && used < size) {
            snprintf(text + used, size - used, ", ...");
        }
        found++;
    }
    free(self.all);
    return found;
}
