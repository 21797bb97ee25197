/** The part of libhsa-runtime64 that gives dma-bufs where HIP has no call for it. */
#include "emulator.h"

#include <unistd.h>

const char slurmmesh_emulator[] = "slurmmesh EMULATOR (no GPU): HSA in host memory";

enum { HSA_OK = 0, HSA_ERROR = 0x1000, HSA_INVALID_ARGUMENT = 0x1001 };

EMU_EXPORT int hsa_init(void)
{
    return HSA_OK;
}

EMU_EXPORT int hsa_shut_down(void)
{
    return HSA_OK;
}

EMU_EXPORT int hsa_status_string(int status, const char **text)
{
    if (!text)
        return HSA_INVALID_ARGUMENT;
    *text = status == HSA_OK ? "EMULATOR: HSA_STATUS_SUCCESS"
            : status == HSA_INVALID_ARGUMENT
                ? "EMULATOR: HSA_STATUS_ERROR_INVALID_ARGUMENT: one of the arguments is invalid"
                : "EMULATOR: HSA_STATUS_ERROR: a generic error has occurred";
    return HSA_OK;
}

EMU_EXPORT int hsa_amd_portable_export_dmabuf(const void *address, size_t size, int *fd,
                                              uint64_t *offset)
{
    if (!address || !size || !fd || !offset)
        return HSA_INVALID_ARGUMENT;
    uintptr_t page = (uintptr_t)address & 4095; /* This call takes any address. */
    size_t whole = (size + page + 4095) / 4096 * 4096;
    int status =
        slurmmesh_emulator_dmabuf((const void *)((uintptr_t)address - page), whole, fd, offset);
    if (status == EMU_OK)
        *offset += page;
    return status == EMU_OK              ? HSA_OK
           : status == EMU_INVALID_VALUE ? HSA_INVALID_ARGUMENT
                                         : HSA_ERROR;
}

EMU_EXPORT int hsa_amd_portable_close_dmabuf(int fd)
{
    return close(fd) ? HSA_INVALID_ARGUMENT : HSA_OK;
}
