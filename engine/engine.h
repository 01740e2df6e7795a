/* engine.h - opens an engine, which puts all layers together, and closes it. */
#ifndef TRIB_ENGINE_ENGINE_H
#define TRIB_ENGINE_ENGINE_H

#include "engine/job/job.h"

TRIB_CHECKED trib_status trib_engine_open(trib_engine *engine, const trib_env *env, const trib_config *config,
                                          trib_error *error);
/* Frees what trib_engine_open made, also after it failed half-way. Its reactors are stopped. */
void trib_engine_free(trib_engine *engine);

/* True on one of the engine's own threads (ATTACHED: in a callback), or inside dispatch. */
bool trib_engine_on_thread(const trib_engine *engine);

#endif
