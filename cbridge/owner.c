/* Owners: device memory that several use, freed by whoever drops it last. */
#include "internal.h"
#include "owner.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct extent {
    uint64_t address;
    size_t size;
    uint64_t handle; /* 0: not ours to release */
    struct extent *next;
} extent;

struct sm_owner {
    atomic_int holders;
    int device;
    uint64_t address;
    size_t capacity;
    pthread_mutex_t lock; /* guards extents */
    extent *extents;
};

static atomic_int owners;

int sm_owner_new(int device, uint64_t address, size_t capacity, sm_owner **owner, sm_error *error)
{
    sm_owner *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return sm_fail(error, SM_E_NO_MEMORY, "", "", "no host memory for an owner");
    }
    atomic_init(&made->holders, 1);
    made->device = device;
    made->address = address;
    made->capacity = capacity;
    (void)pthread_mutex_init(&made->lock, NULL);
    (void)atomic_fetch_add(&owners, 1);
    *owner = made;
    return 0;
}

int sm_owner_add(sm_owner *owner, uint64_t address, size_t size, uint64_t handle, sm_error *error)
{
    const bool within = address >= owner->address && size <= owner->capacity &&
                        address - owner->address <= owner->capacity - size;
    if (!within) {
        return sm_fail(error, SM_E_ARGUMENT, "", "", "the extent is not within the owner's range");
    }
    extent *made = malloc(sizeof *made);
    if (made == NULL) {
        return sm_fail(error, SM_E_NO_MEMORY, "", "", "no host memory for an extent");
    }
    (void)pthread_mutex_lock(&owner->lock);
    *made = (extent){address, size, handle, owner->extents};
    owner->extents = made;
    (void)pthread_mutex_unlock(&owner->lock);
    return 0;
}

void sm_owner_hold(sm_owner *owner)
{
    (void)atomic_fetch_add(&owner->holders, 1);
}

int sm_owner_holders(sm_owner *owner)
{
    return atomic_load(&owner->holders);
}

int sm_owners(void)
{
    return atomic_load(&owners);
}

/* The first failure of several steps, which are all done. */
typedef struct outcome {
    int code;
    sm_error *error;
} outcome;

/* Where the next step may write its error. */
static sm_error *next_error(const outcome *so_far)
{
    return so_far->code == 0 ? so_far->error : NULL;
}

static void took(outcome *so_far, int code)
{
    if (so_far->code == 0) {
        so_far->code = code;
    }
}

static int free_all(const sm_owner *owner, sm_error *error)
{
    outcome all = {0, error};
    /* What is queued on the device may still use it. */
    took(&all, sm_device_synchronize(owner->device, next_error(&all)));
    for (const extent *part = owner->extents; part != NULL; part = part->next) {
        took(&all, sm_memory_unmap(part->address, part->size, next_error(&all)));
        if (part->handle != 0) {
            took(&all, sm_memory_release(part->handle, next_error(&all)));
        }
    }
    took(&all, sm_memory_address_free(owner->address, owner->capacity, next_error(&all)));
    return all.code;
}

int sm_owner_drop(sm_owner *owner, sm_error *error)
{
    if (atomic_fetch_sub(&owner->holders, 1) > 1) {
        return 0;
    }
    /* In a forked child the memory is the parent's. */
    const int code = sm_forked() ? 0 : free_all(owner, error);
    while (owner->extents != NULL) {
        extent *next = owner->extents->next;
        free(owner->extents);
        owner->extents = next;
    }
    (void)pthread_mutex_destroy(&owner->lock);
    free(owner);
    (void)atomic_fetch_sub(&owners, 1);
    return code;
}
