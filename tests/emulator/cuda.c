/** The CUDA driver's own names: libcuda. The virtual-memory half is in vmm.c. */
#include "vendor.h"

/** One primary context a device: its address is all that callers know of it. */
static struct context {
    int users;
} contexts[EMU_MAX_DEVICES];

/** What cuCtxPushCurrent put under the current context of this thread. */
static _Thread_local struct context *stack[16];
static _Thread_local int depth;

int begin(void)
{
    return emu_ready();
}

static struct context *current_context(void)
{
    return depth ? stack[depth - 1] : NULL;
}

int begin_with_context(void)
{
    int status = begin();
    return status ? status : current_context() ? EMU_OK : EMU_INVALID_CONTEXT;
}

int answer(int status)
{
    return status;
}

/** EMU_OK if it is a context that somebody has retained, or none. */
static int check_context(const struct context *context)
{
    int status = begin();
    if (status || !context)
        return status;
    bool known = context >= contexts && context < contexts + EMU_MAX_DEVICES;
    return known && context->users > 0 ? EMU_OK : EMU_INVALID_CONTEXT;
}

/** Whether a call may ask about a device and has a place for the answer. */
static int check_device(const void *out, int device)
{
    int status = begin();
    return status                      ? status
           : !out                      ? EMU_INVALID_VALUE
           : !emu_device_valid(device) ? EMU_INVALID_DEVICE
                                       : EMU_OK;
}

EMU_EXPORT int cuInit(unsigned flags)
{
    return flags ? EMU_INVALID_VALUE : emu_initialize();
}

EMU_EXPORT int cuDriverGetVersion(int *version)
{
    if (!version)
        return EMU_INVALID_VALUE;
    *version = emu_setting_version("CUDA_VERSION", "13.0", 1000, 10);
    return EMU_OK;
}

EMU_EXPORT int cuGetErrorName(int status, const char **name)
{
    if (!name)
        return EMU_INVALID_VALUE;
    *name = emu_status_name(status);
    return *name ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_EXPORT int cuGetErrorString(int status, const char **text)
{
    if (!text)
        return EMU_INVALID_VALUE;
    *text = emu_status_text(status);
    return *text ? EMU_OK : EMU_INVALID_VALUE;
}

EMU_EXPORT int cuDeviceGetCount(int *count)
{
    int status = begin();
    if (!status && !count)
        status = EMU_INVALID_VALUE;
    if (!status)
        *count = emu_device_count();
    return status;
}

EMU_EXPORT int cuDeviceGet(int *device, int ordinal)
{
    int status = check_device(device, ordinal);
    if (!status)
        *device = ordinal;
    return status;
}

EMU_EXPORT int cuDeviceGetName(char *name, int length, int device)
{
    int status = begin();
    return status ? status : emu_device_name(device, name, length);
}

EMU_EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    int status = begin();
    return status ? status : emu_device_uuid(device, uuid);
}

EMU_EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    return cuDeviceGetUuid(uuid, device);
}

EMU_EXPORT int cuDeviceGetPCIBusId(char *text, int length, int device)
{
    int status = begin();
    return status ? status : emu_device_pci_address(device, text, length);
}

EMU_EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    int status = begin();
    return status ? status : emu_device_total(device, bytes);
}

EMU_EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    int status = check_device(value, device);
    if (status)
        return status;
    switch (attribute) {
    case 10: /* warp size */
        *value = 32;
        break;
    case 33: /* PCI bus */
        *value = emu_device_pci_bus(device);
        break;
    case 34: /* PCI device */
    case 50: /* PCI domain */
        *value = 0;
        break;
    case 41:  /* one address space with the host */
    case 102: /* virtual memory management */
    case 103: /* posix descriptors as handles */
        *value = 1;
        break;
    case 110: /* GPU-direct RDMA with virtual memory */
    case 124: /* dma-buf */
        *value = emu_setting("DMABUF", 1) != 0;
        break;
    default:
        return EMU_INVALID_VALUE;
    }
    return EMU_OK;
}

EMU_EXPORT int cuDevicePrimaryCtxRetain(struct context **context, int device)
{
    int status = check_device(context, device);
    if (!status) {
        __atomic_add_fetch(&contexts[device].users, 1, __ATOMIC_SEQ_CST);
        *context = &contexts[device];
    }
    return status;
}

EMU_EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    int status = check_device(contexts, device);
    if (!status && __atomic_sub_fetch(&contexts[device].users, 1, __ATOMIC_SEQ_CST) < 0) {
        __atomic_add_fetch(&contexts[device].users, 1, __ATOMIC_SEQ_CST);
        status = EMU_INVALID_CONTEXT;
    }
    return status;
}

/** Makes the thread's device that of its context. */
static int settle(void)
{
    struct context *context = current_context();
    return context ? emu_device_make_current((int)(context - contexts)) : EMU_OK;
}

EMU_EXPORT int cuCtxPushCurrent_v2(struct context *context)
{
    int status = check_context(context);
    if (!status && (!context || depth == sizeof stack / sizeof *stack))
        status = EMU_INVALID_VALUE;
    if (status)
        return status;
    stack[depth++] = context;
    return settle();
}

EMU_EXPORT int cuCtxPopCurrent_v2(struct context **context)
{
    int status = begin_with_context();
    if (status)
        return status;
    depth--;
    if (context)
        *context = stack[depth];
    return settle();
}

EMU_EXPORT int cuCtxSetCurrent(struct context *context)
{
    int status = check_context(context);
    if (status)
        return status;
    if (depth)
        depth--;
    if (context)
        stack[depth++] = context;
    return settle();
}

EMU_EXPORT int cuCtxGetCurrent(struct context **context)
{
    int status = begin();
    if (!status && !context)
        status = EMU_INVALID_VALUE;
    if (!status)
        *context = current_context();
    return status;
}

EMU_EXPORT int cuCtxGetDevice(int *device)
{
    int status = begin_with_context();
    if (!status && !device)
        status = EMU_INVALID_VALUE;
    if (!status)
        *device = emu_device_current();
    return status;
}

EMU_EXPORT int cuCtxSynchronize(void)
{
    int status = begin_with_context();
    return status ? status : emu_device_synchronize(emu_device_current(), false);
}

EMU_EXPORT int cuStreamCreate(struct emu_stream **stream, unsigned flags)
{
    int status = begin_with_context();
    if (!status)
        status = flags > 1 ? EMU_INVALID_VALUE
                           : emu_stream_create(stream, emu_device_current(), flags == 0);
    return status;
}

EMU_EXPORT int cuStreamDestroy_v2(struct emu_stream *stream)
{
    int status = begin();
    return status ? status : emu_stream_destroy(stream);
}

EMU_EXPORT int cuStreamQuery(struct emu_stream *stream)
{
    int status = begin();
    return status ? status : emu_stream_query(stream);
}

EMU_EXPORT int cuStreamSynchronize(struct emu_stream *stream)
{
    int status = begin();
    return status ? status : emu_stream_synchronize(stream);
}

EMU_EXPORT int cuMemcpy(void *to, const void *from, size_t size)
{
    int status = begin_with_context();
    return status ? status : emu_copy(to, from, size, 4);
}

EMU_EXPORT int cuMemcpyHtoD_v2(void *to, const void *from, size_t size)
{
    int status = begin_with_context();
    return status ? status : emu_copy(to, from, size, 1);
}

EMU_EXPORT int cuMemcpyDtoH_v2(void *to, const void *from, size_t size)
{
    int status = begin_with_context();
    return status ? status : emu_copy(to, from, size, 2);
}

EMU_EXPORT int cuMemcpyAsync(void *to, const void *from, size_t size, struct emu_stream *stream)
{
    int status = begin_with_context();
    return status ? status : emu_copy_async(to, from, size, 4, stream);
}

EMU_EXPORT int cuMemsetD8_v2(void *to, unsigned char value, size_t count)
{
    int status = begin_with_context();
    return status ? status : emu_fill(to, value, count);
}

EMU_EXPORT int cuMemsetD8Async(void *to, unsigned char value, size_t count,
                               struct emu_stream *stream)
{
    int status = begin_with_context();
    return status ? status : emu_fill_async(to, value, count, stream);
}

EMU_EXPORT int cuPointerGetAttribute(void *data, int attribute, void *address)
{
    int status = begin(), device = -1;
    if (!status && (!data || emu_range_find(address, NULL, NULL, &device)))
        status = EMU_INVALID_VALUE;
    if (status)
        return status;
    switch (attribute) {
    case 2: /* memory type: device */
        *(unsigned *)data = 2;
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
        return EMU_INVALID_VALUE;
    }
    return EMU_OK;
}
