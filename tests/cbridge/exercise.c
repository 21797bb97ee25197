/* Calls the whole bridge from C, to be built with a sanitizer: exercise PLATFORM GPU_LIBRARY.
 *
 * Ends with 0 if all is as it should be; else with 1, and a line that says what was not.
 */
#include "slurmmesh_bridge.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, ROUNDS = 200 };

static sm_error error;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (void)fprintf(stderr, "line %d: %s (%s: %s, code %d)\n", __LINE__, #condition,         \
                          error.symbol, error.text, error.code);                                   \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define FINE(call) CHECK((call) == 0)

static void texts(void)
{
    char small[4];
    CHECK(sm_searched(NULL, 0) >= 1);
    CHECK(sm_searched(small, sizeof small) >= 1);
    FINE(sm_device_name(0, small, sizeof small, &error));
    CHECK(strlen(small) == sizeof small - 1);
    char text[256];
    FINE(sm_device_uuid(0, text, sizeof text, &error));
    CHECK(strncmp(text, "GPU-", 4) == 0);
    FINE(sm_device_pci_address(0, text, sizeof text, &error));
    CHECK(strchr(text, ':') != NULL);
    sm_symbol_row row;
    int rows = 0;
    while (sm_symbol(rows, &row) == 0) {
        CHECK(row.present == sm_has(row.neutral));
        rows++;
    }
    CHECK(rows > 50 && sm_symbol(-1, &row) == SM_E_ARGUMENT && sm_has("no_such_thing") == 0);
}

/* Memory of two extents, that its last user frees; its first byte is `value` in between. */
static void memory(int value)
{
    size_t unit = 0;
    uint64_t address = 0;
    sm_owner *owner = NULL;
    FINE(sm_memory_granularity(0, 0, &unit, &error));
    FINE(sm_memory_reserve(2 * unit, 0, 0, &address, &error));
    FINE(sm_owner_new(0, address, 2 * unit, &owner, &error));
    for (size_t i = 0; i < 2; i++) {
        const uint64_t place = address + i * unit;
        uint64_t handle = 0;
        FINE(sm_memory_create(0, unit, 1, &handle, &error));
        FINE(sm_memory_map(place, unit, handle, &error));
        FINE(sm_owner_add(owner, place, unit, handle, &error));
        FINE(sm_memory_set_access(place, unit, 0, SM_ACCESS_READ_WRITE, &error));
    }
    CHECK(sm_owner_add(owner, address + unit, 2 * unit, 0, NULL) == SM_E_ARGUMENT);

    unsigned char byte = 0;
    FINE(sm_memory_fill(0, address, value, unit, &error));
    FINE(sm_memory_copy(0, (uint64_t)(uintptr_t)&byte, address, 1, &error));
    CHECK(byte == value);
    CHECK(sm_memory_fill(0, address, 256, 1, &error) == SM_E_ARGUMENT);

    int kind = -1;
    int device = -1;
    FINE(sm_pointer_kind(address, &kind, &device, &error));
    CHECK(kind == SM_POINTER_DEVICE && device == 0);
    uint64_t start = 0;
    size_t size = 0;
    FINE(sm_memory_address_range(address + 1, &start, &size, &error));
    CHECK(start == address && size >= unit);

    int fd = -1;
    uint64_t offset = 1;
    FINE(sm_memory_dmabuf_fd(address, unit, &fd, &offset, &error));
    CHECK(close(fd) == 0);

    const int64_t shape[] = {2, 3};
    void *tensor = NULL;
    FINE(sm_dlpack_new(owner, address, SM_DLPACK_CPU, 0, SM_DLPACK_FLOAT, 32, 2, shape, &tensor,
                       &error));
    CHECK(sm_owner_holders(owner) == 2);
    const int64_t impossible[][3] = {{0, INT64_C(1) << 62, 8}, {INT64_C(1) << 62, 8, 0}, {1, -1, 1}};
    for (size_t i = 0; i < 3; i++) {
        void *none = NULL;
        CHECK(sm_dlpack_new(owner, address, SM_DLPACK_CPU, 0, SM_DLPACK_INT, 8, 3, impossible[i],
                            &none, &error) == SM_E_ARGUMENT);
    }
    CHECK(sm_owner_holders(owner) == 2);
    FINE(sm_owner_drop(owner, &error));
    sm_dlpack_delete(tensor);
}

static void sharing(void)
{
    size_t unit = 0;
    uint64_t handle = 0;
    uint64_t imported = 0;
    int fd = -1;
    FINE(sm_memory_granularity(0, 1, &unit, &error));
    FINE(sm_memory_create(0, unit, 0, &handle, &error));
    FINE(sm_memory_export_fd(handle, &fd, &error));
    FINE(sm_memory_import_fd(0, fd, &imported, &error));
    CHECK(close(fd) == 0);
    FINE(sm_memory_release(handle, &error));
    FINE(sm_memory_release(imported, &error));
    CHECK(sm_memory_create(0, unit + 1, 0, &handle, &error) > 0);
    CHECK(error.origin == SM_ORIGIN_GPU && error.symbol[0] != '\0' && error.text[0] != '\0');
    CHECK(strcmp(error.library, sm_library_path(SM_LIBRARY_GPU)) == 0);
}

static void streams(void)
{
    uint64_t stream = 0;
    int busy = -1;
    FINE(sm_stream_create(0, &stream, &error));
    FINE(sm_stream_synchronize(stream, &error));
    FINE(sm_stream_query(0, stream, &busy, &error));
    CHECK(busy == 0);
    const char word[] = "later";
    char copied[sizeof word] = "";
    FINE(sm_memory_copy_async(0, (uint64_t)(uintptr_t)copied, (uint64_t)(uintptr_t)word,
                              sizeof word, stream, &error));
    FINE(sm_stream_synchronize(stream, &error));
    CHECK(strcmp(copied, word) == 0);
    FINE(sm_stream_destroy(stream, &error));
    FINE(sm_device_synchronize(0, &error));
    FINE(sm_device_set(0, &error));
}

/* All operations that move numbers, of the only rank with itself: each leaves them as they are. */
static void moved(uint64_t comm)
{
    int from[2] = {4, 5};
    int to[2] = {0};
    const uint64_t ours = (uint64_t)(uintptr_t)from;
    const uint64_t theirs = (uint64_t)(uintptr_t)to;
    enum { COUNT = 2, TYPE = SM_TYPE_INT32, OP = SM_REDUCE_MAX };
    for (int way = 0; way < 5; way++) {
        to[0] = to[1] = 0;
        switch (way) {
        case 0:
            FINE(sm_ccl_broadcast(ours, theirs, COUNT, TYPE, 0, comm, 0, &error));
            break;
        case 1:
            FINE(sm_ccl_reduce(ours, theirs, COUNT, TYPE, OP, 0, comm, 0, &error));
            break;
        case 2:
            FINE(sm_ccl_all_gather(ours, theirs, COUNT, TYPE, comm, 0, &error));
            break;
        case 3:
            FINE(sm_ccl_reduce_scatter(ours, theirs, COUNT, TYPE, OP, comm, 0, &error));
            break;
        default:
            FINE(sm_ccl_group_start(&error));
            FINE(sm_ccl_send(ours, COUNT, TYPE, 0, comm, 0, &error));
            FINE(sm_ccl_recv(theirs, COUNT, TYPE, 0, comm, 0, &error));
            FINE(sm_ccl_group_end(&error));
        }
        FINE(sm_device_synchronize(0, &error));
        CHECK(to[0] == 4 && to[1] == 5);
    }
}

static void registered(uint64_t comm)
{
    uint64_t address = 0;
    uint64_t registration = 0;
    FINE(sm_ccl_mem_alloc(0, 4096, &address, &error));
    FINE(sm_ccl_register(comm, address, 4096, &registration, &error));
    FINE(sm_ccl_deregister(comm, registration, &error));
    FINE(sm_ccl_mem_free(0, address, &error));
}

static void collectives(void)
{
    unsigned char id[128];
    uint64_t comm = 0;
    float numbers[3] = {1, 2, 3};
    const uint64_t buffer = (uint64_t)(uintptr_t)numbers;
    int answer = -1;
    FINE(sm_ccl_unique_id(id, &error));
    FINE(sm_ccl_init(&comm, id, 0, 1, 0, 1, &error));
    FINE(sm_ccl_count(comm, &answer, &error));
    CHECK(answer == 1);
    FINE(sm_ccl_rank(comm, &answer, &error));
    CHECK(answer == 0);
    FINE(sm_ccl_all_reduce(buffer, buffer, 3, SM_TYPE_FLOAT32, SM_REDUCE_SUM, comm, 0, &error));
    FINE(sm_device_synchronize(0, &error));
    CHECK(numbers[2] > 2.5F);
    FINE(sm_ccl_async_error(comm, &answer, &error));
    CHECK(answer == SM_CCL_READY);
    CHECK(sm_ccl_all_reduce(buffer, buffer, 3, 99, SM_REDUCE_SUM, comm, 0, &error) > 0);
    CHECK(error.origin == SM_ORIGIN_CCL);
    moved(comm);
    registered(comm);
    FINE(sm_ccl_finalize(comm, &error));
    FINE(sm_ccl_destroy(comm, &error));
    FINE(sm_ccl_unique_id(id, &error));
    FINE(sm_ccl_init(&comm, id, 0, 1, 0, 1, &error));
    FINE(sm_ccl_abort(comm, &error));
}

static void *thread(void *argument)
{
    (void)argument;
    for (int i = 0; i < ROUNDS; i++) {
        sm_error mine;
        size_t unit = 0;
        uint64_t handle = 0;
        if (sm_load(sm_loaded_platform(), NULL, NULL, NULL, &mine) != 0 ||
            sm_memory_granularity(0, 0, &unit, &mine) != 0 ||
            sm_memory_create(0, unit, 0, &handle, &mine) != 0 ||
            sm_memory_release(handle, &mine) != 0) {
            return "a call failed";
        }
        if (sm_memory_create(0, 1, 0, &handle, &mine) <= 0 || mine.text[0] == '\0') {
            return "a failure was not told";
        }
    }
    return NULL;
}

static void threads(void)
{
    pthread_t running[THREADS];
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&running[i], NULL, thread, NULL) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        void *problem = NULL;
        CHECK(pthread_join(running[i], &problem) == 0 && problem == NULL);
    }
}

/* The child is told that it cannot; what it had of owners goes without a touch of the device. */
static void forks(void)
{
    size_t unit = 0;
    uint64_t address = 0;
    sm_owner *owner = NULL;
    FINE(sm_memory_granularity(0, 0, &unit, &error));
    FINE(sm_memory_reserve(unit, 0, 0, &address, &error));
    FINE(sm_owner_new(0, address, unit, &owner, &error));
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int count = 0;
        const int code = sm_device_count(&count, &error);
        const int dropped = sm_owner_drop(owner, &error);
        _exit(code == SM_E_FORKED && error.text[0] != '\0' && dropped == 0 ? 0 : 1);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    FINE(sm_owner_drop(owner, &error));
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    const int platform = strcmp(arguments[1], "rocm") == 0 ? SM_PLATFORM_ROCM : SM_PLATFORM_CUDA;
    int devices = 0;
    CHECK(sm_device_count(&devices, &error) == SM_E_NOT_LOADED);
    CHECK(sm_load(SM_PLATFORM_NONE, NULL, NULL, NULL, &error) == SM_E_ARGUMENT);
    CHECK(sm_load(platform, "/no/such/library.so", NULL, NULL, &error) == SM_E_NO_LIBRARY);
    FINE(sm_load(platform, arguments[2], NULL, "/no/such/folder:", &error));
    CHECK(sm_load(SM_PLATFORM_ROCM + SM_PLATFORM_CUDA - platform, NULL, NULL, NULL, &error) ==
          SM_E_LOADED);
    FINE(sm_init(&error));
    FINE(sm_device_count(&devices, &error));
    CHECK(devices >= 1 && sm_emulator_version()[0] != '\0');
    texts();
    for (int i = 0; i < ROUNDS; i++) {
        memory(i);
    }
    CHECK(sm_owners() == 0);
    sharing();
    streams();
    if (sm_has("ccl_init")) {
        collectives();
    }
    threads();
    forks();
    return 0;
}
