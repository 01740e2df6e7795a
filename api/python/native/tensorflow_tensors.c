/* tensorflow_tensors.c - the tensors that kernels have declared and keep. All of them are released where the job goes
 * on with others, and one alone when the workers disagree about it. */
#include "native/tensorflow_job.h"

#include <stdlib.h>

TRIB_API void trib_tensorflow_forget(void);

void trib_tf_release(trib_tensor *tensor)
{
    const trib_status status = trib_tensor_release(tensor, NULL);
    (void)status;
}

trib_status trib_tf_remember(trib_tensor *tensor)
{
    struct job *job = &trib_tf_job;
    for (size_t i = 0; i < job->tensor_count; i++) {
        if (job->tensors[i] == tensor) {
            return TRIB_OK;
        }
    }
    if (job->tensor_count == job->tensor_capacity) {
        const size_t capacity = job->tensor_capacity ? 2 * job->tensor_capacity : 64;
        trib_tensor **grown = realloc(job->tensors, capacity * sizeof(trib_tensor *));
        if (grown == NULL) {
            return TRIB_NO_MEMORY;
        }
        job->tensors = grown;
        job->tensor_capacity = capacity;
    }
    job->tensors[job->tensor_count++] = tensor;
    return TRIB_OK;
}

/* Releases what kernels have declared: where the job goes on with others, they declare anew, as a worker that comes
 * does. No operation may be under way. */
void trib_tensorflow_forget(void)
{
    pthread_mutex_lock(&trib_tf_job.lock);
    for (size_t i = 0; i < trib_tf_job.tensor_count; i++) {
        trib_tf_release(trib_tf_job.tensors[i]);
    }
    trib_tf_job.tensor_count = 0;
    pthread_mutex_unlock(&trib_tf_job.lock);
}

void trib_tf_drop(trib_tensor *tensor, uint64_t engine)
{
    struct job *job = &trib_tf_job;
    pthread_mutex_lock(&job->lock);
    const bool is_there = job->engine != NULL && engine == job->engines;
    for (size_t i = 0; is_there && i < job->tensor_count; i++) {
        if (job->tensors[i] == tensor) {
            trib_tf_release(tensor);
            job->tensors[i] = job->tensors[--job->tensor_count];
            job->generation++; /* every kernel looks its tensor up again */
            break;
        }
    }
    pthread_mutex_unlock(&job->lock);
}
