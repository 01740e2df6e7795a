/*
 * fuzz_wire.c - for any bytes of a peer, decoding a header, a roster or a member's description does not crash, and
 * accepted bytes are encoded to the same bytes again.
 *
 * The first byte of the input chooses what the rest is: its remainder by 3 is 0 for a header, 1 for a roster, 2 for
 * a member.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cluster/roster.h"
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

/* Tries the header as of this release, and with a right checksum: nearly all random headers fail at these two,
 * whatever else they contain. */
static void try_sealed_header(const uint8_t data[TRIB_HEADER_SIZE])
{
    unsigned char header[TRIB_HEADER_SIZE];
    memcpy(header, data, sizeof header);
    header[VERSION_OFFSET] = TRIB_WIRE_VERSION;
    header_seal(header);
    try_header(header);
}

/* Decoding makes some bytes plain (control bytes in texts, a flag above 1) but never moves or resizes anything. So
 * the first encoding has the size of what was read, and encodes to itself again. */
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    switch (data[0] % 3) {
    case 0:
        if (size > TRIB_HEADER_SIZE) {
            try_header(data + 1);
            try_sealed_header(data + 1);
        }
        break;
    case 1:
        try_roster(data + 1, size - 1);
        break;
    default:
        try_member(data + 1, size - 1);
        break;
    }
    return 0;
}
