/**
 * What the files of the GPU emulator know of each other: devices, memory and streams in host
 * memory, under names of no vendor. hip.c, cuda.c and the others put the vendors' names on it.
 *
 * Statuses have the numbers that HIP and CUDA share. Everything is process-wide and thread safe.
 */
#ifndef SLURMMESH_EMULATOR_H
#define SLURMMESH_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Seen outside of the library; all else is hidden. */
#define EMU_EXPORT __attribute__((visibility("default")))
/** The name of a call on the platform that is being built. */
#ifdef EMULATOR_CUDA
#define EMU_NAME(hip_name, cuda_name) cuda_name
#else
#define EMU_NAME(hip_name, cuda_name) hip_name
#endif

enum emu_status {
    EMU_OK = 0,
    EMU_INVALID_VALUE = 1,
    EMU_OUT_OF_MEMORY = 2,
    EMU_NOT_INITIALIZED = 3,
    EMU_NO_DEVICE = 100,
    EMU_INVALID_DEVICE = 101,
    EMU_INVALID_CONTEXT = 201,
    EMU_ALREADY_MAPPED = 208,
    EMU_NOT_MAPPED = 211,
    EMU_OS_ERROR = 304,
    EMU_INVALID_HANDLE = 400,
    EMU_NOT_FOUND = 500,
    EMU_NOT_READY = 600,
    EMU_ILLEGAL_ADDRESS = 700,
    EMU_NOT_SUPPORTED = 801,
    EMU_UNKNOWN = 999,
};

/** The smallest unit of device memory, in bytes, as on an MI300. */
#define EMU_GRANULARITY ((size_t)2 << 20)
#define EMU_MAX_DEVICES 64

/** "hipSuccess" or "CUDA_SUCCESS"; NULL for a number that no status has. */
const char *emu_status_name(int status);
/** A sentence on a status, with EMULATOR in it; NULL for a number that no status has. */
const char *emu_status_text(int status);

/** A number from the environment: SLURMMESH_EMULATOR_<name>, or the fallback. */
uint64_t emu_setting(const char *name, uint64_t fallback);
/** The text of SLURMMESH_EMULATOR_<name>, or the fallback. */
const char *emu_setting_text(const char *name, const char *fallback);
/**
 * A version from the environment, "7.1" or "7.1.2" or a bare number as the library reports it:
 * major * major_unit + minor * minor_unit + patch.
 */
int emu_setting_version(const char *name, const char *fallback, int major_unit, int minor_unit);
/** The HIP version that is emulated, as hipRuntimeGetVersion reports it (70100000: 7.1.0). */
int emu_hip_version(void);
/**
 * HIP 7.12 to 7.14 gives away the descriptor that it keeps of an allocation, and does not keep one
 * of what it imports, but looks at the caller's when access is set.
 */
bool emu_lends_descriptors(void);

/* Devices: device.c */

/** Starts the emulator in this process. EMU_NO_DEVICE if it has none. */
int emu_initialize(void);
/** EMU_OK in a process that initialized it itself; EMU_NOT_INITIALIZED in others, forks too. */
int emu_ready(void);
/** Devices that the masks (ROCR_, HIP_ or CUDA_VISIBLE_DEVICES) leave. */
int emu_device_count(void);
bool emu_device_valid(int device);
/** "slurmmesh EMULATOR (no GPU) 0"; the number is that without masks. */
int emu_device_name(int device, char *name, int length);
/** 16 bytes: on HIP the digits of the serial number, on CUDA as binary. */
int emu_device_uuid(int device, unsigned char uuid[16]);
/** "0000:e0:00.0" */
int emu_device_pci_address(int device, char *text, int length);
int emu_device_pci_bus(int device);
int emu_device_total(int device, size_t *bytes);
int emu_device_free(int device, size_t *bytes);
/** Takes memory of a device out of what is free: EMU_OUT_OF_MEMORY if there is less. */
int emu_device_charge(int device, size_t bytes);
void emu_device_refund(int device, size_t bytes);
/** The device of this thread, 0 at first. */
int emu_device_current(void);
int emu_device_make_current(int device);

/* Memory: memory.c, ranges.c. Sizes and addresses are multiples of the granularity. */

/** As hipMemAllocationProp and CUmemAllocationProp: 32 bytes. */
struct emu_properties {
    int type;
    int handle_types;
    int location_type;
    int location_id;
    void *win32;
    unsigned char compression;
    unsigned char rdma;
    unsigned short usage;
    unsigned char reserved[4];
};
/** As hipMemAccessDesc and CUmemAccessDesc: 12 bytes. */
struct emu_access {
    int location_type;
    int location_id;
    int flags;
};
/** Physical memory: a memfd, kept by its handles and its mappings. */
struct emu_allocation {
    struct emu_allocation *next;
    uint64_t id; /**< What the caller has as its handle. */
    int fd;
    bool lent; /**< The descriptor is the caller's, who may close it. */
    int charged_to; /**< The device that gets its memory back, -1 for imported memory. */
    size_t size;
    struct emu_properties properties;
    unsigned handles;
    unsigned mappings;
};
/** Mapped memory, within one reservation. */
struct emu_mapping {
    struct emu_mapping *next;
    uintptr_t address;
    size_t size;
    int flags; /**< 0, 1 (read) or 3 (read and write). */
    struct emu_allocation *allocation;
};

int emu_memory_check(const struct emu_properties *properties);
int emu_memory_create(uint64_t *handle, size_t size, const struct emu_properties *properties);
int emu_memory_release(uint64_t handle);
int emu_memory_properties(uint64_t handle, struct emu_properties *properties);
/** One more handle of what is mapped at an address. */
int emu_memory_retain(uint64_t *handle, const void *address);
int emu_memory_export(uint64_t handle, int *fd);
int emu_memory_import(uint64_t *handle, int fd, int device);

int emu_range_reserve(void **address, size_t size, size_t alignment, void *hint);
int emu_range_free(void *address, size_t size);
int emu_range_map(void *address, size_t size, size_t offset, uint64_t handle);
int emu_range_unmap(void *address, size_t size);
int emu_range_set_access(void *address, size_t size, const struct emu_access *access, size_t count);
int emu_range_get_access(const void *address, int device, unsigned long long *flags);
/** Base and size of the mapping that an address is in, and its device; each may be NULL. */
int emu_range_find(const void *address, void **base, size_t *size, int *device);
/**
 * A descriptor of the memory behind a range and the offset of the range in it. With offset NULL
 * the descriptor must begin where the range does.
 */
int emu_range_dmabuf(const void *address, size_t size, int *fd, uint64_t *offset);
/**
 * Whether a copy may touch a range: host memory always, device memory if all of it is mapped and
 * readable (or writable). *is_device says which.
 */
int emu_range_touch(const void *address, size_t size, bool write, bool *is_device);
/** Device memory as hipMalloc gives it: created, reserved, mapped and accessible at once. */
int emu_range_allocate(void **address, size_t size, int device);
int emu_range_release(void *address);

/* Between memory.c and ranges.c, under emu_memory_lock. */
void emu_memory_lock(void);
void emu_memory_unlock(void);
struct emu_allocation *emu_memory_find(uint64_t handle);
void emu_memory_unmapped(struct emu_allocation *allocation);

/* Streams: stream.c. NULL, 1 and 2 are the stream of the current device. */

struct emu_stream;
int emu_stream_create(struct emu_stream **stream, int device, bool waits_for_default);
int emu_stream_destroy(struct emu_stream *stream);
int emu_stream_query(struct emu_stream *stream);
int emu_stream_synchronize(struct emu_stream *stream);
/** Waits for all work of a device; with only_blocking for what a plain copy waits for. */
int emu_device_synchronize(int device, bool only_blocking);

/* Copies: copy.c */

/** Kinds: host to host 0, to device 1, from device 2, device to device 3, any 4. */
int emu_copy(void *to, const void *from, size_t size, int kind);
int emu_copy_async(void *to, const void *from, size_t size, int kind, struct emu_stream *stream);
int emu_fill(void *to, int value, size_t size);
int emu_fill_async(void *to, int value, size_t size, struct emu_stream *stream);

/* For the other libraries of the emulator: exported. */

/** Says what a library is: whoever finds it has no GPU before him. */
EMU_EXPORT extern const char slurmmesh_emulator[];
EMU_EXPORT const char *slurmmesh_emulator_version(void);
/** Work for a stream; it runs after what the stream had before. */
EMU_EXPORT int slurmmesh_emulator_submit(void *stream, void (*run)(void *), void *argument);
EMU_EXPORT int slurmmesh_emulator_current_device(void);
EMU_EXPORT int slurmmesh_emulator_allocate(void **address, size_t size);
EMU_EXPORT int slurmmesh_emulator_release(void *address);
EMU_EXPORT int slurmmesh_emulator_dmabuf(const void *address, size_t size, int *fd, uint64_t *offset);
/** What is alive, for tests that look for leaks. */
struct emu_alive {
    uint64_t allocations;
    uint64_t mappings;
    uint64_t reservations;
    uint64_t streams;
};
EMU_EXPORT void slurmmesh_emulator_alive(struct emu_alive *alive);
void emu_memory_alive(struct emu_alive *alive);
void emu_range_alive(struct emu_alive *alive);
void emu_stream_alive(struct emu_alive *alive);

#endif
