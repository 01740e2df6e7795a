/* trace_read.c - see trace_read.h. */
#include "tools/trace/trace_read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/cluster/roster.h"

typedef struct section {
    const unsigned char *data; /* NULL: the section is not in the file */
    uint32_t entry_bytes;
    uint64_t count;
} section;

#define SECTION_KINDS (TRIB_TRACE_SECTION_SHARES + 1)
#define CLOCK_SAMPLES_MAX 4096u /* the time to use them grows with the square of their number */

typedef struct parser {
    trace_file *file;
    trib_error *error;
    section sections[SECTION_KINDS];
    const char *strings;
    uint64_t string_bytes;
} parser;

const char *trace_kind_name(uint8_t kind)
{
    switch (kind) {
#define KIND_NAME(name, number)                                                                                        \
    case number:                                                                                                       \
        return #name;
        TRIB_TRACE_KIND_LIST(KIND_NAME)
#undef KIND_NAME
    default:
        return NULL;
    }
}

static const char *section_name(uint32_t kind)
{
    switch (kind) {
#define SECTION_NAME(name, number, bytes)                                                                              \
    case number:                                                                                                       \
        return #name;
        TRIB_TRACE_SECTION_LIST(SECTION_NAME)
#undef SECTION_NAME
    default:
        return "?";
    }
}

/* Returns the bytes of an entry that this reader needs; 0: the section is unknown. */
static uint32_t section_bytes(uint32_t kind)
{
    switch (kind) {
#define SECTION_BYTES(name, number, bytes)                                                                             \
    case number:                                                                                                       \
        return bytes;
        TRIB_TRACE_SECTION_LIST(SECTION_BYTES) /* NOLINT(bugprone-branch-clone): sections may be of one size */
#undef SECTION_BYTES
    default:
        return 0;
    }
}

static trib_status reject_file(const parser *self, const char *what)
{
    return trib_error_set(self->error, TRIB_INVALID, "%s: %s", self->file->path, what);
}

static uint32_t u32_at(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* ---- Header and sections ---- */

static trib_status parse_section(parser *self, const unsigned char *entry)
{
    const trace_file *file = self->file;
    const uint32_t kind = u32_at(entry), entry_bytes = u32_at(entry + 4);
    const uint64_t offset = trib_trace_load_u64(entry + 8), count = trib_trace_load_u64(entry + 16);
    const uint32_t needed = section_bytes(kind);
    if (needed == 0) {
        return TRIB_OK; /* a section of a later version */
    }
    char text[160];
    section *mine = &self->sections[kind];
    if (mine->data != NULL) {
        snprintf(text, sizeof text, "it has two sections %s", section_name(kind));
        return reject_file(self, text);
    }
    if (entry_bytes < needed || offset % 8 != 0 || offset > file->size || count > (file->size - offset) / entry_bytes) {
        snprintf(text, sizeof text, "section %s: %llu entries of %u bytes at %llu do not fit a file of %zu bytes",
                 section_name(kind), (unsigned long long)count, entry_bytes, (unsigned long long)offset, file->size);
        return reject_file(self, text);
    }
    if (trib_trace_checksum(TRIB_TRACE_CHECKSUM_SEED, file->data + offset, count * entry_bytes) !=
        trib_trace_load_u64(entry + 24)) {
        snprintf(text, sizeof text, "section %s is damaged: its checksum is wrong", section_name(kind));
        return reject_file(self, text);
    }
    *mine = (section){.data = file->data + offset, .entry_bytes = entry_bytes, .count = count};
    return TRIB_OK;
}

static trib_status parse_header(parser *self)
{
    const trace_file *file = self->file;
    const unsigned char *header = file->data;
    char text[160];
    if (file->size < TRIB_TRACE_HEADER_BYTES || memcmp(header, TRIB_TRACE_MAGIC, 8) != 0) {
        return reject_file(self, "it is not a trace of Tributary");
    }
    if (u32_at(header + 8) != TRIB_TRACE_MAJOR) {
        snprintf(text, sizeof text, "version %u.%u of the format; this program reads %u.*", u32_at(header + 8),
                 u32_at(header + 12), TRIB_TRACE_MAJOR);
        return reject_file(self, text);
    }
    if (trib_trace_load_u64(header + 24) != file->size) {
        snprintf(text, sizeof text, "it has %zu bytes of %llu: it was cut off, or something was added", file->size,
                 (unsigned long long)trib_trace_load_u64(header + 24));
        return reject_file(self, text);
    }
    const uint32_t table = u32_at(header + 16), sections = u32_at(header + 20);
    if (table < TRIB_TRACE_HEADER_BYTES || table > file->size || sections > TRIB_TRACE_SECTIONS_MAX ||
        (uint64_t)sections * TRIB_TRACE_SECTION_BYTES > file->size - table) {
        return reject_file(self, "its table of sections does not fit");
    }
    const uint64_t sum = trib_trace_checksum(TRIB_TRACE_CHECKSUM_SEED, header, TRIB_TRACE_HEADER_SUMMED);
    if (trib_trace_checksum(sum, header + table, (size_t)sections * TRIB_TRACE_SECTION_BYTES) !=
        trib_trace_load_u64(header + TRIB_TRACE_HEADER_SUMMED)) {
        return reject_file(self, "its header is damaged: the checksum is wrong");
    }
    trib_status status = TRIB_OK;
    for (uint32_t i = 0; status == TRIB_OK && i < sections; i++) {
        status = parse_section(self, header + table + (size_t)i * TRIB_TRACE_SECTION_BYTES);
    }
    return status;
}

/* Allocates room for the entries of a section, at least for one. NULL: out of memory. */
static void *entries_of(const section *from, size_t size)
{
    return calloc(from->count > 0 ? from->count : 1, size);
}

static const unsigned char *entry_at(const section *from, uint64_t index)
{
    return from->data + index * from->entry_bytes;
}

/* ---- Texts ---- */

/* Returns the length of the UTF-8 character at text; 0: there is no valid one. */
static unsigned utf8_length(const unsigned char *text)
{
    const unsigned length = text[0] < 0x80 ? 1 : text[0] < 0xc2 ? 0 : text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
    if (length == 0 || text[0] > 0xf4) {
        return 0;
    }
    for (unsigned i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    const unsigned second = length > 1 ? text[1] : 0x80;
    const bool bad = (text[0] == 0xe0 && second < 0xa0) || (text[0] == 0xed && second > 0x9f) ||
                     (text[0] == 0xf0 && second < 0x90) || (text[0] == 0xf4 && second > 0x8f);
    return bad ? 0 : length;
}

/* Replaces control bytes and invalid UTF-8 by '?': texts go to terminals and into JSON. */
static trib_status parse_strings(parser *self)
{
    const section *from = &self->sections[TRIB_TRACE_SECTION_STRINGS];
    if (from->data == NULL || from->count == 0 || from->entry_bytes != 1 || from->data[0] != '\0' ||
        from->data[from->count - 1] != '\0') {
        return reject_file(self, "its strings are missing or not terminated");
    }
    unsigned char *text = self->file->data + (from->data - self->file->data);
    for (uint64_t i = 0; i < from->count;) {
        unsigned length = utf8_length(text + i);
        if (length == 0 || (text[i] < 0x20 && text[i] != '\0') || text[i] == 0x7f) {
            text[i] = '?';
            length = 1;
        }
        i += length;
    }
    self->strings = (const char *)from->data;
    self->string_bytes = from->count;
    return TRIB_OK;
}

static const char *string_at(const parser *self, uint32_t offset)
{
    return offset < self->string_bytes ? self->strings + offset : "?";
}

/* ---- What is in it ---- */

static trib_status parse_job(parser *self)
{
    const section *from = &self->sections[TRIB_TRACE_SECTION_JOB];
    if (from->data == NULL || from->count != 1) {
        return reject_file(self, "it does not name its job");
    }
    trib_reader reader = {.data = from->data, .left = from->entry_bytes};
    trace_file *file = self->file;
    file->member = trib_get_u32(&reader);
    file->roles = trib_get_u32(&reader);
    file->worker_count = trib_get_u32(&reader);
    file->server_count = trib_get_u32(&reader);
    file->reference = (trib_get_u32(&reader) & TRIB_TRACE_JOB_REFERENCE) != 0;
    file->core_count = trib_get_u32(&reader);
    file->partition_bytes = trib_get_u32(&reader);
    file->chunk_bytes = trib_get_u32(&reader);
    file->push_credit = trib_get_u32(&reader);
    file->pull_credit = trib_get_u32(&reader);
    file->sum_order = trib_get_u32(&reader) == TRIB_ORDER_ARRIVAL ? TRIB_ORDER_ARRIVAL : TRIB_ORDER_RANK;
    file->epoch = trib_get_u32(&reader);
    file->bandwidth = trib_get_u64(&reader);
    file->t_opt_factor = (double)trib_get_u64(&reader) / 1e9;
    file->began_ns = (int64_t)trib_get_u64(&reader);
    file->written_ns = (int64_t)trib_get_u64(&reader);
    file->job = string_at(self, trib_get_u32(&reader));
    file->place = string_at(self, trib_get_u32(&reader));
    file->transport = string_at(self, trib_get_u32(&reader));
    file->version = string_at(self, trib_get_u32(&reader));
    file->status = (trib_status)trib_get_u32(&reader);
    file->cpu_count = trib_get_u32(&reader);
    file->local_size = trib_get_u32(&reader); /* 0 in version 1.0 */
    if (file->worker_count == 0 || file->worker_count > TRIB_MEMBERS_MAX || file->server_count > TRIB_MEMBERS_MAX ||
        file->chunk_bytes == 0 || file->chunk_bytes > TRIB_PAYLOAD_MAX || file->partition_bytes < file->chunk_bytes ||
        (file->member != TRIB_NO_MEMBER && file->member >= TRIB_MEMBERS_MAX) ||
        (file->local_size > 0 && file->worker_count % file->local_size != 0)) {
        return reject_file(self, "its description of the job is invalid");
    }
    return TRIB_OK;
}

static trib_status parse_members(parser *self)
{
    const section *from = &self->sections[TRIB_TRACE_SECTION_MEMBERS];
    trace_file *file = self->file;
    if (from->count > TRIB_MEMBERS_MAX) {
        return reject_file(self, "it has too many members");
    }
    file->members = entries_of(from, sizeof *file->members);
    const section *names = &self->sections[TRIB_TRACE_SECTION_STAGES];
    file->stage_count = (uint32_t)(names->count < TRIB_TRACE_NO_STAGE ? names->count : TRIB_TRACE_NO_STAGE);
    file->stages = entries_of(names, sizeof *file->stages);
    const section *choices = &self->sections[TRIB_TRACE_SECTION_CHOICES];
    file->choices = entries_of(choices, sizeof *file->choices);
    if (file->members == NULL || file->stages == NULL || file->choices == NULL) {
        return trib_error_set(self->error, TRIB_NO_MEMORY, "out of memory for %s", file->path);
    }
    file->member_count = (uint32_t)from->count;
    file->machines_told = from->entry_bytes >= TRIB_TRACE_MEMBER_BYTES;
    for (uint32_t i = 0; i < file->member_count; i++) {
        trib_reader reader = {.data = entry_at(from, i), .left = from->entry_bytes};
        file->members[i].roles = trib_get_u32(&reader);
        file->members[i].sums = trib_get_u32(&reader) != 0;
        file->members[i].reactors = trib_get_u32(&reader);
        file->members[i].name = string_at(self, trib_get_u32(&reader));
        file->members[i].bandwidth = trib_get_u64(&reader);
        file->members[i].machine = file->machines_told ? trib_get_u32(&reader) : i;
        if (file->members[i].machine > i ||
            file->members[file->members[i].machine].machine != file->members[i].machine) {
            return reject_file(self, "the machines of its members are invalid");
        }
    }
    for (uint32_t i = 0; i < file->stage_count; i++) {
        file->stages[i] = string_at(self, u32_at(entry_at(names, i)));
    }
    while (file->choice_count < choices->count) {
        file->choices[file->choice_count] = string_at(self, u32_at(entry_at(choices, file->choice_count)));
        file->choice_count++;
    }
    return TRIB_OK;
}

static trib_status parse_tensor(parser *self, trace_tensor *tensor, trib_reader *reader)
{
    const trace_file *file = self->file;
    tensor->name = string_at(self, trib_get_u32(reader));
    tensor->id = trib_get_u32(reader);
    tensor->dtype = (trib_dtype)trib_get_u32(reader);
    const bool placed = (trib_get_u32(reader) & TRIB_TRACE_TENSOR_PLACED) != 0;
    tensor->priority = (int32_t)trib_get_u32(reader);
    tensor->partition_bytes = trib_get_u32(reader);
    tensor->bytes = trib_get_u64(reader);
    tensor->partition_count = trib_get_u32(reader);
    const uint32_t first = trib_get_u32(reader);
    if (!placed) {
        tensor->id = UINT32_MAX;
        tensor->partition_count = 0;
        return TRIB_OK;
    }
    if (tensor->id >= TRACE_TENSOR_IDS_MAX || first > file->owner_count ||
        tensor->partition_count > file->owner_count - first || tensor->bytes > (uint64_t)TRACE_TIME_MAX) {
        return reject_file(self, "it has an invalid tensor");
    }
    tensor->owners = file->owners + first;
    tensor->layout = (trib_layout)trib_get_u32(reader);
    return trace_shares_parse(file, tensor, trib_get_u32(reader))
               ? TRIB_OK
               : reject_file(self, "it has a tensor with invalid slices");
}

static trib_status parse_tensors(parser *self)
{
    const section *from = &self->sections[TRIB_TRACE_SECTION_TENSORS];
    const section *owners = &self->sections[TRIB_TRACE_SECTION_OWNERS];
    const section *shares = &self->sections[TRIB_TRACE_SECTION_SHARES];
    trace_file *file = self->file;
    if (from->count > TRACE_TENSOR_IDS_MAX || owners->count > UINT32_MAX || shares->count > UINT32_MAX) {
        return reject_file(self, "it has too many tensors");
    }
    file->tensors = entries_of(from, sizeof *file->tensors);
    file->owners = entries_of(owners, sizeof *file->owners);
    file->shares = entries_of(shares, sizeof *file->shares);
    if (file->tensors == NULL || file->owners == NULL || file->shares == NULL) {
        return trib_error_set(self->error, TRIB_NO_MEMORY, "out of memory for %s", file->path);
    }
    for (; file->owner_count < owners->count; file->owner_count++) {
        const uint32_t both = u32_at(entry_at(owners, file->owner_count));
        file->owners[file->owner_count] = (trib_place_owner){(uint16_t)both, (uint16_t)(both >> 16)};
    }
    trace_shares_take(file, shares->data, shares->entry_bytes, (uint32_t)shares->count);
    trib_status status = TRIB_OK;
    for (; status == TRIB_OK && file->tensor_count < from->count; file->tensor_count++) {
        trib_reader reader = {.data = entry_at(from, file->tensor_count), .left = from->entry_bytes};
        status = parse_tensor(self, &file->tensors[file->tensor_count], &reader);
    }
    return status;
}

static bool is_time(int64_t ns)
{
    return ns >= -TRACE_TIME_MAX && ns <= TRACE_TIME_MAX;
}

static trib_status parse_clock(parser *self)
{
    const section *from = &self->sections[TRIB_TRACE_SECTION_CLOCK];
    trace_file *file = self->file;
    if (from->count > CLOCK_SAMPLES_MAX) {
        return reject_file(self, "it has too many samples of the clock");
    }
    file->samples = entries_of(from, sizeof *file->samples);
    if (file->samples == NULL) {
        return trib_error_set(self->error, TRIB_NO_MEMORY, "out of memory for %s", file->path);
    }
    file->sample_count = (uint32_t)from->count;
    for (uint32_t i = 0; i < file->sample_count; i++) {
        trib_reader reader = {.data = entry_at(from, i), .left = from->entry_bytes};
        trib_clock_sample *sample = &file->samples[i];
        sample->at_ns = (int64_t)trib_get_u64(&reader);
        sample->offset_ns = (int64_t)trib_get_u64(&reader);
        sample->rtt_ns = trib_get_u64(&reader);
        if (!is_time(sample->at_ns) || !is_time(sample->offset_ns) || sample->rtt_ns > (uint64_t)TRACE_TIME_MAX) {
            return reject_file(self, "a sample of its clock is invalid");
        }
    }
    return TRIB_OK;
}

static trib_status parse_records(parser *self)
{
    const section *from = &self->sections[TRIB_TRACE_SECTION_RECORDS];
    const section *cores = &self->sections[TRIB_TRACE_SECTION_CORES];
    trace_file *file = self->file;
    if (cores->count > UINT8_MAX) {
        return reject_file(self, "it has too many cores");
    }
    file->cores = entries_of(cores, sizeof *file->cores);
    file->records = entries_of(from, sizeof *file->records);
    if (file->cores == NULL || file->records == NULL) {
        return trib_error_set(self->error, TRIB_NO_MEMORY, "out of memory for %s", file->path);
    }
    file->record_count = from->count;
    for (uint64_t i = 0; i < from->count; i++) {
        trib_trace_record *record = &file->records[i];
        memcpy(record, entry_at(from, i), sizeof *record);
        if (!is_time(record->at_ns)) {
            return reject_file(self, "the time of a record is invalid");
        }
        record->stage = record->stage < file->stage_count ? record->stage : TRIB_TRACE_NO_STAGE;
    }
    file->cores_recorded = (uint32_t)cores->count;
    uint64_t begin = 0;
    for (uint32_t i = 0; i < file->cores_recorded; i++) {
        trib_reader reader = {.data = entry_at(cores, i), .left = cores->entry_bytes};
        trace_core *core = &file->cores[i];
        core->core = trib_get_u32(&reader) & UINT8_MAX;
        (void)trib_get_u32(&reader);
        core->count = trib_get_u64(&reader);
        core->lost = trib_get_u64(&reader);
        core->records = file->records + begin;
        if (core->count > file->record_count - begin) {
            return reject_file(self, "its cores have more records than there are");
        }
        begin += core->count;
    }
    return begin == file->record_count ? TRIB_OK : reject_file(self, "there are records of no core");
}

/* ---- The whole ---- */

static trib_status parse_all(trace_file *file, trib_error *error)
{
    parser self = {.file = file, .error = error};
    trib_status (*const parts[])(parser *) = {parse_header,  parse_strings, parse_job,    parse_members,
                                              parse_tensors, parse_clock,   parse_records};
    trib_status status = TRIB_OK;
    for (size_t i = 0; status == TRIB_OK && i < sizeof parts / sizeof parts[0]; i++) {
        status = parts[i](&self);
    }
    return status;
}

/* Creates an empty trace_file with room for that many bytes. NULL: out of memory. */
static trace_file *file_create(const char *path, size_t size)
{
    trace_file *file = calloc(1, sizeof *file);
    if (file == NULL) {
        return NULL;
    }
    file->path = strdup(path);
    file->size = size;
    file->data = malloc(size + 8); /* utf8_length may read past the last character of a text */
    if (file->path == NULL || file->data == NULL) {
        trace_file_free(file);
        return NULL;
    }
    memset(file->data + size, 0, 8);
    return file;
}

trib_status trace_file_parse(const void *data, size_t size, const char *name, trace_file **file_out, trib_error *error)
{
    trace_file *file = file_create(name, size);
    if (file == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for %s", name);
    }
    memcpy(file->data, data, size);
    trib_status status = parse_all(file, error);
    if (status != TRIB_OK) {
        trace_file_free(file);
        return status;
    }
    *file_out = file;
    return TRIB_OK;
}

trib_status trace_file_load(const char *path, trace_file **file_out, trib_error *error)
{
    size_t size = 0;
    FILE *from = NULL;
    trib_status status = trace_file_open(path, &from, &size, error);
    if (status != TRIB_OK) {
        return status;
    }
    trace_file *file = file_create(path, size);
    status = file != NULL ? TRIB_OK : trib_error_set(error, TRIB_NO_MEMORY, "out of memory for %s", path);
    if (status == TRIB_OK && fread(file->data, 1, file->size, from) != file->size) {
        status = trib_error_set(error, TRIB_SYSTEM, "%s: %s", path, ferror(from) ? strerror(errno) : "it has shrunk");
    }
    fclose(from);
    if (status == TRIB_OK) {
        status = parse_all(file, error);
    }
    if (status != TRIB_OK) {
        trace_file_free(file);
        return status;
    }
    *file_out = file;
    return TRIB_OK;
}

void trace_file_free(trace_file *file)
{
    if (file != NULL) {
        free(file->path);
        free(file->data);
        free(file->members);
        free(file->stages);
        free(file->choices);
        free(file->tensors);
        free(file->owners);
        free(file->shares);
        free(file->samples);
        free(file->cores);
        free(file->records);
        free(file);
    }
}
