/*
 * fuzz_trace.c - for any content of a trace file, the reader does not crash. A rejection has a reason that names the
 * file, and an accepted file can be read to its end.
 *
 * Checksums of the input are corrected first, because otherwise only checksums would be tested.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tools/trace/trace_read.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

static uint32_t u32_at(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void store_u64(uint8_t *at, uint64_t value)
{
    for (unsigned i = 0; i < 8; i++) {
        at[i] = (uint8_t)(value >> 8 * i);
    }
}

static void repair(uint8_t *data, size_t size)
{
    if (size < TRIB_TRACE_HEADER_BYTES) {
        return;
    }
    memcpy(data, TRIB_TRACE_MAGIC, 8); /* NOLINT(bugprone-not-null-terminated-result): eight bytes, no text */
    store_u64(data + 24, size);
    const uint32_t table = u32_at(data + 16), sections = u32_at(data + 20);
    if (table < TRIB_TRACE_HEADER_BYTES || table > size || sections > TRIB_TRACE_SECTIONS_MAX ||
        (size_t)sections * TRIB_TRACE_SECTION_BYTES > size - table) {
        return;
    }
    for (uint32_t i = 0; i < sections; i++) {
        uint8_t *entry = data + table + (size_t)i * TRIB_TRACE_SECTION_BYTES;
        const uint64_t bytes = u32_at(entry + 4), offset = trib_trace_load_u64(entry + 8);
        const uint64_t count = trib_trace_load_u64(entry + 16);
        if (bytes > 0 && offset <= size && count <= (size - offset) / bytes) {
            store_u64(entry + 24, trib_trace_checksum(TRIB_TRACE_CHECKSUM_SEED, data + offset, count * bytes));
        }
    }
    const uint64_t sum = trib_trace_checksum(TRIB_TRACE_CHECKSUM_SEED, data, TRIB_TRACE_HEADER_SUMMED);
    store_u64(data + TRIB_TRACE_HEADER_SUMMED,
              trib_trace_checksum(sum, data + table, (size_t)sections * TRIB_TRACE_SECTION_BYTES));
}

static void walk(const trace_file *file)
{
    uint64_t records = 0, letters = strlen(file->job) + strlen(file->place) + strlen(file->transport);
    for (uint32_t i = 0; i < file->cores_recorded; i++) {
        for (uint64_t k = 0; k < file->cores[i].count; k++) {
            const trib_trace_record *record = &file->cores[i].records[k];
            require(record->stage == TRIB_TRACE_NO_STAGE || record->stage < file->stage_count);
            records++;
        }
    }
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        const trace_tensor *tensor = &file->tensors[i];
        letters += strlen(tensor->name);
        for (uint32_t k = 0; k < tensor->partition_count; k++) {
            letters += tensor->owners[k].member;
        }
    }
    for (uint32_t i = 0; i < file->member_count; i++) {
        letters += strlen(file->members[i].name);
    }
    for (uint32_t i = 0; i < file->stage_count; i++) {
        letters += strlen(file->stages[i]);
    }
    require(records == file->record_count && letters < UINT64_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *mine = malloc(size > 0 ? size : 1);
    require(mine != NULL);
    memcpy(mine, data, size);
    repair(mine, size);
    trace_file *file = NULL;
    trib_error error = {.text = ""};
    trib_status status = trace_file_parse(mine, size, "input", &file, &error);
    if (status == TRIB_OK) {
        walk(file);
        trace_file_free(file);
    } else {
        require(file == NULL && error.status == status && strstr(error.text, "input") != NULL);
    }
    free(mine);
    return 0;
}
