/* ballot.c - see ballot.h. */
#include "engine/membership/ballot.h"

#include <stdlib.h>
#include <string.h>

bool trib_paper_note(trib_paper *paper, uint32_t tensor, uint32_t round)
{
    if (tensor >= TRIB_TENSORS_MAX) {
        return false;
    }
    if (tensor >= paper->count) {
        const uint32_t count = tensor + 1 > 2 * paper->count ? tensor + 1 : 2 * paper->count;
        uint32_t *rounds = realloc(paper->rounds, count * sizeof *rounds);
        if (rounds == NULL) {
            return false;
        }
        memset(rounds + paper->count, 0, (count - paper->count) * sizeof *rounds);
        paper->rounds = rounds;
        paper->count = count;
    }
    if (round > paper->rounds[tensor]) {
        paper->rounds[tensor] = round;
    }
    return true;
}

void trib_paper_clear(trib_paper *paper)
{
    free(paper->rounds);
    *paper = (trib_paper){.link = NULL};
}

static uint32_t round_of(const trib_paper *paper, uint32_t tensor)
{
    return tensor < paper->count ? paper->rounds[tensor] : 0;
}

/* True if the voter can have what is decided: it has no more, and no less if it cannot have more. */
static bool fits(const trib_paper *paper, const trib_paper *decided)
{
    const uint32_t count = paper->count > decided->count ? paper->count : decided->count;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t mine = round_of(paper, i), all = round_of(decided, i);
        if (mine > all || (paper->is_settled && mine < all)) {
            return false;
        }
    }
    return true;
}

static bool add(trib_paper *decided, const trib_paper *paper)
{
    for (uint32_t i = 0; i < paper->count; i++) {
        if (paper->rounds[i] != 0 && !trib_paper_note(decided, i, paper->rounds[i])) {
            return false;
        }
    }
    return true;
}

/* The vote with the latest decision; NULL: there is none. */
static const trib_paper *find_settled(const trib_paper *papers, uint32_t members)
{
    const trib_paper *latest = NULL;
    for (uint32_t i = 0; i < members; i++) {
        const trib_paper *at = &papers[i];
        if (at->has_voted && at->is_settled && (latest == NULL || at->settled_ballot > latest->settled_ballot)) {
            latest = at;
        }
    }
    return latest;
}

bool trib_ballot_tally(const trib_paper *papers, uint32_t members, trib_tally *tally_out)
{
    const trib_paper *settled = find_settled(papers, members);
    *tally_out = (trib_tally){.elects = calloc(members, sizeof(bool))};
    if (tally_out->elects == NULL) {
        return false;
    }
    tally_out->decided.at_boundary = settled != NULL && settled->at_boundary;
    for (uint32_t i = 0; i < members; i++) {
        if (papers[i].has_voted && (settled == NULL || &papers[i] == settled) &&
            !add(&tally_out->decided, &papers[i])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < members; i++) {
        tally_out->elects[i] = papers[i].has_voted && fits(&papers[i], &tally_out->decided);
        tally_out->knows_roster = tally_out->knows_roster || (tally_out->elects[i] && papers[i].knows_roster);
    }
    return true;
}

void trib_ballot_free(trib_tally *tally)
{
    trib_paper_clear(&tally->decided);
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
