/* What a PyCapsule needs of C. The one file that knows Python: a part of cffi's modules (which
 * include Python.h before it), not of the bridge. */
#ifndef SLURMMESH_CAPSULE_H
#define SLURMMESH_CAPSULE_H
#include "slurmmesh_bridge.h"

/* The name of a capsule that holds a DLManagedTensor which nobody took yet. */
static const char sm_capsule_name[] = "dltensor";

/* Its destructor, to be called by Python only (with its lock): who takes the tensor renames the
 * capsule, then there is nothing to delete. */
static void sm_capsule_end(void *object)
{
    PyObject *capsule = object;
    if (PyCapsule_IsValid(capsule, sm_capsule_name)) {
        sm_dlpack_delete(PyCapsule_GetPointer(capsule, sm_capsule_name));
    }
}

#if PY_VERSION_HEX < 0x030D0000
#define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
#endif

/* Python's lock, if this thread has it; for sm_dlpack_around. */
static void *sm_capsule_let_go(void)
{
    PyThreadState *mine = Py_IsInitialized() ? PyGILState_GetThisThreadState() : NULL;
    return mine != NULL && mine == PyThreadState_GetUnchecked() ? PyEval_SaveThread() : NULL;
}

static void sm_capsule_take_back(void *held)
{
    if (held != NULL) {
        PyEval_RestoreThread(held);
    }
}

/* Once, before there is a capsule. */
static void sm_capsule_start(void)
{
    sm_dlpack_around(sm_capsule_let_go, sm_capsule_take_back);
}

#endif
