/** Physical memory: one memfd for each allocation, counted by handles and mappings. */
#include "emulator.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct emu_allocation *allocations;
static uint64_t last_id = 0x5e000000; /* Handles look like no pointer and no small number. */

void emu_memory_lock(void)
{
    pthread_mutex_lock(&lock);
}

void emu_memory_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

struct emu_allocation *emu_memory_find(uint64_t handle)
{
    for (struct emu_allocation *found = allocations; found; found = found->next)
        if (found->id == handle)
            return found->handles ? found : NULL;
    return NULL;
}

/** Frees an allocation that nobody has any more. */
static void drop_unused(struct emu_allocation *allocation)
{
    if (allocation->handles || allocation->mappings)
        return;
    struct emu_allocation **link = &allocations;
    while (*link != allocation)
        link = &(*link)->next;
    *link = allocation->next;
    if (allocation->charged_to >= 0)
        emu_device_refund(allocation->charged_to, allocation->size);
    if (!allocation->lent)
        close(allocation->fd);
    free(allocation);
}

void emu_memory_unmapped(struct emu_allocation *allocation)
{
    allocation->mappings--;
    drop_unused(allocation);
}

int emu_memory_check(const struct emu_properties *properties)
{
    if (!properties || properties->type != 1 || properties->location_type != 1 ||
        (properties->handle_types & ~1))
        return EMU_INVALID_VALUE;
    return emu_device_valid(properties->location_id) ? EMU_OK : EMU_INVALID_DEVICE;
}

/** Takes the descriptor over, unless it is lent; also where it fails. */
static int add_allocation(uint64_t *handle, int fd, bool lent, size_t size, int charged_to,
                          const struct emu_properties *properties)
{
    struct emu_allocation *made = calloc(1, sizeof *made);
    if (!made) {
        if (!lent)
            close(fd);
        return EMU_OUT_OF_MEMORY;
    }
    made->fd = fd;
    made->lent = lent;
    made->size = size;
    made->charged_to = charged_to;
    made->properties = *properties;
    made->handles = 1;
    emu_memory_lock();
    made->id = last_id += 16;
    made->next = allocations;
    allocations = made;
    *handle = made->id;
    emu_memory_unlock();
    return EMU_OK;
}

int emu_memory_create(uint64_t *handle, size_t size, const struct emu_properties *properties)
{
    int status = emu_memory_check(properties);
    if (status)
        return status;
    if (!handle || !size || size % EMU_GRANULARITY)
        return EMU_INVALID_VALUE;
    status = emu_device_charge(properties->location_id, size);
    if (status)
        return status;
    int fd = memfd_create("slurmmesh-emulator-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 &&
        (ftruncate(fd, (off_t)size) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))) {
        close(fd);
        fd = -1;
    }
    status = fd < 0 ? EMU_OUT_OF_MEMORY
                    : add_allocation(handle, fd, false, size, properties->location_id, properties);
    if (status)
        emu_device_refund(properties->location_id, size);
    return status;
}

int emu_memory_release(uint64_t handle)
{
    emu_memory_lock();
    struct emu_allocation *allocation = emu_memory_find(handle);
    if (allocation) {
        allocation->handles--;
        drop_unused(allocation);
    }
    emu_memory_unlock();
    return allocation ? EMU_OK : EMU_INVALID_VALUE;
}

int emu_memory_properties(uint64_t handle, struct emu_properties *properties)
{
    if (!properties)
        return EMU_INVALID_VALUE;
    emu_memory_lock();
    struct emu_allocation *allocation = emu_memory_find(handle);
    if (allocation)
        *properties = allocation->properties;
    emu_memory_unlock();
    return allocation ? EMU_OK : EMU_INVALID_VALUE;
}

int emu_memory_export(uint64_t handle, int *fd)
{
    int status = EMU_INVALID_VALUE;
    emu_memory_lock();
    struct emu_allocation *allocation = emu_memory_find(handle);
    if (allocation && (allocation->properties.handle_types & 1)) {
        *fd = emu_lends_descriptors() ? allocation->fd : fcntl(allocation->fd, F_DUPFD_CLOEXEC, 3);
        status = *fd < 0 ? EMU_OS_ERROR : EMU_OK;
    }
    emu_memory_unlock();
    return status;
}

int emu_memory_import(uint64_t *handle, int fd, int device)
{
    struct stat found;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_GROW) || fstat(fd, &found) || found.st_size <= 0 ||
        (size_t)found.st_size % EMU_GRANULARITY)
        return EMU_INVALID_VALUE;
    bool lent = emu_lends_descriptors();
    int own = lent ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        return EMU_OS_ERROR;
    const struct emu_properties properties = {
        .type = 1, .handle_types = 1, .location_type = 1, .location_id = device};
    return add_allocation(handle, own, lent, (size_t)found.st_size, -1, &properties);
}

void emu_memory_alive(struct emu_alive *alive)
{
    emu_memory_lock();
    for (struct emu_allocation *one = allocations; one; one = one->next)
        alive->allocations++;
    emu_memory_unlock();
}
