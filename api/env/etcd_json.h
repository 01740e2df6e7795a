/* etcd_json.h - requests to etcd's JSON gateway, and its answers, as texts and values. Keys and values are base64
 * there, and 64-bit numbers are texts. */
#ifndef TRIB_API_ENV_ETCD_JSON_H
#define TRIB_API_ENV_ETCD_JSON_H

#include "engine/job/store.h"

#define TRIB_ETCD_KEY_MAX 512

typedef struct trib_etcd_keys {
    char record[TRIB_ETCD_KEY_MAX], sign[TRIB_ETCD_KEY_MAX];
} trib_etcd_keys;

/* The body of /v3/kv/txn for the request. NULL: out of memory. Freed with free(). */
char *trib_etcd_transaction(const trib_etcd_keys *keys, const trib_store_request *request, int64_t lease);
/* Fills in the answer. False: it is not one of etcd's, and request->why says so. */
bool trib_etcd_take_transaction(const char *answer, const trib_etcd_keys *keys, trib_store_request *request);

/* The body of /v3/lease/grant, or, with an id, of keepalive and revoke. */
char *trib_etcd_lease(int64_t id, int64_t seconds);
/* The id and the seconds that a lease has; 0: it has none left. False: it is not an answer of etcd's. */
bool trib_etcd_take_lease(const char *answer, int64_t *id_out, int64_t *seconds_out);
/* The text receives the reason in an answer that is an error; "" if it has none. */
void trib_etcd_error(const char *answer, char text[TRIB_STORE_TEXT_MAX]);

#endif
