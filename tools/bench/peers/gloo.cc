/*
 * gloo.cc - a Gloo job's rank under agent.h: TCP transport, rendezvous through a shared folder, in-place fp32 sums.
 *
 * Built by tools/bench/suite. Usage: gloo PREFIX RANK SIZE STORE ADDRESS ring|bcube|halving-doubling
 * ring is gloo::allreduce with its ring algorithm, what PyTorch uses on CPUs; bcube the same call's other algorithm;
 * halving-doubling the older class, whose objects are made once for each buffer.
 */
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "tools/bench/peers/agent.h"

namespace {

struct rank_of_gloo {
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::string algorithm;
    std::vector<std::unique_ptr<gloo::Algorithm>> objects; /* halving-doubling: one for each tensor */
};

void load(void *user, agent_tensor *tensors, size_t count)
{
    auto *self = static_cast<rank_of_gloo *>(user);
    self->objects.clear();
    for (size_t i = 0; agent_which() == AGENT_REDUCE_SCATTER && i < count; i++) {
        std::vector<float *> buffers = {tensors[i].data};
        std::vector<int> slices(static_cast<size_t>(self->context->size), static_cast<int>(tensors[i].slice));
        self->objects.emplace_back(new gloo::ReduceScatterHalvingDoubling<float>(
            self->context, buffers, static_cast<int>(tensors[i].count), slices));
        tensors[i].result = tensors[i].data; /* it overwrites its input */
    }
    for (size_t i = 0; agent_which() == AGENT_ALL_REDUCE && self->algorithm == "halving-doubling" && i < count; i++) {
        std::vector<float *> buffers = {tensors[i].data};
        self->objects.emplace_back(
            new gloo::AllreduceHalvingDoubling<float>(self->context, buffers, static_cast<int>(tensors[i].count)));
    }
}

void unload(void *user, agent_tensor *, size_t)
{
    static_cast<rank_of_gloo *>(user)->objects.clear();
}

void barrier(void *user)
{
    gloo::BarrierOptions options(static_cast<rank_of_gloo *>(user)->context);
    gloo::barrier(options);
}

void hand_in(void *user, agent_tensor *tensor, size_t index)
{
    auto *self = static_cast<rank_of_gloo *>(user);
    if (!self->objects.empty()) {
        self->objects[index]->run();
    } else if (agent_which() == AGENT_ALL_GATHER) {
        gloo::AllgatherOptions options(self->context);
        options.setInput(tensor->data + static_cast<uint64_t>(self->context->rank) * tensor->slice,
                         static_cast<size_t>(tensor->slice));
        options.setOutput(tensor->data, static_cast<size_t>(tensor->count));
        gloo::allgather(options);
    } else {
        gloo::AllreduceOptions options(self->context);
        options.setAlgorithm(self->algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                        : gloo::AllreduceOptions::Algorithm::RING);
        options.setOutput(tensor->data, static_cast<size_t>(tensor->count));
        options.setReduceFunction(
            static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
        gloo::allreduce(options);
    }
    tensor->done_ns = agent_now_ns();
}

void finish(void *) {}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: %s PREFIX RANK SIZE STORE ADDRESS ring|bcube|halving-doubling\n", argv[0]);
        return 2;
    }
    try {
        rank_of_gloo self;
        agent_peer peer = {};
        peer.rank = atoi(argv[2]);
        peer.size = atoi(argv[3]);
        self.algorithm = argv[6];
        self.context = std::make_shared<gloo::rendezvous::Context>(peer.rank, peer.size);
        gloo::rendezvous::FileStore store(argv[4]);
        auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(argv[5]));
        self.context->connectFullMesh(store, device);
        peer.self = &self;
        peer.allocate = agent_allocate;
        peer.release = agent_release;
        peer.load = load;
        peer.unload = unload;
        peer.barrier = barrier;
        peer.hand_in = hand_in;
        peer.finish = finish;
        peer.await_input = agent_await_input;
        return agent_serve(&peer, argv[1]);
    } catch (const std::exception &error) {
        fprintf(stderr, "gloo: rank %s: %s\n", argv[2], error.what());
        return 1;
    }
}
