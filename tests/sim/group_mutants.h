/* group_mutants.h - the bugs of test_mutants.c that show in groups, or where workers name different roots. */
#ifndef TRIB_TESTS_SIM_GROUP_MUTANTS_H
#define TRIB_TESTS_SIM_GROUP_MUTANTS_H

#define GROUP_BUG_LIST(X)                                                                                              \
    X(BUG_OTHER_MEMBER, 18, "a contribution to a group counts for another member, 1 in 50")                            \
    X(BUG_ROOTS_IGNORED, 13, "nobody notices that workers name different roots")                                       \
    X(BUG_GROUP_RELEASE_LOST, 87, "the release of a group is not taken")                                               \
    X(BUG_GROUPS_BY_NAME, 245, "a worker gets the oldest group of the name that awaits it, whatever its ranks")        \
    X(BUG_GROUP_ENDS_EARLY, 18, "a group ends when one of its members has released it")                                \
    X(BUG_GROUP_SUMS_KEPT, 87, "a server keeps the aggregator of a group that has ended")

#endif
