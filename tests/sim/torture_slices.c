/* torture_slices.c - who shares a tensor, and the lengths of its slices. */
#include "tests/sim/torture.h"

bool torture_is_member(const torture_tensor *what, uint32_t rank)
{
    return what->group == 0 || (what->group >> rank & 1) != 0;
}

uint32_t torture_members(const torture_tensor *what, uint32_t workers)
{
    uint32_t members = 0;
    for (uint32_t rank = 0; rank < workers; rank++) {
        members += torture_is_member(what, rank);
    }
    return members;
}

uint32_t torture_rank_at(const torture_tensor *what, uint32_t workers, uint32_t place)
{
    const uint32_t members = torture_members(what, workers);
    uint32_t left = what->backwards ? members - 1 - place : place;
    for (uint32_t rank = 0; rank < workers; rank++) {
        if (torture_is_member(what, rank) && left-- == 0) {
            return rank;
        }
    }
    return TORTURE_NOBODY;
}

uint32_t torture_place_of(const torture_tensor *what, uint32_t workers, uint32_t rank)
{
    uint32_t place = 0;
    while (torture_rank_at(what, workers, place) != rank) {
        place++;
    }
    return place;
}

/* A third of the slices is empty, a third has the same length, and a third has a length of its own. */
uint32_t torture_slice(const torture_tensor *what, uint32_t giver, uint32_t taker)
{
    uint32_t mixed = (what->shape ^ giver * 2654435761u ^ taker * 40503u) * 2246822519u;
    mixed ^= mixed >> 15;
    const uint32_t longest = what->count / (what->exchange == TORTURE_PAIRS ? 8 : 3) + 1;
    switch (what->shape % 4 == 0 ? 1 : mixed % 3) {
    case 0:
        return 0;
    case 1:
        return longest;
    default:
        return mixed / 3 % longest;
    }
}

uint32_t torture_total(const torture_tensor *what, uint32_t workers)
{
    const uint32_t members = torture_members(what, workers);
    uint32_t total = 0;
    for (uint32_t i = 0; i < members; i++) {
        for (uint32_t j = 0; j < (what->exchange == TORTURE_PAIRS ? members : 1); j++) {
            total += torture_slice(what, i, j);
        }
    }
    return what->exchange <= TORTURE_REDUCE ? what->count : total;
}

static uint32_t exchanged(const torture_tensor *what, uint32_t workers, uint32_t rank, bool takes)
{
    const uint32_t place = torture_place_of(what, workers, rank);
    uint32_t total = 0;
    for (uint32_t i = 0; i < torture_members(what, workers); i++) {
        total += takes ? torture_slice(what, i, place) : torture_slice(what, place, i);
    }
    return total;
}

uint32_t torture_given(const torture_tensor *what, uint32_t workers, uint32_t rank)
{
    switch (what->exchange) {
    case TORTURE_GATHER:
        return torture_slice(what, torture_place_of(what, workers, rank), 0);
    case TORTURE_PAIRS:
        return exchanged(what, workers, rank, false);
    default:
        return torture_total(what, workers);
    }
}

uint32_t torture_taken(const torture_tensor *what, uint32_t workers, uint32_t rank)
{
    const uint32_t place = torture_place_of(what, workers, rank);
    switch (what->exchange) {
    case TORTURE_REDUCE:
        return (uint32_t)what->root == place ? what->count : 0;
    case TORTURE_SCATTER:
        return torture_slice(what, place, 0);
    case TORTURE_PAIRS:
        return exchanged(what, workers, rank, true);
    default:
        return torture_total(what, workers);
    }
}

uint32_t torture_before(const torture_tensor *what, uint32_t workers, uint32_t rank)
{
    const uint32_t place = torture_place_of(what, workers, rank);
    uint32_t before = 0;
    for (uint32_t i = 0; i < place; i++) {
        before += torture_slice(what, i, 0);
    }
    return before;
}
