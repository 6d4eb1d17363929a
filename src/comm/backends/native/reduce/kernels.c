/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.c - adds contributions along the aligned tree block by block, so that inner nodes stay in
 * the first-level cache. exec.c, the team's algorithms and the engine call reduce_tree()
 * (comm/backends/reduce.h).
 *
 * Operands are pushed in rank order on a stack of finished subtrees; two siblings on top become
 * their parent at once (as carries in a binary counter), and the rest is combined from the right at
 * the end. So at most one subtree per level exists, whatever the number of operands.
 */
#include "comm/backends/native/reduce/kernels.h"

#include "base/status.h"
#include "comm/backends/native/reduce/kernels_table.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define SCRATCH_BYTES 12288 /* inner nodes of one block; on the stack */
#define PAIR_BYTES    8192
#define LEVELS_MAX    33 /* of a tree over as many ranks as an int counts, and one more */

/* --- choosing the instruction set --- */

static bool can_run(const kernel_table *table)
{
#if defined(__x86_64__)
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;

    if (table == &kernels_avx512)
        return f16c && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (table == &kernels_avx2)
        return f16c && __builtin_cpu_supports("avx2");
#endif
    return table == &kernels_baseline;
}

static const kernel_table *const tables[] = {
#if defined(__x86_64__)
    &kernels_avx512,
    &kernels_avx2,
#endif
    &kernels_baseline,
};

// Every writer writes the same value; reduce_use() is for tests.
static _Atomic(const kernel_table *) chosen;

static const kernel_table *choose(void)
{
    const kernel_table *table = atomic_load_explicit(&chosen, memory_order_relaxed);

    for (size_t i = 0; table == NULL; i++) {
        if (can_run(tables[i]))
            table = tables[i];
    }
    atomic_store_explicit(&chosen, table, memory_order_relaxed);
    return table;
}

static inline const kernel_table *current_table(void)
{
    const kernel_table *table = atomic_load_explicit(&chosen, memory_order_relaxed);

    return table != NULL ? table : choose();
}

const char *reduce_simd(void)
{
    return current_table()->name;
}

bool reduce_use(const char *name)
{
    for (size_t i = 0; i < LS_COUNT_OF(tables); i++) {
        if (name != NULL && strcmp(tables[i]->name, name) == 0 && can_run(tables[i])) {
            atomic_store_explicit(&chosen, tables[i], memory_order_relaxed);
            return true;
        }
    }
    if (name == NULL)
        atomic_store_explicit(&chosen, NULL, memory_order_relaxed);
    return name == NULL;
}

ls_dtype reduce_partial_type(ls_dtype type)
{
    return type == LS_F16 || type == LS_BF16 ? LS_F32 : type;
}

/* --- the caller's floating point mode --- */

// A program may have set its thread to flush subnormals or to round otherwise; the sums must not
// depend on it.
static inline unsigned enter_exact_mode(void)
{
#if defined(__x86_64__)
    const unsigned mode = _mm_getcsr();

    if ((mode & (_MM_FLUSH_ZERO_MASK | _MM_DENORMALS_ZERO_MASK | _MM_ROUND_MASK)) != 0)
        _mm_setcsr(_MM_MASK_MASK);
    return mode;
#else
    return 0;
#endif
}

static inline void leave_exact_mode(unsigned mode)
{
#if defined(__x86_64__)
    if ((mode & (_MM_FLUSH_ZERO_MASK | _MM_DENORMALS_ZERO_MASK | _MM_ROUND_MASK)) != 0)
        _mm_setcsr(mode);
#else
    (void)mode;
#endif
}

/* --- the tree --- */

typedef struct tree_node {
    const void *data;
    int level;
    int scratch; /* the scratch buffer that holds it, -1: an operand or dst */
} tree_node;

typedef struct tree {
    combine_fn combine;
    widen_fn widen;
    size_t type_bytes;
    size_t partial_bytes;
    const reduce_operand *operands;
    int n_operands;
    size_t block; /* elements */
    void *root;   /* target of the root's partial value; NULL: a scratch buffer */
    char *scratch;
    size_t scratch_bytes; /* of one buffer */
    uint64_t used;        /* buffers, as bits */
    tree_node *stack;     /* LEVELS_MAX; apart, so that it need not be cleared */
    int depth;
} tree;

static int level_of(int n_ranks)
{
    int level = 0;

    while (((int64_t)1 << level) < n_ranks)
        level++;
    return level;
}

static int take_scratch(tree *t)
{
    const int buffer = __builtin_ctzll(~t->used);

    t->used |= UINT64_C(1) << buffer;
    return buffer;
}

static void free_scratch(tree *t, int buffer)
{
    if (buffer >= 0)
        t->used &= ~(UINT64_C(1) << buffer);
}

static void push(tree *t, const reduce_operand *o, size_t at, size_t count)
{
    tree_node *node = &t->stack[t->depth++];
    const char *data = o->data;

    node->level = level_of(o->n_ranks);
    node->scratch = -1;
    if (o->partial || t->widen == NULL) {
        node->data = data + at * t->partial_bytes;
        return;
    }
    node->scratch = take_scratch(t);
    node->data = t->scratch + (size_t)node->scratch * t->scratch_bytes;
    t->widen(t->scratch + (size_t)node->scratch * t->scratch_bytes, data + at * t->type_bytes,
             count);
}

/* Replaces the two subtrees on top by their parent. */
static void merge(tree *t, bool is_root, size_t count)
{
    const tree_node right = t->stack[--t->depth];
    tree_node *left = &t->stack[t->depth - 1];
    int buffer = -1;
    void *to = t->root;

    if (!is_root || to == NULL) {
        buffer = left->scratch >= 0 ? left->scratch : right.scratch;
        if (buffer < 0)
            buffer = take_scratch(t);
        to = t->scratch + (size_t)buffer * t->scratch_bytes;
    }
    t->combine(to, left->data, right.data, count);
    if (left->scratch != buffer)
        free_scratch(t, left->scratch);
    if (right.scratch != buffer)
        free_scratch(t, right.scratch);
    left->data = to;
    left->scratch = buffer;
    left->level = (left->level > right.level ? left->level : right.level) + 1;
}

/* Computes the root for elements [at, at + count), in t->root or in a scratch buffer. */
static const void *reduce_block(tree *t, size_t at, size_t count)
{
    t->used = 0;
    t->depth = 0;
    for (int i = 0; i < t->n_operands; i++) {
        push(t, &t->operands[i], at, count);
        while (t->depth >= 2 && t->stack[t->depth - 1].level == t->stack[t->depth - 2].level)
            merge(t, i == t->n_operands - 1 && t->depth == 2, count);
    }
    while (t->depth >= 2)
        merge(t, t->depth == 2, count);
    return t->stack[0].data;
}

static void reduce_blocks(tree *t, void *dst, size_t count, finish_fn finish, double divisor)
{
    _Alignas(64) char scratch[SCRATCH_BYTES];
    tree_node stack[LEVELS_MAX];
    // in use at once: one a level, and one more for a widened operand
    const size_t buffers = (size_t)level_of(t->n_operands) + 2;
    const size_t dst_bytes = finish != NULL ? t->type_bytes : t->partial_bytes;
    char *out = dst;

    t->scratch = scratch;
    t->stack = stack;
    t->scratch_bytes = SCRATCH_BYTES / buffers / 64 * 64;
    t->block = t->scratch_bytes / t->partial_bytes;
    for (size_t at = 0; at < count; at += t->block) {
        const size_t n = count - at < t->block ? count - at : t->block;
        char *to = out + at * dst_bytes;
        const void *value;

        t->root = dst_bytes == t->partial_bytes ? to : NULL;
        value = reduce_block(t, at, n);
        if (finish != NULL)
            finish(to, value, n, divisor);
        else if (value != to)
            memmove(to, value, n * dst_bytes);
    }
    t->scratch = NULL;
    t->stack = NULL;
}

/* Whether the operands are 2 to 4 single ranks from the start of an aligned subtree: one loop adds
 * them all. */
static bool fits_sum_f32(const reduce_operand *operands, int n_operands)
{
    if (n_operands < 2 || n_operands > SUM_F32_MAX ||
        operands[0].first % (n_operands == 2 ? 2 : SUM_F32_MAX) != 0)
        return false;
    for (int i = 0; i < n_operands; i++) {
        if (operands[i].n_ranks != 1)
            return false;
    }
    return true;
}

static void sum_f32(const kernel_table *k, float *dst, const reduce_operand *operands,
                    int n_operands, size_t count, double divisor)
{
    const float *src[SUM_F32_MAX];

    for (int i = 0; i < n_operands; i++)
        src[i] = operands[i].data;
    k->sum_f32[n_operands](dst, src, count, divisor);
}

/* Two operands need no scratch buffer: their combination goes straight to dst. */
static void reduce_pair(combine_fn combine, finish_fn finish, char *dst,
                        const reduce_operand *operands, size_t count, size_t bytes, double divisor)
{
    const size_t block = PAIR_BYTES / bytes;
    const char *left = operands[0].data;
    const char *right = operands[1].data;

    for (size_t at = 0; at < count; at += block) {
        const size_t n = count - at < block ? count - at : block;

        combine(dst + at * bytes, left + at * bytes, right + at * bytes, n);
        if (finish != NULL)
            finish(dst + at * bytes, dst + at * bytes, n, divisor);
    }
}

void reduce_tree(void *dst, const reduce_operand *operands, int n_operands, size_t count,
                 ls_dtype type, ls_reduce_op op, bool final, double divisor)
{
    const kernel_table *k = current_table();
    const ls_dtype partial = reduce_partial_type(type);
    const double divide_by = final && op == LS_AVG ? divisor : 1;
    const unsigned mode = enter_exact_mode();

    LS_ASSERT(n_operands >= 1);
    if (type == LS_F32 && (op == LS_SUM || (op == LS_AVG && final)) &&
        fits_sum_f32(operands, n_operands)) {
        sum_f32(k, dst, operands, n_operands, count, divide_by);
    } else if (n_operands == 2 && k->widen[type] == NULL) {
        reduce_pair(k->combine[partial][op], final ? k->finish[type] : NULL, dst, operands, count,
                    ls_dtype_size(type), divide_by);
    } else {
        tree t = {.combine = k->combine[partial][op],
                  .widen = k->widen[type],
                  .type_bytes = ls_dtype_size(type),
                  .partial_bytes = ls_dtype_size(partial),
                  .operands = operands,
                  .n_operands = n_operands};

        reduce_blocks(&t, dst, count, final ? k->finish[type] : NULL, divide_by);
    }
    leave_exact_mode(mode);
}
