/* test_shm_scarce.c - shared memory in a process that can get no more descriptors, or no more memory. A new connection
 * waits for one, and the log and the reactor name the shortage. The log repeats itself only rarely. */
#include <errno.h>
#include <ev.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/reactor/reactor_ev.h"
#include "tests/support/descriptors.h"
#include "transports/shm/shm_internal.h"

#define LIMIT 64
#define TURNS 50 /* far more than a greeting takes */
#define GUARD_S 60

typedef struct scene {
    trib_logger logger;
    trib_reactor *reactor;
    trib_transport *transport;
    trib_listener *listener;
    trib_address address;
    trib_conn *out, *in;
    bool connected;
    unsigned closed;
    char reason[256], log[4096];
    struct rlimit before;
    uint32_t open_before;
    int taken[LIMIT];
    int taken_count;
} scene;

static bool maps_nothing;

void *__real_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
/* A sanitizer's library refers to it, too. */
__attribute__((visibility("default"))) void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd,
                                                         off_t offset);
void *__wrap_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (maps_nothing && fd >= 0) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap(at, size, protection, flags, fd, offset);
}

static bool another_is_faster;

/* Another thread has the last descriptor for a moment. */
ssize_t __real_recvmsg(int fd, struct msghdr *header, int flags);
__attribute__((visibility("default"))) ssize_t __wrap_recvmsg(int fd, struct msghdr *header, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *header, int flags)
{
    const int taken = another_is_faster ? dup(fd) : -1;
    const ssize_t got = __real_recvmsg(fd, header, flags);
    if (taken >= 0) {
        another_is_faster = false;
        close(taken);
    }
    return got;
}

static bool is_another_user;

/* Then no peer is of this process's user. */
uid_t __real_geteuid(void);
__attribute__((visibility("default"))) uid_t __wrap_geteuid(void);
uid_t __wrap_geteuid(void)
{
    return __real_geteuid() + (is_another_user ? 1 : 0);
}

static void on_accepted(trib_listener *listener, trib_conn *conn)
{
    scene *self = listener->user;
    conn->user = self;
    self->in = conn;
}

static void on_connected(trib_conn *conn, trib_status status)
{
    scene *self = conn->user;
    self->connected = status == TRIB_OK;
}

static trib_status on_header(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target)
{
    (void)conn;
    (void)header;
    (void)target;
    return TRIB_PROTOCOL;
}

static void on_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                        uint32_t payload_size)
{
    (void)conn;
    (void)header;
    (void)payload;
    (void)payload_size;
}

static void on_sent(trib_conn *conn, trib_send *send, trib_status status)
{
    (void)conn;
    (void)send;
    (void)status;
}

static void on_closed(trib_conn *conn, trib_status status, const char *reason)
{
    (void)status;
    scene *self = conn->user;
    self->closed++;
    snprintf(self->reason, sizeof self->reason, "%s", reason);
}

static const trib_transport_upcalls upcalls = {on_accepted, on_connected, on_header, on_received, on_sent, on_closed};

static void note_line(trib_log_level level, const char *line, void *user)
{
    (void)level;
    scene *self = user;
    const size_t used = strlen(self->log);
    snprintf(self->log + used, sizeof self->log - used, "%s\n", line);
}

static void scene_open(scene *self)
{
    alarm(GUARD_S);
    memset(self, 0, sizeof *self);
    self->open_before = descriptors_open();
    self->logger = (trib_logger){.level = TRIB_LOG_WARN, .cb = note_line, .user = self};
    const trib_transport_config config = {.silence_timeout_ns = 0};
    assert_int_equal(trib_reactor_ev_create(0, &self->logger, NULL, &self->reactor), TRIB_OK);
    assert_int_equal(trib_shm_ops.open(self->reactor, &config, &upcalls, &self->transport), TRIB_OK);
    assert_int_equal(trib_shm_ops.listen(self->transport, &(trib_address){.text = "127.0.0.1:0"}, self, &self->listener,
                                         &self->address, NULL),
                     TRIB_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &self->before), 0);
    const struct rlimit limit = {.rlim_cur = LIMIT, .rlim_max = self->before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void take_all(scene *self)
{
    int fd;
    while (self->taken_count < LIMIT && (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
        self->taken[self->taken_count++] = fd;
    }
    assert_true(self->taken_count < LIMIT && errno == EMFILE);
}

static void give(scene *self, int count)
{
    for (int i = 0; i < count; i++) {
        assert_true(self->taken_count > 0);
        close(self->taken[--self->taken_count]);
    }
}

static void turn(scene *self, int flags)
{
    ev_run(trib_reactor_ev_loop(self->reactor), flags);
}

static void scene_close(scene *self)
{
    give(self, self->taken_count);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &self->before), 0);
    unsigned open = 0;
    trib_conn *const conns[] = {self->out, self->in};
    for (unsigned i = 0; i < 2 && self->closed == 0; i++) {
        if (conns[i] != NULL) {
            trib_shm_ops.conn_close(conns[i], false);
            open++;
        }
    }
    while (self->closed < open) {
        turn(self, EVRUN_ONCE);
    }
    trib_shm_ops.listener_close(self->listener);
    trib_shm_ops.close(self->transport);
    trib_reactor_ev_destroy(self->reactor);
    assert_int_equal(descriptors_open(), self->open_before);
    alarm(0);
}

/* The process has only some descriptors left, and a connection has been begun. */
static void begin(scene *self, int left)
{
    scene_open(self);
    assert_int_equal(trib_shm_ops.connect(self->transport, &self->address, self, &self->out), TRIB_OK);
    take_all(self);
    give(self, left);
}

static void expect_shortage(scene *self, int error)
{
    int64_t shortage_ns = 0;
    while (trib_reactor_find_shortage(self->reactor, &shortage_ns) == 0) {
        turn(self, EVRUN_ONCE);
    }
    for (int i = 0; i < TURNS; i++) {
        turn(self, EVRUN_NOWAIT);
    }
    assert_string_equal(self->reason, "");
    assert_int_equal(self->closed, 0);
    assert_int_equal(trib_reactor_find_shortage(self->reactor, &shortage_ns), error);
    assert_non_null(strstr(self->log, "cannot accept connections for now: "));
    assert_non_null(strstr(self->log, strerror(error)));
}

/* And nothing is short any more. */
static void comes_in(scene *self)
{
    int64_t shortage_ns = 0;
    while (self->in == NULL && self->closed == 0) {
        turn(self, EVRUN_ONCE);
    }
    assert_string_equal(self->reason, "");
    assert_int_equal(trib_reactor_find_shortage(self->reactor, &shortage_ns), 0);
    while (!self->connected && self->closed == 0) {
        turn(self, EVRUN_ONCE);
    }
    assert_int_equal(self->closed, 0);
    scene_close(self);
}

/* One descriptor is left for the connection, and none for the memory that comes over it. */
static void waits_for_a_descriptor(void **state)
{
    (void)state;
    scene self;
    begin(&self, 1);
    const shm_transport *transport = (const shm_transport *)self.transport;
    while (transport->conns->outgoing) { /* until the other end has been accepted */
        turn(&self, EVRUN_ONCE);
    }
    expect_shortage(&self, EMFILE);
    give(&self, 1);
    comes_in(&self);
}

static void ends_with_one_at_the_door(void **state)
{
    (void)state;
    scene self;
    begin(&self, 1);
    expect_shortage(&self, EMFILE);
    scene_close(&self);
}

static void waits_for_a_descriptor_of_another_thread(void **state)
{
    (void)state;
    scene self;
    begin(&self, 2);
    another_is_faster = true;
    comes_in(&self);
    assert_false(another_is_faster);
}

static void waits_for_memory(void **state)
{
    (void)state;
    scene self;
    begin(&self, 2);
    maps_nothing = true;
    expect_shortage(&self, ENOMEM);
    maps_nothing = false;
    comes_in(&self);
}

/* The end names the shortage of this process, not a lost peer. */
static void has_none_to_connect_with(void **state)
{
    (void)state;
    scene self;
    scene_open(&self);
    take_all(&self);
    for (int left = 0; left < 2; left++) { /* the socket; and the memory */
        assert_int_equal(trib_shm_ops.connect(self.transport, &self.address, &self, &self.out), TRIB_SYSTEM);
        assert_int_equal(errno, EMFILE);
        assert_null(self.out);
        give(&self, 1);
    }
    scene_close(&self);
}

/* No file may be as large as the segment: the kernel would end the process that makes one all the same. */
static void may_make_no_file(void **state)
{
    (void)state;
    scene self;
    scene_open(&self);
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit low = {.rlim_cur = SHM_SEGMENT_BYTES - 1, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    int error = 0;
    const trib_status status = trib_shm_connect_now(self.transport, &self.address, &self, &self.out,
                                                    &error); /* as auto does, which takes TCP then */
    const struct rlimit enough = {.rlim_cur = SHM_SEGMENT_BYTES, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &enough), 0);
    assert_int_equal(status, TRIB_PEER_LOST);
    assert_int_equal(error, EFBIG);
    assert_null(self.out);
    assert_int_equal(trib_shm_connect_now(self.transport, &self.address, &self, &self.out, &error), TRIB_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    comes_in(&self);
}

/* Each process of another user is rejected; the log says so once. */
static void does_not_tell_of_each_other_user(void **state)
{
    (void)state;
    scene self;
    scene_open(&self);
    struct sockaddr_un name;
    socklen_t size = 0;
    assert_int_equal(trib_shm_name(&self.address, &name, &size), TRIB_OK);
    is_another_user = true;
    for (int i = 0; i < TURNS; i++) {
        const int other = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(other, (const struct sockaddr *)&name, size), 0);
        char byte = 0;
        while (recv(other, &byte, 1, MSG_DONTWAIT) != 0) {
            turn(&self, EVRUN_NOWAIT);
        }
        close(other);
    }
    int error = 0;
    assert_int_equal(trib_shm_connect_now(self.transport, &self.address, &self, &self.out, &error), TRIB_PEER_LOST);
    assert_int_equal(error, EPERM);
    is_another_user = false;
    const char *first = strstr(self.log, "rejected a process of another user");
    assert_non_null(first);
    assert_null(strstr(first + 1, "rejected a process of another user"));
    scene_close(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_for_a_descriptor),
        cmocka_unit_test(ends_with_one_at_the_door),
        cmocka_unit_test(waits_for_a_descriptor_of_another_thread),
        cmocka_unit_test(waits_for_memory),
        cmocka_unit_test(has_none_to_connect_with),
        cmocka_unit_test(may_make_no_file),
        cmocka_unit_test(does_not_tell_of_each_other_user),
    };
    return cmocka_run_group_tests_name("shm scarce", tests, NULL, NULL);
}
