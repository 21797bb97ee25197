/** Names and texts of statuses, the marker, and what is alive. */
#include "emulator.h"

#ifdef EMULATOR_CUDA
const char slurmmesh_emulator[] = "slurmmesh EMULATOR (no GPU): CUDA in host memory";
#else
const char slurmmesh_emulator[] = "slurmmesh EMULATOR (no GPU): HIP in host memory";
#endif

const char *slurmmesh_emulator_version(void)
{
    return slurmmesh_emulator;
}

static const struct {
    int status;
    const char *name;
    const char *text;
} statuses[] = {
    {EMU_OK, EMU_NAME("hipSuccess", "CUDA_SUCCESS"), "EMULATOR: no error"},
    {EMU_INVALID_VALUE, EMU_NAME("hipErrorInvalidValue", "CUDA_ERROR_INVALID_VALUE"),
     "EMULATOR: invalid argument"},
    {EMU_OUT_OF_MEMORY, EMU_NAME("hipErrorOutOfMemory", "CUDA_ERROR_OUT_OF_MEMORY"),
     "EMULATOR: out of memory"},
    {EMU_NOT_INITIALIZED, EMU_NAME("hipErrorNotInitialized", "CUDA_ERROR_NOT_INITIALIZED"),
     "EMULATOR: not initialized in this process"},
    {EMU_NO_DEVICE, EMU_NAME("hipErrorNoDevice", "CUDA_ERROR_NO_DEVICE"),
     "EMULATOR: no device is detected"},
    {EMU_INVALID_DEVICE, EMU_NAME("hipErrorInvalidDevice", "CUDA_ERROR_INVALID_DEVICE"),
     "EMULATOR: invalid device ordinal"},
    {EMU_INVALID_CONTEXT, EMU_NAME("hipErrorInvalidContext", "CUDA_ERROR_INVALID_CONTEXT"),
     "EMULATOR: invalid device context"},
    {EMU_ALREADY_MAPPED, EMU_NAME("hipErrorAlreadyMapped", "CUDA_ERROR_ALREADY_MAPPED"),
     "EMULATOR: memory is mapped there already"},
    {EMU_NOT_MAPPED, EMU_NAME("hipErrorNotMapped", "CUDA_ERROR_NOT_MAPPED"),
     "EMULATOR: no memory is mapped there"},
    {EMU_OS_ERROR, EMU_NAME("hipErrorOperatingSystem", "CUDA_ERROR_OPERATING_SYSTEM"),
     "EMULATOR: a call of the operating system failed"},
    {EMU_INVALID_HANDLE, EMU_NAME("hipErrorInvalidHandle", "CUDA_ERROR_INVALID_HANDLE"),
     "EMULATOR: invalid resource handle"},
    {EMU_NOT_FOUND, EMU_NAME("hipErrorNotFound", "CUDA_ERROR_NOT_FOUND"),
     "EMULATOR: named symbol not found"},
    {EMU_NOT_READY, EMU_NAME("hipErrorNotReady", "CUDA_ERROR_NOT_READY"),
     "EMULATOR: the work is not done yet"},
    {EMU_ILLEGAL_ADDRESS, EMU_NAME("hipErrorIllegalAddress", "CUDA_ERROR_ILLEGAL_ADDRESS"),
     "EMULATOR: an illegal memory access"},
    {EMU_NOT_SUPPORTED, EMU_NAME("hipErrorNotSupported", "CUDA_ERROR_NOT_SUPPORTED"),
     "EMULATOR: operation not supported"},
    {EMU_UNKNOWN, EMU_NAME("hipErrorUnknown", "CUDA_ERROR_UNKNOWN"), "EMULATOR: unknown error"},
};

const char *emu_status_name(int status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].status == status)
            return statuses[i].name;
    return NULL;
}

const char *emu_status_text(int status)
{
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++)
        if (statuses[i].status == status)
            return statuses[i].text;
    return NULL;
}

void slurmmesh_emulator_alive(struct emu_alive *alive)
{
    *alive = (struct emu_alive){0};
    emu_memory_alive(alive);
    emu_range_alive(alive);
    emu_stream_alive(alive);
}
