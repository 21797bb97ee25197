/* Collectives: RCCL and NCCL, which have the same names. */
#include "internal.h"
#include <string.h>

static struct sm_ccl_config configuration(int blocking)
{
    return (struct sm_ccl_config){
        .size = sizeof(struct sm_ccl_config),
        .magic = SM_CCL_CONFIG_MAGIC,
        .version = SM_CCL_CONFIG_VERSION,
        .blocking = blocking != 0,
    };
}

static struct sm_unique_id read_id(const unsigned char *bytes)
{
    struct sm_unique_id id;
    memcpy(id.bytes, bytes, sizeof id.bytes);
    return id;
}

int sm_ccl_version(int *version, sm_error *error)
{
    SM_REQUIRE(ccl_version, error);
    int found = 0;
    const int code = SM_CALL(error, ccl_version, (&found));
    if (code == 0) {
        *version = found;
    }
    return code;
}

int sm_ccl_unique_id(unsigned char *id, sm_error *error)
{
    SM_REQUIRE(ccl_unique_id, error);
    struct sm_unique_id found;
    const int code = SM_CALL(error, ccl_unique_id, (&found));
    if (code == 0) {
        memcpy(id, found.bytes, sizeof found.bytes);
    }
    return code;
}

int sm_ccl_last_error_text(uint64_t comm, char *text, size_t size, sm_error *error)
{
    SM_REQUIRE(ccl_last_error, error);
    const char *found = SM_FUNCTION(ccl_last_error)(comm);
    sm_copy_text(text, size, found != NULL ? found : "");
    return 0;
}

/* ------------------------------------------------------------------ communicators
 *
 * The caller's own pointer goes to the library, which may write to it after the call. */

int sm_ccl_init(uint64_t *comm, const unsigned char *id, int rank, int size, int device,
                int blocking, sm_error *error)
{
    SM_REQUIRE(ccl_init, error);
    if (blocking == 0) {
        SM_REQUIRE(ccl_init_config, error);
    }
    sm_guard guard;
    int code = sm_guard_enter(device, &guard, error);
    if (code != 0) {
        return code;
    }
    if (blocking != 0) {
        code = SM_CALL(error, ccl_init, (comm, size, read_id(id), rank));
    } else {
        struct sm_ccl_config config = configuration(blocking);
        code = SM_CALL(error, ccl_init_config, (comm, size, read_id(id), rank, &config));
    }
    sm_guard_leave(&guard);
    return code;
}

int sm_ccl_split(uint64_t comm, int color, int key, uint64_t *part, sm_error *error)
{
    SM_REQUIRE(ccl_split, error);
    return SM_CALL(error, ccl_split, (comm, color, key, part, NULL));
}

int sm_ccl_shrink(uint64_t comm, const int *without, int count, int abort, uint64_t *rest,
                  sm_error *error)
{
    enum { MOST = 4096 };
    SM_REQUIRE(ccl_shrink, error);
    if (count < 0 || count > MOST) {
        return sm_fail(error, SM_E_ARGUMENT, "", "", "%d ranks cannot be left out at once", count);
    }
    int ranks[MOST]; /* the library wants them writable */
    memcpy(ranks, without, (size_t)count * sizeof ranks[0]);
    return SM_CALL(error, ccl_shrink, (comm, ranks, count, rest, NULL, abort != 0));
}

int sm_ccl_grow(uint64_t comm, int size, const unsigned char *id, int rank, int device,
                uint64_t *grown, sm_error *error)
{
    SM_REQUIRE(ccl_grow, error);
    struct sm_unique_id given;
    if (id != NULL) {
        given = read_id(id);
    }
    sm_guard guard = {.device = -1};
    int code = comm == 0 ? sm_guard_enter(device, &guard, error) : 0;
    if (code == 0) {
        const struct sm_unique_id *address = id != NULL ? &given : NULL;
        struct sm_ccl_config config = configuration(0);
        code = SM_CALL(error, ccl_grow,
                       (comm, size, address, rank, grown, comm == 0 ? &config : NULL));
        sm_guard_leave(&guard);
    }
    return code;
}

int sm_ccl_grow_id(uint64_t comm, unsigned char *id, sm_error *error)
{
    SM_REQUIRE(ccl_grow_id, error);
    struct sm_unique_id found;
    const int code = SM_CALL(error, ccl_grow_id, (comm, &found));
    if (code == 0) {
        memcpy(id, found.bytes, sizeof found.bytes);
    }
    return code;
}

int sm_ccl_revoke(uint64_t comm, sm_error *error)
{
    SM_REQUIRE(ccl_revoke, error);
    return SM_CALL(error, ccl_revoke, (comm, 0));
}

int sm_ccl_finalize(uint64_t comm, sm_error *error)
{
    SM_REQUIRE(ccl_finalize, error);
    return SM_CALL(error, ccl_finalize, (comm));
}

int sm_ccl_destroy(uint64_t comm, sm_error *error)
{
    SM_REQUIRE(ccl_destroy, error);
    return SM_CALL(error, ccl_destroy, (comm));
}

int sm_ccl_abort(uint64_t comm, sm_error *error)
{
    SM_REQUIRE(ccl_abort, error);
    return SM_CALL(error, ccl_abort, (comm));
}

int sm_ccl_async_error(uint64_t comm, int *state, sm_error *error)
{
    SM_REQUIRE(ccl_async_error, error);
    int found = 0;
    const int code = SM_CALL(error, ccl_async_error, (comm, &found));
    if (code == 0) {
        *state = found;
    }
    return code;
}

int sm_ccl_count(uint64_t comm, int *size, sm_error *error)
{
    SM_REQUIRE(ccl_count, error);
    int found = 0;
    const int code = SM_CALL(error, ccl_count, (comm, &found));
    if (code == 0) {
        *size = found;
    }
    return code;
}

int sm_ccl_rank(uint64_t comm, int *rank, sm_error *error)
{
    SM_REQUIRE(ccl_rank, error);
    int found = 0;
    const int code = SM_CALL(error, ccl_rank, (comm, &found));
    if (code == 0) {
        *rank = found;
    }
    return code;
}

/* ------------------------------------------------------------------ operations */

int sm_ccl_all_reduce(uint64_t from, uint64_t to, size_t count, int type, int op, uint64_t comm,
                      uint64_t stream, sm_error *error)
{
    SM_REQUIRE(ccl_all_reduce, error);
    return SM_CALL(error, ccl_all_reduce, (from, to, count, type, op, comm, stream));
}

int sm_ccl_broadcast(uint64_t from, uint64_t to, size_t count, int type, int root, uint64_t comm,
                     uint64_t stream, sm_error *error)
{
    SM_REQUIRE(ccl_broadcast, error);
    return SM_CALL(error, ccl_broadcast, (from, to, count, type, root, comm, stream));
}

int sm_ccl_reduce(uint64_t from, uint64_t to, size_t count, int type, int op, int root,
                  uint64_t comm, uint64_t stream, sm_error *error)
{
    SM_REQUIRE(ccl_reduce, error);
    return SM_CALL(error, ccl_reduce, (from, to, count, type, op, root, comm, stream));
}

int sm_ccl_all_gather(uint64_t from, uint64_t to, size_t count, int type, uint64_t comm,
                      uint64_t stream, sm_error *error)
{
    SM_REQUIRE(ccl_all_gather, error);
    return SM_CALL(error, ccl_all_gather, (from, to, count, type, comm, stream));
}

int sm_ccl_reduce_scatter(uint64_t from, uint64_t to, size_t count, int type, int op,
                          uint64_t comm, uint64_t stream, sm_error *error)
{
    SM_REQUIRE(ccl_reduce_scatter, error);
    return SM_CALL(error, ccl_reduce_scatter, (from, to, count, type, op, comm, stream));
}

int sm_ccl_send(uint64_t from, size_t count, int type, int peer, uint64_t comm, uint64_t stream,
                sm_error *error)
{
    SM_REQUIRE(ccl_send, error);
    return SM_CALL(error, ccl_send, (from, count, type, peer, comm, stream));
}

int sm_ccl_recv(uint64_t to, size_t count, int type, int peer, uint64_t comm, uint64_t stream,
                sm_error *error)
{
    SM_REQUIRE(ccl_recv, error);
    return SM_CALL(error, ccl_recv, (to, count, type, peer, comm, stream));
}

int sm_ccl_group_start(sm_error *error)
{
    SM_REQUIRE(ccl_group_start, error);
    return SM_CALL(error, ccl_group_start, ());
}

int sm_ccl_group_end(sm_error *error)
{
    SM_REQUIRE(ccl_group_end, error);
    return SM_CALL(error, ccl_group_end, ());
}

/* ------------------------------------------------------------------ buffers */

int sm_ccl_register(uint64_t comm, uint64_t address, size_t size, uint64_t *registration,
                    sm_error *error)
{
    SM_REQUIRE(ccl_register, error);
    uint64_t found = 0;
    const int code = SM_CALL(error, ccl_register, (comm, address, size, &found));
    if (code == 0) {
        *registration = found;
    }
    return code;
}

int sm_ccl_deregister(uint64_t comm, uint64_t registration, sm_error *error)
{
    SM_REQUIRE(ccl_deregister, error);
    return SM_CALL(error, ccl_deregister, (comm, registration));
}

int sm_ccl_mem_alloc(int device, size_t size, uint64_t *address, sm_error *error)
{
    SM_REQUIRE(ccl_mem_alloc, error);
    sm_guard guard;
    int code = sm_guard_enter(device, &guard, error);
    if (code == 0) {
        uint64_t found = 0;
        code = SM_CALL(error, ccl_mem_alloc, (&found, size));
        sm_guard_leave(&guard);
        if (code == 0) {
            *address = found;
        }
    }
    return code;
}

int sm_ccl_mem_free(int device, uint64_t address, sm_error *error)
{
    SM_REQUIRE(ccl_mem_free, error);
    sm_guard guard;
    int code = sm_guard_enter(device, &guard, error);
    if (code == 0) {
        code = SM_CALL(error, ccl_mem_free, (address));
        sm_guard_leave(&guard);
    }
    return code;
}
