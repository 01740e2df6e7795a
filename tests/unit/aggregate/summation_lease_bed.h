/*
 * summation_lease_bed.h - a summation with a simulated connection, which presents contributions in place and may
 * lease them. A twin summation gets the same contributions in the same order, each lent for one call. For one test
 * program.
 *
 * The connection gives and recalls leases at random, and takes away a payload's memory when its lease is over.
 */
#ifndef TRIB_TESTS_SUMMATION_LEASE_BED_H
#define TRIB_TESTS_SUMMATION_LEASE_BED_H

#include "tests/unit/aggregate/summation_bed.h"

#include <sys/mman.h>

#define PAGE 4096u
#define CHUNKS 3u
#define SLOTS (2 * RANKS_MAX * CHUNKS)
#define PART_BYTES (4 * CHUNK_BYTES)

/* ---- A connection that leases ---- */

/* Memory of one payload. The payload ends where its page does, and the page behind it may not be read. */
typedef struct slot {
    trib_lease base; /* first */
    unsigned char *page;
    bool is_leased, is_torn, is_recalled;
} slot;

static struct lessor {
    trib_lender lender;
    slot slots[SLOTS];
    slot *presented; /* the slot whose upcall is running */
    uint32_t next;
    uint32_t refuses; /* leases refused of four requested */
    uint32_t haste;   /* recalls in a hundred occasions */
    bool tears;       /* payloads read for one call only are taken back meanwhile */
    uint32_t asked, brief, given, ended, recalled, lost, copies;
} lessor;

static void take_away(slot *from)
{
    assert_int_equal(mprotect(from->page, PAGE, PROT_NONE), 0);
}

static bool lease_end(trib_lease *lease)
{
    slot *of = (slot *)lease;
    assert_true(of->is_leased);
    of->is_leased = false;
    lessor.ended += !of->is_recalled;
    if (of != lessor.presented) {
        take_away(of);
    }
    return !of->is_torn;
}

static trib_lease *lease(void *source, bool keeps)
{
    assert_ptr_equal(source, &lessor);
    slot *of = lessor.presented;
    assert_true(of != NULL && !of->is_leased);
    lessor.asked += keeps;
    lessor.brief += !keeps;
    if (keeps && random_below(4) < lessor.refuses) {
        return NULL;
    }
    lessor.given++;
    of->is_leased = true;
    of->is_recalled = false;
    of->is_torn = !keeps && lessor.tears;
    of->base = (trib_lease){.end = lease_end};
    return &of->base;
}

static void recall(slot *of, bool valid)
{
    assert_true(of->is_leased);
    of->is_recalled = true;
    of->is_torn = !valid;
    if (!valid) {
        memset(of->page, 0x5a, PAGE); /* its sender overwrites it already */
    }
    of->base.recalled(&of->base);
    assert_false(of->is_leased);
    lessor.recalled += valid;
    lessor.lost += !valid;
}

static uint32_t leased(slot **any_out)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (lessor.slots[i].is_leased && random_below(++count) == 0) {
            *any_out = &lessor.slots[i];
        }
    }
    return count;
}

static void recall_some(void)
{
    slot *one = NULL;
    while (random_below(100) < lessor.haste && leased(&one) > 0) {
        recall(one, true);
    }
}

static void *counted_copy(void *restrict dst, const void *restrict src, size_t size)
{
    lessor.copies++;
    return memcpy(dst, src, size);
}

static trib_kernels counting;

static void open_lessor(trib_summation_config *config, uint32_t refuses, uint32_t haste)
{
    slot slots[SLOTS];
    memcpy(slots, lessor.slots, sizeof slots);
    lessor = (struct lessor){.lender = {.lease = lease, .source = &lessor}, .refuses = refuses, .haste = haste};
    for (uint32_t i = 0; i < SLOTS; i++) {
        unsigned char *page = slots[i].page;
        if (page == NULL) {
            page = mmap(NULL, (size_t)2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            assert_ptr_not_equal(page, MAP_FAILED);
        }
        lessor.slots[i].page = page;
    }
    counting = *trib_kernels_best();
    counting.copy = counted_copy;
    config->kernels = &counting;
}

static unsigned char *begin_upcall(const void *payload, uint32_t size)
{
    recall_some(); /* done before the payload is taken up, as if too many were behind the oldest */
    do {
        lessor.presented = &lessor.slots[lessor.next++ % SLOTS];
    } while (lessor.presented->is_leased);
    unsigned char *at = lessor.presented->page + PAGE - size;
    assert_int_equal(mprotect(lessor.presented->page, PAGE, PROT_READ | PROT_WRITE), 0);
    memcpy(at, payload, size);
    return at;
}

static void end_upcall(void)
{
    if (!lessor.presented->is_leased) {
        take_away(lessor.presented);
    }
    lessor.presented = NULL;
}

/* Presents a contribution as a link does: announced first, then shown in the sender's memory, for the upcall or under a
 * lease. */
static trib_status present(const trib_contribution *what, const void *payload, uint32_t size)
{
    trib_error error;
    void *buffer = NULL;
    trib_status status = trib_summation_recv_target(the.summation, what, &buffer, &error);
    if (status != TRIB_OK) {
        return status;
    }
    unsigned char *at = begin_upcall(payload, size);
    status = trib_summation_arrived(the.summation, what,
                                    &(trib_arrived){.buffer = buffer, .payload = at, .lender = &lessor.lender}, &error);
    end_upcall();
    return status;
}

/* Presents a contribution as the link to the process's own server does, without an announcement. */
static trib_status arrive_in_place(const trib_contribution *what, const void *payload, uint32_t size)
{
    trib_error error;
    unsigned char *at = begin_upcall(payload, size);
    const trib_status status =
        trib_summation_arrived(the.summation, what, &(trib_arrived){.payload = at, .lender = &lessor.lender}, &error);
    end_upcall();
    return status;
}

/* Checks that all leases are over, and that only payloads without a lease, or with a recalled one, were copied. */
static void check_lessor(void)
{
    slot *any = NULL;
    assert_int_equal(leased(&any), 0);
    assert_int_equal(lessor.given, lessor.ended + lessor.recalled + lessor.lost);
    assert_int_equal(lessor.copies, lessor.asked + lessor.brief - lessor.given + lessor.recalled + lessor.lost);
}

/* ---- The same, copied ---- */

/* Another summation, with the same contributions in the same order. */
static struct twin {
    trib_summation *summation;
    bool is_partial; /* the last contribution was a partial sum */
    uint32_t size;
    unsigned char bytes[PART_BYTES];
    trib_contribution what;
} twin;

static void *twin_alloc(void *user, size_t size)
{
    (void)user;
    return malloc(size);
}

static void twin_free(void *user, void *buffer, size_t size)
{
    (void)user;
    (void)size;
    free(buffer);
}

static void twin_ready(void *user, uint32_t receiver, const trib_contribution *what, trib_sum_buffer *sum)
{
    (void)user;
    (void)receiver;
    if (!twin.is_partial) {
        twin.size = what->size;
        memcpy(twin.bytes, sum->data, what->size);
    }
    trib_summation_sent(twin.summation, sum);
}

static void twin_partial(void *user, const trib_contribution *what, trib_sum_buffer *sum)
{
    (void)user;
    twin.is_partial = true;
    twin.what = *what;
    twin.size = trib_sum_partial_bytes(what);
    memcpy(twin.bytes, sum->data, twin.size);
    trib_summation_sent(twin.summation, sum);
}

static void round_refused(void *user, const trib_contribution *what, trib_status status, const char *text)
{
    (void)user;
    (void)what;
    (void)status;
    (void)text;
}

/* The summation under test gives out a partial sum, and each receiver gets the result that comes back. */
static void partial_ready(void *user, const trib_contribution *what, trib_sum_buffer *sum)
{
    (void)user;
    assert_int_equal(twin.size, trib_sum_partial_bytes(what));
    assert_memory_equal(sum->data, twin.bytes, twin.size);
    trib_summation_sent(the.summation, sum);
    memset(sum->data, (int)(0x30 + what->chunk), what->size);
}

typedef struct shape {
    uint32_t n;
    trib_sum_order order;
    bool takes_partials, gives_partials;
} shape;

static void open_both(const shape *like, uint32_t refuses, uint32_t haste)
{
    trib_summation_config config = bed_config(like->n, like->order);
    config.takes_partials = like->takes_partials;
    config.partial_ready = like->gives_partials ? partial_ready : NULL;
    config.round_refused = like->gives_partials ? round_refused : NULL;
    open_lessor(&config, refuses, haste);
    open_configured(&config);
    config.kernels = trib_kernels_best();
    config.buffer_alloc = twin_alloc;
    config.buffer_free = twin_free;
    config.sum_ready = twin_ready;
    config.partial_ready = like->gives_partials ? twin_partial : NULL;
    memset(&twin, 0, sizeof twin);
    assert_int_equal(trib_summation_create(&config, &twin.summation), TRIB_OK);
}

static void close_both(void)
{
    check_lessor();
    close_bed();
    trib_summation_destroy(twin.summation);
}

#endif
