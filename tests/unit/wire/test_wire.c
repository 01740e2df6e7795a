/* test_wire.c - headers and payloads are decoded as they were encoded, and everything else is rejected. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/seal.h"
#include "tests/unit/wire/wire_bytes.h"

/* ---- Headers ---- */

static trib_frame sample(trib_frame_type type)
{
    return (trib_frame){
        .type = type,
        .payload_size = trib_frame_payload_max(type),
        .sender = 0x01020304u,
        .epoch = 0x11121314u,
        .tensor = 0x21222324u,
        .partition = 0x31323334u,
        .round = 0x41424344u,
        .chunk = 0x51525354u,
        .chunk_count = 0x61626364u,
        .size = 0x71727374u,
        .priority = -5,
        .collective = 0x81,
        .dtype = 0x82,
        .reduce = 0x83,
        .root = 0x91929394u,
        .aux = 0xa1a2a3a4u,
        .acknowledged = UINT64_C(0xd1d2d3d4d5d6d7d8),
        .scale = UINT64_C(0xb1b2b3b4c1c2c3c4),
        .prescale = 0xc5c6c7c8u,
        .step = 0xe1e2e3e4u,
        .crc = 0xd1d2d3d4u,
    };
}

#define NONE(name, offset, bytes)

static void assert_same_frame(const trib_frame *got, const trib_frame *want)
{
#define ASSERT_SAME(name, offset, bytes) assert_int_equal(got->name, want->name);
    TRIB_HEADER_LIST(NONE, ASSERT_SAME, ASSERT_SAME)
#undef ASSERT_SAME
}

/* The header is rejected with a text that contains `words`, and the caller's frame stays unchanged. */
static void assert_refused(const unsigned char header[TRIB_HEADER_SIZE], const char *words)
{
    trib_frame frame, before;
    memset(&frame, 0x5a, sizeof frame);
    memcpy(&before, &frame, sizeof frame);
    trib_error error = {.text = ""};
    assert_int_equal(trib_frame_decode(header, &frame, &error), TRIB_PROTOCOL);
    assert_int_equal(error.status, TRIB_PROTOCOL);
    assert_memory_equal(&frame, &before, sizeof frame);
    if (strstr(error.text, words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", error.text, words);
    }
}

static void test_every_type_round_trips(void **state)
{
    (void)state;
    for (unsigned type = TRIB_FRAME_NONE + 1; type < TRIB_FRAME_COUNT; type++) {
        trib_frame want = sample((trib_frame_type)type), got;
        for (int full = 0; full < 2; full++) {
            want.payload_size = full ? trib_frame_payload_max(want.type) : 0;
            unsigned char header[TRIB_HEADER_SIZE], sealed[TRIB_HEADER_SIZE];
            trib_frame_encode(&want, header);
            memcpy(sealed, header, sizeof sealed);
            header_seal(sealed);
            assert_memory_equal(header, sealed, sizeof header);
            trib_error error = {.text = ""};
            assert_int_equal(trib_frame_decode(header, &got, &error), TRIB_OK);
            assert_same_frame(&got, &want);
        }
    }
}

/* The offsets are the protocol: another release finds every field where this one puts it. */
static void test_fixed_offsets(void **state)
{
    (void)state;
    static const unsigned char want[92] = {
        0x54, 0x52, 0x49, 0x42, 20,   TRIB_FRAME_PUSH,
        0,    0,    0x00, 0x00, 0x10, 0x00, /* flags, payload_size */
        0x04, 0x03, 0x02, 0x01, 0x14, 0x13,
        0x12, 0x11, 0xe4, 0xe3, 0xe2, 0xe1, /* sender, epoch, step */
        0,    0,    0,    0,    0x24, 0x23,
        0x22, 0x21, 0x34, 0x33, 0x32, 0x31, /* group, tensor, partition */
        0x44, 0x43, 0x42, 0x41, 0x54, 0x53,
        0x52, 0x51, 0x64, 0x63, 0x62, 0x61, /* round, chunk, chunk_count */
        0x74, 0x73, 0x72, 0x71, 0xc8, 0xc7,
        0xc6, 0xc5, 0xfb, 0xff, 0xff, 0xff, /* size, prescale, priority */
        0x81, 0x82, 0x83, 0,    0x94, 0x93,
        0x92, 0x91, 0xa4, 0xa3, 0xa2, 0xa1, /* kinds, codec, root, aux */
        0xd8, 0xd7, 0xd6, 0xd5, 0xd4, 0xd3,
        0xd2, 0xd1, 0xc4, 0xc3, 0xc2, 0xc1, /* acknowledged */
        0xb4, 0xb3, 0xb2, 0xb1, 0xd4, 0xd3,
        0xd2, 0xd1, /* scale, crc */
    };
    trib_frame frame = sample(TRIB_FRAME_PUSH);
    unsigned char header[TRIB_HEADER_SIZE];
    trib_frame_encode(&frame, header);
    assert_memory_equal(header, want, sizeof want);
}

/* docs/protocol.md has one row for every field, in the order of the wire. Tests run in the tree's root. */
static void test_the_page_tells_the_offsets(void **state)
{
    (void)state;
    static const char *const rows[] = {
#define ROW(name, offset, bytes) "| " #offset " | " #bytes " | " #name " |",
        TRIB_HEADER_LIST(ROW, ROW, ROW)
#undef ROW
    };
    char line[1024];
    size_t found = 0;
    bool is_in_table = false;
    FILE *page = fopen("docs/protocol.md", "r");
    if (page == NULL) {
        fail_msg("docs/protocol.md is not here");
        return; /* not reached; for readers that do not know fail_msg */
    }
    while (fgets(line, sizeof line, page) != NULL) {
        const bool is_row = strncmp(line, "| ", 2) == 0;
        is_in_table = is_row && (is_in_table || strncmp(line, "| offset | size | field |", 25) == 0);
        if (is_in_table && line[2] >= '0' && line[2] <= '9') {
            assert_true(found < sizeof rows / sizeof rows[0]);
            if (strncmp(line, rows[found], strlen(rows[found])) != 0) {
                fail_msg("the page says %.40s, the header has %s", line, rows[found]);
            }
            found++;
        }
    }
    assert_int_equal(fclose(page), 0);
    assert_int_equal(found, sizeof rows / sizeof rows[0]);
}

static void test_every_flipped_bit_is_refused(void **state)
{
    (void)state;
    for (unsigned type = TRIB_FRAME_NONE + 1; type < TRIB_FRAME_COUNT; type++) {
        trib_frame frame = sample((trib_frame_type)type);
        unsigned char header[TRIB_HEADER_SIZE];
        trib_frame_encode(&frame, header);
        for (unsigned bit = 0; bit < 8 * TRIB_HEADER_SIZE; bit++) {
            header[bit / 8] ^= (unsigned char)(1u << bit % 8);
            assert_refused(header, bit < 32 ? "not a frame" : "checksum");
            assert_false(trib_frame_is_foreign(header)); /* a bit of its version may have flipped */
            assert_true(trib_frame_is_damaged(header, true));
            header[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
    }
}

/* Each header has a right checksum and one wrong field. */
static void test_wrong_fields_are_named(void **state)
{
    (void)state;
    trib_frame frame = sample(TRIB_FRAME_JOIN);
    unsigned char good[TRIB_HEADER_SIZE], bad[TRIB_HEADER_SIZE];
    static const char request[] =
        "GET / HTTP/1.1\r\nHost: a.b.c.d.e.f.g.h\r\nUser-Agent: something/1.0\r\nAccept: everything that there is";
    trib_frame_encode(&frame, good);
    memcpy(bad, request, sizeof bad);
    assert_refused(bad, "47 45 54 20");

    memcpy(bad, good, sizeof bad);
    bad[4] = TRIB_WIRE_VERSION + 1;
    header_seal(bad);
    assert_refused(bad, "protocol version 21, this side speaks 20");
    assert_true(trib_frame_is_foreign(bad));

    const unsigned types[] = {TRIB_FRAME_NONE, TRIB_FRAME_COUNT, 255};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        memcpy(bad, good, sizeof bad);
        bad[5] = (unsigned char)types[i];
        header_seal(bad);
        char words[32];
        (void)snprintf(words, sizeof words, "frame type %u", types[i]);
        assert_refused(bad, words);
    }
    static const struct {
        const char *name;
        size_t offset, bytes;
    } later[] = {
#define LATER(name, offset, bytes) {#name, offset, bytes},
        TRIB_HEADER_LIST(NONE, NONE, LATER)
#undef LATER
    };
    for (size_t i = 0; i < sizeof later / sizeof later[0]; i++) {
        for (size_t k = 0; k < later[i].bytes; k++) {
            memcpy(bad, good, sizeof bad);
            bad[later[i].offset + k] = 1;
            header_seal(bad);
            char words[64];
            (void)snprintf(words, sizeof words, "JOIN frame with %s %llu, which is 0", later[i].name, 1ull << 8 * k);
            assert_refused(bad, words);
        }
    }
}

/* Only chunks are encoded, and none to nothing. */
static void test_codec_belongs_to_a_payload(void **state)
{
    (void)state;
    for (unsigned type = TRIB_FRAME_NONE + 1; type < TRIB_FRAME_COUNT; type++) {
        const bool may = type == TRIB_FRAME_PUSH || type == TRIB_FRAME_SUM;
        const uint32_t some = trib_frame_payload_max((trib_frame_type)type) > 0 ? 16 : 0;
        const struct {
            uint8_t codec;
            uint32_t payload;
            bool is_right;
        } cases[] = {{3, some, may}, {0, some, true}, {3, 0, false}, {0, 0, true}};
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            trib_frame frame = sample((trib_frame_type)type), got;
            frame.codec = cases[i].codec;
            frame.payload_size = cases[i].payload;
            unsigned char header[TRIB_HEADER_SIZE];
            trib_frame_encode(&frame, header);
            if (cases[i].is_right) {
                assert_int_equal(trib_frame_decode(header, &got, NULL), TRIB_OK);
            } else {
                assert_refused(header, "codec");
            }
        }
    }
}

static void test_oversized_payload_is_refused(void **state)
{
    (void)state;
    for (unsigned type = TRIB_FRAME_NONE + 1; type < TRIB_FRAME_COUNT; type++) {
        trib_frame frame = sample((trib_frame_type)type);
        const uint32_t most = trib_frame_payload_max(frame.type);
        const uint32_t sizes[] = {most + 1, UINT32_MAX};
        assert_true(most <= TRIB_PAYLOAD_MAX);
        for (int i = 0; i < 2; i++) {
            unsigned char header[TRIB_HEADER_SIZE];
            trib_frame_encode(&frame, header);
            store_u32(header + 8, sizes[i]);
            header_seal(header);
            char words[96];
            (void)snprintf(words, sizeof words, "%s frame with a payload of %u bytes, at most %u are allowed",
                           trib_frame_name(frame.type), sizes[i], most);
            assert_refused(header, words);
        }
    }
}

static void test_coordinator_name(void **state)
{
    (void)state;
    assert_string_equal(trib_frame_name(TRIB_FRAME_HELLO), "HELLO");
    assert_string_equal(trib_frame_name(TRIB_FRAME_COUNT), "?");
}

/* ---- What a frame must agree with ---- */

/* A frame of another epoch is rejected whatever it is. A frame without an epoch is rejected if its sender must have
 * had the roster. */
static void test_epochs(void **state)
{
    (void)state;
    const trib_frame_type early[] = {
        TRIB_FRAME_HELLO, TRIB_FRAME_CHALLENGE, TRIB_FRAME_PROOF,        TRIB_FRAME_WELCOME,
        TRIB_FRAME_BYE,   TRIB_FRAME_JOIN,      TRIB_FRAME_LEAVE,        TRIB_FRAME_LOST,
        TRIB_FRAME_PING,  TRIB_FRAME_PONG,      TRIB_FRAME_ACK,          TRIB_FRAME_ADVANCE,
        TRIB_FRAME_VOTE,  TRIB_FRAME_ELECTED,   TRIB_FRAME_ROSTER_TAKEN, TRIB_FRAME_ENDED};
    for (unsigned type = TRIB_FRAME_NONE + 1; type < TRIB_FRAME_COUNT; type++) {
        bool may_be_early = false;
        for (size_t i = 0; i < sizeof early / sizeof early[0]; i++) {
            may_be_early = may_be_early || early[i] == type;
        }
        trib_frame frame = {.type = (trib_frame_type)type, .epoch = 4};
        trib_error error = {.text = ""};
        assert_int_equal(trib_frame_check_epoch(&frame, 0, &error), TRIB_OK);
        assert_int_equal(trib_frame_check_epoch(&frame, 4, &error), TRIB_OK);
        const bool crosses = type <= TRIB_FRAME_BYE || type == TRIB_FRAME_VOTE || type == TRIB_FRAME_ENDED;
        assert_int_equal(trib_frame_check_epoch(&frame, 3, &error), crosses ? TRIB_OK : TRIB_PROTOCOL);
        char words[80];
        (void)snprintf(words, sizeof words, "%s frame of epoch 4, this side is in epoch 3",
                       trib_frame_name(frame.type));
        assert_true(crosses || strcmp(error.text, words) == 0);
        frame.epoch = trib_epoch_make(77, 4);
        assert_int_equal(trib_frame_check_epoch(&frame, trib_epoch_make(77, 4), &error), TRIB_OK);
        assert_int_equal(trib_frame_check_epoch(&frame, trib_epoch_make(77, 0), &error), TRIB_OK);
        assert_int_equal(trib_frame_check_epoch(&frame, trib_epoch_make(78, 4), &error), TRIB_PROTOCOL);
        assert_non_null(strstr(error.text, "another start of this job"));
        assert_int_equal(trib_frame_check_epoch(&frame, trib_epoch_make(78, 0), &error), TRIB_PROTOCOL);
        frame.epoch = 0;
        assert_int_equal(trib_frame_check_epoch(&frame, 0, &error), TRIB_OK);
        assert_int_equal(trib_frame_check_epoch(&frame, 4, &error), may_be_early ? TRIB_OK : TRIB_PROTOCOL);
    }
}

static void test_only_errors_are_taken_as_errors(void **state)
{
    (void)state;
    const int32_t good[] = {TRIB_INVALID, TRIB_UNSUPPORTED, TRIB_PEER_LOST, TRIB_JOIN_FAILED, TRIB_SYSTEM};
    const int32_t bad[] = {TRIB_OK, TRIB_PENDING, TRIB_AGAIN, 3, -10, -39, -1000, INT32_MIN, INT32_MAX};
    trib_error error = {.text = ""};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        trib_frame frame = {.type = TRIB_FRAME_REFUSED, .aux = (uint32_t)good[i]};
        trib_status got = TRIB_OK;
        assert_int_equal(trib_frame_take_error(&frame, &got, &error), TRIB_OK);
        assert_int_equal(got, good[i]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        trib_frame frame = {.type = TRIB_FRAME_REFUSED, .aux = (uint32_t)bad[i]};
        trib_status got = TRIB_OK;
        assert_int_equal(trib_frame_take_error(&frame, &got, &error), TRIB_PROTOCOL);
        assert_int_equal(got, TRIB_OK);
        char words[80];
        (void)snprintf(words, sizeof words, "REFUSED frame with status %d, which is no error", bad[i]);
        assert_string_equal(error.text, words);
    }
}

static void test_others_are_told_what_concerns_them(void **state)
{
    (void)state;
    assert_int_equal(trib_frame_withdraw_reason(TRIB_TIMEOUT), TRIB_TIMEOUT);
    assert_int_equal(trib_frame_withdraw_reason(TRIB_MISMATCH), TRIB_MISMATCH);
    assert_int_equal(trib_frame_withdraw_reason(TRIB_UNSUPPORTED), TRIB_UNSUPPORTED);
    assert_int_equal(trib_frame_withdraw_reason(TRIB_PEER_LOST), TRIB_PEER_LOST);
    assert_int_equal(trib_frame_withdraw_reason(TRIB_NO_MEMORY), TRIB_CANCELLED);
    assert_int_equal(trib_frame_withdraw_reason(TRIB_OK), TRIB_CANCELLED);
    assert_int_equal(trib_frame_withdraw_reason((trib_status)12345), TRIB_CANCELLED);
}

/* ---- Cursors ---- */

static size_t put_all_kinds(trib_writer *writer)
{
    trib_put_u8(writer, 0xfe);
    trib_put_u16(writer, 0xfedc);
    trib_put_u32(writer, 0xfedcba98u);
    trib_put_u64(writer, 0xfedcba9876543210u);
    trib_put_text(writer, "layer.0/weight");
    trib_put_text(writer, "");
    return 1 + 2 + 4 + 8 + 2 + 14 + 2;
}

static void test_cursors_round_trip(void **state)
{
    (void)state;
    unsigned char bytes[64];
    trib_writer writer = {.data = bytes, .capacity = sizeof bytes};
    size_t size = put_all_kinds(&writer);
    assert_false(writer.overflow);
    assert_int_equal(writer.size, size);
    trib_reader reader = {.data = bytes, .left = writer.size};
    char text[32];
    assert_int_equal(trib_get_u8(&reader), 0xfe);
    assert_int_equal(trib_get_u16(&reader), 0xfedc);
    assert_int_equal(trib_get_u32(&reader), 0xfedcba98u);
    assert_true(trib_get_u64(&reader) == 0xfedcba9876543210u);
    trib_get_text(&reader, text, sizeof text);
    assert_string_equal(text, "layer.0/weight");
    trib_get_text(&reader, text, sizeof text);
    assert_string_equal(text, "");
    assert_false(reader.failed);
    assert_int_equal(reader.left, 0);
}

static void test_writer_stays_within_capacity(void **state)
{
    (void)state;
    unsigned char bytes[64];
    trib_writer whole = {.data = bytes, .capacity = sizeof bytes};
    const size_t needed = put_all_kinds(&whole);
    for (size_t capacity = 0; capacity <= needed; capacity++) {
        memset(bytes, 0xee, sizeof bytes);
        trib_writer writer = {.data = bytes, .capacity = capacity};
        (void)put_all_kinds(&writer);
        assert_int_equal(writer.overflow, capacity < needed);
        assert_true(writer.size <= capacity);
        for (size_t i = capacity; i < sizeof bytes; i++) {
            assert_int_equal(bytes[i], 0xee);
        }
    }
}

/* After one failed read every further read returns nothing, however short it is. */
static void test_reader_remembers_failure(void **state)
{
    (void)state;
    guarded memory = guarded_create();
    trib_reader reader = guarded_reader(&memory, "\1\2\3", 3);
    assert_int_equal(trib_get_u32(&reader), 0);
    assert_true(reader.failed);
    assert_true(trib_get_u8(&reader) == 0 && trib_get_u16(&reader) == 0 && trib_get_u64(&reader) == 0);
    char text[8] = "before";
    trib_get_text(&reader, text, sizeof text);
    assert_string_equal(text, "");
    guarded_destroy(&memory);
}

static void test_ends(void **state)
{
    (void)state;
    trib_error error = {.text = ""};
    trib_reader reader = {.data = (const unsigned char *)"\1\2\3", .left = 3};
    assert_int_equal(trib_get_end(&reader, "LOST", &error), TRIB_PROTOCOL);
    assert_string_equal(error.text, "LOST with 3 bytes too many");
    (void)trib_get_u16(&reader);
    (void)trib_get_u8(&reader);
    assert_int_equal(trib_get_end(&reader, "LOST", &error), TRIB_OK);
    (void)trib_get_u8(&reader);
    assert_int_equal(trib_get_end(&reader, "LOST", &error), TRIB_PROTOCOL);
    assert_string_equal(error.text, "malformed LOST");
}

static void test_error_texts(void **state)
{
    (void)state;
    guarded memory = guarded_create();
    char text[8];
    trib_reader reader = guarded_reader(&memory, "\7\0a\0\n\x7f\x1b[1", 9);
    trib_get_text(&reader, text, sizeof text);
    assert_false(reader.failed);
    assert_string_equal(text, "a????[1");

    /* One byte more than there is room for, with its terminator; one byte more than has arrived. */
    reader = guarded_reader(&memory, "\10\0abcdefgh", 10);
    trib_get_text(&reader, text, sizeof text);
    assert_true(reader.failed);
    assert_string_equal(text, "");
    reader = guarded_reader(&memory, "\4\0abc", 5);
    trib_get_text(&reader, text, sizeof text);
    assert_true(reader.failed);
    assert_string_equal(text, "");

    /* A longer text is cut when it is written. */
    char longer[1500];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    unsigned char bytes[1200];
    trib_writer writer = {.data = bytes, .capacity = sizeof bytes};
    trib_put_text(&writer, longer);
    assert_false(writer.overflow);
    assert_int_equal(writer.size, 2 + 1023);
    guarded_destroy(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_round_trips),
        cmocka_unit_test(test_fixed_offsets),
        cmocka_unit_test(test_the_page_tells_the_offsets),
        cmocka_unit_test(test_every_flipped_bit_is_refused),
        cmocka_unit_test(test_wrong_fields_are_named),
        cmocka_unit_test(test_codec_belongs_to_a_payload),
        cmocka_unit_test(test_oversized_payload_is_refused),
        cmocka_unit_test(test_coordinator_name),
        cmocka_unit_test(test_cursors_round_trip),
        cmocka_unit_test(test_writer_stays_within_capacity),
        cmocka_unit_test(test_reader_remembers_failure),
        cmocka_unit_test(test_error_texts),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_only_errors_are_taken_as_errors),
        cmocka_unit_test(test_others_are_told_what_concerns_them),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
