/* Devices and streams. */
#include "internal.h"
#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEVICES = 128 };

static bool is_rocm(void)
{
    return sm_loaded_platform() == SM_PLATFORM_ROCM;
}

int sm_hip_version(void)
{
    static atomic_int known;
    int version = atomic_load(&known);
    if (version == 0 && is_rocm() && sm_function_of(SM_S_runtime_version) != NULL &&
        SM_CALL(NULL, runtime_version, (&version)) == 0) {
        atomic_store(&known, version);
    }
    return version;
}

/* ------------------------------------------------------------------ the thread's device */

/* A device's primary context, which torch and the CUDA runtime use too. It is kept for the life of
 * the process. */
static int primary_context(int device, uint64_t *context, sm_error *error)
{
    static _Atomic uint64_t contexts[MAX_DEVICES];
    if (device < 0 || device >= MAX_DEVICES) {
        return sm_fail(error, SM_E_ARGUMENT, "", "", "there is no device %d", device);
    }
    uint64_t found = atomic_load(&contexts[device]);
    if (found == 0) {
        SM_REQUIRE(context_retain, error);
        const int code = SM_CALL(error, context_retain, (&found, device));
        if (code != 0) {
            return code;
        }
        atomic_store(&contexts[device], found);
    }
    *context = found;
    return 0;
}

int sm_guard_enter(int device, sm_guard *guard, sm_error *error)
{
    *guard = (sm_guard){.device = -1, .pushed = false};
    if (is_rocm()) {
        SM_REQUIRE(device_get, error);
        SM_REQUIRE(device_set, error);
        int current = -1;
        int code = SM_CALL(error, device_get, (&current));
        if (code == 0 && current != device) {
            code = SM_CALL(error, device_set, (device));
            guard->device = code == 0 ? current : -1;
        }
        return code;
    }
    SM_REQUIRE(context_push, error);
    SM_REQUIRE(context_pop, error);
    uint64_t context = 0;
    int code = primary_context(device, &context, error);
    if (code == 0) {
        code = SM_CALL(error, context_push, (context));
        guard->pushed = code == 0;
    }
    return code;
}

void sm_guard_leave(const sm_guard *guard)
{
    if (guard->device >= 0) {
        (void)SM_CALL(NULL, device_set, (guard->device));
    }
    if (guard->pushed) {
        uint64_t context = 0;
        (void)SM_CALL(NULL, context_pop, (&context));
    }
}

int sm_device_set(int device, sm_error *error)
{
    if (is_rocm()) {
        SM_REQUIRE(device_set, error);
        return SM_CALL(error, device_set, (device));
    }
    SM_REQUIRE(context_set, error);
    uint64_t context = 0;
    const int code = primary_context(device, &context, error);
    return code != 0 ? code : SM_CALL(error, context_set, (context));
}

int sm_device_synchronize(int device, sm_error *error)
{
    SM_REQUIRE(device_synchronize, error);
    sm_guard guard;
    int code = sm_guard_enter(device, &guard, error);
    if (code == 0) {
        code = SM_CALL(error, device_synchronize, ());
        sm_guard_leave(&guard);
    }
    return code;
}

/* ------------------------------------------------------------------ questions */

int sm_init(sm_error *error)
{
    SM_REQUIRE(init, error);
    return SM_CALL(error, init, (0U));
}

int sm_runtime_version(int *version, sm_error *error)
{
    SM_REQUIRE(runtime_version, error);
    int found = 0;
    const int code = SM_CALL(error, runtime_version, (&found));
    if (code == 0) {
        *version = found;
    }
    return code;
}

int sm_driver_version(int *version, sm_error *error)
{
    SM_REQUIRE(driver_version, error);
    int found = 0;
    const int code = SM_CALL(error, driver_version, (&found));
    if (code == 0) {
        *version = found;
    }
    return code;
}

int sm_device_count(int *count, sm_error *error)
{
    SM_REQUIRE(device_count, error);
    int found = 0;
    const int code = SM_CALL(error, device_count, (&found));
    if (code == 0) {
        *count = found;
    }
    return code;
}

int sm_device_name(int device, char *text, size_t size, sm_error *error)
{
    SM_REQUIRE(device_name, error);
    char found[256] = "";
    const int code = SM_CALL(error, device_name, (found, (int)sizeof found - 1, device));
    if (code == 0) {
        sm_copy_text(text, size, found);
    }
    return code;
}

/* AMD's are 16 characters that are the number in hexadecimal; NVIDIA's are 16 bytes. */
static void uuid_text(const char *prefix, const struct sm_uuid *uuid, char text[64])
{
    bool is_text = true;
    for (size_t i = 0; i < sizeof uuid->bytes; i++) {
        is_text = is_text && isxdigit(uuid->bytes[i]) != 0;
    }
    size_t used = (size_t)snprintf(text, 64, "%s-", prefix);
    for (size_t i = 0; i < sizeof uuid->bytes; i++) {
        const bool dash = !is_text && (i == 4 || i == 6 || i == 8 || i == 10);
        const char *format = is_text ? "%s%c" : "%s%02x";
        used += (size_t)snprintf(text + used, 64 - used, format, dash ? "-" : "",
                                 (unsigned)uuid->bytes[i]);
    }
}

/* A part of an NVIDIA GPU, which only its name tells: NVIDIA A100-SXM4-40GB MIG 1g.5gb */
static bool is_mig(int device)
{
    char name[256] = "";
    return !is_rocm() && sm_device_name(device, name, sizeof name, NULL) == 0 &&
           strstr(name, " MIG ") != NULL;
}

int sm_device_uuid(int device, char *text, size_t size, sm_error *error)
{
    SM_REQUIRE(device_uuid, error);
    struct sm_uuid uuid = {{0}};
    const int code = SM_CALL(error, device_uuid, (&uuid, device));
    if (code == 0) {
        char found[64];
        uuid_text(is_mig(device) ? "MIG" : "GPU", &uuid, found);
        sm_copy_text(text, size, found);
    }
    return code;
}

int sm_device_pci_address(int device, char *text, size_t size, sm_error *error)
{
    SM_REQUIRE(device_pci_address, error);
    char found[64] = "";
    const int code = SM_CALL(error, device_pci_address, (found, (int)sizeof found - 1, device));
    if (code == 0) {
        sm_copy_text(text, size, found);
    }
    return code;
}

int sm_device_memory(int device, size_t *total, sm_error *error)
{
    SM_REQUIRE(device_memory, error);
    size_t found = 0;
    const int code = SM_CALL(error, device_memory, (&found, device));
    if (code == 0) {
        *total = found;
    }
    return code;
}

int sm_device_attribute(int device, int attribute, int *value, sm_error *error)
{
    static const int numbers[][2] = {
        [SM_ATTRIBUTE_VMM] = {SM_HIP_ATTRIBUTE_VMM, SM_CUDA_ATTRIBUTE_VMM},
        [SM_ATTRIBUTE_RDMA] = {SM_HIP_ATTRIBUTE_RDMA, SM_CUDA_ATTRIBUTE_RDMA},
        [SM_ATTRIBUTE_DMABUF] = {SM_HIP_ATTRIBUTE_DMABUF, SM_CUDA_ATTRIBUTE_DMABUF},
    };
    SM_REQUIRE(device_attribute, error);
    if (attribute < 0 || (size_t)attribute >= sizeof numbers / sizeof numbers[0]) {
        return sm_fail(error, SM_E_ARGUMENT, "", "", "no attribute has the number %d", attribute);
    }
    int found = 0;
    const int number = numbers[attribute][is_rocm() ? 0 : 1];
    const int code = SM_FUNCTION(device_attribute)(&found, number, device);
    if (code == SM_GPU_INVALID_VALUE) {
        (void)sm_answer(SM_S_device_attribute, code, NULL);
        *value = -1; /* a question that this version does not know */
        return 0;
    }
    if (code == 0) {
        *value = found != 0;
    }
    return sm_answer(SM_S_device_attribute, code, error);
}

/* ------------------------------------------------------------------ streams */

int sm_stream_create(int device, uint64_t *stream, sm_error *error)
{
    SM_REQUIRE(stream_create, error);
    sm_guard guard;
    int code = sm_guard_enter(device, &guard, error);
    if (code == 0) {
        uint64_t found = 0;
        code = SM_CALL(error, stream_create, (&found, SM_STREAM_NON_BLOCKING));
        sm_guard_leave(&guard);
        if (code == 0) {
            *stream = found;
        }
    }
    return code;
}

int sm_stream_destroy(uint64_t stream, sm_error *error)
{
    SM_REQUIRE(stream_destroy, error);
    return SM_CALL(error, stream_destroy, (stream));
}

int sm_stream_synchronize(uint64_t stream, sm_error *error)
{
    SM_REQUIRE(stream_synchronize, error);
    return SM_CALL(error, stream_synchronize, (stream));
}

int sm_stream_query(int device, uint64_t stream, int *busy, sm_error *error)
{
    SM_REQUIRE(stream_query, error);
    sm_guard guard = {.device = -1};
    if (stream == 0) { /* each device has its own */
        const int refused = sm_guard_enter(device, &guard, error);
        if (refused != 0) {
            return refused;
        }
    }
    const int code = SM_FUNCTION(stream_query)(stream);
    sm_guard_leave(&guard);
    if (code == SM_GPU_NOT_READY) {
        if (sm_function_of(SM_S_last_error) != NULL) {
            (void)SM_FUNCTION(last_error)(); /* HIP counts "not ready" as an error, too */
        }
        *busy = 1;
        return 0;
    }
    if (code == 0) {
        *busy = 0;
    }
    return sm_answer(SM_S_stream_query, code, error);
}
