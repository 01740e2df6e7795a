/* run_python.h - `tributary run --as`: scripts of other libraries get this project's Python package under their names. */
#ifndef TRIB_TOOLS_CLI_RUN_PYTHON_H
#define TRIB_TOOLS_CLI_RUN_PYTHON_H

#include <stdbool.h>

/* Puts the stand-in of a package ("horovod", "byteps") in front of PYTHONPATH, and the package that it stands for. Returns
 * false after an error message: the Python package is not beside this program. */
bool run_stand_in_for(const char *package);

#endif
