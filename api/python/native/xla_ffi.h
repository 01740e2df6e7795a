/* xla_ffi.h - what the binding of JAX needs of XLA's foreign function interface, version 0.1 and newer.
 *
 * XLA promises that these layouts stay: fields are added at the end, and struct_size says how many a caller knows.
 * Declared here so that building needs no header of a framework; tests/python/test_jax.py compares with an installed
 * one. */
#ifndef TRIB_PYTHON_XLA_FFI_H
#define TRIB_PYTHON_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

enum {
    XLA_EXTENSION_METADATA = 1,
    XLA_ERROR_UNIMPLEMENTED = 12,
    XLA_ERROR_INTERNAL = 13,
    XLA_API_MAJOR = 0,
    XLA_API_MINOR = 1
};

struct xla_extension {
    size_t struct_size;
    int type;
    struct xla_extension *next;
};

struct xla_api_version {
    size_t struct_size;
    struct xla_extension *extensions;
    int major, minor; /* set by the handler: the oldest version that will do */
};

struct xla_metadata {
    size_t struct_size;
    struct xla_api_version api_version;
    uint32_t traits;
};

struct xla_metadata_extension {
    struct xla_extension base;
    struct xla_metadata *metadata;
};

struct xla_error;   /* opaque */
struct xla_future;  /* opaque */
struct xla_context; /* opaque */

struct xla_buffer {
    size_t struct_size;
    struct xla_extension *extensions;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
};

struct xla_bytes {
    const char *bytes;
    size_t length;
};

struct xla_scalar {
    int dtype;
    void *value;
};

/* Arguments and results have one layout: kinds, and pointers to buffers. */
struct xla_buffers {
    size_t struct_size;
    struct xla_extension *extensions;
    int64_t count;
    int *kinds;
    struct xla_buffer **buffers;
};

struct xla_attributes {
    size_t struct_size;
    struct xla_extension *extensions;
    int64_t count;
    int *kinds;
    struct xla_bytes **names;
    void **values; /* a number is an xla_scalar, a string an xla_bytes */
};

struct xla_call;
typedef struct xla_error *xla_handler(struct xla_call *call);

struct xla_error_create_args {
    size_t struct_size;
    struct xla_extension *extensions;
    const char *message;
    int code;
};

struct xla_stream_get_args {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_context *context;
    void *stream; /* set by the call */
};

struct xla_future_args { /* Create sets future; SetAvailable takes it */
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_future *future;
};

struct xla_future_set_error_args {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_future *future;
    struct xla_error *error; /* XLA's from then on */
};

struct xla_api {
    size_t struct_size;
    struct xla_extension *extensions;
    struct xla_api_version api_version;
    const void *internal;
    struct xla_error *(*error_create)(struct xla_error_create_args *args);
    void (*error_get_message)(void *args);
    void (*error_destroy)(void *args);
    struct xla_error *(*handler_register)(void *args);
    struct xla_error *(*stream_get)(struct xla_stream_get_args *args);
    void *(*unused[8])(void *args); /* types, contexts, states, device memory, thread pools */
    struct xla_error *(*future_create)(struct xla_future_args *args);
    struct xla_error *(*future_set_available)(struct xla_future_args *args);
    struct xla_error *(*future_set_error)(struct xla_future_set_error_args *args);
};

struct xla_call {
    size_t struct_size;
    struct xla_extension *extensions;
    const struct xla_api *api;
    struct xla_context *context;
    int stage;
    struct xla_buffers args;
    struct xla_buffers results;
    struct xla_attributes attributes;
    struct xla_future *future; /* set by an asynchronous handler */
};

#endif
