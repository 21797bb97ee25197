/* The bridge's own structs and numbers held against a library's own header: compiled, never run.
 *
 * -DWITH_HIP, -DWITH_CUDA, -DWITH_RCCL or -DWITH_NCCL says which header. HIP and CUDA go through the
 * same list, by what each of them calls a thing.
 */
#include "layouts.h"
#include "slurmmesh_bridge.h"

#define SAME(ours, theirs)                                                                         \
    _Static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)
#define SAME_SIZE(ours, theirs) SAME(sizeof(ours), sizeof(theirs))
#define SAME_PLACE(our_struct, our_field, their_struct, their_field)                               \
    SAME(offsetof(our_struct, our_field), offsetof(their_struct, their_field));                    \
    SAME(sizeof(((our_struct *)0)->our_field), sizeof(((their_struct *)0)->their_field))

#if defined(WITH_HIP)
#define __HIP_PLATFORM_AMD__ 1
#include <hip/hip_runtime_api.h>
#define THEIRS(hip, cuda) hip
#elif defined(WITH_CUDA)
#include <cuda.h>
#define THEIRS(hip, cuda) cuda
#elif defined(WITH_RCCL)
#define __HIP_PLATFORM_AMD__ 1
#include <rccl/rccl.h>
#elif defined(WITH_NCCL)
#include <nccl.h>
#else
#error "which header?"
#endif

/* ------------------------------------------------------------------ memory and devices */

#ifdef THEIRS
typedef THEIRS(hipMemAllocationProp, CUmemAllocationProp) their_allocation;
typedef THEIRS(hipMemLocation, CUmemLocation) their_location;
typedef THEIRS(hipMemAccessDesc, CUmemAccessDesc) their_access;
typedef THEIRS(hipMemGenericAllocationHandle_t, CUmemGenericAllocationHandle) their_handle;
typedef THEIRS(hipDeviceptr_t, CUdeviceptr) their_address;
typedef THEIRS(hipStream_t, CUstream) their_stream;
typedef THEIRS(hipDevice_t, CUdevice) their_device;
typedef THEIRS(hipUUID, CUuuid) their_uuid;

SAME_SIZE(struct sm_allocation, their_allocation);
SAME_PLACE(struct sm_allocation, type, their_allocation, type);
SAME_PLACE(struct sm_allocation, handles, their_allocation,
           THEIRS(requestedHandleType, requestedHandleTypes));
SAME_PLACE(struct sm_allocation, location, their_allocation, location);
SAME_PLACE(struct sm_allocation, win32_meta_data, their_allocation, win32HandleMetaData);
SAME_PLACE(struct sm_allocation, flags.compression, their_allocation, allocFlags.compressionType);
SAME_PLACE(struct sm_allocation, flags.rdma, their_allocation, allocFlags.gpuDirectRDMACapable);
SAME_PLACE(struct sm_allocation, flags.usage, their_allocation, allocFlags.usage);

SAME_SIZE(struct sm_location, their_location);
SAME_PLACE(struct sm_location, type, their_location, type);
SAME_PLACE(struct sm_location, id, their_location, id);

SAME_SIZE(struct sm_access_right, their_access);
SAME_PLACE(struct sm_access_right, location, their_access, location);
SAME_PLACE(struct sm_access_right, flags, their_access, flags);

SAME_SIZE(struct sm_uuid, their_uuid);
SAME_SIZE(uint64_t, their_handle);
SAME_SIZE(uint64_t, their_address);
SAME_SIZE(uint64_t, their_stream);
SAME_SIZE(int, their_device);

SAME(SM_LOCATION_DEVICE, THEIRS(hipMemLocationTypeDevice, CU_MEM_LOCATION_TYPE_DEVICE));
SAME(SM_ALLOCATION_PINNED, THEIRS(hipMemAllocationTypePinned, CU_MEM_ALLOCATION_TYPE_PINNED));
SAME(SM_HANDLE_POSIX_FD,
     THEIRS(hipMemHandleTypePosixFileDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
SAME(SM_GRANULARITY_MINIMUM,
     THEIRS(hipMemAllocationGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
SAME(SM_GRANULARITY_RECOMMENDED,
     THEIRS(hipMemAllocationGranularityRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
SAME(SM_STREAM_NON_BLOCKING, THEIRS(hipStreamNonBlocking, CU_STREAM_NON_BLOCKING));
SAME(SM_ACCESS_NONE, THEIRS(hipMemAccessFlagsProtNone, CU_MEM_ACCESS_FLAGS_PROT_NONE));
SAME(SM_ACCESS_READ, THEIRS(hipMemAccessFlagsProtRead, CU_MEM_ACCESS_FLAGS_PROT_READ));
SAME(SM_ACCESS_READ_WRITE,
     THEIRS(hipMemAccessFlagsProtReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
SAME(SM_GPU_INVALID_VALUE, THEIRS(hipErrorInvalidValue, CUDA_ERROR_INVALID_VALUE));
SAME(SM_GPU_NOT_READY, THEIRS(hipErrorNotReady, CUDA_ERROR_NOT_READY));
SAME(SM_GPU_NOT_SUPPORTED, THEIRS(hipErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED));
#endif

#ifdef WITH_HIP
SAME(SM_HIP_COPY_DEFAULT, hipMemcpyDefault);
#if HIP_VERSION >= 50300000
SAME(SM_HIP_ATTRIBUTE_VMM, hipDeviceAttributeVirtualMemoryManagementSupported);
SAME(SM_POINTER_ATTRIBUTE_MEMORY_TYPE, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(SM_POINTER_ATTRIBUTE_IS_MANAGED, HIP_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(SM_POINTER_ATTRIBUTE_DEVICE, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
#endif
#if HIP_VERSION >= 70100000
SAME(SM_RANGE_HANDLE_DMABUF, hipMemRangeHandleTypeDmaBufFd);
SAME(SM_HIP_ATTRIBUTE_DMABUF, hipDeviceAttributeDmaBufSupported);
SAME(SM_HIP_ATTRIBUTE_RDMA, hipDeviceAttributeGPUDirectRDMAWithHipVMMSupported);
#endif
/* A pointer's kind: with CUDA's numbers from 6.0 on. */
SAME(HIP_VERSION < SM_HIP_6_0 ? 0 : SM_POINTER_HOST, hipMemoryTypeHost);
SAME(HIP_VERSION < SM_HIP_6_0 ? 1 : SM_POINTER_DEVICE, hipMemoryTypeDevice);
#if HIP_VERSION >= 50300000
SAME(HIP_VERSION < SM_HIP_6_0 ? 4 : SM_POINTER_MANAGED, hipMemoryTypeManaged);
#endif
#endif

#ifdef WITH_CUDA
SAME(SM_RANGE_HANDLE_DMABUF, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME(SM_CUDA_ATTRIBUTE_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(SM_CUDA_ATTRIBUTE_RDMA, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(SM_CUDA_ATTRIBUTE_DMABUF, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
SAME(SM_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(SM_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(SM_POINTER_ATTRIBUTE_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(SM_POINTER_HOST, CU_MEMORYTYPE_HOST);
SAME(SM_POINTER_DEVICE, CU_MEMORYTYPE_DEVICE);
#endif

/* ------------------------------------------------------------------ collectives */

#ifdef NCCL_VERSION_CODE
SAME_SIZE(struct sm_unique_id, ncclUniqueId);
SAME_SIZE(uint64_t, ncclComm_t);
SAME(SM_TYPE_INT8, ncclInt8);
SAME(SM_TYPE_UINT8, ncclUint8);
SAME(SM_TYPE_INT32, ncclInt32);
SAME(SM_TYPE_UINT32, ncclUint32);
SAME(SM_TYPE_INT64, ncclInt64);
SAME(SM_TYPE_UINT64, ncclUint64);
SAME(SM_TYPE_FLOAT16, ncclFloat16);
SAME(SM_TYPE_FLOAT32, ncclFloat32);
SAME(SM_TYPE_FLOAT64, ncclFloat64);
SAME(SM_TYPE_BFLOAT16, ncclBfloat16);
SAME(SM_REDUCE_SUM, ncclSum);
SAME(SM_REDUCE_PRODUCT, ncclProd);
SAME(SM_REDUCE_MAX, ncclMax);
SAME(SM_REDUCE_MIN, ncclMin);
SAME(SM_REDUCE_AVERAGE, ncclAvg);
SAME(SM_CCL_READY, ncclSuccess);
#if NCCL_VERSION_CODE >= 21400
SAME(SM_CCL_IN_PROGRESS, ncclInProgress);
SAME_PLACE(struct sm_ccl_config, size, ncclConfig_t, size);
SAME_PLACE(struct sm_ccl_config, magic, ncclConfig_t, magic);
SAME_PLACE(struct sm_ccl_config, version, ncclConfig_t, version);
SAME_PLACE(struct sm_ccl_config, blocking, ncclConfig_t, blocking);
#endif
#if NCCL_VERSION_CODE >= 22400
SAME(SM_TYPE_FLOAT8_E4M3, ncclFloat8e4m3);
SAME(SM_TYPE_FLOAT8_E5M2, ncclFloat8e5m2);
#endif
#endif
