/*
 * topo_print.c - topology and plan as JSON, for people and for `tributary info`.
 */
#include "numa/place.h"

#include <inttypes.h>

/* Names come from the system: what JSON cannot hold as it is becomes a question mark. */
static void print_text(const char *text, FILE *out)
{
    (void)fputc('"', out);
    for (const char *at = text; *at != '\0'; at++) {
        bool plain = (unsigned char)*at >= 0x20 && (unsigned char)*at < 0x7f && *at != '"' && *at != '\\';
        (void)fputc(plain ? *at : '?', out);
    }
    (void)fputc('"', out);
}

static const char *separator(uint32_t index)
{
    return index == 0 ? "\n" : ",\n";
}

/* The node's number in the operating system; -1 stays -1. */
static int32_t node_number(const trib_topo *topo, int32_t index)
{
    return index >= 0 ? topo->nodes[index].os_index : -1;
}

static void print_devices(const trib_topo *topo, FILE *out)
{
    (void)fprintf(out, "],\n  \"nics\": [");
    for (uint32_t i = 0; i < topo->nic_count; i++) {
        const trib_topo_nic *nic = &topo->nics[i];
        (void)fprintf(out, "%s    {\"name\": ", separator(i));
        print_text(nic->name, out);
        (void)fprintf(out, ", \"rdma\": ");
        print_text(nic->rdma_device, out);
        (void)fprintf(out, ", \"pci\": ");
        print_text(nic->pci, out);
        (void)fprintf(out, ", \"node\": %" PRId32 "}", node_number(topo, nic->node));
    }
    (void)fprintf(out, "],\n  \"gpus\": [");
    for (uint32_t i = 0; i < topo->gpu_count; i++) {
        const trib_topo_gpu *gpu = &topo->gpus[i];
        (void)fprintf(out, "%s    {\"pci\": ", separator(i));
        print_text(gpu->pci, out);
        (void)fprintf(out, ", \"model\": ");
        print_text(gpu->model, out);
        (void)fprintf(out, ", \"node\": %" PRId32 ", \"nic\": ", node_number(topo, gpu->node));
        print_text(gpu->nic >= 0 ? topo->nics[gpu->nic].name : "", out);
        (void)fputc('}', out);
    }
    (void)fputc(']', out);
}

void trib_topo_print(const trib_topo *topo, FILE *out)
{
    (void)fprintf(out, "{\n  \"source\": \"%s\",\n  \"nodes\": [", topo->fallback ? "affinity" : "hwloc");
    for (uint32_t i = 0; i < topo->node_count; i++) {
        const trib_topo_node *node = &topo->nodes[i];
        (void)fprintf(out, "%s    {\"node\": %" PRId32 ", \"cores\": %" PRIu32 ", \"memory_bytes\": %" PRIu64 "}",
                      separator(i), node->os_index, node->core_count, node->memory_bytes);
    }
    (void)fprintf(out, "],\n  \"machine_cores\": %" PRIu32 ",\n  \"cores\": [", topo->machine_core_count);
    for (uint32_t i = 0; i < topo->core_count; i++) {
        const trib_topo_core *core = &topo->cores[i];
        (void)fprintf(out,
                      "%s    {\"cpu\": %" PRId32 ", \"node\": %" PRId32 ", \"package\": %" PRId32 ", \"l2\": %" PRId32
                      ", \"l2_bytes\": %" PRIu64 ", \"l3\": %" PRId32 ", \"l3_bytes\": %" PRIu64 "}",
                      separator(i), core->cpu, node_number(topo, core->node), core->package, core->l2, core->l2_bytes,
                      core->l3, core->l3_bytes);
    }
    print_devices(topo, out);
    (void)fprintf(out, "\n}");
}

void trib_place_print(const trib_place_plan *plan, const trib_topo *topo, FILE *out)
{
    (void)fprintf(out, "{\n  \"reactors\": [");
    for (uint32_t i = 0; i < plan->reactor_count; i++) {
        const trib_place_reactor *reactor = &plan->reactors[i];
        (void)fprintf(out, "%s    {\"cpu\": %" PRId32 ", \"node\": %" PRId32 ", \"address\": %" PRIu32 ", \"nic\": ",
                      separator(i), reactor->cpu, node_number(topo, reactor->node), reactor->address);
        print_text(reactor->nic >= 0 ? topo->nics[reactor->nic].name : "", out);
        (void)fputc('}', out);
    }
    (void)fprintf(out, "],\n  \"arena_node\": %" PRId32 ",\n  \"gpu\": ", plan->arena_node);
    print_text(plan->gpu >= 0 ? topo->gpus[plan->gpu].pci : "", out);
    (void)fprintf(out, ",\n  \"busy_poll\": %s,\n  \"crowded\": %s,\n  \"bound\": %s\n}",
                  plan->busy_poll ? "true" : "false", plan->crowded ? "true" : "false", plan->bound ? "true" : "false");
}
