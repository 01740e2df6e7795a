/* etcd_json.c - see etcd_json.h. */
#include "api/env/etcd_json.h"

#include "build_config.h"

#if TRIB_HAVE_LIBCURL
#include <inttypes.h>
#include <jansson.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENCODED_MAX sodium_base64_ENCODED_LEN(TRIB_ETCD_KEY_MAX, sodium_base64_VARIANT_ORIGINAL)

static json_t *encode(const char *text)
{
    char encoded[ENCODED_MAX];
    const size_t size = strnlen(text, TRIB_ETCD_KEY_MAX - 1);
    return json_string(
        sodium_bin2base64(encoded, sizeof encoded, (const unsigned char *)text, size, sodium_base64_VARIANT_ORIGINAL));
}

static json_t *number(int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    return json_string(text);
}

static json_t *range(const char *key)
{
    return json_pack("{s:{s:o}}", "request_range", "key", encode(key));
}

static json_t *put(const char *key, const char *value, int64_t lease)
{
    json_t *body = json_pack("{s:o,s:o}", "key", encode(key), "value", encode(value));
    if (body != NULL && lease != 0) {
        json_object_set_new(body, "lease", number(lease));
    }
    return json_pack("{s:o}", "request_put", body);
}

char *trib_etcd_transaction(const trib_etcd_keys *keys, const trib_store_request *request, int64_t lease)
{
    json_t *body = NULL;
    switch (request->kind) {
    case TRIB_STORE_GET:
        body = json_pack("{s:[o,o]}", "success", range(keys->record), range(keys->sign));
        break;
    case TRIB_STORE_SWAP:
        body = json_pack("{s:[{s:s,s:s,s:o,s:o}],s:[o,o,o],s:[o]}", "compare", "target", "MOD", "result", "EQUAL",
                         "key", encode(keys->record), "mod_revision", number((int64_t)request->revision), "success",
                         put(keys->record, request->record, 0), put(keys->sign, request->sign, lease),
                         range(keys->record), "failure", range(keys->record));
        break;
    case TRIB_STORE_KEEP:
        body = json_pack("{s:[{s:s,s:s,s:o,s:o},{s:s,s:s,s:o,s:o}],s:[o],s:[o,o]}", "compare", "target", "VALUE",
                         "result", "EQUAL", "key", encode(keys->sign), "value", encode(request->sign), "target",
                         "LEASE", "result", "EQUAL", "key", encode(keys->sign), "lease", number(lease), "success",
                         range(keys->record), "failure", put(keys->sign, request->sign, lease), range(keys->record));
        break;
    }
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return text;
}

static bool decode(const json_t *at, char *text, size_t size)
{
    size_t used = 0;
    const char *encoded = json_string_value(at);
    if (encoded == NULL || sodium_base642bin((unsigned char *)text, size - 1, encoded, strlen(encoded), NULL, &used,
                                             NULL, sodium_base64_VARIANT_ORIGINAL) != 0) {
        return false;
    }
    text[used] = '\0';
    return true;
}

static int64_t get_number(const json_t *object, const char *name)
{
    const json_t *at = json_object_get(object, name);
    const char *text = json_string_value(at);
    return text != NULL ? strtoll(text, NULL, 10) : (int64_t)json_integer_value(at);
}

/* Takes the answer to a range of one key. */
static bool take_range(const json_t *answer, const trib_etcd_keys *keys, trib_store_request *request)
{
    char key[TRIB_ETCD_KEY_MAX];
    const json_t *pair = json_array_get(json_object_get(answer, "kvs"), 0);
    if (pair == NULL) {
        return true; /* there is no such key */
    }
    if (!decode(json_object_get(pair, "key"), key, sizeof key)) {
        return false;
    }
    const bool is_record = strcmp(key, keys->record) == 0;
    char *text = is_record ? request->record : request->sign;
    const size_t size = is_record ? sizeof request->record : sizeof request->sign;
    text[0] = '\0';
    if (json_object_get(pair, "value") != NULL && !decode(json_object_get(pair, "value"), text, size)) {
        snprintf(text, size, "?"); /* too long, or no text: nobody knows it */
    }
    if (is_record) {
        request->revision = (uint64_t)get_number(pair, "mod_revision");
    }
    return true;
}

bool trib_etcd_take_transaction(const char *answer, const trib_etcd_keys *keys, trib_store_request *request)
{
    json_t *body = json_loads(answer, 0, NULL);
    const json_t *responses = json_object_get(body, "responses");
    bool is_one = json_object_get(body, "header") != NULL && json_array_size(responses) > 0;
    const bool is_swapped = json_is_true(json_object_get(body, "succeeded"));
    if (is_one) {
        request->revision = 0;
        request->record[0] = '\0';
        if (request->kind == TRIB_STORE_GET) {
            request->sign[0] = '\0';
        }
    }
    for (size_t i = 0; is_one && i < json_array_size(responses); i++) {
        const json_t *ranged = json_object_get(json_array_get(responses, i), "response_range");
        is_one = ranged == NULL || take_range(ranged, keys, request);
    }
    json_decref(body);
    request->is_swapped = is_one && request->kind == TRIB_STORE_SWAP && is_swapped;
    if (!is_one) {
        snprintf(request->why, sizeof request->why, "it answers with what is no answer of etcd's: %.80s", answer);
    }
    return is_one;
}

char *trib_etcd_lease(int64_t id, int64_t seconds)
{
    json_t *body = id == 0 ? json_pack("{s:o}", "TTL", number(seconds)) : json_pack("{s:o}", "ID", number(id));
    char *text = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return text;
}

bool trib_etcd_take_lease(const char *answer, int64_t *id_out, int64_t *seconds_out)
{
    json_t *body = json_loads(answer, JSON_DISABLE_EOF_CHECK, NULL);
    const json_t *result = json_object_get(body, "result"); /* of a stream of answers */
    const json_t *lease = result != NULL ? result : body;
    *id_out = get_number(lease, "ID");
    *seconds_out = get_number(lease, "TTL");
    json_decref(body);
    return *id_out != 0;
}

void trib_etcd_error(const char *answer, char text[TRIB_STORE_TEXT_MAX])
{
    json_t *body = json_loads(answer, JSON_DISABLE_EOF_CHECK, NULL);
    const char *message = json_string_value(json_object_get(body, "message"));
    message = message != NULL ? message : json_string_value(json_object_get(body, "error"));
    snprintf(text, TRIB_STORE_TEXT_MAX, "%s", message != NULL ? message : "");
    json_decref(body);
}
#endif
