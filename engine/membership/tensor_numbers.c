/*
 * tensor_numbers.c - the numbers by which tensors are known on the wire, and their way back from a tensor that has
 * ended to the next one.
 *
 * Frames about an ended tensor may still be on their way, so a number is used again only when they can be told from
 * those of the next tensor: its rounds go on where the last one's ended. Before that every member that sums is told to
 * forget the tensor, and has answered. Members answer in order, so each has a count and not a list.
 *
 * A number whose rounds have come to TRIB_ROUND_BASE_MAX retires.
 */
#include <stdlib.h>

#include "engine/base/assert.h"
#include "engine/membership/coordinator_internal.h"

bool trib_number_take(trib_coordinator *self, uint32_t *number_out)
{
    if (self->number_free != 0) {
        *number_out = self->number_free - 1;
        trib_assert(*number_out < self->number_count);
        trib_assert(self->numbers[*number_out].round_base < TRIB_ROUND_BASE_MAX); /* one that has retired is not free */
        self->number_free = self->numbers[*number_out].next;
        return true;
    }
    if (self->number_count >= TRIB_TENSORS_MAX) {
        *number_out = TRIB_TENSORS_MAX; /* no tensor has it, and the caller says so */
        return true;
    }
    if (self->number_count == self->number_capacity) {
        const uint32_t capacity = self->number_capacity == 0 ? 64 : self->number_capacity * 2;
        trib_tensor_number *numbers = realloc(self->numbers, capacity * sizeof *numbers);
        if (numbers == NULL) {
            return false;
        }
        self->numbers = numbers;
        self->number_capacity = capacity;
    }
    *number_out = self->number_count++;
    self->numbers[*number_out] = (trib_tensor_number){.round_base = 0};
    return true;
}

void trib_number_give(trib_coordinator *self, uint32_t number)
{
    trib_assert(number >= TRIB_TENSORS_MAX || number < self->number_count);
    if (number < TRIB_TENSORS_MAX && self->numbers[number].round_base < TRIB_ROUND_BASE_MAX) {
        self->numbers[number].next = self->number_free;
        self->number_free = number + 1;
    }
}

static bool is_awaited(const trib_coordinator *self, uint32_t member)
{
    return self->slots[member].link != NULL && trib_coordinator_knows_partitions(self, member);
}

/* Takes back the numbers that all members have forgotten. */
static void collect(trib_coordinator *self)
{
    if (self->workers_left > 0 || self->early_leaver != TRIB_NO_MEMBER) {
        /*
         * A member that has left may still sum for others, but answers nothing; few tensors are declared from now on.
         */
        return;
    }
    uint64_t answered = self->forgets;
    for (uint32_t i = 0; i < trib_coordinator_slots(self) && self->number_forgotten != 0; i++) {
        if (is_awaited(self, i) && self->slots[i].forgets_answered < answered) {
            answered = self->slots[i].forgets_answered;
        }
    }
    while (self->number_forgotten != 0 && self->numbers[self->number_forgotten - 1].forget <= answered) {
        const uint32_t number = self->number_forgotten - 1;
        self->number_forgotten = self->numbers[number].next;
        trib_number_give(self, number);
    }
}

void trib_number_end(trib_coordinator *self, uint32_t number, uint32_t rounds, uint32_t partition_count)
{
    if (number >= TRIB_TENSORS_MAX) {
        return;
    }
    trib_assert(number < self->number_count);
    trib_tensor_number *mine = &self->numbers[number];
    mine->round_base = rounds < UINT32_MAX - mine->round_base ? mine->round_base + rounds : UINT32_MAX;
    trib_assert(self->number_forgotten == 0 || self->numbers[self->number_forgotten_last - 1].next == 0);
    mine->forget = ++self->forgets;
    mine->next = 0;
    *(self->number_forgotten == 0 ? &self->number_forgotten : &self->numbers[self->number_forgotten_last - 1].next) =
        number + 1;
    self->number_forgotten_last = number + 1;
    for (uint32_t i = 0; i < trib_coordinator_slots(self); i++) {
        if (is_awaited(self, i)) {
            const trib_frame frame = {
                .type = TRIB_FRAME_FORGET, .tensor = number, .partition = partition_count, .round = mine->round_base};
            self->slots[i].forgets_sent++;
            trib_link_send_copy(self->slots[i].link, frame, NULL, 0);
        }
    }
}

void trib_numbers_group_ended(trib_coordinator *self, const trib_rank_set *ranks)
{
    for (uint32_t i = 0; i < self->number_count; i++) {
        if (self->numbers[i].ranks == ranks) {
            self->numbers[i].ranks = NULL;
        }
    }
}

trib_status trib_registry_take_forgotten(trib_coordinator *self, uint32_t member, trib_error *error)
{
    trib_coordinator_slot *slot = &self->slots[member];
    if (slot->forgets_answered >= slot->forgets_sent) {
        return trib_error_set(error, TRIB_PROTOCOL, "FORGOTTEN without a FORGET");
    }
    trib_assert(slot->forgets_sent <= self->forgets);
    slot->forgets_answered++;
    collect(self);
    return TRIB_OK;
}
