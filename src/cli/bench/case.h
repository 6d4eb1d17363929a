/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case.h - one row of the table: an operation on so many elements. What each rank gives and gets, what must come out, and how
 * nccl-tests counts its bytes (doc/PERFORMANCE.md there). Pure.
 *
 * `count` is what the operation is called with: the whole vector, or the part that one rank gives to or gets from another where
 * the vector is cut by rank. "size" is then all parts together.
 */
#ifndef LS_CLI_BENCH_CASE_H
#define LS_CLI_BENCH_CASE_H

#include "base/status.h"

#include <lockstep/comm.h>

#include <stdbool.h>

typedef enum bench_kind {
    BENCH_ALL_REDUCE,
    BENCH_ALL_GATHER,
    BENCH_REDUCE_SCATTER,
    BENCH_BROADCAST,
    BENCH_REDUCE,
    BENCH_ALL_TO_ALL,
    BENCH_ALL_TO_ALL_V, /* parts of one and a half and of half the count in turn */
    BENCH_GATHER,
    BENCH_SCATTER,
    BENCH_SEND_RECV, /* to the next rank, from the one before */
    BENCH_HYPERCUBE, /* all_gather by log2(n) exchanges; n a power of two */
    BENCH_KIND_COUNT
} bench_kind;

typedef struct bench_case {
    bench_kind kind;
    ls_dtype type;
    ls_reduce_op redop; /* where it reduces */
    int root;           /* -1 where it has none */
    size_t count;
    int n; /* ranks */
} bench_case;

/* --- names, as nccl-tests spells them ("alltoall", "float", "half"); all_to_all is understood, too. -1: no such name --- */

int bench_kind_of(const char *name);
/* Of a program of nccl-tests: "all_reduce_perf", or with the suffix of some builds
 * "all_reduce_perf_mpi". */
int bench_kind_of_program(const char *name);
const char *bench_kind_name(bench_kind kind);
int bench_type(const char *name);
const char *bench_type_name(ls_dtype type);
int bench_redop(const char *name);
const char *bench_redop_name(ls_reduce_op op);

/* --- what an operation is like --- */

bool bench_reduces(bench_kind kind);
bool bench_has_root(bench_kind kind);
bool bench_has_in_place(bench_kind kind);
bool bench_is_defined(ls_dtype type, ls_reduce_op op); /* whole numbers have no average */
/* Bus bandwidth / algorithm bandwidth: the share of the size that every rank's link must carry whatever the algorithm. */
double bench_bus_factor(bench_kind kind, int n);
/* What algorithm bandwidth counts, in bytes. */
double bench_traffic(const bench_case *c);

/* `count` for a table row of `bytes` bytes. */
size_t bench_count_for(bench_kind kind, ls_dtype type, int64_t bytes, int n);
size_t bench_size(const bench_case *c); /* the column "size" */
/* Bytes that hold what any rank gives or gets in rows of at most `bytes`. */
size_t bench_room(int64_t bytes);

/* Elements that the rank gives and gets; 0 where it does not. */
size_t bench_src_count(const bench_case *c, int rank);
size_t bench_dst_count(const bench_case *c, int rank);
/* BENCH_ALL_TO_ALL_V: elements that go from one rank to another. */
size_t bench_pair_count(const bench_case *c, int from, int to);

/* What a rank gets is made of parts: so many elements of another rank's source, or of the reduction of all. */
typedef struct bench_part {
    int source; /* -1: the reduction of all sources */
    size_t from;
    size_t count;
} bench_part;
/* Parts follow each other in dst; false behind the last. */
bool bench_part_at(const bench_case *c, int rank, int part, bench_part *out);

/* Where source and destination lie: apart in two buffers, or in place in the first as comm.h defines it. */
void bench_place(const bench_case *c, int rank, bool in_place, void *first, void *second,
                 void **src, void **dst);

/* --- split.c: ranks with the same color measure together --- */

/* NCCL_TESTS_SPLIT ("AND 0x7", "OR 1", "MOD 8", "/4") and NCCL_TESTS_SPLIT_MASK ("7", hexadecimal),
 * which comes first; one of them may be NULL. LS_EINVAL names the variable. */
LS_MUST_USE ls_status bench_split_color(const char *split, const char *mask, int rank, int *out);

/* --- data.c: inputs whose reduction is exact in any order, so that results are compared bit for bit --- */

void bench_fill(const bench_case *c, int rank, void *src);
/* Elements of the rank's destination that are not what must come out. */
int64_t bench_count_wrong(const bench_case *c, int rank, const void *dst);

#endif
