/* json_out.h - what a command prints where it is asked for JSON. */
#ifndef TRIB_TOOLS_JSON_OUT_H
#define TRIB_TOOLS_JSON_OUT_H

#include <stdbool.h>

#include <jansson.h>

/* Prints the object on standard output, numbers with so many digits (0: with all), and lets it go. False: there is none
 * (NULL), which is said. Whether it could be written is seen where the command ends. */
bool json_out(const char *command, json_t *object, unsigned digits);

#endif
