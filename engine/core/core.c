/* core.c - prepares a core before its reactor runs (core.h). */
#include "engine/core/core.h"

void trib_core_init(trib_core *core, trib_engine *engine, trib_reactor *reactor, const trib_link_upcalls *incoming)
{
    core->engine = engine;
    core->reactor = reactor;
    reactor->owner = core;
    core->host = (trib_link_host){.core = core,
                                  .engine = engine,
                                  .reactor = reactor,
                                  .incoming = incoming,
                                  .stats = &core->stats,
                                  .trace = &core->trace};
    trib_link_host_open(&core->host);
}
