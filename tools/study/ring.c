/* ring.c - the same steps with a ring all-reduce: see study_ring_step in step.h. */
#include "tools/study/step.h"

int64_t study_ring_step(const study_step_config *config, uint64_t bucket_bytes, int64_t hop_ns)
{
    const study_model *model = config->model;
    const uint32_t n = config->job.workers;
    const trib_sim_link *link = &config->job.link;
    const uint64_t bits = link->egress_bits < link->ingress_bits ? link->egress_bits : link->ingress_bits;
    const double byte_ns = 8e9 / ((double)bits * config->job.net.goodput);
    double free_ns = 0,
           device_free_ns = 0; /* when the ring, and the device, are free; from the beginning of backward */
    uint64_t bucket = 0;
    for (uint32_t i = 0; i < model->count; i++) {
        bucket += model->tensors[i].bytes;
        if (bucket < bucket_bytes && i + 1 < model->count) {
            continue;
        }
        double ready_ns = (double)model->tensors[i].ready_ns;
        if (config->device_bytes_ns > 0) {
            device_free_ns =
                (device_free_ns > ready_ns ? device_free_ns : ready_ns) + (double)bucket / config->device_bytes_ns;
            ready_ns = device_free_ns;
        }
        const double begin_ns = ready_ns > free_ns ? ready_ns : free_ns;
        const double moves = 2.0 * (n - 1);
        const double each = (double)bucket * config->codec_ratio * study_codec_ratio(&config->codec) / n * byte_ns;
        free_ns = begin_ns + (n > 1 ? moves * (each + (double)hop_ns) : 0);
        bucket = 0;
    }
    const double way_back = config->device_bytes_ns > 0 ? (double)bucket_bytes / config->device_bytes_ns : 0;
    const double end_ns =
        free_ns + way_back > (double)model->backward_ns ? free_ns + way_back : (double)model->backward_ns;
    return (int64_t)end_ns + model->forward_ns + model->optimizer_ns;
}
