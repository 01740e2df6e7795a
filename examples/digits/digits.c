/*
 * digits.c - workers learn the UCI handwritten digits by data-parallel SGD, with gradients summed by Tributary.
 *
 * Every worker holds the whole model and the same shuffled order of the images, computes gradients on its share of
 * each batch, and takes the same step along the sum. The program checks three promises: the model reads digits,
 * every worker has the same bits, and the weights agree, within rounding, with those of one process that trains
 * alone on whole batches. It exits with 0 only if all three hold.
 */
#include "checkpoint.h"
#include "exchange.h"
#include "images.h"
#include "model.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EPOCHS_DEFAULT = 30, EPOCHS_MAX = 300, STEPS_PER_EPOCH = IMAGE_TRAIN_COUNT / MODEL_BATCH, PROGRESS_LINES = 10 };
_Static_assert(IMAGE_TRAIN_COUNT % MODEL_BATCH == 0, "an epoch is made of whole batches");

static const uint64_t split_seed = 20;
static const uint64_t order_seed = 21;
static const uint64_t weights_seed = 22;
static const float rate = 0.05F;
static const double accuracy_least = 0.95;

/*
 * How far the weights may be from those of one process on whole batches, in units of the largest weight of a tensor,
 * after up to EPOCHS_DEFAULT epochs. Adding the gradients of a batch in shares instead of one by one changes a sum
 * by a few units in the last place (6e-8 of it), and every step starts from the result of the one before: that alone
 * gives about 1e-6. Where rounding decides on which side of the ReLU's kink a hidden unit ends, one image's gradient
 * for that unit is present or absent. Such cases grow in number with the steps, and the tolerance grows with them.
 * Observed: at most 7.5e-6 after 30 epochs (2 to 16 workers), 3.6e-4 after 300 (2 and 3 workers). An error stands
 * out: one of 60 images missing from every batch gives 1.4e-1, one of four shares 2.3e-1, and one image missing from
 * a single batch 2e-3 to 1e-1, as long as the model still has something to learn from it.
 */
static const double tolerance_default = 1e-4;

struct options {
    uint32_t epochs;
    const char *data;
    const char *checkpoint; /* file; NULL: none */
    uint32_t every;         /* steps from one to the next */
    bool json;
};

struct run {
    struct options options;
    FILE *progress;       /* standard output, or standard error when that is for JSON alone */
    struct image *images; /* shuffled: the first IMAGE_TRAIN_COUNT train, the others are held out */
    struct model *model;
    struct model *reference;
    int64_t *exchange_ns; /* of every step */
    uint32_t step_count;
    uint32_t steps_before; /* done before this process began, as a checkpoint tells */
};

struct results {
    double loss;
    double accuracy;
    double seconds;
    double exchange_p50_us;
    double exchange_p99_us;
    double exchange_mb_per_s; /* bytes of gradients per worker over the time the exchange took */
    double difference;
    double tolerance;
    uint64_t hash;
    bool identical;
};

static void print_usage(FILE *stream)
{
    fprintf(stream, "usage: digits [--epochs N] [--data PATH] [--json] [--checkpoint PATH [--every STEPS]]\n"
                    "Learns the UCI handwritten digits; start it with: tributary run -n 4 -s 2 -- digits\n");
}

static bool parse_number(const char *option, const char *text, long most, uint32_t *number)
{
    char *end = NULL;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 1 || value > most) {
        fprintf(stderr, "digits: %s wants a number from 1 to %ld, not \"%s\"\n", option, most, text);
        return false;
    }
    *number = (uint32_t)value;
    return true;
}

static bool parse_options(int argc, char **argv, struct options *options)
{
    *options = (struct options){.epochs = EPOCHS_DEFAULT, .every = STEPS_PER_EPOCH};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            options->json = true;
        } else if (strcmp(argv[i], "--data") == 0 && i + 1 < argc) {
            options->data = argv[++i];
        } else if (strcmp(argv[i], "--checkpoint") == 0 && i + 1 < argc) {
            options->checkpoint = argv[++i];
        } else if (strcmp(argv[i], "--every") == 0 && i + 1 < argc) {
            if (!parse_number("--every", argv[++i], EPOCHS_MAX * STEPS_PER_EPOCH, &options->every)) {
                return false;
            }
        } else if (strcmp(argv[i], "--epochs") == 0 && i + 1 < argc) {
            if (!parse_number("--epochs", argv[++i], EPOCHS_MAX, &options->epochs)) {
                return false;
            }
        } else {
            fprintf(stderr, "digits: unknown option or missing value: %s\n", argv[i]);
            print_usage(stderr);
            return false;
        }
    }
    return true;
}

static void split_images(struct image *images)
{
    uint64_t state = split_seed;
    for (uint32_t i = IMAGE_COUNT; i > 1; i--) {
        const uint32_t other = (uint32_t)(random_next(&state) % i);
        const struct image kept = images[i - 1];
        images[i - 1] = images[other];
        images[other] = kept;
    }
}

static double held_out_accuracy(const struct model *model, const struct image *images)
{
    uint32_t right = 0;
    for (uint32_t i = IMAGE_TRAIN_COUNT; i < IMAGE_COUNT; i++) {
        right += model_read(model, &images[i]) == images[i].digit ? 1 : 0;
    }
    return (double)right / (IMAGE_COUNT - IMAGE_TRAIN_COUNT);
}

/* Computes gradients on this worker's share of the batch and submits each layer as soon as it is computed, so that
 * layer 2 travels while layer 1 is still being computed. Then takes the step along the sums. */
static bool train_step(struct run *run, struct exchange *exchange, const uint32_t *batch, float *loss,
                       int64_t *duration_ns)
{
    struct model *model = run->model;
    const uint32_t rank = (uint32_t)exchange->rank;
    const uint32_t workers = (uint32_t)exchange->worker_count;
    const uint32_t from = (uint32_t)((uint64_t)MODEL_BATCH * rank / workers);
    const uint32_t to = (uint32_t)((uint64_t)MODEL_BATCH * (rank + 1) / workers);
    *loss = model_forward_and_layer2(model, run->images, &batch[from], to - from);
    bool begun = exchange_sum(exchange, &model->gradients, PART_WEIGHTS2);
    begun = begun && exchange_sum(exchange, &model->gradients, PART_BIAS2);
    model_layer1(model, run->images, &batch[from], to - from);
    begun = begun && exchange_sum(exchange, &model->gradients, PART_WEIGHTS1);
    begun = begun && exchange_sum(exchange, &model->gradients, PART_BIAS1);
    if (!exchange_wait(exchange, duration_ns) || !begun) {
        return false;
    }
    model_step(model, rate);
    return true;
}

/* The order of the images in every epoch. The same sequence of calls gives the same orders on every worker. */
static void order_init(uint32_t *order)
{
    for (uint32_t i = 0; i < IMAGE_TRAIN_COUNT; i++) {
        order[i] = i;
    }
}

/* At a boundary all workers have the same model, so rank 0 saves for all. */
static bool save(const struct run *run, struct exchange *exchange, uint32_t steps)
{
    if (run->options.checkpoint == NULL || steps % run->options.every != 0) {
        return true;
    }
    if (!exchange_boundary(exchange, steps)) {
        return false;
    }
    if (exchange->rank != 0) {
        return true;
    }
    const bool is_saved = checkpoint_write(run->options.checkpoint, steps, run->model);
    fprintf(run->progress, is_saved ? "saved after %" PRIu32 " steps\n" : "not saved after %" PRIu32 " steps\n", steps);
    (void)fflush(run->progress);
    return is_saved;
}

static bool train(struct run *run, struct exchange *exchange, struct results *results)
{
    uint32_t order[IMAGE_TRAIN_COUNT];
    uint64_t state = order_seed;
    order_init(order);
    const uint32_t every = (run->options.epochs + PROGRESS_LINES - 1) / PROGRESS_LINES;
    for (uint32_t epoch = 1; epoch <= run->options.epochs; epoch++) {
        random_shuffle(&state, order, IMAGE_TRAIN_COUNT);
        double loss = 0.0;
        for (uint32_t step = 0; step < STEPS_PER_EPOCH; step++) {
            float share = 0.0F;
            const uint32_t done = (epoch - 1) * STEPS_PER_EPOCH + step;
            if (done < run->steps_before) {
                continue; /* the orders of the images are drawn as if this process had done it */
            }
            int64_t *duration_ns = &run->exchange_ns[run->step_count];
            if (!train_step(run, exchange, &order[(size_t)step * MODEL_BATCH], &share, duration_ns)) {
                return false;
            }
            run->step_count++;
            loss += (double)share;
            if (!save(run, exchange, done + 1)) {
                return false;
            }
        }
        results->loss = loss / STEPS_PER_EPOCH;
        if (!exchange_total(exchange, &results->loss)) {
            return false;
        }
        if (exchange->rank == 0 && (epoch % every == 0 || epoch == run->options.epochs)) {
            results->accuracy = held_out_accuracy(run->model, run->images);
            fprintf(run->progress, "epoch %4" PRIu32 "  loss %.4f  held-out accuracy %.1f %%\n", epoch, results->loss,
                    100.0 * results->accuracy);
            (void)fflush(run->progress);
        }
    }
    return true;
}

/* Does the same training in one process: same first weights, same order, whole batches, nothing exchanged. */
static void train_reference(struct run *run)
{
    uint32_t order[IMAGE_TRAIN_COUNT];
    uint64_t state = order_seed;
    order_init(order);
    model_init(run->reference, weights_seed);
    for (uint32_t epoch = 0; epoch < run->options.epochs; epoch++) {
        random_shuffle(&state, order, IMAGE_TRAIN_COUNT);
        for (uint32_t step = 0; step < STEPS_PER_EPOCH; step++) {
            const uint32_t *batch = &order[(size_t)step * MODEL_BATCH];
            (void)model_forward_and_layer2(run->reference, run->images, batch, MODEL_BATCH);
            model_layer1(run->reference, run->images, batch, MODEL_BATCH);
            model_step(run->reference, rate);
        }
    }
}

static int compare_durations(const void *left, const void *right)
{
    int64_t a;
    int64_t b;
    memcpy(&a, left, sizeof a);
    memcpy(&b, right, sizeof b);
    return (a > b) - (a < b);
}

static void measure_exchange(struct run *run, struct results *results)
{
    int64_t total_ns = 1;
    for (uint32_t i = 0; i < run->step_count; i++) {
        total_ns += run->exchange_ns[i];
    }
    qsort(run->exchange_ns, run->step_count, sizeof run->exchange_ns[0], compare_durations);
    results->exchange_p50_us = (double)run->exchange_ns[run->step_count / 2] / 1e3;
    results->exchange_p99_us = (double)run->exchange_ns[(uint64_t)run->step_count * 99 / 100] / 1e3;
    results->exchange_mb_per_s = (double)sizeof(struct parameters) * run->step_count / 1e6 / ((double)total_ns / 1e9);
}

/* JSON has no NaN, so a NaN loss is printed as null. */
static void print_number(const char *name, double value)
{
    if (isfinite(value)) {
        printf("\"%s\": %.9g, ", name, value);
    } else {
        printf("\"%s\": null, ", name);
    }
}

static void print_json(const struct run *run, const struct exchange *exchange, const struct results *results,
                       bool passed)
{
    printf("{\"workers\": %d, \"servers\": %d, \"epochs\": %" PRIu32 ", \"steps\": %" PRIu32
           ", \"gradient_bytes\": %zu, ",
           exchange->worker_count, exchange->server_count, run->options.epochs, run->step_count,
           sizeof(struct parameters));
    print_number("loss", results->loss);
    print_number("accuracy", results->accuracy);
    print_number("exchange_mb_per_s", results->exchange_mb_per_s);
    print_number("exchange_p50_us", results->exchange_p50_us);
    print_number("exchange_p99_us", results->exchange_p99_us);
    print_number("seconds", results->seconds);
    print_number("difference", results->difference);
    print_number("tolerance", results->tolerance);
    printf("\"weights_hash\": \"%016" PRIx64 "\", \"bit_identical\": %s, \"matches_reference\": %s, \"passed\": %s}\n",
           results->hash, results->identical ? "true" : "false",
           results->difference <= results->tolerance ? "true" : "false", passed ? "true" : "false");
}

static void print_text(const struct run *run, const struct exchange *exchange, const struct results *results)
{
    const int workers = exchange->worker_count;
    printf("trained in %.2f s: %" PRIu32 " steps, %d %s, %d %s\n", results->seconds, run->step_count, workers,
           workers == 1 ? "worker" : "workers", exchange->server_count,
           exchange->server_count == 1 ? "server" : "servers");
    printf("gradients: %.1f kB a step, exchanged at %.0f MB/s, p50 %.0f us, p99 %.0f us (from the first "
           "handed in, with layer 1 still to compute, to the last sum back)\n",
           (double)sizeof(struct parameters) / 1e3, results->exchange_mb_per_s, results->exchange_p50_us,
           results->exchange_p99_us);
    printf("held-out accuracy: %.1f %% of %d images (at least %.0f %%): %s\n", 100.0 * results->accuracy,
           IMAGE_COUNT - IMAGE_TRAIN_COUNT, 100.0 * accuracy_least,
           results->accuracy >= accuracy_least ? "ok" : "FAILED");
    printf("weights of all workers: %s (hash %016" PRIx64 ")\n",
           results->identical ? "bit-identical: ok" : "NOT identical: FAILED", results->hash);
    printf("weights against one process on whole batches: largest relative difference %.1e (at most %.0e): %s\n",
           results->difference, results->tolerance, results->difference <= results->tolerance ? "ok" : "FAILED");
}

/* Rank 0 reports for all. The others only know whether the hashes agreed, which is enough to fail. The reference is
 * computed after the job is left, so that no worker waits for it. */
static bool report(struct run *run, const struct exchange *exchange, struct results *results)
{
    if (exchange->rank != 0) {
        return results->identical;
    }
    measure_exchange(run, results);
    train_reference(run);
    results->difference = model_difference(run->model, run->reference);
    results->tolerance = tolerance_default * fmax(1.0, (double)run->options.epochs / EPOCHS_DEFAULT);
    const bool passed =
        results->accuracy >= accuracy_least && results->identical && results->difference <= results->tolerance;
    if (run->options.json) {
        print_json(run, exchange, results, passed);
    } else {
        print_text(run, exchange, results);
    }
    return passed && fflush(stdout) == 0;
}

static bool share(struct exchange *exchange, struct parameters *parameters)
{
    bool begun = true;
    for (int part = 0; part < PART_COUNT && begun; part++) {
        begun = exchange_copy(exchange, parameters, (enum model_part)part);
    }
    int64_t duration_ns;
    return exchange_wait(exchange, &duration_ns) && begun;
}

/* Only rank 0 draws first weights, or reads those of a checkpoint, and the others receive them. */
static bool share_first_weights(struct run *run, struct exchange *exchange)
{
    if (exchange->rank == 0) {
        model_init(run->model, weights_seed);
        if (run->options.checkpoint != NULL &&
            !checkpoint_read(run->options.checkpoint, &run->steps_before, run->model)) {
            return false;
        }
    }
    double steps = (double)run->steps_before; /* 0 but on rank 0 */
    if (!exchange_total(exchange, &steps)) {
        return false;
    }
    run->steps_before = (uint32_t)steps;
    if (exchange->rank == 0 && run->steps_before > 0) {
        fprintf(run->progress, "going on after %" PRIu32 " steps\n", run->steps_before);
    }
    return share(exchange, &run->model->parameters) && share(exchange, &run->model->velocity);
}

static bool run_job(struct run *run)
{
    struct exchange exchange;
    struct results results = {0};
    if (!exchange_open(&exchange)) {
        return false;
    }
    if (exchange.rank == 0) {
        fprintf(run->progress, "%d %s, %d training images in batches of %d, %d held out\n", exchange.worker_count,
                exchange.worker_count == 1 ? "worker" : "workers", IMAGE_TRAIN_COUNT, MODEL_BATCH,
                IMAGE_COUNT - IMAGE_TRAIN_COUNT);
    }
    const int64_t begin_ns = clock_ns();
    bool succeeded = share_first_weights(run, &exchange) && train(run, &exchange, &results);
    results.seconds = (double)(clock_ns() - begin_ns) / 1e9;
    results.hash = model_hash(run->model);
    succeeded = succeeded && exchange_compare(&exchange, results.hash, &results.identical);
    exchange_close(&exchange);
    return succeeded && report(run, &exchange, &results);
}

int main(int argc, char **argv)
{
    struct run run = {0};
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        print_usage(stdout);
        return 0;
    }
    if (!parse_options(argc, argv, &run.options)) {
        return 2;
    }
    run.progress = run.options.json ? stderr : stdout;
    run.images = calloc(IMAGE_COUNT, sizeof *run.images);
    run.model = calloc(1, sizeof *run.model);
    run.reference = calloc(1, sizeof *run.reference);
    run.exchange_ns = calloc((size_t)run.options.epochs * STEPS_PER_EPOCH, sizeof *run.exchange_ns);
    bool passed = false;
    if (run.images == NULL || run.model == NULL || run.reference == NULL || run.exchange_ns == NULL) {
        fprintf(stderr, "digits: out of memory\n");
    } else if (images_load(run.images, run.options.data)) {
        split_images(run.images);
        passed = run_job(&run);
    }
    free(run.exchange_ns);
    free(run.reference);
    free(run.model);
    free(run.images);
    return passed ? 0 : 1;
}
