/* bootstrap.c - see bootstrap.h. */
#include "api/bootstrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/config/config.h"
#include "engine/base/log.h"
#include "engine/wire/auth.h"

static const char id_source[] = "trib_config.unique_id";
static const char oob_source[] = "the id that oob_cb brought";

/* A worker's card in the exchange. A worker that cannot take part writes its reason there, so that all end alike. */
typedef struct card {
    char magic[8];
    int32_t rank, worker_count;
    int32_t status; /* TRIB_OK: it can take part */
    int32_t zero;
    trib_unique_id id; /* rank 0's */
    char text[TRIB_ERROR_TEXT_SIZE];
} card;

static const char card_magic[8] = {'T', 'R', 'I', 'B', 'O', 'O', 'B', '1'};

static bool keeps_membership(const trib_config *config)
{
    return (config->roles & TRIB_ROLE_COORDINATOR) ||
           ((config->roles & TRIB_ROLE_WORKER) && config->rank == 0 && !config->external_coordinator);
}

/* ---- The id ---- */

static trib_status use_id(trib_bootstrap *self, const trib_unique_id *id, const char *source, trib_error *error)
{
    trib_status status = trib_unique_id_read(id, &self->content, error);
    if (status == TRIB_OK && keeps_membership(&self->config)) {
        status = trib_unique_id_take(self->content.number, error);
        self->holds = status == TRIB_OK;
    }
    self->config.coordinator = self->content.address.text;
    self->config.coordinator_source = source;
    self->config.token = self->content.token;
    self->config.unique_id = NULL;
    self->config.oob_cb = NULL;
    return status;
}

/* ---- The exchange ---- */

static trib_status check_exchange(const trib_config *config, trib_error *error)
{
    if (config->unique_id != NULL) {
        return trib_error_set(error, TRIB_INVALID, "unique_id and oob_cb are both given: one of them is enough");
    }
    if (!(config->roles & TRIB_ROLE_WORKER) || config->server_count != 0 || config->external_coordinator) {
        return trib_error_set(error, TRIB_INVALID,
                              "oob_cb: only workers exchange by it, and the job has others (roles, server_count or "
                              "external_coordinator; TRIB_ROLE, TRIB_SERVERS): give all of them a unique_id instead");
    }
    /* The rest of the configuration is judged as if the address were known. */
    trib_config known = *config, checked;
    known.coordinator = "127.0.0.1:1";
    known.oob_cb = NULL;
    return trib_config_check(&known, &checked, error);
}

/* Rank 0's coordinator may say where: "host:0". Without it, the environment and the interfaces decide. An address in a
 * launcher's variables has a use of its own. */
static trib_status make_id(const trib_config *config, trib_unique_id *id, trib_error *error)
{
    return config->coordinator != NULL && !trib_config_is_launchers_address(config)
               ? trib_unique_id_create_at(config->coordinator, id, error)
               : trib_unique_id_create(id, error);
}

static void fill_card(const trib_config *config, card *mine)
{
    trib_error why = {.status = TRIB_OK};
    *mine = (card){.rank = config->rank, .worker_count = config->worker_count};
    memcpy(mine->magic, card_magic, sizeof mine->magic);
    trib_status status = check_exchange(config, &why);
    if (status == TRIB_OK && config->rank == 0) {
        status = make_id(config, &mine->id, &why);
    }
    mine->status = status;
    if (status != TRIB_OK) {
        snprintf(mine->text, sizeof mine->text, "%s", why.text);
    }
}

/* Judges what came back. Each worker sees the same, so all that see it come to the same end. */
static trib_status check_cards(const card *mine, const card *all, trib_error *error)
{
    if (mine->status != TRIB_OK) {
        return trib_error_set(error, (trib_status)mine->status, "%s", mine->text);
    }
    for (int32_t i = 0; i < mine->worker_count; i++) {
        const card *at = &all[i];
        if (memcmp(at->magic, card_magic, sizeof card_magic) != 0 || at->rank != i) {
            return trib_error_set(
                error, TRIB_JOIN_FAILED,
                "oob_cb: what it brought for rank %d is not what that worker gave it; it must put each "
                "worker's bytes at the place of its rank, and all must run the same release",
                (int)i);
        }
        if (at->worker_count != mine->worker_count) {
            return trib_error_set(error, TRIB_JOIN_FAILED,
                                  "worker_count: rank %d counts %d workers and rank %d counts %d", (int)i,
                                  (int)at->worker_count, (int)mine->rank, (int)mine->worker_count);
        }
        if (at->status != TRIB_OK) {
            return trib_error_set(error, TRIB_JOIN_FAILED, "rank %d cannot take part: %.*s", (int)i, 300, at->text);
        }
    }
    return TRIB_OK;
}

/* Also where the callback throws an exception. */
static void free_cards(card **cards)
{
    free(*cards);
}

static trib_status exchange(trib_bootstrap *self, trib_error *error)
{
    const trib_config *config = &self->config;
    if (config->worker_count < 1 || config->worker_count > (int32_t)TRIB_MEMBERS_MAX || config->rank < 0 ||
        config->rank >= config->worker_count) {
        trib_config checked; /* nobody could tell the others: they do not have this rank */
        return trib_config_check(config, &checked, error) == TRIB_OK
                   ? trib_error_set(error, TRIB_INVALID, "oob_cb: rank %d of %d workers", config->rank,
                                    config->worker_count)
                   : TRIB_INVALID;
    }
    card *cards __attribute__((cleanup(free_cards))) = calloc((size_t)config->worker_count + 1, sizeof *cards);
    if (cards == NULL) {
        return trib_error_set(error, TRIB_NO_MEMORY, "out of memory for the addresses of the workers");
    }
    card *mine = &cards[config->worker_count];
    fill_card(config, mine);
    const int code = config->oob_cb(mine, cards, sizeof *mine, config->oob_user);
    trib_status status = TRIB_OK;
    if (code != 0) {
        status =
            trib_error_set(error, TRIB_JOIN_FAILED,
                           "oob_cb returned %d on rank %d: the workers could not exchange the job's address%s%.250s",
                           code, (int)config->rank, mine->status != TRIB_OK ? "; and " : "", mine->text);
    }
    status = status == TRIB_OK ? check_cards(mine, cards, error) : status;
    if (status == TRIB_OK) {
        status = use_id(self, &cards[0].id, oob_source, error);
    } else if (mine->rank == 0) {
        trib_unique_id_release(&mine->id); /* nothing is there if none was made */
    }
    trib_auth_wipe(cards, ((size_t)config->worker_count + 1) * sizeof *cards); /* ids have the token */
    return status;
}

trib_status trib_bootstrap_begin(trib_bootstrap *self, const trib_config *given, trib_error *error)
{
    self->holds = false;
    self->content = (trib_unique_id_content){.number = 0};
    const trib_status status = trib_config_check_size(given, error);
    if (status != TRIB_OK) {
        return status;
    }
    self->config = *given;
    self->config.roles = given->roles == 0 ? TRIB_ROLE_WORKER : given->roles;
    if (given->oob_cb != NULL) {
        return exchange(self, error);
    }
    return given->unique_id != NULL ? use_id(self, given->unique_id, id_source, error) : TRIB_OK;
}

void trib_bootstrap_end(trib_bootstrap *self, bool created)
{
    if (self->holds) {
        trib_unique_id_settle(self->content.number, created);
    }
    self->holds = false;
    trib_auth_wipe(&self->content, sizeof self->content);
}
