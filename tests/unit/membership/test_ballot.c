/* test_ballot.c - what votes decide, whose votes count then, and majorities. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/membership/ballot.h"

enum { MEMBERS = 4, TENSORS = 2 };

/* Votes of four members; the last one has not voted. */
typedef struct ballot {
    uint32_t rounds[MEMBERS][TENSORS];
    trib_vote votes[MEMBERS];
    trib_tally tally;
} ballot;

static void begin(ballot *self)
{
    *self = (ballot){.rounds = {{3, 5}, {3, 5}, {3, 5}, {9, 9}}};
    for (uint32_t i = 0; i < MEMBERS; i++) {
        self->votes[i] = (trib_vote){.has_voted = i < 3, .rounds = self->rounds[i], .count = TENSORS};
    }
}

/* elects: the members whose votes count, a set. */
static void expect(ballot *self, uint32_t first, uint32_t second, uint32_t elects)
{
    assert_true(trib_ballot_tally(self->votes, MEMBERS, &self->tally));
    const trib_vote *decided = &self->tally.decided;
    assert_int_equal(decided->count > 0 ? decided->rounds[0] : 0, first);
    assert_int_equal(decided->count > 1 ? decided->rounds[1] : 0, second);
    for (uint32_t i = 0; i < MEMBERS; i++) {
        assert_int_equal(self->tally.elects[i], elects >> i & 1);
    }
    trib_ballot_free(&self->tally);
}

static void a_success_of_one_is_everybodys(void **state)
{
    (void)state;
    ballot self;
    begin(&self);
    self.rounds[1][1] = 6;
    self.rounds[2][0] = 4;
    expect(&self, 4, 6, 7);
    self.votes[1].count = 0; /* it knows no tensor yet */
    expect(&self, 4, 5, 7);
}

/* A decision that was taken before is neither extended nor cut short. */
static void an_earlier_decision_holds(void **state)
{
    (void)state;
    ballot self;
    begin(&self);
    self.votes[1].is_settled = true;
    self.rounds[2][0] = 4; /* has succeeded there, and cannot be undone */
    expect(&self, 3, 5, 3);
    self.rounds[2][0] = 2;
    expect(&self, 3, 5, 7);
    self.rounds[1][1] = 6;
    expect(&self, 3, 6, 7);
}

static void the_latest_decision_holds(void **state)
{
    (void)state;
    ballot self;
    for (uint32_t latest = 0; latest < 2; latest++) {
        begin(&self);
        self.votes[0].is_settled = self.votes[1].is_settled = true;
        self.votes[latest].settled_ballot = 2;
        self.votes[1 - latest].settled_ballot = 1;
        self.rounds[latest][0] = 4;
        expect(&self, 4, 5, 4 | 1u << latest);
    }
}

/* Where operations go on over a loss a boundary ends them, so a voter must have taken the end for the same. */
static void the_end_of_an_epoch_is_part_of_the_decision(void **state)
{
    (void)state;
    ballot self;
    begin(&self);
    self.votes[0].is_settled = self.votes[0].at_boundary = true;
    self.votes[1].is_settled = true;
    self.votes[1].settled_ballot = 1;
    expect(&self, 3, 5, 6);
    assert_false(self.tally.decided.at_boundary);
    self.votes[0].settled_ballot = 2;
    expect(&self, 3, 5, 5);
}

static void one_that_counts_knows_the_roster(void **state)
{
    (void)state;
    ballot self;
    for (uint32_t knows = 0; knows < MEMBERS; knows++) {
        begin(&self);
        self.votes[0].is_settled = true;
        self.rounds[2][1] = 6; /* so that its vote does not count */
        self.votes[knows].knows_roster = true;
        assert_true(trib_ballot_tally(self.votes, MEMBERS, &self.tally));
        assert_int_equal(self.tally.knows_roster, knows < 2);
        trib_ballot_free(&self.tally);
    }
}

static void majorities(void **state)
{
    (void)state;
    const trib_majority known = {.votes = 2, .electors = 4, .knows_roster = true, .before = 9};
    assert_false(trib_ballot_is_majority(&known, false));
    assert_true(trib_ballot_is_majority(&known, true));
    trib_majority unknown = {.votes = 3, .electors = 4, .former = 2, .before = 4};
    assert_false(trib_ballot_is_majority(&unknown, false));
    assert_true(trib_ballot_is_majority(&unknown, true));
    unknown.former = 3;
    assert_true(trib_ballot_is_majority(&unknown, false));
    unknown.votes = 1;
    assert_false(trib_ballot_is_majority(&unknown, true));
}

static void newcomers_are_the_last(void **state)
{
    (void)state;
    for (uint32_t member = 0; member < 6; member++) {
        assert_int_equal(trib_ballot_is_newcomer(5, 2, member), member == 3 || member == 4);
        assert_false(trib_ballot_is_newcomer(5, 0, member));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_success_of_one_is_everybodys),
        cmocka_unit_test(an_earlier_decision_holds),
        cmocka_unit_test(the_latest_decision_holds),
        cmocka_unit_test(the_end_of_an_epoch_is_part_of_the_decision),
        cmocka_unit_test(one_that_counts_knows_the_roster),
        cmocka_unit_test(majorities),
        cmocka_unit_test(newcomers_are_the_last),
    };
    return cmocka_run_group_tests_name("ballot", tests, NULL, NULL);
}
