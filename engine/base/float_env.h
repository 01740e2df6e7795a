/*
 * float_env.h - keeps the host's floating-point environment away from sums, and the library's away from the host.
 *
 * A host may round in another direction, flush denormal numbers to zero (a library that was linked with -ffast-math
 * does so), or trap. Each thread has its own environment, and begins with that of the thread that made it. The bits of
 * a sum must not depend on which thread computes it, so the library computes in the default environment only: its own
 * threads begin with it, and on a thread of the host it is set for the time of the library's work.
 *
 * It is header-only, because modules that are loaded at run time start threads, too. On x86-64 and ARM it is a register
 * or two, so a pair of enter and leave takes some nanoseconds.
 */
#ifndef TRIB_ENGINE_BASE_FLOAT_ENV_H
#define TRIB_ENGINE_BASE_FLOAT_ENV_H

#include <stdint.h>

#if defined(__x86_64__)

#include <xmmintrin.h>

/* The register of the vector units, which compute everything but long double. Its lowest bits say what has happened
 * and are no part of a setting. */
typedef uint32_t trib_float_env;
#define TRIB_FLOAT_ENV_DEFAULT 0x1f80u
#define TRIB_FLOAT_ENV_FLAGS 0x3fu

static inline trib_float_env trib_float_env_get(void)
{
    return _mm_getcsr();
}

static inline void trib_float_env_set(trib_float_env env)
{
    _mm_setcsr(env);
}

/* Long double has a unit of its own, which sums do not use. */
#define TRIB_FLOAT_ENV_X87_DEFAULT 0x037fu

static inline uint16_t trib_float_env_get_x87(void)
{
    uint16_t control;
    __asm__ __volatile__("fnstcw %0" : "=m"(control));
    return control;
}

static inline void trib_float_env_set_x87(uint16_t control)
{
    __asm__ __volatile__("fldcw %0" : : "m"(control));
}

#elif defined(__aarch64__)

typedef uint64_t trib_float_env;
#define TRIB_FLOAT_ENV_DEFAULT UINT64_C(0)
#define TRIB_FLOAT_ENV_FLAGS UINT64_C(0) /* in a register of their own, which settings do not touch */

static inline trib_float_env trib_float_env_get(void)
{
    uint64_t env;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(env));
    return env;
}

static inline void trib_float_env_set(trib_float_env env)
{
    __asm__ __volatile__("msr fpcr, %0" : : "r"(env) : "memory");
}

#else

/* Not known for this processor: nothing is kept apart. */
typedef int trib_float_env;
#define TRIB_FLOAT_ENV_DEFAULT 0
#define TRIB_FLOAT_ENV_FLAGS 0

static inline trib_float_env trib_float_env_get(void)
{
    return 0;
}

static inline void trib_float_env_set(trib_float_env env)
{
    (void)env;
}

#endif

#if !defined(__x86_64__)
#define TRIB_FLOAT_ENV_X87_DEFAULT 0u
static inline uint16_t trib_float_env_get_x87(void)
{
    return 0;
}

static inline void trib_float_env_set_x87(uint16_t control)
{
    (void)control;
}
#endif

/* Sets the default environment. Returns the caller's, for trib_float_env_leave. */
static inline trib_float_env trib_float_env_enter(void)
{
    const trib_float_env callers = trib_float_env_get();
    if ((callers & ~TRIB_FLOAT_ENV_FLAGS) != TRIB_FLOAT_ENV_DEFAULT) {
        trib_float_env_set(TRIB_FLOAT_ENV_DEFAULT);
    }
    return callers;
}

/* The caller's environment is as it was, flags included. */
static inline void trib_float_env_leave(trib_float_env callers)
{
    if (trib_float_env_get() != callers) {
        trib_float_env_set(callers);
    }
}

#endif
