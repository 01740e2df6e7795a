/*
 * test_mutants.c - a test of the torture test: bugs are planted in the engine, one at a time, and the seeds must find
 * each.
 *
 * The linker puts a function of the test (__wrap_x) before one of the engine's (__real_x); planted says which
 * misbehaves. Each bug runs in a child process, because an engine assertion that ends the process has found the bug as
 * well.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/device/device_task.h"
#include "engine/link/link_arrival.h"
#include "engine/link/link_cause.h"
#include "engine/link/link_handshake.h"
#include "engine/link/link_reconnect.h"
#include "engine/local_group/group.h"
#include "engine/worker/op.h"
#include "engine/server/relay.h"
#include "engine/server/server_sum.h"
#include "engine/cluster/roster.h"
#include "engine/aggregate/sum_tree.h"
#include "engine/worker/worker.h"
#include "stages/kernels/kernels.h"
#include "tests/sim/group_mutants.h"
#include "tests/sim/loss_mutants.h"

#define SEEDS 200u            /* that must find a bug */
#define SEEDS_RARE 500u       /* for a bug that strikes seldom */
#define SEEDS_WITHOUT 50u     /* must pass without a bug: test_torture runs the rest */
#define SEEDS_OF_MEMORY 2000u /* for a bug that strikes where memory runs out at one place */
#define CPU_SECONDS 30u       /* a bug may loop forever; without one the seeds take less */

/* Each bug has a seed that has found it and is tried before all others. The seed only saves time: where the seeds draw
 * anew, another one finds the bug, and is printed. */
#define BUG_LIST(X)                                                                                                    \
    X(BUG_NONE, 0, "none (all seeds must pass)")                                                                       \
    X(BUG_SUM_KEPT, 11, "a sum's reference is kept, 1 in 300")                                                         \
    X(BUG_CALLBACK_LOST, 10, "a core forgets that it is done, 1 in 60")                                                \
    X(BUG_CALLBACK_TWICE, 10, "an operation completes twice, 1 in 60")                                                 \
    X(BUG_BIT_FLIPPED, 54, "a bit of a contribution flips, 1 in 1000")                                                 \
    X(BUG_CHUNK_LOST, 26, "a contribution is dropped, 1 in 1000")                                                      \
    X(BUG_WITHDRAWAL_LOST, 18, "a withdrawal is not taken")                                                            \
    X(BUG_REFUSAL_LOST, 18, "a refusal is not told, 1 in 2")                                                           \
    X(BUG_NOT_RESUMED, 18, "a connection that was out of memory is not read again")                                    \
    X(BUG_OUTLIVES_DEADLINE, 76, "an operation that waits for its turn outlives its deadline")                         \
    X(BUG_LOSS_IGNORED, 2, "the loss of a peer does not end the job")                                                  \
    X(BUG_WRONG_PRIORITY_HEAP, 11, "a request is put into an outbox twice, 1 in 500")                                  \
    X(BUG_OTHER_EPOCH, 1, "a frame bears the number of another epoch, 1 in 300")                                       \
    X(BUG_PARTIAL_LOST, 36, "what a machine has summed does not leave it, 1 in 200")                                   \
    X(BUG_REPORT_LOST, 18, "a refusal on one machine is not told to the others")                                       \
    X(BUG_LEAVES_EARLY, 93, "who leaves does not wait until the others have its sums")                                 \
    X(BUG_BLAMES_ANOTHER, 79, "an error names the member above the one that it means")                                 \
    X(BUG_DROPS_UNTOLD, 290, "what finds no memory in an outbox is dropped, and nobody told")                          \
    X(BUG_DEPARTED_FORGETS, 91, "a local rank that leaves does not count the last collective that it has carried out") \
    X(BUG_AHEAD_TOO_SOON, 26, "what goes ahead is taken to be on the host before it is copied, 1 in 10")               \
    X(BUG_RECALL_WITHOUT_COPY, 81, "what a server has of its own worker's is not copied when the operation fails")     \
    X(BUG_OTHER_PLACE, 12, "a partition of a slice lies where the one before it does")                                 \
    X(BUG_SENT_TWICE, 25, "after a break, what the peer has is sent once more, 1 in 2")                                \
    X(BUG_NOT_SENT_AGAIN, 25, "after a break, a frame that the peer lacks is not sent again, 1 in 2")                  \
    X(BUG_COUNTS_WRONG, 25, "a handshake tells that one frame more was received")                                      \
    X(BUG_BREAK_IS_LOSS, 19, "a connection that breaks is not made again")                                             \
    X(BUG_LANDING_KEPT, 26, "what was half received when the connection broke stays claimed")                          \
    X(BUG_REPEATED_PUSH, 2, "a server takes a contribution that is repeated")                                          \
    X(BUG_REPEATED_SUM, 2, "a worker takes a sum that is repeated")                                                    \
    X(BUG_SILENCE_UNNOTICED, 55, "the silence of a member does not end the job")                                       \
    X(BUG_ANY_EPOCH, 216, "frames of any epoch are accepted")                                                          \
    X(BUG_CHECKSUM_IGNORED, 11, "the checksum of payloads is not compared")                                            \
    X(BUG_DAMAGE_ENDS, 26, "a damaged message ends the link")                                                          \
    X(BUG_PROOF_IGNORED, 16, "the connector's proof is not checked")                                                   \
    X(BUG_ROUNDS_NOT_RAISED, 24, "a worker that joins does not take the rounds of the others")                         \
    GROUP_BUG_LIST(X)                                                                                                  \
    LOSS_BUG_LIST(X) /* from here on: only where a server is lost and the job goes on */
#define BUG_ENUM(name, seed, text) name,
#define BUG_NAME(name, seed, text) [name] = (text),
#define BUG_SEED(name, seed, text) [name] = (seed),

typedef enum bug { BUG_LIST(BUG_ENUM) BUG_COUNT } bug;

static const char *const names[BUG_COUNT] = {BUG_LIST(BUG_NAME)};
static const uint16_t known_seeds[BUG_COUNT] = {BUG_LIST(BUG_SEED)};

static bug planted;
static uint32_t calls;

static bool strikes(bug which, uint32_t one_in)
{
    return planted == which && ++calls % one_in == 0;
}

/* ---- The bugs. Their types are those of the replaced functions, so the compiler notices when one changes. ---- */

__typeof__(trib_summation_sent) __real_trib_summation_sent, __wrap_trib_summation_sent;
void __wrap_trib_summation_sent(trib_summation *summation, trib_sum_buffer *sum)
{
    if (!strikes(BUG_SUM_KEPT, 300)) {
        __real_trib_summation_sent(summation, sum);
    }
}

__typeof__(trib_relay_partial_ready) __real_trib_relay_partial_ready, __wrap_trib_relay_partial_ready;
void __wrap_trib_relay_partial_ready(void *user, const trib_contribution *what, trib_sum_buffer *sum)
{
    const trib_server_sum *of = user;
    if (strikes(BUG_PARTIAL_LOST, 200)) {
        trib_summation_sent(trib_sum_aggregator_summation(of->aggregator), sum);
    } else {
        __real_trib_relay_partial_ready(user, what, sum);
    }
}

__typeof__(trib_relay_round_refused) __real_trib_relay_round_refused, __wrap_trib_relay_round_refused;
void __wrap_trib_relay_round_refused(void *user, const trib_contribution *what, trib_status status, const char *text)
{
    if (!strikes(BUG_REPORT_LOST, 1)) {
        __real_trib_relay_round_refused(user, what, status, text);
    }
}

__typeof__(trib_op_core_done) __real_trib_op_core_done, __wrap_trib_op_core_done;
void __wrap_trib_op_core_done(trib_op *op, trib_core *core)
{
    if (strikes(BUG_CALLBACK_LOST, 60)) {
        return;
    }
    if (strikes(BUG_CALLBACK_TWICE, 60)) {
        atomic_fetch_add(&op->references, 1);
        const trib_result result = {.status = TRIB_OK, .contributors = 1, .tensor = "", .text = ""};
        op->done_cb(&result, op->user);
    }
    __real_trib_op_core_done(op, core);
}

__typeof__(trib_device_op_go_ahead) __real_trib_device_op_go_ahead, __wrap_trib_device_op_go_ahead;
void __wrap_trib_device_op_go_ahead(trib_op *op)
{
    if (strikes(BUG_AHEAD_TOO_SOON, 10)) {
        trib_reactor_post(op->device->wait.reactor, &op->device->wait.post);
    } else {
        __real_trib_device_op_go_ahead(op);
    }
}

static bool copies_nothing;

static void *copy_or_not(void *restrict to, const void *restrict from, size_t size)
{
    return copies_nothing ? to : memcpy(to, from, size);
}

__typeof__(trib_kernels_best) __real_trib_kernels_best, __wrap_trib_kernels_best;
const trib_kernels *__wrap_trib_kernels_best(void)
{
    static trib_kernels kernels;
    kernels = *__real_trib_kernels_best();
    kernels.copy = copy_or_not;
    return &kernels;
}

__typeof__(trib_self_leases_recall) __real_trib_self_leases_recall, __wrap_trib_self_leases_recall;
void __wrap_trib_self_leases_recall(trib_self_lease **held)
{
    copies_nothing = *held != NULL && strikes(BUG_RECALL_WITHOUT_COPY, 1);
    __real_trib_self_leases_recall(held);
    copies_nothing = false;
}

__typeof__(trib_sum_chunk_add) __real_trib_sum_chunk_add, __wrap_trib_sum_chunk_add;
void __wrap_trib_sum_chunk_add(trib_summation *self, sum_round *round, const trib_contribution *what, sum_node payload,
                               sum_block *spare)
{
    if (payload.block != NULL && strikes(BUG_BIT_FLIPPED, 1000)) {
        ((unsigned char *)payload.block->data)[what->size / 2] ^= 4;
    }
    __real_trib_sum_chunk_add(self, round, what, payload, spare);
}

/* A contribution that is there already counts as missing, so the check that follows finds nothing wrong. */
static void forget_arrival(const trib_summation *summation, const trib_contribution *what)
{
    const sum_key *key = trib_sum_key_find(summation, what);
    sum_round *round = key == NULL ? NULL : trib_sum_round_find(summation, key, what->round);
    if (planted != BUG_REPEATED_PUSH || round == NULL || what->chunk >= round->chunk_count) {
        return;
    }
    const size_t bit = (size_t)what->chunk * summation->config.contributor_count + what->contributor;
    if ((round->arrived[bit / 64] >> bit % 64 & 1) != 0) {
        round->arrived[bit / 64] &= ~(UINT64_C(1) << bit % 64);
        round->counts[what->contributor]--;
    }
}

__typeof__(trib_summation_recv_target) __real_trib_summation_recv_target, __wrap_trib_summation_recv_target;
trib_status __wrap_trib_summation_recv_target(trib_summation *summation, const trib_contribution *what,
                                              void **buffer_out, trib_error *error)
{
    forget_arrival(summation, what);
    return __real_trib_summation_recv_target(summation, what, buffer_out, error);
}

__typeof__(trib_link_is_receiving) __real_trib_link_is_receiving, __wrap_trib_link_is_receiving;
bool __wrap_trib_link_is_receiving(const trib_link *link, const void *what, uint32_t chunk)
{
    if (planted != BUG_REPEATED_SUM || trib_link_main(link)->upcalls != &trib_worker_upcalls) {
        return __real_trib_link_is_receiving(link, what, chunk);
    }
    trib_task *task = (trib_task *)(uintptr_t)what;
    task->received[chunk / 64] &= ~(UINT64_C(1) << chunk % 64);
    return false;
}

__typeof__(trib_auth_verify) __real_trib_auth_verify, __wrap_trib_auth_verify;
bool __wrap_trib_auth_verify(const unsigned char key[TRIB_KEY_SIZE], const trib_handshake *handshake, bool as_connector,
                             const unsigned char proof[TRIB_PROOF_SIZE])
{
    return (as_connector && strikes(BUG_PROOF_IGNORED, 1)) ||
           __real_trib_auth_verify(key, handshake, as_connector, proof);
}

__typeof__(trib_summation_arrived) __real_trib_summation_arrived, __wrap_trib_summation_arrived;
trib_status __wrap_trib_summation_arrived(trib_summation *summation, const trib_contribution *what,
                                          const trib_arrived *arrived, trib_error *error)
{
    forget_arrival(summation, what);
    return strikes(BUG_CHUNK_LOST, 1000) ? TRIB_OK : __real_trib_summation_arrived(summation, what, arrived, error);
}

__typeof__(trib_summation_withdraw) __real_trib_summation_withdraw, __wrap_trib_summation_withdraw;
trib_status __wrap_trib_summation_withdraw(trib_summation *summation, const trib_contribution *what, trib_status status,
                                           const char *text)
{
    return strikes(BUG_WITHDRAWAL_LOST, 1) ? TRIB_OK : __real_trib_summation_withdraw(summation, what, status, text);
}

__typeof__(trib_sum_round_notify) __real_trib_sum_round_notify, __wrap_trib_sum_round_notify;
void __wrap_trib_sum_round_notify(trib_summation *self, sum_round *round, uint32_t contributor)
{
    if (!strikes(BUG_REFUSAL_LOST, 2)) {
        __real_trib_sum_round_notify(self, round, contributor);
    }
}

__typeof__(trib_link_resume) __real_trib_link_resume, __wrap_trib_link_resume;
void __wrap_trib_link_resume(trib_link *link)
{
    if (!strikes(BUG_NOT_RESUMED, 1)) {
        __real_trib_link_resume(link);
    }
}

__typeof__(trib_session_resend) __real_trib_session_resend, __wrap_trib_session_resend;
void __wrap_trib_session_resend(trib_link *link, uint64_t received)
{
    const bool has_some = received > link->session.acknowledged, lacks_some = received < link->session.sent;
    if (has_some && strikes(BUG_SENT_TWICE, 2)) {
        received--;
    } else if (lacks_some && strikes(BUG_NOT_SENT_AGAIN, 2)) {
        received++;
    }
    __real_trib_session_resend(link, received);
}

__typeof__(trib_link_handshake_welcome) __real_trib_link_handshake_welcome, __wrap_trib_link_handshake_welcome;
void __wrap_trib_link_handshake_welcome(trib_link *link)
{
    const uint64_t more = link->session.received > 0 && strikes(BUG_COUNTS_WRONG, 1) ? 1 : 0;
    link->session.received += more;
    __real_trib_link_handshake_welcome(link);
    link->session.received -= more;
}

__typeof__(trib_redial_connection_lost) __real_trib_redial_connection_lost, __wrap_trib_redial_connection_lost;
bool __wrap_trib_redial_connection_lost(trib_link *link, const trib_conn *conn, trib_status status, const char *reason)
{
    return !strikes(BUG_BREAK_IS_LOSS, 1) && __real_trib_redial_connection_lost(link, conn, status, reason);
}

__typeof__(trib_link_arrivals_abandon) __real_trib_link_arrivals_abandon, __wrap_trib_link_arrivals_abandon;
void __wrap_trib_link_arrivals_abandon(trib_link *link)
{
    if (link->arrival_count > 0 && link->state == TRIB_LINK_RECONNECTING && strikes(BUG_LANDING_KEPT, 1)) {
        link->arrival_count = 0;
    }
    __real_trib_link_arrivals_abandon(link);
}

__typeof__(trib_worker_release) __real_trib_worker_release, __wrap_trib_worker_release;
void __wrap_trib_worker_release(trib_core *core, trib_op_core *op_core)
{
    if (!strikes(BUG_OUTLIVES_DEADLINE, 1)) {
        __real_trib_worker_release(core, op_core);
    }
}

__typeof__(trib_job_member_lost) __real_trib_job_member_lost, __wrap_trib_job_member_lost;
void __wrap_trib_job_member_lost(trib_engine *engine, const trib_cause *cause)
{
    const bool is_silence = planted == BUG_SILENCE_UNNOTICED && cause->kind == TRIB_CAUSE_SILENT;
    if (!strikes(BUG_LOSS_IGNORED, 1) && !is_silence) {
        __real_trib_job_member_lost(engine, cause);
    }
}

__typeof__(trib_link_send_cause) __real_trib_link_send_cause, __wrap_trib_link_send_cause;
void __wrap_trib_link_send_cause(trib_link *link, trib_frame frame, const trib_cause *cause)
{
    if (planted != BUG_SILENCE_UNNOTICED || cause->kind != TRIB_CAUSE_SILENT) {
        __real_trib_link_send_cause(link, frame, cause);
    }
}

__typeof__(trib_frame_encode) __real_trib_frame_encode, __wrap_trib_frame_encode;
void __wrap_trib_frame_encode(const trib_frame *frame, unsigned char header[TRIB_HEADER_SIZE])
{
    trib_frame other = *frame;
    other.epoch += frame->epoch != 0 && strikes(BUG_OTHER_EPOCH, 300) ? 1 : 0;
    __real_trib_frame_encode(&other, header);
}

__typeof__(trib_scheduler_submit) __real_trib_scheduler_submit, __wrap_trib_scheduler_submit;
trib_status __wrap_trib_scheduler_submit(trib_link *link, trib_send_request *request, uint64_t bytes)
{
    trib_status status = __real_trib_scheduler_submit(link, request, bytes);
    if (status == TRIB_NO_MEMORY && strikes(BUG_DROPS_UNTOLD, 1)) {
        return TRIB_OK;
    }
    if (status == TRIB_OK && strikes(BUG_WRONG_PRIORITY_HEAP, 500)) {
        request->node.place = 0;
        status = __real_trib_scheduler_submit(link, request, bytes);
    }
    return status;
}

__typeof__(trib_server_is_idle) __real_trib_server_is_idle, __wrap_trib_server_is_idle;
bool __wrap_trib_server_is_idle(const trib_core *core)
{
    return strikes(BUG_LEAVES_EARLY, 1) || __real_trib_server_is_idle(core);
}

__typeof__(trib_roster_name) __real_trib_roster_name, __wrap_trib_roster_name;
const char *__wrap_trib_roster_name(const trib_roster *roster, uint32_t member)
{
    const bool is_other = roster != NULL && member < roster->member_count && strikes(BUG_BLAMES_ANOTHER, 1);
    return __real_trib_roster_name(roster, is_other ? (member + 1) % roster->member_count : member);
}

__typeof__(trib_group_carried_out) __real_trib_group_carried_out, __wrap_trib_group_carried_out;
uint32_t __wrap_trib_group_carried_out(const trib_core *core)
{
    const uint32_t carried_out = __real_trib_group_carried_out(core);
    return carried_out > 0 && strikes(BUG_DEPARTED_FORGETS, 1) ? carried_out - 1 : carried_out;
}

__typeof__(trib_partitioning_offset) __real_trib_partitioning_offset, __wrap_trib_partitioning_offset;
uint64_t __wrap_trib_partitioning_offset(const trib_partitioning *cut, uint32_t partition)
{
    const uint64_t begin = __real_trib_partitioning_offset(cut, partition);
    const bool is_later =
        cut->layout != TRIB_WHOLE && partition > cut->slices[trib_partitioning_slice_of(cut, partition)].first;
    return is_later && strikes(BUG_OTHER_PLACE, 1) ? begin - cut->partition_bytes : begin;
}

#include "tests/sim/damage_mutants_wrap.h"
#include "tests/sim/group_mutants_wrap.h"
#include "tests/sim/join_mutants_wrap.h"
#include "tests/sim/loss_mutants_wrap.h"

/* ---- The search ---- */

/* Shared with the child: the seed that runs, the seed that found something (0: none yet), and the finding. */
typedef struct finding {
    uint64_t running, found;
    char why[256];
} finding;

static uint64_t seeds_for(bug which)
{
    const bool is_rare = which == BUG_AHEAD_TOO_SOON || which == BUG_ANY_EPOCH;
    return which == BUG_NONE           ? SEEDS_WITHOUT
           : which == BUG_DROPS_UNTOLD ? SEEDS_OF_MEMORY
           : is_rare                   ? SEEDS_RARE
                                       : SEEDS;
}

/* True if the seed finds the bug. */
static bool finds(bug which, uint64_t seed, finding *shared)
{
    shared->running = seed;
    calls = 0;
    torture_plan plan;
    torture_draw(seed, &plan);
    if (which >= BUG_COPY_FORGOTTEN && !loses_server(&plan)) {
        return false;
    }
    const torture_verdict verdict = torture_run(&plan);
    if (!verdict.held) {
        shared->found = seed;
        snprintf(shared->why, sizeof shared->why, "%s", verdict.why);
    }
    return !verdict.held;
}

static void hunt(bug which, finding *shared)
{
    planted = which;
    if (known_seeds[which] != 0 && finds(which, known_seeds[which], shared)) {
        return;
    }
    const uint64_t seeds = which >= BUG_COPY_FORGOTTEN ? SEEDS_OF_LOSSES : seeds_for(which);
    for (uint64_t seed = 1; seed <= seeds && !finds(which, seed, shared); seed++) {}
}

static void hunt_apart(bug which, finding *shared)
{
    memset(shared, 0, sizeof *shared);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        /* A planted bug may loop forever. CPU time is limited, so a busy machine does not matter. */
        const struct rlimit limit = {.rlim_cur = CPU_SECONDS, .rlim_max = CPU_SECONDS};
        setrlimit(RLIMIT_CPU, &limit);
        if (freopen("/dev/null", "w", stderr) == NULL) {
            _exit(2);
        }
        hunt(which, shared);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (shared->found == 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
        shared->found = shared->running;
        snprintf(shared->why, sizeof shared->why, "%s",
                 WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "ended by a sanitizer");
    }
}

/* `test_mutants 5` plants the fifth bug alone. */
int main(int argc, char **argv)
{
    const unsigned only = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0;
    const unsigned first = only > 0 ? only - 1 : 0, end = only > 0 && only <= BUG_COUNT ? only : BUG_COUNT;
    finding *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    int missed = 0;
    for (unsigned which = first; which < end; which++) {
        hunt_apart((bug)which, shared);
        const bool good = (shared->found != 0) == (which != BUG_NONE);
        missed += !good;
        if (shared->found != 0) {
            printf("# found by seed %llu: %s\n", (unsigned long long)shared->found, shared->why);
        }
        printf("%s %u - planted: %s\n", good ? "ok" : "not ok", which + 1, names[which]);
    }
    return missed == 0 ? 0 : 1;
}
