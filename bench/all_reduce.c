/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce RANKS BYTES... - our side of all_reduce_vs_mpi: float32 sum in place, in memory from ls_comm_alloc ("shared") and in
 * the program's own ("user"), huge pages for both.
 */
#include <lockstep/lockstep.h>

#include "all_reduce_loop.h"

#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)

typedef struct sizes {
    int n;
    char **text;
    size_t largest;
    int ranks;
} sizes;

static int all_reduce(void *self, float *data, size_t count)
{
    return ls_all_reduce(self, data, data, count, LS_F32, LS_SUM, NULL);
}

static int barrier(void *self)
{
    return ls_barrier(self, NULL);
}

static double slowest(void *self, double value)
{
    return ls_all_reduce(self, &value, &value, 1, LS_F64, LS_MAX, NULL) == LS_OK ? value : -1;
}

static ls_status measure(ls_comm *comm, const sizes *s, const char *label, float *data)
{
    const loop_calls calls = {comm, all_reduce, barrier, slowest};

    for (int i = 0; i < s->n; i++) {
        if (loop_measure(&calls, label, data, (size_t)strtoull(s->text[i], NULL, 10),
                         ls_comm_rank(comm), s->ranks) != 0)
            return LS_EINTERNAL;
    }
    return LS_OK;
}

static ls_status run(ls_comm *comm, const sizes *s)
{
    const size_t room = (s->largest + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    void *user = aligned_alloc(HUGE_BYTES, room);
    void *shared = NULL;
    ls_status st = user == NULL ? LS_ENOMEM : ls_comm_alloc(comm, s->largest, &shared);

    if (st == LS_OK) {
        (void)madvise(user, room, MADV_HUGEPAGE);
        st = measure(comm, s, "shared", shared);
    }
    if (st == LS_OK)
        st = measure(comm, s, "user", user);
    ls_comm_free(comm, shared);
    free(user);
    return st;
}

static ls_status rank_main(int local_rank, void *arg)
{
    const sizes *s = arg;
    ls_comm *comm = NULL;
    ls_status st;

    st = ls_init(NULL, &comm);
    loop_bind(local_rank, s->ranks);
    if (st == LS_OK)
        st = run(comm, s);
    ls_comm_destroy(comm);
    return st;
}

int main(int argc, char **argv)
{
    sizes s = {.n = argc - 2, .text = argv + 2};

    if (argc < 3 || (s.ranks = (int)strtol(argv[1], NULL, 10)) < 2) {
        fprintf(stderr, "usage: all_reduce RANKS BYTES...\n");
        return 2;
    }
    for (int i = 0; i < s.n; i++) {
        const size_t bytes = (size_t)strtoull(s.text[i], NULL, 10);

        s.largest = bytes > s.largest ? bytes : s.largest;
    }
    if (ls_spawn(rank_main, s.ranks, &s, NULL) != LS_OK) {
        fprintf(stderr, "all_reduce: %s\n", ls_last_error());
        return 1;
    }
    return 0;
}
