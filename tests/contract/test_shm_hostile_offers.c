/*
 * test_shm_hostile_offers.c - a peer that offers memory and lies about it: in the list that this side reads, about the
 * file of an entry, and about the place of a payload.
 *
 * A payload that can be read arrives all the same, by copying; otherwise the connection ends. This side maps nothing
 * that could end its process.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "numa/pages.h"
#include "tests/contract/reactor_hand.h"
#include "tests/support/descriptors.h"
#include "tests/support/rights.h"
#include "transports/shm/shm_internal.h"

#define EXTENT TRIB_EXTENT_BYTES
#define SIZE 20000u
#define ENTRIES_MAX 1024u /* of a list */
#define TRUE_ONE 32u      /* where there is more before it than is read at once */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* ---- This side ---- */

typedef struct victim {
    trib_logger logger;
    int64_t clock_ns;
    reactor_hand hand;
    trib_transport *transport;
    trib_listener *listener;
    trib_address address;
    trib_conn *conn;
    uint32_t descriptors_before, mappings_before;
    unsigned received, in_place;
    bool is_whole; /* the received bytes are those in the sender's memory */
    uint64_t sent_from;
    bool closed;
    trib_status status;
    unsigned char target[SIZE];
} victim;

static void on_accepted(trib_listener *listener, trib_conn *conn)
{
    victim *self = listener->user;
    self->conn = conn;
    conn->user = self;
}

static void on_connected(trib_conn *conn, trib_status status)
{
    (void)conn;
    (void)status;
    fail(); /* this side makes no connections */
}

static trib_status on_header(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target)
{
    (void)header;
    victim *self = conn->user;
    memset(self->target, 0xee, SIZE);
    *target = (trib_recv_target){.buffer = self->target, .payload_size = SIZE, .in_place = true};
    return TRIB_OK;
}

static void on_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                        uint32_t payload_size)
{
    (void)header;
    victim *self = conn->user;
    assert_int_equal(payload_size, SIZE);
    self->received++;
    self->in_place += payload != self->target;
    if (self->is_whole) {
        assert_memory_equal(payload, (const void *)(uintptr_t)self->sent_from, SIZE);
    }
}

static void on_sent(trib_conn *conn, trib_send *send, trib_status status)
{
    (void)conn;
    (void)send;
    (void)status;
    fail_msg("this side sends nothing");
}

static void on_closed(trib_conn *conn, trib_status status, const char *reason)
{
    (void)reason;
    victim *self = conn->user;
    self->closed = true;
    self->status = status;
}

static const trib_transport_upcalls upcalls = {on_accepted, on_connected, on_header, on_received, on_sent, on_closed};

/* Of files without a name. */
static uint32_t mappings(void)
{
    char line[512];
    uint32_t count = 0;
    FILE *list = fopen("/proc/self/maps", "re");
    if (list == NULL) {
        fail_msg("/proc/self/maps: %s", strerror(errno));
        return 0;
    }
    while (fgets(line, sizeof line, list) != NULL) {
        count += strstr(line, "/memfd:") != NULL;
    }
    (void)fclose(list);
    return count;
}

static void victim_open(victim *self, bool copies_only)
{
    const trib_transport_config config = {.copies_only = copies_only};
    alarm(100);
    self->descriptors_before = descriptors_open();
    self->mappings_before = mappings();
    self->logger.level = TRIB_LOG_NONE;
    reactor_hand_init(&self->hand, 0, &self->logger, &self->clock_ns);
    assert_int_equal(trib_shm_ops.open(&self->hand.base, &config, &upcalls, &self->transport), TRIB_OK);
    assert_int_equal(trib_shm_ops.listen(self->transport, &(trib_address){.text = "127.0.0.1:0"}, self, &self->listener,
                                         &self->address, NULL),
                     TRIB_OK);
}

static void turn(victim *self)
{
    for (unsigned i = 0; i < 4; i++) {
        reactor_hand_turn(&self->hand);
    }
}

/* Checks that the victim keeps no descriptor and no mapping of the received offers. */
static void victim_close(victim *self)
{
    if (!self->closed) {
        trib_shm_ops.conn_close(self->conn, false);
        turn(self);
    }
    assert_true(self->closed);
    trib_shm_ops.listener_close(self->listener);
    trib_shm_ops.close(self->transport);
    assert_int_equal(descriptors_open(), self->descriptors_before);
    assert_int_equal(mappings(), self->mappings_before);
    alarm(0);
}

/* ---- The other ---- */

typedef struct offered {
    uint64_t base, size;
    int32_t fd;
    uint32_t unused;
} offered;

/* The layout that shm_memory.c reads from peers, written down a second time. */
typedef struct offered_list {
    uint32_t count;
    _Alignas(8) offered entries[ENTRIES_MAX];
} offered_list;

typedef struct liar {
    victim *victim;
    int socket;
    unsigned char *segment;
    shm_out out;
    shm_in in;
    uint64_t probe, list_address;
    unsigned char *memory;
    int fd;
    bool probe_lies, probe_changes; /* from the beginning, after the greeting */
    offered_list list;
} liar;

static void say(const liar *self, uint32_t step, int fd)
{
    shm_greeting message = {.magic = SHM_GREETING_MAGIC,
                            .version = SHM_GREETING_VERSION,
                            .step = step,
                            .reads = 1,
                            .segment_bytes = SHM_SEGMENT_BYTES,
                            .probe_address = (uintptr_t)&self->probe,
                            .probe = self->probe ^ self->probe_lies,
                            .offer_address = self->list_address};
    say_with(self->socket, &message, sizeof message, fd);
}

static int file_of(size_t size, int seals, unsigned flags)
{
    const int fd = memfd_create("hostile", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    assert_true(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

/* Two extents, and a list that is true. */
static void liar_make(liar *self, victim *other)
{
    self->victim = other;
    self->memory = trib_pages_map_shared(2 * EXTENT, &self->fd);
    assert_non_null(self->memory);
    for (size_t i = 0; i < 2 * EXTENT; i++) {
        self->memory[i] = (unsigned char)(i * 7 + i / 251);
    }
    self->probe = 0x1234567890abcdef;
    self->list.count = TRUE_ONE + 1;
    self->list.entries[TRUE_ONE] = (offered){.base = (uintptr_t)self->memory, .size = 2 * EXTENT, .fd = self->fd};
    self->list_address = (uintptr_t)&self->list;
}

static void liar_greet(liar *self)
{
    struct sockaddr_un name;
    socklen_t size = 0;
    assert_int_equal(trib_shm_name(&self->victim->address, &name, &size), TRIB_OK);
    self->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(self->socket, (const struct sockaddr *)&name, size), 0);
    const int fd = file_of(SHM_SEGMENT_BYTES, SEALS, 0);
    self->segment = mmap(NULL, SHM_SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(self->segment, MAP_FAILED);
    trib_shm_rings_open(self->segment, 0, &self->out, &self->in);
    say(self, SHM_HELLO, fd);
    close(fd);
    turn(self->victim);
    shm_greeting welcome;
    assert_int_equal(recv(self->socket, &welcome, sizeof welcome, MSG_DONTWAIT), sizeof welcome);
    say(self, SHM_READY, -1);
    turn(self->victim);
    assert_non_null(self->victim->conn);
    self->probe += self->probe_changes;
}

static void liar_send(liar *self, uint64_t address)
{
    const unsigned char header[TRIB_HEADER_SIZE] = {0};
    bool broken = false;
    unsigned char *place = trib_shm_out_reserve(
        &self->out, (shm_record){.kind = SHM_OFFERED, .size = SIZE, .address = address}, sizeof header, &broken);
    assert_non_null(place);
    memcpy(place, header, sizeof header);
    trib_shm_out_commit(&self->out);
    self->victim->sent_from = address;
    turn(self->victim);
}

static void liar_end(const liar *self)
{
    close(self->socket);
    close(self->fd);
    munmap(self->segment, SHM_SEGMENT_BYTES);
    trib_pages_unmap(NULL, self->memory, 2 * EXTENT);
}

typedef struct scene {
    victim victim;
    liar liar;
} scene;

static scene *scene_open(bool copies_only)
{
    scene *self = calloc(1, sizeof *self);
    assert_non_null(self);
    victim_open(&self->victim, copies_only);
    liar_make(&self->liar, &self->victim);
    return self;
}

static void scene_close(scene *self)
{
    liar_end(&self->liar);
    victim_close(&self->victim);
    free(self);
}

/* ---- Lies ---- */

typedef enum outcome { IN_PLACE, COPIED, ENDED } outcome;

typedef enum stand {
    WHAT_IT_IS,
    NOTHING,
    NOTHING_OPEN,
    A_DEVICE,
    A_SOCKET,
    A_PATH,
    WHAT_CAN_SHRINK,
    WHAT_IS_SHORTER,
    WHAT_IS_EMPTY,
    WHAT_IS_VAST,
    WHAT_CANNOT_BE_READ,
    HUGE_PAGES,
} stand;

/* Fields that are not set are true: one entry for all of the memory. */
typedef struct lie {
    const char *name;
    uint64_t list_address;
    uint32_t count;
    stand stand;         /* for the entry */
    uint64_t base, size; /* size 0: both are as they are; base is counted from the memory's */
    uint64_t payload;    /* counted from the memory's beginning */
    bool without_list, breaks_off, probe_lies, probe_changes;
    outcome outcome;
} lie;

#define VAST ((uint64_t)1 << 62)

static const lie lies[] = {
    {"the truth", .payload = 100},
    {"it ends where its entry ends", .payload = 2 * EXTENT - SIZE},
    {"no list", .without_list = true, .outcome = COPIED},
    {"a list nowhere", .list_address = 4096, .outcome = COPIED},
    {"a list at the end of all addresses", .list_address = UINT64_MAX - 3, .outcome = COPIED},
    {"a list in the kernel", .list_address = 0xffffffff80000000, .outcome = COPIED},
    {"a list that breaks off", .breaks_off = true, .outcome = COPIED},
    {"an entry too many", .count = ENTRIES_MAX + 1, .outcome = COPIED},
    {"four billion entries", .count = UINT32_MAX, .outcome = COPIED},
    {"nothing", .stand = NOTHING, .outcome = COPIED},
    {"nothing that is open", .stand = NOTHING_OPEN, .outcome = COPIED},
    {"a device", .stand = A_DEVICE, .outcome = COPIED},
    {"a socket", .stand = A_SOCKET, .outcome = COPIED},
    {"a path", .stand = A_PATH, .outcome = COPIED},
    {"what can shrink", .stand = WHAT_CAN_SHRINK, .outcome = COPIED},
    {"what is shorter", .stand = WHAT_IS_SHORTER, .outcome = COPIED},
    {"what is empty", .stand = WHAT_IS_EMPTY, .outcome = COPIED},
    {"what cannot be read", .stand = WHAT_CANNOT_BE_READ, .outcome = COPIED},
    {"huge pages, of which there may be none", .stand = HUGE_PAGES, .outcome = COPIED},
    {"more than there are addresses", .stand = WHAT_IS_VAST, .size = VAST, .outcome = COPIED},
    {"an odd size", .size = EXTENT + TRIB_PAGE_BYTES, .outcome = COPIED},
    {"nearly all addresses", .size = -EXTENT, .outcome = COPIED},
    {"it lies before the entry", .base = EXTENT, .size = EXTENT, .outcome = COPIED},
    {"it begins before the entry", .base = 1, .size = EXTENT, .outcome = COPIED},
    {"it lies behind the entry", .size = EXTENT, .payload = EXTENT, .outcome = COPIED},
    {"it runs over the entry's end", .size = EXTENT, .payload = EXTENT - SIZE + 1, .outcome = COPIED},
    {"another process's number", .probe_changes = true, .outcome = ENDED},
    {"it lies nowhere", .payload = (uint64_t)1 << 63, .outcome = ENDED},
    {"it runs into nothing", .breaks_off = true, .payload = EXTENT + TRIB_PAGE_BYTES - 100, .outcome = ENDED},
    {"a process that cannot be read", .probe_lies = true, .outcome = ENDED},
};

static int descriptor_of(stand which, int own)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", own);
    switch (which) {
    case A_DEVICE:
        return open("/dev/zero", O_RDWR | O_CLOEXEC);
    case A_SOCKET:
        return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    case A_PATH:
        return open("/dev/zero", O_PATH | O_CLOEXEC);
    case WHAT_CAN_SHRINK:
        return file_of(2 * EXTENT, F_SEAL_GROW, 0);
    case WHAT_IS_SHORTER:
        return file_of(EXTENT, SEALS, 0);
    case WHAT_IS_EMPTY:
        return file_of(0, SEALS, 0);
    case WHAT_IS_VAST:
        return file_of(VAST, SEALS, 0);
    case WHAT_CANNOT_BE_READ:
        return open(path, O_WRONLY | O_CLOEXEC);
    case HUGE_PAGES:
        return file_of(2 * EXTENT, SEALS, MFD_HUGETLB);
    default:
        return dup(own);
    }
}

/* A complete list, of which only the beginning can be read. */
static void break_off(liar *self)
{
    unsigned char *pages = self->memory + EXTENT;
    assert_int_equal(mprotect(pages + TRIB_PAGE_BYTES, TRIB_PAGE_BYTES, PROT_NONE), 0);
    memset(pages, 0, TRIB_PAGE_BYTES);
    memcpy(pages, &(uint32_t){ENTRIES_MAX}, sizeof(uint32_t));
    self->list_address = (uintptr_t)pages;
}

static void tell(liar *self, const lie *what)
{
    offered *entry = &self->list.entries[TRUE_ONE];
    const int fd = descriptor_of(what->stand, self->fd);
    assert_true(fd >= 0);
    close(self->fd);
    self->fd = fd;
    entry->fd = what->stand == NOTHING ? -1 : what->stand == NOTHING_OPEN ? INT32_MAX : fd;
    if (what->size != 0) {
        entry->base += what->base;
        entry->size = what->size;
    }
    self->list.count = what->count != 0 ? what->count : TRUE_ONE + 1;
    self->list_address = what->without_list ? 0 : what->list_address != 0 ? what->list_address : self->list_address;
    if (what->breaks_off) {
        break_off(self);
    }
    self->probe_lies = what->probe_lies;
    self->probe_changes = what->probe_changes;
}

static void is_known(const lie *what, bool copies_only, outcome wanted)
{
    scene *all = scene_open(copies_only);
    victim *self = &all->victim;
    tell(&all->liar, what);
    liar_greet(&all->liar);
    self->is_whole = wanted != ENDED;
    liar_send(&all->liar, (uintptr_t)all->liar.memory + what->payload);
    if (self->received != (wanted != ENDED) || self->in_place != (wanted == IN_PLACE) ||
        self->closed != (wanted == ENDED)) {
        fail_msg("%s: %u received, %u of them in place, and it %s", what->name, self->received, self->in_place,
                 self->closed ? "ended" : "goes on");
    }
    assert_int_equal(self->status != TRIB_OK, wanted == ENDED);
    if (wanted != ENDED) { /* later payloads fail in the same way */
        liar_send(&all->liar, (uintptr_t)all->liar.memory);
        assert_int_equal(self->received, 2);
        assert_int_equal(self->in_place, wanted == IN_PLACE ? 2 : 0);
    }
    scene_close(all);
}

static void believes_nothing(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        is_known(&lies[i], false, lies[i].outcome);
    }
}

/* The victim has said that it cannot read memory, and the peer sends payloads that would have to be read. */
static void is_not_made_to_read(void **state)
{
    (void)state;
    is_known(&lies[0], true, ENDED);
}

/* Pages that are taken away under a payload come back as zeroes. */
static void reads_holes(void **state)
{
    (void)state;
    scene *all = scene_open(false);
    liar *other = &all->liar;
    liar_greet(other);
    all->victim.is_whole = true;
    for (unsigned i = 0; i < 2; i++) {
        liar_send(other, (uintptr_t)other->memory);
        assert_int_equal(all->victim.in_place, i + 1);
        const int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        assert_int_equal(fallocate(other->fd, how, 0, (off_t)(2 * EXTENT)), 0);
    }
    scene_close(all);
}

/* A list ends after a bounded number of entries, even if the peer changes it all the time. */
static void maps_no_more_than_a_list_has(void **state)
{
    (void)state;
    scene *all = scene_open(false);
    liar_greet(&all->liar);
    for (unsigned i = 0; i < ENTRIES_MAX + 10 && !all->victim.closed; i++) {
        const uint64_t nowhere = ((uint64_t)i + 1) << 50;
        all->liar.list.entries[TRUE_ONE].base = nowhere;
        liar_send(&all->liar, nowhere);
    }
    assert_true(all->victim.closed);
    assert_int_equal(all->victim.in_place, ENTRIES_MAX);
    scene_close(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(believes_nothing),
        cmocka_unit_test(is_not_made_to_read),
        cmocka_unit_test(reads_holes),
        cmocka_unit_test(maps_no_more_than_a_list_has),
    };
    return cmocka_run_group_tests_name("shm hostile offers", tests, NULL, NULL);
}
