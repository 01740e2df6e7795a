/*
 * curl_library.h - libcurl, loaded when a job has a store. A job without one does not carry it, nor its own libraries.
 */
#ifndef TRIB_API_ENV_CURL_LIBRARY_H
#define TRIB_API_ENV_CURL_LIBRARY_H

#include "build_config.h"

#if TRIB_HAVE_LIBCURL
#define CURL_DISABLE_TYPECHECK /* its checks are macros of the functions' names */
#include <curl/curl.h>

#include "api/tributary.h"
#include "engine/base/log.h"

typedef struct trib_curl {
    __typeof__(&curl_easy_init) init;
    __typeof__(&curl_easy_cleanup) cleanup;
    __typeof__(&curl_easy_setopt) set;
    __typeof__(&curl_easy_perform) perform;
    __typeof__(&curl_easy_getinfo) get;
    __typeof__(&curl_easy_strerror) describe;
    __typeof__(&curl_slist_append) append;
    __typeof__(&curl_slist_free_all) free_list;
} trib_curl;

/* Any thread. The library stays loaded until the process ends. TRIB_UNSUPPORTED: it is not installed. */
TRIB_CHECKED trib_status trib_curl_load(trib_curl *curl_out, trib_error *error);
#endif

#endif
