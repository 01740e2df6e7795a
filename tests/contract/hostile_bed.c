/* hostile_bed.c - see hostile_bed.h. */
#include "tests/contract/hostile_bed.h"

#include <ev.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

uint64_t hostile_draw(scene *self)
{
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    return self->random;
}

/* ---- Upcalls ---- */

static void on_accepted(trib_listener *listener, trib_conn *conn)
{
    scene *self = listener->user;
    conn->user = &self->ends[1];
    self->ends[1].conn = conn;
}

static void on_connected(trib_conn *conn, trib_status status)
{
    (void)conn;
    (void)status;
}

static trib_status on_header(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], trib_recv_target *target)
{
    end *self = conn->user;
    uint32_t size = 0;
    memcpy(&size, header, sizeof size);
    if (size > TRIB_PAYLOAD_MAX) {
        return TRIB_PROTOCOL;
    }
    free(self->target);
    self->target = malloc(size + 1);
    assert_non_null(self->target);
    *target = (trib_recv_target){.buffer = self->target, .payload_size = size, .in_place = true};
    return TRIB_OK;
}

static void on_recalled(trib_lease *lease)
{
    end *self = lease->user;
    assert_true(self->leases > 0 && !self->closed);
    self->leases--;
    (void)lease->end(lease);
}

static void on_received(trib_conn *conn, const unsigned char header[TRIB_HEADER_SIZE], const void *payload,
                        uint32_t payload_size)
{
    end *self = conn->user;
    uint32_t size = 0;
    memcpy(&size, header, sizeof size);
    assert_int_equal(payload_size, size);
    const unsigned char *bytes = payload;
    assert_true(size == 0 || bytes[0] + bytes[size - 1] <= 510);
    self->received++;
    self->in_place += payload != self->target;
    trib_lease *lease = size % 2 == 0 ? trib_shm_ops.lease(conn, true) : NULL;
    if (lease != NULL) {
        lease->recalled = on_recalled;
        lease->user = self;
        self->leases++;
    }
}

static void on_sent(trib_conn *conn, trib_send *send, trib_status status)
{
    (void)status;
    end *self = conn->user;
    assert_ptr_equal(send, &self->sends[self->sent]); /* in order, each once */
    self->sent++;
}

static void on_closed(trib_conn *conn, trib_status status, const char *reason)
{
    (void)status;
    end *self = conn->user;
    assert_false(self->closed);
    assert_int_equal(self->leases, 0);
    self->closed = true;
    self->conn = NULL;
    snprintf(self->reason, sizeof self->reason, "%s", reason);
}

static const trib_transport_upcalls upcalls = {on_accepted, on_connected, on_header, on_received, on_sent, on_closed};

/* ---- The scene ---- */

scene *hostile_open_for(way how, int64_t silence_ns)
{
    scene *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->logger.level = TRIB_LOG_NONE;
    self->random = 0x9e3779b97f4a7c15u;
    trib_arena_params params;
    trib_arena_params_init(&params);
    params.is_shared = true;
    assert_int_equal(trib_arena_create_with(&params, &self->arena), TRIB_OK);
    self->payload = trib_arena_alloc(self->arena, TRIB_PAYLOAD_MAX, 0);
    assert_non_null(self->payload);
    memset(self->payload, 0, TRIB_PAYLOAD_MAX);
    if (how == IN_PLACE) {
        assert_int_equal(trib_shm_ops.context_open(self->arena, &self->offer, NULL), TRIB_OK);
    }
    const trib_transport_config config = {
        .copies_only = how == COPYING, .silence_timeout_ns = silence_ns, .context = self->offer};
    assert_int_equal(trib_reactor_ev_create(0, &self->logger, NULL, &self->reactor), TRIB_OK);
    assert_int_equal(trib_shm_ops.open(self->reactor, &config, &upcalls, &self->transport), TRIB_OK);
    assert_int_equal(trib_shm_ops.listen(self->transport, &(trib_address){.text = "127.0.0.1:0"}, self, &self->listener,
                                         &self->address, NULL),
                     TRIB_OK);
    alarm(100);
    return self;
}

scene *hostile_open(way how)
{
    return hostile_open_for(how, 0);
}

void hostile_turn(scene *self)
{
    ev_run(trib_reactor_ev_loop(self->reactor), EVRUN_NOWAIT);
}

void hostile_close(scene *self)
{
    trib_shm_ops.listener_close(self->listener);
    trib_shm_ops.close(self->transport);
    trib_reactor_ev_destroy(self->reactor);
    trib_shm_ops.context_close(self->offer);
    trib_arena_destroy(self->arena);
    free(self);
    alarm(0);
}

void hostile_meet(scene *self)
{
    memset(self->ends, 0, sizeof self->ends);
    end *mine = &self->ends[0];
    assert_int_equal(trib_shm_ops.connect(self->transport, &self->address, mine, &mine->conn), TRIB_OK);
    while (self->ends[1].conn == NULL) {
        hostile_turn(self);
    }
}
