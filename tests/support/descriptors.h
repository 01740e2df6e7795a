/* descriptors.h - counts the descriptors that a test's process has open. */
#ifndef TRIB_TESTS_DESCRIPTORS_H
#define TRIB_TESTS_DESCRIPTORS_H

#include <dirent.h>
#include <stdint.h>

/* For comparing only: the count includes the directory that is being read, and the entries "." and "..". */
static inline uint32_t descriptors_open(void)
{
    uint32_t count = 0;
    DIR *list = opendir("/proc/self/fd");
    if (list != NULL) {
        while (readdir(list) != NULL) {
            count++;
        }
        closedir(list);
    }
    return count;
}

#endif
