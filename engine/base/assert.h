/*
 * assert.h - assertions for programmer errors, also in release builds.
 *
 * Errors that a peer, the kernel, a device or the caller can cause are answered with a trib_status. An assertion that
 * one of them can reach is a mistake in the checks before it. A failed assertion means that the engine's own state is
 * wrong. It prints its place and aborts, because going on would risk wrong sums.
 */
#ifndef TRIB_ENGINE_BASE_ASSERT_H
#define TRIB_ENGINE_BASE_ASSERT_H

_Noreturn void trib_assert_failed(const char *expression, const char *file, int line, const char *function);

#define trib_assert(expression) ((expression) ? (void)0 : trib_assert_failed(#expression, __FILE__, __LINE__, __func__))

/* For checks that are costly (they walk a list, or count credits again): debug, sanitizer and simulation builds
 * only. */
#ifdef TRIB_SLOW_CHECKS
#define trib_assert_slow(expression) trib_assert(expression)
#else
#define trib_assert_slow(expression) ((void)0)
#endif

#define trib_unreachable() trib_assert_failed("unreachable", __FILE__, __LINE__, __func__)

#endif
