/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dn_threads.c - runs our kernels on the threads of oneDNN.
 *
 * Debian's oneDNN uses GNU OpenMP's pool. We call its C interface instead of pragmas, so that code
 * of every compiler shares that pool. The thread count is a property of the calling thread: we set
 * it for our work and restore it, because the program may use OpenMP as well.
 */
#include "tensor/devices/onednn/dn.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* Smaller work ends before a second thread wakes. */
#define WORTH_FLOATS ((size_t)32768)

int omp_get_max_threads(void);
void omp_set_num_threads(int n);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
int omp_pause_resource_all(int kind); /* libgomp of GCC 9 on */
// NOLINTNEXTLINE(readability-identifier-naming): the name is libgomp's
void GOMP_parallel(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags);

#define PAUSE_HARD 2 /* OpenMP's omp_pause_hard */

void threads_end(const device_state *self)
{
    if (self->threads > 1)
        (void)omp_pause_resource_all(PAUSE_HARD);
}

int threads_adding(const device_state *self)
{
    return self->thread_invariant ? 1 : self->threads;
}

int threads_enter(const device_state *self, bool adds)
{
    const int before = omp_get_max_threads();
    const int threads = adds ? threads_adding(self) : self->threads;

    if (before != threads)
        omp_set_num_threads(threads);
    return before;
}

void threads_leave(int before)
{
    if (omp_get_max_threads() != before)
        omp_set_num_threads(before);
}

void signals_block(sigset_t *before)
{
    dn_host->block_signals(before);
}

void signals_restore(const sigset_t *before)
{
    (void)pthread_sigmask(SIG_SETMASK, before, NULL);
}

/* The two atomics repeat the guarantees of OpenMP's barriers for the thread sanitizer. */
typedef struct split {
    range_fn fn;
    void *arg;
    size_t n;
    atomic_bool is_set; /* release: by the caller, when all is filled in; acquire: by each worker */
    atomic_int n_done;  /* release: by each worker at its end; acquire: by the caller */
} split;

static void run_share(void *arg)
{
    split *s = arg;
    const size_t n_threads = (size_t)omp_get_num_threads();
    const size_t me = (size_t)omp_get_thread_num();

    (void)atomic_load_explicit(&s->is_set, memory_order_acquire);
    s->fn(s->arg, s->n * me / n_threads, s->n * (me + 1) / n_threads, me);
    (void)atomic_fetch_add_explicit(&s->n_done, 1, memory_order_release);
}

void threads_for(const device_state *self, size_t n, size_t cost, range_fn fn, void *arg)
{
    split s = {.fn = fn, .arg = arg, .n = n};
    sigset_t before;

    if (self->threads == 1 || n < 2 || n * cost < WORTH_FLOATS) {
        fn(arg, 0, n, 0);
        return;
    }
    atomic_store_explicit(&s.is_set, true, memory_order_release);
    signals_block(&before); // workers that start here compute for oneDNN later
    GOMP_parallel(run_share, &s, (unsigned)self->threads, 0);
    signals_restore(&before);
    (void)atomic_load_explicit(&s.n_done, memory_order_acquire);
}
