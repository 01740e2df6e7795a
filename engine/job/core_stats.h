/* core_stats.h - the counters of one reactor: written on its thread, read from anywhere. */
#ifndef TRIB_ENGINE_CORE_STATS_H
#define TRIB_ENGINE_CORE_STATS_H

#include "engine/base/counter.h"

typedef struct trib_core_stats {
    trib_counter bytes_pushed, bytes_pulled;
    trib_counter bytes_summed, bytes_sum_sent;
    trib_counter bytes_relayed;
    trib_counter bytes_direct;
    trib_counter messages_sent, messages_received;
    trib_counter allocations;
    trib_counter peers_refused;
    trib_counter payloads_damaged;
    trib_counter connections;
    trib_counter reconnections;
} trib_core_stats;

#endif
