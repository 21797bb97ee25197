/* Device memory: made apart from its addresses, shared by file descriptor, seen by NICs. */
#include "internal.h"
#include <fcntl.h>
#include <unistd.h>

/* HIP before 5.7 has another struct for allocations, without a flag for RDMA. */
static int refuse_old(enum sm_symbol_id symbol, sm_error *error)
{
    if (sm_loaded_platform() != SM_PLATFORM_ROCM) {
        return 0;
    }
    int version = sm_hip_version();
    if (version == 0) { /* it does not tell: the error says why */
        const int code = sm_runtime_version(&version, error);
        if (code != 0) {
            return code;
        }
    }
    if (version >= SM_HIP_5_7) {
        return 0;
    }
    return sm_fail(error, SM_E_TOO_OLD, sm_symbol_name(symbol), sm_library_path(SM_LIBRARY_GPU),
                   "HIP %d.%d lays out the arguments of memory mapping differently; take 5.7 or "
                   "later",
                   version / 10000000, version / 100000 % 100);
}

/* As SM_REQUIRE, for what needs HIP 5.7. */
#define REQUIRE_MAPPING(name, error)                                                               \
    do {                                                                                           \
        SM_REQUIRE(name, error);                                                                   \
        const int too_old_ = refuse_old(SM_S_##name, error);                                       \
        if (too_old_ != 0) {                                                                       \
            return too_old_;                                                                       \
        }                                                                                          \
    } while (0)

/* HIP imports to the thread's device, and some versions create there too, whatever the properties
 * say: so what is about a device makes it the thread's first. */

static struct sm_allocation allocation(int device, int rdma)
{
    return (struct sm_allocation){
        .type = SM_ALLOCATION_PINNED,
        .handles = SM_HANDLE_POSIX_FD,
        .location = {.type = SM_LOCATION_DEVICE, .id = device},
        .flags = {.rdma = rdma != 0},
    };
}

/* Some versions of ROCm (7.12 to 7.14) give away the descriptor that they have themselves, the same
 * each time, and close it with the memory: then a duplicate is the caller's. -1: none is left. */
static int own_descriptor(uint64_t handle, int fd)
{
    int again = -1;
    if (sm_loaded_platform() != SM_PLATFORM_ROCM ||
        SM_CALL(NULL, memory_export, (&again, handle, SM_HANDLE_POSIX_FD, 0)) != 0) {
        return fd;
    }
    if (again == fd) {
        return fcntl(fd, F_DUPFD_CLOEXEC, 0);
    }
    (void)close(again);
    return fd;
}

/* What starts as another program afterwards does not get it. */
static void close_on_exec(int fd)
{
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0) {
        (void)fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    }
}

int sm_memory_granularity(int device, int rdma, size_t *bytes, sm_error *error)
{
    REQUIRE_MAPPING(memory_granularity, error);
    const struct sm_allocation wanted = allocation(device, rdma);
    sm_guard guard;
    int code = sm_guard_enter(device, &guard, error);
    if (code == 0) {
        size_t found = 0;
        /* The minimum of newer HIP is 4 KiB: a descriptor and a mapping for each so small part. */
        code = SM_CALL(error, memory_granularity, (&found, &wanted, SM_GRANULARITY_RECOMMENDED));
        sm_guard_leave(&guard);
        if (code == 0) {
            *bytes = found;
        }
    }
    return code;
}

int sm_memory_create(int device, size_t size, int rdma, uint64_t *handle, sm_error *error)
{
    REQUIRE_MAPPING(memory_create, error);
    struct sm_allocation wanted = allocation(device, rdma);
    sm_guard guard;
    int code = sm_guard_enter(device, &guard, error);
    if (code == 0) {
        uint64_t found = 0;
        code = SM_FUNCTION(memory_create)(&found, size, &wanted, 0);
        if (code == SM_GPU_NOT_SUPPORTED) { /* as HIP 5.7 answers, which cannot export any */
            (void)sm_answer(SM_S_memory_create, code, NULL);
            wanted.handles = 0;
            code = SM_FUNCTION(memory_create)(&found, size, &wanted, 0);
        }
        code = sm_answer(SM_S_memory_create, code, error);
        sm_guard_leave(&guard);
        if (code == 0) {
            *handle = found;
        }
    }
    return code;
}

int sm_memory_release(uint64_t handle, sm_error *error)
{
    REQUIRE_MAPPING(memory_release, error);
    return SM_CALL(error, memory_release, (handle));
}

int sm_memory_reserve(size_t size, size_t alignment, uint64_t hint, uint64_t *address,
                      sm_error *error)
{
    REQUIRE_MAPPING(memory_reserve, error);
    uint64_t found = 0;
    const int code = SM_CALL(error, memory_reserve, (&found, size, alignment, hint, 0));
    if (code == 0) {
        *address = found;
    }
    return code;
}

int sm_memory_address_free(uint64_t address, size_t size, sm_error *error)
{
    REQUIRE_MAPPING(memory_address_free, error);
    return SM_CALL(error, memory_address_free, (address, size));
}

int sm_memory_map(uint64_t address, size_t size, uint64_t handle, sm_error *error)
{
    REQUIRE_MAPPING(memory_map, error);
    return SM_CALL(error, memory_map, (address, size, 0, handle, 0));
}

int sm_memory_unmap(uint64_t address, size_t size, sm_error *error)
{
    REQUIRE_MAPPING(memory_unmap, error);
    return SM_CALL(error, memory_unmap, (address, size));
}

int sm_memory_set_access(uint64_t address, size_t size, int device, int access, sm_error *error)
{
    REQUIRE_MAPPING(memory_set_access, error);
    if (access != SM_ACCESS_NONE && access != SM_ACCESS_READ && access != SM_ACCESS_READ_WRITE) {
        return sm_fail(error, SM_E_ARGUMENT, "", "", "no access has the number %d", access);
    }
    const struct sm_access_right right = {
        .location = {.type = SM_LOCATION_DEVICE, .id = device},
        .flags = access,
    };
    return SM_CALL(error, memory_set_access, (address, size, &right, 1));
}

int sm_memory_export_fd(uint64_t handle, int *fd, sm_error *error)
{
    REQUIRE_MAPPING(memory_export, error);
    int found = -1;
    const int code = SM_CALL(error, memory_export, (&found, handle, SM_HANDLE_POSIX_FD, 0));
    if (code != 0) {
        return code;
    }
    found = own_descriptor(handle, found);
    if (found < 0) {
        return sm_fail(error, SM_E_NO_MEMORY, sm_symbol_name(SM_S_memory_export), "",
                       "no file descriptor is left to this process (ulimit -n)");
    }
    close_on_exec(found);
    *fd = found;
    return 0;
}

int sm_memory_import_fd(int device, int fd, uint64_t *handle, sm_error *error)
{
    REQUIRE_MAPPING(memory_import, error);
    /* By value, except that HIP before 7.1 wants its address. */
    void *given = (void *)(intptr_t)fd; /* NOLINT(performance-no-int-to-ptr) */
    if (sm_loaded_platform() == SM_PLATFORM_ROCM && sm_hip_version() < SM_HIP_7_1) {
        given = &fd;
    }
    sm_guard guard;
    int code = sm_guard_enter(device, &guard, error);
    if (code == 0) {
        uint64_t found = 0;
        code = SM_CALL(error, memory_import, (&found, given, SM_HANDLE_POSIX_FD));
        sm_guard_leave(&guard);
        if (code == 0) {
            *handle = found;
        }
    }
    return code;
}

/* By the GPU library itself. A dma-buf of CUDA's starts where the range does; ROCm's are of whole
 * allocations, and HIP does not tell where in it the range is: so it is asked for all of it. */
static int dmabuf_of_library(uint64_t address, size_t size, int *fd, uint64_t *offset,
                             sm_error *error)
{
    SM_REQUIRE(memory_range_handle, error);
    uint64_t start = address;
    size_t length = size;
    if (sm_loaded_platform() == SM_PLATFORM_ROCM) {
        const int code = sm_memory_address_range(address, &start, &length, error);
        if (code != 0) {
            return code;
        }
        if (size > length || address - start > length - size) {
            return sm_fail(error, SM_E_ARGUMENT, "", "", "the range is not within one allocation");
        }
    }
    *offset = address - start;
    return SM_CALL(error, memory_range_handle, (fd, start, length, SM_RANGE_HANDLE_DMABUF, 0));
}

int sm_memory_dmabuf_fd(uint64_t address, size_t size, int *fd, uint64_t *offset, sm_error *error)
{
    int found = -1;
    uint64_t before = 0;
    int code = SM_GPU_NOT_SUPPORTED;
    sm_error first = {0}; /* what HSA may make good */
    /* HSA knows it from before HIP did; there may be neither, then HIP's is the one to miss. */
    const bool by_hsa = sm_is_loaded() && sm_function_of(SM_S_hsa_export_dmabuf) != NULL;
    if (!by_hsa || sm_function_of(SM_S_memory_range_handle) != NULL) {
        code = dmabuf_of_library(address, size, &found, &before, &first);
    }
    if (by_hsa && code == SM_GPU_NOT_SUPPORTED) {
        SM_REQUIRE(hsa_export_dmabuf, error);
        code = SM_CALL(error, hsa_export_dmabuf, (address, size, &found, &before));
    } else if (code != 0 && error != NULL) {
        *error = first;
    }
    if (code == 0) {
        close_on_exec(found);
        *fd = found;
        *offset = before;
    }
    return code;
}

int sm_memory_address_range(uint64_t address, uint64_t *start, size_t *size, sm_error *error)
{
    SM_REQUIRE(memory_address_range, error);
    uint64_t found = 0;
    size_t length = 0;
    const int code = SM_CALL(error, memory_address_range, (&found, &length, address));
    if (code == 0) {
        *start = found;
        *size = length;
    }
    return code;
}

/* ------------------------------------------------------------------ contents */

/* After a copy or a fill on the default stream: until the bytes are there. The libraries return
 * before that for memory of the device, and for small copies from the host. */
static int until_there(int code, sm_error *error)
{
    return code != 0 ? code : SM_CALL(error, stream_synchronize, (0));
}

int sm_memory_copy(int device, uint64_t to, uint64_t from, size_t size, sm_error *error)
{
    SM_REQUIRE(stream_synchronize, error);
    const bool rocm = sm_loaded_platform() == SM_PLATFORM_ROCM;
    if (rocm) {
        SM_REQUIRE(hip_copy, error);
    } else {
        SM_REQUIRE(cuda_copy, error);
    }
    sm_guard guard;
    int code = sm_guard_enter(device, &guard, error);
    if (code == 0) {
        code = rocm ? SM_CALL(error, hip_copy, (to, from, size, SM_HIP_COPY_DEFAULT))
                    : SM_CALL(error, cuda_copy, (to, from, size));
        code = until_there(code, error);
        sm_guard_leave(&guard);
    }
    return code;
}

int sm_memory_copy_async(int device, uint64_t to, uint64_t from, size_t size, uint64_t stream,
                         sm_error *error)
{
    const bool rocm = sm_loaded_platform() == SM_PLATFORM_ROCM;
    if (rocm) {
        SM_REQUIRE(hip_copy_async, error);
    } else {
        SM_REQUIRE(cuda_copy_async, error);
    }
    sm_guard guard;
    int code = sm_guard_enter(device, &guard, error);
    if (code == 0) {
        code = rocm ? SM_CALL(error, hip_copy_async, (to, from, size, SM_HIP_COPY_DEFAULT, stream))
                    : SM_CALL(error, cuda_copy_async, (to, from, size, stream));
        sm_guard_leave(&guard);
    }
    return code;
}

int sm_memory_fill(int device, uint64_t address, int value, size_t size, sm_error *error)
{
    SM_REQUIRE(stream_synchronize, error);
    const bool rocm = sm_loaded_platform() == SM_PLATFORM_ROCM;
    if (rocm) {
        SM_REQUIRE(hip_fill, error);
    } else {
        SM_REQUIRE(cuda_fill, error);
    }
    if (value < 0 || value > UINT8_MAX) {
        return sm_fail(error, SM_E_ARGUMENT, "", "", "%d is no byte", value);
    }
    sm_guard guard;
    int code = sm_guard_enter(device, &guard, error);
    if (code == 0) {
        code = rocm ? SM_CALL(error, hip_fill, (address, value, size))
                    : SM_CALL(error, cuda_fill, (address, (unsigned char)value, size));
        code = until_there(code, error);
        sm_guard_leave(&guard);
    }
    return code;
}

/* ------------------------------------------------------------------ pointers */

/* One attribute of a pointer; `otherwise` where the library does not know the pointer. */
static int pointer_attribute(int attribute, uint64_t address, int otherwise, int *value,
                             sm_error *error)
{
    int found = 0;
    const int code = SM_FUNCTION(pointer_attribute)(&found, attribute, address);
    const bool unknown = code == SM_GPU_INVALID_VALUE;
    *value = unknown ? otherwise : found;
    const int answer = sm_answer(SM_S_pointer_attribute, code, unknown ? NULL : error);
    return unknown ? 0 : answer;
}

/* Of a memory type as the library counts them; -1: it does not know the pointer. */
static enum sm_pointer kind_of(int type)
{
    if (type < 0) {
        return SM_POINTER_UNKNOWN;
    }
    /* Host 1 and device 2; HIP before 6.0 counts from 0. */
    if (sm_loaded_platform() == SM_PLATFORM_ROCM && sm_hip_version() < SM_HIP_6_0) {
        type++;
    }
    switch (type) {
    case 1:
        return SM_POINTER_HOST;
    case 2:
        return SM_POINTER_DEVICE;
    case 3:
    case 4:
        return SM_POINTER_MANAGED;
    default:
        return SM_POINTER_UNKNOWN;
    }
}

int sm_pointer_kind(uint64_t address, int *kind, int *device, sm_error *error)
{
    SM_REQUIRE(pointer_attribute, error);
    int type = -1;
    int managed = 0;
    int place = -1;
    int code = pointer_attribute(SM_POINTER_ATTRIBUTE_MEMORY_TYPE, address, -1, &type, error);
    if (code == 0 && type >= 0) {
        code = pointer_attribute(SM_POINTER_ATTRIBUTE_IS_MANAGED, address, 0, &managed, error);
    }
    const enum sm_pointer found = (managed & 1) != 0 ? SM_POINTER_MANAGED : kind_of(type);
    if (code == 0 && (found == SM_POINTER_DEVICE || found == SM_POINTER_MANAGED)) {
        code = pointer_attribute(SM_POINTER_ATTRIBUTE_DEVICE, address, -1, &place, error);
    }
    if (code == 0) {
        *kind = (int)found;
        *device = place;
    }
    return code;
}
