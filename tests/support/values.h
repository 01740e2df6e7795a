/* values.h - numbers as elements of any type, written without any of the engine's code, for oracles. */
#ifndef TRIB_TESTS_SUPPORT_VALUES_H
#define TRIB_TESTS_SUPPORT_VALUES_H

#include <stdint.h>

#include "api/tributary.h"

/* Sets element i of the buffer to value, which the type must hold exactly. */
void values_store(trib_dtype dtype, void *buffer, uint64_t i, double value);
/* Returns element i of the buffer; of int64 only values that a double can hold. */
double values_load(trib_dtype dtype, const void *buffer, uint64_t i);
/* Returns the nearest value that the type can hold, or the even one of two. Integers stay as they are. */
double values_round(trib_dtype dtype, double value);

#endif
