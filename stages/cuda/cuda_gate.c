/*
 * cuda_gate.c - memory of stream semaphores: words in host memory, and events.
 *
 * Both are made without the mutex, because the driver may take long. The first page of words is made with the device,
 * when no work is in flight that the driver could wait for.
 */
#include "stages/cuda/cuda_internal.h"

#include <stdlib.h>

static cuda_semaphore_page *make_page(void)
{
    cuda_semaphore_page *page = calloc(1, sizeof *page);
    void *words = NULL;
    if (page == NULL || cudaHostAlloc(&words, CUDA_SEMAPHORES_PER_PAGE * sizeof(uint32_t),
                                      cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) {
        (void)cudaGetLastError();
        free(page);
        return NULL;
    }
    page->words = words;
    return page;
}

bool cuda_semaphores_open(trib_device *device)
{
    device->semaphore_pages = make_page();
    return device->semaphore_pages != NULL;
}

/* With the mutex held. */
static uint32_t *take_word(cuda_semaphore_page *page)
{
    trib_assert(page == NULL || page->used <= CUDA_SEMAPHORES_PER_PAGE);
    uint32_t *word = page == NULL || page->used == CUDA_SEMAPHORES_PER_PAGE ? NULL : &page->words[page->used++];
    if (word != NULL) {
        *word = 0;
    }
    return word;
}

uint32_t *cuda_semaphore_word(trib_device *device)
{
    pthread_mutex_lock(&device->mutex);
    uint32_t *word = take_word(device->semaphore_pages);
    pthread_mutex_unlock(&device->mutex);
    if (word != NULL) {
        return word;
    }
    cuda_semaphore_page *page = make_page();
    if (page != NULL) {
        pthread_mutex_lock(&device->mutex);
        page->next = device->semaphore_pages;
        device->semaphore_pages = page;
        word = take_word(page);
        pthread_mutex_unlock(&device->mutex);
    }
    return word;
}

cuda_semaphore_event *cuda_semaphore_event_make(trib_device *device)
{
    cuda_semaphore_event *event = calloc(1, sizeof *event);
    if (event == NULL || cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming) != cudaSuccess) {
        (void)cudaGetLastError();
        free(event);
        return NULL;
    }
    pthread_mutex_lock(&device->mutex);
    event->next = device->semaphore_events;
    device->semaphore_events = event;
    pthread_mutex_unlock(&device->mutex);
    return event;
}

void cuda_semaphores_free(trib_device *device)
{
    for (cuda_semaphore_event *event = device->semaphore_events, *next; event != NULL; event = next) {
        next = event->next;
        (void)cudaEventDestroy(event->event);
        free(event);
    }
    for (cuda_semaphore_page *page = device->semaphore_pages, *next; page != NULL; page = next) {
        next = page->next;
        (void)cudaFreeHost(page->words);
        free(page);
    }
}
