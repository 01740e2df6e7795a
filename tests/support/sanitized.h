/*
 * sanitized.h - tells whether a sanitizer is compiled in. Planted bugs and further seeds of the same storm, which show
 * a test's own power, run without sanitizers only: these find faults of a path, and the first seeds take all paths.
 */
#ifndef TESTS_SUPPORT_SANITIZED_H
#define TESTS_SUPPORT_SANITIZED_H

#if defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#define UNDER_TSAN 1
#elif defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SANITIZED 1
#define UNDER_TSAN 1
#elif __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

/* Of cases that take the same paths of several threads, every so many run: the thread sanitizer makes each of them ten
 * times as slow. */
#ifdef UNDER_TSAN
#define TSAN_STRIDE 4u
#else
#define TSAN_STRIDE 1u
#endif

/* Of a sweep's moments in virtual time every so many run. The number is odd, as sweeps take turns by two. */
#ifdef SANITIZED
#define SWEEP_STRIDE 3u
#else
#define SWEEP_STRIDE 1u
#endif

#endif
