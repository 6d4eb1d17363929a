/* SPDX-License-Identifier: Apache-2.0 */
/* own_attention.c - scaled dot-product attention. */
#include "tensor/devices/cuda/ops/own.h"
#include "tensor/formulas/attention.h"

#include <math.h>
#include <string.h>

_Static_assert(LS_MAX_DIMS <= MOVE_DIMS, "dimensions of attention_args");

/* Blocks for the rows of all attentions, with `columns` columns each. */
static unsigned part_blocks(const own_operands *o, size_t n, size_t rows, size_t columns)
{
    const size_t parts = n * ((rows + ATTENTION_ROWS - 1) / ATTENTION_ROWS) *
                         ((columns + ATTENTION_WIDTH - 1) / ATTENTION_WIDTH);
    const size_t most = 32 * (size_t)o->self->card.n_processors;

    return (unsigned)(parts < most ? parts : most);
}

/* --- kernels of tensor cores --- */

#define TILES(NAME, DEPTH)                                                                         \
    {                                                                                              \
        NULL, NULL, &NAME##_##DEPTH##_bf16, &NAME##_##DEPTH##_f16                                  \
    }
#define TILES_OF(DEPTH)                                                                            \
    {                                                                                              \
        DEPTH, TILES(attention, DEPTH), TILES(attention_queries, DEPTH),                           \
            TILES(attention_keys, DEPTH)                                                           \
    }

static const struct tiles {
    size_t depth; /* the most columns */
    own_kernels attention;
    own_kernels queries;
    own_kernels keys;
} tiles[] = {TILES_OF(64), TILES_OF(96), TILES_OF(128)};

/* Those that compute this attention; NULL: none. `dy`, `y`: in backward. */
static const struct tiles *tiles_of(const own_operands *o, const attention_args *a,
                                    kernel_type type)
{
    const size_t columns = a->width > a->values ? a->width : a->values;
    const void *const arrays[] = {a->q, a->k, a->v, a->y, a->dy, a->dq, a->dk, a->dv};
    const size_t rows = a->queries > a->keys ? a->queries : a->keys;
    bool fits = o->self->card.has_tensor_cores && (type == KERNEL_BF16 || type == KERNEL_F16) &&
                (a->mask == NULL || a->mask_bytes) && (a->width | a->values) % 8 == 0 &&
                rows < INT32_MAX && a->n <= INT32_MAX / (rows / TILE_ROWS + 1);

    for (size_t i = 0; i < LS_COUNT_OF(arrays); i++)
        fits = fits && own_is_aligned(arrays[i]);
    for (size_t i = 0; fits && i < LS_COUNT_OF(tiles); i++) {
        if (columns <= tiles[i].depth)
            return &tiles[i];
    }
    return NULL;
}

/* A block for so many rows of each attention. */
static unsigned tile_blocks(const attention_args *a, size_t rows)
{
    return (unsigned)(a->n * ((rows + TILE_ROWS - 1) / TILE_ROWS));
}

static void launch_tiles(own_operands *o, own_kernels kernels, kernel_type type,
                         const attention_args *a, size_t rows)
{
    own_launch(o, kernels, type, tile_blocks(a, rows), TILE_THREADS, a);
}

/* --- operators --- */

static attention_args args_of(own_operands *o, const op_call *call, const ls_tensor *k,
                              const ls_tensor *v, const ls_tensor *mask)
{
    const ls_tensor *q = call->in[0];
    const attention_sizes z = attention_sizes_of(q, k, v, mask);
    const double drop = call->attrs.drop;
    attention_args a = {.q = own_operand(o, q, false),
                        .k = own_operand(o, k, false),
                        .v = own_operand(o, v, false),
                        .mask = own_operand(o, mask, false),
                        .mask_bytes = mask != NULL && mask->dtype == LS_U8,
                        .causal = call->attrs.causal,
                        .n = z.n,
                        .queries = z.queries,
                        .keys = z.keys,
                        .width = z.width,
                        .values = z.values,
                        .n_leading = z.n_leading,
                        .mask_row = z.mask_row,
                        .mask_column = z.mask_column,
                        .scale = call->attrs.scale,
                        .random = call->attrs.random,
                        .drop_limit = (uint64_t)ceil(drop * 0x1p53),
                        .kept = drop < 1 ? 1 / (1 - drop) : 0};

    memcpy(a.leading, z.leading, sizeof(z.leading));
    memcpy(a.mask_leading, z.mask_leading, sizeof(z.mask_leading));
    return a;
}

void cuda_attention(own_operands *o, const op_call *call)
{
    const kernel_type type = own_type(call->in[0]->dtype);
    attention_args a = args_of(o, call, call->in[1], call->in[2], call->in[3]);
    const struct tiles *t;

    a.y = own_output(o, call->out[0], false);
    a.norms = own_output(o, call->out[1], false);
    t = tiles_of(o, &a, type);
    if (t != NULL)
        launch_tiles(o, t->attention, type, &a, a.queries);
    else
        own_launch(o, OWN_KERNELS(attention), type, part_blocks(o, a.n, a.queries, a.values),
                   OWN_THREADS, &a);
}

static void launch_backward(own_operands *o, const attention_args *a, kernel_type type)
{
    const size_t columns = a->width > a->values ? a->width : a->values;

    if (a->dq != NULL)
        own_launch(o, OWN_KERNELS(attention_queries), type,
                   part_blocks(o, a->n, a->queries, a->width), OWN_THREADS, a);
    if (a->dk != NULL || a->dv != NULL)
        own_launch(o, OWN_KERNELS(attention_keys), type, part_blocks(o, a->n, a->keys, columns),
                   OWN_THREADS, a);
}

void cuda_attention_backward(own_operands *o, const op_call *call)
{
    const kernel_type type = own_type(call->in[0]->dtype);
    attention_args a = args_of(o, call, call->in[2], call->in[3], call->in[4]);
    const size_t pack = PACK_BYTES / own_element_bytes(call->in[0]->dtype);
    const struct tiles *t;

    a.dy = own_operand(o, call->in[1], false);
    a.y = own_operand(o, call->in[5], false);
    a.norms = own_operand(o, call->in[6], false);
    a.totals = own_memory(o, type == KERNEL_F64 ? LS_F64 : LS_F32, 2 * a.n * a.queries);
    a.dq = own_output(o, call->out[0], false);
    a.dk = own_output(o, call->out[1], false);
    a.dv = own_output(o, call->out[2], false);
    a.wide = a.values % pack == 0 && own_is_aligned(a.dy) && own_is_aligned(a.y);
    own_launch(o, OWN_KERNELS(attention_totals), type, own_blocks(o->self, a.n * a.queries),
               OWN_THREADS, &a);
    t = tiles_of(o, &a, type);
    if (t == NULL) {
        launch_backward(o, &a, type);
        return;
    }
    if (a.dq != NULL)
        launch_tiles(o, t->queries, type, &a, a.queries);
    if (a.dk != NULL || a.dv != NULL)
        launch_tiles(o, t->keys, type, &a, a.keys);
}
