/*
 * standalone_mutate.c - see standalone_mutate.h. The mutation is blind: it does not know which code an input
 * reached, so it finds less than libFuzzer does. It is for machines that have no clang.
 */
#include "tests/fuzz/standalone_mutate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Memory that the child shares with the parent that waits for it: the input that is running. */
typedef struct mutant {
    size_t size;
    uint64_t number;
    uint8_t data[MUTANT_BYTES_MAX];
} mutant;

bool corpus_add(corpus *self, const uint8_t *data, size_t size)
{
    if (self->count == self->capacity) {
        const size_t capacity = self->capacity == 0 ? 64 : self->capacity * 2;
        struct corpus_input *inputs = realloc(self->inputs, capacity * sizeof *inputs);
        if (inputs == NULL) {
            return false;
        }
        self->inputs = inputs;
        self->capacity = capacity;
    }
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL) {
        return false;
    }
    memcpy(copy, data, size);
    self->inputs[self->count++] = (struct corpus_input){.data = copy, .size = size};
    return true;
}

void corpus_free(corpus *self)
{
    for (size_t i = 0; i < self->count; i++) {
        free(self->inputs[i].data);
    }
    free(self->inputs);
    *self = (corpus){.count = 0};
}

/* ---- Mutants ---- */

static uint64_t draw(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static size_t below(uint64_t *state, size_t limit)
{
    return limit == 0 ? 0 : draw(state) % limit;
}

static void insert(mutant *self, size_t at, const uint8_t *bytes, size_t size)
{
    size = size <= MUTANT_BYTES_MAX - self->size ? size : MUTANT_BYTES_MAX - self->size;
    memmove(self->data + at + size, self->data + at, self->size - at);
    memcpy(self->data + at, bytes, size);
    self->size += size;
}

static void cut(mutant *self, size_t at, size_t size)
{
    memmove(self->data + at, self->data + at + size, self->size - at - size);
    self->size -= size;
}

/* Puts a number at the edge of what a field of 1, 2, 4 or 8 bytes holds. */
static void put_edge(mutant *self, uint64_t *state)
{
    static const uint64_t edges[] = {0,      1,         0x7f,       0x80,      0xff,      0x7fff,
                                     0xffff, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
    const uint64_t edge = edges[below(state, sizeof edges / sizeof edges[0])] + below(state, 3) - 1;
    const size_t width = (size_t)1 << below(state, 4);
    if (self->size >= width) {
        memcpy(self->data + below(state, self->size - width + 1), &edge, width);
    }
}

static void change(mutant *self, const corpus *from, uint64_t *state)
{
    const size_t at = below(state, self->size);
    const size_t rest = self->size - at;
    const struct corpus_input *other = &from->inputs[below(state, from->count)];
    uint8_t random[8];
    const uint64_t bits = draw(state);
    memcpy(random, &bits, sizeof random);
    switch (below(state, 7)) {
    case 0:
        if (rest > 0) {
            self->data[at] ^= (uint8_t)(1u << below(state, 8));
        }
        break;
    case 1:
        if (rest > 0) {
            self->data[at] = random[0];
        }
        break;
    case 2:
        put_edge(self, state);
        break;
    case 3:
        insert(self, at, random, 1 + below(state, sizeof random));
        break;
    case 4:
        cut(self, at, below(state, rest + 1));
        break;
    case 5: /* a piece of another input */
        if (other->size > 0) {
            const size_t first = below(state, other->size);
            insert(self, at, other->data + first, 1 + below(state, other->size - first));
        }
        break;
    default: /* a piece of the same input */
        if (rest > 0) {
            uint8_t piece[64];
            const size_t size = 1 + below(state, rest < sizeof piece ? rest : sizeof piece);
            memcpy(piece, self->data + at, size);
            insert(self, below(state, self->size + 1), piece, size);
        }
    }
}

static void make(mutant *self, const corpus *from, uint64_t seed)
{
    uint64_t state = seed;
    const struct corpus_input *base = &from->inputs[below(&state, from->count)];
    self->size = base->size < MUTANT_BYTES_MAX ? base->size : MUTANT_BYTES_MAX;
    memcpy(self->data, base->data, self->size);
    for (size_t changes = 1 + below(&state, 8); changes > 0; changes--) {
        change(self, from, &state);
    }
}

/* ---- Running them ---- */

static int64_t seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

_Noreturn static void run_mutants(const corpus *self, mutant *shared, unsigned seconds, uint64_t seed)
{
    const int64_t end = seconds_now() + seconds;
    while (seconds_now() < end) {
        make(shared, self, seed + shared->number);
        /* Memory of exactly its size, so that the address sanitizer sees a read past its end. */
        uint8_t *data = malloc(shared->size > 0 ? shared->size : 1);
        if (data == NULL) {
            break;
        }
        memcpy(data, shared->data, shared->size);
        (void)LLVMFuzzerTestOneInput(data, shared->size);
        free(data);
        shared->number++;
    }
    exit(0);
}

static void write_crash(const mutant *shared, const char *path)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(shared->data, 1, shared->size, file) != shared->size) {
        perror(path);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

bool corpus_mutate(const corpus *self, unsigned seconds, uint64_t seed, const char *crash_path)
{
    mutant *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || self->count == 0) {
        (void)fprintf(stderr, "nothing to make mutants of\n");
        return false;
    }
    (void)fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        run_mutants(self, shared, seconds, seed);
    }
    int status = -1;
    const bool held = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("%llu mutants\n", (unsigned long long)shared->number);
    if (!held) {
        write_crash(shared, crash_path);
        printf("mutant %llu of seed %llu fails: %s\n", (unsigned long long)shared->number, (unsigned long long)seed,
               crash_path);
    }
    munmap(shared, sizeof *shared);
    return held;
}
