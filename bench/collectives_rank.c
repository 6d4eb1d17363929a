/* SPDX-License-Identifier: Apache-2.0 */
/*
 * collectives_rank RANKS FOLDER NAME MAX_BYTES - the ranks of Lockstep in bench/collectives: memory
 * "user" is the program's own, "shared" comes from ls_comm_alloc().
 */
#include <lockstep/lockstep.h>

#include "collective_loop.h"

typedef struct engine_rank {
    ls_comm *comm;
    const char *folder;
    const char *name;
    size_t bytes;
    int ranks;
    float *user[2];
    float *shared[2];
} engine_rank;

static ls_status ping_pong(ls_comm *comm, float *data, size_t count)
{
    const int rank = ls_comm_rank(comm);
    ls_status st = LS_OK;

    if (rank > 1)
        return LS_OK;
    if (rank == 0)
        st = ls_send(comm, data, count, LS_F32, 1, 0, NULL);
    if (st == LS_OK)
        st = ls_recv(comm, data, count, LS_F32, 1 - rank, 0, NULL);
    if (st == LS_OK && rank == 1)
        st = ls_send(comm, data, count, LS_F32, 0, 0, NULL);
    return st;
}

static int run(void *self, int op, float *src, float *dst, size_t count)
{
    ls_comm *comm = ((engine_rank *)self)->comm;
    ls_status st = LS_EINVAL;

    switch (op) {
    case LOOP_ALL_REDUCE:
        st = ls_all_reduce(comm, src, dst, count, LS_F32, LS_SUM, NULL);
        break;
    case LOOP_BROADCAST:
        st = ls_broadcast(comm, src, dst, count, LS_F32, 0, NULL);
        break;
    case LOOP_ALL_GATHER:
        st = ls_all_gather(comm, src, dst, count, LS_F32, NULL);
        break;
    case LOOP_REDUCE_SCATTER:
        st = ls_reduce_scatter(comm, src, dst, count, LS_F32, LS_SUM, NULL);
        break;
    case LOOP_ALL_TO_ALL:
        st = ls_all_to_all(comm, src, dst, count, LS_F32, NULL);
        break;
    case LOOP_SENDRECV:
        st = ping_pong(comm, src, count);
        break;
    case LOOP_BARRIER:
        st = ls_barrier(comm, NULL);
        break;
    }
    if (st != LS_OK)
        fprintf(stderr, "collectives_rank: %s\n", ls_last_error());
    return st != LS_OK;
}

static double slowest(void *self, double value)
{
    ls_comm *comm = ((engine_rank *)self)->comm;

    return ls_all_reduce(comm, &value, &value, 1, LS_F64, LS_MAX, NULL) == LS_OK ? value : -1;
}

static float *memory(void *self, const char *kind, int which, size_t bytes)
{
    engine_rank *c = self;

    if (bytes > c->bytes)
        return NULL;
    return strcmp(kind, "shared") == 0 ? c->shared[which] : c->user[which];
}

static ls_status rank_main(int local_rank, void *arg)
{
    engine_rank c = *(const engine_rank *)arg;
    ls_status st = ls_init(NULL, &c.comm);
    loop_engine e = {.self = &c, .run = run, .slowest = slowest, .memory = memory, .size = c.ranks};

    loop_bind(local_rank, c.ranks);
    for (int i = 0; i < 2 && st == LS_OK; i++) {
        void *shared = NULL;

        c.user[i] = loop_user_memory(c.bytes);
        st = c.user[i] == NULL ? LS_ENOMEM : ls_comm_alloc(c.comm, c.bytes, &shared);
        c.shared[i] = shared;
    }
    if (st == LS_OK) {
        e.rank = ls_comm_rank(c.comm);
        st = loop_serve(&e, c.folder, c.name) == 0 ? LS_OK : LS_EINTERNAL;
    }
    for (int i = 0; i < 2; i++) {
        ls_comm_free(c.comm, c.shared[i]);
        free(c.user[i]);
    }
    ls_comm_destroy(c.comm);
    return st;
}

int main(int argc, char **argv)
{
    engine_rank c = {0};

    if (argc != 5 || (c.ranks = (int)strtol(argv[1], NULL, 10)) < 2) {
        fprintf(stderr, "usage: collectives_rank RANKS FOLDER NAME MAX_BYTES\n");
        return 2;
    }
    c.folder = argv[2];
    c.name = argv[3];
    c.bytes = (size_t)strtoull(argv[4], NULL, 10);
    if (ls_spawn(rank_main, c.ranks, &c, NULL) != LS_OK) {
        fprintf(stderr, "collectives_rank: %s\n", ls_last_error());
        return 1;
    }
    return 0;
}
