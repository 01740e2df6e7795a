/* in_place_wrap.h - counts the payloads that a member reads in others' memory, leases and has recalled, in the table
 * that all members share (in_place.h). For one source of a program. */
#ifndef TRIB_TESTS_LOOP_IN_PLACE_WRAP_H
#define TRIB_TESTS_LOOP_IN_PLACE_WRAP_H

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/uio.h>

#include "tests/loop/in_place.h"
#include "transports/shm/shm_internal.h"

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                                const struct iovec *remote, unsigned long remote_count, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                                const struct iovec *remote, unsigned long remote_count, unsigned long flags);
trib_lease *__real_trib_shm_lease(trib_conn *base, bool keeps);
trib_lease *__wrap_trib_shm_lease(trib_conn *base, bool keeps);
void __real_trib_shm_leases_expire(trib_reactor *reactor, trib_timer *timer);
void __wrap_trib_shm_leases_expire(trib_reactor *reactor, trib_timer *timer);
bool __real_trib_shm_payload_begin(shm_conn *conn, bool in_place);
bool __wrap_trib_shm_payload_begin(shm_conn *conn, bool in_place);

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long local_count,
                                const struct iovec *remote, unsigned long remote_count, unsigned long flags)
{
    const ssize_t got = __real_process_vm_readv(pid, local, local_count, remote, remote_count, flags);
    if (got > 0) {
        atomic_fetch_add(&in_place_shared()->by_kernel, (unsigned long)got);
    } else if (got < 0 && (errno == EPERM || errno == ENOSYS)) {
        atomic_fetch_add(&in_place_shared()->refused, 1);
    }
    return got;
}

/* The victim is dead before this process goes on, so its connection ends while the lease is held. */
static inline void kill_now(const shm_conn *conn)
{
    struct pollfd end = {.fd = conn->io.fd};
    kill(conn->peer.pid, SIGKILL);
    if (poll(&end, 1, 60000) == 1) {
        atomic_fetch_add(&in_place_shared()->kills, 1);
    }
}

trib_lease *__wrap_trib_shm_lease(trib_conn *base, bool keeps)
{
    in_place_table *all = in_place_shared();
    const shm_conn *conn = (const shm_conn *)base;
    if (keeps && all->scene == KILLED && conn->peer.pid == all->pids[all->victim] && conn->lease_pause == 0 &&
        atomic_fetch_add(&all->of_victim, 1) + 1 == all->lease_count) {
        kill_now(conn);
    }
    trib_lease *lease = __real_trib_shm_lease(base, keeps);
    atomic_fetch_add(&all->leases, keeps && lease != NULL);
    return lease;
}

static inline void count_recalled(const shm_conn *conn, uint64_t before)
{
    const int count = __builtin_popcountll(before) - __builtin_popcountll(conn->leased);
    atomic_fetch_add(&in_place_shared()->recalled, (unsigned)count);
}

void __wrap_trib_shm_leases_expire(trib_reactor *reactor, trib_timer *timer)
{
    const shm_conn *conn = timer->user;
    const uint64_t before = conn->leased;
    __real_trib_shm_leases_expire(reactor, timer);
    count_recalled(conn, before);
}

bool __wrap_trib_shm_payload_begin(shm_conn *conn, bool in_place)
{
    const uint64_t before = conn->leased;
    const bool is_there = __real_trib_shm_payload_begin(conn, in_place);
    count_recalled(conn, before);
    return is_there;
}

#endif
