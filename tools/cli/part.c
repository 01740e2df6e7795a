/* part.c - see part.h. */
#include "tools/cli/part.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int64_t part_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

void part_check(const char *tool, trib_engine *engine, trib_status status, const trib_error *error, const char *what)
{
    if (status != TRIB_OK) {
        /* Some calls do not fill in the error. */
        const char *why = error->text[0] != '\0' ? error->text : trib_status_text(status);
        fprintf(stderr, "tributary %s: %s: %s\n", tool, what, why);
        trib_engine_destroy(engine);
        exit(1);
    }
}

static void check_memory(const char *tool, trib_engine *engine, trib_status status, size_t bytes)
{
    const trib_error error = {.text = ""};
    char what[48];
    snprintf(what, sizeof what, "memory for %zu bytes", bytes);
    part_check(tool, engine, status, &error, what);
}

void *part_alloc(const char *tool, trib_engine *engine, size_t bytes)
{
    void *memory = NULL;
    check_memory(tool, engine, trib_alloc(engine, bytes, &memory), bytes);
    return memory;
}

void *part_zalloc(const char *tool, trib_engine *engine, size_t count, size_t size)
{
    void *memory = calloc(count, size);
    check_memory(tool, engine, memory != NULL ? TRIB_OK : TRIB_NO_MEMORY, count * size);
    return memory;
}

trib_tensor *part_declare(const char *tool, trib_engine *engine, const char *name, trib_dtype dtype, uint64_t count)
{
    trib_tensor_desc desc;
    trib_tensor_desc_init(&desc, sizeof desc);
    desc.name = name;
    desc.dtype = dtype;
    desc.count = count;
    trib_tensor *tensor = NULL;
    trib_error error = {.status = TRIB_OK};
    part_check(tool, engine, trib_tensor_declare(engine, &desc, &tensor, &error), &error, name);
    return tensor;
}

void part_barrier(const char *tool, trib_engine *engine)
{
    trib_op *op = NULL;
    trib_error error = {.status = TRIB_OK};
    part_check(tool, engine, trib_barrier(engine, NULL, &op, &error), &error, "barrier");
    part_check(tool, engine, trib_op_wait(op, -1, &error), &error, "barrier");
    trib_op_release(op);
}

trib_engine *part_join(const char *tool, trib_engine_info *info_out)
{
    trib_config config;
    trib_config_init(&config, sizeof config);
    trib_error error = {.status = TRIB_OK};
    trib_engine *engine = NULL;
    part_check(tool, NULL, trib_config_from_env(&config, &error), &error, "settings");
    part_check(tool, NULL, trib_engine_create(&config, &engine, &error), &error, "engine");
    part_check(tool, engine, trib_engine_wait_ready(engine, -1, &error), &error, "join");
    *info_out = (trib_engine_info){.struct_size = sizeof *info_out};
    part_check(tool, engine, trib_engine_get_info(engine, info_out), &error, "info");
    return engine;
}
