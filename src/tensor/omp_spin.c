/* SPDX-License-Identifier: Apache-2.0 */
/*
 * omp_spin.c - the environment in which libgomp is loaded. It is replaced by a copy and restored:
 * setenv() would change it under threads that read it.
 */
#include "tensor/omp_spin.h"

#include "base/alloc.h"
#include "base/text.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

static char **with_count; // stays: a thread may still read it

const char *omp_spin_count(int64_t threads, int64_t cores)
{
    return threads > cores ? "0" : "3000";
}

char **omp_spin_enter(const char *count)
{
    static atomic_flag entered = ATOMIC_FLAG_INIT;
    static char entry[32];
    char **const before = environ;
    size_t n = 0;

    // NOLINTNEXTLINE(concurrency-mt-unsafe): never set
    if (getenv("OMP_WAIT_POLICY") != NULL || getenv("GOMP_SPINCOUNT") != NULL)
        return NULL;
    if (before == NULL || atomic_flag_test_and_set(&entered))
        return NULL;
    while (before[n] != NULL)
        n++;
    with_count = ls_calloc(n + 2, sizeof(*with_count));
    if (with_count == NULL)
        return NULL; // slower, but no failure
    memcpy(with_count, before, n * sizeof(*with_count));
    text_format(entry, sizeof(entry), "GOMP_SPINCOUNT=%s", count);
    with_count[n] = entry;
    environ = with_count;
    return before;
}

void omp_spin_leave(char **before)
{
    if (before != NULL && environ == with_count)
        environ = before;
}
