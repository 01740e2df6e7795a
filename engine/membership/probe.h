/*
 * probe.h - asks a process whether it lives.
 *
 * A member listens at the same address from its first epoch to its end. An attempt connects there, proves the token and
 * ends. A process that has died refuses. One that stands still lets its kernel take the connection, and does not
 * answer. One that is busy answers late. All functions are called on core 0.
 *
 * Of many processes as many are asked at a time as a listener keeps half-open connections (half_open.h): each attempt
 * holds a descriptor. Where more do not answer, each has a second before it is the next one's turn, whether it stands
 * still or is busy. One more attempt is for the process that has answered last: it tells whether some live.
 */
#ifndef TRIB_ENGINE_PROBE_H
#define TRIB_ENGINE_PROBE_H

#include "engine/core/core.h"

typedef struct trib_probe {
    trib_link *link;          /* NULL: no attempt is under way */
    uint32_t step;            /* how far that attempt has come */
    int64_t stepped_ns;       /* when it came so far */
    int64_t began_ns;         /* when the last attempt began */
    int64_t row_began_ns;     /* since when attempts have followed one another without a pause */
    int64_t ended_ns;         /* when an attempt has ended last */
    int64_t heard_ns;         /* when the process has answered last; 0: it never has */
    int64_t silent_since_ns;  /* when the first attempt began that was not answered; 0: the last one was */
    int64_t refused_since_ns; /* 0: the last attempt was not refused */
    int64_t refused_for_ns;   /* a process whose address refuses for so long has ended */
    int64_t told_ns;          /* when `answered` has sent something last; 0: it never has */
    bool is_dead;
    /* The process has answered on that link, which ends behind what is sent now. NULL: nothing is done. */
    void (*answered)(trib_link *link, struct trib_probe *probe);
} trib_probe;

/* Begins an attempt unless one is under way. One that comes no further is given up for another one, and one on which
 * something is sent when that has had the peer timeout. Returns true if it has begun one. */
bool trib_probe_ask(trib_core *core, trib_probe *probe, const trib_address *address);
/* Since when the process has not answered; 0: it has, or was never asked. */
int64_t trib_probe_silent_since(const trib_probe *probe);
/* Until when that is known. Between two attempts the process may have lived. */
int64_t trib_probe_silent_until(const trib_probe *probe, int64_t now_ns);
/* Ends the attempt, if any. The probe's memory may be freed. */
void trib_probe_end(trib_probe *probe, const char *why);

typedef struct trib_probes {
    trib_probe *each; /* NULL: nobody is asked */
    uint32_t count;
    int64_t pause_ns;
    uint32_t next;     /* the process with which the next turn goes on */
    bool is_exhausted; /* the last turn had no attempt for some process */
} trib_probes;

/* Returns the address of a process that has to be asked now, or NULL. */
typedef const trib_address *(*trib_probes_find)(const void *user, uint32_t index);

/* Nobody is asked if memory runs out. A process whose address refuses for that long has ended. One that has answered is
 * asked again after a pause. */
void trib_probes_open(trib_probes *self, uint32_t count, int64_t refused_for_ns, int64_t pause_ns,
                      void (*answered)(trib_link *link, trib_probe *probe));
/* A turn: asks processes. The next turn goes on where this one stops, so those that do not answer keep no other from
 * being asked. */
void trib_probes_ask(trib_core *core, trib_probes *self, trib_probes_find find, const void *user);
void trib_probes_close(trib_probes *self, const char *why);

#endif
