/** HIP's own names: libamdhip64. The virtual-memory half is in vmm.c. */
#include "vendor.h"

#include <string.h>

/** The last error of this thread that was one. As from ROCm 7 on, successes do not clear it. */
static _Thread_local int last_error;

int begin(void)
{
    return emu_initialize();
}

int begin_with_context(void)
{
    return begin();
}

int answer(int status)
{
    if (status != EMU_OK && status != EMU_NOT_READY)
        last_error = status;
    else if (emu_hip_version() < 70000000)
        last_error = status;
    return status;
}

EMU_EXPORT int hipInit(unsigned flags)
{
    return answer(flags ? EMU_INVALID_VALUE : begin());
}

EMU_EXPORT int hipGetLastError(void)
{
    int status = last_error;
    last_error = EMU_OK;
    return status;
}

EMU_EXPORT int hipPeekAtLastError(void)
{
    return last_error;
}

EMU_EXPORT const char *hipGetErrorName(int status)
{
    const char *name = emu_status_name(status);
    return name ? name : "hipErrorUnknown";
}

EMU_EXPORT const char *hipGetErrorString(int status)
{
    const char *text = emu_status_text(status);
    return text ? text : "EMULATOR: unknown error";
}

EMU_EXPORT int hipDrvGetErrorName(int status, const char **name)
{
    *name = emu_status_name(status);
    return *name ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_EXPORT int hipDrvGetErrorString(int status, const char **text)
{
    *text = emu_status_text(status);
    return *text ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_EXPORT int hipRuntimeGetVersion(int *version)
{
    if (!version)
        return answer(EMU_INVALID_VALUE);
    *version = emu_hip_version();
    return answer(EMU_OK);
}

EMU_EXPORT int hipDriverGetVersion(int *version)
{
    return hipRuntimeGetVersion(version);
}

EMU_EXPORT int hipGetDeviceCount(int *count)
{
    if (!count)
        return answer(EMU_INVALID_VALUE);
    int status = begin();
    *count = status ? 0 : emu_device_count();
    return answer(status);
}

EMU_EXPORT int hipDeviceGet(int *device, int ordinal)
{
    int status = begin();
    if (!status)
        status = !device                      ? EMU_INVALID_VALUE
                 : !emu_device_valid(ordinal) ? EMU_INVALID_DEVICE
                                              : EMU_OK;
    if (!status)
        *device = ordinal;
    return answer(status);
}

EMU_EXPORT int hipGetDevice(int *device)
{
    int status = begin();
    if (!status && !device)
        status = EMU_INVALID_VALUE;
    if (!status)
        *device = emu_device_current();
    return answer(status);
}

EMU_EXPORT int hipSetDevice(int device)
{
    int status = begin();
    return answer(status ? status : emu_device_make_current(device));
}

EMU_EXPORT int hipDeviceGetName(char *name, int length, int device)
{
    int status = begin();
    return answer(status ? status : emu_device_name(device, name, length));
}

EMU_EXPORT int hipDeviceGetUuid(unsigned char *uuid, int device)
{
    int status = begin();
    return answer(status ? status : emu_device_uuid(device, uuid));
}

EMU_EXPORT int hipDeviceGetPCIBusId(char *text, int length, int device)
{
    int status = begin();
    return answer(status ? status : emu_device_pci_address(device, text, length));
}

EMU_EXPORT int hipDeviceTotalMem(size_t *bytes, int device)
{
    int status = begin();
    return answer(status ? status : emu_device_total(device, bytes));
}

EMU_EXPORT int hipDeviceGetAttribute(int *value, int attribute, int device)
{
    int status = begin();
    if (!status)
        status = !value                      ? EMU_INVALID_VALUE
                 : !emu_device_valid(device) ? EMU_INVALID_DEVICE
                                             : EMU_OK;
    if (status)
        return answer(status);
    switch (attribute) {
    case 67: /* PCI bus */
        *value = emu_device_pci_bus(device);
        break;
    case 68: /* PCI device */
    case 69: /* PCI domain */
    case 88: /* memory pools */
        *value = 0;
        break;
    case 87: /* warp size */
        *value = 64;
        break;
    case 89: /* virtual memory management */
        *value = 1;
        break;
    case 93: /* dma-buf, with the call for it */
    case 94: /* GPU-direct RDMA with virtual memory */
#ifdef EMULATOR_OLD
        return answer(EMU_INVALID_VALUE);
#else
        *value = emu_setting("DMABUF", 1) != 0;
        break;
#endif
    default:
        return answer(EMU_INVALID_VALUE);
    }
    return answer(EMU_OK);
}

EMU_EXPORT int hipDeviceSynchronize(void)
{
    int status = begin();
    return answer(status ? status : emu_device_synchronize(emu_device_current(), false));
}

EMU_EXPORT int hipDeviceCanAccessPeer(int *can, int device, int peer)
{
    int status = begin();
    if (!status)
        status = !can ? EMU_INVALID_VALUE
                 : !emu_device_valid(device) || !emu_device_valid(peer) ? EMU_INVALID_DEVICE
                                                                        : EMU_OK;
    if (!status)
        *can = device != peer;
    return answer(status);
}

EMU_EXPORT int hipStreamCreateWithFlags(struct emu_stream **stream, unsigned flags)
{
    int status = begin();
    if (!status)
        status = flags > 1 ? EMU_INVALID_VALUE
                           : emu_stream_create(stream, emu_device_current(), flags == 0);
    return answer(status);
}

EMU_EXPORT int hipStreamCreate(struct emu_stream **stream)
{
    return hipStreamCreateWithFlags(stream, 0);
}

EMU_EXPORT int hipStreamDestroy(struct emu_stream *stream)
{
    int status = begin();
    return answer(status ? status : emu_stream_destroy(stream));
}

EMU_EXPORT int hipStreamQuery(struct emu_stream *stream)
{
    int status = begin();
    return answer(status ? status : emu_stream_query(stream));
}

EMU_EXPORT int hipStreamSynchronize(struct emu_stream *stream)
{
    int status = begin();
    return answer(status ? status : emu_stream_synchronize(stream));
}

EMU_EXPORT int hipMemcpy(void *to, const void *from, size_t size, int kind)
{
    int status = begin();
    return answer(status ? status : emu_copy(to, from, size, kind));
}

EMU_EXPORT int hipMemcpyAsync(void *to, const void *from, size_t size, int kind,
                              struct emu_stream *stream)
{
    int status = begin();
    return answer(status ? status : emu_copy_async(to, from, size, kind, stream));
}

EMU_EXPORT int hipMemset(void *to, int value, size_t size)
{
    int status = begin();
    return answer(status ? status : emu_fill(to, value, size));
}

EMU_EXPORT int hipMemsetAsync(void *to, int value, size_t size, struct emu_stream *stream)
{
    int status = begin();
    return answer(status ? status : emu_fill_async(to, value, size, stream));
}

/** hipMemoryTypeDevice: as CUDA's from HIP 6 on. */
static int device_memory_type(void)
{
    return emu_hip_version() >= 60000000 ? 2 : 1;
}

/** As hipPointerAttribute_t. */
struct pointer_attributes {
    int type; /**< 0: not known here, else device_memory_type(). */
    int device;
    void *device_pointer;
    void *host_pointer;
    int is_managed;
    unsigned allocation_flags;
};

EMU_EXPORT int hipPointerGetAttributes(struct pointer_attributes *attributes, const void *address)
{
    int status = begin();
    if (!status && (!attributes || !address))
        status = EMU_INVALID_VALUE;
    if (status)
        return answer(status);
    memset(attributes, 0, sizeof *attributes);
    attributes->device = -1;
    if (emu_range_find(address, NULL, NULL, &attributes->device) == EMU_OK) {
        attributes->type = device_memory_type();
        attributes->device_pointer = (void *)(uintptr_t)address;
    }
    return answer(EMU_OK);
}

EMU_EXPORT int hipPointerGetAttribute(void *data, int attribute, void *address)
{
    int status = begin(), device;
    if (!status && !data)
        status = EMU_INVALID_VALUE;
    if (!status && emu_range_find(address, NULL, NULL, &device))
        status = EMU_INVALID_VALUE;
    if (status)
        return answer(status);
    switch (attribute) {
    case 2: /* memory type */
        *(unsigned *)data = (unsigned)device_memory_type();
        break;
    case 3: /* device pointer */
        *(void **)data = address;
        break;
    case 8: /* managed */
        *(bool *)data = false;
        break;
    case 9: /* device ordinal */
        *(int *)data = device;
        break;
    default:
        return answer(EMU_INVALID_VALUE);
    }
    return answer(EMU_OK);
}
