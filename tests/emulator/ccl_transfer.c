/** Bytes through rings: many transfers at once, each in pieces as the rings have room. */
#include "ccl.h"

#include <string.h>

static struct ccl_ring *ring_of(struct ccl_comm *comm, const struct ccl_transfer *transfer)
{
    int from = transfer->sending ? comm->rank : transfer->peer;
    int to = transfer->sending ? transfer->peer : comm->rank;
    return &comm->world->rings[from * comm->size + to];
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/** Copies between a ring, from a position on, and memory; around the end of the ring. */
static void copy_ring(struct ccl_ring *ring, uint64_t position, void *memory, size_t bytes, bool in)
{
    size_t start = (size_t)(position % CCL_RING), first = least(bytes, CCL_RING - start);
    unsigned char *rest = (unsigned char *)memory + first;
    if (in) {
        memcpy(ring->data + start, memory, first);
        memcpy(ring->data, rest, bytes - first);
    } else {
        memcpy(memory, ring->data + start, first);
        memcpy(rest, ring->data, bytes - first);
    }
}

static bool finished(const struct ccl_transfer *transfer)
{
    return transfer->moved == sizeof transfer->header + transfer->header.bytes;
}

/** Moves what can be moved now of header and data. False if nothing could. */
static bool advance(struct ccl_comm *comm, struct ccl_transfer *transfer,
                    struct ccl_header *received)
{
    struct ccl_ring *ring = ring_of(comm, transfer);
    uint64_t written = atomic_load(&ring->written), read = atomic_load(&ring->read);
    const size_t head = sizeof transfer->header;
    size_t room = (size_t)(transfer->sending ? CCL_RING - (written - read) : written - read);
    size_t bytes;
    if (transfer->moved == 0) { /* The header goes as a whole. */
        if (room < head)
            return false;
        bytes = head;
        copy_ring(ring, transfer->sending ? written : read,
                  transfer->sending ? &transfer->header : received, head, transfer->sending);
    } else {
        bytes = least(room, head + transfer->header.bytes - transfer->moved);
        if (!bytes)
            return false;
        copy_ring(ring, transfer->sending ? written : read,
                  (unsigned char *)transfer->data + (transfer->moved - head), bytes,
                  transfer->sending);
    }
    transfer->moved += bytes;
    atomic_fetch_add(transfer->sending ? &ring->written : &ring->read, bytes);
    ccl_bell_ring(&comm->world->slots[transfer->peer]);
    return true;
}

/** Whether an earlier transfer uses the same ring and is not done. */
static bool must_wait(const struct ccl_transfer *transfers, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (transfers[i].sending == transfers[index].sending &&
            transfers[i].peer == transfers[index].peer && !finished(&transfers[i]))
            return true;
    return false;
}

static bool agree(const struct ccl_header *a, const struct ccl_header *b)
{
    if (a->kind != b->kind || a->bytes != b->bytes)
        return false;
    return a->kind == CCL_SEND ||
           (a->type == b->type && a->reduction == b->reduction && a->root == b->root);
}

/** Moves what can be moved now of all; false on an error. */
static bool advance_all(struct ccl_comm *comm, struct ccl_transfer *transfers, size_t count,
                        bool *moved, bool *done)
{
    *moved = false;
    *done = true;
    for (size_t i = 0; i < count; i++) {
        struct ccl_transfer *one = &transfers[i];
        while (!finished(one) && !must_wait(transfers, i)) {
            struct ccl_header received = one->header;
            if (!advance(comm, one, &received))
                break;
            *moved = true;
            if (!agree(&received, &one->header)) {
                ccl_fail(comm, CCL_INVALID_USAGE,
                         "ranks disagree: rank %d is in %s of %zu bytes, rank %d in %s of %zu",
                         comm->rank, ccl_kind_name(one->header.kind), (size_t)one->header.bytes,
                         one->peer, ccl_kind_name(received.kind), (size_t)received.bytes);
                return false;
            }
        }
        *done &= finished(one);
    }
    return true;
}

/** The rank for which it can be that nothing moves, -1: none. */
static int suspect(struct ccl_comm *comm, const struct ccl_transfer *transfers, size_t count)
{
    int peers[CCL_MAX_RANKS], number = 0;
    bool collective = false, is_peer[CCL_MAX_RANKS] = {false};
    for (size_t i = 0; i < count; i++) {
        const struct ccl_transfer *one = &transfers[i];
        collective |= one->header.kind != CCL_SEND;
        if (!finished(one) && !is_peer[one->peer]) {
            is_peer[one->peer] = true;
            peers[number++] = one->peer;
        }
    }
    /* Peers of a collective wait for others in their turn. */
    int found = collective ? ccl_rank_suspect(comm, NULL, 0, false) : -1;
    return found >= 0 ? found : ccl_rank_suspect(comm, peers, number, true);
}

bool ccl_transfer_all(struct ccl_comm *comm, struct ccl_transfer *transfers, size_t count)
{
    struct ccl_slot *slot = &comm->world->slots[comm->rank];
    int result = atomic_load(&comm->result);
    bool failed = result != CCL_OK && result != CCL_IN_PROGRESS;
    for (uint64_t last = 0; !atomic_load(&comm->stop);) {
        uint32_t seen = atomic_load(&slot->bell);
        /* Looked for before the rings are: what a rank sent before its end still counts. */
        int blamed = !failed && ccl_time_to_look(&last) ? suspect(comm, transfers, count) : -1;
        bool moved = false, done = false;
        if (!failed)
            failed = !advance_all(comm, transfers, count, &moved, &done);
        if (!failed && done)
            return true;
        if (!failed && !moved && blamed >= 0) {
            ccl_rank_accuse(comm, blamed, comm);
            failed = true;
        }
        if (failed || !moved)
            ccl_bell_wait(slot, seen);
    }
    return false;
}
