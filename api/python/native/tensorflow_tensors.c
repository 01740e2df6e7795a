/* tensorflow_tensors.c - the tensors that kernels have declared and keep. They are released where the job goes on with
 * others. */
#include "native/tensorflow_job.h"

#include <stdlib.h>
#include <string.h>

TRIB_API void trib_tensorflow_forget(void);

void trib_tf_release(trib_tensor *tensor)
{
    const trib_status status = trib_tensor_release(tensor, NULL);
    (void)status;
}

trib_status trib_tf_remember(const struct kernel *kernel)
{
    struct job *job = &trib_tf_job;
    for (size_t i = 0; i < job->tensor_count; i++) {
        if (job->tensors[i].tensor == kernel->tensor) {
            return TRIB_OK;
        }
    }
    if (job->tensor_count == job->tensor_capacity) {
        const size_t capacity = job->tensor_capacity ? 2 * job->tensor_capacity : 64;
        struct kept *grown = realloc(job->tensors, capacity * sizeof *grown);
        if (grown == NULL) {
            return TRIB_NO_MEMORY;
        }
        job->tensors = grown;
        job->tensor_capacity = capacity;
    }
    struct kept *kept = &job->tensors[job->tensor_count++];
    kept->tensor = kernel->tensor;
    kept->process_set = kernel->process_set;
    memcpy(kept->name, kernel->name, sizeof kept->name);
    return TRIB_OK;
}

bool trib_tf_is_disputed(const struct kernel *kernel, trib_error *error)
{
    for (size_t i = 0; i < trib_tf_job.tensor_count; i++) {
        const struct kept *kept = &trib_tf_job.tensors[i];
        trib_error found;
        size_t count = 0;
        if (kept->process_set == kernel->process_set && strcmp(kept->name, kernel->name) == 0 &&
            trib_tensor_counts(kept->tensor, NULL, 0, &count, &found) == TRIB_MISMATCH) {
            (void)snprintf(error->text, sizeof error->text,
                           "workers disagreed about \"%.80s\" before, so it takes no other shape: take another name "
                           "(%.200s)",
                           kernel->name, found.text);
            return true;
        }
    }
    return false;
}

/* Releases what kernels have declared: where the job goes on with others, they declare anew, as a worker that comes
 * does. No operation may be under way. */
void trib_tensorflow_forget(void)
{
    pthread_mutex_lock(&trib_tf_job.lock);
    for (size_t i = 0; i < trib_tf_job.tensor_count; i++) {
        trib_tf_release(trib_tf_job.tensors[i].tensor);
    }
    trib_tf_job.tensor_count = 0;
    pthread_mutex_unlock(&trib_tf_job.lock);
}
