/* The loader: finds the libraries of a platform, and their functions. */
#include "internal.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A row of the table, as data. */
typedef struct symbol_names {
    const char *neutral;
    const char *names[2]; /* HIP, CUDA */
    const char *type;
    enum sm_library library;
} symbol_names;

static const symbol_names symbols[SM_SYMBOL_COUNT] = {
#define SM_ROW(neutral, hip, cuda, library, returns, arguments)                                    \
    [SM_S_##neutral] = {#neutral, {hip, cuda}, #returns " " #arguments, SM_LIBRARY_##library},
    SM_SYMBOLS(SM_ROW)
#undef SM_ROW
};

/* A library: file names without ".so…", and the names to ask the dynamic loader for. */
typedef struct library_names {
    const char *stem;
    const char *names[4];
} library_names;

static const library_names rocm_libraries[SM_LIBRARIES] = {
    [SM_LIBRARY_GPU] = {"libamdhip64",
                        {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                         "libamdhip64.so"}},
    [SM_LIBRARY_CCL] = {"librccl", {"librccl.so.1", "librccl.so"}},
    [SM_LIBRARY_HSA] = {"libhsa-runtime64", {"libhsa-runtime64.so.1"}},
};
static const library_names cuda_libraries[SM_LIBRARIES] = {
    [SM_LIBRARY_GPU] = {"libcuda", {"libcuda.so.1"}},
    [SM_LIBRARY_RUNTIME] = {"libcudart", {"libcudart.so.13", "libcudart.so.12", "libcudart.so"}},
    [SM_LIBRARY_CCL] = {"libnccl", {"libnccl.so.2"}},
};

/* What sm_load found. Written under `lock` before `loaded` is set, only read afterwards. */
static struct {
    int platform;
    void *handles[SM_LIBRARIES];
    char paths[SM_LIBRARIES][SM_PATH_SIZE];
    sm_function functions[SM_SYMBOL_COUNT];
    const char *emulator;
} state;
static atomic_bool loaded;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* A line for each attempt; guarded by `lock`. */
static char searched[8192];

sm_function sm_function_of(enum sm_symbol_id symbol)
{
    return state.functions[symbol];
}

enum sm_library sm_symbol_library(enum sm_symbol_id symbol)
{
    /* HIP is its own runtime. */
    const enum sm_library library = symbols[symbol].library;
    const bool hip = state.platform == SM_PLATFORM_ROCM;
    return hip && library == SM_LIBRARY_RUNTIME ? SM_LIBRARY_GPU : library;
}

const char *sm_symbol_name(enum sm_symbol_id symbol)
{
    return symbols[symbol].names[state.platform == SM_PLATFORM_CUDA];
}

bool sm_is_loaded(void)
{
    return atomic_load_explicit(&loaded, memory_order_acquire);
}

/* ------------------------------------------------------------------ opening */

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void note(const char *format, ...)
{
    const size_t used = strlen(searched);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(searched + used, sizeof searched - used, format, arguments);
    va_end(arguments);
}

/* What dl_iterate_phdr looks for, and the path it found. */
typedef struct wanted {
    const char *stem;
    char path[SM_PATH_SIZE];
} wanted;

/* Of libamdhip64: "libamdhip64.so", "libamdhip64.so.6", and "libamdhip64-0a1b2c3d.so" as wheels
 * name their copies; not "libamdhip64-plugin.so". */
static bool is_named(const char *file, const char *stem)
{
    const size_t length = strlen(stem);
    if (strncmp(file, stem, length) != 0) {
        return false;
    }
    const char *rest = file + length;
    if (rest[0] == '-') {
        const size_t digits = strspn(rest + 1, "0123456789abcdef");
        if (digits != 8) {
            return false;
        }
        rest += 1 + digits;
    }
    return strncmp(rest, ".so", 3) == 0;
}

static int look_at(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    wanted *library = data;
    const char *slash = strrchr(info->dlpi_name, '/');
    if (slash == NULL || !is_named(slash + 1, library->stem)) {
        return 0;
    }
    sm_copy_text(library->path, sizeof library->path, info->dlpi_name);
    return 1;
}

static void *try_open(const char *name, int more_flags)
{
    const char *refused = sm_not_loadable(name);
    if (refused != NULL) {
        note("%s: %s\n", name, refused);
        return NULL;
    }
    void *handle = dlopen(name, RTLD_LAZY | RTLD_LOCAL | more_flags);
    if (handle == NULL) {
        const char *why = dlerror();
        if (why == NULL) {
            why = "not found";
        }
        const bool named = strncmp(why, name, strlen(name)) == 0;
        note("%s%s%s\n", named ? "" : name, named ? "" : ": ", why);
    }
    return handle;
}

/* The copy that the process has already, whoever loaded it. */
static void *open_loaded(const library_names *library)
{
    wanted found = {.stem = library->stem};
    if (dl_iterate_phdr(look_at, &found) == 0) {
        return NULL;
    }
    return try_open(found.path, RTLD_NOLOAD);
}

static void *open_in(const char *folders, const library_names *library)
{
    void *handle = NULL;
    while (handle == NULL && folders[0] != '\0') {
        const size_t length = strcspn(folders, ":");
        for (size_t i = 0; length > 0 && i < 4 && library->names[i] != NULL && handle == NULL;
             i++) {
            char path[SM_PATH_SIZE];
            const int written = snprintf(path, sizeof path, "%.*s/%s", (int)length, folders,
                                         library->names[i]);
            if (written > 0 && (size_t)written < sizeof path && access(path, F_OK) == 0) {
                handle = try_open(path, 0);
            }
        }
        folders += length;
        folders += folders[0] == ':';
    }
    return handle;
}

static void *open_library(const library_names *library, const char *path, const char *folders)
{
    if (library->stem == NULL) {
        return NULL;
    }
    if (path != NULL) {
        return try_open(path, 0);
    }
    void *handle = open_loaded(library);
    for (size_t i = 0; i < 4 && library->names[i] != NULL && handle == NULL; i++) {
        handle = try_open(library->names[i], 0);
    }
    if (handle == NULL && folders != NULL) {
        handle = open_in(folders, library);
        if (handle == NULL) {
            note("%s.so*: not in %s\n", library->stem, folders);
        }
    }
    return handle;
}

/* ------------------------------------------------------------------ what is found */

static void close_all(void)
{
    for (size_t i = 0; i < SM_LIBRARIES; i++) {
        if (state.handles[i] != NULL) {
            (void)dlclose(state.handles[i]);
        }
    }
    memset(&state, 0, sizeof state);
}

static sm_function find(void *handle, const char *name)
{
    sm_function function = NULL;
    void *address = handle != NULL && name[0] != '\0' ? dlsym(handle, name) : NULL;
    memcpy(&function, &address, sizeof function);
    return function;
}

static void read_path(enum sm_library library)
{
    struct link_map *map = NULL;
    if (dlinfo(state.handles[library], RTLD_DI_LINKMAP, &map) == 0) {
        sm_copy_text(state.paths[library], SM_PATH_SIZE, map->l_name);
    }
}

/* Open one platform; leaves nothing behind if its GPU library is not there. */
static bool open_platform(int platform, const char *gpu_library, const char *ccl_library,
                          const char *folders)
{
    const library_names *libraries =
        platform == SM_PLATFORM_ROCM ? rocm_libraries : cuda_libraries;
    state.handles[SM_LIBRARY_GPU] = open_library(&libraries[SM_LIBRARY_GPU], gpu_library, folders);
    if (state.handles[SM_LIBRARY_GPU] == NULL) {
        return false;
    }
    state.platform = platform;
    state.handles[SM_LIBRARY_RUNTIME] =
        open_library(&libraries[SM_LIBRARY_RUNTIME], NULL, folders);
    state.handles[SM_LIBRARY_CCL] = open_library(&libraries[SM_LIBRARY_CCL], ccl_library, folders);
    state.handles[SM_LIBRARY_HSA] = open_library(&libraries[SM_LIBRARY_HSA], NULL, folders);
    if (ccl_library != NULL && state.handles[SM_LIBRARY_CCL] == NULL) {
        close_all(); /* it was asked for by its path */
        return false;
    }
    for (int i = 0; i < SM_LIBRARIES; i++) {
        if (state.handles[i] != NULL) {
            read_path((enum sm_library)i);
        }
    }
    if (platform == SM_PLATFORM_ROCM) {
        sm_copy_text(state.paths[SM_LIBRARY_RUNTIME], SM_PATH_SIZE, state.paths[SM_LIBRARY_GPU]);
    }
    for (int i = 0; i < SM_SYMBOL_COUNT; i++) {
        const enum sm_symbol_id symbol = (enum sm_symbol_id)i;
        state.functions[i] =
            find(state.handles[sm_symbol_library(symbol)], sm_symbol_name(symbol));
    }
    if (SM_FUNCTION(device_count) == NULL) {
        note("%s: has no %s, so it is another kind of library\n", state.paths[SM_LIBRARY_GPU],
             sm_symbol_name(SM_S_device_count));
        close_all();
        return false;
    }
    state.emulator = "";
    if (SM_FUNCTION(emulator_version) != NULL) {
        state.emulator = SM_FUNCTION(emulator_version)();
    }
    return true;
}

/* Which platform to try first: what is loaded here already, then what the machine has a device of,
 * then ROCm. */
static int likely_platform(void)
{
    wanted hip = {.stem = rocm_libraries[SM_LIBRARY_GPU].stem};
    wanted cuda = {.stem = cuda_libraries[SM_LIBRARY_GPU].stem};
    const bool has_hip = dl_iterate_phdr(look_at, &hip) != 0;
    const bool has_cuda = dl_iterate_phdr(look_at, &cuda) != 0;
    if (has_hip != has_cuda) {
        return has_hip ? SM_PLATFORM_ROCM : SM_PLATFORM_CUDA;
    }
    const bool nvidia = access("/dev/kfd", F_OK) != 0 && access("/dev/nvidiactl", F_OK) == 0;
    return nvidia ? SM_PLATFORM_CUDA : SM_PLATFORM_ROCM;
}

/* ------------------------------------------------------------------ the contract */

static void in_forked_child(void)
{
    /* Another thread of the parent may have held it. What that thread was about is not loaded. */
    const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&lock, &fresh, sizeof lock);
}

/* A library that was asked for by its path and is not the one that is loaded. */
static bool is_another(const char *path, enum sm_library library)
{
    if (path == NULL) {
        return false;
    }
    void *handle = sm_not_loadable(path) == NULL ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (handle != NULL) {
        (void)dlclose(handle);
    }
    return handle == NULL || handle != state.handles[library];
}

static int load_locked(int platform, const char *gpu_library, const char *ccl_library,
                       const char *folders, sm_error *error)
{
    if (sm_is_loaded()) {
        if (platform != SM_PLATFORM_AUTO && platform != state.platform) {
            return sm_fail(error, SM_E_LOADED, "", state.paths[SM_LIBRARY_GPU],
                           "another platform is loaded already");
        }
        if (is_another(gpu_library, SM_LIBRARY_GPU) || is_another(ccl_library, SM_LIBRARY_CCL)) {
            return sm_fail(error, SM_E_LOADED, "", state.paths[SM_LIBRARY_GPU],
                           "another library is loaded already");
        }
        return 0;
    }
    static bool watched;
    if (!watched && sm_fork_watch(in_forked_child) != 0) {
        return sm_fail(error, SM_E_NO_MEMORY, "pthread_atfork", "", "no memory to watch forks");
    }
    watched = true;
    close_all();
    searched[0] = '\0';
    const bool either = platform == SM_PLATFORM_AUTO;
    const int first = either ? likely_platform() : platform;
    const int second = first == SM_PLATFORM_ROCM ? SM_PLATFORM_CUDA : SM_PLATFORM_ROCM;
    if (open_platform(first, gpu_library, ccl_library, folders) ||
        (either && open_platform(second, gpu_library, ccl_library, folders))) {
        atomic_store_explicit(&loaded, true, memory_order_release);
        return 0;
    }
    static const char *const what[] = {[SM_PLATFORM_ROCM] = "no ROCm library (libamdhip64)",
                                       [SM_PLATFORM_CUDA] = "no CUDA library (libcuda)",
                                       [SM_PLATFORM_AUTO] = "no GPU library"};
    return sm_fail(error, SM_E_NO_LIBRARY, "", "", "%s could be loaded", what[platform]);
}

int sm_load(int platform, const char *gpu_library, const char *ccl_library, const char *folders,
            sm_error *error)
{
    if (platform < SM_PLATFORM_ROCM || platform > SM_PLATFORM_AUTO) {
        return sm_fail(error, SM_E_ARGUMENT, "", "", "no platform has the number %d", platform);
    }
    (void)pthread_mutex_lock(&lock);
    const int code = load_locked(platform, gpu_library, ccl_library, folders, error);
    (void)pthread_mutex_unlock(&lock);
    return code;
}

int sm_loaded_platform(void)
{
    return sm_is_loaded() ? state.platform : SM_PLATFORM_NONE;
}

const char *sm_library_path(int library)
{
    return sm_is_loaded() && library >= 0 && library < SM_LIBRARIES ? state.paths[library] : "";
}

size_t sm_searched(char *text, size_t size)
{
    (void)pthread_mutex_lock(&lock);
    sm_copy_text(text, size, searched);
    const size_t needed = strlen(searched) + 1;
    (void)pthread_mutex_unlock(&lock);
    return needed;
}

const char *sm_emulator_version(void)
{
    return sm_is_loaded() ? state.emulator : "";
}

int sm_symbol(int index, sm_symbol_row *row)
{
    if (index < 0 || index >= SM_SYMBOL_COUNT) {
        return SM_E_ARGUMENT;
    }
    const symbol_names *names = &symbols[index];
    row->neutral = names->neutral;
    row->hip = names->names[0];
    row->cuda = names->names[1];
    row->type = names->type;
    row->library = (int)names->library;
    row->present = sm_is_loaded() && state.functions[index] != NULL;
    return 0;
}

int sm_has(const char *neutral)
{
    for (int i = 0; sm_is_loaded() && i < SM_SYMBOL_COUNT; i++) {
        if (strcmp(symbols[i].neutral, neutral) == 0) {
            return state.functions[i] != NULL;
        }
    }
    return 0;
}
