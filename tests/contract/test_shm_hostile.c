/*
 * test_shm_hostile.c - a peer that breaks the rules of shared memory: it scribbles in the segment while messages are
 * under way, or sends a wrong greeting.
 *
 * This side gets its sends back, reports the end once, and reads and writes nothing outside its own memory, whatever
 * the peer does.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "engine/base/half_open.h"
#include "tests/contract/hostile_bed.h"
#include "tests/support/descriptors.h"
#include "tests/support/rights.h"

#define ROUNDS 300u
#define TURNS_MAX 400u
#define WORDS_MAX 8u
#define SILENCE_NS (400 * INT64_C(1000000))

static void send_all(scene *self, end *from)
{
    for (unsigned i = 0; i < SENDS && from->conn != NULL; i++) {
        const uint32_t limits[] = {64, SHM_INLINE_MAX, 100000, TRIB_PAYLOAD_MAX};
        uint32_t size = (uint32_t)(hostile_draw(self) % limits[hostile_draw(self) % 4]);
        from->sends[i] = (trib_send){.payload = self->payload, .payload_size = size};
        memcpy(from->sends[i].header, &size, sizeof size);
        trib_shm_ops.send(from->conn, &from->sends[i]);
    }
}

/* Draws an offset where a wrong word does most harm: in a side's words, or at the place that is read next in one of the
 * rings. */
static size_t place_that_matters(scene *self, const shm_conn *conn)
{
    static const size_t words[] = {offsetof(shm_side, head),    offsetof(shm_side, tail),
                                   offsetof(shm_side, done),    offsetof(shm_side, sleeps),
                                   offsetof(shm_side, revoked), offsetof(shm_side, unreadable)};
    const uint64_t side = hostile_draw(self) % 2, which = hostile_draw(self) % (sizeof words / sizeof words[0] + 1);
    if (which < sizeof words / sizeof words[0]) {
        return side * sizeof(shm_side) + words[which];
    }
    const uint64_t next = side == 0 ? conn->out.head : conn->in.tail;
    return SHM_RINGS_OFFSET + side * SHM_RING_BYTES + next % SHM_RING_BYTES;
}

/* Values near the correct one do more harm than others, so most words are near it. */
static void scribble(scene *self, const shm_conn *conn)
{
    unsigned char *segment = conn->segment;
    for (unsigned i = 0; i < 1 + hostile_draw(self) % WORDS_MAX; i++) {
        bool word = hostile_draw(self) % 3 == 0;
        size_t at = word ? place_that_matters(self, conn)
                         : SHM_RINGS_OFFSET + hostile_draw(self) % (SHM_SEGMENT_BYTES - SHM_RINGS_OFFSET - 8) / 16 * 16;
        uint64_t old = 0;
        memcpy(&old, segment + at, sizeof old);
        const uint64_t values[] = {hostile_draw(self), old + hostile_draw(self) % 4096 * 16, old - 16, 0,
                                   hostile_draw(self) % 8 | hostile_draw(self) % (1 << 21) << 32};
        uint64_t value = values[hostile_draw(self) % 5];
        memcpy(segment + at, &value, sizeof value);
    }
}

static bool all_back(const end *self)
{
    return self->closed && self->sent == SENDS;
}

static void is_scribbled_on(way how)
{
    scene *self = hostile_open(how);
    unsigned ended = 0, in_place = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        hostile_meet(self);
        send_all(self, &self->ends[0]);
        send_all(self, &self->ends[1]);
        unsigned calm = (unsigned)(hostile_draw(self) % 8);
        for (unsigned i = 0; i < TURNS_MAX && !all_back(&self->ends[0]) && !all_back(&self->ends[1]); i++) {
            if (i >= calm && self->ends[0].conn != NULL) {
                scribble(self, (const shm_conn *)self->ends[0].conn);
            }
            hostile_turn(self);
        }
        ended += self->ends[0].closed || self->ends[1].closed;
        for (unsigned side = 0; side < 2; side++) {
            if (self->ends[side].conn != NULL) {
                trib_shm_ops.conn_close(self->ends[side].conn, false);
            }
        }
        while (!self->ends[0].closed || !self->ends[1].closed) {
            hostile_turn(self);
        }
        for (unsigned side = 0; side < 2; side++) {
            assert_int_equal(self->ends[side].sent, SENDS);
            in_place += self->ends[side].in_place;
            free(self->ends[side].target);
        }
    }
    assert_true(ended > ROUNDS / 2); /* it was noticed */
    assert_int_equal(in_place > 0, how == IN_PLACE);
    hostile_close(self);
}

static void survives_scribbling(void **state)
{
    (void)state;
    is_scribbled_on(READING);
}

static void survives_scribbling_in_place(void **state)
{
    (void)state;
    is_scribbled_on(IN_PLACE);
}

static void survives_scribbling_with_copies(void **state)
{
    (void)state;
    is_scribbled_on(COPYING);
}

/* ---- Greetings ---- */

/* Sends these bytes, with a descriptor if that is not -1, to the listener. Returns the socket. */
static int greet(scene *self, const void *bytes, size_t size, int fd)
{
    struct sockaddr_un name;
    socklen_t name_size = 0;
    assert_int_equal(trib_shm_name(&self->address, &name, &name_size), TRIB_OK);
    int raw_peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(raw_peer, (const struct sockaddr *)&name, name_size), 0);
    say_with(raw_peer, bytes, size, fd);
    return raw_peer;
}

/* The listener's side ends, without a word to its user. */
static void is_turned_away(scene *self, const void *bytes, size_t size, int fd)
{
    int raw_peer = greet(self, bytes, size, fd);
    char byte = 0;
    ssize_t got = -1;
    for (unsigned i = 0; i < TURNS_MAX && got != 0; i++) {
        hostile_turn(self);
        got = recv(raw_peer, &byte, 1, MSG_DONTWAIT);
    }
    assert_int_equal(got, 0);
    close(raw_peer);
    hostile_turn(self);
    assert_null(self->ends[1].conn);
    if (fd >= 0) {
        close(fd);
    }
}

static int memory(size_t size, int seals)
{
    int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    assert_true(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

static void turns_nonsense_away(void **state)
{
    (void)state;
    scene *self = hostile_open(READING);
    shm_greeting hello = {.magic = SHM_GREETING_MAGIC,
                          .version = SHM_GREETING_VERSION,
                          .step = SHM_HELLO,
                          .segment_bytes = SHM_SEGMENT_BYTES};
    is_turned_away(self, "GET / HTTP/1.0", 14, -1);
    is_turned_away(self, &hello, sizeof hello, -1);
    is_turned_away(self, &hello, sizeof hello - 1, memory(SHM_SEGMENT_BYTES, F_SEAL_SHRINK));
    is_turned_away(self, &hello, sizeof hello, memory(SHM_SEGMENT_BYTES, 0));
    is_turned_away(self, &hello, sizeof hello, memory(SHM_SEGMENT_BYTES - 4096, F_SEAL_SHRINK));
    is_turned_away(self, &hello, sizeof hello, memory(0, F_SEAL_SHRINK));
    is_turned_away(self, &hello, sizeof hello, open("/dev/null", O_RDWR | O_CLOEXEC));
    shm_greeting ready = hello;
    ready.step = SHM_READY;
    is_turned_away(self, &ready, sizeof ready, -1);
    shm_greeting other = hello;
    other.version++;
    is_turned_away(self, &other, sizeof other, memory(SHM_SEGMENT_BYTES, F_SEAL_SHRINK));
    hostile_close(self);
}

/* A segment that cannot be mapped is the stranger's fault, and no shortage of this process. */
static void read_only_segment_is_rejected(void **state)
{
    (void)state;
    scene *self = hostile_open(READING);
    const shm_greeting hello = {.magic = SHM_GREETING_MAGIC,
                                .version = SHM_GREETING_VERSION,
                                .step = SHM_HELLO,
                                .segment_bytes = SHM_SEGMENT_BYTES};
    char path[64];
    const int writable = memory(SHM_SEGMENT_BYTES, F_SEAL_SHRINK);
    snprintf(path, sizeof path, "/proc/self/fd/%d", writable);
    const int readable = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(readable >= 0);
    is_turned_away(self, &hello, sizeof hello, readable);
    close(writable);
    int64_t shortage_ns = 0;
    assert_int_equal(trib_reactor_find_shortage(self->reactor, &shortage_ns), 0);
    hostile_close(self);
}

/* A rejected greeting takes along the descriptors that came with it, also those of a message without a byte. */
static void keeps_no_descriptors(void **state)
{
    (void)state;
    scene *self = hostile_open(READING);
    const unsigned before = descriptors_open();
    is_turned_away(self, "", 0, open("/dev/null", O_RDWR | O_CLOEXEC));
    is_turned_away(self, "GET / HTTP/1.0", 14, open("/dev/null", O_RDWR | O_CLOEXEC));
    assert_int_equal(descriptors_open(), before);
    hostile_close(self);
}

/* Many peers send a greeting and nothing else. The oldest connections make room. */
static void ends_the_oldest(void **state)
{
    (void)state;
    scene *self = hostile_open(READING);
    const unsigned most = trib_half_open_max(), all = most + 5;
    int *crowd = calloc(all, sizeof *crowd);
    assert_non_null(crowd);
    struct sockaddr_un name;
    socklen_t name_size = 0;
    assert_int_equal(trib_shm_name(&self->address, &name, &name_size), TRIB_OK);
    const unsigned before = descriptors_open();
    for (unsigned i = 0; i < all; i++) {
        crowd[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(crowd[i], (const struct sockaddr *)&name, name_size), 0);
        hostile_turn(self);
    }
    char byte;
    for (unsigned i = 0; i < TURNS_MAX && recv(crowd[all - most - 1], &byte, 1, MSG_DONTWAIT) != 0; i++) {
        hostile_turn(self);
    }
    assert_int_equal(recv(crowd[all - most - 1], &byte, 1, MSG_DONTWAIT), 0);
    assert_int_equal(descriptors_open(), before + all + most);
    for (unsigned i = 0; i < all; i++) {
        close(crowd[i]);
    }
    free(crowd);
    hostile_close(self);
}

/* The peer sends a correct greeting, and then names a payload that is not in its memory. */
static void turns_false_addresses_away(void **state)
{
    (void)state;
    scene *self = hostile_open(READING);
    for (unsigned kind = 0; kind < 2; kind++) {
        hostile_meet(self);
        shm_conn *hostile = (shm_conn *)self->ends[0].conn;
        while (hostile->state != SHM_OPEN) {
            hostile_turn(self);
        }
        uint32_t size = kind == 0 ? 100000 : 64; /* no mapping there; and a size that is never lent */
        shm_record record = {.kind = SHM_REMOTE, .size = size, .address = kind == 0 ? 4096 : (uintptr_t)self->payload};
        bool broken = false;
        unsigned char *place = trib_shm_out_reserve(&hostile->out, record, TRIB_HEADER_SIZE, &broken);
        assert_non_null(place);
        memcpy(place, &size, sizeof size);
        trib_shm_out_commit(&hostile->out);
        for (unsigned i = 0; i < TURNS_MAX && !(self->ends[0].closed && self->ends[1].closed); i++) {
            hostile_turn(self);
        }
        assert_true(self->ends[0].closed && self->ends[1].closed);
        assert_int_equal(self->ends[1].received, 0);
        free(self->ends[1].target);
    }
    hostile_close(self);
}

/* ---- Silence ---- */

/* The peer reads nothing, but this side stood still and could not have seen that. Only time in which this side ran
 * counts. */
static void does_not_count_its_own_standstill(void **state)
{
    (void)state;
    scene *self = hostile_open_for(READING, SILENCE_NS), *other = hostile_open(READING);
    end *mine = &self->ends[1], *its = &other->ends[0];
    assert_int_equal(trib_shm_ops.connect(other->transport, &self->address, its, &its->conn), TRIB_OK);
    while (mine->conn == NULL || ((shm_conn *)its->conn)->state != SHM_OPEN) {
        hostile_turn(self);
        hostile_turn(other);
    }
    shm_conn *conn = (shm_conn *)mine->conn;
    mine->sends[0] = (trib_send){.payload_size = 0};
    trib_shm_ops.send(mine->conn, &mine->sends[0]);
    while (conn->stuck_since_ns == 0) {
        hostile_turn(self);
    }
    usleep(3 * SILENCE_NS / 1000);
    hostile_turn(self);
    assert_int_equal(conn->state, SHM_OPEN);
    while (!mine->closed) {
        hostile_turn(self);
    }
    assert_non_null(strstr(mine->reason, "the peer has read nothing for"));
    assert_non_null(strstr(mine->reason, "or kept busy by a callback, which its log names"));
    while (!its->closed) {
        hostile_turn(other);
    }
    free(its->target);
    hostile_close(other);
    hostile_close(self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survives_scribbling),
        cmocka_unit_test(survives_scribbling_in_place),
        cmocka_unit_test(survives_scribbling_with_copies),
        cmocka_unit_test(turns_nonsense_away),
        cmocka_unit_test(read_only_segment_is_rejected),
        cmocka_unit_test(turns_false_addresses_away),
        cmocka_unit_test(keeps_no_descriptors),
        cmocka_unit_test(ends_the_oldest),
        cmocka_unit_test(does_not_count_its_own_standstill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
