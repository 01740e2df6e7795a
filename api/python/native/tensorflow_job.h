/* tensorflow_job.h - what the kernels of TensorFlow's two operations share: the engine that they submit to, and what is
 * kept for a place in a graph (tensorflow.c). */
#ifndef TRIB_PYTHON_TENSORFLOW_JOB_H
#define TRIB_PYTHON_TENSORFLOW_JOB_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "native/completion.h"
#include "native/tensorflow_c.h"
#include "tributary.h"

enum { MAX_DIMS = 254, GLOBAL_SET = 0 };

/* A tensor that kernels of one name share. */
struct kept {
    trib_tensor *tensor;
    int64_t process_set;
    char name[TRIB_TENSOR_NAME_MAX + 1]; /* the kernels', without the number of a further shape */
};

/* The engine, and how often there has been another. A lock holder may submit: the engine is not destroyed meanwhile. */
struct job {
    pthread_mutex_t lock;
    trib_engine *engine, *former; /* former: the last one that was there */
    uint64_t generation;
    uint64_t calls, in_place; /* for tests */
    uint64_t pending;         /* operations whose results TensorFlow has not got yet */
    uint64_t gathers;         /* those of them whose results the engine holds */
    pthread_cond_t taken;     /* one of them less */
    struct kept *tensors;     /* of all kernels, each once */
    size_t tensor_count, tensor_capacity;
    trib_group **groups; /* by the number of a process set; NULL where this worker is no member */
    uint64_t group_count;
};
extern struct job trib_tf_job;

/* One place in a graph. */
struct kernel {
    char name[TRIB_TENSOR_NAME_MAX + 1];
    char codec[256]; /* as trib_tensor_desc.codec; "": NULL */
    int64_t kind, reduce, priority, root, codec_min_bytes, process_set;
    int64_t name_begin; /* as trib_tensor_desc.name_begin */
    int64_t numbers;    /* 1: each operation has a tensor of its own, whose name ends with the last input; else 0 */
    pthread_mutex_t lock;
    trib_tensor *tensor; /* of the engine of this generation, for this count */
    uint64_t generation;
    int64_t count;
};

void *trib_tf_kernel_create(TF_OpKernelConstruction *context);
void trib_tf_kernel_destroy(void *kernel);

/* TensorFlow's numbers of types as ours; -1 for those that cannot be moved. */
int trib_tf_dtype(int type);

/* Reads the number that the name of an operation's tensor ends with: the input at `index`, where the kernel has it. */
int64_t trib_tf_number(const struct kernel *kernel, TF_OpKernelContext *context, int index, TF_Status *status);

/* Writes the name of an operation's tensor. */
static inline void trib_tf_tensor_name(const struct kernel *kernel, int64_t number, char name[TRIB_TENSOR_NAME_MAX + 1])
{
    (void)snprintf(name, TRIB_TENSOR_NAME_MAX + 1, kernel->numbers == 0 ? "%s" : "%s.%lld", kernel->name,
                   (long long)number);
}

/* Finds the engine and the group (NULL: all workers) of a kernel. The job is locked. */
trib_status trib_tf_group(const struct kernel *kernel, trib_group **group_out, trib_error *error);

/* This worker's number in a group, or in the job (NULL), and how many members it has. The job is locked. */
int trib_tf_rank(const trib_group *group);
int trib_tf_size(const trib_group *group);

/* Releases a tensor. The end of the engine, or of a group, may have done so already. */
void trib_tf_release(trib_tensor *tensor);

/* Remembers a kernel's tensor for trib_tensorflow_forget() and trib_tf_is_disputed(). The job is locked. */
trib_status trib_tf_remember(const struct kernel *kernel);

/* Returns whether workers have declared a tensor of the kernel's name differently, and a text in *error. The job is
 * locked. */
bool trib_tf_is_disputed(const struct kernel *kernel, trib_error *error);

/* TensorFlow has the result of an operation that counted as pending, and as a gather if it is one. */
void trib_tf_taken(bool is_gather);

/* Fails a kernel's call with the code of TensorFlow that a status means. */
void trib_tf_fail(TF_OpKernelContext *context, trib_status status, const char *text);

/* tensorflow_interrupt.c: an operation fails, and a Ctrl-C may be under way. */
void trib_tf_raise_again(void);

/* tensorflow_gather.c: registers the second operation. */
void trib_tf_register_gather(TF_Status *status);

/* Adds the attributes that both operations have. */
void trib_tf_add_attributes(TF_OpDefinitionBuilder *builder);

#endif
