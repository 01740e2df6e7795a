/*
 * link_refused.h - log lines about rejected connections and members, bounded and summed up.
 *
 * A port scan must not fill a disk, nor hide that a member has the wrong token or was rejected. So each kind of
 * rejection has its own lines in a minute, each address has a few of them, and a last line says how many more came from
 * where.
 */
#ifndef TRIB_ENGINE_LINK_LINK_REFUSED_H
#define TRIB_ENGINE_LINK_LINK_REFUSED_H

#include "engine/base/log.h"
#include "engine/wire/wire.h"

typedef enum trib_refusal {
    TRIB_REFUSAL_STRANGER, /* it has not proved the token */
    TRIB_REFUSAL_GONE,     /* it went in the middle of the handshake; members do that when they leave or end */
    TRIB_REFUSAL_TOKEN,    /* its proof was wrong, or it went when it saw this side's */
    TRIB_REFUSAL_MEMBER,   /* it has proved the token, and cannot join or claims what is not its own */
    TRIB_REFUSAL_COUNT
} trib_refusal;

#define TRIB_REFUSAL_ADDRESSES_MAX 4u

typedef struct trib_refused_address {
    char host[64]; /* without the port, which differs each time; "": free */
    uint32_t logged, unlogged;
} trib_refused_address;

/* The lines of one kind in the present minute. */
typedef struct trib_refused_lines {
    int64_t since_ns; /* start of the minute; 0: nothing was logged yet */
    uint32_t logged, unlogged;
    trib_refused_address addresses[TRIB_REFUSAL_ADDRESSES_MAX]; /* the first of the minute */
    char last[TRIB_REASON_MAX];
} trib_refused_lines;

typedef struct trib_refused {
    trib_refused_lines kinds[TRIB_REFUSAL_COUNT];
    char last_member[TRIB_REASON_MAX]; /* the last rejection; "": none */
} trib_refused;

/* Logs "turned away ADDRESS: REASON" as a warning, or counts it. Nothing was wrong with a peer that is gone, so
 * "gone in the handshake: ADDRESS: REASON" is information. */
void trib_refused_note(trib_refused *self, const trib_reactor *reactor, int64_t now_ns, trib_refusal kind,
                       const char *address, const char *reason);
/* Logs what was only counted in minutes that are over, or in all. */
void trib_refused_report(trib_refused *self, const trib_reactor *reactor, int64_t now_ns, bool now);

#endif
