/*
 * task_codec.h - a tensor's codec, and a task's state for it: encoded chunks, residuals, momenta.
 *
 * Sums of a tensor with a codec travel encoded in every all-reduce that sums or averages. All other operations on it
 * travel as they are.
 */
#ifndef TRIB_ENGINE_TASK_CODEC_H
#define TRIB_ENGINE_TASK_CODEC_H

#include "engine/codec/encoding.h"
#include "engine/worker/op.h"

typedef struct trib_task_codec {
    trib_codec_memory memory; /* state, residual and momentum of the partition */
    trib_view encoded;        /* chunk_bytes is the room of a chunk, with its description */
    trib_view answers;        /* encoded sums; no data: sums come back without encoding */
    uint32_t *sizes;          /* by chunk: bytes of the encoded contribution */
    uint32_t *answer_sizes;   /* by chunk: bytes of the encoded sum */
    uint32_t element;         /* bytes of an element */
    bool is_used;             /* this round's contribution travels encoded */
    bool is_open;             /* its encoding has begun, and it has not settled */
    trib_view there;          /* the round's chunks, if a device has encoded them; no data: no device has */
    uint32_t there_at;        /* size of the number before each chunk here and there: its bytes, as uint32_t */
    trib_view handed; /* the round's encoded sums, laid out for a device to decode; no data: processors decode */
    bool is_there;    /* the device has encoded the round's contribution */
    bool keeps_there; /* a device has the residual and the momentum */
    trib_codec_returned *returned; /* oldest first: contributions that the device is to add to its residual */
    trib_codec_returned *given;    /* the same, for the device's next job or in its hands: nothing is added to these */
    bool is_on_host;               /* the round's contribution has come to COMPRESS, and lies in host memory */
    uint32_t chunks_encoded;       /* chunks of this round that are encoded */
    uint32_t chunk_to_decode;      /* the next chunk to decode */
    trib_task *task;
    trib_post post; /* encodes, or decodes, the next chunk */
    struct trib_codec_kept
        *kept; /* rounds that were given up after all chunks were sent, and that the owner has not answered */
} trib_task_codec;

/* Chooses the codec of a tensor at its declaration: the one that the declaration names, else the job's if the tensor
 * can have it. TRIB_INVALID or TRIB_UNSUPPORTED: the tensor cannot have the codec that it names. */
TRIB_CHECKED trib_status trib_codec_choose(const trib_engine *engine, const trib_tensor_desc *desc,
                                           trib_codec_config *config, trib_error *error);
/* TRIB_MISMATCH: the tensor was declared before with another codec. */
TRIB_CHECKED trib_status trib_codec_check_same(const trib_tensor *tensor, const trib_tensor_desc *desc,
                                               const trib_codec_config *config, trib_error *error);
/* Between two epochs: gives the tensor the codec of its declaration again. */
void trib_codec_reset(trib_tensor *tensor);
/* Takes the coordinator's choice for a tensor whose codec is "auto"; `choice` is its number, 0: none. TRIB_PROTOCOL:
 * there is no such choice. */
TRIB_CHECKED trib_status trib_codec_take_choice(trib_tensor *tensor, uint32_t choice, trib_error *error);
/* At placement: gives up a codec that chunks of this size, or a job with relays, cannot have. Returns false, with the
 * reason in `text`, if the tensor names it. */
bool trib_codec_place_tensor(trib_tensor *tensor, char *text, size_t size);
/* Bytes of room for an encoded chunk, with its description. */
uint64_t trib_codec_chunk_room(const trib_tensor *tensor);
/* Takes a task's memory; does nothing without a codec. Returns false if there is none. */
TRIB_CHECKED bool trib_task_codec_open(trib_task *task);
void trib_task_codec_close(trib_task *task);

/* True if contributions to the operation travel encoded, where their tensor has a codec. */
bool trib_codec_travels(const trib_op *op);
uint32_t trib_task_chunk_elements(const trib_task *task, uint32_t chunk);
/* The codec's memory from a chunk on. */
trib_codec_memory trib_task_chunk_memory(const trib_task *task, uint32_t chunk);

/* True if the operation's contribution will travel encoded. */
bool trib_task_will_encode(const trib_task *task);
/* The place of the task's first chunk in this round. */
trib_codec_place trib_task_first_place(const trib_task *task);
/* A device encodes this round's contribution: each chunk has `room` bytes from `data` on, its encoded ones from `at`
 * on. They are there when the task comes to COMPRESS. */
void trib_task_note_encoded(trib_task *task, unsigned char *data, uint32_t room, uint32_t at);
/* Gives what was returned to a job of the device. It stays as it is until the job is back. */
const trib_codec_returned *trib_task_give_returned(trib_task *task);
/* The device has taken back what was given to it. */
void trib_task_note_taken_back(trib_task *task);
/* The device has encoded the contribution. */
void trib_task_note_there(trib_task *task);
/* The device could not encode, so the elements have arrived unencoded. */
void trib_task_note_plain(trib_task *task);
/* COMPRESS: sets the views. Returns true if this operation travels encoded. */
bool trib_task_encode_prepare(trib_task *task);
/* Encodes the contribution from the event loop, a chunk at a time, and resumes the pipeline. The operation fails with
 * TRIB_INVALID if a program's codec does. */
void trib_task_encode_begin(trib_core *core, trib_task *task);
/* DECOMPRESS: returns true if sums arrived encoded. */
bool trib_task_decode_prepare(const trib_task *task);
/* A device decodes this round's sums, if all arrived encoded: decode_begin checks them, and lays them out as
 * note_encoded says. Returns false if some arrived unencoded. */
bool trib_task_hand_sums(trib_task *task, unsigned char *data, uint32_t room, uint32_t at);
/* True if decode_begin has laid the encoded sums out for a device. */
static inline bool trib_task_has_handed_sums(const trib_task *task)
{
    return task->codec != NULL && task->codec->handed.data != NULL;
}
/* Decodes the sums from the event loop, a chunk at a time, and resumes the pipeline. The operation fails if a sum
 * cannot be decoded. */
void trib_task_decode_begin(trib_core *core, trib_task *task);
/* The codec's number in the PUSH of a chunk, and its bytes. 0: the chunk travels unencoded. */
uint8_t trib_task_push_codec(const trib_task *task, uint32_t chunk, uint32_t *bytes);
/* True if the sum of the chunk comes back encoded, in at most *room bytes. */
bool trib_task_awaits_encoded(const trib_task *task, uint32_t chunk, uint32_t *room);
/* Notes that the sum of the chunk has arrived: encoded to that many bytes, or unencoded (0). */
void trib_task_note_answer(trib_task *task, uint32_t chunk, uint32_t bytes);
/* The place where the sum of a chunk lands, encoded or not. */
unsigned char *trib_task_sum_place(const trib_task *task, uint32_t chunk, bool is_encoded);
/* The task settles. With feedback, chunks that were not sent, or are in no sum, go back into the residual. If only the
 * owner's answer will say whether a chunk is in a sum (worker_held.c), its encoded bytes are kept until then. */
void trib_task_codec_settled(trib_task *task);
/* As trib_task_codec_settled, for a round that never began. On a device its contribution is lost. */
void trib_task_codec_skipped(trib_task *task, const trib_op *op);
/* The owner has answered a round that was given up here: it has summed it, or refused it. */
void trib_task_codec_answered(trib_task *task, uint32_t round, bool is_refused);

#endif
