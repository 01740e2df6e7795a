/* direct_wrap.h - creates a test's engines with devices that count their copies (direct_bed.h). One source file of a
 * program may include it. */
#ifndef TRIB_TESTS_LOOP_DIRECT_WRAP_H
#define TRIB_TESTS_LOOP_DIRECT_WRAP_H

#include "api/config/config.h"
#include "api/env/env_host.h"
#include "tests/loop/direct_bed.h"

trib_status __real_trib_env_host_init(trib_env *env, trib_config *config, trib_error *error);
trib_status __wrap_trib_env_host_init(trib_env *env, trib_config *config, trib_error *error);

trib_status __wrap_trib_env_host_init(trib_env *env, trib_config *config, trib_error *error)
{
    trib_status status = __real_trib_env_host_init(env, config, error);
    if (status == TRIB_OK) {
        direct_watch(env);
    }
    return status;
}

#endif
