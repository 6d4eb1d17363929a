/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_torture.c - joins and uses a group while each allocation fails in turn: the result is an
 * error, never a crash, a hang or a leak, and the other rank does not wait.
 */
#include "base/unit.h"
#include "harness/ranks.h"

#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef struct torture {
    atomic_int fail_at;
    atomic_int n_allocations; /* what the tortured rank needed, once nothing failed */
} torture;

static ls_status use(ls_comm *comm)
{
    float x[100] = {0};
    ls_comm *half = NULL;
    ls_work *w = NULL;
    void *memory = NULL;
    ls_status st = ls_all_reduce(comm, x, x, 100, LS_F32, LS_SUM, &w);

    if (st == LS_OK)
        st = ls_work_wait(w);
    if (st == LS_OK)
        st = ls_comm_alloc(comm, 4000, &memory);
    ls_comm_free(comm, memory);
    if (st == LS_OK)
        st = ls_comm_split(comm, 0, 0, &half);
    if (st == LS_OK)
        st = ls_barrier(half, NULL);
    ls_comm_destroy(half);
    if (st != LS_OK) // the other rank may be in another call than this one
        ls_comm_abort(comm, ls_last_error());
    return st;
}

static ls_status tortured_body(const ls_test_rank *self, void *arg)
{
    torture *t = arg;
    const bool is_victim = self->rank == 1;
    const uint64_t before = ls_alloc_count();
    ls_comm *comm = NULL;
    ls_status st;

    if (is_victim)
        ls_alloc_fail_at((uint64_t)atomic_load(&t->fail_at));
    st = ls_test_init(self, &comm);
    if (st == LS_OK)
        st = use(comm);
    ls_comm_destroy(comm);
    if (is_victim && st == LS_OK)
        atomic_store(&t->n_allocations, (int)(ls_alloc_count() - before));
    // A failure is the purpose of the test; ranks that would have waited for it exit with another
    // code.
    if (st == LS_ETIMEOUT || st == LS_EDEADLINE)
        exit(2);
    return st;
}

static void torment(const char *transport)
{
    torture *t = ls_test_shared(sizeof(*t));
    int n = 0;

    assert_non_null(t);
    do {
        const ls_test_job job = {.n = 2,
                                 .body = tortured_body,
                                 .arg = t,
                                 .transport = transport,
                                 .timeout_ms = 8000,
                                 .join_timeout_ms = 8000,
                                 .deadline_ms = 20000};

        static ls_test_outcome outcomes[LS_TEST_RANKS_MAX];

        atomic_store(&t->fail_at, ++n);
        (void)ls_test_ranks(&job, outcomes);
        for (int r = 0; r < 2; r++) {
            const ls_test_outcome *o = &outcomes[r];

            // A sanitizer's findings end a rank with the code of a failure.
            if (o->was_killed || o->signal != 0 || o->code > 1 || strstr(o->text, "Sanitizer"))
                fail_msg("allocation %d: rank %d: code %d, signal %d: %s", n, r, o->code, o->signal,
                         o->text);
        }
    } while (atomic_load(&t->n_allocations) == 0 || n < atomic_load(&t->n_allocations));
    print_message("%s: %d allocations\n", transport, n);
    (void)munmap(t, sizeof(*t));
}

static void no_memory_anywhere_is_an_error_over_shm(void **state)
{
    LS_UNUSED(state);
    torment("shm");
}

static void no_memory_anywhere_is_an_error_over_tcp(void **state)
{
    LS_UNUSED(state);
    torment("tcp");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_memory_anywhere_is_an_error_over_shm),
        cmocka_unit_test(no_memory_anywhere_is_an_error_over_tcp),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
