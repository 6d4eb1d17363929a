/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_backend.h - the collectives of an MPI library as a backend; compiled once for each library,
 * with its mpi.h.
 *
 *   mpi_backend.c  opening and closing, groups, progress, sleeping, broken groups
 *   mpi_calls.c    one operation as MPI requests
 *
 * All operations are non-blocking calls (MPI_Iallreduce...), because a blocking call would not
 * return after the loss of a rank.
 */
#ifndef LS_COMM_BACKENDS_MPI_MPI_BACKEND_H
#define LS_COMM_BACKENDS_MPI_MPI_BACKEND_H

#include "base/map.h"
#include "comm/backends/external/compose.h"
#include "comm/backends/external/external.h"

#include <mpi.h>
#include <stdatomic.h>

struct backend_state {
    const comm_host *host;
    external_waker waker;
    MPI_Comm world;                  /* with the job's rank numbers */
    MPI_Op own[LS_BAND];             /* with Lockstep's arithmetic; AVG has none */
    size_t piece;                    /* the largest number of elements of one call */
    int tag_limit;                   /* the user's tags are below it; exchanges use it */
    atomic_int_fast64_t expected_ns; /* when the operations under way should have ended */
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
    size_t n_done; /* the first n_done requests are complete */
} mpi_job;

/* Starts the operation; returns an MPI error code. Started requests stay in the job. */
int mpi_call_start(mpi_job *j);

/* The MPI type with which elements are sent. */
MPI_Datatype mpi_call_type(ls_dtype type);

/* Creates the reductions of s->own; returns an MPI error code. */
int mpi_call_make_ops(backend_state *s);
void mpi_call_free_ops(backend_state *s);

#endif
