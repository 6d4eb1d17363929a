/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_pairs.c - what a rank of many on one host takes for the others: little for those with which
 * it exchanges no messages.
 */
#include "base/unit.h"
#include "harness/ranks.h"

#include <malloc.h>
#include <stdio.h>

enum { FEW = 32, MANY = 128, SMALL = 16, LARGE = 100000 };
enum { TABLE_BYTES = 800 /* for each other rank */, RESIDENT_KIB = 4096 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool counts_memory =
    false; /* the sanitizers have an allocator and memory of their own */
#else
static const bool counts_memory = true;
#endif

/* What rank 1 takes in a job of FEW and of MANY. */
typedef struct measures {
    size_t table_bytes[2];
    long resident_kib;
} measures;

/* Memory that is not a file's, shared memory included. */
static long resident_kib(void)
{
    FILE *status = fopen("/proc/self/status", "re");
    char line[256];
    long sum = 0;

    while (status != NULL && fgets(line, sizeof(line), status) != NULL) {
        long kib;

        if (sscanf(line, "RssAnon: %ld", &kib) == 1 || sscanf(line, "RssShmem: %ld", &kib) == 1)
            sum += kib;
    }
    if (status != NULL)
        (void)fclose(status);
    return sum;
}

/* Small and large messages to the next rank, from the last one. */
static ls_status exchange_with_two(ls_comm *comm, const ls_test_rank *self, int32_t *values)
{
    const int next = (self->rank + 1) % self->size;
    const int last = (self->rank + self->size - 1) % self->size;

    for (int count = SMALL; count <= LARGE; count += LARGE - SMALL) {
        int32_t *got = values + LARGE;
        ls_work *work;

        for (int i = 0; i < count; i++)
            values[i] = self->rank + i;
        LS_TRY(ls_send(comm, values, (size_t)count, LS_I32, next, 7, &work));
        LS_TRY(ls_recv(comm, got, (size_t)count, LS_I32, last, 7, NULL));
        LS_TRY(ls_work_wait(work));
        for (int i = 0; i < count; i++)
            LS_CHECK(got[i] == last + i);
    }
    return LS_OK;
}

static ls_status body(const ls_test_rank *self, void *arg)
{
    static int32_t values[2 * LARGE];
    measures *m = arg;
    const size_t before = mallinfo2().uordblks;
    long resident;
    ls_comm *comm;

    for (int i = 0; i < 2 * LARGE; i++)
        values[i] = -1; // they are the program's
    resident = resident_kib();
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_barrier(comm, NULL));
    if (self->rank == 1)
        m->table_bytes[self->size == MANY] = mallinfo2().uordblks - before;
    LS_TRY(exchange_with_two(comm, self, values));
    if (self->rank == 1 && self->size == MANY)
        m->resident_kib = resident_kib() - resident;
    LS_TRY(ls_barrier(comm, NULL));
    ls_comm_destroy(comm);
    return LS_OK;
}

static void rank_takes_little_for_others_with_which_it_exchanges_no_messages(void **state)
{
    measures *m = ls_test_shared(sizeof(*m));
    ls_test_job job = {.body = body, .arg = m, .transport = "shm", .deadline_ms = 240000};
    size_t each;

    LS_UNUSED(state);
    for (job.n = FEW; job.n <= MANY; job.n += MANY - FEW)
        assert_true(ls_test_ranks(&job, NULL));
    each = (m->table_bytes[1] - m->table_bytes[0]) / (MANY - FEW);
    print_message("%zu bytes of tables for each other rank; %ld KiB beyond the program\n", each,
                  m->resident_kib);
    if (!counts_memory)
        return;
    assert_in_range(each, 1, TABLE_BYTES);
    assert_in_range(m->resident_kib, 1, RESIDENT_KIB);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_takes_little_for_others_with_which_it_exchanges_no_messages),
    };

    return cmocka_run_group_tests_name("pairs", tests, NULL, NULL);
}
