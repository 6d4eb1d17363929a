/* SPDX-License-Identifier: Apache-2.0 */
/*
 * case.c - the table of operations, types and reductions of nccl-tests, and the sizes and positions
 * of what each rank sends and receives.
 */
#include "cli/bench/case.h"

#include "base/text.h"

#include <string.h>

typedef struct kind_facts {
    const char *name;
    const char *other; /* second accepted name */
    bool reduces;
    bool has_root;
    bool has_in_place;
    bool is_cut; /* the vector is divided among the ranks */
} kind_facts;

static const kind_facts kinds[BENCH_KIND_COUNT] = {
    [BENCH_ALL_REDUCE] = {"all_reduce", NULL, true, false, true, false},
    [BENCH_ALL_GATHER] = {"all_gather", NULL, false, false, true, true},
    [BENCH_REDUCE_SCATTER] = {"reduce_scatter", NULL, true, false, true, true},
    [BENCH_BROADCAST] = {"broadcast", NULL, false, true, true, false},
    [BENCH_REDUCE] = {"reduce", NULL, true, true, true, false},
    [BENCH_ALL_TO_ALL] = {"alltoall", "all_to_all", false, false, true, true},
    [BENCH_ALL_TO_ALL_V] = {"alltoallv", "all_to_all_v", false, false, false, true},
    [BENCH_GATHER] = {"gather", NULL, false, true, true, true},
    [BENCH_SCATTER] = {"scatter", NULL, false, true, true, true},
    [BENCH_SEND_RECV] = {"sendrecv", NULL, false, false, false, false},
    [BENCH_HYPERCUBE] = {"hypercube", NULL, false, false, true, true},
};

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

int bench_kind_of(const char *name)
{
    for (int i = 0; i < BENCH_KIND_COUNT; i++)
        if (text_equal(kinds[i].name, name) ||
            (kinds[i].other != NULL && text_equal(kinds[i].other, name)))
            return i;
    return -1;
}

int bench_kind_of_program(const char *name)
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
    return kinds[kind].name;
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
    return kinds[kind].reduces;
}

bool bench_has_root(bench_kind kind)
{
    return kinds[kind].has_root;
}

bool bench_has_in_place(bench_kind kind)
{
    return kinds[kind].has_in_place;
}

double bench_bus_factor(bench_kind kind, int n)
{
    switch (kind) {
    case BENCH_ALL_REDUCE:
        return 2.0 * (n - 1) / n;
    case BENCH_BROADCAST:
    case BENCH_REDUCE:
    case BENCH_SEND_RECV:
    case BENCH_HYPERCUBE:
        return 1;
    default:
        return (double)(n - 1) / n;
    }
}

double bench_traffic(const bench_case *c)
{
    const double part = (double)(c->count * ls_dtype_size(c->type));

    if (c->kind == BENCH_HYPERCUBE)
        return part * (c->n - 1);
    return kinds[c->kind].is_cut ? part * c->n : part;
}

size_t bench_count_for(bench_kind kind, ls_dtype type, int64_t bytes, int n)
{
    const size_t elements = (size_t)bytes / ls_dtype_size(type);

    return kinds[kind].is_cut ? elements / (size_t)n : elements;
}

size_t bench_size(const bench_case *c)
{
    const size_t parts = kinds[c->kind].is_cut ? (size_t)c->n : 1;

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

size_t bench_src_count(const bench_case *c, int rank)
{
    const size_t all = c->count * (size_t)c->n;

    switch (c->kind) {
    case BENCH_REDUCE_SCATTER:
    case BENCH_ALL_TO_ALL:
        return all;
    case BENCH_ALL_TO_ALL_V:
        return pairs_before(c, rank, c->n);
    case BENCH_SCATTER:
        return rank == c->root ? all : 0;
    case BENCH_BROADCAST:
        return rank == c->root ? c->count : 0;
    default:
        return c->count;
    }
}

size_t bench_dst_count(const bench_case *c, int rank)
{
    const size_t all = c->count * (size_t)c->n;

    switch (c->kind) {
    case BENCH_ALL_GATHER:
    case BENCH_ALL_TO_ALL:
    case BENCH_HYPERCUBE:
        return all;
    case BENCH_ALL_TO_ALL_V:
        return pairs_before(c, rank, c->n); // what two ranks give each other is the same
    case BENCH_GATHER:
        return rank == c->root ? all : 0;
    case BENCH_REDUCE:
        return rank == c->root ? c->count : 0;
    default:
        return c->count;
    }
}

bool bench_part_at(const bench_case *c, int rank, int part, bench_part *out)
{
    const size_t mine = (size_t)rank * c->count;

    *out = (bench_part){.source = part, .count = c->count};
    switch (c->kind) {
    case BENCH_ALL_REDUCE:
    case BENCH_REDUCE:
        out->source = -1;
        break;
    case BENCH_REDUCE_SCATTER:
        out->source = -1;
        out->from = mine;
        break;
    case BENCH_BROADCAST:
        out->source = c->root;
        break;
    case BENCH_SCATTER:
        out->source = c->root;
        out->from = mine;
        break;
    case BENCH_SEND_RECV:
        out->source = (rank + c->n - 1) % c->n;
        break;
    case BENCH_ALL_TO_ALL:
        out->from = mine;
        return part < c->n;
    case BENCH_ALL_TO_ALL_V:
        if (part < c->n) {
            out->from = pairs_before(c, part, rank);
            out->count = bench_pair_count(c, part, rank);
        }
        return part < c->n;
    default: // gathering ones
        return part < c->n && bench_dst_count(c, rank) > 0;
    }
    return part == 0 && bench_dst_count(c, rank) > 0;
}

void bench_place(const bench_case *c, int rank, bool in_place, void *first, void *second,
                 void **src, void **dst)
{
    void *own = (char *)first + (size_t)rank * c->count * ls_dtype_size(c->type);
    const bool gathers = c->kind == BENCH_ALL_GATHER || c->kind == BENCH_HYPERCUBE ||
                         (c->kind == BENCH_GATHER && rank == c->root);
    const bool scatters =
        c->kind == BENCH_REDUCE_SCATTER || (c->kind == BENCH_SCATTER && rank == c->root);

    *src = in_place && gathers ? own : first;
    *dst = !in_place ? second : scatters ? own : first;
}
