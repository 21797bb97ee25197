/** The life of communicators: made, asked, finalized, destroyed, aborted; and their errors. */
#include "ccl.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ccl_comm *comms; /* Those that have a handle. */
static uint64_t alive;         /* And those that a thread is still inside of. */
static char last_error[256];   /* Of this process, whatever it was about. */

EMU_EXPORT uint64_t slurmmesh_emulator_communicators(void);

uint64_t slurmmesh_emulator_communicators(void)
{
    pthread_mutex_lock(&lock);
    uint64_t count = alive;
    pthread_mutex_unlock(&lock);
    return count;
}

int ccl_fail(struct ccl_comm *comm, int result, const char *format, ...)
{
    char text[256];
    va_list arguments;
    int start = snprintf(text, sizeof text, "slurmmesh EMULATOR: ");
    va_start(arguments, format);
    vsnprintf(text + start, sizeof text - (size_t)start, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&lock);
    memcpy(last_error, text, sizeof text);
    if (comm)
        memcpy(comm->error, text, sizeof text);
    pthread_mutex_unlock(&lock);
    if (comm)
        atomic_store(&comm->result, result);
    return result;
}

const char *ccl_last_error(struct ccl_comm *comm)
{
    static _Thread_local char text[256];
    pthread_mutex_lock(&lock);
    bool own = comm && comm->error[0];
    memcpy(text, own ? comm->error : last_error, sizeof text);
    pthread_mutex_unlock(&lock);
    return text;
}

struct ccl_comm *ccl_comm_new(int rank, int size, bool blocking)
{
    struct ccl_comm *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->rank = rank;
    made->size = size;
    made->blocking = blocking;
    made->device = slurmmesh_emulator_current_device();
    made->users = 1; /* The handle. */
    atomic_store(&made->result, CCL_IN_PROGRESS);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    pthread_mutex_lock(&lock);
    made->next = comms;
    comms = made;
    alive++;
    pthread_mutex_unlock(&lock);
    return made;
}

void ccl_hold(struct ccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->users++;
    pthread_mutex_unlock(&comm->lock);
}

bool ccl_acquire(struct ccl_comm *comm)
{
    pthread_mutex_lock(&lock);
    struct ccl_comm *found = comms;
    while (found && found != comm)
        found = found->next;
    if (found)
        ccl_hold(found);
    pthread_mutex_unlock(&lock);
    return found;
}

void ccl_release(struct ccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    bool last = --comm->users == 0;
    pthread_mutex_unlock(&comm->lock);
    if (!last)
        return;
    ccl_world_unmap(comm);
    pthread_cond_destroy(&comm->changed);
    pthread_mutex_destroy(&comm->lock);
    free(comm);
    pthread_mutex_lock(&lock);
    alive--;
    pthread_mutex_unlock(&lock);
}

/** Takes the handle away. False if another thread has done so already. */
static bool unregister(struct ccl_comm *comm)
{
    pthread_mutex_lock(&lock);
    struct ccl_comm **link = &comms;
    while (*link && *link != comm)
        link = &(*link)->next;
    bool found = *link;
    if (found)
        *link = comm->next;
    pthread_mutex_unlock(&lock);
    return found;
}

int ccl_usable(struct ccl_comm *comm)
{
    int result = atomic_load(&comm->result);
    if (result == CCL_IN_PROGRESS) {
        ccl_fail(NULL, CCL_INVALID_ARGUMENT,
                 "the communicator was used before the call before was done");
        return CCL_INVALID_ARGUMENT;
    }
    if (!result && (comm->revoked || comm->finalized))
        return ccl_fail(NULL, CCL_INVALID_USAGE, "the communicator was %s",
                        comm->revoked ? "revoked" : "finalized");
    return result;
}

void ccl_drain(struct ccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->served != comm->issued && !atomic_load(&comm->stop))
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

void ccl_stop(struct ccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    atomic_store(&comm->stop, true);
    pthread_cond_broadcast(&comm->changed);
    if (comm->world)
        ccl_bell_ring(&comm->world->slots[comm->rank]);
    while (comm->running)
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

int ccl_config_blocking(const void *config, bool fallback, bool *blocking)
{
    struct {
        size_t size;
        unsigned magic;
        unsigned version;
        int blocking;
    } head;
    *blocking = fallback;
    if (!config)
        return CCL_OK;
    memcpy(&head, config, offsetof(__typeof__(head), blocking) + sizeof(int));
    if (head.magic != 0xcafebeef)
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "the config was not initialized");
    if (head.blocking != CCL_UNDEFINED && head.blocking != 0 && head.blocking != 1)
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "blocking is %d", head.blocking);
    if (head.blocking != CCL_UNDEFINED)
        *blocking = head.blocking;
    return CCL_OK;
}

static void *run_job(void *argument)
{
    struct ccl_job *job = argument;
    struct ccl_comm *comm = job->comm, *parent = job->parent;
    int result = job->run(job);
    int under_way = CCL_IN_PROGRESS;
    if (result) /* Its text is there already, with the result where it is the communicator's. */
        atomic_store(&comm->result, result);
    else
        atomic_compare_exchange_strong(&comm->result, &under_way, CCL_OK);
    free(job);
    pthread_mutex_lock(&comm->lock);
    comm->jobs--;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    ccl_release(comm);
    if (parent)
        ccl_release(parent);
    return NULL;
}

int ccl_job_start(struct ccl_job *job)
{
    sigset_t all, before;
    pthread_t thread;
    pthread_mutex_lock(&job->comm->lock);
    job->comm->jobs++;
    job->comm->users++;
    pthread_mutex_unlock(&job->comm->lock);
    atomic_store(&job->comm->result, CCL_IN_PROGRESS);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, run_job, job) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) {
        pthread_detach(thread);
        return CCL_OK;
    }
    pthread_mutex_lock(&job->comm->lock);
    job->comm->jobs--;
    job->comm->users--;
    pthread_mutex_unlock(&job->comm->lock);
    ccl_job_refuse(job);
    return ccl_fail(NULL, CCL_SYSTEM_ERROR, "no thread");
}

void ccl_job_refuse(struct ccl_job *job)
{
    if (job->out && unregister(job->comm)) {
        *job->out = NULL;
        ccl_release(job->comm);
    }
    if (job->parent)
        ccl_release(job->parent);
    free(job);
}

static void wait_for_jobs(struct ccl_comm *comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->jobs)
        pthread_cond_wait(&comm->changed, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

int ccl_job_finish(struct ccl_comm *comm, struct ccl_comm **out)
{
    if (!comm->blocking)
        return CCL_IN_PROGRESS;
    wait_for_jobs(comm);
    int result = atomic_load(&comm->result);
    if ((result || !comm->world) && out && unregister(comm)) {
        *out = NULL;
        ccl_world_leave(comm, CCL_ABORTED);
        ccl_release(comm);
    }
    return result;
}

int ccl_job_submit(struct ccl_job *job)
{
    if (ccl_group_open()) {
        ccl_group_add_job(job);
        return CCL_OK;
    }
    struct ccl_comm *comm = job->comm, **out = job->out;
    ccl_hold(comm);
    int result = ccl_job_start(job);
    if (!result)
        result = ccl_job_finish(comm, out);
    ccl_release(comm);
    return result;
}

static int run_init(struct ccl_job *job)
{
    int result = ccl_world_attach(job->comm, &job->address);
    return result ? result : ccl_world_gather(job->comm, NULL, NULL, 0);
}

static int start_init(struct ccl_comm **out, int size, const struct ccl_unique_id *id, int rank,
                      const void *config)
{
    bool blocking;
    int result = ccl_config_blocking(config, true, &blocking);
    if (result)
        return result;
    if (!out || size < 1 || size > CCL_MAX_RANKS || rank < 0 || rank >= size)
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "rank %d of %d", rank, size);
    struct ccl_job *job = calloc(1, sizeof *job);
    struct ccl_comm *comm = job ? ccl_comm_new(rank, size, blocking) : NULL;
    if (!comm) {
        free(job);
        return ccl_fail(NULL, CCL_SYSTEM_ERROR, "out of memory");
    }
    *job = (struct ccl_job){.comm = comm, .out = out, .run = run_init, .address = id->address};
    *out = comm;
    return ccl_job_submit(job);
}

EMU_EXPORT int ncclCommInitRank(struct ccl_comm **out, int size, struct ccl_unique_id id, int rank)
{
    return start_init(out, size, &id, rank, NULL);
}

#ifndef EMULATOR_OLD
EMU_EXPORT int ncclCommInitRankConfig(struct ccl_comm **out, int size, struct ccl_unique_id id,
                                      int rank, const void *config)
{
    return start_init(out, size, &id, rank, config);
}

static int run_finalize(struct ccl_job *job)
{
    ccl_drain(job->comm);
    ccl_world_leave(job->comm, CCL_FINALIZED);
    return CCL_OK;
}

EMU_EXPORT int ncclCommFinalize(struct ccl_comm *comm)
{
    if (!ccl_acquire(comm))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no such communicator");
    int result = ccl_usable(comm);
    struct ccl_job *job = result ? NULL : calloc(1, sizeof *job);
    if (job) {
        *job = (struct ccl_job){.comm = comm, .run = run_finalize};
        comm->finalized = true;
        result = ccl_job_submit(job);
    } else if (!result) {
        result = ccl_fail(NULL, CCL_SYSTEM_ERROR, "out of memory");
    }
    ccl_release(comm);
    return result;
}
#endif

/** Ends a communicator: after its work, or at once. */
static int end(struct ccl_comm *comm, bool abort)
{
    if (!ccl_acquire(comm))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no such communicator");
    if (unregister(comm)) {
        if (abort) {
            atomic_store(&comm->gone, true);
            ccl_stop(comm);
        }
        wait_for_jobs(comm);
        ccl_drain(comm);
        atomic_store(&comm->gone, true);
        ccl_world_leave(comm, abort ? CCL_ABORTED : CCL_LEFT);
        ccl_release(comm);
    }
    ccl_release(comm);
    return CCL_OK;
}

EMU_EXPORT int ncclCommDestroy(struct ccl_comm *comm)
{
    return comm ? end(comm, false) : CCL_OK;
}

EMU_EXPORT int ncclCommAbort(struct ccl_comm *comm)
{
    return comm ? end(comm, true) : CCL_OK;
}
