/* scarcity.c - see scarcity.h. */
#include "tests/loop/scarcity.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define BLOCKS_MAX 8192u

static struct {
    bool counting;
    scarcity_kind kind;
    size_t nth, asked;
    size_t count;
    struct {
        uintptr_t block;
        size_t number;
    } blocks[BLOCKS_MAX];
} ledger;

void scarcity_begin(scarcity_kind kind, size_t nth)
{
    ledger.counting = true;
    ledger.kind = kind;
    ledger.nth = nth;
    ledger.asked = ledger.count = 0;
}

size_t scarcity_end(void)
{
    ledger.counting = false;
    return ledger.asked;
}

size_t scarcity_left(size_t *where_out)
{
    *where_out = ledger.count > 0 ? ledger.blocks[0].number : 0;
    for (size_t i = 1; i < ledger.count; i++) {
        *where_out = ledger.blocks[i].number < *where_out ? ledger.blocks[i].number : *where_out;
    }
    return ledger.count;
}

bool scarcity_allows(void)
{
    if (!ledger.counting) {
        return true;
    }
    ledger.asked++;
    return ledger.kind == SCARCITY_NONE || ledger.asked < ledger.nth ||
           (ledger.kind == SCARCITY_ONCE && ledger.asked > ledger.nth);
}

void scarcity_note(const void *block)
{
    if (ledger.counting && block != NULL && ledger.count < BLOCKS_MAX) {
        ledger.blocks[ledger.count].block = (uintptr_t)block;
        ledger.blocks[ledger.count++].number = ledger.asked;
    }
}

void scarcity_forget(const void *block)
{
    for (size_t i = ledger.count; block != NULL && i > 0; i--) { /* newest first, because most blocks live briefly */
        if (ledger.blocks[i - 1].block == (uintptr_t)block) {
            ledger.blocks[i - 1] = ledger.blocks[--ledger.count];
            return;
        }
    }
}
