/* Forks: a child cannot use what its parent has of a GPU, and is told so. */
#include "internal.h"
#include <pthread.h>
#include <stdatomic.h>

static atomic_bool used;
static atomic_bool forked;

static void in_child_mark(void)
{
    if (atomic_load(&used)) {
        atomic_store(&forked, true);
    }
}

int sm_fork_watch(void (*in_child)(void))
{
    const int failed = pthread_atfork(NULL, NULL, in_child);
    return failed != 0 ? failed : pthread_atfork(NULL, NULL, in_child_mark);
}

void sm_fork_mark_used(void)
{
    /* Read first: most calls find it set, and threads do not fight for the line. */
    if (!atomic_load_explicit(&used, memory_order_relaxed)) {
        atomic_store(&used, true);
    }
}

bool sm_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}
