/* ballot.c - see ballot.h. */
#include "engine/membership/ballot.h"

#include <stdlib.h>
#include <string.h>

bool trib_vote_note_round(trib_vote *vote, uint32_t tensor, uint32_t round)
{
    if (tensor >= TRIB_TENSORS_MAX) {
        return false;
    }
    if (tensor >= vote->count) {
        const uint32_t count = tensor + 1 > 2 * vote->count ? tensor + 1 : 2 * vote->count;
        uint32_t *rounds = realloc(vote->rounds, count * sizeof *rounds);
        if (rounds == NULL) {
            return false;
        }
        memset(rounds + vote->count, 0, (count - vote->count) * sizeof *rounds);
        vote->rounds = rounds;
        vote->count = count;
    }
    if (round > vote->rounds[tensor]) {
        vote->rounds[tensor] = round;
    }
    return true;
}

void trib_vote_clear(trib_vote *vote)
{
    free(vote->rounds);
    *vote = (trib_vote){.link = NULL};
}

static uint32_t round_of(const trib_vote *vote, uint32_t tensor)
{
    return tensor < vote->count ? vote->rounds[tensor] : 0;
}

bool trib_ballot_fits(const trib_vote *vote, const trib_vote *decided)
{
    if (vote->is_settled && vote->at_boundary != decided->at_boundary) {
        return false;
    }
    const uint32_t count = vote->count > decided->count ? vote->count : decided->count;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t mine = round_of(vote, i), all = round_of(decided, i);
        if (mine > all || (vote->is_settled && mine < all)) {
            return false;
        }
    }
    return true;
}

static bool merge_rounds(trib_vote *decided, const trib_vote *vote)
{
    for (uint32_t i = 0; i < vote->count; i++) {
        if (vote->rounds[i] != 0 && !trib_vote_note_round(decided, i, vote->rounds[i])) {
            return false;
        }
    }
    return true;
}

/* The vote with the latest decision; NULL: there is none. */
static const trib_vote *find_settled(const trib_vote *votes, uint32_t members)
{
    const trib_vote *latest = NULL;
    for (uint32_t i = 0; i < members; i++) {
        const trib_vote *at = &votes[i];
        if (at->has_voted && at->is_settled && (latest == NULL || at->settled_ballot > latest->settled_ballot)) {
            latest = at;
        }
    }
    return latest;
}

bool trib_ballot_tally(const trib_vote *votes, uint32_t members, trib_tally *tally_out)
{
    const trib_vote *settled = find_settled(votes, members);
    *tally_out = (trib_tally){.elects = calloc(members, sizeof(bool))};
    if (tally_out->elects == NULL) {
        return false;
    }
    tally_out->decided.at_boundary = settled != NULL && settled->at_boundary;
    for (uint32_t i = 0; i < members; i++) {
        if (votes[i].has_voted && (settled == NULL || &votes[i] == settled) &&
            !merge_rounds(&tally_out->decided, &votes[i])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < members; i++) {
        tally_out->elects[i] = votes[i].has_voted && trib_ballot_fits(&votes[i], &tally_out->decided);
        tally_out->knows_roster = tally_out->knows_roster || (tally_out->elects[i] && votes[i].knows_roster);
    }
    return true;
}

void trib_ballot_free(trib_tally *tally)
{
    trib_vote_clear(&tally->decided);
    free(tally->elects);
    tally->elects = NULL;
}

bool trib_ballot_is_majority(const trib_majority *majority, bool with_coordinator)
{
    const uint32_t least = with_coordinator ? 0 : 1; /* beyond half */
    const bool is_now = 2 * majority->votes >= majority->electors + least;
    const bool was_before = 2 * majority->former >= majority->before + least;
    return is_now && (majority->knows_roster || was_before);
}
