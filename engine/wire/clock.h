/*
 * clock.h - how far the coordinator's clock is from this one: round trips, and the best of them kept.
 *
 * A member asks with its own time t1; the coordinator answers with t1, the time t2 at which the question came and the
 * time t3 at which the answer left; at t4 the answer is here. As in NTP (RFC 5905) the offset is
 * ((t2 - t1) + (t3 - t4)) / 2, wrong by at most half the round trip (t4 - t1) - (t3 - t2), however unequal the two ways
 * are. Whoever reads the samples (tools/trace/trace_clock.c) combines them with a bound on the drift.
 */
#ifndef TRIB_ENGINE_CLOCK_H
#define TRIB_ENGINE_CLOCK_H

#include "engine/wire/wire.h"

#define TRIB_CLOCK_SAMPLES_MAX 512u

typedef struct trib_clock_sample {
    int64_t at_ns;     /* t4, by this process's clock */
    int64_t offset_ns; /* the coordinator's clock minus this one */
    uint64_t rtt_ns;
} trib_clock_sample;

/* When there are too many samples, of every two neighbours the one with the shorter round trip stays, and from then on
 * of twice as many that come. */
typedef struct trib_clock {
    uint32_t count;
    uint32_t stride;  /* that many come for one that is kept */
    uint32_t in_last; /* came for the last one so far */
    trib_clock_sample samples[TRIB_CLOCK_SAMPLES_MAX];
} trib_clock;

void trib_clock_reset(trib_clock *clock);
/* False: the times cannot be those of a round trip. */
bool trib_clock_take(const trib_frame *answer, int64_t now_ns, trib_clock_sample *sample_out);
void trib_clock_add(trib_clock *clock, const trib_clock_sample *sample);

trib_frame trib_clock_question(int64_t now_ns);
trib_frame trib_clock_answer(const trib_frame *question, int64_t came_ns, int64_t now_ns);

#endif
