/* tensor_declaration.h - a worker's declaration of a tensor (DECLARE). */
#ifndef TRIB_ENGINE_TENSOR_DECLARATION_H
#define TRIB_ENGINE_TENSOR_DECLARATION_H

#include "engine/membership/coordinator_internal.h"

/* The fields of a DECLARE, without its splits. */
typedef struct trib_declaration {
    char name[TRIB_TENSOR_NAME_MAX + 1];
    trib_dtype dtype;
    uint64_t count, row;
    trib_layout layout;
    uint32_t split_count, local_size;
    uint32_t quorum;
    int64_t quorum_timeout_ns;
    uint8_t dims;
    uint64_t shape[TRIB_TENSOR_DIMS_MAX];
    trib_group_entry *group;
    char codec[TRIB_CODEC_TEXT_SIZE];
} trib_declaration;

/* Reads the rank's declaration without its splits, which are all that the reader has left then. */
TRIB_CHECKED trib_status trib_declaration_read(const trib_coordinator *self, uint32_t rank, const trib_frame *frame,
                                               trib_reader *reader, trib_declaration *what, trib_error *error);
/* Writes the name after the number of its group, which is the tensor's table_key. */
void trib_declaration_key(const trib_declaration *what, char *text, size_t size);
/* Returns true if the declaration is about a tensor like the entry's. Shapes are compared only if both are given. */
bool trib_declaration_is_same(const trib_registry_entry *entry, const trib_declaration *what);
/* Describes a contradiction between declarations: the entry's first worker and its tensor, and the rank and the tensor
 * that differs. */
void trib_declaration_compare(const trib_coordinator *self, const trib_registry_entry *entry,
                              const trib_declaration *what, uint32_t rank, char *text, size_t size);

#endif
