/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_backend.h - the collectives of an MPI library behind our contract; compiled once for each
 * library, against its mpi.h.
 *
 *   mpi_backend.c  its life, groups, progress, sleeping, and what is left when a group breaks
 *   mpi_calls.c    one operation as MPI requests
 *
 * All of it is non-blocking calls (MPI_Iallreduce...), because a blocking one could not be left
 * when a rank has died.
 */
#ifndef LS_MPI_BACKEND_H
#define LS_MPI_BACKEND_H

#include "base/map.h"
#include "comm/compose.h"
#include "comm/foreign.h"

#include <mpi.h>
#include <stdatomic.h>

struct backend_state {
    const comm_host *host;
    foreign_waker waker;
    MPI_Comm world;                  /* ranks as the job numbers them */
    MPI_Op own[LS_REDUCE_OP_COUNT];  /* with our arithmetic; AVG has none */
    size_t piece;                    /* the most elements that one call is given */
    int tag_limit;                   /* tags below it are the user's, the limit itself is ours */
    atomic_int_fast64_t expected_ns; /* until when what is under way may take */
    list_node groups;
    list_node free_jobs;
};

struct backend_group {
    list_node node;
    backend_state *state;
    const group_info *info;
    MPI_Comm comm;
    list_node jobs;
};

/* One operation under way. */
typedef struct mpi_job {
    list_node node;
    backend_group *group;
    backend_work *work;
    composed c;
    MPI_Request *requests;
    size_t capacity;
    size_t n_requests;
    size_t n_done; /* of these, in their order */
} mpi_job;

/* Starts the operation; an MPI error code. What was started before an error stays in the job. */
int mpi_call_start(mpi_job *j);

/* As what a type is moved. */
MPI_Datatype mpi_call_type(ls_dtype type);

/* The reductions of s->own; an MPI error code. */
int mpi_call_make_ops(backend_state *s);
void mpi_call_free_ops(backend_state *s);

#endif
