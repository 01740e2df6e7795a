/* store_etcd.c - see store_etcd.h. */
#include "api/env/store_etcd.h"

#if TRIB_HAVE_LIBCURL
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/env/curl_library.h"
#include "api/env/etcd_json.h"
#include "engine/base/assert.h"
#include "engine/base/thread_signals.h"
#include "engine/wire/address_list.h"

#define PATIENCE_NS (2 * INT64_C(1000000000)) /* time limit of a request, with all its attempts */
#define ATTEMPT_MS 1000                       /* time limit of an attempt at one of several hosts */
#define LEAVE_NS INT64_C(1000000000)          /* time limit for taking the sign away */
#define ANSWER_MAX 65536u

typedef struct etcd {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t thread;
    trib_store_request *request; /* the request that the thread has, or shall take */
    bool is_stopping, takes_sign;
    atomic_bool gives_up; /* a call in progress shall end */
    /* The thread's own. */
    trib_curl api;
    CURL *curl;
    struct curl_slist *headers;
    int64_t lease, deadline_ns;
    size_t host; /* index of the host in the list that answered last */
    size_t size; /* bytes of the answer */
    char answer[ANSWER_MAX + 1];
    char hosts[512];
    trib_etcd_keys keys;
} etcd;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static size_t take_bytes(char *bytes, size_t one, size_t count, void *user)
{
    etcd *self = user;
    const size_t size = one * count;
    if (size > ANSWER_MAX - self->size) {
        return 0; /* it is no answer of etcd's */
    }
    memcpy(self->answer + self->size, bytes, size);
    self->size += size;
    self->answer[self->size] = '\0';
    return size;
}

static int look(void *user, curl_off_t down_all, curl_off_t down, curl_off_t up_all, curl_off_t up)
{
    (void)down_all;
    (void)down;
    (void)up_all;
    (void)up;
    return atomic_load(&((etcd *)user)->gives_up);
}

/* ---- Calls ---- */

/* One attempt at one host. Returns 0, or HTTP's status of an answer that is an error, or -1; then why says what is
 * wrong. */
static long attempt(etcd *self, const char *path, const char *body, char why[TRIB_STORE_TEXT_MAX])
{
    char host[256], url[512], said[CURL_ERROR_SIZE] = "";
    trib_address_list_copy(self->hosts, self->host, host, sizeof host);
    snprintf(url, sizeof url, "http://%s%s", host, path);
    const int64_t left_ms = (self->deadline_ns - now_ns()) / 1000000;
    const bool is_alone = trib_address_list_count(self->hosts) == 1;
    self->size = 0;
    self->answer[0] = '\0';
    self->api.set(self->curl, CURLOPT_URL, url);
    self->api.set(self->curl, CURLOPT_POSTFIELDS, body);
    self->api.set(self->curl, CURLOPT_ERRORBUFFER, said);
    self->api.set(self->curl, CURLOPT_TIMEOUT_MS,
                  (long)(left_ms < 1                        ? 1
                         : left_ms < ATTEMPT_MS || is_alone ? left_ms
                                                            : ATTEMPT_MS));
    const CURLcode code = self->api.perform(self->curl);
    self->api.set(self->curl, CURLOPT_ERRORBUFFER, NULL);
    long status = 0;
    self->api.get(self->curl, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK) {
        snprintf(why, TRIB_STORE_TEXT_MAX, "%s: %s", host, said[0] != '\0' ? said : self->api.describe(code));
        return -1;
    }
    if (status != 200) {
        char text[TRIB_STORE_TEXT_MAX];
        trib_etcd_error(self->answer, text);
        snprintf(why, TRIB_STORE_TEXT_MAX, "%s: HTTP status %ld%s%.120s", host, status, text[0] != '\0' ? ": " : "",
                 text);
        return status;
    }
    return 0;
}

/* Makes the call at one host after the other, and frees the body. Returns as `attempt` does. */
static long call(etcd *self, const char *path, char *body, char why[TRIB_STORE_TEXT_MAX])
{
    long status = -1;
    snprintf(why, TRIB_STORE_TEXT_MAX, "out of memory for a request");
    const size_t hosts = trib_address_list_count(self->hosts);
    for (size_t i = 0; i < hosts && body != NULL; i++) {
        status = attempt(self, path, body, why);
        if ((status >= 0 && status < 500) || atomic_load(&self->gives_up) || now_ns() >= self->deadline_ns) {
            break;
        }
        self->host = (self->host + 1) % hosts;
    }
    free(body);
    return status;
}

/* Makes sure that there is a lease, which is renewed if `renews`. False: why says what is wrong. */
static bool hold_lease(etcd *self, int64_t fades_ns, bool renews, char why[TRIB_STORE_TEXT_MAX])
{
    int64_t id = 0, seconds = 0;
    if (self->lease != 0 && renews) {
        if (call(self, "/v3/lease/keepalive", trib_etcd_lease(self->lease, 0), why) != 0) {
            return false;
        }
        self->lease = trib_etcd_take_lease(self->answer, &id, &seconds) && seconds > 0 ? self->lease : 0;
    }
    if (self->lease != 0) {
        return true;
    }
    if (call(self, "/v3/lease/grant", trib_etcd_lease(0, (fades_ns + 999999999) / 1000000000), why) != 0) {
        return false;
    }
    if (!trib_etcd_take_lease(self->answer, &self->lease, &seconds)) {
        snprintf(why, TRIB_STORE_TEXT_MAX, "it answers with what is no lease of etcd's: %.80s", self->answer);
        return false;
    }
    return true;
}

static void answer(etcd *self, trib_store_request *request)
{
    self->deadline_ns = now_ns() + PATIENCE_NS;
    const bool needs_lease = request->kind != TRIB_STORE_GET;
    for (int i = 0; i < 2 && !request->is_answered; i++) {
        if (needs_lease && !hold_lease(self, request->fades_ns, request->kind == TRIB_STORE_KEEP, request->why)) {
            return;
        }
        char *body = trib_etcd_transaction(&self->keys, request, self->lease);
        const long status = call(self, "/v3/kv/txn", body, request->why);
        request->is_answered = status == 0 && trib_etcd_take_transaction(self->answer, &self->keys, request);
        if (status < 400 || status >= 500 || !needs_lease) {
            return;
        }
        self->lease = 0; /* the lease may have ended, so another one is taken and the request made once more */
    }
}

static void leave(etcd *self)
{
    char why[TRIB_STORE_TEXT_MAX];
    if (self->lease != 0) {
        self->deadline_ns = now_ns() + LEAVE_NS;
        (void)call(self, "/v3/lease/revoke", trib_etcd_lease(self->lease, 0), why);
    }
}

static void *run(void *argument)
{
    etcd *self = argument;
    pthread_mutex_lock(&self->mutex);
    while (!self->is_stopping) {
        trib_store_request *request = self->request;
        if (request == NULL) {
            pthread_cond_wait(&self->changed, &self->mutex);
            continue;
        }
        pthread_mutex_unlock(&self->mutex);
        answer(self, request);
        pthread_mutex_lock(&self->mutex);
        self->request = NULL;
        trib_reactor_post(request->reactor, &request->done);
    }
    const bool takes_sign = self->takes_sign;
    pthread_mutex_unlock(&self->mutex);
    atomic_store(&self->gives_up, false);
    if (takes_sign) {
        leave(self);
    }
    return NULL;
}

/* ---- The store ---- */

static void begin(void *store, trib_store_request *request)
{
    etcd *self = store;
    pthread_mutex_lock(&self->mutex);
    trib_assert(self->request == NULL && !self->is_stopping);
    self->request = request;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->mutex);
}

static void stop(void *store, bool takes_sign)
{
    etcd *self = store;
    pthread_mutex_lock(&self->mutex);
    const bool is_first = !self->is_stopping;
    self->is_stopping = true;
    self->takes_sign = takes_sign;
    atomic_store(&self->gives_up, true);
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    if (is_first) {
        pthread_join(self->thread, NULL);
    }
}

static void destroy(etcd *self)
{
    self->api.free_list(self->headers);
    self->api.cleanup(self->curl);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

void trib_store_etcd_free(void *store)
{
    if (store != NULL) {
        stop(store, false);
        destroy(store);
    }
}

static trib_status no_memory(trib_error *error)
{
    return trib_error_set(error, TRIB_NO_MEMORY, "out of memory or threads for the store");
}

trib_status trib_store_etcd_open(const char *hosts, const char *prefix, const char *job, void **store_out,
                                 trib_error *error)
{
    trib_curl api;
    const trib_status status = trib_curl_load(&api, error);
    etcd *self = status == TRIB_OK ? calloc(1, sizeof *self) : NULL;
    *store_out = NULL;
    if (self == NULL) {
        return status != TRIB_OK ? status : no_memory(error);
    }
    self->api = api;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->changed, NULL);
    snprintf(self->hosts, sizeof self->hosts, "%s", hosts);
    snprintf(self->keys.record, sizeof self->keys.record, "%s/%s/epoch", prefix, job);
    snprintf(self->keys.sign, sizeof self->keys.sign, "%s/%s/coordinator", prefix, job);
    self->curl = self->api.init();
    self->headers = self->api.append(NULL, "Content-Type: application/json");
    if (self->curl == NULL || self->headers == NULL) {
        destroy(self);
        return no_memory(error);
    }
    self->api.set(self->curl, CURLOPT_HTTPHEADER, self->headers);
    self->api.set(self->curl, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
    self->api.set(self->curl, CURLOPT_QUICK_EXIT, 1L); /* otherwise the end of a request waits for the name servers */
#endif
    self->api.set(self->curl, CURLOPT_NOPROXY, "*"); /* members reach each other without one, too */
    self->api.set(self->curl, CURLOPT_WRITEFUNCTION, take_bytes);
    self->api.set(self->curl, CURLOPT_WRITEDATA, self);
    self->api.set(self->curl, CURLOPT_NOPROGRESS, 0L);
    self->api.set(self->curl, CURLOPT_XFERINFOFUNCTION, look);
    self->api.set(self->curl, CURLOPT_XFERINFODATA, self);
    if (trib_thread_start(&self->thread, NULL, run, self) != 0) {
        destroy(self);
        return no_memory(error);
    }
    *store_out = self;
    return TRIB_OK;
}

const trib_store_ops trib_store_etcd_ops = {.begin = begin, .stop = stop};
#endif
