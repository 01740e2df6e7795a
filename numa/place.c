/*
 * place.c - see place.h. Cores are chosen one by one: the nearest of the process's own that is not taken yet. Then the
 * addresses.
 *
 * If all processes together want more reactors than there are cores, nobody pins: two pinned loops on one core are
 * worse than what the scheduler does, and a pinned one cannot step aside for a floating one.
 */
#include "numa/place.h"

#include "engine/base/assert.h"
#include "engine/base/log.h"

void trib_place_request_init(trib_place_request *request)
{
    *request = (trib_place_request){.addresses = 1, .local_count = 1, .gpu = -1, .pin = true};
}

static trib_status check_request(const trib_topo *topo, const trib_place_request *request, trib_error *error)
{
    if (request->reactors > TRIB_PLACE_REACTORS_MAX) {
        return trib_error_set(error, TRIB_INVALID, "reactors is %u: at most %d", request->reactors,
                              TRIB_PLACE_REACTORS_MAX);
    }
    if (request->local_count == 0 || request->local_index >= request->local_count) {
        return trib_error_set(error, TRIB_INVALID, "local index %u of %u processes on this machine",
                              request->local_index, request->local_count);
    }
    if (request->addresses == 0 || request->addresses > TRIB_PLACE_NICS_MAX) {
        return trib_error_set(error, TRIB_INVALID, "%u addresses to listen on: 1 to %d", request->addresses,
                              TRIB_PLACE_NICS_MAX);
    }
    if (request->gpu < -1 || request->gpu >= (int32_t)topo->gpu_count) {
        return trib_error_set(error, TRIB_INVALID, "GPU %d: this machine has %u", request->gpu, topo->gpu_count);
    }
    return TRIB_OK;
}

/* The number of processes that share the usable cores. If parts of this size fit beside each other, each process is
 * taken to have one of its own. */
static uint32_t count_sharers(const trib_topo *topo, uint32_t local_count)
{
    bool bound = topo->core_count < topo->machine_core_count;
    bool exclusive = bound && (uint64_t)topo->core_count * local_count <= topo->machine_core_count;
    return exclusive ? 1 : local_count;
}

static uint32_t greatest_divisor(uint32_t a, uint32_t b)
{
    while (b != 0) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Half of the cores are left to the callers. Reactors of all processes together are so many that each address has as
 * many, as far as that half allows. Where it is too small to give each address one, it is exceeded; but rather than
 * crowd the cores some addresses have one more. */
static uint32_t count_default_reactors(const trib_topo *topo, uint32_t sharer_count, const trib_place_request *request)
{
    trib_assert(sharer_count > 0 && request->local_count > 0 && request->addresses > 0);
    const uint64_t share = topo->core_count / (2 * (uint64_t)sharer_count);
    const uint32_t most = share < TRIB_PLACE_REACTORS_DEFAULT_MAX ? (uint32_t)share : TRIB_PLACE_REACTORS_DEFAULT_MAX;
    const uint32_t least = (request->addresses - 1) / request->local_count + 1;
    const uint32_t unit = request->addresses / greatest_divisor(request->addresses, request->local_count);
    const uint32_t even = most > unit ? most / unit * unit : unit;
    if (even <= share) {
        return even;
    }
    if (least <= share) {
        return most > least ? most : least;
    }
    return (uint64_t)even * sharer_count <= topo->core_count ? even : least;
}

/* The node to be near to: the GPU's, else the NIC's, else one by this process's number, so that processes spread. */
static int32_t find_anchor_node(const trib_topo *topo, const trib_place_request *request, int32_t nic)
{
    if (request->gpu >= 0 && topo->gpus[request->gpu].node >= 0) {
        return topo->gpus[request->gpu].node;
    }
    if (nic >= 0 && topo->nics[nic].node >= 0) {
        return topo->nics[nic].node;
    }
    uint32_t with_cores = 0;
    for (uint32_t i = 0; i < topo->node_count; i++) {
        with_cores += topo->nodes[i].core_count > 0;
    }
    uint64_t wanted = (uint64_t)request->local_index * with_cores / request->local_count;
    for (uint32_t i = 0; i < topo->node_count; i++) {
        if (topo->nodes[i].core_count > 0 && wanted-- == 0) {
            return (int32_t)i;
        }
    }
    return 0;
}

/* Smaller is nearer: same node, same socket, elsewhere; then, beside a core already taken, one that shares its L3
 * cache. */
static uint32_t core_distance(const trib_topo *topo, const trib_topo_core *core, int32_t anchor,
                              const trib_topo_core *first)
{
    uint32_t distance = 4;
    if (core->node == anchor) {
        distance = 0;
    } else if (core->package == topo->nodes[anchor].package) {
        distance = 2;
    }
    bool shares_cache = first == NULL || (first->l3 >= 0 && first->l3 == core->l3);
    return distance + !shares_cache;
}

/* A far free core costs less than a near one that another job has claimed. */
static uint32_t core_cost(const trib_topo *topo, const trib_place_request *request, const trib_topo_core *core,
                          int32_t anchor, const trib_topo_core *first)
{
    const bool is_taken = request->taken != NULL && trib_place_cpus_have(request->taken, core->cpu);
    return core_distance(topo, core, anchor, first) + (is_taken ? 8 : 0);
}

static bool plan_has_cpu(const trib_place_plan *plan, uint32_t count, int32_t cpu)
{
    for (uint32_t i = 0; i < count; i++) {
        if (plan->reactors[i].cpu == cpu) {
            return true;
        }
    }
    return false;
}

/* The nearest core of this process's own without a reactor of it; NULL if all have one. */
static const trib_topo_core *choose_core(const trib_topo *topo, const trib_place_request *request,
                                         const trib_place_plan *plan, uint32_t taken, int32_t anchor,
                                         const trib_topo_core *first)
{
    const trib_topo_core *best = NULL;
    for (uint64_t i = request->local_index; i < topo->core_count; i += request->local_count) {
        const trib_topo_core *core = &topo->cores[i];
        if (plan_has_cpu(plan, taken, core->cpu)) {
            continue;
        }
        if (best == NULL ||
            core_cost(topo, request, core, anchor, first) < core_cost(topo, request, best, anchor, first)) {
            best = core;
        }
    }
    return best;
}

/* The node of all usable cores; -1 if they lie on several. */
static int32_t common_node(const trib_topo *topo)
{
    for (uint32_t i = 1; i < topo->core_count; i++) {
        if (topo->cores[i].node != topo->cores[0].node) {
            return -1;
        }
    }
    return topo->cores[0].node;
}

/* The address whose turn it is: reactors are counted over all processes of the machine. */
static uint32_t turn_of(const trib_place_request *request, const trib_place_plan *plan, uint32_t reactor)
{
    return (uint32_t)(((uint64_t)request->local_index * plan->reactor_count + reactor) % request->addresses);
}

static void place_reactors(const trib_topo *topo, const trib_place_request *request, const int32_t *nics,
                           trib_place_plan *plan)
{
    const trib_topo_core *first[TRIB_PLACE_NICS_MAX] = {NULL}; /* by address that decided */
    for (uint32_t i = 0; i < plan->reactor_count; i++) {
        const trib_topo_core *core = NULL;
        uint32_t turn = turn_of(request, plan, i);
        if (request->pin && !plan->crowded && !plan->bound) {
            int32_t anchor = find_anchor_node(topo, request, nics[turn]);
            core = choose_core(topo, request, plan, i, anchor, first[turn]);
        }
        plan->reactors[i].cpu = core != NULL ? core->cpu : -1;
        plan->reactors[i].node = core != NULL ? core->node : common_node(topo);
        first[turn] = first[turn] == NULL ? core : first[turn];
    }
}

/* Smaller is nearer. If the reactor's node is not known, all NICs but the GPU's are equally near. */
static uint32_t nic_distance(const trib_topo *topo, const trib_place_request *request, int32_t node, int32_t nic)
{
    if (request->gpu >= 0 && nic >= 0 && topo->gpus[request->gpu].nic == nic) {
        return 0;
    }
    if (node < 0 || nic < 0 || topo->nics[nic].node < 0) {
        return 3;
    }
    int32_t other = topo->nics[nic].node;
    if (other == node) {
        return 1;
    }
    return topo->nodes[other].package == topo->nodes[node].package ? 2 : 4;
}

/* Each address gets as many reactors as the others, or one more. */
static void deal_addresses(const trib_topo *topo, const trib_place_request *request, const int32_t *nics,
                           trib_place_plan *plan)
{
    uint32_t taken[TRIB_PLACE_NICS_MAX] = {0};
    uint32_t each = plan->reactor_count / request->addresses;
    uint32_t more = plan->reactor_count % request->addresses;
    for (uint32_t i = 0; i < plan->reactor_count; i++) {
        uint32_t best = request->addresses;
        uint32_t best_distance = 0;
        for (uint32_t k = 0; k < request->addresses; k++) {
            uint32_t a = turn_of(request, plan, k);
            bool free_place = taken[a] < each || (taken[a] == each && more > 0);
            uint32_t distance = nic_distance(topo, request, plan->reactors[i].node, nics[a]);
            bool better = best == request->addresses || distance < best_distance ||
                          (distance == best_distance && taken[a] < taken[best]);
            if (free_place && better) {
                best = a;
                best_distance = distance;
            }
        }
        trib_assert(best < request->addresses);
        more -= taken[best]++ == each;
        plan->reactors[i].address = best;
        plan->reactors[i].nic = nics[best];
    }
}

/* The node that most reactors run on, the first on a tie; -1: memory goes where it is touched. */
static int32_t arena_node(const trib_topo *topo, const trib_place_plan *plan)
{
    int32_t best = -1;
    uint32_t best_count = 0;
    for (uint32_t i = 0; i < plan->reactor_count && topo->node_count > 1; i++) {
        uint32_t count = 0;
        for (uint32_t j = 0; j < plan->reactor_count; j++) {
            count += plan->reactors[i].node >= 0 && plan->reactors[j].node == plan->reactors[i].node;
        }
        if (count > best_count) {
            best_count = count;
            best = topo->nodes[plan->reactors[i].node].os_index;
        }
    }
    return best;
}

trib_status trib_place_make(const trib_topo *topo, const trib_place_request *request, trib_place_plan *plan_out,
                            trib_error *error)
{
    trib_status status = check_request(topo, request, error);
    if (status != TRIB_OK) {
        return status;
    }
    trib_place_plan plan = {.gpu = request->gpu};
    int32_t nics[TRIB_PLACE_NICS_MAX];
    for (uint32_t i = 0; i < request->addresses; i++) {
        nics[i] = request->nics[i] != NULL ? trib_topo_nic_find(topo, request->nics[i]) : -1;
    }
    uint32_t sharer_count = count_sharers(topo, request->local_count);
    plan.reactor_count =
        request->reactors > 0 ? request->reactors : count_default_reactors(topo, sharer_count, request);
    const bool is_known = request->reactors_in_all > 0 && sharer_count == request->local_count;
    plan.sharing = is_known ? request->reactors_in_all : (uint64_t)plan.reactor_count * sharer_count;
    plan.bound = topo->core_count < topo->machine_core_count;
    plan.crowded = plan.sharing > topo->core_count;
    plan.roomy = plan.sharing + sharer_count - 1 <= topo->core_count;
    plan.busy_poll = request->busy_poll && plan.sharing < topo->core_count;
    place_reactors(topo, request, nics, &plan);
    deal_addresses(topo, request, nics, &plan);
    plan.arena_node = arena_node(topo, &plan);
    *plan_out = plan;
    return TRIB_OK;
}

/* Adds the free cores on that node (-1: any). False: there are none. */
static bool add_free_cores(const trib_topo *topo, const trib_place_plan *plan, int32_t node, trib_place_cpus *cpus)
{
    bool any = false;
    for (uint32_t i = 0; i < topo->core_count; i++) {
        const trib_topo_core *core = &topo->cores[i];
        const bool is_free = !plan_has_cpu(plan, plan->reactor_count, core->cpu);
        if (is_free && core->cpu < TRIB_PLACE_CPUS_MAX && (node < 0 || core->node == node)) {
            trib_place_cpus_add(cpus, core->cpu);
            any = true;
        }
    }
    return any;
}

void trib_place_rest(const trib_topo *topo, const trib_place_plan *plan, trib_place_cpus *cpus_out)
{
    *cpus_out = (trib_place_cpus){.bits = {0}};
    const int32_t node = plan->gpu >= 0 ? topo->gpus[plan->gpu].node : -1;
    if (plan->reactor_count > 0 && plan->reactors[0].cpu >= 0 && !add_free_cores(topo, plan, node, cpus_out) &&
        node >= 0) {
        (void)add_free_cores(topo, plan, -1, cpus_out);
    }
}
