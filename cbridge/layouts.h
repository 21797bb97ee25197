/* Structs and numbers of the libraries' binary interfaces, the same in all of them unless it says
 * otherwise. tests/gpu/real holds them against the libraries' own headers.
 */
#ifndef SLURMMESH_LAYOUTS_H
#define SLURMMESH_LAYOUTS_H
#include <stddef.h>
#include <stdint.h>

/* hipMemLocation, CUmemLocation */
struct sm_location {
    int type; /* SM_LOCATION_DEVICE */
    int id;
};

/* hipMemAllocationProp (5.7 and later), CUmemAllocationProp */
struct sm_allocation {
    int type;    /* SM_ALLOCATION_PINNED */
    int handles; /* SM_HANDLE_POSIX_FD */
    struct sm_location location;
    void *win32_meta_data;
    struct {
        unsigned char compression;
        unsigned char rdma; /* gpuDirectRDMACapable */
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

/* hipMemAccessDesc, CUmemAccessDesc */
struct sm_access_right {
    struct sm_location location;
    int flags; /* enum sm_access */
};

/* hipUUID, CUuuid */
struct sm_uuid {
    unsigned char bytes[16];
};

/* ncclUniqueId */
struct sm_unique_id {
    unsigned char bytes[128];
};

/* The beginning of ncclConfig_t, as it was in 2.14; later libraries read `version` and take their
 * defaults for what came after. */
struct sm_ccl_config {
    size_t size;
    unsigned magic;
    unsigned version;
    int blocking;
};

#define SM_CCL_CONFIG_MAGIC 0xcafebeefU /* no int: no enumerator */

enum {
    SM_LOCATION_DEVICE = 1,
    SM_ALLOCATION_PINNED = 1,
    SM_HANDLE_POSIX_FD = 1,
    SM_RANGE_HANDLE_DMABUF = 1,
    SM_GRANULARITY_MINIMUM = 0,
    SM_GRANULARITY_RECOMMENDED = 1,
    SM_STREAM_NON_BLOCKING = 1,
    SM_HIP_COPY_DEFAULT = 4, /* either side's place is told by its address */
    SM_CCL_CONFIG_VERSION = 21400,

    SM_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    SM_POINTER_ATTRIBUTE_IS_MANAGED = 8,
    SM_POINTER_ATTRIBUTE_DEVICE = 9,

    SM_HIP_ATTRIBUTE_VMM = 89, /* HIP 5.3; the next two 7.1 */
    SM_HIP_ATTRIBUTE_DMABUF = 93,
    SM_HIP_ATTRIBUTE_RDMA = 94,
    SM_CUDA_ATTRIBUTE_VMM = 102,
    SM_CUDA_ATTRIBUTE_RDMA = 110,
    SM_CUDA_ATTRIBUTE_DMABUF = 124,

    /* Error codes: the same in HIP and CUDA. */
    SM_GPU_INVALID_VALUE = 1,
    SM_GPU_NOT_READY = 600,
    SM_GPU_NOT_SUPPORTED = 801,

    /* hipRuntimeGetVersion */
    SM_HIP_5_7 = 50700000, /* the layout above */
    SM_HIP_6_0 = 60000000, /* hipMemoryType as CUDA's */
    SM_HIP_7_1 = 70100000  /* hipMemImportFromShareableHandle takes the descriptor by value */
};

_Static_assert(sizeof(struct sm_allocation) == 32, "hipMemAllocationProp");
_Static_assert(offsetof(struct sm_allocation, location) == 8, "hipMemAllocationProp");
_Static_assert(offsetof(struct sm_allocation, win32_meta_data) == 16, "hipMemAllocationProp");
_Static_assert(offsetof(struct sm_allocation, flags.rdma) == 25, "hipMemAllocationProp");
_Static_assert(sizeof(struct sm_access_right) == 12, "hipMemAccessDesc");
_Static_assert(sizeof(struct sm_unique_id) == 128, "ncclUniqueId");
_Static_assert(offsetof(struct sm_ccl_config, blocking) == 16, "ncclConfig_t");
_Static_assert(sizeof(void *) == 8, "handles are passed as 64-bit numbers");

#endif
