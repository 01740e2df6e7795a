/* clock.c - measures the offset of the coordinator's clock (clock.h). Pure: member.c and coordinator.c send the
 * frames and pass the times in. */
#include "engine/wire/clock.h"

#include "engine/base/assert.h"

static int64_t join_halves(uint32_t low, uint32_t high)
{
    return (int64_t)((uint64_t)high << 32 | low);
}

trib_frame trib_clock_question(int64_t now_ns)
{
    const uint64_t t1 = (uint64_t)now_ns;
    return (trib_frame){.type = TRIB_FRAME_PING, .partition = (uint32_t)t1, .round = (uint32_t)(t1 >> 32)};
}

trib_frame trib_clock_answer(const trib_frame *question, int64_t came_ns, int64_t now_ns)
{
    const uint64_t t2 = (uint64_t)came_ns, t3 = (uint64_t)now_ns;
    return (trib_frame){
        .type = TRIB_FRAME_PONG,
        .partition = question->partition,
        .round = question->round,
        .chunk = (uint32_t)t2,
        .chunk_count = (uint32_t)(t2 >> 32),
        .size = (uint32_t)t3,
        .priority = (int32_t)(uint32_t)(t3 >> 32),
    };
}

bool trib_clock_take(const trib_frame *answer, int64_t now_ns, trib_clock_sample *sample_out)
{
    const int64_t t1 = join_halves(answer->partition, answer->round);
    const int64_t t2 = join_halves(answer->chunk, answer->chunk_count);
    const int64_t t3 = join_halves(answer->size, (uint32_t)answer->priority);
    int64_t there = 0, back = 0, whole = 0, stay = 0, rtt = 0;
    if (t1 <= 0 || __builtin_sub_overflow(t2, t1, &there) || __builtin_sub_overflow(t3, now_ns, &back) ||
        __builtin_sub_overflow(now_ns, t1, &whole) || __builtin_sub_overflow(t3, t2, &stay) ||
        __builtin_sub_overflow(whole, stay, &rtt) || whole < 0 || stay < 0 || rtt < 0) {
        return false;
    }
    trib_assert(stay <= whole && rtt >= 0);
    *sample_out = (trib_clock_sample){
        .at_ns = now_ns,
        .offset_ns = there / 2 + back / 2 + (there % 2 + back % 2) / 2,
        .rtt_ns = (uint64_t)rtt,
    };
    return true;
}

void trib_clock_reset(trib_clock *clock)
{
    clock->count = 0;
    clock->stride = 1;
    clock->in_last = 1;
}

static void thin_out(trib_clock *clock)
{
    trib_assert(clock->count % 2 == 0);
    for (uint32_t i = 0; i < clock->count / 2; i++) {
        const trib_clock_sample *pair = &clock->samples[(size_t)2 * i];
        clock->samples[i] = pair[1].rtt_ns < pair[0].rtt_ns ? pair[1] : pair[0];
    }
    clock->count /= 2;
    clock->stride *= 2;
    clock->in_last = clock->stride;
}

void trib_clock_add(trib_clock *clock, const trib_clock_sample *sample)
{
    trib_assert(clock->stride > 0);
    if (clock->in_last < clock->stride) {
        trib_clock_sample *last = &clock->samples[clock->count - 1];
        *last = sample->rtt_ns < last->rtt_ns ? *sample : *last;
        clock->in_last++;
        return;
    }
    if (clock->count == TRIB_CLOCK_SAMPLES_MAX) {
        thin_out(clock);
    }
    trib_assert(clock->count < TRIB_CLOCK_SAMPLES_MAX);
    clock->samples[clock->count++] = *sample;
    clock->in_last = 1;
}
