/* config_token.c - the token, from TRIB_TOKEN or TRIB_TOKEN_FILE: the first line of either, without its line end, so
 * that members that get it in different ways have the same. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/config/config.h"
#include "engine/base/descriptor.h"
#include "engine/wire/auth.h"

#define TOKEN_MAX 511u /* bytes of a token whose line end is cut off; others are passed on as they are */
#define LINE_ENDS "\r\n"

/* A config points to it until trib_engine_create has copied the text. Per thread, so that threads do not share it. */
static _Thread_local char token_text[TOKEN_MAX + 2]; /* room for the end of its line and a 0 */

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

/* Anybody who can write the file chooses the token, and anybody who can read it has it. Containers often mount secrets
 * readable by all, so that alone is no error. A pipe has no other readers. */
static trib_status check_access(const trib_config *config, int fd, const char *path, trib_error *error)
{
    struct stat about;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        return TRIB_OK;
    }
    const unsigned mode = about.st_mode & 0777u;
    if ((mode & S_IWOTH) != 0) {
        return trib_error_set(
            error, TRIB_INVALID,
            "TRIB_TOKEN_FILE=\"%.80s\": anybody may change it (mode %04o): chmod 600, and make another "
            "token",
            path, mode);
    }
    if ((mode & (S_IRGRP | S_IROTH | S_IWGRP)) != 0) {
        trib_logger logger = {
            .level = config->log_level, .cb = config->log_cb, .user = config->log_user, .prefix = "tributary"};
        trib_log(
            &logger, TRIB_LOG_WARN,
            "TRIB_TOKEN_FILE=\"%.80s\": others may read the token (mode %04o): chmod 600 (Kubernetes: defaultMode: "
            "0400 of the secret's volume)",
            path, mode);
    }
    return TRIB_OK;
}

/* Reads the beginning of the file; no buffer but the caller's has held it afterwards. */
static void read_line(int fd, char line[TOKEN_MAX + 2])
{
    size_t size = 0;
    ssize_t got = 1;
    while (got > 0 && size < TOKEN_MAX + 1 && memchr(line, '\n', size) == NULL) {
        do {
            got = read(fd, line + size, TOKEN_MAX + 1 - size);
        } while (got < 0 && errno == EINTR);
        size += got > 0 ? (size_t)got : 0;
    }
    line[size] = '\0';
}

trib_status trib_config_take_token(trib_config *config, const char *token, const char *path, trib_error *error)
{
    if (token != NULL && token[strcspn(token, LINE_ENDS)] == '\0') {
        config->token = token; /* unchanged */
        return TRIB_OK;
    }
    if (token != NULL) {
        return keep_token(config, token, error, "TRIB_TOKEN: must be one line, or several whose");
    }
    if (path == NULL) {
        return TRIB_OK;
    }
    const int fd = trib_descriptor_keep(open(path, O_RDONLY | O_CLOEXEC));
    if (fd < 0) {
        return trib_error_set(error, TRIB_INVALID, "TRIB_TOKEN_FILE=\"%.80s\": %m", path);
    }
    trib_status status = check_access(config, fd, path, error);
    if (status == TRIB_OK) {
        char source[160], line[TOKEN_MAX + 2];
        snprintf(source, sizeof source, "TRIB_TOKEN_FILE=\"%.80s\": must be a file whose", path);
        read_line(fd, line);
        status = keep_token(config, line, error, source);
        trib_auth_wipe(line, sizeof line);
    }
    close(fd);
    return status;
}
