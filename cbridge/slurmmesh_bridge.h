/* The C face of slurmmesh: device memory and collectives, the same names over ROCm and over CUDA.
 *
 * Nothing is linked: sm_load finds libraries at run time, and each function of theirs may be
 * missing (sm_has). This file is the contract; Python's declarations are read from it (cffi), so it
 * holds plain declarations only.
 *
 * Rules that hold for every function that takes an sm_error:
 *   - It returns 0, or a code that is not 0. Positive codes are the library's own (a hipError_t,
 *     CUresult, cudaError_t, hsa_status_t or ncclResult_t, see sm_error.origin), negative ones are
 *     of enum sm_code. `error` is the caller's, may be NULL, and is written only on failure.
 *   - Out parameters are written only on success.
 *   - Any thread may call it at any time. What two threads do to one communicator or one mapping at
 *     once is the library's matter, except that sm_ccl_abort and sm_ccl_async_error may be called
 *     while another thread is inside a call on the same communicator.
 *   - The device that the calling thread has set is the same afterwards (sm_device_set excepted).
 *   - In a child forked after its parent had used the GPU library it returns SM_E_FORKED and
 *     touches nothing.
 * Addresses, handles, streams and communicators are opaque 64-bit numbers. 0 is no such thing,
 * except that stream 0 is the library's default stream. Sizes are in bytes.
 */
#ifndef SLURMMESH_BRIDGE_H
#define SLURMMESH_BRIDGE_H
#include <stddef.h>
#include <stdint.h>

/* ------------------------------------------------------------------ errors */

/* Failures that are the bridge's own. */
enum sm_code {
    SM_OK = 0,
    SM_E_NO_LIBRARY = -1, /* no library was found; sm_searched tells where it was looked for */
    SM_E_NO_SYMBOL = -2,  /* the library has no such function: symbol and library say which */
    SM_E_TOO_OLD = -3,    /* the library is too old for this: HIP below 5.7 for memory mapping */
    SM_E_NOT_LOADED = -4, /* sm_load has not succeeded yet */
    SM_E_LOADED = -5,     /* another platform or another library is loaded already */
    SM_E_FORKED = -6,     /* the parent had used the GPU library before it forked this process */
    SM_E_ARGUMENT = -7,   /* an argument that no library could take */
    SM_E_NO_MEMORY = -8   /* no host memory for the bridge's own records */
};

/* Who a failure comes from. */
enum sm_origin {
    SM_ORIGIN_BRIDGE = 0,
    SM_ORIGIN_GPU = 1, /* libamdhip64 or libcuda, or libcudart for its version */
    SM_ORIGIN_CCL = 2, /* librccl or libnccl */
    SM_ORIGIN_HSA = 3  /* libhsa-runtime64 */
};

/* What failed. The texts end with a zero byte and are cut where they are too long. */
typedef struct sm_error {
    int code;
    int origin;        /* enum sm_origin */
    char symbol[64];   /* the library's function, as in hipMemCreate; may be empty */
    char library[512]; /* path of the library it belongs to; may be empty */
    char text[1024];   /* what happened, in words */
} sm_error;

/* ------------------------------------------------------------------ libraries */

enum sm_platform {
    SM_PLATFORM_NONE = 0,
    SM_PLATFORM_ROCM = 1,
    SM_PLATFORM_CUDA = 2,
    SM_PLATFORM_AUTO = 3 /* for sm_load only: ROCm if it is there, else CUDA */
};

/* The libraries a platform consists of. */
enum sm_library {
    SM_LIBRARY_GPU = 0,     /* libamdhip64 | libcuda */
    SM_LIBRARY_RUNTIME = 1, /* libamdhip64 | libcudart: only for its version, may be missing */
    SM_LIBRARY_CCL = 2,     /* librccl | libnccl: may be missing */
    SM_LIBRARY_HSA = 3      /* libhsa-runtime64 | none: may be missing */
};

/* Find and open the libraries of a platform; they stay open for the life of the process.
 *
 * Order for each: the path given; a copy that this process has loaded already (as torch does); the
 * dynamic loader's own search; `folders`. A path that is given is the only one tried. A GPU library
 * is required, the others may be missing. Loading again what is loaded is fine.
 *   platform     enum sm_platform, not NONE
 *   gpu_library, ccl_library   paths or NULL
 *   folders      more folders to look in, between colons; or NULL
 * Errors: SM_E_NO_LIBRARY, SM_E_LOADED, SM_E_ARGUMENT.
 */
int sm_load(int platform, const char *gpu_library, const char *ccl_library, const char *folders,
            sm_error *error);

/* enum sm_platform of what is loaded; NONE before that. */
int sm_loaded_platform(void);

/* Path of a library that is loaded (enum sm_library); empty where there is none. Valid for ever. */
const char *sm_library_path(int library);

/* One line for each attempt of the last sm_load: its name, and what the dynamic loader said.
 * Copies at most `size` bytes with the zero byte; returns the bytes that all of it takes. */
size_t sm_searched(char *text, size_t size);

/* The version text of slurmmesh's own emulator of these libraries (its function `const char
 * *slurmmesh_emulator_version(void)` in the GPU library); empty for real ones. Valid for ever. */
const char *sm_emulator_version(void);

/* A row of the table of functions. The texts are valid for ever. */
typedef struct sm_symbol_row {
    const char *neutral; /* as sm_has takes it: memory_create */
    const char *hip;     /* hipMemCreate; empty where ROCm has no such function */
    const char *cuda;    /* cuMemCreate; empty where CUDA has no such function */
    const char *type;    /* in C, as slurmmesh calls it: int (uint64_t, size_t) */
    int library;         /* enum sm_library */
    int present;         /* 1 if the loaded library has it */
} sm_symbol_row;

/* Row `index` (from 0) of the table: 0, or SM_E_ARGUMENT past its end. */
int sm_symbol(int index, sm_symbol_row *row);

/* 1 if the loaded library has the function with this neutral name, else 0. */
int sm_has(const char *neutral);

/* ------------------------------------------------------------------ devices */

/* Questions about a device. Answers: 1 yes, 0 no, -1 where this platform does not tell. */
enum sm_attribute {
    SM_ATTRIBUTE_VMM = 0,   /* virtual memory management: sm_memory_create and friends */
    SM_ATTRIBUTE_RDMA = 1,  /* such memory can be registered with a NIC by its address */
    SM_ATTRIBUTE_DMABUF = 2 /* a range of its memory can be had as a dma-buf */
};

/* Start the GPU library. Other functions do it themselves; to learn why there is no device. */
int sm_init(sm_error *error);
/* HIP: major * 10000000 + minor * 100000 + patch. CUDA: major * 1000 + minor * 10. */
int sm_runtime_version(int *version, sm_error *error);
int sm_driver_version(int *version, sm_error *error);
/* Fails with the library's own code where there is no device (100 or 101). */
int sm_device_count(int *count, sm_error *error);
int sm_device_name(int device, char *text, size_t size, sm_error *error);
/* As the masks take it: GPU-… */
int sm_device_uuid(int device, char *text, size_t size, sm_error *error);
/* domain:bus:device.function */
int sm_device_pci_address(int device, char *text, size_t size, sm_error *error);
int sm_device_memory(int device, size_t *total, sm_error *error);
int sm_device_attribute(int device, int attribute, int *value, sm_error *error);
/* Make it the calling thread's device, as torch.cuda.set_device does. */
int sm_device_set(int device, sm_error *error);
/* Wait until all work queued on the device is done. */
int sm_device_synchronize(int device, sm_error *error);

/* Streams do not wait for the default stream. */
int sm_stream_create(int device, uint64_t *stream, sm_error *error);
int sm_stream_destroy(uint64_t stream, sm_error *error);
int sm_stream_synchronize(uint64_t stream, sm_error *error);
/* busy: 1 while work is queued. A failure of queued work is told here as the library tells it.
 * device: the one whose default stream is meant where stream is 0. */
int sm_stream_query(int device, uint64_t stream, int *busy, sm_error *error);

/* ------------------------------------------------------------------ memory */

enum sm_access { SM_ACCESS_NONE = 0, SM_ACCESS_READ = 1, SM_ACCESS_READ_WRITE = 3 };

enum sm_pointer {
    SM_POINTER_UNKNOWN = 0, /* not known to the library: plain host memory, or no memory */
    SM_POINTER_HOST = 1,
    SM_POINTER_DEVICE = 2,
    SM_POINTER_MANAGED = 3
};

/* Sizes and addresses of the next seven are multiples of this, which is what the library recommends
 * and may be more than it needs. rdma: 1 for memory that a NIC is to reach. These and import and
 * export refuse HIP below 5.7 (SM_E_TOO_OLD). */
int sm_memory_granularity(int device, int rdma, size_t *bytes, sm_error *error);
/* Memory of a device without an address. It lives until it is released here and wherever it was
 * imported, and unmapped. Where the library can export none, it is made all the same. */
int sm_memory_create(int device, size_t size, int rdma, uint64_t *handle, sm_error *error);
int sm_memory_release(uint64_t handle, sm_error *error);
/* A range of addresses without memory. alignment 0: the granularity. hint 0: anywhere. */
int sm_memory_reserve(size_t size, size_t alignment, uint64_t hint, uint64_t *address,
                      sm_error *error);
int sm_memory_address_free(uint64_t address, size_t size, sm_error *error);
/* Put all of a handle's memory at an address within a reserved range. Nobody may touch it before
 * sm_memory_set_access. */
int sm_memory_map(uint64_t address, size_t size, uint64_t handle, sm_error *error);
int sm_memory_unmap(uint64_t address, size_t size, sm_error *error);
/* access: enum sm_access, of one device. */
int sm_memory_set_access(uint64_t address, size_t size, int device, int access, sm_error *error);
/* A file descriptor for another process (send it over a unix socket), close-on-exec; the caller
 * closes it. */
int sm_memory_export_fd(uint64_t handle, int *fd, sm_error *error);
/* device: the one that is to reach it. The caller keeps fd, and may close it once the memory is mapped
 * and accessible (some versions of ROCm look at it only then). */
int sm_memory_import_fd(int device, int fd, uint64_t *handle, sm_error *error);
/* A dma-buf of an address range, for a NIC; close-on-exec; the caller closes it. The range starts
 * `offset` bytes into the dma-buf. ROCm without hipMemGetHandleForAddressRange: by HSA, which knows
 * nothing of mapped memory. There sm_memory_export_fd gives a dma-buf, of all that a handle has. */
int sm_memory_dmabuf_fd(uint64_t address, size_t size, int *fd, uint64_t *offset, sm_error *error);
/* The allocation that an address lies in. */
int sm_memory_address_range(uint64_t address, uint64_t *start, size_t *size, sm_error *error);
/* Host or device on either side. Returns when the bytes are there. */
int sm_memory_copy(int device, uint64_t to, uint64_t from, size_t size, sm_error *error);
int sm_memory_copy_async(int device, uint64_t to, uint64_t from, size_t size, uint64_t stream,
                         sm_error *error);
/* value: 0 to 255. Returns when the bytes are there. */
int sm_memory_fill(int device, uint64_t address, int value, size_t size, sm_error *error);
/* kind: enum sm_pointer. device: -1 where kind is UNKNOWN or HOST. */
int sm_pointer_kind(uint64_t address, int *kind, int *device, sm_error *error);

/* ------------------------------------------------------------------ memory with several users */

/* A reserved range with what is mapped in it, freed when the last holder drops it: in C, without
 * Python's lock, on whatever thread that is. Before that the device is waited for. */
typedef struct sm_owner sm_owner;

/* Takes over a range reserved with sm_memory_reserve. The caller holds the owner once. */
int sm_owner_new(int device, uint64_t address, size_t capacity, sm_owner **owner, sm_error *error);
/* Takes over an extent mapped within the range; and its handle, which is released with it, unless
 * that is 0 (released by the caller already). */
int sm_owner_add(sm_owner *owner, uint64_t address, size_t size, uint64_t handle, sm_error *error);
/* One holder less. The last one frees all: unmaps, releases, gives back the range. It goes on past
 * a failure, and the first one is told. In a forked child nothing of the device is touched. */
int sm_owner_drop(sm_owner *owner, sm_error *error);
/* Holders at this moment: 1 means that no tensor uses the memory. */
int sm_owner_holders(sm_owner *owner);
/* Owners that are not freed yet, in this process. */
int sm_owners(void);

enum sm_dlpack_device { SM_DLPACK_CPU = 1, SM_DLPACK_CUDA = 2, SM_DLPACK_ROCM = 10 };
enum sm_dlpack_type {
    SM_DLPACK_INT = 0,
    SM_DLPACK_UINT = 1,
    SM_DLPACK_FLOAT = 2,
    SM_DLPACK_BFLOAT = 4,
    SM_DLPACK_COMPLEX = 5,
    SM_DLPACK_BOOL = 6,
    SM_DLPACK_FLOAT8_E4M3FN = 10,
    SM_DLPACK_FLOAT8_E4M3FNUZ = 11,
    SM_DLPACK_FLOAT8_E5M2 = 12,
    SM_DLPACK_FLOAT8_E5M2FNUZ = 13
};

/* A DLManagedTensor (DLPack, unversioned: for a PyCapsule named "dltensor") over memory of an
 * owner, dense, row by row. It holds the owner until its deleter is called.
 *   type, bits: of an element; dimensions, shape: up to 64
 */
int sm_dlpack_new(sm_owner *owner, uint64_t address, int dlpack_device, int device, int type,
                  int bits, int dimensions, const int64_t *shape, void **tensor, sm_error *error);
/* Call the deleter: for a tensor that nobody took. */
void sm_dlpack_delete(void *tensor);
/* Deleters may wait for the device, and whoever calls one may hold a lock without which nobody can
 * end that wait: have `let_go` called before, and `take_back` with its answer afterwards. To be set
 * before there is a tensor. */
void sm_dlpack_around(void *(*let_go)(void), void (*take_back)(void *));

/* ------------------------------------------------------------------ collectives */

enum sm_type {
    SM_TYPE_INT8 = 0,
    SM_TYPE_UINT8 = 1,
    SM_TYPE_INT32 = 2,
    SM_TYPE_UINT32 = 3,
    SM_TYPE_INT64 = 4,
    SM_TYPE_UINT64 = 5,
    SM_TYPE_FLOAT16 = 6,
    SM_TYPE_FLOAT32 = 7,
    SM_TYPE_FLOAT64 = 8,
    SM_TYPE_BFLOAT16 = 9,
    SM_TYPE_FLOAT8_E4M3 = 10, /* NCCL 2.24 and later */
    SM_TYPE_FLOAT8_E5M2 = 11
};

enum sm_reduction {
    SM_REDUCE_SUM = 0,
    SM_REDUCE_PRODUCT = 1,
    SM_REDUCE_MAX = 2,
    SM_REDUCE_MIN = 3,
    SM_REDUCE_AVERAGE = 4
};

/* What sm_ccl_async_error tells besides the library's error codes. */
enum sm_ccl_state { SM_CCL_READY = 0, SM_CCL_IN_PROGRESS = 7 };

/* major * 10000 + minor * 100 + patch. */
int sm_ccl_version(int *version, sm_error *error);
/* Fills 128 bytes. The process that made it must live until all ranks are in. */
int sm_ccl_unique_id(unsigned char *id, sm_error *error);
/* What the library last said in words, of a communicator or (0) of any. */
int sm_ccl_last_error_text(uint64_t comm, char *text, size_t size, sm_error *error);

/* Below, "in progress" counts as success: on a communicator that does not block, ask
 * sm_ccl_async_error until it says SM_CCL_READY, before the next call.
 *
 * Where a call makes a communicator, the library keeps the pointer it is given and writes to it
 * until the new communicator is ready or was aborted, from a thread of its own: it must stay valid
 * so long. Such a call may leave 0 there at first: then ask for the state of the communicator that
 * it is made from. */

/* Join `size` ranks. blocking 0: returns at once (SM_E_NO_SYMBOL where the library cannot). */
int sm_ccl_init(uint64_t *comm, const unsigned char *id, int rank, int size, int device,
                int blocking, sm_error *error);
/* By color and in order of key. color -1: this rank gets comm 0. */
int sm_ccl_split(uint64_t comm, int color, int key, uint64_t *part, sm_error *error);
/* Without some ranks; called by the others only. abort: 1 ends what is under way first. */
int sm_ccl_shrink(uint64_t comm, const int *without, int count, int abort, uint64_t *rest,
                  sm_error *error);
/* To `size` ranks. A rank that is in already gives its comm and rank -1; one that joins gives
 * comm 0, its rank and its device, and does not block. id: 128 bytes made by sm_ccl_grow_id, needed
 * by those that join and by the rank that made it, NULL for others. */
int sm_ccl_grow(uint64_t comm, int size, const unsigned char *id, int rank, int device,
                uint64_t *grown, sm_error *error);
int sm_ccl_grow_id(uint64_t comm, unsigned char *id, sm_error *error);
/* End what is under way, so that the communicator can be shrunk or destroyed without waiting. */
int sm_ccl_revoke(uint64_t comm, sm_error *error);
/* Flush what is under way; the communicator is destroyed afterwards. */
int sm_ccl_finalize(uint64_t comm, sm_error *error);
int sm_ccl_destroy(uint64_t comm, sm_error *error);
/* End it without waiting for anybody, from any thread; frees it: comm is not to be used again. */
int sm_ccl_abort(uint64_t comm, sm_error *error);
/* state: SM_CCL_READY, SM_CCL_IN_PROGRESS or the library's error code. */
int sm_ccl_async_error(uint64_t comm, int *state, sm_error *error);
int sm_ccl_count(uint64_t comm, int *size, sm_error *error);
int sm_ccl_rank(uint64_t comm, int *rank, sm_error *error);

/* Counts are in elements; type: enum sm_type, op: enum sm_reduction. They enqueue on the stream and
 * return. All ranks call the same with the same count (send and recv: both peers). */
int sm_ccl_all_reduce(uint64_t from, uint64_t to, size_t count, int type, int op, uint64_t comm,
                      uint64_t stream, sm_error *error);
int sm_ccl_broadcast(uint64_t from, uint64_t to, size_t count, int type, int root, uint64_t comm,
                     uint64_t stream, sm_error *error);
int sm_ccl_reduce(uint64_t from, uint64_t to, size_t count, int type, int op, int root,
                  uint64_t comm, uint64_t stream, sm_error *error);
/* count: what each rank gives. */
int sm_ccl_all_gather(uint64_t from, uint64_t to, size_t count, int type, uint64_t comm,
                      uint64_t stream, sm_error *error);
/* count: what each rank gets. */
int sm_ccl_reduce_scatter(uint64_t from, uint64_t to, size_t count, int type, int op,
                          uint64_t comm, uint64_t stream, sm_error *error);
int sm_ccl_send(uint64_t from, size_t count, int type, int peer, uint64_t comm, uint64_t stream,
                sm_error *error);
int sm_ccl_recv(uint64_t to, size_t count, int type, int peer, uint64_t comm, uint64_t stream,
                sm_error *error);
/* Calls between start and end, of one thread, go out as one. */
int sm_ccl_group_start(sm_error *error);
int sm_ccl_group_end(sm_error *error);
/* A buffer that is used often; registration 0 from a library that has no use for it. */
int sm_ccl_register(uint64_t comm, uint64_t address, size_t size, uint64_t *registration,
                    sm_error *error);
int sm_ccl_deregister(uint64_t comm, uint64_t registration, sm_error *error);
int sm_ccl_mem_alloc(int device, size_t size, uint64_t *address, sm_error *error);
int sm_ccl_mem_free(int device, uint64_t address, sm_error *error);

#endif
