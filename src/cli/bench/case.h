/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case.h - one row of the table: an operation on a number of elements; what each rank sends and
 * receives, the expected results, and the bytes by the rules of nccl-tests (its
 * doc/PERFORMANCE.md). Pure.
 *
 * `count` is the argument of the operation: the whole vector, or, for operations that divide the
 * vector among the ranks, the part of one rank. "size" is all parts together.
 */
#ifndef LS_CLI_BENCH_CASE_H
#define LS_CLI_BENCH_CASE_H

#include "base/status.h"
#include "hub/collectives.h"

#include <lockstep/comm.h>

#include <stdbool.h>

/* A collective (coll_kind), or one of these. */
typedef int bench_kind;
enum {
    BENCH_ALL_TO_ALL_V = COLL_KIND_COUNT, /* parts of 1.5 and 0.5 times the count, alternating */
    BENCH_SEND_RECV,                      /* to the next rank, from the one before */
    BENCH_HYPERCUBE                       /* all_gather by log2(n) exchanges; n a power of two */
};

typedef struct bench_case {
    bench_kind kind;
    ls_dtype type;
    ls_reduce_op redop; /* where it reduces */
    int root;           /* -1 where it has none */
    size_t count;
    int n; /* ranks */
} bench_case;

/* --- names of nccl-tests ("alltoall", "float", "half"), also all_to_all; -1: unknown --- */

/* The kind in row `index` of the table; -1 after the last. */
bench_kind bench_kind_at(int index);
/* "all_reduce, all_gather, ...": all of the table. */
void bench_kind_names(char *buf, size_t n);
bench_kind bench_kind_of(const char *name);
/* By a program name of nccl-tests: "all_reduce_perf", or "all_reduce_perf_mpi" of some builds. */
bench_kind bench_kind_of_program(const char *name);
const char *bench_kind_name(bench_kind kind);
int bench_type(const char *name);
const char *bench_type_name(ls_dtype type);
int bench_redop(const char *name);
const char *bench_redop_name(ls_reduce_op op);

/* --- properties of an operation --- */

/* The collective that has the same result; not of BENCH_SEND_RECV. */
coll_kind bench_collective(bench_kind kind);
bool bench_reduces(bench_kind kind);
bool bench_has_root(bench_kind kind);
bool bench_has_in_place(bench_kind kind);
/* Bus bandwidth / algorithm bandwidth: the share of the size that the link of every rank must carry
 * with any algorithm. */
double bench_bus_factor(bench_kind kind, int n);
/* The bytes that algorithm bandwidth counts. */
double bench_traffic(const bench_case *c);

/* `count` for a table row of `bytes` bytes. */
size_t bench_count_for(bench_kind kind, ls_dtype type, int64_t bytes, int n);
size_t bench_size(const bench_case *c); /* the column "size" */
/* Bytes of a buffer that is large enough for every rank in rows of at most `bytes`. */
size_t bench_buffer_bytes(int64_t bytes);

/* Elements in the source and in the destination of the rank; 0: it has none. */
size_t bench_src_count(const bench_case *c, int rank);
size_t bench_dst_count(const bench_case *c, int rank);
/* BENCH_ALL_TO_ALL_V: elements from one rank to another. */
size_t bench_pair_count(const bench_case *c, int from, int to);

/* The destination of a rank consists of parts: `count` elements of one rank's source, or of the
 * reduction of all sources, from element `from` on. */
typedef struct bench_part {
    int source; /* -1: the reduction of all sources */
    size_t from;
    size_t count;
} bench_part;
/* Parts are contiguous in dst. Returns false after the last part. */
bool bench_part_at(const bench_case *c, int rank, int part, bench_part *out);

/* Sets *src and *dst: in two buffers, or in place in the first one as comm.h defines it. */
void bench_place(const bench_case *c, int rank, bool in_place, void *first, void *second,
                 void **src, void **dst);

/* --- split.c: ranks with the same color measure together --- */

/* NCCL_TESTS_SPLIT ("AND 0x7", "OR 1", "MOD 8", "/4") and NCCL_TESTS_SPLIT_MASK ("7", hexadecimal),
 * which takes precedence; one of them may be NULL. LS_EINVAL: the message names the variable. */
LS_MUST_USE ls_status bench_split_color(const char *split, const char *mask, int rank, int *out);

/* --- data.c: inputs whose reduction is exact in any order; results are compared bit for bit --- */

void bench_fill(const bench_case *c, int rank, void *src);
/* The number of wrong elements in the rank's destination. */
int64_t bench_count_wrong(const bench_case *c, int rank, const void *dst);

#endif
