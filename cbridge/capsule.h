/* What a PyCapsule needs of C. The one file that knows Python: a part of cffi's modules (which
 * include Python.h before it), not of the bridge. */
#ifndef SLURMMESH_CAPSULE_H
#define SLURMMESH_CAPSULE_H
#include "slurmmesh_bridge.h"

/* The name of a capsule that holds a DLManagedTensor which nobody took yet. */
static const char sm_capsule_name[] = "dltensor";

/* Its destructor, to be called by Python only (with its lock): who takes the tensor renames the capsule, then there is nothing to delete. */
static void sm_capsule_end(void *object)
{
    PyObject *capsule = object;
    if (PyCapsule_IsValid(capsule, sm_capsule_name)) {
        sm_dlpack_delete(PyCapsule_GetPointer(capsule, sm_capsule_name));
    }
}

#endif
