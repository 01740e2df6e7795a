/* steps.h - the codec of this example. */
#include <tributary.h>

extern const trib_codec_desc steps;

/* What a member looks for in TRIB_CODEC_LIBRARY. */
TRIB_API const trib_codec_desc *trib_codec_library(uint32_t *count_out);
