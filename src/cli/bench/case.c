/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case.c - the table of operations, types and reductions of nccl-tests, and the sizes and positions
 * of what each rank sends and receives.
 */
#include "cli/bench/case.h"

#include "base/text.h"

#include <string.h>

/* src/cli/CMakeLists.txt takes the names of programs from these rows. */
static const struct {
    const char *name;
    const char *other; /* second accepted name */
    bench_kind kind;
} operations[] = {
    {"all_reduce", NULL, COLL_ALL_REDUCE},
    {"all_gather", NULL, COLL_ALL_GATHER},
    {"reduce_scatter", NULL, COLL_REDUCE_SCATTER},
    {"broadcast", NULL, COLL_BROADCAST},
    {"reduce", NULL, COLL_REDUCE},
    {"alltoall", "all_to_all", COLL_ALL_TO_ALL},
    {"alltoallv", "all_to_all_v", BENCH_ALL_TO_ALL_V},
    {"gather", NULL, COLL_GATHER},
    {"scatter", NULL, COLL_SCATTER},
    {"sendrecv", NULL, BENCH_SEND_RECV},
    {"hypercube", NULL, BENCH_HYPERCUBE},
};

coll_kind bench_collective(bench_kind kind)
{
    if (kind == BENCH_ALL_TO_ALL_V)
        return COLL_ALL_TO_ALL;
    return kind == BENCH_HYPERCUBE ? COLL_ALL_GATHER : (coll_kind)kind;
}

/* What each rank sends and receives. */
static const coll_shape *shape_of(bench_kind kind)
{
    static const coll_shape send_recv = {.src = COLL_PART, .dst = COLL_PART};

    return kind == BENCH_SEND_RECV ? &send_recv : &coll_shapes[bench_collective(kind)];
}

/* Whether the vector is divided among the ranks. */
static bool is_divided(bench_kind kind)
{
    const coll_shape *shape = shape_of(kind);

    return shape->src == COLL_ALL_PARTS || shape->dst == COLL_ALL_PARTS;
}

static const char *const type_names[LS_DTYPE_COUNT] = {"int8", "uint8",    "int32", "int64",
                                                       "half", "bfloat16", "float", "double"};
static const char *const redop_names[LS_REDUCE_OP_COUNT] = {"sum", "avg",  "prod", "min",
                                                            "max", "band", "bor",  "bxor"};

static int find_name(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (text_equal(names[i], name))
            return i;
    return -1;
}

bench_kind bench_kind_at(int index)
{
    return index < (int)LS_COUNT_OF(operations) ? operations[index].kind : -1;
}

void bench_kind_names(char *buf, size_t n)
{
    size_t used = 0;

    for (size_t i = 0; i < LS_COUNT_OF(operations) && used < n; i++) {
        text_format(buf + used, n - used, "%s%s", i > 0 ? ", " : "", operations[i].name);
        used += strlen(buf + used);
    }
}

bench_kind bench_kind_of(const char *name)
{
    for (size_t i = 0; i < LS_COUNT_OF(operations); i++)
        if (text_equal(operations[i].name, name) ||
            (operations[i].other != NULL && text_equal(operations[i].other, name)))
            return operations[i].kind;
    return -1;
}

bench_kind bench_kind_of_program(const char *name)
{
    const char *end = strstr(name, "_perf");
    char operation[32];

    if (end == NULL || (end[5] != '\0' && end[5] != '_'))
        return -1;
    text_format(operation, sizeof(operation), "%.*s", (int)(end - name), name);
    return bench_kind_of(operation);
}

const char *bench_kind_name(bench_kind kind)
{
    int i = 0;

    while (operations[i].kind != kind)
        i++;
    return operations[i].name;
}

int bench_type(const char *name)
{
    return find_name(type_names, LS_DTYPE_COUNT, name);
}

const char *bench_type_name(ls_dtype type)
{
    return type_names[type];
}

int bench_redop(const char *name)
{
    return find_name(redop_names, LS_REDUCE_OP_COUNT, name);
}

const char *bench_redop_name(ls_reduce_op op)
{
    return redop_names[op];
}

bool bench_reduces(bench_kind kind)
{
    return shape_of(kind)->reduces;
}

bool bench_has_root(bench_kind kind)
{
    return shape_of(kind)->src_at_root || shape_of(kind)->dst_at_root;
}

bool bench_has_in_place(bench_kind kind)
{
    return kind != BENCH_ALL_TO_ALL_V && kind != BENCH_SEND_RECV;
}

double bench_bus_factor(bench_kind kind, int n)
{
    if (kind == BENCH_HYPERCUBE)
        return 1;
    if (is_divided(kind))
        return (double)(n - 1) / n;
    return bench_reduces(kind) && !bench_has_root(kind) ? 2.0 * (n - 1) / n : 1;
}

double bench_traffic(const bench_case *c)
{
    const double part = (double)(c->count * ls_dtype_size(c->type));

    if (c->kind == BENCH_HYPERCUBE)
        return part * (c->n - 1);
    return is_divided(c->kind) ? part * c->n : part;
}

size_t bench_count_for(bench_kind kind, ls_dtype type, int64_t bytes, int n)
{
    const size_t elements = (size_t)bytes / ls_dtype_size(type);

    return is_divided(kind) ? elements / (size_t)n : elements;
}

size_t bench_size(const bench_case *c)
{
    const size_t parts = is_divided(c->kind) ? (size_t)c->n : 1;

    return c->count * parts * ls_dtype_size(c->type);
}

size_t bench_buffer_bytes(int64_t bytes)
{
    // The parts of BENCH_ALL_TO_ALL_V may all be large ones.
    return (size_t)bytes + (size_t)bytes / 2 + 1;
}

size_t bench_pair_count(const bench_case *c, int from, int to)
{
    const size_t half = c->count / 2;

    return (from + to) % 2 == 0 ? c->count + half : c->count - half;
}

static size_t pairs_before(const bench_case *c, int from, int to)
{
    size_t sum = 0;

    for (int i = 0; i < to; i++)
        sum += bench_pair_count(c, from, i);
    return sum;
}

/* Elements of a buffer of the rank. */
static size_t side_count(const bench_case *c, int rank, coll_extent extent, bool at_root)
{
    if (at_root && rank != c->root)
        return 0;
    if (c->kind == BENCH_ALL_TO_ALL_V)
        return pairs_before(c, rank, c->n); // what two ranks give each other is the same
    return extent == COLL_ALL_PARTS ? c->count * (size_t)c->n : c->count;
}

size_t bench_src_count(const bench_case *c, int rank)
{
    const coll_shape *shape = shape_of(c->kind);

    return side_count(c, rank, shape->src, shape->src_at_root);
}

size_t bench_dst_count(const bench_case *c, int rank)
{
    const coll_shape *shape = shape_of(c->kind);

    return side_count(c, rank, shape->dst, shape->dst_at_root);
}

bool bench_part_at(const bench_case *c, int rank, int part, bench_part *out)
{
    const coll_shape *shape = shape_of(c->kind);
    const int n_parts = shape->dst == COLL_ALL_PARTS ? c->n : 1;

    if (part >= n_parts || bench_dst_count(c, rank) == 0)
        return false;
    *out = (bench_part){.source = part, .count = c->count};
    if (shape->reduces)
        out->source = -1;
    else if (shape->src_at_root)
        out->source = c->root;
    else if (c->kind == BENCH_SEND_RECV)
        out->source = (rank + c->n - 1) % c->n;
    if (c->kind == BENCH_ALL_TO_ALL_V) {
        out->from = pairs_before(c, part, rank);
        out->count = bench_pair_count(c, part, rank);
    } else if (shape->src == COLL_ALL_PARTS) {
        out->from = (size_t)rank * c->count;
    }
    return true;
}

void bench_place(const bench_case *c, int rank, bool in_place, void *first, void *second,
                 void **src, void **dst)
{
    const coll_shape *shape = shape_of(c->kind);
    void *own = (char *)first + (size_t)rank * c->count * ls_dtype_size(c->type);
    const bool gathers = shape->dst == COLL_ALL_PARTS && shape->src == COLL_PART &&
                         (!shape->dst_at_root || rank == c->root);
    const bool scatters = shape->src == COLL_ALL_PARTS && shape->dst == COLL_PART &&
                          (!shape->src_at_root || rank == c->root);

    *src = in_place && gathers ? own : first;
    *dst = !in_place ? second : scatters ? own : first;
}
