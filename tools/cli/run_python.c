/* run_python.c - see run_python.h. The package lies around this program in a wheel, and in api/python in the tree. */
#include "tools/cli/run_python.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From the program's folder to the one that holds the package `tributary`. */
static const char *const places[] = {"../..", "../../api/python"};

/* Returns the folder of this program in `folder`, or false. */
static bool find_folder(char *folder, size_t size)
{
    const ssize_t length = readlink("/proc/self/exe", folder, size - 1);
    if (length <= 0) {
        return false;
    }
    folder[length] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash == NULL) {
        return false;
    }
    *slash = '\0';
    return true;
}

bool run_find_package(const char *part, char *path, size_t size)
{
    char folder[PATH_MAX];
    if (!find_folder(folder, sizeof folder)) {
        return false;
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        const int length = snprintf(path, size, "%s/%s/%s", folder, places[i], part);
        if (length > 0 && (size_t)length < size && access(path, R_OK) == 0) {
            return true;
        }
    }
    return false;
}

bool run_stand_in_for(const char *package)
{
    char folder[PATH_MAX];
    if (!find_folder(folder, sizeof folder)) {
        fprintf(stderr, "tributary run: --as %s: /proc/self/exe does not tell where this program is\n", package);
        return false;
    }
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char stand_in[2 * PATH_MAX];
        snprintf(stand_in, sizeof stand_in, "%s/%s/tributary/alias/%s", folder, places[i], package);
        if (access(stand_in, R_OK) != 0) {
            continue;
        }
        const char *before = getenv("PYTHONPATH");
        char path[8 * PATH_MAX];
        const int length = snprintf(path, sizeof path, "%s:%s/%s%s%s", stand_in, folder, places[i],
                                    before != NULL ? ":" : "", before != NULL ? before : "");
        return length < (int)sizeof path && setenv("PYTHONPATH", path, 1) == 0;
    }
    fprintf(
        stderr,
        "tributary run: --as %s: the Python package is not beside %s: use the command of the wheel, or of a build\n",
        package, folder);
    return false;
}
