/*
 * heap_jemalloc.c - a heap that is a jemalloc arena with extent hooks of our own.
 *
 * This file and a private copy of jemalloc make up the module libtributary-jemalloc. Its version script keeps every
 * symbol but one local, so the host's malloc is never replaced and another jemalloc in the process is never met.
 *
 * Within the module malloc and free are jemalloc's. The heap's own record therefore comes from jemalloc's default
 * arenas, and nothing that libc allocates may be freed here, nor the other way round.
 *
 * The arena has no thread caches: blocks are big and taken at set-up, and a cache would hold on to them per thread.
 */
#include "numa/heap.h"

#include <jemalloc/jemalloc.h>
#include <stdlib.h>

/* The hooks are the first member: jemalloc hands their address to each hook, which leads back to the heap. */
struct trib_heap {
    extent_hooks_t hooks;
    trib_heap_source source;
    unsigned arena;
    size_t large_pad;
};

/* jemalloc reads its options here, in place of its own empty default. Few arenas for its own small needs; freed
 * extents merge at once, as nothing is ever purged. */
const char *malloc_conf = "narenas:1,tcache:false,dirty_decay_ms:0,muzzy_decay_ms:0";

/* The build routes jemalloc's look at MALLOC_CONF and /etc/malloc.conf here: those are meant for the host's own
 * jemalloc, and an option that this copy does not know could make it abort the host. */
char *__wrap_secure_getenv(const char *name);
ssize_t __wrap_readlink(const char *path, char *target, size_t size);

char *__wrap_secure_getenv(const char *name)
{
    (void)name;
    return NULL;
}

ssize_t __wrap_readlink(const char *path, char *target, size_t size)
{
    (void)path;
    (void)target;
    (void)size;
    return -1;
}

static trib_heap *hooks_heap(extent_hooks_t *hooks)
{
    return (trib_heap *)(void *)hooks;
}

/* jemalloc adds a page to each large block, to vary where it begins, which makes the next size it grows by a quarter more
 * than the block. Refused that, it asks for the block's pages alone, which are no multiple of GROWTH_STEP. */
#define GROWTH_STEP ((size_t)1 << 20)

static bool is_wasteful(const trib_heap *heap, size_t size)
{
    return heap->large_pad > 0 && size > TRIB_HEAP_GROWTH_BYTES_MAX && size % GROWTH_STEP == 0;
}

static void *hook_alloc(extent_hooks_t *hooks, void *address, size_t size, size_t alignment, bool *zero, bool *commit,
                        unsigned arena)
{
    (void)arena;
    trib_heap *heap = hooks_heap(hooks);
    if (address != NULL || is_wasteful(heap, size)) {
        return NULL; /* a wish, for one address or for more than is needed: jemalloc asks again without it */
    }
    void *memory = heap->source.take(heap->source.user, size, alignment);
    if (memory == NULL) {
        return NULL;
    }
    *zero = true;
    *commit = true;
    return memory;
}

/* Splitting is always fine: the source keeps the whole extent. */
static bool hook_split(extent_hooks_t *hooks, void *address, size_t size, size_t size_a, size_t size_b, bool committed,
                       unsigned arena)
{
    (void)hooks;
    (void)address;
    (void)size;
    (void)size_a;
    (void)size_b;
    (void)committed;
    (void)arena;
    return false;
}

static bool hook_merge(extent_hooks_t *hooks, void *address_a, size_t size_a, void *address_b, size_t size_b,
                       bool committed, unsigned arena)
{
    (void)size_a;
    (void)size_b;
    (void)committed;
    (void)arena;
    trib_heap *heap = hooks_heap(hooks);
    return !heap->source.same_extent(heap->source.user, address_a, address_b);
}

/* As jemalloc 5.3 lays out the argument of experimental.arenas_create_ext. */
typedef struct arena_config {
    extent_hooks_t *hooks;
    bool metadata_use_hooks;
} arena_config;

static size_t large_pad(void)
{
    bool varies = false;
    size_t size = sizeof(varies);
    return mallctl("opt.cache_oblivious", &varies, &size, NULL, 0) == 0 && varies ? 4096 : 0;
}

/* Without one each piece is larger than the one before. A request for more than the limit gets what it needs, rounded up as
 * blocks are: by less than a quarter. */
static bool limit_growth(const trib_heap *heap)
{
    size_t mib[3];
    size_t length = 3;
    size_t limit = TRIB_HEAP_GROWTH_BYTES_MAX;
    if (mallctlnametomib("arena.0.retain_grow_limit", mib, &length) != 0) {
        return false;
    }
    mib[1] = heap->arena;
    return mallctlbymib(mib, length, NULL, NULL, &limit, sizeof(limit)) == 0;
}

static void heap_destroy(trib_heap *heap)
{
    if (heap == NULL) {
        return;
    }
    size_t mib[3];
    size_t length = 3;
    bool gone = false;
    if (mallctlnametomib("arena.0.destroy", mib, &length) == 0) {
        mib[1] = heap->arena;
        gone = mallctlbymib(mib, length, NULL, NULL, NULL, 0) == 0;
    }
    /* Should jemalloc keep the arena, it also keeps the address of the hooks. */
    if (gone) {
        free(heap);
    }
}

static trib_status heap_create(const trib_heap_source *source, trib_heap **heap_out)
{
    trib_heap *heap = calloc(1, sizeof(*heap));
    if (heap == NULL) {
        return TRIB_NO_MEMORY;
    }
    heap->source = *source;
    heap->large_pad = large_pad();
    /* The hooks left NULL are refusals: retain, do not decommit, do not purge. */
    heap->hooks.alloc = hook_alloc;
    heap->hooks.split = hook_split;
    heap->hooks.merge = hook_merge;
    /* jemalloc's records stay out of memory that devices may write to. */
    arena_config config = {.hooks = &heap->hooks, .metadata_use_hooks = false};
    size_t size = sizeof(heap->arena);
    if (mallctl("experimental.arenas_create_ext", &heap->arena, &size, &config, sizeof(config)) != 0) {
        free(heap);
        return TRIB_NO_MEMORY;
    }
    if (!limit_growth(heap)) {
        heap_destroy(heap);
        return TRIB_NO_MEMORY;
    }
    *heap_out = heap;
    return TRIB_OK;
}

static void *heap_alloc(trib_heap *heap, size_t size, size_t alignment)
{
    return mallocx(size, (int)MALLOCX_ARENA(heap->arena) | MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(alignment));
}

static size_t heap_usable_size(trib_heap *heap, const void *block)
{
    (void)heap;
    return sallocx(block, 0);
}

static void heap_free(trib_heap *heap, void *block)
{
    (void)heap;
    dallocx(block, MALLOCX_TCACHE_NONE);
}

static size_t heap_need(trib_heap *heap, size_t size, size_t alignment)
{
    return nallocx(size, MALLOCX_TCACHE_NONE | MALLOCX_ALIGN(alignment)) + heap->large_pad;
}

const trib_heap_ops *trib_heap_jemalloc_v2(void)
{
    static const trib_heap_ops ops = {
        .name = "jemalloc",
        .create = heap_create,
        .destroy = heap_destroy,
        .alloc = heap_alloc,
        .usable_size = heap_usable_size,
        .free = heap_free,
        .need = heap_need,
    };
    return &ops;
}
