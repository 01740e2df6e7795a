/* cause_wire.c - builds, encodes and decodes causes (cause_wire.h). */
#include "engine/wire/cause_wire.h"

#include <stdio.h>

#include "engine/base/assert.h"

#define NS_PER_MS INT64_C(1000000)

trib_cause trib_cause_about(trib_status status, trib_cause_kind kind, trib_cause_subject subject_kind, uint32_t subject,
                            uint32_t origin, const char *detail)
{
    trib_cause cause = {
        .status = status, .kind = kind, .subject_kind = subject_kind, .subject = subject, .origin = origin};
    snprintf(cause.detail, sizeof cause.detail, "%s", detail);
    return cause;
}

trib_cause trib_cause_note(trib_status status, uint32_t origin, const char *detail)
{
    return trib_cause_about(status, TRIB_CAUSE_NOTE, TRIB_SUBJECT_NONE, 0, origin, detail);
}

trib_cause trib_cause_trouble(trib_status status, uint32_t member, const char *detail)
{
    return trib_cause_about(status, TRIB_CAUSE_TROUBLE, TRIB_SUBJECT_MEMBER, member, member, detail);
}

void trib_cause_set_sender(trib_cause *cause, uint32_t sender)
{
    if (cause->origin == TRIB_NO_MEMBER) {
        cause->origin = sender;
    }
    if (cause->subject_kind == TRIB_SUBJECT_MEMBER && cause->subject == TRIB_NO_MEMBER) {
        cause->subject = sender;
    }
}

void trib_cause_put(trib_writer *writer, const trib_cause *cause)
{
    trib_assert(cause->kind < TRIB_CAUSE_KIND_COUNT && cause->subject_kind < TRIB_SUBJECT_COUNT);
    trib_assert(cause->silence_ns >= 0);
    const int64_t silence_ms = cause->silence_ns / NS_PER_MS;
    trib_put_u8(writer, (uint8_t)cause->kind);
    trib_put_u8(writer, (uint8_t)cause->subject_kind);
    trib_put_u32(writer, cause->subject);
    trib_put_u32(writer, cause->origin);
    trib_put_u32(writer, silence_ms < (int64_t)UINT32_MAX ? (uint32_t)silence_ms : UINT32_MAX);
    trib_put_text(writer, cause->detail);
}

size_t trib_cause_encode(const trib_cause *cause, unsigned char payload[TRIB_CAUSE_PAYLOAD_MAX])
{
    trib_writer writer = {.data = payload, .capacity = TRIB_CAUSE_PAYLOAD_MAX};
    _Static_assert(TRIB_CAUSE_PAYLOAD_MAX <= 512, "it fits into a BYE, the smallest frame with a cause");
    trib_cause_put(&writer, cause);
    trib_assert(!writer.overflow);
    return writer.size;
}

trib_status trib_cause_decode(const trib_frame *frame, const void *payload, trib_cause *cause_out, trib_error *error)
{
    trib_reader reader = {.data = payload, .left = frame->payload_size};
    trib_cause cause = {.status = TRIB_OK};
    const uint8_t kind = trib_get_u8(&reader), subject_kind = trib_get_u8(&reader);
    cause.kind = kind < TRIB_CAUSE_KIND_COUNT ? (trib_cause_kind)kind : TRIB_CAUSE_NOTE;
    cause.subject_kind = subject_kind < TRIB_SUBJECT_COUNT ? (trib_cause_subject)subject_kind : TRIB_SUBJECT_NONE;
    cause.subject = trib_get_u32(&reader);
    cause.origin = trib_get_u32(&reader);
    cause.silence_ns = (int64_t)trib_get_u32(&reader) * NS_PER_MS;
    trib_get_text(&reader, cause.detail, sizeof cause.detail);
    trib_status status = trib_get_end(&reader, trib_frame_name(frame->type), error);
    if (status == TRIB_OK && (frame->type != TRIB_FRAME_ENDED || frame->aux != TRIB_OK)) {
        status = trib_frame_take_error(frame, &cause.status, error);
    }
    if (status == TRIB_OK) {
        *cause_out = cause;
    }
    return status;
}
