/* steps.h - the codec of this example. */
#include <tributary.h>

extern const trib_codec_desc steps;

/* Members call this function of the library that TRIB_CODEC_LIBRARY names. */
TRIB_API const trib_codec_desc *trib_codec_library(uint32_t *count_out);
