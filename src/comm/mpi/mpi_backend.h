/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_backend.h - the collectives of an MPI library behind our contract; compiled once for each library, against its mpi.h.
 *
 *   mpi_backend.c  its life, groups, progress, sleeping, and what is left when a group breaks
 *   mpi_calls.c    one operation as MPI requests
 *
 * All of it is non-blocking calls (MPI_Iallreduce...), because a blocking one could not be left when a rank has died.
 */
#ifndef LS_MPI_BACKEND_H
#define LS_MPI_BACKEND_H

#include "base/map.h"
#include "comm/backend.h"

#include <mpi.h>
#include <stdatomic.h>

#define FIRST_REQUESTS 4

struct backend_state {
    const comm_host *host;
    MPI_Comm world;                 /* ranks as the job numbers them */
    MPI_Op own[LS_REDUCE_OP_COUNT]; /* with our arithmetic; AVG has none */
    size_t piece;                   /* the most elements that one call is given */
    int tag_limit; /* tags below it are the user's, the limit itself is exchange()'s */
    int control_fd;
    int wake_fd;
    atomic_int_fast64_t expected_ns; /* until when what is under way may take */
    bool is_told;                    /* the other groups know that MPI is lost */
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

/* One operation under way: requests, and memory that MPI uses instead of the caller's. */
typedef struct mpi_job {
    list_node node;
    backend_group *group;
    backend_work *work;
    MPI_Request first[FIRST_REQUESTS];
    MPI_Request *requests; /* `first`, or memory of its own */
    int n_requests;
    int n_done; /* of these, in their order */
    int capacity;
    void *from; /* copy of src, widened where the type asks for it; NULL: none */
    void *to;   /* where the result comes instead of dst; NULL: dst */
} mpi_job;

/* What all ranks have in this operation together, about. */
size_t mpi_call_bytes(const mpi_job *j);

/* Starts the operation; an MPI error code. What was started before an error stays in the job. */
int mpi_call_start(mpi_job *j);

/* All requests are complete: brings the result to dst. */
void mpi_call_finish(mpi_job *j);

/* As what a type is moved. */
MPI_Datatype mpi_call_type(ls_dtype type);

/* The reductions of s->own; an MPI error code. */
int mpi_call_make_ops(backend_state *s);
void mpi_call_free_ops(backend_state *s);

#endif
