/* What the bridge's files share. Nothing of it is visible outside. */
#ifndef SLURMMESH_INTERNAL_H
#define SLURMMESH_INTERNAL_H
#include "slurmmesh_bridge.h"
#include "symbols.h"
#include <stdbool.h>

enum { SM_LIBRARIES = 4, SM_PATH_SIZE = 512 };

/* Any function of a library, before it is cast to its type. */
typedef void (*sm_function)(void);

/* ---- loader.c: written once, then only read */

/* The function, or NULL where the library has none. Only after sm_refused gave 0. */
sm_function sm_function_of(enum sm_symbol_id symbol);
/* Its name in the loaded platform. */
const char *sm_symbol_name(enum sm_symbol_id symbol);
enum sm_library sm_symbol_library(enum sm_symbol_id symbol);
/* sm_load was successful. */
bool sm_is_loaded(void);

/* ---- files.c */

/* Why a path cannot be given to the dynamic loader, which would hang or end the process; NULL: it
 * can be, as a name without a slash can, which the loader searches for. */
const char *sm_not_loadable(const char *path);

/* ---- fork.c */

/* Watch forks from now on; `in_child` is called in each child. 0, or an errno. */
int sm_fork_watch(void (*in_child)(void));
/* This process holds GPU state from now on, that a forked child could not use. */
void sm_fork_mark_used(void);
bool sm_forked(void);

/* ---- errors.c */

/* Fill in a failure of the bridge's own; returns `code`. */
int sm_fail(sm_error *error, int code, const char *symbol, const char *library, const char *format,
            ...) __attribute__((format(printf, 5, 6)));
/* Why a function cannot be called now (SM_E_NOT_LOADED, SM_E_FORKED, SM_E_NO_SYMBOL, or a GPU
 * library that does not start), or 0. */
int sm_refused(enum sm_symbol_id symbol, sm_error *error);
/* What a library answered, as the bridge does: 0, or `code` with the error filled in. */
int sm_answer(enum sm_symbol_id symbol, int code, sm_error *error);
/* As text with a zero byte, cut to fit. */
void sm_copy_text(char *to, size_t size, const char *from);

/* Return from the calling function if a library's function cannot be called. */
#define SM_REQUIRE(name, error)                                                                    \
    do {                                                                                           \
        const int sm_refused_ = sm_refused(SM_S_##name, error);                                    \
        if (sm_refused_ != 0) {                                                                    \
            return sm_refused_;                                                                    \
        }                                                                                          \
    } while (0)
/* The function itself, with its type. */
#define SM_FUNCTION(name) ((sm_##name##_fn)sm_function_of(SM_S_##name))
/* Call it, `arguments` in parentheses, and translate its answer; after SM_REQUIRE. */
#define SM_CALL(error, name, arguments)                                                            \
    sm_answer(SM_S_##name, SM_FUNCTION(name) arguments, error)

/* ---- device.c */

/* hipRuntimeGetVersion, asked once; 0 on CUDA or where it does not tell. */
int sm_hip_version(void);
/* What the calling thread had before sm_guard_enter. */
typedef struct sm_guard {
    int device;   /* HIP: to set again, or -1 */
    bool pushed;  /* CUDA: a context to pop */
} sm_guard;
int sm_guard_enter(int device, sm_guard *guard, sm_error *error);
void sm_guard_leave(const sm_guard *guard);

#endif
