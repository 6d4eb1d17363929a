/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_tiles.cu - scaled dot-product attention of 16-bit types on tensor cores. A warp has 16
 * rows (queries; keys in attention_keys) in registers; the others, keys or queries, pass through
 * shared memory in tiles, of which the next one is copied meanwhile. own_attention.c launches it.
 *
 * Fragments of matrices: NVIDIA, "PTX ISA", "Matrix Fragments for mma.m16n8k16 with floating point
 * type". Of 16 rows and 16 columns a lane has rows lane / 4 and 8 below it, of each the columns
 * 2 (lane % 4), the next one, and both 8 behind. Sums of mma are float32, and the fragment of a sum
 * is that of a factor of the next product.
 */
#include "tensor/devices/cuda/kernels/attention.h"

/* Other compilers have no such kernels: their cards have gpu_properties.has_tensor_cores false. */
#if KERNEL_ON_CARD && !defined(__HIPCC__)
#define TENSOR_CORES 1
#else
#define TENSOR_CORES 0
#endif

#if TENSOR_CORES
/* Instructions of sm_80 and later; older cards do not launch the kernels. */
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define TILE_ASM(...) asm volatile(__VA_ARGS__)
#else
#define TILE_ASM(...) (void)shared_address(NULL)
#endif
#define TEXT_OF(type) #type
#define TEXT(type)    TEXT_OF(type)

KERNEL_FN uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Begins to copy `bytes`, 16 or 0; zeros take the place of the others. */
KERNEL_FN void copy_pack(void *to, const void *from, uint32_t bytes)
{
    TILE_ASM("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
             "r"(bytes)
             : "memory");
}

/* The same of 8 bytes or 0. */
KERNEL_FN void copy_pair(void *to, const void *from, uint32_t bytes)
{
    TILE_ASM("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from),
             "r"(bytes)
             : "memory");
}

/* Waits for the copies of the calling thread. */
KERNEL_FN void wait_for_copies(void)
{
    TILE_ASM("cp.async.wait_all;" ::: "memory");
}

/* Four matrices of 8 rows of 8 elements; lane l has the address of row l % 8 of matrix l / 8. Lane
 * l gets elements 2 (l % 4) and the next of row l / 4 of each. */
KERNEL_FN void load_matrices(uint32_t m[4], const void *row)
{
    TILE_ASM("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
             : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
             : "r"(shared_address(row)));
}

/* The same of rows 2 (l % 4) and the next of column l / 4. */
KERNEL_FN void load_transposed(uint32_t m[4], const void *row)
{
    TILE_ASM("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
             : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
             : "r"(shared_address(row)));
}

/* 2^x; 0 for less than 2^-126. */
KERNEL_FN float power_of_two(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Of the four lanes that have a row. */
KERNEL_FN float row_most(float v)
{
    v = fmaxf(v, __shfl_xor_sync(~0U, v, 1));
    return fmaxf(v, __shfl_xor_sync(~0U, v, 2));
}

KERNEL_FN float row_sum(float v)
{
    v += __shfl_xor_sync(~0U, v, 1);
    return v + __shfl_xor_sync(~0U, v, 2);
}

/* A warp's rows and the tile of others that they meet. */
typedef struct tile_place {
    unsigned i;     /* the attention */
    unsigned row;   /* the first one of the warp */
    unsigned other; /* the first one of the tile */
    unsigned lane;
    bool rows_are_keys;
} tile_place;

/* Whether all keys take part for all queries, of `n` others from p->other on. */
KERNEL_FN bool all_take_part(const attention_args *a, const tile_place *p, unsigned n)
{
    const unsigned first_query = p->rows_are_keys ? p->other : p->row;
    const unsigned last_key = p->rows_are_keys ? p->row + 15 : p->other + n - 1;

    return a->mask == NULL && !(a->causal && last_key > first_query) &&
           (p->rows_are_keys || last_key < a->keys);
}

/* Whether none does for any. */
KERNEL_FN bool none_takes_part(const attention_args *a, const tile_place *p, unsigned n)
{
    const unsigned last_query = p->rows_are_keys ? p->other + n - 1 : p->row + 15;

    return a->causal && (p->rows_are_keys ? p->row : p->other) > last_query;
}

/* Bit e: whether the key of element e takes part for its query, or with `drops_out` whether dropout
 * keeps its weight. Elements are the lane's: 8 of each 16 others, of `n` from p->other on. */
KERNEL_FN uint32_t element_bits(const attention_args *a, const tile_place *p, unsigned n,
                                bool drops_out)
{
    const size_t first = a->mask == NULL ? 0 : mask_first(a, p->i);
    uint32_t bits = 0;

#pragma unroll 1
    for (unsigned e = 0; e < n / 2; e++) {
        const unsigned row = p->row + p->lane / 4 + e / 2 % 2 * 8;
        const unsigned other = p->other + e / 4 * 8 + p->lane % 4 * 2 + e % 2;
        const size_t t = p->rows_are_keys ? other : row;
        const size_t s = p->rows_are_keys ? row : other;
        const bool bit =
            drops_out ? !drops(a->random, (p->i * a->queries + t) * a->keys + s, a->drop_limit)
                      : takes_part(a, t, s, first + t * a->mask_row + s * a->mask_column);

        bits |= (uint32_t)bit << e;
    }
    return bits;
}

/* Of each element: whether its key takes part, and whether dropout keeps its weight. `are_all`: all
 * keys take part for all lanes. */
typedef struct tile_bits {
    bool are_all;
    uint32_t parts;
    uint32_t keeps;
} tile_bits;

KERNEL_FN tile_bits bits_of(const attention_args *a, const tile_place *p, unsigned n)
{
    const bool are_all = all_take_part(a, p, n);
    const tile_bits bits = {are_all, are_all ? ~0U : element_bits(a, p, n, false),
                            a->drop_limit == 0 ? ~0U : element_bits(a, p, n, true)};

    return bits;
}

/* Slopes of scores, and weights. */
typedef struct slope_rows {
    float weight[2][4];
    float slope[2][4];
} slope_rows;

/* Makes scores the weights, with dropout, and the products of dy and v the slopes of the scores.
 * shift, total: a->totals of an element's query, which is e / 2 where rows are queries; where they
 * are keys 2 j + e % 2. */
KERNEL_FN void weigh_slopes(const attention_args *a, const tile_place *p, tile_bits bits,
                            const float *shift, const float *total, slope_rows *w)
{
    const float scale = (float)(a->scale * LOG2_E);
    const float kept = (float)a->kept;

#pragma unroll
    for (unsigned e = 0; e < 8; e++) {
        const unsigned query = p->rows_are_keys ? e / 4 * 2 + e % 2 : e % 4 / 2;
        float *weight = &w->weight[e / 4][e % 4];

        *weight = power_of_two(*weight * scale - shift[query]);
        if (a->drop_limit == 0)
            w->slope[e / 4][e % 4] = *weight * (w->slope[e / 4][e % 4] - total[query]);
    }
    if (a->drop_limit == 0 && bits.are_all)
        return;
#pragma unroll
    for (unsigned e = 0; e < 8; e++) {
        const unsigned query = p->rows_are_keys ? e / 4 * 2 + e % 2 : e % 4 / 2;
        float *weight = &w->weight[e / 4][e % 4];
        float *slope = &w->slope[e / 4][e % 4];
        const bool keeps = bits.keeps >> e & 1;

        if (a->drop_limit > 0)
            *slope = *weight * (*slope * (keeps ? kept : 0) - total[query]);
        *slope = bits.parts >> e & 1 ? *slope : 0;
        *weight = (bits.parts >> e & 1) != 0 && keeps ? *weight : 0;
    }
}

/* The keys that the queries in front of query `behind` may see. */
KERNEL_FN unsigned keys_to_visit(const attention_args *a, unsigned behind)
{
    return a->causal && behind < a->keys ? behind : (unsigned)a->keys;
}

/* How many of n rows are left from `row` on. */
KERNEL_FN unsigned rows_left(size_t n, unsigned row)
{
    return n > row ? (unsigned)n - row : 0;
}

/* Of the rows of one array, that of `row` of attention i of `n` rows. */
KERNEL_FN size_t row_number(const tile_place *p, size_t n)
{
    return p->i * n + p->row;
}

/* The place of the warp in unit `unit` of all attentions, of `n_tiles` tiles each. */
KERNEL_FN tile_place place_of(const attention_args *a, unsigned unit, unsigned n_tiles,
                              bool rows_are_keys, const kernel_place at)
{
    const unsigned turn = unit / (unsigned)a->n;
    // Blocks that look at the most others begin first.
    const unsigned tile = rows_are_keys ? turn : n_tiles - 1 - turn;
    const tile_place p = {unit - turn * (unsigned)a->n,
                          tile * (at.n_threads / 2) + at.thread / 32 * 16, 0, at.thread % 32,
                          rows_are_keys};

    return p;
}

KERNEL_FN unsigned count_tiles(size_t n, const kernel_place at)
{
    const unsigned rows = at.n_threads / 2;

    return ((unsigned)n + rows - 1) / rows;
}
#endif

#define TYPE bf16
#include "tensor/devices/cuda/kernels/attention_tiles_type.inc"
#undef TYPE
#define TYPE f16
#include "tensor/devices/cuda/kernels/attention_tiles_type.inc"
#undef TYPE
