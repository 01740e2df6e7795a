/*
 * device_load.c - finds the CUDA module: libtributary-cuda.so.0 beside this library, else where the loader looks.
 *
 * It stays loaded: a driver's threads may run in it until the process ends.
 */
#include "api/env/device_load.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define MODULE "libtributary-cuda.so.0"
#define ENTRY "trib_device_cuda"

static void *open_module(char *why, size_t size)
{
    Dl_info info;
    char path[PATH_MAX];
    const char *end = NULL;
    if (dladdr((void *)&trib_version, &info) != 0 && info.dli_fname != NULL) {
        end = strrchr(info.dli_fname, '/');
    }
    static const char *const beside[] = {"", "../lib/", "../"};
    for (size_t i = 0; end != NULL && i < sizeof beside / sizeof beside[0]; i++) {
        snprintf(path, sizeof path, "%.*s%s%s", (int)(end - info.dli_fname + 1), info.dli_fname, beside[i], MODULE);
        void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (module != NULL) {
            return module;
        }
    }
    void *module = dlopen(MODULE, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (module == NULL) {
        snprintf(why, size, "%s", dlerror()); /* NOLINT(concurrency-mt-unsafe): glibc has a text for each thread */
    }
    return module;
}

static trib_status load_cuda(const trib_device_ops **ops_out, trib_error *error)
{
    char why[256] = "";
    void *module = open_module(why, sizeof why);
    if (module == NULL) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "device \"cuda\": the module " MODULE " could not be loaded: %s. It is built where the "
                              "CUDA Toolkit is found, and installed beside the library",
                              why);
    }
    const trib_device_ops *(*entry)(void) = NULL;
    void *symbol = dlsym(module, ENTRY);
    memcpy(&entry, &symbol, sizeof entry);
    const trib_device_ops *ops = entry != NULL ? entry() : NULL;
    if (ops == NULL || ops->abi != TRIB_DEVICE_ABI) {
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "device \"cuda\": the module " MODULE " is of another release of the library");
    }
    *ops_out = ops;
    return TRIB_OK;
}

trib_status trib_device_load(const char *name, const trib_device_ops **ops_out, trib_error *error)
{
    if (strcmp(name, "none") == 0) {
        *ops_out = NULL;
        return TRIB_OK;
    }
    if (strcmp(name, "cuda") == 0) {
        return load_cuda(ops_out, error);
    }
    const trib_device_ops *found = trib_device_find_double(name);
    if (found == NULL) {
        return trib_error_set(error, TRIB_INVALID, "device \"%.40s\": must be \"none\" or \"cuda\" (TRIB_DEVICE)",
                              name);
    }
    *ops_out = found;
    return TRIB_OK;
}
