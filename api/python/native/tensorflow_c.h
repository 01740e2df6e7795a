/* tensorflow_c.h - what the binding of TensorFlow needs of its C interface for operations and kernels (2.13 and newer).
 *
 * Declared here so that building needs no header of a framework; the functions are found in the process that loads
 * us. */
#ifndef TRIB_PYTHON_TENSORFLOW_C_H
#define TRIB_PYTHON_TENSORFLOW_C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_Status TF_Status;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_AsyncOpKernelDoneCallback TF_AsyncOpKernelDoneCallback;
typedef struct TF_Tensor TF_Tensor;

enum {
    TF_CODE_INVALID_ARGUMENT = 3,
    TF_CODE_FAILED_PRECONDITION = 9,
    TF_CODE_UNIMPLEMENTED = 12,
    TF_CODE_INTERNAL = 13
};
enum { TF_TYPE_INT64 = 9 };

TF_Status *TF_NewStatus(void);
void TF_DeleteStatus(TF_Status *status);
void TF_SetStatus(TF_Status *status, int code, const char *text);
int TF_GetCode(const TF_Status *status);
const char *TF_Message(const TF_Status *status);

TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *name);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder *builder, const char *specification);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *builder, const char *specification);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *builder, const char *specification);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder *builder,
                                                     void (*function)(TF_ShapeInferenceContext *, TF_Status *));
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *builder, TF_Status *status);
TF_ShapeHandle *TF_NewShapeHandle(void);
void TF_DeleteShapeHandle(TF_ShapeHandle *handle);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext *context, int index, TF_ShapeHandle *handle,
                                      TF_Status *status);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext *context, int index, TF_ShapeHandle *handle,
                                       TF_Status *status);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext *context, TF_Status *status);

TF_KernelBuilder *
TF_NewAsyncKernelBuilder(const char *op, const char *device, void *(*create)(TF_OpKernelConstruction *),
                         void (*compute)(void *, TF_OpKernelContext *, TF_AsyncOpKernelDoneCallback *),
                         void (*destroy)(void *));
void TF_RegisterKernelBuilder(const char *name, TF_KernelBuilder *builder, TF_Status *status);
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction *context, const char *name, int64_t *value,
                                          TF_Status *status);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction *context, const char *name, char *value, size_t room,
                                           TF_Status *status);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction *context, TF_Status *status);
void TF_OpKernelContext_Failure(TF_OpKernelContext *context, TF_Status *status);
void TF_GetInput(TF_OpKernelContext *context, int index, TF_Tensor **tensor, TF_Status *status);
TF_Tensor *TF_ForwardInputOrAllocateOutput(TF_OpKernelContext *context, const int *candidates, int candidate_count,
                                           int output, const int64_t *dims, int dim_count, int *forwarded,
                                           TF_Status *status);
TF_Tensor *TF_AllocateOutput(TF_OpKernelContext *context, int output, int type, const int64_t *dims, int dim_count,
                             size_t bytes, TF_Status *status);
size_t TF_TensorByteSize(const TF_Tensor *tensor);
void *TF_TensorData(const TF_Tensor *tensor);
int TF_NumDims(const TF_Tensor *tensor);
/* 0: the operation is in no loop whose iterations may run at the same time. */
uint64_t TF_GetFrameId(TF_OpKernelContext *context);
int64_t TF_Dim(const TF_Tensor *tensor, int index);
int64_t TF_TensorElementCount(const TF_Tensor *tensor);
int TF_TensorType(const TF_Tensor *tensor);
void TF_DeleteTensor(TF_Tensor *tensor);

/* done_copy.cc: a copy of the callback that TensorFlow passes, which is run once and freed by that. */
void *trib_done_copy(void *done);
void trib_done_run(void *copy);

#endif
