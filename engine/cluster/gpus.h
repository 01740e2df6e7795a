/*
 * gpus.h - which GPU a member of the job has. NCCL gives up, with a text that names nobody, where two processes of a
 * communicator have one GPU; so a machine's ranks look before they begin.
 */
#ifndef TRIB_ENGINE_GPUS_H
#define TRIB_ENGINE_GPUS_H

#include "engine/cluster/roster.h"

#define TRIB_GPU_TEXT_SIZE 24u

/* The number of a GPU on its machine, made of its PCI address ("0000:3b:00.0"). 0: the text is no such address. */
uint64_t trib_gpu_number(const char *pci);
/* The PCI address of a number that is not 0. */
void trib_gpu_text(uint64_t number, char text[TRIB_GPU_TEXT_SIZE]);
/* Finds the first two of at most `count` members from `first` on that have one GPU of one machine. Returns false if
 * there are none. */
bool trib_gpu_is_shared(const trib_roster *roster, uint32_t first, uint32_t count, uint32_t pair_out[2]);

#endif
