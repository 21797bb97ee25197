/** The names of RCCL and NCCL for what needs no file of its own. */
#include "ccl.h"

#include <stdlib.h>
#include <string.h>

const char slurmmesh_emulator[] =
    EMU_NAME("slurmmesh EMULATOR (no GPU): RCCL", "slurmmesh EMULATOR (no GPU): NCCL")
    " between processes of one host";

EMU_EXPORT int ncclGetVersion(int *version)
{
    if (!version)
        return CCL_INVALID_ARGUMENT;
#ifdef EMULATOR_OLD
    const char *fallback = "2.13.4";
#else
    const char *fallback = EMU_NAME("2.27.7", "2.29.3");
#endif
    *version = emu_setting_version("CCL_VERSION", fallback, 10000, 100);
    return CCL_OK;
}

EMU_EXPORT const char *ncclGetErrorString(int result)
{
    static const char *const texts[] = {
        "EMULATOR: no error",
        "EMULATOR: unhandled gpu error",
        "EMULATOR: unhandled system error",
        "EMULATOR: internal error",
        "EMULATOR: invalid argument",
        "EMULATOR: invalid usage",
        "EMULATOR: remote process exited or there was a network error",
        "EMULATOR: operation in progress",
    };
    bool known = result >= 0 && (size_t)result < sizeof texts / sizeof *texts;
    return known ? texts[result] : "EMULATOR: unknown result code";
}

#ifndef EMULATOR_OLD
EMU_EXPORT const char *ncclGetLastError(struct ccl_comm *comm)
{
    bool known = ccl_acquire(comm);
    const char *text = ccl_last_error(known ? comm : NULL);
    if (known)
        ccl_release(comm);
    return text;
}
#endif

EMU_EXPORT int ncclGetUniqueId(struct ccl_unique_id *id)
{
    if (!id)
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no place for the unique id");
    memset(id, 0, sizeof *id);
    return ccl_world_new(&id->address);
}

EMU_EXPORT int ncclCommInitRank(struct ccl_comm **out, int size, struct ccl_unique_id id, int rank);
EMU_EXPORT int ncclGroupStart(void);
EMU_EXPORT int ncclGroupEnd(void);

/** All ranks are of this thread; which device each has makes no difference here. */
EMU_EXPORT int ncclCommInitAll(struct ccl_comm **comms, int size, const int *devices)
{
    struct ccl_unique_id id;
    (void)devices;
    int result = ncclGetUniqueId(&id);
    if (result)
        return result;
    ncclGroupStart();
    for (int rank = 0; rank < size && !result; rank++)
        result = ncclCommInitRank(&comms[rank], size, id, rank);
    int ended = ncclGroupEnd();
    return result ? result : ended;
}

/** A field of a communicator. */
#define ASK(comm, out, value)                                                                      \
    do {                                                                                           \
        if (!(out) || !ccl_acquire(comm))                                                          \
            return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no such communicator");                   \
        *(out) = (value);                                                                          \
        ccl_release(comm);                                                                         \
        return CCL_OK;                                                                             \
    } while (0)

EMU_EXPORT int ncclCommGetAsyncError(struct ccl_comm *comm, int *result)
{
    ASK(comm, result, atomic_load(&comm->result));
}

EMU_EXPORT int ncclCommCount(struct ccl_comm *comm, int *count)
{
    ASK(comm, count, comm->size);
}

EMU_EXPORT int ncclCommUserRank(struct ccl_comm *comm, int *rank)
{
    ASK(comm, rank, comm->rank);
}

EMU_EXPORT int ncclCommCuDevice(struct ccl_comm *comm, int *device)
{
    ASK(comm, device, comm->device);
}

/** Issues an operation with these fields. */
#define ISSUE(comm, stream, ...)                                                                   \
    ccl_issue(&(const struct ccl_operation){__VA_ARGS__}, (comm), (stream))

EMU_EXPORT int ncclAllReduce(const void *send, void *recv, size_t count, int type, int reduction,
                             struct ccl_comm *comm, void *stream)
{
    return ISSUE(comm, stream, .kind = CCL_ALL_REDUCE, .send = send, .recv = recv, .count = count,
                 .type = type, .reduction = reduction);
}

EMU_EXPORT int ncclReduce(const void *send, void *recv, size_t count, int type, int reduction,
                          int root, struct ccl_comm *comm, void *stream)
{
    return ISSUE(comm, stream, .kind = CCL_REDUCE, .send = send, .recv = recv, .count = count,
                 .type = type, .reduction = reduction, .root = root);
}

EMU_EXPORT int ncclReduceScatter(const void *send, void *recv, size_t count, int type,
                                 int reduction, struct ccl_comm *comm, void *stream)
{
    return ISSUE(comm, stream, .kind = CCL_REDUCE_SCATTER, .send = send, .recv = recv,
                 .count = count, .type = type, .reduction = reduction);
}

EMU_EXPORT int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root,
                             struct ccl_comm *comm, void *stream)
{
    return ISSUE(comm, stream, .kind = CCL_BROADCAST, .send = send, .recv = recv, .count = count,
                 .type = type, .root = root);
}

EMU_EXPORT int ncclAllGather(const void *send, void *recv, size_t count, int type,
                             struct ccl_comm *comm, void *stream)
{
    return ISSUE(comm, stream, .kind = CCL_ALL_GATHER, .send = send, .recv = recv, .count = count,
                 .type = type);
}

EMU_EXPORT int ncclSend(const void *send, size_t count, int type, int peer, struct ccl_comm *comm,
                        void *stream)
{
    return ISSUE(comm, stream, .kind = CCL_SEND, .send = send, .count = count, .type = type,
                 .root = peer);
}

EMU_EXPORT int ncclRecv(void *recv, size_t count, int type, int peer, struct ccl_comm *comm,
                        void *stream)
{
    return ISSUE(comm, stream, .kind = CCL_RECV, .recv = recv, .count = count, .type = type,
                 .root = peer);
}

#ifndef EMULATOR_OLD
/** A registered buffer; the handle is its address. */
struct registration {
    struct ccl_comm *comm;
};

EMU_EXPORT int ncclCommRegister(struct ccl_comm *comm, void *buffer, size_t size, void **handle)
{
    if (!buffer || !size || !handle || !ccl_acquire(comm))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no such buffer or communicator");
    struct registration *made = malloc(sizeof *made);
    if (made) {
        made->comm = comm;
        *handle = made;
        pthread_mutex_lock(&comm->lock);
        comm->registered++;
        pthread_mutex_unlock(&comm->lock);
    }
    ccl_release(comm);
    return made ? CCL_OK : ccl_fail(NULL, CCL_SYSTEM_ERROR, "out of memory");
}

EMU_EXPORT int ncclCommDeregister(struct ccl_comm *comm, void *handle)
{
    struct registration *found = handle;
    if (!found || !ccl_acquire(comm))
        return ccl_fail(NULL, CCL_INVALID_ARGUMENT, "no such buffer or communicator");
    bool own = found->comm == comm;
    if (own) {
        pthread_mutex_lock(&comm->lock);
        comm->registered--;
        pthread_mutex_unlock(&comm->lock);
        free(found);
    }
    ccl_release(comm);
    return own ? CCL_OK : ccl_fail(NULL, CCL_INVALID_ARGUMENT, "it belongs to another");
}

EMU_EXPORT int ncclMemAlloc(void **address, size_t size)
{
    int status = address && size ? slurmmesh_emulator_allocate(address, size) : EMU_INVALID_VALUE;
    return status == EMU_OK              ? CCL_OK
           : status == EMU_INVALID_VALUE ? CCL_INVALID_ARGUMENT
                                         : ccl_fail(NULL, CCL_GPU_ERROR, "out of device memory");
}

EMU_EXPORT int ncclMemFree(void *address)
{
    return slurmmesh_emulator_release(address) == EMU_OK ? CCL_OK : CCL_INVALID_ARGUMENT;
}
#endif
