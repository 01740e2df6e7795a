/*
 * codec.h - a codec in simulated steps: engines encode and decode as ever, but with a codec that computes nothing,
 * makes as many bytes as the real one, and is charged the time that the real one takes on this machine.
 */
#ifndef TRIB_TOOLS_STUDY_CODEC_H
#define TRIB_TOOLS_STUDY_CODEC_H

#include "engine/codec/codec_auto.h"
#include "tools/study/job.h"

typedef struct study_codec {
    char text[TRIB_CODEC_TEXT_SIZE]; /* text in its one form; "": no codec */
    bool two_way;
    trib_codec_speed speed; /* speed for float32 */
} study_codec;

/* Reads "int8,two_way" and measures the codec on this machine, in real time. TRIB_INVALID, TRIB_NO_MEMORY. */
TRIB_CHECKED trib_status study_codec_read(const char *text, study_codec *codec, trib_error *error);
/* Reads the value of an option: such a text, or a number above 0 and at most 1, which is *ratio_out then. */
TRIB_CHECKED trib_status study_codec_option(const char *text, study_codec *codec, double *ratio_out, trib_error *error);
/* Bytes on the wire for each byte of gradients, mean of both ways. */
double study_codec_ratio(const study_codec *codec);
/* Writes "8.0 bits an element in place of 32, sums too". */
void study_codec_bits(const study_codec *codec, char *text, size_t size);
/* Gives the job's engines the codec. *codec and *desc must stay as they are while the job is open. Does nothing
 * without one. */
void study_codec_apply(const study_codec *codec, trib_codec_desc *desc, sim_job_config *job);

#endif
