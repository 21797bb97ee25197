/**
 * The virtual-memory calls under the vendors' names: HIP and CUDA have the same signatures, a
 * pointer there is a number here. What differs: errors that stay, and descriptors by value.
 */
#include "vendor.h"

/** HIP 5.7 has these calls, but no memory that could be exported. */
static bool can_share(void)
{
    return EMU_NAME(emu_hip_version() >= 60000000, true);
}

EMU_EXPORT int EMU_NAME(hipMemGetAllocationGranularity, cuMemGetAllocationGranularity)(
    size_t *granularity, const struct emu_properties *properties, int option)
{
    int status = begin();
    if (!status)
        status = !granularity || option < 0 || option > 1 ? EMU_INVALID_VALUE
                                                          : emu_memory_check(properties);
    if (!status)
        *granularity = EMU_GRANULARITY;
    return answer(status);
}

EMU_EXPORT int EMU_NAME(hipMemCreate, cuMemCreate)(uint64_t *handle, size_t size,
                                                   const struct emu_properties *properties,
                                                   unsigned long long flags)
{
    int status = begin();
    if (!status && properties && properties->handle_types && !can_share())
        status = EMU_NOT_SUPPORTED;
    if (!status)
        status = flags ? EMU_INVALID_VALUE : emu_memory_create(handle, size, properties);
    return answer(status);
}

EMU_EXPORT int EMU_NAME(hipMemRelease, cuMemRelease)(uint64_t handle)
{
    int status = begin();
    return answer(status ? status : emu_memory_release(handle));
}

EMU_EXPORT int EMU_NAME(hipMemGetAllocationPropertiesFromHandle,
                        cuMemGetAllocationPropertiesFromHandle)(struct emu_properties *properties,
                                                                uint64_t handle)
{
    int status = begin();
    return answer(status ? status : emu_memory_properties(handle, properties));
}

EMU_EXPORT int EMU_NAME(hipMemRetainAllocationHandle,
                        cuMemRetainAllocationHandle)(uint64_t *handle, void *address)
{
    int status = begin();
    return answer(status ? status : emu_memory_retain(handle, address));
}

EMU_EXPORT int EMU_NAME(hipMemExportToShareableHandle, cuMemExportToShareableHandle)(
    void *shareable, uint64_t handle, int type, unsigned long long flags)
{
    int status = begin();
    if (!status && !can_share())
        status = EMU_NOT_SUPPORTED;
    if (!status)
        status = !shareable || type != 1 || flags ? EMU_INVALID_VALUE
                                                  : emu_memory_export(handle, shareable);
    return answer(status);
}

EMU_EXPORT int EMU_NAME(hipMemImportFromShareableHandle,
                        cuMemImportFromShareableHandle)(uint64_t *handle, void *shareable, int type)
{
    int status = begin();
    if (status)
        return answer(status);
#ifdef EMULATOR_CUDA
    bool by_value = true;
#else
    bool by_value = emu_hip_version() >= 70100000;
    if (!shareable) /* Also descriptor 0, by value. */
        return answer(EMU_INVALID_VALUE);
#endif
    if (!handle || type != 1)
        return answer(EMU_INVALID_VALUE);
    if (!by_value && (uintptr_t)shareable < 4096) /* A descriptor where a pointer was due. */
        return answer(EMU_INVALID_VALUE);
    int fd = by_value ? (int)(intptr_t)shareable : *(const int *)shareable;
    return answer(emu_memory_import(handle, fd, emu_device_current()));
}

EMU_EXPORT int EMU_NAME(hipMemAddressReserve, cuMemAddressReserve)(void **address, size_t size,
                                                                   size_t alignment, void *hint,
                                                                   unsigned long long flags)
{
    int status = begin();
    if (!status)
        status = flags ? EMU_INVALID_VALUE : emu_range_reserve(address, size, alignment, hint);
    return answer(status);
}

EMU_EXPORT int EMU_NAME(hipMemAddressFree, cuMemAddressFree)(void *address, size_t size)
{
    int status = begin();
    return answer(status ? status : emu_range_free(address, size));
}

EMU_EXPORT int EMU_NAME(hipMemMap, cuMemMap)(void *address, size_t size, size_t offset,
                                             uint64_t handle, unsigned long long flags)
{
    int status = begin();
    if (!status)
        status = flags ? EMU_INVALID_VALUE : emu_range_map(address, size, offset, handle);
    return answer(status);
}

EMU_EXPORT int EMU_NAME(hipMemUnmap, cuMemUnmap)(void *address, size_t size)
{
    int status = begin();
    return answer(status ? status : emu_range_unmap(address, size));
}

EMU_EXPORT int EMU_NAME(hipMemSetAccess, cuMemSetAccess)(void *address, size_t size,
                                                         const struct emu_access *access,
                                                         size_t count)
{
    int status = begin();
    return answer(status ? status : emu_range_set_access(address, size, access, count));
}

EMU_EXPORT int EMU_NAME(hipMemGetAccess, cuMemGetAccess)(unsigned long long *flags,
                                                         const int location[2], void *address)
{
    int status = begin();
    if (!status)
        status = !location || location[0] != 1
                     ? EMU_INVALID_VALUE
                     : emu_range_get_access(address, location[1], flags);
    return answer(status);
}

#ifndef EMULATOR_OLD
EMU_EXPORT int EMU_NAME(hipMemGetHandleForAddressRange, cuMemGetHandleForAddressRange)(
    void *handle, void *address, size_t size, int type, unsigned long long flags)
{
    int status = begin();
    if (!status && !emu_setting("DMABUF", 1))
        status = EMU_NOT_SUPPORTED;
    if (!status && (type != 1 || flags > EMU_NAME(0, 1)))
        status = EMU_INVALID_VALUE;
    /* HIP's are of whole allocations, and it does not tell where in them the range is. */
    uint64_t *offset = EMU_NAME(&(uint64_t){0}, NULL);
    return answer(status ? status : emu_range_dmabuf(address, size, handle, offset));
}
#endif

EMU_EXPORT int EMU_NAME(hipMemGetAddressRange, cuMemGetAddressRange_v2)(void **base, size_t *size,
                                                                        void *address)
{
    int status = begin();
    return answer(status ? status : emu_range_find(address, base, size, NULL));
}

EMU_EXPORT int EMU_NAME(hipMemGetInfo, cuMemGetInfo_v2)(size_t *free_bytes, size_t *total)
{
    int status = begin_with_context();
    if (!status)
        status = emu_device_free(emu_device_current(), free_bytes);
    return answer(status ? status : emu_device_total(emu_device_current(), total));
}

EMU_EXPORT int EMU_NAME(hipMalloc, cuMemAlloc_v2)(void **address, size_t size)
{
    int status = begin_with_context();
    return answer(status ? status : emu_range_allocate(address, size, emu_device_current()));
}

EMU_EXPORT int EMU_NAME(hipFree, cuMemFree_v2)(void *address)
{
    int status = begin_with_context();
    if (!status)
        status = emu_device_synchronize(emu_device_current(), false);
    return answer(status ? status : emu_range_release(address));
}
