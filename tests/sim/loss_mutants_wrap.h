/* loss_mutants_wrap.h - the bugs of test_mutants.c that show where a server is lost and the job goes on. Included
 * there, behind the variable that tells which bug is planted. */
#ifndef TRIB_TESTS_SIM_LOSS_MUTANTS_WRAP_H
#define TRIB_TESTS_SIM_LOSS_MUTANTS_WRAP_H

#include "engine/cluster/succession.h"
#include "engine/membership/server_loss.h"
#include "engine/server/keeper.h"
#include "engine/server/takeover.h"
#include "engine/worker/worker_orphan.h"

__typeof__(trib_copy_take) __real_trib_copy_take, __wrap_trib_copy_take;
void __wrap_trib_copy_take(const trib_core *core, trib_task *task, uint32_t chunk)
{
    __real_trib_copy_take(core, task, chunk);
    task->copy_round =
        strikes(BUG_COPY_FORGOTTEN, 1) || (task->keeps && strikes(BUG_KEEPER_EMPTY, 1)) ? 0 : task->copy_round;
}

__typeof__(trib_copy_prepare) __real_trib_copy_prepare, __wrap_trib_copy_prepare;
void __wrap_trib_copy_prepare(const trib_core *core, trib_task *task)
{
    const uint32_t before = task->copy_round;
    __real_trib_copy_prepare(core, task);
    if (task->lands_in_copy && strikes(BUG_TORN_INPUT, 1)) {
        task->lands_in_copy = false;
        task->io.received.data = task->io.destination.data;
    }
    /* A worker claims to have the sum of the round that is under way. */
    task->copy_round = before > 0 && strikes(BUG_COPY_OF_ANOTHER_ROUND, 1) ? task->op_core->op->round : before;
}

__typeof__(trib_orphan_resume) __real_trib_orphan_resume, __wrap_trib_orphan_resume;
trib_status __wrap_trib_orphan_resume(trib_link *link, const trib_frame *frame, trib_error *error)
{
    trib_frame changed = *frame;
    changed.aux = strikes(BUG_GIVER_IGNORED, 1) ? TRIB_NO_MEMBER : changed.aux;
    return __real_trib_orphan_resume(link, &changed, error);
}

__typeof__(trib_orphan_answer) __real_trib_orphan_answer, __wrap_trib_orphan_answer;
trib_status __wrap_trib_orphan_answer(trib_link *link, const trib_frame *frame, trib_error *error)
{
    return strikes(BUG_LATE_WORKER_SILENT, 1) ? TRIB_OK : __real_trib_orphan_answer(link, frame, error);
}

__typeof__(trib_takeover_report) __real_trib_takeover_report, __wrap_trib_takeover_report;
trib_status __wrap_trib_takeover_report(trib_link *link, const trib_frame *frame, const void *payload,
                                        trib_error *error)
{
    unsigned char changed[TRIB_REPORT_BYTES];
    memcpy(changed, payload, sizeof changed);
    if (strikes(BUG_SUMMED_AGAIN, 1)) {
        memset(changed + TRIB_REPORT_COPY_AT, 0, sizeof(uint32_t));
    }
    trib_frame said = *frame;
    if (frame->collective == TRIB_COLLECTIVE_REDUCE && strikes(BUG_REDUCE_GIVEN, 1)) {
        said.collective = TRIB_COLLECTIVE_ALL_REDUCE;
    }
    return __real_trib_takeover_report(link, &said, changed, error);
}

__typeof__(trib_keeper_awaits) __real_trib_keeper_awaits, __wrap_trib_keeper_awaits;
bool __wrap_trib_keeper_awaits(trib_core *core, trib_sum_entry *entry)
{
    const trib_roster *roster = core->engine->roster;
    const trib_contribution what = entry->what;
    const uint32_t keeper = trib_keeper_rank(roster, what.partition), rank = entry->rank;
    const bool waits = __real_trib_keeper_awaits(core, entry);
    const uint32_t last = keeper + 1 == roster->worker_count ? keeper - 1 : roster->worker_count - 1;
    if (waits && rank == last && what.chunk + 1 == what.chunk_count && core->worker_links[keeper] != NULL &&
        strikes(BUG_KEPT_TOO_SOON, 1)) {
        const trib_frame kept = {
            .type = TRIB_FRAME_KEPT, .tensor = what.tensor, .partition = what.partition, .round = what.round};
        trib_error error;
        (void)!trib_keeper_has(core->worker_links[keeper], &kept, &error);
    }
    return waits;
}

__typeof__(trib_server_loss_let_go) __real_trib_server_loss_let_go, __wrap_trib_server_loss_let_go;
bool __wrap_trib_server_loss_let_go(trib_coordinator *self, uint32_t member)
{
    const bool goes = __real_trib_server_loss_let_go(self, member);
    for (uint32_t i = 0; i < self->worker_count && goes && strikes(BUG_LET_GO_AT_ONCE, 1); i++) {
        self->slots[i].losses_taken = self->losses;
    }
    return goes;
}

__typeof__(trib_summation_take_over) __real_trib_summation_take_over, __wrap_trib_summation_take_over;
trib_status __wrap_trib_summation_take_over(trib_summation *self, const trib_contribution *what)
{
    return strikes(BUG_ROUNDS_BEFORE_FORGOTTEN, 1) ? TRIB_OK : __real_trib_summation_take_over(self, what);
}

__typeof__(trib_succession_find) __real_trib_succession_find, __wrap_trib_succession_find;
bool __wrap_trib_succession_find(const trib_roster *roster, bool (*is_gone)(const void *user, uint32_t member),
                                 const void *user, uint32_t tensor, uint32_t partition, trib_place_owner *owner)
{
    return __real_trib_succession_find(roster, is_gone, user, tensor,
                                       strikes(BUG_OTHER_SUCCESSOR, 2) ? partition + 1 : partition, owner);
}

#endif
