/* json_out.h - the JSON output of the subcommands. */
#ifndef TRIB_TOOLS_CLI_JSON_OUT_H
#define TRIB_TOOLS_CLI_JSON_OUT_H

#include <stdbool.h>

#include <jansson.h>

/* Prints the object on standard output and releases it; numbers have `digits` digits (0: all). Returns false for NULL,
 * after an error message. A failed write is noticed where the command ends. */
bool json_out(const char *command, json_t *object, unsigned digits);

#endif
