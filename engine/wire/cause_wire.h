/*
 * cause_wire.h - the cause of a failure as data, and its encoding.
 *
 * The member that finds a failure fills in a cause. Members pass it on unchanged, and it becomes text only where a
 * person reads it (engine/job/cause.h). No code parses that text. The status travels in the frame's aux, and all other
 * fields in its payload. Times travel as ages, because the clocks of different machines cannot be compared.
 */
#ifndef TRIB_ENGINE_CAUSE_WIRE_H
#define TRIB_ENGINE_CAUSE_WIRE_H

#include "engine/wire/wire.h"

typedef enum trib_cause_kind {
    TRIB_CAUSE_NOTE,            /* the detail says everything */
    TRIB_CAUSE_CONNECTION_LOST, /* a connection to the subject ended; detail: the reason */
    TRIB_CAUSE_NOT_CONNECTED,   /* no connection could be made; detail: "ADDRESS: reason" */
    TRIB_CAUSE_MEMBER_LOST,     /* the control connection to the subject ended; detail: the reason */
    TRIB_CAUSE_SILENT,          /* nothing came from the subject for silence_ns */
    TRIB_CAUSE_LEFT,            /* the subject left too early; detail: a predicate, "left the job before its workers" */
    TRIB_CAUSE_TROUBLE,         /* the subject failed by itself; detail: at which task */
    TRIB_CAUSE_SHORTAGE,        /* the subject lacks a resource; detail: a predicate, "found no memory for ..." */
    TRIB_CAUSE_DEAF,            /* the subject hears nothing from members that are heard; detail: what it reported */
    TRIB_CAUSE_KIND_COUNT
} trib_cause_kind;

typedef enum trib_cause_subject {
    TRIB_SUBJECT_NONE,
    TRIB_SUBJECT_MEMBER,      /* subject: its id */
    TRIB_SUBJECT_COORDINATOR, /* the process that keeps the membership, which may be a member too */
    TRIB_SUBJECT_TENSOR,      /* subject: the id or tag of the tensor */
    TRIB_SUBJECT_COUNT
} trib_cause_subject;

typedef struct trib_cause {
    trib_status status;
    trib_cause_kind kind;
    trib_cause_subject subject_kind;
    uint32_t subject;
    uint32_t origin;    /* the member that found the failure; TRIB_NO_MEMBER: the coordinator, or unknown */
    int64_t silence_ns; /* how long the subject had been silent when the failure was found; 0: unknown */
    char detail[TRIB_ERROR_TEXT_SIZE];
} trib_cause;

/* The largest payload of a frame that holds one cause, in bytes. */
#define TRIB_CAUSE_PAYLOAD_MAX (16u + TRIB_ERROR_TEXT_SIZE)

/* A cause without subject: the detail says everything. */
trib_cause trib_cause_note(trib_status status, uint32_t origin, const char *detail);
/* A member failed by itself, and says so. */
trib_cause trib_cause_trouble(trib_status status, uint32_t member, const char *detail);
/* A cause about a member or, with TRIB_SUBJECT_COORDINATOR, about the coordinator. */
trib_cause trib_cause_about(trib_status status, trib_cause_kind kind, trib_cause_subject subject_kind, uint32_t subject,
                            uint32_t origin, const char *detail);

/* Completes a received cause. The sender becomes the origin if none is given, and the subject if that is a member
 * without an id. */
void trib_cause_set_sender(trib_cause *cause, uint32_t sender);

/* Writes all fields except the status. */
void trib_cause_put(trib_writer *writer, const trib_cause *cause);
/* Encodes the cause as the payload of one frame, and returns its size. */
size_t trib_cause_encode(const trib_cause *cause, unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX]);
/* Decodes a cause that is the whole payload of a frame. The frame's aux is its status. Unknown kinds become
 * TRIB_CAUSE_NOTE. TRIB_PROTOCOL if the payload is malformed or the status is no error; only ENDED may bear TRIB_OK. */
TRIB_CHECKED trib_status trib_cause_decode(const trib_frame *frame, const void *payload, trib_cause *cause_out,
                                           trib_error *error);

#endif
