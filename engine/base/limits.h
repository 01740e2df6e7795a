/* limits.h - numbers that bound things in several layers. */
#ifndef TRIB_ENGINE_BASE_LIMITS_H
#define TRIB_ENGINE_BASE_LIMITS_H

#define TRIB_SUM_CHUNKS_MAX                                                                                            \
    65536u /* of a partition: a frame's chunk fits, and an aggregator's table of them is small */

#endif
