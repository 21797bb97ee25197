/** The collectives as transfers. Simple rather than fast: reductions go over one rank. */
#include "ccl.h"

#include <stdlib.h>
#include <string.h>

const char *ccl_kind_name(enum ccl_kind kind)
{
    switch (kind) {
    case CCL_ALL_REDUCE:
        return "AllReduce";
    case CCL_BROADCAST:
        return "Broadcast";
    case CCL_REDUCE:
        return "Reduce";
    case CCL_ALL_GATHER:
        return "AllGather";
    case CCL_REDUCE_SCATTER:
        return "ReduceScatter";
    case CCL_SEND:
        return "Send";
    case CCL_RECV:
        return "Recv";
    }
    return "an unknown operation";
}

/** Without bytes the pointers may be null. */
static void copy(void *to, const void *from, size_t bytes)
{
    if (bytes)
        memcpy(to, from, bytes);
}

static struct ccl_transfer transfer(const struct ccl_operation *operation, bool sending, int peer,
                                    const void *data, size_t bytes)
{
    bool pair = operation->kind == CCL_SEND || operation->kind == CCL_RECV;
    return (struct ccl_transfer){
        .sending = sending,
        .peer = peer,
        .data = (void *)(uintptr_t)data,
        .header = {.kind = pair ? CCL_SEND : (uint16_t)operation->kind,
                   .type = (uint16_t)operation->type,
                   .reduction = (uint16_t)operation->reduction,
                   .root = pair ? 0 : (uint16_t)operation->root,
                   .bytes = bytes},
    };
}

static bool one_transfer(struct ccl_comm *comm, const struct ccl_operation *operation,
                         bool sending, int peer, const void *data, size_t bytes)
{
    struct ccl_transfer single = transfer(operation, sending, peer, data, bytes);
    return ccl_transfer_all(comm, &single, 1);
}

static size_t bytes_of(const struct ccl_operation *operation)
{
    return operation->count * ccl_size_of(operation->type);
}

/** Data of the root to all others. */
static bool spread(struct ccl_comm *comm, const struct ccl_operation *operation, int root,
                   const void *data)
{
    size_t bytes = bytes_of(operation);
    if (comm->rank != root)
        return one_transfer(comm, operation, false, root, operation->recv, bytes);
    struct ccl_transfer transfers[CCL_MAX_RANKS];
    size_t count = 0;
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != root)
            transfers[count++] = transfer(operation, true, rank, data, bytes);
    if (!ccl_transfer_all(comm, transfers, count))
        return false;
    if (operation->recv != data && bytes)
        memmove(operation->recv, data, bytes);
    return true;
}

/** Averages what was summed up. */
static void finish(const struct ccl_operation *operation, void *sum, int ranks)
{
    if (operation->reduction == CCL_AVG)
        ccl_divide(operation->type, sum, operation->count, ranks);
}

/** All data into `sum` at the root, in the order of ranks. */
static bool collect(struct ccl_comm *comm, const struct ccl_operation *operation, int root,
                    void *sum)
{
    size_t bytes = bytes_of(operation);
    if (comm->rank != root)
        return one_transfer(comm, operation, true, root, operation->send, bytes);
    void *other = malloc(bytes + 1);
    bool fine = other;
    for (int rank = 0; fine && rank < comm->size; rank++) {
        const void *from = rank == root ? operation->send : other;
        fine = rank == root || one_transfer(comm, operation, false, rank, other, bytes);
        if (fine && rank == 0)
            copy(sum, from, bytes);
        else if (fine)
            ccl_combine(operation->type, operation->reduction, sum, from, operation->count);
    }
    free(other);
    if (fine)
        finish(operation, sum, comm->size);
    return fine;
}

static bool reduce(struct ccl_comm *comm, const struct ccl_operation *operation, bool to_all)
{
    int root = to_all ? 0 : operation->root;
    size_t bytes = bytes_of(operation);
    void *sum = comm->rank == root ? malloc(bytes + 1) : NULL;
    bool fine = (sum || comm->rank != root) && collect(comm, operation, root, sum);
    if (fine && to_all)
        fine = spread(comm, operation, root, sum);
    else if (fine && sum)
        copy(operation->recv, sum, bytes);
    free(sum);
    return fine;
}

static bool all_gather(struct ccl_comm *comm, const struct ccl_operation *operation)
{
    struct ccl_transfer transfers[2 * CCL_MAX_RANKS];
    size_t bytes = bytes_of(operation), count = 0;
    char *recv = operation->recv, *own = recv + (size_t)comm->rank * bytes;
    for (int rank = 0; rank < comm->size; rank++) {
        if (rank == comm->rank)
            continue;
        transfers[count++] = transfer(operation, true, rank, operation->send, bytes);
        transfers[count++] =
            transfer(operation, false, rank, recv + (size_t)rank * bytes, bytes);
    }
    if (!ccl_transfer_all(comm, transfers, count))
        return false;
    if (operation->send != own && bytes)
        memmove(own, operation->send, bytes);
    return true;
}

static bool reduce_scatter(struct ccl_comm *comm, const struct ccl_operation *operation)
{
    struct ccl_transfer transfers[2 * CCL_MAX_RANKS];
    size_t bytes = bytes_of(operation), count = 0;
    const char *send = operation->send, *own = send + (size_t)comm->rank * bytes;
    char *parts = malloc(bytes * (size_t)comm->size + 1);
    if (!parts)
        return false;
    for (int rank = 0; rank < comm->size; rank++) {
        char *part = parts + (size_t)rank * bytes;
        if (rank == comm->rank) {
            copy(part, own, bytes);
            continue;
        }
        transfers[count++] = transfer(operation, true, rank, send + (size_t)rank * bytes, bytes);
        transfers[count++] = transfer(operation, false, rank, part, bytes);
    }
    bool fine = ccl_transfer_all(comm, transfers, count);
    for (int rank = 1; fine && rank < comm->size; rank++)
        ccl_combine(operation->type, operation->reduction, parts, parts + (size_t)rank * bytes,
                    operation->count);
    if (fine) {
        finish(operation, parts, comm->size);
        copy(operation->recv, parts, bytes);
    }
    free(parts);
    return fine;
}

static bool collective(struct ccl_comm *comm, const struct ccl_operation *operation)
{
    switch (operation->kind) {
    case CCL_ALL_REDUCE:
        return reduce(comm, operation, true);
    case CCL_REDUCE:
        return reduce(comm, operation, false);
    case CCL_BROADCAST:
        return spread(comm, operation, operation->root, operation->send);
    case CCL_ALL_GATHER:
        return all_gather(comm, operation);
    default:
        return reduce_scatter(comm, operation);
    }
}

static bool is_pair(const struct ccl_operation *operation)
{
    return operation->kind == CCL_SEND || operation->kind == CCL_RECV;
}

void ccl_run(struct ccl_comm *comm, struct ccl_operation *operations)
{
    size_t pairs = 0;
    bool fine = true;
    for (struct ccl_operation *one = operations; one && fine; one = one->next) {
        pairs += is_pair(one);
        if (!is_pair(one)) {
            atomic_store(&comm->operation, ccl_kind_name(one->kind));
            fine = collective(comm, one);
        }
    }
    struct ccl_transfer *transfers = pairs && fine ? calloc(pairs, sizeof *transfers) : NULL;
    if (transfers) {
        size_t count = 0;
        for (struct ccl_operation *one = operations; one; one = one->next) {
            if (!is_pair(one))
                continue;
            bool sending = one->kind == CCL_SEND;
            atomic_store(&comm->operation, ccl_kind_name(one->kind));
            transfers[count++] = transfer(one, sending, one->root,
                                          sending ? one->send : one->recv, bytes_of(one));
        }
        ccl_transfer_all(comm, transfers, count);
        free(transfers);
    }
    atomic_store(&comm->operation, NULL);
}
