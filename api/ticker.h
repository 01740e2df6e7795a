/*
 * ticker.h - a thread beside the reactors that does something for an engine again and again.
 *
 * It is for work that must not wait for a reactor: writing to a file, or seeing that a reactor does not go on.
 */
#ifndef TRIB_API_TICKER_H
#define TRIB_API_TICKER_H

#include "engine/job/job.h"

/* Returns the pause before the next turn; pause_ns was the one before this turn. */
typedef int64_t (*trib_ticker_turn)(trib_engine *engine, int64_t pause_ns);

/* Returns 0 or an errno. The first turn comes after first_ns. */
int trib_ticker_start(struct trib_ticker **ticker_out, trib_engine *engine, trib_ticker_turn turn, int64_t first_ns);
/* Before the engine is freed, on a thread that may block; waits for the turn that is under way. NULL is fine. */
void trib_ticker_stop(struct trib_ticker *ticker);

#endif
