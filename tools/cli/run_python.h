/* run_python.h - this project's Python package, as `tributary run` finds it beside itself. */
#ifndef TRIB_TOOLS_CLI_RUN_PYTHON_H
#define TRIB_TOOLS_CLI_RUN_PYTHON_H

#include <stdbool.h>
#include <stddef.h>

/* Writes the path of a part of the package ("tributary/launch"). False if there is none. */
bool run_find_package(const char *part, char *path, size_t size);
/* For `--as`: scripts of another library get this package under its name. Puts the stand-in of that library ("horovod",
 * "byteps") in front of PYTHONPATH, and this package. Returns false after an error message: it is not beside this
 * program. */
bool run_stand_in_for(const char *package);

#endif
