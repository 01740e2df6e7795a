/*
 * trace_file.c - writes the records of an engine into a file, with the tables that explain them (docs/trace.md).
 *
 * Sections are written one after the other behind an empty header, which is filled in at the end. The file has no name
 * until it is complete (another name, where the file system needs one), so that nobody reads an incomplete one, and a
 * process that is killed leaves none.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* O_TMPFILE */
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/base/descriptor.h"
#include "engine/cluster/machines.h"
#include "engine/trace/stage_list.h"
#include "engine/tracer/tracer.h"
#include "engine/worker/op.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are written as they are in memory");

#define SECTION_COUNT 11u
#define OTHER_NAMES 16u /* names that are tried for the incomplete file */

typedef struct trace_writer {
    trib_engine *engine;
    const trib_roster *roster; /* of the epoch that the file tells of, held; NULL: there is none yet */
    FILE *file;
    bool is_nameless; /* the file has no name yet, and goes with its descriptor */
    char path[4160];  /* its other name, if it has one */
    unsigned char table[SECTION_COUNT * TRIB_TRACE_SECTION_BYTES];
    uint32_t sections;
    uint64_t at;         /* bytes written */
    bool out_of_memory;  /* a section could not be built, so no file is made */
    int why;             /* errno of the first write that failed; 0: none has failed */
    trib_writer strings; /* the section of strings, whose data grows */
} trace_writer;

/* ---- Pieces ---- */

static void note_failure(trace_writer *self)
{
    if (self->why == 0) {
        self->why = errno != 0 ? errno : EIO;
    }
}

static void put_bytes(trace_writer *self, const void *data, size_t size)
{
    const size_t put = fwrite(data, 1, size, self->file);
    self->at += put;
    if (put < size) {
        note_failure(self);
    }
}

static void pad(trace_writer *self)
{
    static const unsigned char zeroes[8];
    put_bytes(self, zeroes, (8 - self->at % 8) % 8);
}

static void enter_section(trace_writer *self, trib_trace_section section, uint32_t entry_bytes, uint64_t offset,
                          uint64_t count, uint64_t checksum)
{
    trib_assert(self->sections < SECTION_COUNT);
    trib_writer entry = {.data = self->table + (size_t)self->sections++ * TRIB_TRACE_SECTION_BYTES,
                         .capacity = TRIB_TRACE_SECTION_BYTES};
    trib_put_u32(&entry, section);
    trib_put_u32(&entry, entry_bytes);
    trib_put_u64(&entry, offset);
    trib_put_u64(&entry, count);
    trib_put_u64(&entry, checksum);
    trib_assert(!entry.overflow); /* the rest of the entry stays zero */
}

/* Writes a section that was built in memory, and frees the memory. */
static void put_section(trace_writer *self, trib_trace_section section, uint32_t entry_bytes, trib_writer *built)
{
    if (built->data == NULL || built->overflow) {
        self->out_of_memory = true;
    } else {
        trib_assert(built->size % entry_bytes == 0);
        pad(self);
        enter_section(self, section, entry_bytes, self->at, built->size / entry_bytes,
                      trib_trace_checksum(TRIB_TRACE_CHECKSUM_SEED, built->data, built->size));
        put_bytes(self, built->data, built->size);
    }
    free(built->data);
    *built = (trib_writer){.data = NULL};
}

static trib_writer build(size_t capacity)
{
    return (trib_writer){.data = calloc(1, capacity > 0 ? capacity : 1), .capacity = capacity};
}

static bool grow(trib_writer *writer, size_t more)
{
    if (writer->size + more > writer->capacity) {
        const size_t capacity = 2 * writer->capacity + more;
        unsigned char *larger = realloc(writer->data, capacity);
        if (larger == NULL) {
            return false;
        }
        writer->data = larger;
        writer->capacity = capacity;
    }
    return true;
}

/* Returns the text's offset in the section of strings. */
static uint32_t put_string(trace_writer *self, const char *text)
{
    trib_writer *strings = &self->strings;
    const size_t length = text != NULL ? strlen(text) : 0, offset = strings->size;
    if (length == 0) {
        return 0;
    }
    if (offset > UINT32_MAX - length - 1 || !grow(strings, length + 1)) {
        self->out_of_memory = true;
        return 0;
    }
    memcpy(strings->data + offset, text, length + 1);
    strings->size += length + 1;
    trib_assert(strings->size <= strings->capacity);
    return (uint32_t)offset;
}

/* ---- Sections ---- */

static void put_records(trace_writer *self)
{
    trib_engine *engine = self->engine;
    trib_writer cores = build((size_t)engine->core_count * 24);
    uint64_t checksum = TRIB_TRACE_CHECKSUM_SEED, count = 0;
    pad(self);
    const uint64_t offset = self->at;
    for (uint32_t i = 0; i < engine->core_count && !self->out_of_memory && cores.data != NULL; i++) {
        trib_trace_ring *ring = &engine->cores[i].trace;
        trib_trace_record *records = malloc(ring->capacity * sizeof *records);
        if (records == NULL) {
            self->out_of_memory = true;
            break;
        }
        uint64_t lost = 0;
        const uint64_t there = trib_trace_ring_copy(ring, records, &lost);
        trib_assert(there <= ring->capacity);
        checksum = trib_trace_checksum(checksum, records, there * sizeof *records);
        put_bytes(self, records, there * sizeof *records);
        count += there;
        trib_put_u32(&cores, i);
        trib_put_u32(&cores, 0);
        trib_put_u64(&cores, there);
        trib_put_u64(&cores, lost);
        free(records);
    }
    enter_section(self, TRIB_TRACE_SECTION_RECORDS, TRIB_TRACE_RECORD_BYTES, offset, count, checksum);
    put_section(self, TRIB_TRACE_SECTION_CORES, 24, &cores);
}

static void put_clock(trace_writer *self)
{
    trib_engine *engine = self->engine;
    trib_writer section = build((size_t)TRIB_CLOCK_SAMPLES_MAX * 24);
    pthread_mutex_lock(&engine->mutex);
    const trib_clock *clock = &engine->tracer->clock;
    trib_assert(clock->count <= TRIB_CLOCK_SAMPLES_MAX);
    for (uint32_t i = 0; section.data != NULL && i < clock->count; i++) {
        trib_put_u64(&section, (uint64_t)clock->samples[i].at_ns);
        trib_put_u64(&section, (uint64_t)clock->samples[i].offset_ns);
        trib_put_u64(&section, clock->samples[i].rtt_ns);
    }
    pthread_mutex_unlock(&engine->mutex);
    put_section(self, TRIB_TRACE_SECTION_CLOCK, 24, &section);
}

static void put_members(trace_writer *self)
{
    const trib_roster *roster = self->roster;
    const uint32_t count = roster != NULL ? roster->member_count : 0;
    trib_writer section = build((size_t)count * TRIB_TRACE_MEMBER_BYTES);
    for (uint32_t i = 0; section.data != NULL && i < count; i++) {
        const trib_member_info *info = &roster->members[i];
        trib_put_u32(&section, info->roles);
        trib_put_u32(&section, info->sums);
        trib_put_u32(&section, info->reactors);
        trib_put_u32(&section, put_string(self, info->name));
        trib_put_u64(&section, info->bandwidth);
        trib_put_u32(&section, trib_machines_first(roster, i));
        trib_put_u32(&section, 0);
    }
    put_section(self, TRIB_TRACE_SECTION_MEMBERS, TRIB_TRACE_MEMBER_BYTES, &section);
}

static void put_stages(trace_writer *self)
{
    trib_writer section = build((size_t)TRIB_STAGE_COUNT * 4);
    for (uint32_t i = 0; section.data != NULL && i < TRIB_STAGE_COUNT; i++) {
        trib_put_u32(&section, put_string(self, trib_stage_name((trib_stage_id)i)));
    }
    put_section(self, TRIB_TRACE_SECTION_STAGES, 4, &section);
}

static void put_choices(trace_writer *self)
{
    trib_engine *engine = self->engine;
    trib_writer section = build((size_t)TRIB_TRACE_CHOICES_MAX * 4);
    pthread_mutex_lock(&engine->mutex);
    for (uint32_t i = 0; section.data != NULL && i < engine->tracer->choice_count; i++) {
        trib_put_u32(&section, put_string(self, engine->tracer->choices[i]));
    }
    pthread_mutex_unlock(&engine->mutex);
    put_section(self, TRIB_TRACE_SECTION_CHOICES, 4, &section);
}

/* Returns where the tensor's part of the section begins, counted from 1; 0: it has none, as all workers share it as a
 * whole. */
static uint32_t put_shares(trace_writer *self, const trib_tensor *tensor, trib_writer *shares)
{
    const trib_group *group = tensor->group;
    const bool has_slices = tensor->cut->layout != TRIB_WHOLE;
    const uint32_t slices = has_slices ? tensor->cut->slice_count : 0, ranks = group != NULL ? group->count : 0;
    const uint32_t first = (uint32_t)(shares->size / 8) + 1;
    if (!has_slices && group == NULL) {
        return 0;
    }
    if (!grow(shares, ((size_t)ranks + slices + 1) * 8)) {
        self->out_of_memory = true;
        return 0;
    }
    trib_put_u64(shares, ranks);
    for (uint32_t i = 0; i < ranks; i++) {
        trib_put_u64(shares, group->ranks[i]);
    }
    for (uint32_t i = 0; i < slices; i++) {
        trib_put_u64(shares, tensor->cut->slices[i].bytes / trib_dtype_size(tensor->dtype));
    }
    return first;
}

static void put_tensor(trace_writer *self, const trib_tensor *tensor, trib_writer *section, trib_writer *owners,
                       trib_writer *shares)
{
    const bool placed = atomic_load(&tensor->placed);
    const uint32_t partitions = placed ? tensor->partition_count : 0;
    trib_put_u32(section, put_string(self, tensor->name));
    trib_put_u32(section, placed ? tensor->id : UINT32_MAX);
    trib_put_u32(section, (uint32_t)tensor->dtype);
    trib_put_u32(section, placed ? TRIB_TRACE_TENSOR_PLACED : 0);
    trib_put_u32(section, (uint32_t)tensor->priority);
    trib_put_u32(section, placed ? tensor->partition_bytes : 0);
    trib_put_u64(section, placed ? tensor->cut->bytes : tensor->bytes);
    trib_put_u32(section, partitions);
    trib_put_u32(section, (uint32_t)(owners->size / 4));
    trib_put_u32(section, placed ? (uint32_t)tensor->cut->layout : 0);
    trib_put_u32(section, placed ? put_shares(self, tensor, shares) : 0);
    trib_assert(!section->overflow); /* the section has room for all tensors */
    if (!grow(owners, (size_t)partitions * 4)) {
        self->out_of_memory = true;
        return;
    }
    for (uint32_t i = 0; i < partitions; i++) {
        trib_put_u16(owners, tensor->owners[i].member);
        trib_put_u16(owners, tensor->owners[i].reactor);
    }
}

static void put_tensors(trace_writer *self)
{
    trib_engine *engine = self->engine;
    trib_writer owners = build(4096), shares = build(512);
    pthread_mutex_lock(&engine->mutex);
    const uint32_t count = engine->tensor_count;
    pthread_mutex_unlock(&engine->mutex);
    trib_writer section = build((size_t)count * 48);
    for (uint32_t tag = 0; section.data != NULL && owners.data != NULL && shares.data != NULL && tag < count; tag++) {
        pthread_mutex_lock(&engine->mutex);
        /* Records name a tensor by its tag, so a tag that is free has its entry, too. */
        /* the mutex: it may be moving, or ending */
        put_tensor(self, engine->tensors[tag], &section, &owners, &shares);
        pthread_mutex_unlock(&engine->mutex);
    }
    put_section(self, TRIB_TRACE_SECTION_TENSORS, 48, &section);
    put_section(self, TRIB_TRACE_SECTION_OWNERS, 4, &owners);
    put_section(self, TRIB_TRACE_SECTION_SHARES, 8, &shares);
}

static void put_job(trace_writer *self)
{
    trib_engine *engine = self->engine;
    const trib_config *config = &engine->config;
    const trib_roster *roster = self->roster;
    pthread_mutex_lock(&engine->mutex);
    double factor = roster != NULL ? roster->t_opt_factor : 0;
    const trib_status fate = atomic_load(&engine->phase) == TRIB_PHASE_ENDED ? engine->fate.status : TRIB_OK;
    trib_writer section = build(128);
    if (section.data != NULL) {
        trib_put_u32(&section, engine->member_id);
        trib_put_u32(&section, config->roles);
        trib_put_u32(&section, (uint32_t)config->worker_count);
        trib_put_u32(&section, (uint32_t)config->server_count);
        trib_put_u32(&section, atomic_load(&engine->formation.coordinates) ? TRIB_TRACE_JOB_REFERENCE : 0);
        trib_put_u32(&section, engine->core_count);
        trib_put_u32(&section, roster != NULL ? roster->partition_bytes : config->partition_bytes);
        trib_put_u32(&section, roster != NULL ? roster->chunk_bytes : config->chunk_bytes);
        trib_put_u32(&section, config->push_credit_bytes);
        trib_put_u32(&section, config->pull_credit_bytes);
        trib_put_u32(&section, (uint32_t)(roster != NULL ? roster->sum_order : config->sum_order));
        trib_put_u32(&section, roster != NULL ? trib_epoch_number(roster->epoch) : 0);
        trib_put_u64(&section, config->bandwidth_bits);
        trib_put_u64(&section, factor > 0 && factor < TRIB_T_OPT_FACTOR_MAX ? (uint64_t)(factor * 1e9 + 0.5) : 0);
        trib_put_u64(&section, (uint64_t)atomic_load(&engine->tracer->began_ns));
        trib_put_u64(&section, (uint64_t)trib_now(engine->reactors[0].reactor));
        trib_put_u32(&section, put_string(self, engine->job));
        trib_put_u32(&section, put_string(self, engine->env.place));
        trib_put_u32(&section, put_string(self, engine->env.transport->name));
        trib_put_u32(&section, put_string(self, TRIB_VERSION_STRING));
        trib_put_u32(&section, (uint32_t)fate);
        trib_put_u32(&section, engine->env.cpu_count);
        trib_put_u32(&section, roster != NULL ? roster->local_size : 0);
        trib_assert(!section.overflow);
        section.size = section.capacity; /* the rest is zero */
    }
    pthread_mutex_unlock(&engine->mutex);
    put_section(self, TRIB_TRACE_SECTION_JOB, 128, &section);
}

static void put_header(trace_writer *self)
{
    trib_assert(self->sections == SECTION_COUNT);
    unsigned char header[TRIB_TRACE_HEADER_BYTES] = TRIB_TRACE_MAGIC;
    trib_writer fields = {.data = header, .size = 8, .capacity = sizeof header};
    trib_put_u32(&fields, TRIB_TRACE_MAJOR);
    trib_put_u32(&fields, TRIB_TRACE_MINOR);
    trib_put_u32(&fields, TRIB_TRACE_HEADER_BYTES);
    trib_put_u32(&fields, self->sections);
    trib_put_u64(&fields, self->at);
    uint64_t checksum = trib_trace_checksum(TRIB_TRACE_CHECKSUM_SEED, header, TRIB_TRACE_HEADER_SUMMED);
    fields.size = TRIB_TRACE_HEADER_SUMMED;
    trib_put_u64(&fields,
                 trib_trace_checksum(checksum, self->table, (size_t)self->sections * TRIB_TRACE_SECTION_BYTES));
    trib_assert(!fields.overflow && fields.size == TRIB_TRACE_HEADER_BYTES);
    /* The seek writes what is still in memory, and may fail. rewind would hide earlier failures. */
    if (fseek(self->file, 0, SEEK_SET) != 0) {
        note_failure(self);
    }
    put_bytes(self, header, sizeof header);
    put_bytes(self, self->table, sizeof self->table);
}

static void put_all(trace_writer *self)
{
    static const unsigned char empty[TRIB_TRACE_HEADER_BYTES + SECTION_COUNT * TRIB_TRACE_SECTION_BYTES];
    put_bytes(self, empty, sizeof empty);
    self->strings = build(4096);
    self->out_of_memory = self->strings.data == NULL;
    if (self->out_of_memory) {
        return;
    }
    self->strings.size = 1; /* the empty string is at offset 0 */
    pthread_mutex_lock(&self->engine->mutex);
    self->roster = trib_roster_hold(self->engine->roster);
    pthread_mutex_unlock(&self->engine->mutex);
    put_records(self);
    put_clock(self);
    put_members(self);
    put_stages(self);
    put_choices(self);
    put_tensors(self);
    put_job(self);
    trib_roster_let_go(self->roster);
    put_section(self, TRIB_TRACE_SECTION_STRINGS, 1, &self->strings);
    if (!self->out_of_memory) {
        put_header(self);
    }
}

/* ---- The file ---- */

static void other_name(trace_writer *self, const char *path, unsigned number)
{
    snprintf(self->path, sizeof self->path, "%s.%d.%u.part", path, (int)getpid(), number);
}

static void drop_file(const trace_writer *self)
{
    if (!self->is_nameless) {
        unlink(self->path);
    }
}

static void folder_of(const char *path, char folder[TRIB_TRACE_PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    snprintf(folder, TRIB_TRACE_PATH_MAX, "%.*s",
             slash == NULL   ? 1
             : slash == path ? 1
                             : (int)(slash - path),
             slash == NULL ? "." : path);
}

static trib_status open_file(trace_writer *self, const char *path, trib_error *error)
{
    char folder[TRIB_TRACE_PATH_MAX];
    folder_of(path, folder);
    int descriptor = trib_descriptor_keep(open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
    self->is_nameless = descriptor >= 0;
    for (unsigned i = 0; descriptor < 0 && i < OTHER_NAMES; i++) {
        other_name(self, path, i);
        descriptor = trib_descriptor_keep(open(self->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
        if (descriptor < 0 && errno != EEXIST) {
            break;
        }
    }
    self->file = descriptor >= 0 ? fdopen(descriptor, "wb") : NULL;
    if (self->file == NULL) {
        const int why = errno;
        if (descriptor >= 0) {
            close(descriptor);
            drop_file(self);
        }
        return trib_error_set(error, TRIB_SYSTEM, "cannot write %s: %s", path, strerror(why));
    }
    return TRIB_OK;
}

/* The whole file gets another name first, because linkat replaces no file, and rename does. */
static bool give_name(trace_writer *self, const char *path)
{
    char own[64];
    snprintf(own, sizeof own, "/proc/self/fd/%d", fileno(self->file));
    for (unsigned i = 0; self->is_nameless && i < OTHER_NAMES; i++) {
        other_name(self, path, i);
        if (linkat(AT_FDCWD, own, AT_FDCWD, self->path, AT_SYMLINK_FOLLOW) == 0) {
            self->is_nameless = false;
        } else if (errno != EEXIST) {
            break;
        }
    }
    return !self->is_nameless && rename(self->path, path) == 0;
}

trib_status trib_trace_file_check(const char *path, trib_error *error)
{
    char folder[TRIB_TRACE_PATH_MAX];
    folder_of(path, folder);
    if (access(folder, W_OK | X_OK) == 0) {
        return TRIB_OK;
    }
    return trib_error_set(error, TRIB_SYSTEM,
                          "trace (TRIB_TRACE) %.150s: nothing can be written in the folder %.100s: %s", path, folder,
                          strerror(errno));
}

trib_status trib_trace_file_write(trib_engine *engine, const char *path, trib_error *error)
{
    trace_writer *self = calloc(1, sizeof *self);
    if (self == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the trace %s", path);
    }
    self->engine = engine;
    trib_status status = open_file(self, path, error);
    if (status != TRIB_OK) {
        free(self);
        return status;
    }
    put_all(self);
    if (fflush(self->file) != 0 || (!self->out_of_memory && self->why == 0 && !give_name(self, path))) {
        note_failure(self);
    }
    if (fclose(self->file) != 0) {
        note_failure(self);
    }
    if (self->out_of_memory) {
        status = trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the trace %s", path);
    } else if (self->why != 0) {
        status = trib_error_set(error, TRIB_SYSTEM, "cannot write %s: %s", path, strerror(self->why));
    }
    if (status != TRIB_OK) {
        drop_file(self);
    }
    free(self->strings.data);
    free(self);
    return status;
}
