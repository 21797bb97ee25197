/** Copies and fills: checked as they are asked for, done by the thread of the stream. */
#include "emulator.h"

#include <stdlib.h>
#include <string.h>

struct copy {
    void *to;
    const void *from; /**< NULL: fill. */
    int value;
    size_t size;
};

static void do_copy(void *argument)
{
    struct copy *copy = argument;
    if (copy->from)
        memmove(copy->to, copy->from, copy->size);
    else
        memset(copy->to, copy->value, copy->size);
    free(copy);
}

static int check(const void *to, const void *from, size_t size, int kind)
{
    bool to_device, from_device = false;
    int status = emu_range_touch(to, size, true, &to_device);
    if (!status && from)
        status = emu_range_touch(from, size, false, &from_device);
    if (status)
        return status;
    if (kind < 0 || kind > 4)
        return EMU_INVALID_VALUE;
    bool fits = kind == 4 || (to_device == (kind & 1) && from_device == (kind >> 1));
    return fits ? EMU_OK : EMU_INVALID_VALUE;
}

static int submit(void *to, const void *from, int value, size_t size, struct emu_stream *stream)
{
    struct copy *copy = malloc(sizeof *copy);
    if (!copy)
        return EMU_OUT_OF_MEMORY;
    *copy = (struct copy){to, from, value, size};
    int status = slurmmesh_emulator_submit(stream, do_copy, copy);
    if (status)
        free(copy);
    return status;
}

int emu_copy(void *to, const void *from, size_t size, int kind)
{
    if (!size)
        return EMU_OK;
    int status = !to || !from ? EMU_INVALID_VALUE : check(to, from, size, kind);
    if (!status)
        status = emu_device_synchronize(emu_device_current(), true);
    if (!status)
        memmove(to, from, size);
    return status;
}

int emu_copy_async(void *to, const void *from, size_t size, int kind, struct emu_stream *stream)
{
    if (!size)
        return EMU_OK;
    int status = !to || !from ? EMU_INVALID_VALUE : check(to, from, size, kind);
    return status ? status : submit(to, from, 0, size, stream);
}

/** Only device memory can be filled. */
static int check_fill(const void *to, size_t size)
{
    bool is_device = false;
    int status = to ? emu_range_touch(to, size, true, &is_device) : EMU_INVALID_VALUE;
    return status || is_device ? status : EMU_INVALID_VALUE;
}

int emu_fill(void *to, int value, size_t size)
{
    int status = size ? check_fill(to, size) : EMU_OK;
    if (!status && size)
        status = emu_device_synchronize(emu_device_current(), true);
    if (!status && size)
        memset(to, value, size);
    return status;
}

int emu_fill_async(void *to, int value, size_t size, struct emu_stream *stream)
{
    int status = size ? check_fill(to, size) : EMU_OK;
    return status || !size ? status : submit(to, NULL, value, size, stream);
}
