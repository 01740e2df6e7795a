/*
 * shm_greet.c - how two processes come to share a segment.
 *
 * The connector makes the segment, a memfd whose size is sealed, and sends it over the socket with HELLO. The acceptor
 * checks it, maps it and answers WELCOME; READY from the connector opens the connection. Both say where a random
 * number lies in their memory. A side that can read the other's number there will read payloads the same way, and says
 * so.
 *
 * Processes of other users are rejected: the kernel says which user is at the other end of the socket.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/assert.h"
#include "engine/base/descriptor.h"
#include "engine/base/fork.h"
#include "numa/pages.h"
#include "transports/shm/shm_internal.h"
#include "transports/tcp/tcp_internal.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

trib_status trib_shm_name(const trib_address *address, struct sockaddr_un *out, socklen_t *size_out)
{
    struct sockaddr_storage parsed;
    socklen_t size = 0;
    trib_status status = trib_tcp_address_parse(address, &parsed, &size);
    if (status != TRIB_OK) {
        return status;
    }
    trib_address canonical;
    trib_tcp_address_format(&parsed, &canonical);
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    /* The first byte stays 0: the name of an abstract socket, without a file. */
    int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "tributary/%s", canonical.text);
    trib_assert(length > 0 && (size_t)length < sizeof out->sun_path - 1);
    *size_out = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
    return TRIB_OK;
}

bool trib_shm_peer_allowed(int fd, pid_t *pid_out)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid()) {
        errno = EPERM;
        return false;
    }
    *pid_out = peer.pid;
    return true;
}

/* ---- Messages ---- */

static bool send_greeting(shm_conn *conn, shm_greeting_step step)
{
    shm_greeting message = {
        .magic = SHM_GREETING_MAGIC,
        .version = SHM_GREETING_VERSION,
        .step = step,
        .reads = conn->reads_peer,
        .segment_bytes = SHM_SEGMENT_BYTES,
        .probe_address = (uintptr_t)&conn->transport->probe,
        .probe = conn->transport->probe,
        .offer_address = trib_shm_offer_address(conn->transport->offer),
    };
    struct iovec bytes = {.iov_base = &message, .iov_len = sizeof message};
    _Alignas(struct cmsghdr) unsigned char control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr header = {.msg_iov = &bytes, .msg_iovlen = 1};
    if (step == SHM_HELLO) {
        header.msg_control = control;
        header.msg_controllen = sizeof control;
        struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(rights), &conn->memory_fd, sizeof(int));
    }
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    return sendmsg(conn->io.fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof message;
}

/* Returns the first descriptor that came along, -1 if none did; closes the others. */
static int take_descriptor(struct msghdr *header)
{
    int kept = -1;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part != NULL; part = CMSG_NXTHDR(header, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd = -1;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
            if (kept < 0) {
                kept = trib_descriptor_keep(fd);
            } else {
                close(fd);
            }
        }
    }
    return kept;
}

/* The message had a descriptor that this process did not get. Returns errno of the shortage; 0 if it is over, or if
 * there was none and the kernel forbids this descriptor. */
static int find_descriptor_shortage(shm_conn *conn)
{
    trib_counter_add(&conn->transport->stats.system_calls, 2);
    const int fd = trib_descriptor_keep(eventfd(0, EFD_CLOEXEC));
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0 ? 0 : errno;
}

/* Returns 1 if a greeting came, 0 if none came or it cannot be received now, -1 if the connection ends. stays: the
 * greeting stays in the socket for another attempt, because a descriptor that comes along is lost if the process has
 * no room for it. */
static int receive_greeting(shm_conn *conn, bool stays, shm_greeting *message, int *fd_out)
{
    struct iovec bytes = {.iov_base = message, .iov_len = sizeof *message};
    _Alignas(struct cmsghdr) unsigned char control[CMSG_SPACE(4 * sizeof(int))];
    struct msghdr header = {
        .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    ssize_t got = recvmsg(conn->io.fd, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT | (stays ? MSG_PEEK : 0));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return 0;
    }
    if (got <= 0) {
        char why[TRIB_REASON_MAX];
        trib_shm_conn_end(conn, TRIB_PEER_LOST, "%s", got == 0 ? "closed by the peer" : trib_log_reason(errno, why));
    }
    if (got >= 0) {
        *fd_out = take_descriptor(&header); /* an empty message can bring descriptors too */
    }
    if (got <= 0) {
        return -1;
    }
    if (got != (ssize_t)sizeof *message || message->magic != SHM_GREETING_MAGIC ||
        message->version != SHM_GREETING_VERSION || message->segment_bytes != SHM_SEGMENT_BYTES) {
        trib_shm_conn_end(
            conn, TRIB_PROTOCOL,
            "the peer speaks another version of the shared-memory transport, or is not a Tributary process");
        return -1;
    }
    if (stays && *fd_out < 0 && (header.msg_flags & MSG_CTRUNC) != 0) {
        trib_shm_conn_take_later(conn, find_descriptor_shortage(conn));
        return 0;
    }
    return 1;
}

/* Removes the greeting that was only peeked at. */
static void drop_peeked_greeting(shm_conn *conn)
{
    unsigned char byte;
    trib_counter_add(&conn->transport->stats.system_calls, 1);
    (void)recv(conn->io.fd, &byte, sizeof byte,
               MSG_DONTWAIT); /* if it stays after all, it is out of turn the next time */
}

/* ---- The segment ---- */

static bool map_segment(shm_conn *conn, int fd, unsigned side)
{
    void *segment = mmap(NULL, SHM_SEGMENT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (segment == MAP_FAILED) {
        return false;
    }
    conn->segment = segment;
    trib_shm_rings_open(segment, side, &conn->out, &conn->in);
    return true;
}

bool trib_shm_greet_begin(shm_conn *conn)
{
    conn->memory_fd = trib_pages_file("tributary", SHM_SEGMENT_BYTES);
    trib_counter_add(&conn->transport->stats.system_calls, 4);
    if (conn->memory_fd >= 0) {
        trib_fork_own(conn->memory_fd);
    }
    return conn->memory_fd >= 0 && fcntl(conn->memory_fd, F_ADD_SEALS, SEALS) == 0 &&
           map_segment(conn, conn->memory_fd, 0) && send_greeting(conn, SHM_HELLO);
}

/* Touching a segment that can shrink could kill this process, so its size must be sealed. */
static bool is_segment(shm_conn *conn, int fd)
{
    struct stat about;
    int seals = fcntl(fd, F_GET_SEALS);
    trib_counter_add(&conn->transport->stats.system_calls, 3);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &about) == 0 &&
           about.st_size == (off_t)SHM_SEGMENT_BYTES;
}

static bool can_read(shm_conn *conn, const shm_greeting *message)
{
    conn->peer.address = message->offer_address;
    conn->peer.probe_address = message->probe_address;
    conn->peer.probe = message->probe;
    return !conn->transport->config.copies_only && trib_shm_peer_can_be_read(&conn->peer);
}

/* ---- Steps ---- */

static void take_hello(shm_conn *conn, const shm_greeting *message, int fd)
{
    if (fd < 0 || !is_segment(conn, fd)) {
        trib_shm_conn_end(conn, TRIB_PROTOCOL, "the peer sent no segment of shared memory, or an unusable one");
        return;
    }
    if (!map_segment(conn, fd, 1)) {
        if (trib_acceptor_is_shortage(errno)) {
            trib_shm_conn_take_later(conn, errno);
        } else {
            trib_shm_conn_end(conn, TRIB_PROTOCOL, "cannot map the peer's segment of shared memory");
        }
        return;
    }
    drop_peeked_greeting(conn);
    trib_reactor_end_shortage(conn->transport->base.reactor);
    conn->reads_peer = can_read(conn, message);
    if (!send_greeting(conn, SHM_WELCOME)) {
        char why[TRIB_REASON_MAX];
        trib_shm_conn_end(conn, TRIB_PEER_LOST, "cannot answer the peer: %s", trib_log_reason(errno, why));
    }
}

static void take_welcome(shm_conn *conn, const shm_greeting *message)
{
    conn->reads_peer = can_read(conn, message);
    conn->peer_reads = message->reads != 0;
    trib_fork_close(conn->memory_fd);
    conn->memory_fd = -1;
    if (!send_greeting(conn, SHM_READY)) {
        char why[TRIB_REASON_MAX];
        trib_shm_conn_end(conn, TRIB_PEER_LOST, "%s", trib_log_reason(errno, why));
        return;
    }
    trib_shm_conn_opened(conn);
}

void trib_shm_greet_take(shm_conn *conn)
{
    shm_greeting message;
    int fd = -1;
    const bool mapped = conn->segment != NULL;
    if (receive_greeting(conn, !conn->outgoing && !mapped, &message, &fd) <= 0) {
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    if (message.step == SHM_HELLO && !conn->outgoing && !mapped) {
        take_hello(conn, &message, fd);
    } else if (message.step == SHM_WELCOME && conn->outgoing) {
        take_welcome(conn, &message);
    } else if (message.step == SHM_READY && !conn->outgoing && mapped) {
        conn->peer_reads = message.reads != 0;
        trib_shm_conn_opened(conn);
    } else {
        trib_shm_conn_end(conn, TRIB_PROTOCOL, "the peer sent a greeting out of turn");
    }
    if (fd >= 0) {
        close(fd);
    }
}
