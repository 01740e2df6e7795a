/*
 * neutral_locale.h - texts for machines are read and written without the host's locale: 0.5 is a half everywhere, and
 * INFO is info in Turkey, too.
 *
 * A pair of these changes the locale of the calling thread alone. The C library's own locale "C" allocates nothing, and
 * cannot fail.
 */
#ifndef TRIB_ENGINE_BASE_NEUTRAL_LOCALE_H
#define TRIB_ENGINE_BASE_NEUTRAL_LOCALE_H

#include <locale.h>

/* Returns the caller's locale, for trib_neutral_locale_leave. */
static inline locale_t trib_neutral_locale_enter(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
}

static inline void trib_neutral_locale_leave(locale_t callers)
{
    freelocale(uselocale(callers));
}

#endif
