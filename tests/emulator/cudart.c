/** As much of libcudart as tells its version and what the driver below it has. */
#include "emulator.h"

const char slurmmesh_emulator[] = "slurmmesh EMULATOR (no GPU): CUDA runtime in host memory";

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuGetErrorName(int status, const char **name);
int cuGetErrorString(int status, const char **text);

static _Thread_local int last_error;

static int answer(int status)
{
    if (status)
        last_error = status;
    return status;
}

EMU_EXPORT int cudaRuntimeGetVersion(int *version)
{
    return answer(cuDriverGetVersion(version));
}

EMU_EXPORT int cudaDriverGetVersion(int *version)
{
    return answer(cuDriverGetVersion(version));
}

EMU_EXPORT int cudaGetDeviceCount(int *count)
{
    if (!count)
        return answer(EMU_INVALID_VALUE);
    *count = 0;
    int status = cuInit(0);
    return answer(status ? status : cuDeviceGetCount(count));
}

EMU_EXPORT int cudaGetLastError(void)
{
    int status = last_error;
    last_error = EMU_OK;
    return status;
}

EMU_EXPORT int cudaPeekAtLastError(void)
{
    return last_error;
}

EMU_EXPORT const char *cudaGetErrorName(int status)
{
    switch (status) {
    case EMU_OK:
        return "cudaSuccess";
    case EMU_INVALID_VALUE:
        return "cudaErrorInvalidValue";
    case EMU_OUT_OF_MEMORY:
        return "cudaErrorMemoryAllocation";
    case EMU_NOT_INITIALIZED:
        return "cudaErrorInitializationError";
    case EMU_NO_DEVICE:
        return "cudaErrorNoDevice";
    case EMU_INVALID_DEVICE:
        return "cudaErrorInvalidDevice";
    default:
        return "cudaErrorUnknown";
    }
}

EMU_EXPORT const char *cudaGetErrorString(int status)
{
    const char *text;
    return cuGetErrorString(status, &text) ? "EMULATOR: unrecognized error code" : text;
}
