/*
 * standalone_main.c - runs a fuzz target over files, for builds without a fuzzing engine: every stored input is a test.
 *
 * Arguments are files and folders; a folder stands for its files, in the order of their names. Every input lies in
 * memory of exactly its size, so that the address sanitizer sees a read past its end. No input at all is a failure:
 * it would test nothing.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* How many inputs ran; -1 if one could not be read. */
static int run_file(const char *path, size_t size)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(size > 0 ? size : 1);
    int ran = -1;
    if (file != NULL && data != NULL && fread(data, 1, size, file) == size) {
        /* Said before it runs: the last line names the input that crashed. */
        printf("%s\n", path);
        (void)fflush(stdout);
        (void)LLVMFuzzerTestOneInput(data, size);
        ran = 1;
    } else {
        perror(path);
    }
    free(data);
    if (file != NULL) {
        (void)fclose(file);
    }
    return ran;
}

static int run_path(const char *path);

static int run_folder(const char *path)
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
            int more = length < (int)sizeof inner ? run_path(inner) : -1;
            ran = more < 0 ? -1 : ran + more;
        }
        free(entries[i]);
    }
    free(entries);
    return ran;
}

static int run_path(const char *path)
{
    struct stat about;
    if (stat(path, &about) != 0) {
        perror(path);
        return -1;
    }
    return S_ISDIR(about.st_mode) ? run_folder(path) : run_file(path, (size_t)about.st_size);
}

int main(int argc, char **argv)
{
    int ran = 0;
    for (int i = 1; i < argc; i++) {
        int more = run_path(argv[i]);
        if (more < 0) {
            return 1;
        }
        ran += more;
    }
    printf("%d inputs\n", ran);
    return ran > 0 ? 0 : 1;
}
