/*
 * topo.c - reads hwloc's tree into a trib_topo.
 *
 * hwloc's plugins for CUDA, NVML, OpenCL and the like stay off: an embedded library must not start device runtimes in
 * its host. The one over libpciaccess stays off too, because it leaks; the kernel's own account of PCI in /sys is
 * enough. Only network devices on a bus are listed; bridges, bonds and the loopback are near no node.
 */
#include "numa/topo.h"

#include "engine/base/log.h"
#include "numa/topo_fallback.h"

#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PCI_BASE_DISPLAY 0x03
#define PCI_BASE_ACCELERATOR 0x12
#define PCI_CLASS_VGA 0x0300
#define PCI_VENDOR_NVIDIA 0x10de
#define PCI_VENDOR_AMD 0x1002

static void disable_components(hwloc_topology_t hwloc)
{
    static const char *const names[] = {"pci", "cuda", "nvml", "opencl", "gl", "rsmi", "levelzero"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        (void)hwloc_topology_set_components(hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, names[i]);
    }
}

static bool open_hwloc(hwloc_topology_t *hwloc_out, const char *xml_path)
{
    hwloc_topology_t hwloc;
    if (hwloc_topology_init(&hwloc) != 0) {
        return false;
    }
    bool ok = true;
    if (xml_path != NULL) {
        ok = hwloc_topology_set_xml(hwloc, xml_path) == 0;
    } else {
        disable_components(hwloc);
    }
    (void)hwloc_topology_set_io_types_filter(hwloc, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (!ok || hwloc_topology_load(hwloc) != 0) {
        hwloc_topology_destroy(hwloc);
        return false;
    }
    *hwloc_out = hwloc;
    return true;
}

/* The CPUs that this process is bound to, of those that the machine or container allows. For an XML file, all. */
static hwloc_bitmap_t usable_cpus(hwloc_topology_t hwloc)
{
    hwloc_bitmap_t cpus = hwloc_bitmap_dup(hwloc_topology_get_allowed_cpuset(hwloc));
    hwloc_bitmap_t bound = hwloc_bitmap_alloc();
    if (cpus != NULL && bound != NULL && hwloc_topology_is_thissystem(hwloc) &&
        hwloc_get_cpubind(hwloc, bound, HWLOC_CPUBIND_PROCESS) == 0 && hwloc_bitmap_intersects(cpus, bound)) {
        (void)hwloc_bitmap_and(cpus, cpus, bound);
    }
    hwloc_bitmap_free(bound);
    return cpus;
}

/* Index of the node with that operating system's number; -1. */
static int32_t find_node(const trib_topo *topo, int os_index)
{
    for (uint32_t i = 0; i < topo->node_count; i++) {
        if (topo->nodes[i].os_index == os_index) {
            return (int32_t)i;
        }
    }
    return -1;
}

static trib_status read_nodes(hwloc_topology_t hwloc, trib_topo *topo)
{
    int count = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_NUMANODE);
    if (count < 1) {
        return TRIB_UNSUPPORTED;
    }
    topo->nodes = calloc((size_t)count, sizeof(*topo->nodes));
    if (topo->nodes == NULL) {
        return TRIB_NO_MEMORY;
    }
    hwloc_obj_t object = NULL;
    while ((object = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, object)) != NULL) {
        trib_topo_node node = {.os_index = (int32_t)object->os_index, .package = -1};
        node.memory_bytes = object->attr->numanode.local_memory;
        /* Insertion keeps them ordered by the operating system's number. */
        uint32_t at = topo->node_count++;
        while (at > 0 && topo->nodes[at - 1].os_index > node.os_index) {
            topo->nodes[at] = topo->nodes[at - 1];
            at--;
        }
        topo->nodes[at] = node;
    }
    return TRIB_OK;
}

static void read_cache(hwloc_obj_t object, hwloc_obj_type_t type, int32_t *index_out, uint64_t *bytes_out)
{
    *index_out = -1;
    for (hwloc_obj_t parent = object->parent; parent != NULL; parent = parent->parent) {
        if (parent->type == type) {
            *index_out = (int32_t)parent->logical_index;
            *bytes_out = parent->attr->cache.size;
            return;
        }
    }
}

static void read_core(trib_topo *topo, hwloc_topology_t hwloc, hwloc_obj_t object, int cpu)
{
    trib_topo_core *core = &topo->cores[topo->core_count++];
    core->cpu = cpu;
    int32_t node = find_node(topo, hwloc_bitmap_first(object->nodeset));
    core->node = node >= 0 ? node : 0;
    read_cache(object, HWLOC_OBJ_L2CACHE, &core->l2, &core->l2_bytes);
    read_cache(object, HWLOC_OBJ_L3CACHE, &core->l3, &core->l3_bytes);
    hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(hwloc, HWLOC_OBJ_PACKAGE, object);
    core->package = package != NULL ? (int32_t)package->logical_index : 0;
    topo->nodes[core->node].package = core->package;
    topo->nodes[core->node].core_count++;
}

/* The cores with a usable hardware thread, node by node. */
static trib_status read_cores(hwloc_topology_t hwloc, trib_topo *topo)
{
    hwloc_obj_type_t type = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    int count = hwloc_get_nbobjs_by_type(hwloc, type);
    hwloc_bitmap_t cpus = usable_cpus(hwloc);
    hwloc_bitmap_t own = hwloc_bitmap_alloc();
    hwloc_const_bitmap_t allowed = hwloc_topology_get_allowed_cpuset(hwloc);
    topo->cores = count > 0 ? calloc((size_t)count, sizeof(*topo->cores)) : NULL;
    if (cpus == NULL || own == NULL || topo->cores == NULL) {
        hwloc_bitmap_free(cpus);
        hwloc_bitmap_free(own);
        return count > 0 ? TRIB_NO_MEMORY : TRIB_UNSUPPORTED;
    }
    for (uint32_t node = 0; node < topo->node_count; node++) {
        hwloc_obj_t object = NULL;
        while ((object = hwloc_get_next_obj_by_type(hwloc, type, object)) != NULL) {
            int32_t home = find_node(topo, hwloc_bitmap_first(object->nodeset));
            bool here = home >= 0 ? home == (int32_t)node : node == 0;
            (void)hwloc_bitmap_and(own, object->cpuset, cpus);
            topo->machine_core_count += here && hwloc_bitmap_intersects(object->cpuset, allowed);
            if (here && !hwloc_bitmap_iszero(own)) {
                read_core(topo, hwloc, object, hwloc_bitmap_first(own));
            }
        }
    }
    hwloc_bitmap_free(cpus);
    hwloc_bitmap_free(own);
    return topo->core_count > 0 ? TRIB_OK : TRIB_UNSUPPORTED;
}

/* The node that a device is attached to; -1 if several are equally near. */
static int32_t find_device_node(const trib_topo *topo, hwloc_topology_t hwloc, hwloc_obj_t device)
{
    hwloc_obj_t parent = hwloc_get_non_io_ancestor_obj(hwloc, device);
    if (topo->node_count == 1) {
        return 0;
    }
    if (parent == NULL || parent->nodeset == NULL || hwloc_bitmap_weight(parent->nodeset) != 1) {
        return -1;
    }
    return find_node(topo, hwloc_bitmap_first(parent->nodeset));
}

static hwloc_obj_t find_pci_device(hwloc_obj_t device)
{
    while (device != NULL && device->type != HWLOC_OBJ_PCI_DEVICE) {
        device = device->parent;
    }
    return device;
}

static void format_pci(hwloc_obj_t pci, char text[TRIB_TOPO_PCI_SIZE])
{
    const struct hwloc_pcidev_attr_s *at = &pci->attr->pcidev;
    (void)snprintf(text, TRIB_TOPO_PCI_SIZE, "%04x:%02x:%02x.%01x", (unsigned)at->domain & 0xffffffu, (unsigned)at->bus,
                   (unsigned)at->dev, (unsigned)at->func & 0xfu);
}

/* True for GPUs that compute: accelerators, and display controllers of the vendors that make such, but no server's VGA
 * console. */
static bool is_gpu(hwloc_obj_t pci)
{
    unsigned class_id = pci->attr->pcidev.class_id;
    unsigned vendor = pci->attr->pcidev.vendor_id;
    bool display = class_id >> 8 == PCI_BASE_DISPLAY;
    bool known = vendor == PCI_VENDOR_NVIDIA || vendor == PCI_VENDOR_AMD;
    return class_id >> 8 == PCI_BASE_ACCELERATOR || (display && (known || class_id != PCI_CLASS_VGA));
}

static trib_status read_gpus(hwloc_topology_t hwloc, trib_topo *topo)
{
    int count = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_PCI_DEVICE);
    topo->gpus = calloc(count > 0 ? (size_t)count : 1, sizeof(*topo->gpus));
    if (topo->gpus == NULL) {
        return TRIB_NO_MEMORY;
    }
    hwloc_obj_t object = NULL;
    while ((object = hwloc_get_next_pcidev(hwloc, object)) != NULL) {
        if (is_gpu(object)) {
            trib_topo_gpu *gpu = &topo->gpus[topo->gpu_count++];
            format_pci(object, gpu->pci);
            const char *model = hwloc_obj_get_info_by_name(object, "PCIDevice");
            (void)snprintf(gpu->model, sizeof(gpu->model), "%s", model != NULL ? model : "");
            gpu->node = find_device_node(topo, hwloc, object);
            gpu->nic = -1;
        }
    }
    return TRIB_OK;
}

/* The NIC's entry, new or begun: a network interface and an RDMA device at one PCI address are one NIC. */
static trib_topo_nic *claim_nic(trib_topo *topo, const char *pci, hwloc_obj_osdev_type_t type)
{
    for (uint32_t i = 0; i < topo->nic_count && pci[0] != '\0'; i++) {
        trib_topo_nic *nic = &topo->nics[i];
        bool free_place = type == HWLOC_OBJ_OSDEV_NETWORK ? nic->name[0] == '\0' : nic->rdma_device[0] == '\0';
        if (free_place && strcmp(nic->pci, pci) == 0) {
            return nic;
        }
    }
    return &topo->nics[topo->nic_count++];
}

static int compare_nics(const void *a, const void *b)
{
    const trib_topo_nic *left = a;
    const trib_topo_nic *right = b;
    int order = strcmp(left->pci, right->pci);
    return order != 0 ? order : strcmp(left->name, right->name);
}

static int compare_gpus(const void *a, const void *b)
{
    const trib_topo_gpu *left = a;
    const trib_topo_gpu *right = b;
    return strcmp(left->pci, right->pci);
}

static trib_status read_nics(hwloc_topology_t hwloc, trib_topo *topo)
{
    int count = hwloc_get_nbobjs_by_type(hwloc, HWLOC_OBJ_OS_DEVICE);
    topo->nics = calloc(count > 0 ? (size_t)count : 1, sizeof(*topo->nics));
    if (topo->nics == NULL) {
        return TRIB_NO_MEMORY;
    }
    hwloc_obj_t object = NULL;
    while ((object = hwloc_get_next_osdev(hwloc, object)) != NULL) {
        hwloc_obj_osdev_type_t type = object->attr->osdev.type;
        bool wanted = type == HWLOC_OBJ_OSDEV_NETWORK || type == HWLOC_OBJ_OSDEV_OPENFABRICS;
        if (!wanted || object->name == NULL) {
            continue;
        }
        char pci[TRIB_TOPO_PCI_SIZE] = "";
        hwloc_obj_t device = find_pci_device(object);
        if (device != NULL) {
            format_pci(device, pci);
        }
        trib_topo_nic *nic = claim_nic(topo, pci, type);
        char *name = type == HWLOC_OBJ_OSDEV_NETWORK ? nic->name : nic->rdma_device;
        (void)snprintf(name, TRIB_TOPO_NAME_SIZE, "%s", object->name);
        memcpy(nic->pci, pci, sizeof(pci));
        nic->node = find_device_node(topo, hwloc, object);
    }
    for (uint32_t i = 0; i < topo->nic_count; i++) {
        if (topo->nics[i].name[0] == '\0') {
            memcpy(topo->nics[i].name, topo->nics[i].rdma_device, TRIB_TOPO_NAME_SIZE);
        }
    }
    return TRIB_OK;
}

static hwloc_obj_t find_pci(hwloc_topology_t hwloc, const char *pci)
{
    return pci[0] != '\0' ? hwloc_get_pcidev_by_busidstring(hwloc, pci) : NULL;
}

/* The number of PCI bridges above both. */
static int32_t count_common_bridges(hwloc_obj_t a, hwloc_obj_t b)
{
    int32_t count = 0;
    for (hwloc_obj_t above = a; above != NULL; above = above->parent) {
        hwloc_obj_t other = b;
        while (other != NULL && other != above) {
            other = other->parent;
        }
        if (other != NULL && above->type == HWLOC_OBJ_BRIDGE) {
            count++;
        }
    }
    return count;
}

/* Gives each GPU its NIC. RDMA breaks ties, then the number of GPUs that have that NIC already, then the order. */
static void choose_nics(hwloc_topology_t hwloc, trib_topo *topo)
{
    for (uint32_t g = 0; g < topo->gpu_count; g++) {
        trib_topo_gpu *gpu = &topo->gpus[g];
        hwloc_obj_t gpu_object = find_pci(hwloc, gpu->pci);
        int32_t best = 0;
        for (uint32_t n = 0; n < topo->nic_count; n++) {
            const trib_topo_nic *nic = &topo->nics[n];
            hwloc_obj_t nic_object = find_pci(hwloc, nic->pci);
            bool same_node = nic->node >= 0 && nic->node == gpu->node;
            int32_t score =
                10000 * (gpu_object != NULL && nic_object != NULL ? count_common_bridges(gpu_object, nic_object) : 0) +
                5000 * same_node + 2500 * (nic->rdma_device[0] != '\0') + 2000;
            for (uint32_t other = 0; other < g; other++) {
                score -= topo->gpus[other].nic == (int32_t)n;
            }
            if (score > best) {
                best = score;
                gpu->nic = (int32_t)n;
            }
        }
    }
}

static trib_status read_all(hwloc_topology_t hwloc, trib_topo *topo)
{
    trib_status status = read_nodes(hwloc, topo);
    if (status == TRIB_OK) {
        status = read_cores(hwloc, topo);
    }
    if (status == TRIB_OK) {
        status = read_gpus(hwloc, topo);
    }
    if (status == TRIB_OK) {
        status = read_nics(hwloc, topo);
    }
    if (status != TRIB_OK) {
        return status;
    }
    qsort(topo->gpus, topo->gpu_count, sizeof(*topo->gpus), compare_gpus);
    qsort(topo->nics, topo->nic_count, sizeof(*topo->nics), compare_nics);
    choose_nics(hwloc, topo);
    return TRIB_OK;
}

static void free_arrays(trib_topo *topo)
{
    free(topo->cores);
    free(topo->nodes);
    free(topo->nics);
    free(topo->gpus);
    *topo = (trib_topo){.cores = NULL};
}

void trib_topo_free(trib_topo *topo)
{
    if (topo != NULL) {
        free_arrays(topo);
        free(topo);
    }
}

static trib_status refuse_load(trib_topo *topo, const char *xml_path, trib_status status, trib_error *error)
{
    trib_topo_free(topo);
    return status == TRIB_NO_MEMORY
               ? trib_error_set(error, status, "out of memory while reading the machine's topology")
               : trib_error_set(error, status, "%s is not a topology that hwloc can read", xml_path);
}

trib_status trib_topo_load(const char *xml_path, trib_topo **topo_out, trib_error *error)
{
    trib_topo *topo = calloc(1, sizeof(*topo));
    if (topo == NULL) {
        return refuse_load(NULL, xml_path, TRIB_NO_MEMORY, error);
    }
    trib_status status = TRIB_UNSUPPORTED;
    hwloc_topology_t hwloc;
    if (open_hwloc(&hwloc, xml_path)) {
        status = read_all(hwloc, topo);
        hwloc_topology_destroy(hwloc);
    }
    if (status == TRIB_UNSUPPORTED && xml_path != NULL) {
        return refuse_load(topo, xml_path, TRIB_INVALID, error);
    }
    if (status == TRIB_UNSUPPORTED) {
        free_arrays(topo);
        status = trib_topo_fallback(topo);
    }
    if (status != TRIB_OK) {
        return refuse_load(topo, xml_path, status, error);
    }
    *topo_out = topo;
    return TRIB_OK;
}

int32_t trib_topo_nic_find(const trib_topo *topo, const char *name)
{
    for (uint32_t i = 0; i < topo->nic_count && name[0] != '\0'; i++) {
        if (strcmp(topo->nics[i].name, name) == 0 || strcmp(topo->nics[i].rdma_device, name) == 0) {
            return (int32_t)i;
        }
    }
    return -1;
}

int32_t trib_topo_gpu_find(const trib_topo *topo, const char *pci)
{
    for (uint32_t i = 0; i < topo->gpu_count; i++) {
        const char *own = topo->gpus[i].pci;
        size_t own_length = strlen(own);
        size_t length = strlen(pci);
        /*
         * CUDA writes eight digits of domain, lspci none: the common digits must agree, and the others must be zeros.
         */
        const char *longer = length > own_length ? pci : own;
        const char *shorter = length > own_length ? own : pci;
        size_t more = strlen(longer) - strlen(shorter);
        bool zeros = length >= strlen("00:00.0") && strspn(longer, "0:") >= more;
        if (zeros && strcasecmp(longer + more, shorter) == 0) {
            return (int32_t)i;
        }
    }
    return -1;
}
