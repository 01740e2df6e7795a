/*
 * cause_wire.h - why something failed, as data, and how it travels.
 *
 * Whoever finds a failure fills in a cause; it is passed on as it is, and becomes text where a person reads it (engine/job/cause.h).
 * Nothing reads the text again. The status travels in the frame's aux, the rest in its payload. Times travel as ages: clocks of
 * different machines cannot be compared.
 */
#ifndef TRIB_ENGINE_CAUSE_WIRE_H
#define TRIB_ENGINE_CAUSE_WIRE_H

#include "engine/wire/wire.h"

typedef enum trib_cause_kind {
    TRIB_CAUSE_NOTE,            /* the detail says everything */
    TRIB_CAUSE_CONNECTION_LOST, /* a connection to the subject ended; detail: why */
    TRIB_CAUSE_NOT_CONNECTED,   /* none could be made; detail: "ADDRESS: why" */
    TRIB_CAUSE_MEMBER_LOST,     /* the control connection to the subject ended; detail: why */
    TRIB_CAUSE_SILENT,          /* nothing came from the subject for silence_ns */
    TRIB_CAUSE_LEFT,            /* the subject left too early; detail: a predicate, "left the job before its workers" */
    TRIB_CAUSE_TROUBLE,         /* the subject failed by itself; detail: at what */
    TRIB_CAUSE_SHORTAGE,        /* the subject lacks a resource; detail: a predicate, "found no memory for ..." */
    TRIB_CAUSE_KIND_COUNT
} trib_cause_kind;

typedef enum trib_cause_subject {
    TRIB_SUBJECT_NONE,
    TRIB_SUBJECT_MEMBER,      /* subject: its id */
    TRIB_SUBJECT_COORDINATOR, /* the process that keeps the membership, a member or not */
    TRIB_SUBJECT_TENSOR,      /* subject: the id or tag of the tensor */
    TRIB_SUBJECT_COUNT
} trib_cause_subject;

typedef struct trib_cause {
    trib_status status;
    trib_cause_kind kind;
    trib_cause_subject subject_kind;
    uint32_t subject;
    uint32_t origin;    /* the member that found it; TRIB_NO_MEMBER: the coordinator, or not known */
    int64_t silence_ns; /* how long nothing had come from the subject when it was found; 0: not known */
    char detail[TRIB_ERROR_TEXT_SIZE];
} trib_cause;

/* The most bytes of a payload that is one cause. */
#define TRIB_CAUSE_PAYLOAD_MAX (16u + TRIB_ERROR_TEXT_SIZE)

/* A cause without subject: the detail says everything. */
trib_cause trib_cause_note(trib_status status, uint32_t origin, const char *detail);
/* A member failed by itself, and says so. */
trib_cause trib_cause_trouble(trib_status status, uint32_t member, const char *detail);
/* A cause about a member or, with TRIB_SUBJECT_COORDINATOR, about the coordinator. */
trib_cause trib_cause_about(trib_status status, trib_cause_kind kind, trib_cause_subject subject_kind, uint32_t subject,
                            uint32_t origin, const char *detail);

/* Of a cause that was received: the sender is the origin, if it did not say who is, and means itself by a member without id. */
void trib_cause_set_sender(trib_cause *cause, uint32_t sender);

/* Everything but the status. */
void trib_cause_put(trib_writer *writer, const trib_cause *cause);
/* As the payload of one frame; returns its size. */
size_t trib_cause_encode(const trib_cause *cause, unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX]);
/* The cause that is the whole payload of a frame, with the frame's aux as its status. Kinds that are not known become
 * TRIB_CAUSE_NOTE. TRIB_PROTOCOL if it is malformed, or if the status is no error; ENDED may bear TRIB_OK. */
TRIB_CHECKED trib_status trib_cause_decode(const trib_frame *frame, const void *payload, trib_cause *cause_out,
                                           trib_error *error);

#endif
