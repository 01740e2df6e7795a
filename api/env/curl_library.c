/* curl_library.c - see curl_library.h. */
#include "api/env/curl_library.h"

#if TRIB_HAVE_LIBCURL
#include <dlfcn.h>
#include <string.h>

#define LIBRARY "libcurl.so.4"

trib_status trib_curl_load(trib_curl *curl_out, trib_error *error)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        /* NOLINTNEXTLINE(concurrency-mt-unsafe): glibc has a text for each thread */
        const char *why = dlerror();
        return trib_error_set(error, TRIB_UNSUPPORTED,
                              "TRIB_STORE needs " LIBRARY ", which cannot be loaded (Debian's package is libcurl4): "
                              "%.200s",
                              why);
    }
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        {"curl_easy_init", &curl_out->init},      {"curl_easy_cleanup", &curl_out->cleanup},
        {"curl_easy_setopt", &curl_out->set},     {"curl_easy_perform", &curl_out->perform},
        {"curl_easy_getinfo", &curl_out->get},    {"curl_easy_strerror", &curl_out->describe},
        {"curl_slist_append", &curl_out->append}, {"curl_slist_free_all", &curl_out->free_list},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (symbol == NULL) {
            return trib_error_set(error, TRIB_UNSUPPORTED, "TRIB_STORE: " LIBRARY " has no function %s",
                                  functions[i].name);
        }
        memcpy(functions[i].to, &symbol, sizeof symbol);
    }
    return TRIB_OK;
}
#endif
