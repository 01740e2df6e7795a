/* codec_oracle.h - sums of a party in a codec, over several rounds, compared with the pure codecs' results for the same
 * elements, chunk by chunk, with residuals and momenta kept here. */
#ifndef TRIB_TESTS_LOOP_CODEC_ORACLE_H
#define TRIB_TESTS_LOOP_CODEC_ORACLE_H

#include "tests/loop/party.h"

/* Runs the rounds of one tensor. `flags` are the tensor's. So many workers that follow each other are `shared` by one
 * machine, whose devices sum first. Fails the test if a bit differs, or if hardly fewer bytes are pushed. */
void codec_oracle_run(const party *self, const char *text, uint32_t flags, uint32_t shared);
/* The same in each codec and each way to have it; under the thread sanitizer in every fourth, others in each call. */
void codec_oracle_run_all(const party *self, uint32_t flags, uint32_t shared);
/* An element of a contribution: a multiple of 1 / 1024, so that few of them add up exactly. */
float codec_oracle_value(uint32_t rank, uint32_t round, uint64_t i);
/* Bytes that the party has pushed. */
uint64_t codec_oracle_pushed(const party *self);

#endif
