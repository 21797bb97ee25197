/** Streams: each a queue of work and, from its first work on, a thread that does it in order. */
#include "emulator.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct work {
    struct work *next;
    void (*run)(void *);
    void *argument;
};

struct emu_stream {
    struct emu_stream *next;
    int device;
    bool waits_for_default;
    bool is_default;
    bool has_thread;
    bool closing;       /**< The thread ends, and frees the stream, once the queue is empty. */
    uint64_t submitted; /**< Works so far. */
    uint64_t done;
    struct work *first;
    struct work **last;
    pthread_cond_t changed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct emu_stream *streams;

/** With the lock held. */
static struct emu_stream *add_stream(int device)
{
    struct emu_stream *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    pthread_cond_init(&made->changed, NULL);
    made->device = device;
    made->last = &made->first;
    made->next = streams;
    streams = made;
    return made;
}

/** With the lock held. */
static void free_stream(struct emu_stream *stream)
{
    struct emu_stream **link = &streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    pthread_cond_destroy(&stream->changed);
    free(stream);
}

/** The stream behind what a caller has, NULL if there is none. With the lock held. */
static struct emu_stream *resolve(struct emu_stream *stream)
{
    struct emu_stream *found = streams;
    if ((uintptr_t)stream > 2) {
        while (found && (found != stream || found->closing || found->is_default))
            found = found->next;
        return found;
    }
    int device = emu_device_current();
    while (found && !(found->is_default && found->device == device))
        found = found->next;
    if (!found && emu_device_valid(device)) {
        found = add_stream(device);
        if (found)
            found->is_default = found->waits_for_default = true;
    }
    return found;
}

static void *serve(void *argument)
{
    struct emu_stream *stream = argument;
    pthread_mutex_lock(&lock);
    while (stream->first || !stream->closing) {
        struct work *work = stream->first;
        if (!work) {
            pthread_cond_wait(&stream->changed, &lock);
            continue;
        }
        stream->first = work->next;
        if (!stream->first)
            stream->last = &stream->first;
        pthread_mutex_unlock(&lock);
        work->run(work->argument);
        free(work);
        pthread_mutex_lock(&lock);
        stream->done++;
        pthread_cond_broadcast(&stream->changed);
    }
    free_stream(stream);
    pthread_mutex_unlock(&lock);
    return NULL;
}

/** Starts the thread of a stream; it leaves all signals to the program. */
static bool start_thread(struct emu_stream *stream)
{
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, serve, stream) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

int slurmmesh_emulator_submit(void *stream, void (*run)(void *), void *argument)
{
    struct work *work = malloc(sizeof *work);
    if (!work)
        return EMU_OUT_OF_MEMORY;
    *work = (struct work){NULL, run, argument};
    int status = EMU_OK;
    pthread_mutex_lock(&lock);
    struct emu_stream *target = resolve(stream);
    if (!target)
        status = EMU_INVALID_HANDLE;
    else if (!target->has_thread && !(target->has_thread = start_thread(target)))
        status = EMU_OUT_OF_MEMORY;
    if (!status) {
        *target->last = work;
        target->last = &work->next;
        target->submitted++;
        pthread_cond_broadcast(&target->changed);
    }
    pthread_mutex_unlock(&lock);
    if (status)
        free(work);
    return status;
}

int emu_stream_create(struct emu_stream **stream, int device, bool waits_for_default)
{
    if (!stream)
        return EMU_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *stream = add_stream(device);
    if (*stream)
        (*stream)->waits_for_default = waits_for_default;
    pthread_mutex_unlock(&lock);
    return *stream ? EMU_OK : EMU_OUT_OF_MEMORY;
}

int emu_stream_destroy(struct emu_stream *stream)
{
    if ((uintptr_t)stream <= 2)
        return EMU_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    struct emu_stream *found = resolve(stream);
    if (found) {
        found->closing = true;
        if (found->has_thread)
            pthread_cond_broadcast(&found->changed);
        else
            free_stream(found);
    }
    pthread_mutex_unlock(&lock);
    return found ? EMU_OK : EMU_INVALID_HANDLE;
}

int emu_stream_query(struct emu_stream *stream)
{
    pthread_mutex_lock(&lock);
    const struct emu_stream *found = resolve(stream);
    int status = !found                              ? EMU_INVALID_HANDLE
                 : found->done != found->submitted ? EMU_NOT_READY
                                                     : EMU_OK;
    pthread_mutex_unlock(&lock);
    return status;
}

/** Whether a pointer is still a stream: a thread may have freed it meanwhile. */
static bool exists(const struct emu_stream *stream)
{
    const struct emu_stream *found = streams;
    while (found && found != stream)
        found = found->next;
    return found;
}

/** Waits until a stream has done what it was given before this call. With the lock held. */
static void wait_for(struct emu_stream *stream)
{
    uint64_t target = stream->submitted;
    while (exists(stream) && stream->done < target) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_nsec += 50 * 1000 * 1000;
        soon.tv_sec += soon.tv_nsec / 1000000000;
        soon.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&stream->changed, &lock, &soon);
    }
}

int emu_stream_synchronize(struct emu_stream *stream)
{
    pthread_mutex_lock(&lock);
    struct emu_stream *found = resolve(stream);
    if (found)
        wait_for(found);
    pthread_mutex_unlock(&lock);
    return found ? EMU_OK : EMU_INVALID_HANDLE;
}

int emu_device_synchronize(int device, bool only_blocking)
{
    if (!emu_device_valid(device))
        return EMU_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    for (struct emu_stream *one = streams; one;) {
        bool counts = one->device == device && (one->waits_for_default || !only_blocking);
        if (counts && one->done < one->submitted) {
            wait_for(one);
            one = streams; /* The list may have changed. */
        } else {
            one = one->next;
        }
    }
    pthread_mutex_unlock(&lock);
    return EMU_OK;
}

void emu_stream_alive(struct emu_alive *alive)
{
    pthread_mutex_lock(&lock);
    for (struct emu_stream *one = streams; one; one = one->next)
        alive->streams += !one->is_default;
    pthread_mutex_unlock(&lock);
}
