/**
 * Communicators from communicators: split, shrink, grow, and revoke.
 *
 * Ranks meet in the slots of the parent. For each new communicator a rank makes three steps, which
 * the others wait for: it has said its color and key; it has made the world, if it is the first of
 * its color; it needs nobody's slot any more.
 */
#include "ccl.h"

#include <stdlib.h>

#define STEPS 3
#define NO_COLOR (-1)

static struct ccl_slot *slot_of(struct ccl_comm *comm, int rank)
{
    return &comm->world->slots[rank];
}

/** Says that this rank has made a step. */
static void make_step(const struct ccl_job *job, uint32_t step)
{
    atomic_store(&slot_of(job->parent, job->parent->rank)->step, job->generation * STEPS + step);
    for (int i = 0; i < job->count; i++)
        ccl_bell_ring(slot_of(job->parent, job->participants[i]));
}

/** Waits until ranks of the parent have made a step. */
static int wait_step(struct ccl_job *job, const int *ranks, int count, uint32_t step)
{
    struct ccl_comm *parent = job->parent;
    struct ccl_slot *own = slot_of(parent, parent->rank);
    uint64_t last = 0;
    for (int i = 0; i < count;) {
        uint32_t seen = atomic_load(&own->bell);
        int32_t ahead = (int32_t)(atomic_load(&slot_of(parent, ranks[i])->step) -
                                  (job->generation * STEPS + step));
        if (ahead >= 0) {
            i++;
            continue;
        }
        if (atomic_load(&job->comm->stop) || atomic_load(&parent->gone))
            return ccl_fail(NULL, CCL_INVALID_USAGE, "the communicator was aborted");
        if (ccl_time_to_look(&last)) {
            /* Those that it waits for in turn may have died; one that has left had its reason. */
            int suspect = ccl_rank_suspect(parent, ranks, count, false);
            if (suspect < 0)
                suspect = ccl_rank_suspect(parent, &ranks[i], 1, true);
            if (suspect >= 0)
                return ccl_rank_accuse(parent, suspect, job->comm);
        }
        ccl_bell_wait(own, seen);
    }
    return CCL_OK;
}

/** Jobs of one parent run one after the other, in the order of the calls. */
static void wait_for_turn(struct ccl_job *job)
{
    pthread_mutex_lock(&job->parent->lock);
    while (job->parent->regroups_done != job->generation)
        pthread_cond_wait(&job->parent->changed, &job->parent->lock);
    pthread_mutex_unlock(&job->parent->lock);
}

static void end_turn(struct ccl_job *job)
{
    pthread_mutex_lock(&job->parent->lock);
    job->parent->regroups_done++;
    pthread_cond_broadcast(&job->parent->changed);
    pthread_mutex_unlock(&job->parent->lock);
}

/** The ranks of this rank's color, by key and then by rank. */
static int same_color(const struct ccl_job *job, int members[CCL_MAX_RANKS])
{
    int count = 0;
    for (int i = 0; i < job->count; i++) {
        int rank = job->participants[i];
        const struct ccl_slot *slot = slot_of(job->parent, rank);
        if (slot->color != job->color)
            continue;
        int at = count++;
        for (; at > 0 && slot_of(job->parent, members[at - 1])->key > slot->key; at--)
            members[at] = members[at - 1];
        members[at] = rank;
    }
    return count;
}

static int regroup(struct ccl_job *job)
{
    struct ccl_comm *comm = job->comm, *parent = job->parent;
    struct ccl_slot *own = slot_of(parent, parent->rank);
    int members[CCL_MAX_RANKS];
    int result = wait_step(job, job->participants, job->count, 0);
    if (result)
        return result;
    own->color = job->color;
    own->key = job->key;
    make_step(job, 1);
    result = wait_step(job, job->participants, job->count, 1);
    if (result)
        return result;
    comm->size = same_color(job, members);
    while (comm->rank < comm->size && members[comm->rank] != parent->rank)
        comm->rank++;
    bool part = job->color != NO_COLOR;
    if (part && comm->rank == 0)
        result = ccl_world_new(&own->next);
    make_step(job, 2);
    if (part && !result)
        result = wait_step(job, members, 1, 2);
    if (part && !result)
        result = ccl_world_attach(comm, &slot_of(parent, members[0])->next);
    if (part && !result)
        result = ccl_world_gather(comm, parent, job->participants, job->count);
    make_step(job, 3);
    return result;
}

static int run_regroup(struct ccl_job *job)
{
    wait_for_turn(job);
    int result = regroup(job);
    end_turn(job);
    return result;
}

/** A job for a communicator from an acquired parent; NULL: no memory. */
static struct ccl_job *new_job(struct ccl_comm *parent, struct ccl_comm **out, bool blocking,
                               int (*run)(struct ccl_job *))
{
    struct ccl_job *job = calloc(1, sizeof *job);
    struct ccl_comm *comm = job ? ccl_comm_new(0, 0, blocking) : NULL;
    if (!comm) {
        free(job);
        ccl_fail(NULL, CCL_SYSTEM_ERROR, "out of memory");
        return NULL;
    }
    *job = (struct ccl_job){.comm = comm, .parent = parent, .out = out, .run = run};
    ccl_hold(parent);
    pthread_mutex_lock(&parent->lock);
    job->generation = parent->regroups++;
    pthread_mutex_unlock(&parent->lock);
    return job;
}

EMU_EXPORT int ncclCommSplit(struct ccl_comm *parent, int color, int key, struct ccl_comm **out,
                             const void *config)
{
    bool blocking;
    if (!out || color < NO_COLOR)
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "color %d", color);
    if (!ccl_acquire(parent))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no such communicator");
    int result = ccl_config_blocking(config, parent->blocking, &blocking);
    if (!result && !parent->revoked)
        result = ccl_usable(parent);
    struct ccl_job *job =
        result ? NULL : new_job(parent, out, blocking || color == NO_COLOR, run_regroup);
    if (job) {
        job->color = color;
        job->key = key;
        job->count = parent->size;
        for (int rank = 0; rank < parent->size; rank++)
            job->participants[rank] = rank;
        *out = job->comm;
        result = ccl_job_submit(job);
    } else if (!result) {
        result = CCL_SYSTEM_ERROR;
    }
    ccl_release(parent);
    return result;
}

/** Ends what runs on a communicator, for good. */
static void stop_operations(struct ccl_comm *comm)
{
    comm->revoked = true;
    ccl_stop(comm);
}

EMU_EXPORT int ncclCommShrink(struct ccl_comm *parent, const int *excluded, int excluded_count,
                              struct ccl_comm **out, const void *config, int flags)
{
    bool blocking;
    if (!out || (excluded_count && !excluded) || excluded_count < 0 || flags < 0 || flags > 1)
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "a list of %d ranks", excluded_count);
    if (!ccl_acquire(parent))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no such communicator");
    int result = ccl_config_blocking(config, parent->blocking, &blocking);
    for (int i = 0; !result && i < excluded_count; i++)
        if (excluded[i] == parent->rank || excluded[i] < 0 || excluded[i] >= parent->size)
            result = ccl_fail(NULL, CCL_INVALID_ARGUMENT, "rank %d excludes rank %d", parent->rank,
                              excluded[i]);
    if (!result && !flags && !parent->revoked)
        result = ccl_usable(parent);
    if (!result && flags)
        stop_operations(parent);
    struct ccl_job *job = result ? NULL : new_job(parent, out, blocking, run_regroup);
    if (job) {
        for (int rank = 0; rank < parent->size; rank++) {
            bool stays = true;
            for (int i = 0; i < excluded_count; i++)
                stays &= excluded[i] != rank;
            if (stays)
                job->participants[job->count++] = rank;
        }
        *out = job->comm;
        result = ccl_job_submit(job);
    } else if (!result) {
        result = CCL_SYSTEM_ERROR;
    }
    ccl_release(parent);
    return result;
}

EMU_EXPORT int ncclCommRevoke(struct ccl_comm *comm, int flags)
{
    if (flags)
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "flags %d", flags);
    if (!ccl_acquire(comm))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no such communicator");
    int result = comm->world ? CCL_OK : ccl_usable(comm);
    if (!result) {
        stop_operations(comm);
        atomic_store(&comm->result, CCL_OK);
    }
    ccl_release(comm);
    return result;
}

EMU_EXPORT int ncclCommGetUniqueId(struct ccl_comm *comm, struct ccl_unique_id *id)
{
    if (!id || !ccl_acquire(comm))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no such communicator");
    *id = (struct ccl_unique_id){0};
    int result = ccl_usable(comm);
    if (!result)
        result = ccl_world_new(&id->address);
    ccl_release(comm);
    return result;
}

/** The ranks that were there learn from the root where the new world is. */
static int run_grow(struct ccl_job *job)
{
    struct ccl_comm *parent = job->parent;
    struct ccl_slot *own = slot_of(parent, parent->rank);
    wait_for_turn(job);
    int result = wait_step(job, job->participants, job->count, 0);
    own->color = job->has_address;
    own->next = job->address;
    make_step(job, 1);
    if (!result)
        result = wait_step(job, job->participants, job->count, 1);
    for (int rank = 0; !result && rank < parent->size; rank++)
        if (slot_of(parent, rank)->color)
            job->address = slot_of(parent, rank)->next;
    make_step(job, STEPS);
    end_turn(job);
    if (!result)
        result = ccl_world_attach(job->comm, &job->address);
    return result ? result : ccl_world_gather(job->comm, parent, job->participants, job->count);
}

EMU_EXPORT int ncclCommInitRankConfig(struct ccl_comm **out, int size, struct ccl_unique_id id,
                                      int rank, const void *config);

EMU_EXPORT int ncclCommGrow(struct ccl_comm *parent, int size, const struct ccl_unique_id *id,
                            int rank, struct ccl_comm **out, const void *config)
{
    bool blocking;
    if (!out || (!parent && !id))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "a new rank needs a unique id");
    if (!parent)
        return ncclCommInitRankConfig(out, size, *id, rank, config);
    if (!ccl_acquire(parent))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no such communicator");
    int result = ccl_config_blocking(config, parent->blocking, &blocking);
    if (!result && (size <= parent->size || size > CCL_MAX_RANKS || rank != -1))
        result = ccl_fail(NULL, CCL_INVALID_ARGUMENT, "rank %d, from %d to %d ranks", rank,
                          parent->size, size);
    if (!result)
        result = ccl_usable(parent);
    struct ccl_job *job = result ? NULL : new_job(parent, out, blocking, run_grow);
    if (job) {
        job->comm->rank = parent->rank;
        job->comm->size = size;
        job->has_address = id;
        if (id)
            job->address = id->address;
        job->count = parent->size;
        for (int i = 0; i < parent->size; i++)
            job->participants[i] = i;
        *out = job->comm;
        result = ccl_job_submit(job);
    } else if (!result) {
        result = CCL_SYSTEM_ERROR;
    }
    ccl_release(parent);
    return result;
}
