/*
 * trace_svg.c - a picture of a job's time line: see trace_out.h.
 *
 * A row a member. On a worker's three bands: how many partitions wait for turn and credit, are being pushed, and wait
 * for their sums; on a server's: how many sums are open, and what it sends. Heights are means over a column; hovering
 * tells them. Lines mark where steps begin. Below, how busy each link is.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/plural.h"
#include "tools/trace_out.h"

#define COLUMNS 1200
#define LEFT 110
#define TOP 60
#define BAND 26
#define ROWS_MAX 64u /* members that are drawn */

enum { BAND_WAIT, BAND_PUSH, BAND_PULL, BAND_OUT, BAND_IN, BAND_COUNT };

static const struct {
    const char *name, *color;
} bands[BAND_COUNT] = {
    {"waits for turn and credit", "#e0a030"},
    {"pushed", "#3070c0"},
    {"waits for its sum", "#b03060"},
    {"bytes out", "#308050"},
    {"bytes in", "#60a0a0"},
};

typedef struct picture {
    const trace_run *run;
    FILE *out;
    double *columns; /* by member, band, column */
    int64_t width_ns;
    uint32_t rows;
} picture;

static double *band_of(const picture *self, uint32_t member, unsigned band)
{
    return self->columns + ((size_t)member * BAND_COUNT + band) * COLUMNS;
}

static void put_text(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc(*text, out);
        }
    }
}

/* One thing from begin to end: each column gets the share of it that something was there. */
static void add_time(const picture *self, uint32_t member, unsigned band, int64_t begin_ns, int64_t end_ns)
{
    if (member >= self->rows || begin_ns == TRACE_NEVER || end_ns == TRACE_NEVER || end_ns <= begin_ns) {
        return;
    }
    double *columns = band_of(self, member, band);
    for (int64_t i = begin_ns / self->width_ns; i < COLUMNS && i * self->width_ns < end_ns; i++) {
        const int64_t from_ns = i * self->width_ns > begin_ns ? i * self->width_ns : begin_ns;
        const int64_t to_ns = (i + 1) * self->width_ns < end_ns ? (i + 1) * self->width_ns : end_ns;
        columns[i] += (double)(to_ns - from_ns) / (double)self->width_ns;
    }
}

static void fill(const picture *self)
{
    const trace_run *run = self->run;
    for (uint64_t i = 0; i < run->span_count; i++) {
        const trace_span *span = &run->spans[i];
        const uint32_t member = run->processes[span->process].member;
        add_time(self, member, BAND_WAIT, span->enter_ns, span->start_ns);
        add_time(self, member, BAND_PUSH, span->start_ns, span->pushed_ns);
        add_time(self, member, BAND_PULL, span->pushed_ns, span->done_ns);
    }
    for (uint64_t i = 0; i < run->event_count; i++) {
        const trace_event *event = &run->events[i];
        const uint32_t here = run->processes[event->process].member, there = event->record.peer;
        const bool arrive = event->record.kind == TRIB_TRACE_SUM_ARRIVE,
                   sent = event->record.kind == TRIB_TRACE_SUM_SENT;
        const int64_t column = event->at_ns / self->width_ns;
        const bool is_near = !run->one_host && trace_run_machine(run, here) == trace_run_machine(run, there);
        if ((arrive || sent) && here != there && !is_near && column < COLUMNS) {
            const uint32_t from = sent ? here : there, to = sent ? there : here;
            if (from < self->rows) {
                band_of(self, from, BAND_OUT)[column] += event->record.value;
            }
            if (to < self->rows) {
                band_of(self, to, BAND_IN)[column] += event->record.value;
            }
        }
    }
}

static void draw_band(const picture *self, uint32_t member, unsigned band, double y, double highest)
{
    const double *columns = band_of(self, member, band);
    char label[48];
    trace_member_label(self->run, member, label, sizeof label);
    double most = 0;
    for (unsigned i = 0; i < COLUMNS; i++) {
        most = columns[i] > most ? columns[i] : most;
    }
    if (most <= 0 || highest <= 0) {
        return;
    }
    fprintf(self->out, "<path fill=\"%s\" d=\"M%d %.1f", bands[band].color, LEFT, y + BAND);
    for (unsigned i = 0; i < COLUMNS; i++) {
        const double top = y + BAND - (BAND - 2) * columns[i] / highest;
        if (i == 0 || columns[i] != columns[i - 1]) {
            fprintf(self->out, "L%u %.1fL%u %.1f", LEFT + i,
                    i == 0 ? y + BAND : y + BAND - (BAND - 2) * columns[i - 1] / highest, LEFT + i, top);
        }
    }
    fprintf(self->out, "L%u %.1fL%u %.1fZ\"><title>", LEFT + COLUMNS,
            y + BAND - (BAND - 2) * columns[COLUMNS - 1] / highest, LEFT + COLUMNS, y + BAND);
    put_text(self->out, label);
    if (band >= BAND_OUT) {
        fprintf(self->out, ": %s, at most %.2f Gbit/s over %.2f ms</title></path>\n", bands[band].name,
                most * 8 / (double)self->width_ns, (double)self->width_ns / 1e6);
    } else {
        fprintf(self->out, ": partitions, %s: at most %.1f at once</title></path>\n", bands[band].name, most);
    }
}

static double highest_of(const picture *self, unsigned from, unsigned to)
{
    double highest = 0;
    for (uint32_t member = 0; member < self->rows; member++) {
        for (unsigned band = from; band <= to; band++) {
            const double *columns = band_of(self, member, band);
            for (unsigned i = 0; i < COLUMNS; i++) {
                highest = columns[i] > highest ? columns[i] : highest;
            }
        }
    }
    return highest;
}

/* How high its rows are: those of a server have no partitions of their own. */
static double draw_member(const picture *self, uint32_t member, double y, const double highest[BAND_COUNT])
{
    const unsigned first = member < self->run->worker_count ? BAND_WAIT : BAND_OUT;
    char label[48];
    trace_member_label(self->run, member, label, sizeof label);
    fprintf(self->out, "<text x=\"8\" y=\"%.1f\" font-weight=\"bold\">%s</text>\n", y + 16, label);
    for (unsigned band = first; band < BAND_COUNT; band++) {
        fprintf(self->out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n", LEFT,
                LEFT + COLUMNS, y + BAND, y + BAND);
        draw_band(self, member, band, y, highest[band]);
        y += BAND;
    }
    return y + 10;
}

static void draw_scale(const picture *self, const trace_stats *stats, double bottom)
{
    double step_ns = 1;
    for (unsigned i = 0; step_ns * 12 < (double)self->width_ns * COLUMNS; i++) {
        step_ns *= i % 3 == 1 ? 2.5 : 2;
    }
    const unsigned marks = (unsigned)((double)self->width_ns * COLUMNS / step_ns);
    for (unsigned i = 0; i <= marks; i++) {
        const double at = i * step_ns;
        const double x = LEFT + at / (double)self->width_ns;
        fprintf(self->out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g ms</text>\n", x, TOP - 6, at / 1e6);
        fprintf(self->out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%.1f\" stroke=\"#eee\"/>\n", x, x, TOP,
                bottom);
    }
    const trace_steps *steps = stats->steps_count > 0 ? &stats->steps[0] : NULL;
    for (uint32_t i = 0; steps != NULL && steps->count > 0 && i <= steps->count; i++) {
        const double x = LEFT + (double)steps->begin_ns[i] / (double)self->width_ns;
        fprintf(self->out,
                "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%.1f\" stroke=\"#888\" stroke-dasharray=\"3 3\"><title>a "
                "step begins</title></line>\n",
                x, x, TOP, bottom);
    }
}

static void draw(const picture *self, const trace_stats *stats)
{
    const double bytes = highest_of(self, BAND_OUT, BAND_IN);
    const double highest[BAND_COUNT] = {highest_of(self, BAND_WAIT, BAND_WAIT), highest_of(self, BAND_PUSH, BAND_PUSH),
                                        highest_of(self, BAND_PULL, BAND_PULL), bytes, bytes};
    double bottom = TOP;
    for (uint32_t i = 0; i < self->rows; i++) {
        bottom += (i < self->run->worker_count ? 5 : 2) * BAND + 10;
    }
    fprintf(self->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" font-family=\"sans-serif\" "
            "font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n<text x=\"8\" y=\"16\" "
            "font-size=\"13\">",
            LEFT + COLUMNS + 20, bottom + 10);
    put_text(self->out, self->run->processes[0].file->job);
    fprintf(self->out, ": %u worker%s, %u server%s. Limit: ", self->run->worker_count, plural(self->run->worker_count),
            self->run->server_count, plural(self->run->server_count));
    put_text(self->out, stats->limit);
    fprintf(self->out, "</text>\n");
    for (unsigned i = 0; i < BAND_COUNT; i++) {
        fprintf(self->out,
                "<rect x=\"%u\" y=\"24\" width=\"10\" height=\"10\" fill=\"%s\"/><text x=\"%u\" y=\"33\">%s</text>\n",
                LEFT + i * 190, bands[i].color, LEFT + i * 190 + 14, bands[i].name);
    }
    draw_scale(self, stats, bottom);
    double y = TOP;
    for (uint32_t i = 0; i < self->rows; i++) {
        y = draw_member(self, i, y, highest);
    }
    fprintf(self->out, "</svg>\n");
}

bool trace_write_svg(const trace_run *run, const trace_stats *stats, FILE *out)
{
    picture self = {.run = run, .out = out, .rows = run->worker_count + run->server_count};
    self.rows = self.rows < ROWS_MAX ? self.rows : ROWS_MAX;
    self.width_ns = run->duration_ns / COLUMNS + 1;
    self.columns = calloc((size_t)self.rows * BAND_COUNT * COLUMNS, sizeof *self.columns);
    if (self.columns == NULL) {
        return false;
    }
    fill(&self);
    draw(&self, stats);
    free(self.columns);
    return true;
}
