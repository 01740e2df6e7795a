/*
 * assert.h - assertions for programmer errors, on in release builds too.
 *
 * What a peer, the kernel, a device or the caller can cause is answered with a trib_status. An assertion that one of
 * them can reach is a mistake in the checks before it. A failed one means that the engine's own state is wrong; it
 * prints where and aborts, because going on would risk wrong sums.
 */
#ifndef TRIB_ENGINE_BASE_ASSERT_H
#define TRIB_ENGINE_BASE_ASSERT_H

_Noreturn void trib_assert_failed(const char *expression, const char *file, int line, const char *function);

#define trib_assert(expression) ((expression) ? (void)0 : trib_assert_failed(#expression, __FILE__, __LINE__, __func__))

/* Costly checks (walk a list, count credits again): debug, sanitizer and simulation builds only. */
#ifdef TRIB_SLOW_CHECKS
#define trib_assert_slow(expression) trib_assert(expression)
#else
#define trib_assert_slow(expression) ((void)0)
#endif

#define trib_unreachable() trib_assert_failed("unreachable", __FILE__, __LINE__, __func__)

#endif
