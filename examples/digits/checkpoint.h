/* checkpoint.h - a file from which a training goes on: the number of steps that are done, and the model after them. */
#ifndef DIGITS_CHECKPOINT_H
#define DIGITS_CHECKPOINT_H

#include "model.h"

/* Replaces the file as a whole: whatever happens meanwhile, it is the new one or the old one. Returns false after a
 * message on standard error. */
bool checkpoint_write(const char *path, uint32_t steps, const struct model *model);

/* Reads parameters and velocity. *steps is 0, and the model untouched, if there is no such file. Returns false after a
 * message on standard error, such as for a file that is not whole. */
bool checkpoint_read(const char *path, uint32_t *steps, struct model *model);

#endif
