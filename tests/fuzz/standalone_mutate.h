/* standalone_mutate.h - makes inputs from those of the corpus, for builds without a fuzzing engine. */
#ifndef TRIB_TESTS_FUZZ_STANDALONE_MUTATE_H
#define TRIB_TESTS_FUZZ_STANDALONE_MUTATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MUTANT_BYTES_MAX 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct corpus {
    struct corpus_input {
        uint8_t *data;
        size_t size;
    } * inputs;
    size_t count, capacity;
} corpus;

/* Copies the data. Returns false when out of memory. */
bool corpus_add(corpus *self, const uint8_t *data, size_t size);
void corpus_free(corpus *self);

/* Runs mutants for that long in a process of its own. If the process dies, its input is written to crash_path, the
 * path is printed, and false is returned. The same seed makes the same mutants. */
bool corpus_mutate(const corpus *self, unsigned seconds, uint64_t seed, const char *crash_path);

#endif
