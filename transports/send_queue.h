/* send_queue.h - a FIFO of sends that a connection has accepted and not reported yet, linked through the sends. */
#ifndef TRIB_TRANSPORTS_SEND_QUEUE_H
#define TRIB_TRANSPORTS_SEND_QUEUE_H

#include "engine/base/assert.h"
#include "transports/transport.h"

typedef struct trib_send_queue {
    trib_send *head, *tail;
} trib_send_queue;

static inline void trib_send_queue_add(trib_send_queue *queue, trib_send *send)
{
    trib_assert((queue->head == NULL) == (queue->tail == NULL));
    send->next = NULL;
    if (queue->tail != NULL) {
        queue->tail->next = send;
    } else {
        queue->head = send;
    }
    queue->tail = send;
}

/* Moves all of `from` to the end of `to`. */
static inline void trib_send_queue_move(trib_send_queue *to, trib_send_queue *from)
{
    if (from->head == NULL) {
        return;
    }
    if (to->tail != NULL) {
        to->tail->next = from->head;
    } else {
        to->head = from->head;
    }
    to->tail = from->tail;
    *from = (trib_send_queue){.head = NULL};
}

/* Takes the oldest send off the queue; NULL if there is none. */
static inline trib_send *trib_send_queue_take(trib_send_queue *queue)
{
    trib_send *send = queue->head;
    if (send != NULL) {
        queue->head = send->next;
        queue->tail = queue->head == NULL ? NULL : queue->tail;
    }
    return send;
}

/* The status of `sent` for a message that was not sent before the connection ended with that status. */
static inline trib_status trib_send_unsent_status(trib_status end_status)
{
    return end_status == TRIB_OK ? TRIB_CLOSED : end_status;
}

/* Reports every send of the queue as unsent: the connection has ended with that status. */
static inline void trib_send_queue_return(trib_send_queue *queue, trib_conn *conn, trib_status end_status)
{
    for (trib_send *send; (send = trib_send_queue_take(queue)) != NULL;) {
        conn->transport->upcalls->sent(conn, send, trib_send_unsent_status(end_status));
    }
}

#endif
