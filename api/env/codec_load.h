/* codec_load.h - codecs from a shared object (TRIB_CODEC_LIBRARY), for members without a program of their own too. */
#ifndef TRIB_API_CODEC_LOAD_H
#define TRIB_API_CODEC_LOAD_H

#include "api/tributary.h"

/* Puts the library's codecs behind the program's: config->codecs is then *memory_out, which the caller frees when the
 * engine has its copy. Without a library nothing changes, and *memory_out is NULL. */
TRIB_CHECKED trib_status trib_codecs_load(trib_config *config, trib_codec_desc **memory_out, trib_error *error);

#endif
