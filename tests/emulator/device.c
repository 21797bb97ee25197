/**
 * Devices that are not there: how many, what they are called, how much memory they have.
 *
 * SLURMMESH_EMULATOR_DEVICES (1) is how many the machine has, SLURMMESH_EMULATOR_MEMORY (16 GiB)
 * how many bytes each of them has for one process. The masks of the vendors count.
 */
#include "emulator.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pid_t initialized_in;
static int visible_count;
static int visible[EMU_MAX_DEVICES]; /* The number of each device without masks. */
static size_t used[EMU_MAX_DEVICES];
static _Thread_local int current;

/** The digits that name a device for good: "e0e0e0e000000003". Partitions of one have the same. */
static void serial_number(int physical, char text[17])
{
    unsigned whole = (unsigned)physical / (unsigned)emu_setting("PARTITIONS", 1);
    snprintf(text, 17, "e0e0e0e0%08x", whole);
}

/** The place in the list of the device that a mask's entry means, or -1. */
static int place_of(const char *entry, const int *devices, int count)
{
    if (strncmp(entry, "GPU-", 4) == 0) {
        for (int place = 0; place < count; place++) {
            char serial[17];
            serial_number(devices[place], serial);
            if (strcmp(entry + 4, serial) == 0)
                return place;
        }
        return -1;
    }
    char *end;
    long place = strtol(entry, &end, 10);
    return end != entry && !*end && place >= 0 && place < count ? (int)place : -1;
}

/** Leaves of the list what a mask names, in its order; the first bad entry ends it. */
static int apply_mask(const char *variable, int *devices, int count)
{
    const char *mask = getenv(variable);
    if (!mask)
        return count;
    int kept[EMU_MAX_DEVICES], number = 0;
    char *copy = strdup(mask), *rest = NULL;
    for (char *entry = copy ? strtok_r(copy, ",", &rest) : NULL; entry && number < EMU_MAX_DEVICES;
         entry = strtok_r(NULL, ",", &rest)) {
        int place = place_of(entry, devices, count);
        if (place < 0)
            break;
        kept[number++] = devices[place];
    }
    free(copy);
    memcpy(devices, kept, sizeof(int) * (size_t)number);
    return number;
}

static void find_devices(void)
{
    uint64_t count = emu_setting("DEVICES", 1);
    int number = count > EMU_MAX_DEVICES ? EMU_MAX_DEVICES : (int)count;
    for (int i = 0; i < number; i++)
        visible[i] = i;
#ifdef EMULATOR_CUDA
    visible_count = apply_mask("CUDA_VISIBLE_DEVICES", visible, number);
#else
    number = apply_mask("ROCR_VISIBLE_DEVICES", visible, number);
    const char *second =
        getenv("HIP_VISIBLE_DEVICES") ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES";
    visible_count = apply_mask(second, visible, number);
#endif
}

int emu_initialize(void)
{
    int status = EMU_OK;
    pthread_mutex_lock(&lock);
    if (!initialized_in) {
        find_devices();
        initialized_in = getpid();
    }
    if (initialized_in != getpid())
        status = EMU_NOT_INITIALIZED;
    else if (!visible_count)
        status = EMU_NO_DEVICE;
    pthread_mutex_unlock(&lock);
    return status;
}

int emu_ready(void)
{
    pthread_mutex_lock(&lock);
    bool ready = initialized_in == getpid();
    pthread_mutex_unlock(&lock);
    return ready ? EMU_OK : EMU_NOT_INITIALIZED;
}

int emu_device_count(void)
{
    return visible_count;
}

bool emu_device_valid(int device)
{
    return device >= 0 && device < visible_count;
}

int emu_device_name(int device, char *name, int length)
{
    if (!name || length <= 0)
        return EMU_INVALID_VALUE;
    if (!emu_device_valid(device))
        return EMU_INVALID_DEVICE;
    bool mig = EMU_NAME(false, true) && emu_setting("MIG", 0);
    snprintf(name, (size_t)length, "slurmmesh EMULATOR (no GPU) %d%s", visible[device],
             mig ? " MIG 1g.5gb" : "");
    return EMU_OK;
}

int emu_device_uuid(int device, unsigned char uuid[16])
{
    if (!uuid)
        return EMU_INVALID_VALUE;
    if (!emu_device_valid(device))
        return EMU_INVALID_DEVICE;
    char serial[17];
    serial_number(visible[device], serial);
#ifdef EMULATOR_CUDA
    memset(uuid, 0, 16);
    for (int i = 0; i < 8; i++) {
        unsigned byte = 0;
        sscanf(serial + 2 * i, "%2x", &byte);
        uuid[8 + i] = (unsigned char)byte;
    }
#else
    memcpy(uuid, serial, 16);
#endif
    return EMU_OK;
}

int emu_device_pci_bus(int device)
{
    return 0x80 + visible[device];
}

int emu_device_pci_address(int device, char *text, int length)
{
    if (!text || length < 13)
        return EMU_INVALID_VALUE;
    if (!emu_device_valid(device))
        return EMU_INVALID_DEVICE;
    snprintf(text, (size_t)length, "0000:%02x:00.0", (unsigned)emu_device_pci_bus(device));
    return EMU_OK;
}

int emu_device_total(int device, size_t *bytes)
{
    if (!bytes)
        return EMU_INVALID_VALUE;
    if (!emu_device_valid(device))
        return EMU_INVALID_DEVICE;
    *bytes = (size_t)emu_setting("MEMORY", (uint64_t)16 << 30);
    return EMU_OK;
}

int emu_device_free(int device, size_t *bytes)
{
    size_t total;
    int status = emu_device_total(device, &total);
    if (status || !bytes)
        return status ? status : EMU_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *bytes = used[device] < total ? total - used[device] : 0;
    pthread_mutex_unlock(&lock);
    return EMU_OK;
}

int emu_device_charge(int device, size_t bytes)
{
    size_t total;
    int status = emu_device_total(device, &total);
    if (status)
        return status;
    pthread_mutex_lock(&lock);
    if (used[device] > total || bytes > total - used[device])
        status = EMU_OUT_OF_MEMORY;
    else
        used[device] += bytes;
    pthread_mutex_unlock(&lock);
    return status;
}

void emu_device_refund(int device, size_t bytes)
{
    pthread_mutex_lock(&lock);
    used[device] -= bytes;
    pthread_mutex_unlock(&lock);
}

int emu_device_current(void)
{
    return current;
}

int emu_device_make_current(int device)
{
    if (!emu_device_valid(device))
        return visible_count ? EMU_INVALID_DEVICE : EMU_NO_DEVICE;
    current = device;
    return EMU_OK;
}

int slurmmesh_emulator_current_device(void)
{
    return current;
}
