/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine_ranks.c - one rank of a job that another launcher has started (mpirun, lockstep run):
 * engine_ranks BACKEND SCENE,SCENE... RANKS. engines.sh starts it. Its scenes are the conformance
 * suite and failures that must end in order.
 */
#include "base/clock.h"
#include "base/status.h"
#include "comm/conformance.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* None, one, odd ones, and more than one call carries with LOCKSTEP_PIECE=1000. */
static const size_t counts[] = {0, 1, 37, 1025, 12291};
static const size_t few_counts[] = {1, 2051};

static ls_status all_of_it(ls_comm *comm, const size_t *n_of, int n)
{
    LS_TRY(conformance_reductions(comm, n_of, n));
    LS_TRY(conformance_movers(comm, n_of, n));
    LS_TRY(conformance_vectors(comm));
    LS_TRY(conformance_messages(comm));
    LS_TRY(conformance_handles(comm));
    return conformance_groups(comm);
}

static ls_status everything(ls_comm *comm)
{
    return all_of_it(comm, counts, (int)LS_COUNT_OF(counts));
}

static ls_status core(ls_comm *comm)
{
    return all_of_it(comm, few_counts, (int)LS_COUNT_OF(few_counts));
}

/* fp16 and bf16 are rounded once, and NaN wins in min and max. */
static ls_status numbers(ls_comm *comm)
{
    const int rank = ls_comm_rank(comm), size = ls_comm_size(comm);
    const float nan = (float)strtod("nan", NULL);
    const uint16_t huge_f16 = 0x7BFF; /* 65504 */
    uint16_t half = rank == 0 ? huge_f16 : rank == 1 ? huge_f16 | 0x8000 : 0x3C00;
    float x[2] = {rank == size - 1 ? nan : (float)rank, (float)rank};
    double y = rank == 0 ? (double)nan : 1.0;

    LS_TRY(ls_all_reduce(comm, x, x, 2, LS_F32, LS_MAX, NULL));
    LS_CHECK(x[0] != x[0] && x[1] == (float)(size - 1));
    LS_TRY(ls_all_reduce(comm, &y, &y, 1, LS_F64, LS_MIN, NULL));
    LS_CHECK(y != y);
    // 65504 - 65504 + 1 + ...: sums that fp16 cannot hold on the way.
    LS_TRY(ls_all_reduce(comm, &half, &half, 1, LS_F16, LS_SUM, NULL));
    LS_CHECK(half == (size == 2 ? 0 : size == 3 ? 0x3C00 : 0x4000));
    return LS_OK;
}

/* Of the ranks of this call some work in place and some do not. */
static ls_status mixed_places(ls_comm *comm)
{
    enum { N = 20000 };
    const int rank = ls_comm_rank(comm), size = ls_comm_size(comm);
    float *x = calloc(N, sizeof(*x)), *y = calloc(N, sizeof(*y));

    LS_CHECK(x != NULL && y != NULL);
    for (int i = 0; i < N; i++)
        x[i] = (float)(rank + 1);
    LS_TRY(ls_all_reduce(comm, x, rank % 2 == 0 ? x : y, N, LS_F32, LS_SUM, NULL));
    for (int i = 0; i < N; i++)
        LS_CHECK((rank % 2 == 0 ? x : y)[i] == (float)(size * (size + 1) / 2));
    free(x);
    free(y);
    return LS_OK;
}

/* A group of two breaks, with a receive that can be taken back; the others go on. */
static ls_status abort_half(ls_comm *comm)
{
    const int rank = ls_comm_rank(comm);
    ls_comm *half = NULL;
    ls_work *w = NULL;
    int32_t x = 0;

    LS_TRY(ls_comm_split(comm, rank < 2 ? 0 : -1, rank, &half));
    if (rank == 0)
        LS_TRY(ls_recv(half, &x, 1, LS_I32, 1, 1, &w));
    LS_TRY(ls_barrier(comm, NULL));
    if (rank == 0) {
        LS_CHECK(ls_work_wait(w) == LS_ECANCELED);
        LS_CHECK(strstr(ls_last_error(), "rank 1 aborted: enough") != NULL);
    }
    if (rank == 1)
        ls_comm_abort(half, "enough");
    if (half != NULL)
        LS_CHECK(ls_barrier(half, NULL) == LS_ECANCELED);
    ls_comm_destroy(half);
    return ls_barrier(comm, NULL);
}

/* An abort from another rank ends a collective that MPI itself cannot end. */
static ls_status abort_all(ls_comm *comm)
{
    const int rank = ls_comm_rank(comm);
    const int64_t begin_ms = ls_now_ms();
    float x = 1;

    if (rank == 0) {
        (void)poll(NULL, 0, 200); // the others are waiting by now, or not yet: both must end
        ls_comm_abort(comm, "enough");
    }
    LS_CHECK(ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL) == LS_ECANCELED);
    LS_CHECK(strstr(ls_last_error(), "rank 0 aborted: enough") != NULL);
    LS_CHECK(ls_now_ms() - begin_ms < 20000);
    return LS_OK;
}

/* Ranks call different operations: both report the mismatch. */
static ls_status mismatch(ls_comm *comm)
{
    const int64_t begin_ms = ls_now_ms();
    float x[4] = {0}, y[4] = {0};
    ls_status st;

    if (ls_comm_rank(comm) == 1)
        st = ls_broadcast(comm, x, x, 4, LS_F32, 1, NULL);
    else
        st = ls_all_reduce(comm, x, y, 4, LS_F32, LS_SUM, NULL);
    // Where the engine lets them pass each other, the hub says so a little later.
    while (st == LS_OK && ls_now_ms() - begin_ms < 10000)
        st = ls_barrier(comm, NULL);
    LS_CHECK(st == LS_EMISMATCH);
    LS_CHECK(strstr(ls_last_error(), "all_reduce") != NULL);
    LS_CHECK(strstr(ls_last_error(), "broadcast") != NULL);
    return LS_OK;
}

/* The last rank is killed: the others report its name. MPI's launchers then kill the others as
 * well, which may be named first. */
static ls_status death(ls_comm *comm)
{
    const int rank = ls_comm_rank(comm), last = ls_comm_size(comm) - 1;
    const bool is_ours = getenv("LOCKSTEP_RANK") != NULL;
    char name[32];
    float x = 1;

    if (rank == last) {
        (void)poll(NULL, 0, 100);
        (void)raise(SIGKILL);
    }
    LS_CHECK(ls_all_reduce(comm, &x, &x, 1, LS_F32, LS_SUM, NULL) == LS_EPEER);
    (void)snprintf(name, sizeof(name), "rank %d ", last);
    LS_CHECK(strstr(ls_last_error(), is_ours ? name : "rank ") != NULL);
    printf("failed with: %s\n", ls_last_error());
    return LS_OK;
}

/* The same in the middle of a transfer; no rank waits longer than the report takes. */
static ls_status large_death(ls_comm *comm)
{
    const size_t n = (size_t)32 << 20;
    float *x = calloc(n, sizeof(*x));
    const int64_t begin_ms = ls_now_ms();
    ls_work *w;
    ls_status st;

    LS_CHECK(x != NULL);
    LS_TRY(ls_all_reduce(comm, x, x, n, LS_F32, LS_SUM, &w));
    if (ls_comm_rank(comm) == ls_comm_size(comm) - 1) {
        (void)poll(NULL, 0, 20);
        (void)raise(SIGKILL);
    }
    st = ls_work_wait(w);
    free(x);
    LS_CHECK(st == LS_EPEER);
    LS_CHECK(ls_now_ms() - begin_ms < 20000);
    printf("failed with: %s\n", ls_last_error());
    return LS_OK;
}

/* One operation of more elements than an int counts. */
static ls_status huge(ls_comm *comm)
{
    const size_t n = ((size_t)1 << 31) + 1;
    const int rank = ls_comm_rank(comm);
    uint8_t *x = calloc(n, 1);

    LS_CHECK(x != NULL);
    x[n - 1] = (uint8_t)(rank + 1);
    LS_TRY(ls_all_reduce(comm, x, x, n, LS_U8, LS_SUM, NULL));
    LS_CHECK(x[n - 1] == ls_comm_size(comm) * (ls_comm_size(comm) + 1) / 2 && x[n - 2] == 0);
    x[n - 1] = (uint8_t)(rank + 7);
    if (rank == 0)
        LS_TRY(ls_send(comm, x, n, LS_U8, 1, 0, NULL));
    if (rank == 1)
        LS_TRY(ls_recv(comm, x, n, LS_U8, 0, 0, NULL));
    LS_CHECK(rank != 1 || x[n - 1] == 7);
    free(x);
    return LS_OK;
}

typedef struct scene_row {
    const char *name;
    ls_status (*body)(ls_comm *comm);
    int joins;
} scene_row;

static const scene_row scenes[] = {
    {"everything", everything, 1},   {"core", core, 1},           {"numbers", numbers, 1},
    {"places", mixed_places, 1},     {"again", mixed_places, 20}, {"abort_half", abort_half, 2},
    {"abort_all", abort_all, 1},     {"mismatch", mismatch, 1},   {"death", death, 1},
    {"large_death", large_death, 1}, {"huge", huge, 1},
};

static ls_status play(const char *backend, const scene_row *scene, int size)
{
    const ls_init_options opt = {.size = sizeof(opt), .backend = backend};
    ls_comm *comm;
    ls_status st;

    LS_TRY(ls_init(&opt, &comm));
    st = LS_OK;
    if (ls_comm_size(comm) != size || strncmp(ls_comm_backend(comm), backend, strlen(backend)) != 0)
        st = ls_fail(LS_EINTERNAL, "%d ranks over %s", ls_comm_size(comm), ls_comm_backend(comm));
    if (st == LS_OK)
        st = scene->body(comm);
    ls_comm_destroy(comm);
    return st == LS_OK ? LS_OK : ls_context(st, "%s %s", backend, scene->name);
}

/* "core,numbers": one after the other, each in a job of its own. */
static ls_status play_all(const char *backend, char *names, int size)
{
    char *rest = NULL;

    for (char *name = strtok_r(names, ",", &rest); name != NULL;
         name = strtok_r(NULL, ",", &rest)) {
        size_t i = 0;

        while (i < LS_COUNT_OF(scenes) && strcmp(scenes[i].name, name) != 0)
            i++;
        if (i == LS_COUNT_OF(scenes))
            return ls_fail(LS_EINVAL, "no scene %s", name);
        for (int k = 0; k < scenes[i].joins; k++)
            LS_TRY(play(backend, &scenes[i], size));
    }
    return LS_OK;
}

int main(int argc, char **argv)
{
    (void)alarm(240); // whatever hangs ends here
    if (argc != 4) {
        fprintf(stderr, "usage: %s BACKEND SCENE,SCENE... RANKS\n", argv[0]);
        return 2;
    }
    if (play_all(argv[1], argv[2], (int)strtol(argv[3], NULL, 10)) == LS_OK) {
        printf("all scenes held\n");
        return 0;
    }
    fprintf(stderr, "%s\n", ls_last_error());
    return 1;
}
