/*
 * env_door.c - the page that a machine's local ranks share (engine/local_group/group_door.h): memory without a name in the file system,
 * which the others open by way of its maker's descriptor in /proc.
 *
 * That takes the same user and the same process namespace; where containers have one each there is no door, and all is agreed
 * on by messages.
 */
#include "api/env/env_door.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/fork.h"
#include "numa/pages.h"

static trib_door_page *map(int fd)
{
    void *page = mmap(NULL, sizeof(trib_door_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return page == MAP_FAILED ? NULL : page;
}

trib_door_page *trib_env_door_make(char name[TRIB_DOOR_NAME_SIZE], int *fd_out)
{
    const int fd = trib_pages_file("tributary door", sizeof(trib_door_page));
    if (fd < 0) {
        return NULL;
    }
    trib_fork_own(fd);
    trib_door_page *page = fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0 ? map(fd) : NULL;
    if (page == NULL) {
        trib_fork_close(fd);
        return NULL;
    }
    snprintf(name, TRIB_DOOR_NAME_SIZE, "/proc/%d/fd/%d", (int)getpid(), fd);
    *fd_out = fd;
    return page;
}

/* Nothing else is opened because a peer says so: opening a device may do something, or wait. */
static bool is_of_a_process(const char *name)
{
    int pid = 0, fd = 0, length = 0;
    return sscanf(name, "/proc/%9d/fd/%9d%n", &pid, &fd, &length) == 2 && name[length] == '\0' && pid > 0 && fd >= 0;
}

/* Memory that can shrink would kill this process when it is touched. */
static bool is_page(int fd)
{
    struct stat about;
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &about) == 0 &&
           about.st_size == (off_t)sizeof(trib_door_page);
}

trib_door_page *trib_env_door_find(const char *name, const unsigned char *id)
{
    const int fd = is_of_a_process(name) ? open(name, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK) : -1;
    if (fd < 0) {
        return NULL;
    }
    trib_door_page *page = is_page(fd) ? map(fd) : NULL;
    (void)close(fd);
    if (page != NULL && memcmp(page->id, id, sizeof page->id) != 0) {
        (void)munmap(page, sizeof *page);
        page = NULL;
    }
    return page;
}

void trib_env_door_drop(trib_door_page *page, int fd)
{
    (void)munmap(page, sizeof *page);
    if (fd >= 0) {
        trib_fork_close(fd);
    }
}
