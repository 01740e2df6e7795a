/*
 * shm_lease.c - payloads in the peer's memory: which are being read, which are leased, and what the peer hears of it.
 *
 * A summation needs two operands, and without a lease the first would have to be copied while the second is on its
 * way. A leased payload stays in the sender's memory. The sender hears of payloads in their order, so it waits with
 * this one and those behind it.
 *
 * Invariants
 * - `done` in the segment counts payloads that are read, without a gap; leases exist only between it and `taken`.
 * - A lease ends or is recalled after LEASE_NS at most, and when SHM_LEASES_MAX payloads are waiting: a peer whose
 *   credit they use up could never send the payload that the holder waits for. After a recall no lease is given for
 *   PAUSE payloads.
 * - `reading` is set while a payload may be read in place: for the time of one payload and LEASE_NS at most, unless
 *   this process stands still. The peer may go on without it then; `revoked`, read after the last read of the payload,
 *   says whether it did.
 */
#include "transports/shm/shm_internal.h"

#include "engine/base/assert.h"

#define LEASE_NS INT64_C(500000) /* ns; a loop that waits may take twice as long */
#define PAUSE 128u               /* payloads without a lease after a recall */

static uint64_t bit_of(uint64_t number)
{
    return UINT64_C(1) << number % SHM_LEASES_MAX;
}

/* Tells the peer which payloads are read. */
static void advance_done(shm_conn *conn)
{
    const uint64_t before = conn->done, end = conn->taken - conn->presenting;
    while (conn->done < end && (conn->leased & bit_of(conn->done)) == 0) {
        conn->done++;
    }
    if (conn->done != before) {
        atomic_store_explicit(&conn->in.mine->done, conn->done, memory_order_release);
        conn->progress_owed = true;
    }
    if (conn->leased == 0 && !conn->presenting) {
        atomic_store_explicit(&conn->in.mine->reading, 0, memory_order_release);
    }
}

/* A sender that takes payloads back waits while `reading` is set before their buffers are written to, but no longer
 * than SHM_READING_NS. */
static bool is_valid(const shm_conn *conn, const shm_lease *lease)
{
    return atomic_load_explicit(&conn->in.peer->revoked, memory_order_acquire) == 0 ||
           trib_now_fast(conn->transport->base.reactor) - lease->since_ns < SHM_READING_NS / 2;
}

static bool lease_end(trib_lease *base)
{
    shm_lease *lease = (shm_lease *)base;
    shm_conn *conn = lease->conn;
    trib_assert(lease->number >= conn->done && lease->number < conn->taken);
    trib_assert((conn->leased & bit_of(lease->number)) != 0);
    trib_shm_fence(); /* `revoked` is read after the last read of the payload */
    const bool valid = is_valid(conn, lease);
    conn->leased &= ~bit_of(lease->number);
    advance_done(conn);
    return valid;
}

static void recall_lease(shm_conn *conn, uint64_t number)
{
    shm_lease *lease = &conn->leases[number % SHM_LEASES_MAX];
    trib_assert(lease->number == number);
    lease->base.recalled(&lease->base);
    trib_assert(conn->done > number || (conn->leased & bit_of(number)) == 0);
}

void trib_shm_leases_recall(shm_conn *conn)
{
    for (uint64_t number = conn->done; number < conn->taken; number++) {
        if ((conn->leased & bit_of(number)) != 0) {
            recall_lease(conn, number);
        }
    }
}

/* Recalls the oldest lease first: `done` waits for it. */
void trib_shm_leases_expire(trib_reactor *reactor, trib_timer *timer)
{
    shm_conn *conn = timer->user;
    const int64_t now_ns = trib_now_fast(reactor);
    const uint64_t before = conn->done;
    while (conn->leased != 0 && now_ns - conn->leases[conn->done % SHM_LEASES_MAX].since_ns >= LEASE_NS) {
        recall_lease(conn, conn->done);
        conn->lease_pause = PAUSE;
    }
    if (conn->done != before) {
        trib_shm_conn_wake(conn, SHM_WAKE_ON_INPUT |
                                     SHM_WAKE_ON_PROGRESS); /* a sender that does not hurry has waited long enough */
    }
    if (conn->leased != 0) {
        trib_timer_arm(reactor, timer, conn->leases[conn->done % SHM_LEASES_MAX].since_ns + LEASE_NS);
    }
}

bool trib_shm_payload_begin(shm_conn *conn, bool in_place)
{
    if (conn->taken - conn->done == SHM_LEASES_MAX) {
        recall_lease(conn, conn->done);
        conn->lease_pause = PAUSE;
    }
    conn->taken++;
    if (in_place) {
        conn->presenting = true;
        conn->began_ns = trib_now_fast(conn->transport->base.reactor);
        atomic_store_explicit(&conn->in.mine->reading, 1, memory_order_relaxed);
        trib_shm_fence();
    }
    return atomic_load_explicit(&conn->in.peer->revoked, memory_order_relaxed) == 0;
}

void trib_shm_payload_end(shm_conn *conn)
{
    conn->presenting = false;
    advance_done(conn);
}

trib_lease *trib_shm_lease(trib_conn *base, bool past_upcall)
{
    shm_conn *conn = (shm_conn *)base;
    const uint64_t number = conn->taken - 1;
    if (!conn->presenting || (conn->leased & bit_of(number)) != 0 || (past_upcall && conn->state != SHM_OPEN)) {
        return NULL;
    }
    if (past_upcall && conn->lease_pause > 0) {
        conn->lease_pause--;
        return NULL;
    }
    shm_lease *lease = &conn->leases[number % SHM_LEASES_MAX];
    *lease = (shm_lease){.base = {.end = lease_end}, .conn = conn, .number = number, .since_ns = conn->began_ns};
    conn->leased |= bit_of(number);
    if (past_upcall && !conn->lease_timer.armed) {
        trib_timer_arm(conn->transport->base.reactor, &conn->lease_timer, lease->since_ns + LEASE_NS);
    }
    return &lease->base;
}
