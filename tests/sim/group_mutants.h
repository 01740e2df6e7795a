/* group_mutants.h - the bugs of test_mutants.c that show in groups, or where workers name different roots. */
#ifndef TRIB_TESTS_SIM_GROUP_MUTANTS_H
#define TRIB_TESTS_SIM_GROUP_MUTANTS_H

#define GROUP_BUG_LIST(X)                                                                                              \
    X(BUG_OTHER_MEMBER, "a contribution to a group counts for another member, 1 in 50")                                \
    X(BUG_ROOTS_IGNORED, "nobody notices that workers name different roots")                                           \
    X(BUG_GROUP_RELEASE_LOST, "the release of a group is not taken")                                                   \
    X(BUG_GROUP_ENDS_EARLY, "a group ends when one of its members has released it")                                    \
    X(BUG_GROUP_SUMS_KEPT, "a server keeps the aggregator of a group that has ended")
#define GROUP_BUG_ENUM(name, text) name,
#define GROUP_BUG_NAME(name, text) [name] = (text),

#endif
