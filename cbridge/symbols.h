/* The table of the libraries' functions: the one place that names them.
 *
 * A row: neutral name, its name in ROCm, its name in CUDA, enum sm_library without the prefix, what
 * it returns, its arguments. An empty name: that platform has no such function. Handles, streams,
 * communicators and device addresses are pointers in one library and 64-bit numbers in the other,
 * passed alike; here they are uint64_t. Every function is optional.
 */
#ifndef SLURMMESH_SYMBOLS_H
#define SLURMMESH_SYMBOLS_H
#include "layouts.h"

/* clang-format off */
#define SM_SYMBOLS(ROW) \
    ROW(emulator_version, "slurmmesh_emulator_version", "slurmmesh_emulator_version", GPU, const char *, (void)) \
    ROW(init, "hipInit", "cuInit", GPU, int, (unsigned)) \
    ROW(runtime_version, "hipRuntimeGetVersion", "cudaRuntimeGetVersion", RUNTIME, int, (int *)) \
    ROW(driver_version, "hipDriverGetVersion", "cuDriverGetVersion", GPU, int, (int *)) \
    ROW(last_error, "hipGetLastError", "", GPU, int, (void)) \
    ROW(hip_error_name, "hipGetErrorName", "", GPU, const char *, (int)) \
    ROW(hip_error_string, "hipGetErrorString", "", GPU, const char *, (int)) \
    ROW(cuda_error_name, "", "cuGetErrorName", GPU, int, (int, const char **)) \
    ROW(cuda_error_string, "", "cuGetErrorString", GPU, int, (int, const char **)) \
    ROW(runtime_error_name, "", "cudaGetErrorName", RUNTIME, const char *, (int)) \
    ROW(device_count, "hipGetDeviceCount", "cuDeviceGetCount", GPU, int, (int *)) \
    ROW(device_name, "hipDeviceGetName", "cuDeviceGetName", GPU, int, (char *, int, int)) \
    ROW(device_uuid, "hipDeviceGetUuid", "cuDeviceGetUuid_v2", GPU, int, (struct sm_uuid *, int)) \
    ROW(device_pci_address, "hipDeviceGetPCIBusId", "cuDeviceGetPCIBusId", GPU, int, (char *, int, int)) \
    ROW(device_memory, "hipDeviceTotalMem", "cuDeviceTotalMem_v2", GPU, int, (size_t *, int)) \
    ROW(device_attribute, "hipDeviceGetAttribute", "cuDeviceGetAttribute", GPU, int, (int *, int, int)) \
    ROW(device_get, "hipGetDevice", "", GPU, int, (int *)) \
    ROW(device_set, "hipSetDevice", "", GPU, int, (int)) \
    ROW(device_synchronize, "hipDeviceSynchronize", "cuCtxSynchronize", GPU, int, (void)) \
    ROW(context_retain, "", "cuDevicePrimaryCtxRetain", GPU, int, (uint64_t *, int)) \
    ROW(context_set, "", "cuCtxSetCurrent", GPU, int, (uint64_t)) \
    ROW(context_push, "", "cuCtxPushCurrent_v2", GPU, int, (uint64_t)) \
    ROW(context_pop, "", "cuCtxPopCurrent_v2", GPU, int, (uint64_t *)) \
    ROW(stream_create, "hipStreamCreateWithFlags", "cuStreamCreate", GPU, int, (uint64_t *, unsigned)) \
    ROW(stream_destroy, "hipStreamDestroy", "cuStreamDestroy_v2", GPU, int, (uint64_t)) \
    ROW(stream_synchronize, "hipStreamSynchronize", "cuStreamSynchronize", GPU, int, (uint64_t)) \
    ROW(stream_query, "hipStreamQuery", "cuStreamQuery", GPU, int, (uint64_t)) \
    ROW(memory_granularity, "hipMemGetAllocationGranularity", "cuMemGetAllocationGranularity", GPU, int, (size_t *, const struct sm_allocation *, int)) \
    ROW(memory_create, "hipMemCreate", "cuMemCreate", GPU, int, (uint64_t *, size_t, const struct sm_allocation *, unsigned long long)) \
    ROW(memory_release, "hipMemRelease", "cuMemRelease", GPU, int, (uint64_t)) \
    ROW(memory_reserve, "hipMemAddressReserve", "cuMemAddressReserve", GPU, int, (uint64_t *, size_t, size_t, uint64_t, unsigned long long)) \
    ROW(memory_address_free, "hipMemAddressFree", "cuMemAddressFree", GPU, int, (uint64_t, size_t)) \
    ROW(memory_map, "hipMemMap", "cuMemMap", GPU, int, (uint64_t, size_t, size_t, uint64_t, unsigned long long)) \
    ROW(memory_unmap, "hipMemUnmap", "cuMemUnmap", GPU, int, (uint64_t, size_t)) \
    ROW(memory_set_access, "hipMemSetAccess", "cuMemSetAccess", GPU, int, (uint64_t, size_t, const struct sm_access_right *, size_t)) \
    ROW(memory_export, "hipMemExportToShareableHandle", "cuMemExportToShareableHandle", GPU, int, (void *, uint64_t, int, unsigned long long)) \
    ROW(memory_import, "hipMemImportFromShareableHandle", "cuMemImportFromShareableHandle", GPU, int, (uint64_t *, void *, int)) \
    ROW(memory_range_handle, "hipMemGetHandleForAddressRange", "cuMemGetHandleForAddressRange", GPU, int, (void *, uint64_t, size_t, int, unsigned long long)) \
    ROW(memory_address_range, "hipMemGetAddressRange", "cuMemGetAddressRange_v2", GPU, int, (uint64_t *, size_t *, uint64_t)) \
    ROW(hip_copy, "hipMemcpy", "", GPU, int, (uint64_t, uint64_t, size_t, int)) \
    ROW(hip_copy_async, "hipMemcpyAsync", "", GPU, int, (uint64_t, uint64_t, size_t, int, uint64_t)) \
    ROW(hip_fill, "hipMemset", "", GPU, int, (uint64_t, int, size_t)) \
    ROW(cuda_copy, "", "cuMemcpy", GPU, int, (uint64_t, uint64_t, size_t)) \
    ROW(cuda_copy_async, "", "cuMemcpyAsync", GPU, int, (uint64_t, uint64_t, size_t, uint64_t)) \
    ROW(cuda_fill, "", "cuMemsetD8_v2", GPU, int, (uint64_t, unsigned char, size_t)) \
    ROW(pointer_attribute, "hipPointerGetAttribute", "cuPointerGetAttribute", GPU, int, (void *, int, uint64_t)) \
    ROW(hsa_export_dmabuf, "hsa_amd_portable_export_dmabuf", "", HSA, int, (uint64_t, size_t, int *, uint64_t *)) \
    ROW(hsa_error_string, "hsa_status_string", "", HSA, int, (int, const char **)) \
    ROW(ccl_version, "ncclGetVersion", "ncclGetVersion", CCL, int, (int *)) \
    ROW(ccl_unique_id, "ncclGetUniqueId", "ncclGetUniqueId", CCL, int, (struct sm_unique_id *)) \
    ROW(ccl_error_string, "ncclGetErrorString", "ncclGetErrorString", CCL, const char *, (int)) \
    ROW(ccl_last_error, "ncclGetLastError", "ncclGetLastError", CCL, const char *, (uint64_t)) \
    ROW(ccl_init, "ncclCommInitRank", "ncclCommInitRank", CCL, int, (uint64_t *, int, struct sm_unique_id, int)) \
    ROW(ccl_init_config, "ncclCommInitRankConfig", "ncclCommInitRankConfig", CCL, int, (uint64_t *, int, struct sm_unique_id, int, struct sm_ccl_config *)) \
    ROW(ccl_split, "ncclCommSplit", "ncclCommSplit", CCL, int, (uint64_t, int, int, uint64_t *, struct sm_ccl_config *)) \
    ROW(ccl_shrink, "ncclCommShrink", "ncclCommShrink", CCL, int, (uint64_t, int *, int, uint64_t *, struct sm_ccl_config *, int)) \
    ROW(ccl_grow, "ncclCommGrow", "ncclCommGrow", CCL, int, (uint64_t, int, const struct sm_unique_id *, int, uint64_t *, struct sm_ccl_config *)) \
    ROW(ccl_grow_id, "ncclCommGetUniqueId", "ncclCommGetUniqueId", CCL, int, (uint64_t, struct sm_unique_id *)) \
    ROW(ccl_revoke, "ncclCommRevoke", "ncclCommRevoke", CCL, int, (uint64_t, int)) \
    ROW(ccl_finalize, "ncclCommFinalize", "ncclCommFinalize", CCL, int, (uint64_t)) \
    ROW(ccl_destroy, "ncclCommDestroy", "ncclCommDestroy", CCL, int, (uint64_t)) \
    ROW(ccl_abort, "ncclCommAbort", "ncclCommAbort", CCL, int, (uint64_t)) \
    ROW(ccl_async_error, "ncclCommGetAsyncError", "ncclCommGetAsyncError", CCL, int, (uint64_t, int *)) \
    ROW(ccl_count, "ncclCommCount", "ncclCommCount", CCL, int, (uint64_t, int *)) \
    ROW(ccl_rank, "ncclCommUserRank", "ncclCommUserRank", CCL, int, (uint64_t, int *)) \
    ROW(ccl_all_reduce, "ncclAllReduce", "ncclAllReduce", CCL, int, (uint64_t, uint64_t, size_t, int, int, uint64_t, uint64_t)) \
    ROW(ccl_broadcast, "ncclBroadcast", "ncclBroadcast", CCL, int, (uint64_t, uint64_t, size_t, int, int, uint64_t, uint64_t)) \
    ROW(ccl_reduce, "ncclReduce", "ncclReduce", CCL, int, (uint64_t, uint64_t, size_t, int, int, int, uint64_t, uint64_t)) \
    ROW(ccl_all_gather, "ncclAllGather", "ncclAllGather", CCL, int, (uint64_t, uint64_t, size_t, int, uint64_t, uint64_t)) \
    ROW(ccl_reduce_scatter, "ncclReduceScatter", "ncclReduceScatter", CCL, int, (uint64_t, uint64_t, size_t, int, int, uint64_t, uint64_t)) \
    ROW(ccl_send, "ncclSend", "ncclSend", CCL, int, (uint64_t, size_t, int, int, uint64_t, uint64_t)) \
    ROW(ccl_recv, "ncclRecv", "ncclRecv", CCL, int, (uint64_t, size_t, int, int, uint64_t, uint64_t)) \
    ROW(ccl_group_start, "ncclGroupStart", "ncclGroupStart", CCL, int, (void)) \
    ROW(ccl_group_end, "ncclGroupEnd", "ncclGroupEnd", CCL, int, (void)) \
    ROW(ccl_register, "ncclCommRegister", "ncclCommRegister", CCL, int, (uint64_t, uint64_t, size_t, uint64_t *)) \
    ROW(ccl_deregister, "ncclCommDeregister", "ncclCommDeregister", CCL, int, (uint64_t, uint64_t)) \
    ROW(ccl_mem_alloc, "ncclMemAlloc", "ncclMemAlloc", CCL, int, (uint64_t *, size_t)) \
    ROW(ccl_mem_free, "ncclMemFree", "ncclMemFree", CCL, int, (uint64_t))
/* clang-format on */

/* SM_S_memory_create and so on: places in the table. */
enum sm_symbol_id {
#define SM_ROW(neutral, hip, cuda, library, returns, arguments) SM_S_##neutral,
    SM_SYMBOLS(SM_ROW)
#undef SM_ROW
        SM_SYMBOL_COUNT
};

/* sm_memory_create_fn and so on: their types. */
#define SM_ROW(neutral, hip, cuda, library, returns, arguments)                                    \
    typedef returns(*sm_##neutral##_fn) arguments;
SM_SYMBOLS(SM_ROW)
#undef SM_ROW

#endif
