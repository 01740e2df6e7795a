/*
 * cuda_gate.c - what streams of callers wait for: words in host memory, and events. Made without the mutex, because the driver
 * may take its time; the first words with the device, before anything is under way that could hold them up.
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>

static cuda_gate_page *page_make(void)
{
    cuda_gate_page *page = calloc(1, sizeof *page);
    void *words = NULL;
    if (page == NULL || cudaHostAlloc(&words, CUDA_GATES_A_PAGE * sizeof(uint32_t),
                                      cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) {
        (void)cudaGetLastError();
        free(page);
        return NULL;
    }
    page->words = words;
    return page;
}

bool cuda_gates_open(trib_device *device)
{
    device->gates = page_make();
    return device->gates != NULL;
}

/* With the mutex held. */
static uint32_t *word_take(cuda_gate_page *page)
{
    uint32_t *word = page == NULL || page->used == CUDA_GATES_A_PAGE ? NULL : &page->words[page->used++];
    if (word != NULL) {
        *word = 0;
    }
    return word;
}

uint32_t *cuda_gate_word(trib_device *device)
{
    pthread_mutex_lock(&device->mutex);
    uint32_t *word = word_take(device->gates);
    pthread_mutex_unlock(&device->mutex);
    if (word != NULL) {
        return word;
    }
    cuda_gate_page *page = page_make();
    if (page != NULL) {
        pthread_mutex_lock(&device->mutex);
        page->next = device->gates;
        device->gates = page;
        word = word_take(page);
        pthread_mutex_unlock(&device->mutex);
    }
    return word;
}

cuda_gate_end *cuda_gate_end_make(trib_device *device)
{
    cuda_gate_end *end = calloc(1, sizeof *end);
    if (end == NULL || cudaEventCreateWithFlags(&end->slot.event, cudaEventDisableTiming) != cudaSuccess) {
        (void)cudaGetLastError();
        free(end);
        return NULL;
    }
    end->slot.is_gates = true;
    pthread_mutex_lock(&device->mutex);
    end->next = device->ends;
    device->ends = end;
    pthread_mutex_unlock(&device->mutex);
    return end;
}

void cuda_gates_free(trib_device *device)
{
    for (cuda_gate_end *end = device->ends, *next; end != NULL; end = next) {
        next = end->next;
        (void)cudaEventDestroy(end->slot.event);
        free(end);
    }
    for (cuda_gate_page *page = device->gates, *next; page != NULL; page = next) {
        next = page->next;
        (void)cudaFreeHost(page->words);
        free(page);
    }
}
