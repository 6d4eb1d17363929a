/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lists.c - operations with a pointer for each rank: parts in one block, in any order, on both
 * sides of the same memory, with ranks that call the variant without lists.
 */
#include "base/unit.h"
#include "harness/ranks.h"

#include <string.h>

enum { RANKS_MAX = 5, COUNT = 3000 };

static const char *transport;

/* The parts of rank r are those of `order` in one block with gaps, unless is_joined. */
typedef struct parts {
    int32_t block[RANKS_MAX * (COUNT + 1)];
    void *at[RANKS_MAX];
} parts;

static void place(parts *p, int n, bool is_joined)
{
    memset(p->block, 0x55, sizeof(p->block));
    for (int r = 0; r < n; r++) // not joined: in reverse order, with gaps of one element
        p->at[r] = p->block + (is_joined ? r * COUNT : (n - 1 - r) * (COUNT + 1));
}

static void fill(int32_t *data, int from, int to)
{
    for (int i = 0; i < COUNT; i++)
        data[i] = 1000000 * from + 10000 * to + i;
}

static bool holds(const int32_t *data, int from, int to)
{
    for (int i = 0; i < COUNT; i++) {
        if (data[i] != 1000000 * from + 10000 * to + i)
            return false;
    }
    return true;
}

/* work: NULL when the call has waited. */
static ls_status finish(ls_status st, ls_work **work)
{
    LS_TRY(st);
    return work != NULL ? ls_work_wait(*work) : LS_OK;
}

static const void *const *sources(const parts *p)
{
    return (const void *const *)(uintptr_t)p->at;
}

static ls_status gathers(ls_comm *comm, parts *p, bool is_joined, ls_work **work)
{
    static _Thread_local int32_t mine[COUNT];
    static _Thread_local int32_t all[RANKS_MAX * COUNT];
    const int n = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    const int root = n - 1;

    fill(mine, rank, 0);
    place(p, n, is_joined);
    if (rank == 1) // the variant without a list
        LS_TRY(finish(ls_all_gather(comm, mine, all, COUNT, LS_I32, work), work));
    else
        LS_TRY(finish(ls_all_gather_list(comm, mine, p->at, COUNT, LS_I32, work), work));
    for (int r = 0; r < n; r++)
        LS_CHECK(holds(rank == 1 ? all + r * COUNT : p->at[r], r, 0));
    place(p, n, is_joined);
    LS_TRY(finish(
        ls_gather_list(comm, mine, rank == root ? p->at : NULL, COUNT, LS_I32, root, work), work));
    for (int r = 0; rank == root && r < n; r++)
        LS_CHECK(holds(p->at[r], r, 0));
    if (!is_joined)
        LS_CHECK(p->block[COUNT] == 0x55555555); // the gap
    return LS_OK;
}

static ls_status scatters(ls_comm *comm, parts *p, bool is_joined, ls_work **work)
{
    static _Thread_local int32_t got[COUNT];
    const int n = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);

    place(p, n, is_joined);
    for (int r = 0; r < n; r++)
        fill(p->at[r], rank, r);
    LS_TRY(finish(ls_scatter_list(comm, rank == 0 ? sources(p) : NULL, got, COUNT, LS_I32, 0, work),
                  work));
    LS_CHECK(holds(got, 0, rank));
    LS_TRY(
        finish(ls_reduce_scatter_list(comm, sources(p), got, COUNT, LS_I32, LS_MAX, work), work));
    LS_CHECK(holds(got, n - 1, rank));
    return LS_OK;
}

/* Rank r sends COUNT - s elements to rank s, so parts differ in size. */
static ls_status exchanges(ls_comm *comm, parts *p, parts *q, bool is_joined, ls_work **work)
{
    const int n = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    size_t to[RANKS_MAX];
    size_t from[RANKS_MAX];

    place(p, n, is_joined);
    place(q, n, false);
    for (int r = 0; r < n; r++) {
        fill(p->at[r], rank, r);
        to[r] = is_joined ? COUNT : (size_t)r * 100; // none for rank 0
        from[r] = is_joined ? COUNT : (size_t)rank * 100;
    }
    LS_TRY(finish(ls_all_to_all_list(comm, sources(p), to, q->at, from, LS_I32, work), work));
    for (int r = 0; r < n; r++) {
        int32_t expected[COUNT];

        fill(expected, r, rank);
        LS_CHECK(memcmp(q->at[r], expected, from[r] * sizeof(*expected)) == 0);
        LS_CHECK(from[r] == COUNT || ((int32_t *)q->at[r])[from[r]] == 0x55555555);
    }
    return LS_OK;
}

static ls_status lists_body(const ls_test_rank *self, void *arg)
{
    static _Thread_local parts p;
    static _Thread_local parts q;
    ls_work *work;
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    for (int i = 0; i < 4; i++) {
        ls_work **out = i % 2 == 0 ? NULL : &work;

        if (self->size > 1)
            LS_TRY(gathers(comm, &p, i < 2, out));
        LS_TRY(scatters(comm, &p, i < 2, out));
        LS_TRY(exchanges(comm, &p, &q, i < 2, out));
    }
    ls_comm_destroy(comm);
    return LS_OK;
}

static void lists_give_what_blocks_give(void **state)
{
    static const int sizes[] = {1, 2, 3, 5};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(sizes); i++)
        assert_true(
            ls_test_run(&(ls_test_job){.n = sizes[i], .body = lists_body, .transport = transport}));
}

static ls_status expect(ls_status st, const char *part)
{
    if (st == LS_EINVAL && strstr(ls_last_error(), part) != NULL)
        return LS_OK;
    return ls_fail(LS_EINTERNAL, "got %d \"%.300s\", not \"%s\"", (int)st, ls_last_error(), part);
}

static ls_status wrong_body(const ls_test_rank *self, void *arg)
{
    int32_t value = self->rank;
    void *missing[] = {&value, NULL};
    const size_t counts[] = {1, 1};
    ls_comm *comm;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(expect(ls_all_gather_list(comm, &value, NULL, 1, LS_I32, NULL), "parts is NULL"));
    LS_TRY(expect(ls_all_gather_list(comm, &value, missing, 1, LS_I32, NULL), "dst[1] is NULL"));
    LS_TRY(expect(ls_all_gather_list(comm, &value, missing, SIZE_MAX, LS_I32, NULL), ""));
    LS_TRY(expect(ls_all_to_all_list(comm, NULL, counts, missing, counts, LS_I32, NULL),
                  "parts is NULL"));
    LS_TRY(ls_barrier(comm, NULL)); // the group is intact
    ls_comm_destroy(comm);
    return LS_OK;
}

static void wrong_lists_are_refused(void **state)
{
    LS_UNUSED(state);
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = wrong_body, .transport = transport}));
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_give_what_blocks_give),
        cmocka_unit_test(wrong_lists_are_refused),
    };

    transport = argc > 1 ? argv[1] : "shm";
    return cmocka_run_group_tests_name("lists", tests, NULL, NULL);
}
