/* exchange.h - how the tensors of a model are declared: as a whole, in slices, or in a group. */
#ifndef TRIB_TOOLS_STUDY_EXCHANGE_H
#define TRIB_TOOLS_STUDY_EXCHANGE_H

#include "tools/study/model.h"

typedef struct study_exchange_of {
    uint32_t rank, workers;
    double codec_ratio; /* of all-reduces: bytes on the wire per byte of gradient */
} study_exchange_of;

/* Describes a tensor on a worker. Returns its bytes, of all slices. splits has room for all workers. */
uint64_t study_exchange_describe(const study_tensor *tensor, const study_exchange_of *of, trib_tensor_desc *desc,
                                 uint64_t *splits);
int32_t study_exchange_root(const study_tensor *tensor, uint32_t workers);
/* Makes the group of the tensor's ranks; the same ranks give the same group. */
TRIB_CHECKED trib_status study_exchange_group(trib_engine *engine, const study_tensor *tensor, trib_group **group_out,
                                              trib_error *error);

#endif
