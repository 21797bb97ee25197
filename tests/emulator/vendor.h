/** How a call of a vendor begins and ends; hip.c and cuda.c each have theirs. */
#ifndef SLURMMESH_EMULATOR_VENDOR_H
#define SLURMMESH_EMULATOR_VENDOR_H

#include "emulator.h"

/** Whether the process may call: HIP initializes itself, CUDA wants cuInit. */
int begin(void);
/** As begin, and on CUDA the thread must have a current context. */
int begin_with_context(void);
/** What the call returns; HIP remembers it for hipGetLastError if it is an error. */
int answer(int status);

#endif
