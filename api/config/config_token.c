/*
 * config_token.c - the token, from TRIB_TOKEN or TRIB_TOKEN_FILE: the first line of either, without its line end, so
 * that members that get it in different ways have the same.
 */
#include <stdio.h>
#include <string.h>

#include "api/config/config.h"
#include "engine/base/descriptor.h"

#define TOKEN_MAX 511u /* of a token whose line end is cut off; others are passed on as they are */
#define LINE_ENDS "\r\n"

/* A config points to it until trib_engine_create has copied the text. Per thread, so that threads do not share it. */
static _Thread_local char token_text[TOKEN_MAX + 2]; /* and the end of its line */

static trib_status keep_token(trib_config *config, const char *line, trib_error *error, const char *source)
{
    const size_t length = strcspn(line, LINE_ENDS);
    if (length == 0 || length > TOKEN_MAX) {
        return trib_error_set(error, TRIB_INVALID, "%s first line is the token, 1 to %u bytes", source, TOKEN_MAX);
    }
    memmove(token_text, line, length);
    token_text[length] = '\0';
    config->token = token_text;
    return TRIB_OK;
}

trib_status trib_config_take_token(trib_config *config, const char *token, const char *path, trib_error *error)
{
    if (token != NULL && token[strcspn(token, LINE_ENDS)] == '\0') {
        config->token = token; /* as it is */
        return TRIB_OK;
    }
    if (token != NULL) {
        return keep_token(config, token, error, "TRIB_TOKEN: must be one line, or several whose");
    }
    if (path == NULL) {
        return TRIB_OK;
    }
    FILE *file = trib_descriptor_open_text(path);
    if (file == NULL) {
        return trib_error_set(error, TRIB_INVALID, "TRIB_TOKEN_FILE=\"%.80s\": %m", path);
    }
    char source[160];
    snprintf(source, sizeof source, "TRIB_TOKEN_FILE=\"%.80s\": must be a file whose", path);
    if (fgets(token_text, sizeof token_text, file) == NULL) {
        token_text[0] = '\0';
    }
    (void)fclose(file);
    return keep_token(config, token_text, error, source);
}
