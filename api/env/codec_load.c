/*
 * codec_load.c - see codec_load.h.
 *
 * The shared object stays loaded: reactors run in it until the process ends.
 */
#include "api/env/codec_load.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"

#define ENTRY "trib_codec_library"

/* Lets objects that are loaded from now on call this library, and those that it is linked with, without being linked
 * with them. An interpreter's module has loaded it for itself alone. */
static void show_own_symbols(void)
{
    static const char here;
    Dl_info self;
    if (dladdr(&here, &self) != 0 && self.dli_fname != NULL) {
        (void)dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
    }
}

static trib_status find_codecs(const char *path, const trib_codec_desc **descs_out, uint32_t *count_out,
                               trib_error *error)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) { /* it may be that it calls this library and is not linked with it */
        show_own_symbols();
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    if (library == NULL) {
        /* NOLINTNEXTLINE(concurrency-mt-unsafe): glibc has a text for each thread */
        return trib_error_set(error, TRIB_INVALID, "TRIB_CODEC_LIBRARY: it cannot be loaded: %.300s", dlerror());
    }
    trib_codec_library_fn entry = NULL;
    void *symbol = dlsym(library, ENTRY);
    memcpy(&entry, &symbol, sizeof entry);
    *descs_out = entry != NULL ? entry(count_out) : NULL;
    if (*descs_out == NULL || *count_out == 0 || *count_out > TRIB_CODECS_MAX) {
        return trib_error_set(error, TRIB_INVALID,
                              "TRIB_CODEC_LIBRARY: \"%.200s\" has no function " ENTRY " that gives 1 to %u codecs "
                              "(trib_codec_library_fn)",
                              path, TRIB_CODECS_MAX);
    }
    if ((*descs_out)->struct_size != sizeof **descs_out) {
        return trib_error_set(error, TRIB_INVALID,
                              "TRIB_CODEC_LIBRARY: \"%.200s\" was built against another release of the library", path);
    }
    return TRIB_OK;
}

trib_status trib_codecs_load(trib_config *config, trib_codec_desc **memory_out, trib_error *error)
{
    const trib_codec_desc *descs = NULL;
    uint32_t count = 0;
    *memory_out = NULL;
    if (config->codec_library == NULL || config->codec_library[0] == '\0') {
        return TRIB_OK;
    }
    if (config->codec_count > TRIB_CODECS_MAX || (config->codec_count > 0 && config->codecs == NULL)) {
        return TRIB_OK; /* the engine refuses these */
    }
    const trib_status status = find_codecs(config->codec_library, &descs, &count, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_codec_desc *all = calloc(config->codec_count + count, sizeof *all);
    if (all == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the codecs of a library");
    }
    if (config->codec_count > 0) {
        memcpy(all, config->codecs, config->codec_count * sizeof *all);
    }
    memcpy(all + config->codec_count, descs, count * sizeof *all);
    config->codecs = *memory_out = all;
    config->codec_count += count;
    return TRIB_OK;
}
