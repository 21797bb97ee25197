/** Groups, and how operations become work for streams. */
#include "ccl.h"

#include <stdlib.h>

/** Operations of one communicator for one stream, that run together. */
struct batch {
    struct batch *next;
    struct ccl_comm *comm;
    void *stream;
    uint64_t number;
    struct ccl_operation *first;
    struct ccl_operation **last;
};

static _Thread_local int depth;
static _Thread_local int group_error;
static _Thread_local struct batch *batches;
static _Thread_local struct ccl_job *jobs;

static void free_batch(struct batch *batch)
{
    while (batch->first) {
        struct ccl_operation *one = batch->first;
        batch->first = one->next;
        free(one);
    }
    ccl_release(batch->comm);
    free(batch);
}

/** Runs on the stream's thread. */
static void run_batch(void *argument)
{
    struct batch *batch = argument;
    struct ccl_comm *comm = batch->comm;
    pthread_mutex_lock(&comm->lock);
    while (comm->served != batch->number && !atomic_load(&comm->stop))
        pthread_cond_wait(&comm->changed, &comm->lock); /* Those before may be in other streams. */
    comm->running++;
    pthread_mutex_unlock(&comm->lock);
    ccl_run(comm, batch->first);
    pthread_mutex_lock(&comm->lock);
    comm->running--;
    comm->served++;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    free_batch(batch);
}

/** Takes the batch over. */
static int submit(struct batch *batch)
{
    struct ccl_comm *comm = batch->comm;
    ccl_hold(comm);
    pthread_mutex_lock(&comm->lock); /* Held, so that numbers and streams have one order. */
    batch->number = comm->issued;
    int status = slurmmesh_emulator_submit(batch->stream, run_batch, batch);
    if (status == EMU_OK)
        comm->issued++;
    pthread_mutex_unlock(&comm->lock);
    if (status != EMU_OK)
        free_batch(batch);
    ccl_release(comm);
    return status == EMU_OK ? CCL_OK : ccl_fail(NULL, CCL_GPU_ERROR, "no such stream");
}

/** The batch of this group for a communicator and a stream. */
static struct batch *batch_for(struct ccl_comm *comm, void *stream)
{
    struct batch **link = &batches;
    while (*link && ((*link)->comm != comm || (*link)->stream != stream))
        link = &(*link)->next;
    if (!*link) {
        struct batch *made = calloc(1, sizeof *made);
        if (!made)
            return NULL;
        made->comm = comm;
        made->stream = stream;
        made->last = &made->first;
        ccl_hold(comm);
        *link = made;
    }
    return *link;
}

bool ccl_group_open(void)
{
    return depth > 0;
}

void ccl_group_add_job(struct ccl_job *job)
{
    struct ccl_job **link = &jobs;
    while (*link)
        link = &(*link)->next;
    *link = job;
}

static int check(const struct ccl_operation *operation, const struct ccl_comm *comm)
{
    if (!ccl_size_of(operation->type))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "data type %d", operation->type);
    if (operation->reduction < 0 || operation->reduction >= CCL_REDUCTIONS)
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "reduction %d", operation->reduction);
    if (operation->root < 0 || operation->root >= comm->size)
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "%s: rank %d of %d",
                        ccl_kind_name(operation->kind), operation->root, comm->size);
    bool at_root = comm->rank == operation->root;
    bool sends = operation->kind != CCL_RECV && (operation->kind != CCL_BROADCAST || at_root);
    bool receives = operation->kind != CCL_SEND && (operation->kind != CCL_REDUCE || at_root);
    if (operation->count && ((sends && !operation->send) || (receives && !operation->recv)))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "%s: a null pointer",
                        ccl_kind_name(operation->kind));
    return CCL_OK;
}

EMU_EXPORT int ncclGroupStart(void)
{
    depth++;
    return CCL_OK;
}

/** Starts all jobs of the group, then waits for those of blocking communicators. */
static int finish_jobs(bool refused)
{
    struct ccl_job *list = jobs;
    int result = CCL_OK;
    struct {
        struct ccl_comm *comm, **out;
    } started[CCL_MAX_RANKS];
    size_t count = 0;
    jobs = NULL;
    while (list) {
        struct ccl_job *job = list;
        list = job->next;
        if (refused || count == sizeof started / sizeof *started) {
            ccl_job_refuse(job);
            result = CCL_INVALID_USAGE;
            continue;
        }
        started[count].comm = job->comm;
        started[count].out = job->out;
        ccl_hold(job->comm);
        int failed = ccl_job_start(job);
        if (failed) {
            ccl_release(started[count].comm);
            result = failed;
        } else {
            count++;
        }
    }
    for (size_t i = 0; i < count; i++) {
        int one = ccl_job_finish(started[i].comm, started[i].out);
        if (one && (!result || result == CCL_IN_PROGRESS))
            result = one;
        ccl_release(started[i].comm);
    }
    return result;
}

EMU_EXPORT int ncclGroupEnd(void)
{
    if (!depth)
        return ccl_fail(NULL, CCL_INVALID_USAGE, "ncclGroupEnd without ncclGroupStart");
    if (--depth)
        return CCL_OK;
    int result = group_error;
    group_error = CCL_OK;
    int made = finish_jobs(result != CCL_OK);
    if (!result)
        result = made;
    while (batches) {
        struct batch *batch = batches;
        batches = batch->next;
        if (result && result != CCL_IN_PROGRESS) {
            free_batch(batch);
            continue;
        }
        int issued = submit(batch);
        if (issued)
            result = issued;
    }
    return result;
}

int ccl_issue(const struct ccl_operation *operation, struct ccl_comm *comm, void *stream)
{
    if (!ccl_acquire(comm))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no such communicator");
    ncclGroupStart();
    int result = ccl_usable(comm);
    if (!result)
        result = check(operation, comm);
    struct batch *batch = result ? NULL : batch_for(comm, stream);
    struct ccl_operation *copy = batch ? malloc(sizeof *copy) : NULL;
    if (copy) {
        *copy = *operation;
        copy->next = NULL;
        *batch->last = copy;
        batch->last = &copy->next;
    } else if (!result) {
        result = CCL_SYSTEM_ERROR;
    }
    if (result && !group_error)
        group_error = result;
    int ended = ncclGroupEnd();
    ccl_release(comm);
    return result ? result : ended;
}
