/**
 * What the files of the RCCL and NCCL emulator know of each other.
 *
 * The ranks of a communicator share a memfd, its world: a slot for each rank, and a ring buffer
 * from each rank to each. Whoever made the unique id holds the memfd open until all ranks have
 * attached (they find it in /proc/PID/fd), so it has no name and goes with its last user, however
 * that ends. Collectives are work for a stream: they move bytes through the rings there.
 *
 * ccl_world.c: worlds, slots, who is alive. ccl_transfer.c: bytes through rings. ccl_numbers.c:
 * arithmetic. ccl_collectives.c: the collectives of transfers. ccl_comm.c: communicators' life.
 * ccl_regroup.c: communicators from communicators. ccl_group.c: groups, and work for streams.
 */
#ifndef SLURMMESH_EMULATOR_CCL_H
#define SLURMMESH_EMULATOR_CCL_H

#include "emulator.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#define CCL_MAX_RANKS 64
#define CCL_RING ((size_t)64 << 10)
#define CCL_UNDEFINED INT32_MIN /**< A setting of a config that was not set. */

/** ncclResult_t. */
enum ccl_result {
    CCL_OK = 0,
    CCL_GPU_ERROR = 1,
    CCL_SYSTEM_ERROR = 2,
    CCL_INTERNAL_ERROR = 3,
    CCL_INVALID_ARGUMENT = 4,
    CCL_INVALID_USAGE = 5,
    CCL_REMOTE_ERROR = 6,
    CCL_IN_PROGRESS = 7,
};

/** ncclDataType_t. */
enum ccl_type {
    CCL_INT8,
    CCL_UINT8,
    CCL_INT32,
    CCL_UINT32,
    CCL_INT64,
    CCL_UINT64,
    CCL_FLOAT16,
    CCL_FLOAT32,
    CCL_FLOAT64,
    CCL_BFLOAT16,
    CCL_FLOAT8E4M3,
    CCL_FLOAT8E5M2,
    CCL_TYPES,
};

/** ncclRedOp_t. */
enum ccl_reduction { CCL_SUM, CCL_PROD, CCL_MAX, CCL_MIN, CCL_AVG, CCL_REDUCTIONS };

enum ccl_kind {
    CCL_ALL_REDUCE = 1,
    CCL_BROADCAST,
    CCL_REDUCE,
    CCL_ALL_GATHER,
    CCL_REDUCE_SCATTER,
    CCL_SEND,
    CCL_RECV,
};

/** How a rank stands to its world. */
enum ccl_standing { CCL_ABSENT, CCL_PRESENT, CCL_FINALIZED, CCL_LEFT, CCL_ABORTED };

/** Where a world is: the first bytes of a unique id, the rest of whose 128 bytes are zero. */
struct ccl_address {
    uint32_t magic;
    int32_t pid;
    int32_t fd;
    uint32_t unused;
    uint64_t started; /**< Start time of the process, so that a later one is not taken for it. */
    uint64_t inode;
};
struct ccl_unique_id {
    struct ccl_address address;
    char rest[128 - sizeof(struct ccl_address)];
};

/** A rank in shared memory. */
struct ccl_slot {
    _Atomic int standing;
    _Atomic int pid;
    _Atomic uint64_t started;
    _Atomic uint32_t bell; /**< A futex: rung whenever there may be something new for the rank. */
    _Atomic uint32_t step; /**< How far it is in making new communicators: see ccl_regroup.c. */
    int color;
    int key;
    struct ccl_address next; /**< The world of the communicator that is being made. */
};

/** Bytes on their way from one rank to another. */
struct ccl_ring {
    _Atomic uint64_t written;
    _Atomic uint64_t read;
    unsigned char data[CCL_RING];
};

struct ccl_world {
    _Atomic int size; /**< 0 until the first rank says how many there are. */
    _Atomic int attached;
    struct ccl_address made_by;
    struct ccl_slot slots[CCL_MAX_RANKS];
    struct ccl_ring rings[]; /**< [from * size + to] */
};

/** A communicator: one rank of a world, in this process. */
struct ccl_comm {
    struct ccl_comm *next;
    struct ccl_world *world; /**< NULL until attached. */
    size_t mapped;
    int rank;
    int size;
    int device;
    bool blocking;
    bool finalized;
    bool revoked;       /**< No operation may start any more. */
    _Atomic bool stop;  /**< Operations that run shall end. */
    _Atomic bool gone;  /**< Destroyed or aborted: only threads that are inside still have it. */
    _Atomic int result; /**< What ncclCommGetAsyncError says. */

    pthread_mutex_t lock; /**< Of what follows. */
    pthread_cond_t changed;
    int users;             /**< Threads and jobs that have it; the last one frees it. */
    int jobs;              /**< Management under way: init, finalize, making others. */
    int registered;        /**< Buffers. */
    uint64_t issued;       /**< Batches given to streams. */
    uint64_t served;       /**< Batches that ended: they run in the order they were issued. */
    int running;           /**< Batches that use the caller's memory now. */
    uint32_t regroups;     /**< Communicators that were asked of it. */
    uint32_t regroups_done;
    _Atomic(const char *) operation; /**< What runs, for error texts; NULL: nothing. */
    char error[256];
};

/** One call of a collective, or of send or recv. */
struct ccl_operation {
    struct ccl_operation *next;
    enum ccl_kind kind;
    const void *send;
    void *recv;
    size_t count;
    int type;
    int reduction;
    int root; /**< Or the peer of a send or recv. */
};

/* ccl_world.c */

/** A new world without ranks, held open by this process until all have attached. */
int ccl_world_new(struct ccl_address *address);
/** Closes worlds of this process that need no holding any more. */
void ccl_world_sweep(void);
/** Maps a world and takes a slot of it: the communicator has its rank and size already. */
int ccl_world_attach(struct ccl_comm *comm, const struct ccl_address *address);
/**
 * Waits until all ranks are there. `parent` may be NULL; if it is not, its end ends the wait, and
 * so does that of some of its ranks.
 */
int ccl_world_gather(struct ccl_comm *comm, const struct ccl_comm *parent, const int *ranks,
                     int count);
void ccl_world_leave(struct ccl_comm *comm, enum ccl_standing standing);
void ccl_world_unmap(struct ccl_comm *comm);
/** Rings the bell of one rank, or of all. */
void ccl_bell_ring(struct ccl_slot *slot);
void ccl_bell_ring_all(struct ccl_comm *comm);
/** Waits until a bell is rung after it was seen at `seen`, or some milliseconds. */
void ccl_bell_wait(struct ccl_slot *slot, uint32_t seen);
/**
 * The first rank of a list (NULL: all) that has died, else that has aborted, and with `left` else
 * that has left in good order; -1 if there is none, or if SLURMMESH_EMULATOR_SILENT is set.
 */
int ccl_rank_suspect(const struct ccl_comm *comm, const int *ranks, int count, bool left);
/** Makes what became of a rank the error of a communicator, often the same; returns the result. */
int ccl_rank_accuse(const struct ccl_comm *comm, int rank, struct ccl_comm *failed);
/** True at most once in some milliseconds, by a clock of the caller's. */
bool ccl_time_to_look(uint64_t *last);

/* ccl_transfer.c */

/** Goes ahead of the bytes, so that ranks which disagree are found. */
struct ccl_header {
    uint16_t kind;
    uint16_t type;
    uint16_t reduction;
    uint16_t root;
    uint64_t bytes;
};
struct ccl_transfer {
    bool sending;
    int peer;
    void *data;
    struct ccl_header header;
    size_t moved; /**< Bytes so far, those of the header too. */
};
/**
 * Moves all of them at once. False if the communicator was stopped; after an error, of which the
 * communicator then tells, it waits for that.
 */
bool ccl_transfer_all(struct ccl_comm *comm, struct ccl_transfer *transfers, size_t count);

/* ccl_numbers.c */

/** Bytes of a type, 0 for a number that is none. */
size_t ccl_size_of(int type);
/** into[i] = into[i] reduced with from[i]. */
void ccl_combine(int type, int reduction, void *into, const void *from, size_t count);
/** into[i] = into[i] / ranks, for the average. */
void ccl_divide(int type, void *into, size_t count, int ranks);

/* ccl_collectives.c */

const char *ccl_kind_name(enum ccl_kind kind);
/** Runs operations in order; sends and receives all together, last. */
void ccl_run(struct ccl_comm *comm, struct ccl_operation *operations);

/* ccl_comm.c */

/** Errors, for the communicator (may be NULL) and ncclGetLastError. Returns the result. */
__attribute__((format(printf, 3, 4))) int ccl_fail(struct ccl_comm *comm, int result,
                                                   const char *format, ...);
const char *ccl_last_error(struct ccl_comm *comm);
/** A communicator without a world, in the register; NULL: no memory. */
struct ccl_comm *ccl_comm_new(int rank, int size, bool blocking);
/** Whether a handle is a communicator; ccl_release lets go of it. */
bool ccl_acquire(struct ccl_comm *comm);
void ccl_release(struct ccl_comm *comm);
/** Also for a communicator that is acquired already. */
void ccl_hold(struct ccl_comm *comm);
/** CCL_OK if operations may be issued, else what the call shall return. */
int ccl_usable(struct ccl_comm *comm);
/** Waits until no batch of it is with a stream, or it is stopped. */
void ccl_drain(struct ccl_comm *comm);
/** Ends what runs; what waits in streams will do nothing. Then nothing uses the caller's memory. */
void ccl_stop(struct ccl_comm *comm);
/** Reads `blocking` of an ncclConfig_t; NULL: the fallback. */
int ccl_config_blocking(const void *config, bool fallback, bool *blocking);

/** Management under way in a thread of its own. */
struct ccl_job {
    struct ccl_job *next;
    struct ccl_comm *comm;   /**< The one that is being made or finalized. */
    struct ccl_comm *parent; /**< The one it is made from, or NULL. */
    struct ccl_comm **out;   /**< Where the caller wants it; cleared if it fails. */
    int (*run)(struct ccl_job *job);
    struct ccl_address address;
    int color;
    int key;
    bool has_address;
    uint32_t generation;
    int participants[CCL_MAX_RANKS]; /**< Ranks of the parent. */
    int count;
};
/** Starts a job, or leaves it to the end of the group. Takes it over, returns what the call does. */
int ccl_job_submit(struct ccl_job *job);
/** Starts a job in a thread; takes it over. */
int ccl_job_start(struct ccl_job *job);
/** Ends a job that was not started, and the communicator that it would have made. */
void ccl_job_refuse(struct ccl_job *job);
/**
 * Waits for the jobs of a communicator, if it is blocking. Clears `out`, and ends the communicator,
 * if it could not be made or this rank has no part in it.
 */
int ccl_job_finish(struct ccl_comm *comm, struct ccl_comm **out);

/* ccl_group.c */

bool ccl_group_open(void);
void ccl_group_add_job(struct ccl_job *job);
/** Issues an operation now or at the end of the group. */
int ccl_issue(const struct ccl_operation *operation, struct ccl_comm *comm, void *stream);

#endif
