/* config_cases.h - shared by the tests of configurations: an environment that has the given variables only. */
#ifndef TRIB_TESTS_UNIT_API_CONFIG_CASES_H
#define TRIB_TESTS_UNIT_API_CONFIG_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/config/config.h"
#include "api/tributary.h"

/* Names and values in turn, NULL at the end. */
static inline void set_all(const char *const *pairs)
{
    clearenv();
    for (size_t i = 0; pairs[i] != NULL; i += 2) {
        assert_int_equal(setenv(pairs[i], pairs[i + 1], 1), 0);
    }
}

static inline trib_config read_env(const char *const *pairs)
{
    set_all(pairs);
    trib_config config;
    trib_config_init(&config, sizeof config);
    trib_error error = {.status = TRIB_OK};
    if (trib_config_from_env(&config, &error) != TRIB_OK) {
        fail_msg("%s", error.text);
    }
    return config;
}

#define READ(...) read_env((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

/* The environment is refused, nothing is written, and the text has the two words. */
static inline void refused_env(const char *const *pairs, const char *name, const char *allowed)
{
    set_all(pairs);
    trib_config config, before;
    trib_config_init(&config, sizeof config);
    config.rank = 7;
    config.job = "before";
    memcpy(&before, &config, sizeof before);
    trib_error error = {.status = TRIB_OK};
    assert_int_equal(trib_config_from_env(&config, &error), TRIB_INVALID);
    assert_int_equal(error.status, TRIB_INVALID);
    if (strstr(error.text, name) == NULL || strstr(error.text, allowed) == NULL) {
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", error.text, name, allowed);
    }
    assert_memory_equal(&config, &before, sizeof before);
    assert_int_equal(trib_config_from_env(&config, NULL), TRIB_INVALID);
}

#define REFUSED(name, allowed, ...) refused_env((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL}, name, allowed)

#endif
