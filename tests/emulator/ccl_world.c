/** Worlds in shared memory: made, attached to, left; and which of their ranks are alive. */
#include "ccl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x5e0ccu
#define WAIT_NS (10 * 1000 * 1000)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/** Worlds that this process holds open for those who will attach. */
static struct held {
    struct held *next;
    int fd;
} *held;

static size_t world_bytes(int ranks)
{
    return sizeof(struct ccl_world) + sizeof(struct ccl_ring) * (size_t)(ranks * ranks);
}

/** Start time of a process in ticks since boot; 0 if it is dead, or a zombie. */
static uint64_t start_time(int pid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0)
        return 0;
    text[got] = 0;
    const char *at = strrchr(text, ')'); /* The name before it may hold anything. */
    if (!at || at[1] == 0 || at[2] == 'Z' || at[2] == 'X')
        return 0;
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static uint64_t own_start_time(void)
{
    return start_time(getpid());
}

void ccl_world_sweep(void)
{
    pthread_mutex_lock(&lock);
    for (struct held **link = &held; *link;) {
        struct held *one = *link;
        int counts[2]; /* size, attached */
        bool done = pread(one->fd, counts, sizeof counts, 0) == sizeof counts && counts[0] &&
                    counts[0] == counts[1];
        if (done) {
            *link = one->next;
            close(one->fd);
            free(one);
        } else {
            link = &one->next;
        }
    }
    pthread_mutex_unlock(&lock);
}

int ccl_world_new(struct ccl_address *address)
{
    ccl_world_sweep();
    int fd = memfd_create("slurmmesh-emulator-world", MFD_CLOEXEC);
    struct held *made = malloc(sizeof *made);
    struct stat found;
    /* Pages that nobody touches take no memory. */
    if (fd < 0 || !made || ftruncate(fd, (off_t)world_bytes(CCL_MAX_RANKS)) || fstat(fd, &found)) {
        int reason = errno;
        free(made);
        if (fd >= 0)
            close(fd);
        return ccl_fail(NULL, CCL_SYSTEM_ERROR, "no shared memory: %s", strerror(reason));
    }
    *address = (struct ccl_address){MAGIC, getpid(), fd, 0, own_start_time(), found.st_ino};
    if (pwrite(fd, address, sizeof *address, offsetof(struct ccl_world, made_by)) < 0) {
        free(made);
        close(fd);
        return ccl_fail(NULL, CCL_SYSTEM_ERROR, "no shared memory: %s", strerror(errno));
    }
    made->fd = fd;
    pthread_mutex_lock(&lock);
    made->next = held;
    held = made;
    pthread_mutex_unlock(&lock);
    return CCL_OK;
}

/** A descriptor of the world that an address names, -1 if it is not there any more. */
static int open_world(const struct ccl_address *address)
{
    char path[48];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", address->pid, address->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &found) || found.st_ino != address->inode)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

int ccl_world_attach(struct ccl_comm *comm, const struct ccl_address *address)
{
    if (address->magic != MAGIC)
        return ccl_fail(comm, CCL_INVALID_ARGUMENT, "this is no unique id");
    int fd = open_world(address);
    if (fd < 0)
        return ccl_fail(comm, CCL_SYSTEM_ERROR,
                        "process %d, which made the unique id, is gone, or all its ranks have come",
                        address->pid);
    size_t bytes = world_bytes(comm->size);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED)
        return ccl_fail(comm, CCL_SYSTEM_ERROR, "cannot map shared memory: %s", strerror(errno));
    struct ccl_world *world = memory;
    struct ccl_slot *slot = &world->slots[comm->rank];
    int size = 0, standing = CCL_ABSENT, result = CCL_OK;
    if (!atomic_compare_exchange_strong(&world->size, &size, comm->size) && size != comm->size)
        result = ccl_fail(comm, CCL_INVALID_USAGE, "rank %d says there are %d ranks, others say %d",
                          comm->rank, comm->size, size);
    else if (!atomic_compare_exchange_strong(&slot->standing, &standing, CCL_PRESENT))
        result = ccl_fail(comm, CCL_INVALID_USAGE, "rank %d is there already", comm->rank);
    if (result) {
        munmap(memory, bytes);
        return result;
    }
    atomic_store(&slot->started, own_start_time());
    atomic_store(&slot->pid, getpid());
    pthread_mutex_lock(&comm->lock);
    comm->world = world;
    comm->mapped = bytes;
    pthread_mutex_unlock(&comm->lock);
    atomic_fetch_add(&world->attached, 1);
    ccl_bell_ring_all(comm);
    return CCL_OK;
}

int ccl_world_gather(struct ccl_comm *comm, const struct ccl_comm *parent, const int *ranks,
                     int count)
{
    struct ccl_world *world = comm->world;
    struct ccl_slot *slot = &world->slots[comm->rank];
    int result = CCL_OK;
    for (uint64_t last = 0; !result;) {
        uint32_t seen = atomic_load(&slot->bell);
        if (atomic_load(&world->attached) == comm->size)
            break;
        if (atomic_load(&comm->stop) || (parent && atomic_load(&parent->gone)))
            return ccl_fail(NULL, CCL_INVALID_USAGE, "the communicator was aborted");
        if (ccl_time_to_look(&last) && !emu_setting("SILENT", 0)) {
            bool maker_gone = start_time(world->made_by.pid) != world->made_by.started;
            int suspect = ccl_rank_suspect(comm, NULL, 0, false);
            int sibling = parent ? ccl_rank_suspect(parent, ranks, count, false) : -1;
            if (atomic_load(&world->attached) == comm->size)
                break; /* It ended after all. */
            if (suspect >= 0)
                result = ccl_rank_accuse(comm, suspect, comm);
            else if (sibling >= 0)
                result = ccl_rank_accuse(parent, sibling, comm);
            else if (maker_gone)
                result = ccl_fail(comm, CCL_REMOTE_ERROR,
                                  "process %d, which made the unique id, is gone",
                                  world->made_by.pid);
        }
        ccl_bell_wait(slot, seen);
    }
    ccl_world_sweep();
    return result;
}

void ccl_world_leave(struct ccl_comm *comm, enum ccl_standing standing)
{
    if (!comm->world)
        return;
    int present = CCL_PRESENT;
    atomic_compare_exchange_strong(&comm->world->slots[comm->rank].standing, &present, standing);
    ccl_bell_ring_all(comm);
}

void ccl_world_unmap(struct ccl_comm *comm)
{
    if (comm->world)
        munmap(comm->world, comm->mapped);
    comm->world = NULL;
}

void ccl_bell_ring(struct ccl_slot *slot)
{
    atomic_fetch_add(&slot->bell, 1);
    syscall(SYS_futex, &slot->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void ccl_bell_ring_all(struct ccl_comm *comm)
{
    for (int rank = 0; rank < comm->size; rank++)
        ccl_bell_ring(&comm->world->slots[rank]);
}

void ccl_bell_wait(struct ccl_slot *slot, uint32_t seen)
{
    const struct timespec limit = {0, WAIT_NS};
    syscall(SYS_futex, &slot->bell, FUTEX_WAIT, seen, &limit, NULL, 0);
}

bool ccl_time_to_look(uint64_t *last)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    if (!*last) {
        *last = ns;
        return false;
    }
    if (ns - *last < 2 * WAIT_NS)
        return false;
    *last = ns;
    return true;
}

/** What became of a rank, in the order in which ranks are blamed; NULL while it is there. */
static const char *fate(const struct ccl_comm *comm, int rank, int severity)
{
    const struct ccl_slot *slot = &comm->world->slots[rank];
    int standing = atomic_load(&slot->standing), pid = atomic_load(&slot->pid);
    if (severity == 0 && standing == CCL_PRESENT && pid && pid != getpid() &&
        start_time(pid) != atomic_load(&slot->started))
        return "has died";
    if (severity == 1 && standing == CCL_ABORTED && rank != comm->rank)
        return "has aborted";
    if (severity == 2 && (standing == CCL_FINALIZED || standing == CCL_LEFT))
        return "has left";
    return NULL;
}

int ccl_rank_suspect(const struct ccl_comm *comm, const int *ranks, int count, bool left)
{
    if (emu_setting("SILENT", 0))
        return -1;
    for (int severity = 0; severity < (left ? 3 : 2); severity++)
        for (int i = 0; i < (ranks ? count : comm->size); i++)
            if (fate(comm, ranks ? ranks[i] : i, severity))
                return ranks ? ranks[i] : i;
    return -1;
}

int ccl_rank_accuse(const struct ccl_comm *comm, int rank, struct ccl_comm *failed)
{
    const char *what = NULL, *operation = atomic_load(&comm->operation);
    for (int severity = 0; severity < 3 && !what; severity++)
        what = fate(comm, rank, severity);
    return ccl_fail(failed, CCL_REMOTE_ERROR, "rank %d of %d (process %d) %s%s%s", rank, comm->size,
                    atomic_load(&comm->world->slots[rank].pid), what ? what : "has ended",
                    operation ? " during " : "", operation ? operation : "");
}
