/*
 * openmpi.c - an MPI job's rank under agent.h: MPI_Allreduce in place, tensor after tensor as they are handed in, or
 * all at once with MPI_Iallreduce.
 *
 * Built with mpicc by tools/bench/suite. Usage: openmpi PREFIX [nonblocking]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/peers/agent.h"

typedef struct openmpi {
    bool nonblocking;
    agent_tensor *tensors;
    MPI_Request *requests;
    size_t pending;
} openmpi;

static void load_tensors(void *user, agent_tensor *tensors, size_t count)
{
    openmpi *self = user;
    self->tensors = tensors;
    self->requests = calloc(count, sizeof *self->requests);
    if (self->requests == NULL) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void unload_tensors(void *user, agent_tensor *tensors, size_t count)
{
    openmpi *self = user;
    (void)tensors;
    (void)count;
    free(self->requests);
}

static void run_barrier(void *user)
{
    (void)user;
    MPI_Barrier(MPI_COMM_WORLD);
}

static void hand_in(void *user, agent_tensor *tensor, size_t index)
{
    openmpi *self = user;
    if (self->nonblocking) {
        MPI_Iallreduce(MPI_IN_PLACE, tensor->data, (int)tensor->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                       &self->requests[index]);
        self->pending = index + 1;
        return;
    }
    const int slice = (int)tensor->slice;
    switch (agent_which()) {
    case AGENT_ALL_GATHER:
        MPI_Allgather(MPI_IN_PLACE, slice, MPI_FLOAT, tensor->data, slice, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case AGENT_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(tensor->data, tensor->result, slice, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    default:
        MPI_Allreduce(MPI_IN_PLACE, tensor->data, (int)tensor->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    tensor->done_ns = agent_now_ns();
}

static void finish_step(void *user)
{
    openmpi *self = user;
    for (; self->pending > 0; self->pending--) {
        /* Waits for the last submission first, because its time is measured. */
        MPI_Wait(&self->requests[self->pending - 1], MPI_STATUS_IGNORE);
        self->tensors[self->pending - 1].done_ns = agent_now_ns();
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (argc < 2) {
        fprintf(stderr, "usage: %s PREFIX [nonblocking]\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    openmpi self = {.nonblocking = argc > 2 && strcmp(argv[2], "nonblocking") == 0};
    agent_peer peer = {
        .self = &self,
        .allocate = agent_allocate,
        .release = agent_release,
        .load = load_tensors,
        .unload = unload_tensors,
        .barrier = run_barrier,
        .hand_in = hand_in,
        .finish = finish_step,
        .await_input = agent_await_input,
    };
    MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &peer.size);
    int status = agent_serve(&peer, argv[1]);
    MPI_Finalize();
    return status;
}
