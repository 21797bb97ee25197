/* DLPack: device memory as a tensor of somebody else's, without a copy. */
#include "internal.h"
#include "owner.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_DIMENSIONS = 64 };

/* DLTensor and DLManagedTensor of DLPack's stable interface, without versions. */
typedef struct dl_tensor {
    void *data;
    struct {
        int32_t type;
        int32_t id;
    } device;
    int32_t dimensions;
    struct {
        uint8_t code;
        uint8_t bits;
        uint16_t lanes;
    } element;
    int64_t *shape;
    int64_t *strides; /* in elements */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed_tensor {
    dl_tensor tensor;
    void *context; /* the sm_owner */
    void (*deleter)(struct dl_managed_tensor *self);
} dl_managed_tensor;

_Static_assert(sizeof(dl_tensor) == 48, "DLTensor");
_Static_assert(sizeof(dl_managed_tensor) == 64, "DLManagedTensor");

/* A tensor with the room for its shape and strides. */
typedef struct block {
    dl_managed_tensor managed; /* first: the tensor's address is the block's */
    int64_t sizes[];
} block;

static void *(*before_waiting)(void);
static void (*after_waiting)(void *);

void sm_dlpack_around(void *(*let_go)(void), void (*take_back)(void *))
{
    before_waiting = let_go;
    after_waiting = take_back;
}

static void delete_tensor(dl_managed_tensor *self)
{
    void *held = before_waiting != NULL ? before_waiting() : NULL;
    (void)sm_owner_drop(self->context, NULL); /* nobody is there to be told */
    if (after_waiting != NULL) {
        after_waiting(held);
    }
    free(self);
}

/* At least 1, for strides: those of an empty tensor are as if it was not. */
static int64_t at_least_one(int64_t size)
{
    return size > 0 ? size : 1;
}

int sm_dlpack_new(sm_owner *owner, uint64_t address, int dlpack_device, int device, int type,
                  int bits, int dimensions, const int64_t *shape, void **tensor, sm_error *error)
{
    if (dimensions < 0 || dimensions > MAX_DIMENSIONS) {
        return sm_fail(error, SM_E_ARGUMENT, "", "", "a tensor has up to %d dimensions, not %d",
                       MAX_DIMENSIONS, dimensions);
    }
    const size_t count = (size_t)dimensions;
    bool empty = false;
    int64_t elements = 1;
    for (size_t i = 0; i < count; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(elements, at_least_one(shape[i]), &elements)) {
            return sm_fail(error, SM_E_ARGUMENT, "", "", "no tensor has sizes as these");
        }
        empty = empty || shape[i] == 0;
    }
    block *made = calloc(1, sizeof *made + 2 * count * sizeof made->sizes[0]);
    if (made == NULL) {
        return sm_fail(error, SM_E_NO_MEMORY, "", "", "no host memory for a tensor");
    }
    int64_t *strides = made->sizes + count;
    int64_t stride = 1;
    for (size_t i = count; i-- > 0;) {
        made->sizes[i] = shape[i];
        strides[i] = stride;
        stride *= at_least_one(shape[i]);
    }
    made->managed = (dl_managed_tensor){
        .tensor =
            {
                /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
                .data = empty ? NULL : (void *)(uintptr_t)address,
                .device = {dlpack_device, device},
                .dimensions = dimensions,
                .element = {(uint8_t)type, (uint8_t)bits, 1},
                .shape = made->sizes,
                .strides = strides,
            },
        .context = owner,
        .deleter = delete_tensor,
    };
    sm_owner_hold(owner);
    *tensor = &made->managed;
    return 0;
}

void sm_dlpack_delete(void *tensor)
{
    dl_managed_tensor *managed = tensor;
    managed->deleter(managed);
}
