/*
 * trace.c - `tributary trace`: puts the traces of a job's processes on one clock, checks them, sums them up, and
 * converts them for other programs.
 *
 * Looks inside the library: the format of traces is engine/trace/trace_format.h.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/cli/commands.h"
#include "tools/cli/json_out.h"
#include "tools/cli/options.h"
#include "tools/trace/trace_out.h"

typedef struct trace_options {
    const char *chrome;
    bool json, quiet;
} trace_options;

static int parse_options(trace_options *self, int argc, char **argv)
{
    const option_row rows[] = {
        {OPTION_TEXT("--chrome", &self->chrome, "OUT.json",
                     "for Perfetto (https://ui.perfetto.dev) and chrome://tracing; - is standard output")},
        {OPTION_SET("--json", &self->json, "what is printed, as one JSON object")},
        {OPTION_SET("--quiet", &self->quiet, "prints nothing but errors")},
    };
    const option_table table = {
        .command = "trace",
        .usage = "[options] FILE...     the trace files of a job's processes, together",
        .rows = rows,
        .count = sizeof rows / sizeof rows[0],
        .notes = "TRIB_TRACE=FILE makes a process write a trace; docs/trace.md.\n",
        .takes_operands = true,
    };
    const int status = options_parse(&table, argc, argv);
    if (status < 0 && optind == argc) {
        fprintf(stderr, "tributary trace: which files? (tributary trace --help)\n");
        return 2;
    }
    return status;
}

/* Writes the events for Perfetto; the path "-" is standard output. */
static bool write_chrome_file(const char *path, const trace_run *run)
{
    trib_error error = {.status = TRIB_OK};
    FILE *out = strcmp(path, "-") == 0 ? stdout : trace_output_open(path, &error);
    if (out == NULL) {
        fprintf(stderr, "tributary trace: %s\n", error.text);
        return false;
    }
    errno = 0;
    const bool enough = trace_write_chrome(run, out);
    const char *why = enough ? NULL : "out of memory";
    bool fine = enough && ferror(out) == 0;
    fine = (out == stdout ? fflush(out) : fclose(out)) == 0 && fine;
    if (!fine) {
        why = why != NULL ? why : strerror(errno != 0 ? errno : EIO);
        struct stat what;
        const bool goes = out != stdout && lstat(path, &what) == 0 && S_ISREG(what.st_mode) && unlink(path) == 0;
        fprintf(stderr, "tributary trace: cannot write %s: %s%s\n", path, why,
                goes ? " (what was written of it is removed)" : ""); /* a partial file could be taken for a whole one */
    }
    return fine;
}

int trace_command(int argc, char **argv)
{
    trace_options self = {.chrome = NULL};
    int status = parse_options(&self, argc, argv);
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
    bool fine = self.chrome == NULL || write_chrome_file(self.chrome, run);
    if (self.json) {
        fine = json_out("trace", trace_make_json(run, &stats), 0) && fine;
    } else if (!self.quiet) {
        trace_print_text(run, &stats, stdout);
    }
    trace_stats_free(&stats);
    trace_run_free(run);
    return fine ? 0 : 1;
}
