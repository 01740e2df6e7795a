/*
 * trace.c - `tributary trace`: the traces of a job's processes, put on one clock, checked, summed up, and turned into
 * what other programs show.
 *
 * Looks inside the library: the format of traces is engine/trace/trace_format.h.
 */
#include <errno.h>
#include <getopt.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/commands.h"
#include "tools/json_out.h"
#include "tools/trace_out.h"

typedef struct trace_options {
    const char *chrome, *svg;
    bool json, quiet;
} trace_options;

static void usage(FILE *out)
{
    fprintf(out, "usage: tributary trace [options] FILE...     the trace files of a job's processes, together\n"
                 "  --chrome OUT.json   for Perfetto (https://ui.perfetto.dev) and chrome://tracing\n"
                 "  --svg OUT.svg       a picture of the time line\n"
                 "  --json              what is printed, as one JSON object\n"
                 "  --quiet             prints nothing but errors\n"
                 "TRIB_TRACE=FILE makes a process write one; docs/trace.md.\n");
}

static int parse(trace_options *self, int argc, char **argv)
{
    static const struct option options[] = {
        {"chrome", required_argument, NULL, 'c'}, {"svg", required_argument, NULL, 'v'},
        {"json", no_argument, NULL, 'j'},         {"quiet", no_argument, NULL, 'q'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (option) {
        case 'c':
            self->chrome = optarg;
            break;
        case 'v':
            self->svg = optarg;
            break;
        case 'j':
            self->json = true;
            break;
        case 'q':
            self->quiet = true;
            break;
        case 'h':
            usage(stdout);
            return 0;
        default:
            usage(stderr);
            return 2;
        }
    }
    if (optind == argc) {
        fprintf(stderr, "tributary trace: which files?\n\n");
        usage(stderr);
        return 2;
    }
    return -1;
}

/* "-" is standard output. */
static bool write_file(const char *path, const trace_run *run, const trace_stats *stats, bool picture)
{
    trib_error error = {.status = TRIB_OK};
    FILE *out = strcmp(path, "-") == 0 ? stdout : trace_output_open(path, &error);
    if (out == NULL) {
        fprintf(stderr, "tributary trace: %s\n", error.text);
        return false;
    }
    errno = 0;
    const bool enough = picture ? trace_write_svg(run, stats, out) : trace_write_chrome(run, out);
    const char *why = enough ? NULL : "out of memory";
    bool fine = enough && ferror(out) == 0;
    fine = (out == stdout ? fflush(out) : fclose(out)) == 0 && fine;
    if (!fine) {
        why = why != NULL ? why : strerror(errno != 0 ? errno : EIO);
        struct stat what;
        const bool goes = out != stdout && lstat(path, &what) == 0 && S_ISREG(what.st_mode) && unlink(path) == 0;
        fprintf(stderr, "tributary trace: cannot write %s: %s%s\n", path, why,
                goes ? " (what was written of it is removed)" : ""); /* a part would pass for the whole */
    }
    return fine;
}

int trace_command(int argc, char **argv)
{
    trace_options self = {.chrome = NULL};
    int status = parse(&self, argc, argv);
    if (status >= 0) {
        return status;
    }
    trace_run *run = NULL;
    trib_error error = {.status = TRIB_OK};
    if (trace_run_load(argv + optind, (uint32_t)(argc - optind), &run, &error) != TRIB_OK) {
        fprintf(stderr, "tributary trace: %s\n", error.text);
        return 1;
    }
    trace_stats stats;
    if (!trace_stats_make(run, &stats)) {
        fprintf(stderr, "tributary trace: out of memory\n");
        trace_run_free(run);
        return 1;
    }
    bool fine = self.chrome == NULL || write_file(self.chrome, run, &stats, false);
    fine = (self.svg == NULL || write_file(self.svg, run, &stats, true)) && fine;
    if (self.json) {
        fine = json_out("trace", trace_make_json(run, &stats), 0) && fine;
    } else if (!self.quiet) {
        trace_print_text(run, &stats, stdout);
    }
    trace_stats_free(&stats);
    trace_run_free(run);
    return fine ? 0 : 1;
}
