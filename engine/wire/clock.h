/*
 * clock.h - the offset of the coordinator's clock from this process's clock, by round trips of which the best are kept.
 *
 * A member sends its time t1. The coordinator answers with t1, the arrival time t2 of the question, and the sending
 * time t3 of the answer. The answer arrives at t4. As in NTP (RFC 5905) the offset is ((t2 - t1) + (t3 - t4)) / 2. Its
 * error is at most half the round trip (t4 - t1) - (t3 - t2), even when the two ways differ. The reader of the samples
 * (tools/trace/trace_clock.c) combines them with a bound on the drift.
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

/* A full set keeps the sample with the shorter round trip of every two neighbours. From then on, each kept sample is
 * the best of twice as many as before. */
typedef struct trib_clock {
    uint32_t count;
    uint32_t stride;  /* number of round trips for each kept sample */
    uint32_t in_last; /* round trips that the last kept sample covers so far */
    trib_clock_sample samples[TRIB_CLOCK_SAMPLES_MAX];
} trib_clock;

void trib_clock_reset(trib_clock *clock);
/* Computes a sample from an answer. False if the times cannot be those of a round trip. */
bool trib_clock_take(const trib_frame *answer, int64_t now_ns, trib_clock_sample *sample_out);
void trib_clock_add(trib_clock *clock, const trib_clock_sample *sample);

trib_frame trib_clock_question(int64_t now_ns);
trib_frame trib_clock_answer(const trib_frame *question, int64_t came_ns, int64_t now_ns);

#endif
