/* Errors: what is refused before a call, and what a library answered, in words. */
#include "internal.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

void sm_copy_text(char *to, size_t size, const char *from)
{
    if (size == 0) {
        return;
    }
    const size_t length = strnlen(from, size - 1);
    memcpy(to, from, length);
    to[length] = '\0';
}

/* All of an error but its text. */
static void describe(sm_error *error, int code, enum sm_origin origin, const char *symbol,
                     const char *library)
{
    error->code = code;
    error->origin = (int)origin;
    sm_copy_text(error->symbol, sizeof error->symbol, symbol);
    sm_copy_text(error->library, sizeof error->library, library);
}

int sm_fail(sm_error *error, int code, const char *symbol, const char *library, const char *format,
            ...)
{
    if (error != NULL) {
        describe(error, code, SM_ORIGIN_BRIDGE, symbol, library);
        va_list arguments;
        va_start(arguments, format);
        (void)vsnprintf(error->text, sizeof error->text, format, arguments);
        va_end(arguments);
    }
    return code;
}

/* CUDA's driver wants to be started before anything else; HIP starts itself. */
static int start(sm_error *error)
{
    static atomic_bool started;
    if (atomic_load(&started) || sm_loaded_platform() != SM_PLATFORM_CUDA) {
        return 0;
    }
    if (sm_function_of(SM_S_init) == NULL) {
        return 0; /* the call itself says what is missing */
    }
    const int code = SM_CALL(error, init, (0U));
    if (code == 0) {
        atomic_store(&started, true);
    }
    return code;
}

int sm_refused(enum sm_symbol_id symbol, sm_error *error)
{
    if (!sm_is_loaded()) {
        return sm_fail(error, SM_E_NOT_LOADED, "", "", "no GPU library is loaded");
    }
    if (sm_forked()) {
        return sm_fail(error, SM_E_FORKED, sm_symbol_name(symbol),
                       sm_library_path((int)sm_symbol_library(symbol)),
                       "this process was forked after its parent had used a GPU; the library's "
                       "state does not survive that. Fork before the first use, or start the "
                       "process afresh");
    }
    const enum sm_library library = sm_symbol_library(symbol);
    if (sm_function_of(symbol) == NULL) {
        const char *path = sm_library_path((int)library);
        const char *name = sm_symbol_name(symbol);
        if (path[0] == '\0') {
            return sm_fail(error, SM_E_NO_SYMBOL, name, "", "the library it belongs to is not there");
        }
        return sm_fail(error, SM_E_NO_SYMBOL, name, path, "the library has no such function");
    }
    const bool asks_nothing = symbol == SM_S_init || symbol == SM_S_driver_version;
    return library == SM_LIBRARY_GPU && !asks_nothing ? start(error) : 0;
}

/* "name: words" of a GPU library's code. */
static void gpu_words(enum sm_library library, int code, char *text, size_t size)
{
    const char *name = NULL;
    const char *words = NULL;
    if (sm_loaded_platform() == SM_PLATFORM_ROCM) {
        if (sm_function_of(SM_S_hip_error_name) != NULL) {
            name = SM_FUNCTION(hip_error_name)(code);
        }
        if (sm_function_of(SM_S_hip_error_string) != NULL) {
            words = SM_FUNCTION(hip_error_string)(code);
        }
    } else if (library == SM_LIBRARY_RUNTIME) {
        if (sm_function_of(SM_S_runtime_error_name) != NULL) {
            name = SM_FUNCTION(runtime_error_name)(code);
        }
    } else {
        if (sm_function_of(SM_S_cuda_error_name) != NULL) {
            (void)SM_FUNCTION(cuda_error_name)(code, &name);
        }
        if (sm_function_of(SM_S_cuda_error_string) != NULL) {
            (void)SM_FUNCTION(cuda_error_string)(code, &words);
        }
    }
    if (name == NULL) {
        name = words;
    }
    const bool more = words != NULL && name != NULL && strcmp(name, words) != 0;
    (void)snprintf(text, size, "%s%s%s", name != NULL ? name : "unknown error", more ? ": " : "",
                   more ? words : "");
}

/* The meaning of a collective library's code, and what it last said. */
static void ccl_words(int code, char *text, size_t size)
{
    const char *words = "unknown error";
    const char *detail = NULL;
    if (sm_function_of(SM_S_ccl_error_string) != NULL) {
        words = SM_FUNCTION(ccl_error_string)(code);
    }
    if (sm_function_of(SM_S_ccl_last_error) != NULL) {
        detail = SM_FUNCTION(ccl_last_error)(0);
    }
    const bool more = detail != NULL && detail[0] != '\0';
    (void)snprintf(text, size, "%s%s%s", words, more ? ": " : "", more ? detail : "");
}

static void hsa_words(int code, char *text, size_t size)
{
    const char *words = NULL;
    if (sm_function_of(SM_S_hsa_error_string) != NULL) {
        (void)SM_FUNCTION(hsa_error_string)(code, &words);
    }
    sm_copy_text(text, size, words != NULL ? words : "unknown error");
}

/* A success leaves state in this process that a forked child cannot use. HIP starts itself whatever
 * it is asked; CUDA tells its versions without. */
static bool leaves_state(enum sm_symbol_id symbol, enum sm_library library)
{
    if (sm_loaded_platform() == SM_PLATFORM_ROCM) {
        return library == SM_LIBRARY_GPU || library == SM_LIBRARY_RUNTIME;
    }
    return library == SM_LIBRARY_GPU && symbol != SM_S_driver_version;
}

int sm_answer(enum sm_symbol_id symbol, int code, sm_error *error)
{
    const enum sm_library library = sm_symbol_library(symbol);
    if (code == 0 || (library == SM_LIBRARY_CCL && code == SM_CCL_IN_PROGRESS)) {
        if (leaves_state(symbol, library)) {
            sm_fork_mark_used();
        }
        return 0;
    }
    if (error != NULL) {
        static const enum sm_origin origins[SM_LIBRARIES] = {
            [SM_LIBRARY_GPU] = SM_ORIGIN_GPU,
            [SM_LIBRARY_RUNTIME] = SM_ORIGIN_GPU,
            [SM_LIBRARY_CCL] = SM_ORIGIN_CCL,
            [SM_LIBRARY_HSA] = SM_ORIGIN_HSA,
        };
        describe(error, code, origins[library], sm_symbol_name(symbol),
                 sm_library_path((int)library));
        if (library == SM_LIBRARY_CCL) {
            ccl_words(code, error->text, sizeof error->text);
        } else if (library == SM_LIBRARY_HSA) {
            hsa_words(code, error->text, sizeof error->text);
        } else {
            gpu_words(library, code, error->text, sizeof error->text);
        }
    }
    /* From ROCm 7 on a later success does not clear it: who asks next (torch) would be told ours. */
    if (library != SM_LIBRARY_CCL && sm_function_of(SM_S_last_error) != NULL) {
        (void)SM_FUNCTION(last_error)();
    }
    return code;
}
