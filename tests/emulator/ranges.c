/** Address ranges: reserved as inaccessible memory, mapped onto the memfd of an allocation. */
#include "emulator.h"

#include <fcntl.h>
#include <linux/udmabuf.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

struct reservation {
    struct reservation *next;
    uintptr_t address;
    size_t size;
    bool plain; /**< Made by emu_range_allocate. */
};

static struct reservation *reservations;
static struct emu_mapping *mappings; /* Newest first. */

static bool overlap(uintptr_t a, size_t a_size, uintptr_t b, size_t b_size)
{
    return a < b + b_size && b < a + a_size;
}

static bool within(uintptr_t a, size_t a_size, uintptr_t b, size_t b_size)
{
    return a >= b && a_size <= b_size && a - b <= b_size - a_size;
}

static struct reservation *reservation_around(uintptr_t address, size_t size)
{
    struct reservation *found = reservations;
    while (found && !within(address, size, found->address, found->size))
        found = found->next;
    return found;
}

static struct emu_mapping *mapping_at(uintptr_t address)
{
    struct emu_mapping *found = mappings;
    while (found && !within(address, 1, found->address, found->size))
        found = found->next;
    return found;
}

/** Whether a range is made of whole mappings, one after the other. */
static bool whole_mappings(uintptr_t address, size_t size)
{
    while (size) {
        struct emu_mapping *mapping = mapping_at(address);
        if (!mapping || mapping->address != address || mapping->size > size)
            return false;
        address += mapping->size;
        size -= mapping->size;
    }
    return true;
}

int emu_range_reserve(void **address, size_t size, size_t alignment, void *hint)
{
    if (!address || !size || size % EMU_GRANULARITY || (alignment & (alignment - 1)))
        return EMU_INVALID_VALUE;
    if (alignment < EMU_GRANULARITY)
        alignment = EMU_GRANULARITY;
    if (size + alignment < size)
        return EMU_OUT_OF_MEMORY;
    char *start = mmap(hint, size + alignment, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct reservation *made = malloc(sizeof *made);
    if (start == MAP_FAILED || !made) {
        if (start != MAP_FAILED)
            munmap(start, size + alignment);
        free(made);
        return EMU_OUT_OF_MEMORY;
    }
    size_t before = (size_t)(-(uintptr_t)start & (alignment - 1));
    if (before)
        munmap(start, before);
    munmap(start + before + size, alignment - before);
    *made = (struct reservation){.address = (uintptr_t)(start + before), .size = size};
    emu_memory_lock();
    made->next = reservations;
    reservations = made;
    emu_memory_unlock();
    *address = start + before;
    return EMU_OK;
}

int emu_range_free(void *address, size_t size)
{
    int status = EMU_INVALID_VALUE;
    emu_memory_lock();
    struct reservation **link = &reservations;
    while (*link && ((*link)->address != (uintptr_t)address || (*link)->size != size))
        link = &(*link)->next;
    struct reservation *found = *link;
    bool mapped = false;
    for (struct emu_mapping *one = mappings; found && one; one = one->next)
        mapped |= overlap(one->address, one->size, found->address, found->size);
    if (found && !mapped) {
        *link = found->next;
        munmap(address, size);
        free(found);
        status = EMU_OK;
    }
    emu_memory_unlock();
    return status;
}

/** With the lock held. */
static int map_locked(void *address, size_t size, struct emu_allocation *allocation)
{
    uintptr_t start = (uintptr_t)address;
    if (!allocation || size > allocation->size || !reservation_around(start, size))
        return EMU_INVALID_VALUE;
    for (struct emu_mapping *one = mappings; one; one = one->next)
        if (overlap(start, size, one->address, one->size))
            return EMU_NAME(EMU_INVALID_VALUE, EMU_ALREADY_MAPPED);
    struct emu_mapping *made = calloc(1, sizeof *made);
    if (!made || mmap(address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, allocation->fd, 0) ==
                     MAP_FAILED) {
        free(made);
        return EMU_OUT_OF_MEMORY;
    }
    *made = (struct emu_mapping){mappings, start, size, 0, allocation};
    mappings = made;
    allocation->mappings++;
    return EMU_OK;
}

int emu_range_map(void *address, size_t size, size_t offset, uint64_t handle)
{
    /* An offset is in the signature of both platforms, and both refuse it. */
    if (!address || !size || offset || (size | (uintptr_t)address) % EMU_GRANULARITY)
        return EMU_INVALID_VALUE;
    emu_memory_lock();
    int status = map_locked(address, size, emu_memory_find(handle));
    emu_memory_unlock();
    return status;
}

/** With the lock held; the range is whole mappings. */
static void unmap_locked(uintptr_t start, size_t size)
{
    mmap((void *)start, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
         -1, 0);
    for (struct emu_mapping **link = &mappings; *link;) {
        struct emu_mapping *one = *link;
        if (!within(one->address, one->size, start, size)) {
            link = &one->next;
            continue;
        }
        *link = one->next;
        emu_memory_unmapped(one->allocation);
        free(one);
    }
}

int emu_range_unmap(void *address, size_t size)
{
    if (!address || !size)
        return EMU_INVALID_VALUE;
    emu_memory_lock();
    bool whole = whole_mappings((uintptr_t)address, size);
    if (whole)
        unmap_locked((uintptr_t)address, size);
    emu_memory_unlock();
    return whole ? EMU_OK : EMU_INVALID_VALUE;
}

#ifndef EMULATOR_CUDA
/**
 * Whether HIP up to 7.2 takes a range for hipMemSetAccess: it adds up the mappings of the
 * reservation from the first on and wants to meet the size on its way, whatever the address.
 * So all extents of one size pass, and so does everything from the start of the reservation.
 */
static bool old_hip_takes(uintptr_t address, size_t size)
{
    const struct reservation *around = reservation_around(address, size);
    size_t sum = 0;
    for (uintptr_t at = around ? around->address : 0; sum < size;) {
        const struct emu_mapping *lowest = NULL;
        for (const struct emu_mapping *one = mappings; around && one; one = one->next)
            if (one->address >= at && within(one->address, one->size, around->address, around->size) &&
                (!lowest || one->address < lowest->address))
                lowest = one;
        if (!lowest)
            return false;
        sum += lowest->size;
        at = lowest->address + lowest->size;
    }
    return sum == size;
}
#endif

int emu_range_set_access(void *address, size_t size, const struct emu_access *access, size_t count)
{
    if (!address || !size || !access || !count)
        return EMU_INVALID_VALUE;
    int flags = 0;
    for (size_t i = 0; i < count; i++) {
        if (access[i].location_type != 1 ||
            (access[i].flags != 0 && access[i].flags != 1 && access[i].flags != 3))
            return EMU_INVALID_VALUE;
        if (!emu_device_valid(access[i].location_id))
            return EMU_NAME(EMU_INVALID_VALUE, EMU_INVALID_DEVICE);
        flags |= access[i].flags;
    }
    uintptr_t start = (uintptr_t)address;
    int protection = (flags & 1 ? PROT_READ : 0) | (flags & 2 ? PROT_WRITE : 0);
    emu_memory_lock();
    bool taken = whole_mappings(start, size);
#ifndef EMULATOR_CUDA
    taken = taken && (emu_hip_version() >= 70300000 || old_hip_takes(start, size));
#endif
    for (struct emu_mapping *one = mappings; taken && one; one = one->next)
        if (within(one->address, one->size, start, size) && one->allocation->lent)
            taken = fcntl(one->allocation->fd, F_GETFD) >= 0;
    if (taken && mprotect(address, size, protection))
        taken = false;
    for (struct emu_mapping *one = mappings; taken && one; one = one->next)
        if (within(one->address, one->size, start, size))
            one->flags = flags;
    emu_memory_unlock();
    return taken ? EMU_OK : EMU_INVALID_VALUE;
}

int emu_range_get_access(const void *address, int device, unsigned long long *flags)
{
    if (!flags)
        return EMU_INVALID_VALUE;
    if (!emu_device_valid(device))
        return EMU_INVALID_DEVICE;
    emu_memory_lock();
    const struct emu_mapping *found = mapping_at((uintptr_t)address);
    if (found)
        *flags = (unsigned long long)found->flags;
    emu_memory_unlock();
    return found ? EMU_OK : EMU_INVALID_VALUE;
}

int emu_range_find(const void *address, void **base, size_t *size, int *device)
{
    emu_memory_lock();
    const struct emu_mapping *found = mapping_at((uintptr_t)address);
    if (found && base)
        *base = (void *)found->address;
    if (found && size)
        *size = found->size;
    if (found && device)
        *device = found->allocation->properties.location_id;
    emu_memory_unlock();
    return found ? EMU_OK : EMU_NOT_FOUND;
}

int emu_memory_retain(uint64_t *handle, const void *address)
{
    if (!handle)
        return EMU_INVALID_VALUE;
    emu_memory_lock();
    struct emu_mapping *found = mapping_at((uintptr_t)address);
    if (found) {
        found->allocation->handles++;
        *handle = found->allocation->id;
    }
    emu_memory_unlock();
    return found ? EMU_OK : EMU_INVALID_VALUE;
}

/** A dma-buf of part of a memfd by the kernel's udmabuf device, -1 where there is none. */
static int udmabuf(int memfd, size_t offset, size_t size)
{
    int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
    if (device < 0)
        return -1;
    struct udmabuf_create wanted = {
        .memfd = (uint32_t)memfd, .flags = UDMABUF_FLAGS_CLOEXEC, .offset = offset, .size = size};
    int fd = ioctl(device, UDMABUF_CREATE, &wanted);
    close(device);
    return fd;
}

int emu_range_dmabuf(const void *address, size_t size, int *fd, uint64_t *offset)
{
    uintptr_t start = (uintptr_t)address;
    int status = EMU_INVALID_VALUE;
    if (!fd || !size || ((start | size) & 4095))
        return status;
    emu_memory_lock();
    const struct emu_mapping *found = mapping_at(start);
    if (found && within(start, size, found->address, found->size)) {
        size_t within_memory = start - found->address;
        int made = udmabuf(found->allocation->fd, offset ? 0 : within_memory,
                           offset ? found->allocation->size : size);
        if (made < 0 && (offset || !within_memory))
            made = fcntl(found->allocation->fd, F_DUPFD_CLOEXEC, 3);
        *fd = made;
        if (offset)
            *offset = within_memory;
        status = made < 0 ? EMU_NOT_SUPPORTED : EMU_OK;
    }
    emu_memory_unlock();
    return status;
}

int emu_range_touch(const void *address, size_t size, bool write, bool *is_device)
{
    uintptr_t at = (uintptr_t)address;
    bool reserved = false, reachable = true;
    emu_memory_lock();
    for (struct reservation *one = reservations; one && !reserved; one = one->next)
        reserved = overlap(at, size, one->address, one->size);
    for (uintptr_t end = at + size; reserved && reachable && at < end;) {
        const struct emu_mapping *mapping = mapping_at(at);
        reachable = mapping && (mapping->flags & (write ? 2 : 1));
#ifndef EMULATOR_CUDA
        /* Older HIP looks at the mapping that a range starts in, and wants it to hold all of it. */
        if (reachable && emu_hip_version() < 70300000)
            reachable = within(at, end - at, mapping->address, mapping->size);
#endif
        at = mapping ? mapping->address + mapping->size : end;
    }
    emu_memory_unlock();
    *is_device = reserved;
    return reachable ? EMU_OK : EMU_INVALID_VALUE;
}

int emu_range_allocate(void **address, size_t size, int device)
{
    const struct emu_properties properties = {.type = 1, .location_type = 1, .location_id = device};
    uint64_t handle;
    void *start;
    if (!address || !size || size + EMU_GRANULARITY < size)
        return EMU_INVALID_VALUE;
    size = (size + EMU_GRANULARITY - 1) / EMU_GRANULARITY * EMU_GRANULARITY;
    int status = emu_memory_create(&handle, size, &properties);
    if (status)
        return status;
    status = emu_range_reserve(&start, size, 0, NULL);
    if (!status) {
        emu_memory_lock();
        status = map_locked(start, size, emu_memory_find(handle));
        if (!status) {
            mprotect(start, size, PROT_READ | PROT_WRITE);
            mapping_at((uintptr_t)start)->flags = 3;
            reservation_around((uintptr_t)start, size)->plain = true;
            *address = start;
        }
        emu_memory_unlock();
        if (status)
            emu_range_free(start, size);
    }
    emu_memory_release(handle);
    return status;
}

int emu_range_release(void *address)
{
    if (!address)
        return EMU_OK;
    size_t size = 0;
    emu_memory_lock();
    for (struct reservation *one = reservations; one; one = one->next)
        if (one->plain && one->address == (uintptr_t)address)
            size = one->size;
    if (size)
        unmap_locked((uintptr_t)address, size);
    emu_memory_unlock();
    return size ? emu_range_free(address, size) : EMU_INVALID_VALUE;
}

void emu_range_alive(struct emu_alive *alive)
{
    emu_memory_lock();
    for (struct emu_mapping *one = mappings; one; one = one->next)
        alive->mappings++;
    for (struct reservation *one = reservations; one; one = one->next)
        alive->reservations++;
    emu_memory_unlock();
}

int slurmmesh_emulator_allocate(void **address, size_t size)
{
    return emu_range_allocate(address, size, emu_device_current());
}

int slurmmesh_emulator_release(void *address)
{
    return emu_range_release(address);
}

/** For HSA: it knows what was allocated with an address, not what was mapped to one. */
int slurmmesh_emulator_dmabuf(const void *address, size_t size, int *fd, uint64_t *offset)
{
    emu_memory_lock();
    const struct reservation *around = reservation_around((uintptr_t)address, size);
    bool known = around && around->plain;
    emu_memory_unlock();
    return known ? emu_range_dmabuf(address, size, fd, offset) : EMU_INVALID_VALUE;
}
