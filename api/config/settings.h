/*
 * settings.h - the table of settings: each field of trib_config and each variable of the environment stands in it once.
 *
 * Defaults, what is read from the environment, the names that are known there, the range of each field, and the table
 * in docs/operating.md (tools/dev/settingsdoc.py) come from it.
 */
#ifndef TRIB_API_CONFIG_SETTINGS_H
#define TRIB_API_CONFIG_SETTINGS_H

#include "api/tributary.h"

typedef enum trib_setting_kind {
    TRIB_SETTING_TEXT,   /* const char *; points to the text that it was read from */
    TRIB_SETTING_BOOL,   /* bool */
    TRIB_SETTING_CHOICE, /* an enumeration of `words`, which are numbered from 0 */
    TRIB_SETTING_ROLES,  /* uint32_t: bits of trib_role */
    TRIB_SETTING_INT,    /* int32_t; low and high hold for the variable, config.c checks the field with others */
    TRIB_SETTING_UINT,   /* uint32_t */
    TRIB_SETTING_BYTES,  /* uint32_t or uint64_t */
    TRIB_SETTING_TIME,   /* int64_t, in nanoseconds */
    TRIB_SETTING_RATE,   /* uint64_t, in bits per second */
} trib_setting_kind;

typedef struct trib_setting {
    const char *variable; /* NULL: a program alone sets the field */
    const char *field;    /* name of the field in trib_config; NULL: none */
    uint16_t offset, size;
    trib_setting_kind kind;
    bool is_job_wide;         /* the coordinator's process decides */
    bool is_read_apart;       /* the variable is read by code of its own, not by trib_settings_read */
    const char *initial;      /* the default, as the variable would say it; NULL: 0, false, NULL */
    int64_t low, high;        /* what the field may be; high 0: no limit above */
    const char *const *words; /* of a choice; NULL at the end */
    /* For docs/operating.md; NULL where `initial`, and `kind` with its limits, say enough. */
    const char *initial_doc, *range_doc;
    const char *doc;
} trib_setting;

extern const trib_setting trib_settings[];
extern const size_t trib_settings_count;

/* Sets all defaults, and 0 in fields without one. */
void trib_settings_init(trib_config *config);
/* Puts the default where 0 or NULL stands for it: in numbers, texts, sizes, times and roles. Times that are longer than
 * any (TRIB_TIMEOUT_MAX_NS) become that. */
void trib_settings_apply_defaults(trib_config *config);
/* Checks each field that has limits of its own. TRIB_INVALID names the field, its value, what is allowed, and the
 * variable. */
TRIB_CHECKED trib_status trib_settings_check(const trib_config *config, trib_error *error);
/* Reads the variables that are set. An error names the variable, its value and what is allowed; *config may then be
 * half-read. */
TRIB_CHECKED trib_status trib_settings_read(trib_config *config, trib_error *error);

/* Writes the field's value as the variable would have it: "256K", "rank", "worker+server"; cut off at size. A token is
 * "set". */
void trib_setting_format(const trib_setting *setting, const trib_config *config, char *text, size_t size);

/* The field's value as a number, and its unit: "bytes", "ns", "bit/s", or "" for a count. NULL: it is no number. */
const char *trib_setting_number(const trib_setting *setting, const trib_config *config, int64_t *number_out);

/* ---- Values as texts ---- */

/* The host's locale takes no part: 0.5 is a half everywhere, and INFO is info in Turkey, too. */

/* The value of a variable that is set and not empty; else NULL. */
const char *trib_setting_get(const char *variable);
/* Reads a whole number from low to high. False if the text has anything else in it. */
bool trib_setting_parse_number(const char *text, int64_t low, int64_t high, int64_t *value);
/* The number that a variable is set to; TRIB_INVALID names it, its value and what it may be. */
TRIB_CHECKED trib_status trib_setting_read_number(const char *variable, int64_t low, int64_t high, int64_t *value,
                                                  trib_error *error);
/* Finds a word in the list. Case does not matter. */
bool trib_setting_parse_word(const char *text, const char *const *words, int *index);
/* Returns TRIB_INVALID with the text NAME="value": must be WANTED. */
trib_status trib_setting_refuse(const char *variable, const char *text, const char *wanted, trib_error *error);
/* Writes the list of words as "one of A B C". */
const char *trib_setting_words_text(const char *const *words, char *text, size_t size);

#endif
