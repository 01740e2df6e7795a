/*
 * fuzz_wire.c - bytes from any peer: decoding a header, a roster, a member's description or a cause must not crash, and
 * an accepted input must encode to the same bytes again. A cause can be rendered, too.
 *
 * The first byte of the input chooses the kind of the rest: its remainder by 4 is 0 for a header, 1 for a roster, 2 for
 * a member, 3 for a cause.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cluster/roster.h"
#include "engine/job/cause.h"
#include "engine/wire/wire.h"
#include "tests/support/seal.h"

/* Offset of t_opt_factor in the roster's head. The factor travels in billionths, and rounding it again may change it
 * by one. */
#define FACTOR_OFFSET 36u
#define VERSION_OFFSET 4u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* A failed decode gives a reason, with the status of a protocol error or of memory that ran out. */
static void require_refusal(trib_status status, const trib_error *error)
{
    require(status == TRIB_PROTOCOL || status == TRIB_NO_MEMORY);
    require(error->status == status && memchr(error->text, '\0', sizeof error->text) != NULL && error->text[0] != '\0');
}

static void try_header(const uint8_t data[TRIB_HEADER_SIZE])
{
    trib_frame frame;
    trib_error error = {.text = ""};
    trib_status status = trib_frame_decode(data, &frame, &error);
    if (status != TRIB_OK) {
        require_refusal(status, &error);
        return;
    }
    unsigned char again[TRIB_HEADER_SIZE];
    trib_frame_encode(&frame, again);
    require(memcmp(again, data, sizeof again) == 0);
}

/* As of this release, with nothing where nothing may be yet, and with its own checksum: nearly all that is made up
 * ends at these, whatever else is in it. */
static void try_sealed_header(const uint8_t data[TRIB_HEADER_SIZE])
{
    unsigned char header[TRIB_HEADER_SIZE];
    memcpy(header, data, sizeof header);
    header[VERSION_OFFSET] = TRIB_WIRE_VERSION;
#define NONE(name, offset, bytes)
#define CLEAR(name, offset, bytes) memset(header + (offset), 0, bytes);
    TRIB_HEADER_LIST(NONE, NONE, CLEAR)
#undef CLEAR
#undef NONE
    header_seal(header);
    try_header(header);
}

/* Decoding makes some bytes plain (control bytes in texts, a flag above 1) but never moves or resizes anything. So the
 * first encoding has the size of the input, and encodes to itself again. */
static void require_fixed_point(const trib_writer *first, const trib_writer *second, size_t taken)
{
    require(!first->overflow && !second->overflow);
    require(first->size == taken && second->size == taken);
    require(memcmp(first->data, second->data, taken) == 0);
}

static trib_roster *roster_again(const trib_roster *roster, trib_writer *writer)
{
    trib_roster *again = NULL;
    trib_roster_put(writer, roster);
    trib_reader reader = {.data = writer->data, .left = writer->size};
    require(trib_roster_get(&reader, &again, NULL) == TRIB_OK && reader.left == 0);
    return again;
}

static void try_roster(const uint8_t *data, size_t size)
{
    trib_reader reader = {.data = data, .left = size};
    trib_roster *roster = NULL;
    trib_error error = {.text = ""};
    trib_status status = trib_roster_get(&reader, &roster, &error);
    if (status != TRIB_OK) {
        require(roster == NULL);
        require_refusal(status, &error);
        return;
    }
    const size_t taken = size - reader.left;
    require(taken > FACTOR_OFFSET + 8 && isfinite(roster->t_opt_factor) && roster->t_opt_factor >= 0);
    roster->t_opt_factor = 0;
    unsigned char *bytes = malloc(2 * taken);
    require(bytes != NULL);
    trib_writer first = {.data = bytes, .capacity = taken}, second = {.data = bytes + taken, .capacity = taken};
    trib_roster *again = roster_again(roster, &first);
    free(roster_again(again, &second));
    require_fixed_point(&first, &second, taken);
    /* The head holds numbers only, so its encoding equals the input. */
    require(memcmp(first.data, data, FACTOR_OFFSET) == 0);
    for (uint32_t i = 0; i < roster->member_count; i++) {
        require(strcmp(trib_roster_name(roster, i), trib_roster_name(again, i)) == 0);
    }
    free(bytes);
    free(again);
    free(roster);
}

static void try_member(const uint8_t *data, size_t size)
{
    trib_reader reader = {.data = data, .left = size};
    trib_member_info info, again;
    trib_error error = {.text = ""};
    trib_status status = trib_member_info_get(&reader, &info, &error);
    if (status != TRIB_OK) {
        require_refusal(status, &error);
        return;
    }
    const size_t taken = size - reader.left;
    unsigned char *bytes = malloc(2 * taken);
    require(bytes != NULL);
    trib_writer first = {.data = bytes, .capacity = taken}, second = {.data = bytes + taken, .capacity = taken};
    trib_member_info_put(&first, &info);
    trib_reader back = {.data = first.data, .left = first.size};
    require(trib_member_info_get(&back, &again, NULL) == TRIB_OK && back.left == 0);
    trib_member_info_put(&second, &again);
    require_fixed_point(&first, &second, taken);
    free(bytes);
}

static void try_cause(const uint8_t *data, size_t size)
{
    const trib_frame frame = {.type = TRIB_FRAME_LOST, .aux = (uint32_t)TRIB_PEER_LOST, .payload_size = (uint32_t)size};
    trib_cause cause, again;
    trib_error error = {.text = ""};
    const trib_status status = trib_cause_decode(&frame, data, &cause, &error);
    if (status != TRIB_OK) {
        require_refusal(status, &error);
        return;
    }
    unsigned char bytes[2][TRIB_CAUSE_PAYLOAD_MAX];
    trib_writer first = {.data = bytes[0], .capacity = size}, second = {.data = bytes[1], .capacity = size};
    require(size <= TRIB_CAUSE_PAYLOAD_MAX);
    trib_cause_put(&first, &cause);
    require(trib_cause_decode(&frame, first.data, &again, NULL) == TRIB_OK);
    trib_cause_put(&second, &again);
    require_fixed_point(&first, &second, size);
    const trib_cause_reader reader = {.member = 1, .worker_count = 2, .coordinator_address = "127.0.0.1:1"};
    char text[TRIB_ERROR_TEXT_SIZE];
    trib_cause_render(&cause, &reader, text);
    require(strnlen(text, sizeof text) < sizeof text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    switch (data[0] % 4) {
    case 0:
        if (size > TRIB_HEADER_SIZE) {
            try_header(data + 1);
            try_sealed_header(data + 1);
        }
        break;
    case 1:
        try_roster(data + 1, size - 1);
        break;
    case 2:
        try_member(data + 1, size - 1);
        break;
    default:
        try_cause(data + 1, size - 1);
        break;
    }
    return 0;
}
