/*
 * standalone_main.c - runs a fuzz target over files, for builds without a fuzzing engine: every stored input is a
 * test.
 *
 *     PROGRAM [--mutate SECONDS SEED CRASH] FILE...
 *
 * Arguments are files and folders; a folder stands for its files, in the order of their names. Every input lies in
 * memory of exactly its size, so that the address sanitizer sees a read past its end. A run without inputs fails,
 * because it would test nothing. With --mutate the files are only the material of mutants, and a mutant that fails
 * is written to CRASH.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/standalone_mutate.h"

/* Runs the file, or adds it to the corpus if there is one. Returns how many inputs there were; -1 if one could not
 * be read. */
static int run_file(const char *path, size_t size, corpus *into)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(size > 0 ? size : 1);
    int ran = -1;
    if (file == NULL || data == NULL || fread(data, 1, size, file) != size) {
        perror(path);
    } else if (into != NULL) {
        ran = corpus_add(into, data, size) ? 1 : -1;
    } else {
        /* Printed before the run, so that the last line names an input that crashed. */
        printf("%s\n", path);
        (void)fflush(stdout);
        (void)LLVMFuzzerTestOneInput(data, size);
        ran = 1;
    }
    free(data);
    if (file != NULL) {
        (void)fclose(file);
    }
    return ran;
}

static int run_path(const char *path, corpus *into);

static int run_folder(const char *path, corpus *into)
{
    struct dirent **entries = NULL;
    int count = scandir(path, &entries, NULL, alphasort);
    if (count < 0) {
        perror(path);
        return -1;
    }
    int ran = 0;
    for (int i = 0; i < count; i++) {
        char inner[4096];
        int length = snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
        if (ran >= 0 && entries[i]->d_name[0] != '.') {
            int more = length < (int)sizeof inner ? run_path(inner, into) : -1;
            ran = more < 0 ? -1 : ran + more;
        }
        free(entries[i]);
    }
    free(entries);
    return ran;
}

static int run_path(const char *path, corpus *into)
{
    struct stat about;
    if (stat(path, &about) != 0) {
        perror(path);
        return -1;
    }
    return S_ISDIR(about.st_mode) ? run_folder(path, into) : run_file(path, (size_t)about.st_size, into);
}

int main(int argc, char **argv)
{
    const bool mutate = argc > 4 && strcmp(argv[1], "--mutate") == 0;
    corpus inputs = {.count = 0};
    int ran = 0;
    for (int i = mutate ? 5 : 1; i < argc; i++) {
        int more = run_path(argv[i], mutate ? &inputs : NULL);
        if (more < 0) {
            corpus_free(&inputs);
            return 1;
        }
        ran += more;
    }
    printf("%d inputs\n", ran);
    bool held = ran > 0;
    if (mutate) {
        held = corpus_mutate(&inputs, (unsigned)strtoul(argv[2], NULL, 10), strtoull(argv[3], NULL, 10), argv[4]);
    }
    corpus_free(&inputs);
    return held ? 0 : 1;
}
