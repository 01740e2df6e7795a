/*
 * handle.h - numbers that stand for operations, tensors and groups outside the library, and look like pointers there.
 *
 * A handle names a place in a table of the process and the number of times that the place has been used. So a handle
 * that was given back, one of an engine that is gone, and any other number are told from a live one without reading
 * the memory that they seem to point to. docs/decisions/0007-handles.md explains why the table belongs to the process.
 *
 * Invariants
 *
 * - A place belongs to one object from trib_handle_take_place to trib_handle_give_place. The object opens it for a new
 *   handle, and closes it, any number of times.
 * - A handle is odd, so it never equals a pointer to an object. 0 is no handle.
 * - The table takes no lock, so a child of fork can use it whatever other threads were doing. It never shrinks; its
 *   size follows the largest number of objects that lived at one time.
 */
#ifndef TRIB_ENGINE_BASE_HANDLE_H
#define TRIB_ENGINE_BASE_HANDLE_H

#include <stdbool.h>
#include <stdint.h>

#define TRIB_NO_PLACE UINT32_MAX

typedef enum trib_handle_kind {
    TRIB_HANDLE_OP,
    TRIB_HANDLE_PREPARED, /* an operation that can be started again and again */
    TRIB_HANDLE_TENSOR,
    TRIB_HANDLE_GROUP
} trib_handle_kind;

/* Returns TRIB_NO_PLACE if memory runs out. */
uint32_t trib_handle_take_place(void *object);
/* Closes the place, too. TRIB_NO_PLACE is fine. */
void trib_handle_give_place(uint32_t place);

/* Returns a new handle of the place's object. The last one is accepted no more. */
uintptr_t trib_handle_open(uint32_t place, trib_handle_kind kind);
/* Any thread: the handle is accepted no more. False: it was closed before; of several callers one closes it. */
bool trib_handle_close(uintptr_t handle);
/* Any thread: returns the object of a handle of that kind that is open, else NULL. */
void *trib_handle_find(uintptr_t handle, trib_handle_kind kind);

#endif
