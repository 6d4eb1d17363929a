/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_dot_attention.c - scaled dot-product attention, one query after the other: the memory beside
 * the results is a row of scores, and in backward the sums of dk and dv of one attention.
 *
 * With P the weights of a query's keys, G = dy v' with the dropout of P applied, and y = dropped(P)
 * v: sum(P G) = sum(dy y), so dscore = P (G - sum(dy y)) (Dao et al., "FlashAttention", 2022,
 * section B.2).
 */
#include "base/alloc.h"
#include "tensor/devices/cpu_ref/ref.h"
#include "tensor/formulas/attention.h"

#include <math.h>

/* An attention that runs; `i` and `t` are the current one and its current query. */
typedef struct work {
    const op_attrs *attrs;
    attention_sizes sizes;
    const void *q;
    const void *k;
    const void *v;
    const ls_tensor *mask;
    double *scores; /* of the query, then its weights */
    double *dq;     /* of the query */
    double *dk;     /* of the attention */
    double *dv;
    size_t i;
    size_t t;
} work;

static work work_of(const op_call *call, const ls_tensor *k, const ls_tensor *v,
                    const ls_tensor *mask)
{
    return (work){.attrs = &call->attrs,
                  .sizes = attention_sizes_of(call->in[0], k, v, mask),
                  .q = tensor_elements(call->in[0]),
                  .k = tensor_elements(k),
                  .v = tensor_elements(v),
                  .mask = mask};
}

/* What the mask adds to the score of a key. */
REF_INLINE double masked(const work *w, size_t s, bool wide)
{
    const size_t at =
        attention_mask_first(&w->sizes, w->i) + w->t * w->sizes.mask_row + s * w->sizes.mask_column;

    if (w->attrs->causal && s > w->t)
        return -(double)INFINITY;
    if (w->mask == NULL)
        return 0;
    if (w->mask->dtype != LS_U8)
        return ref_get(tensor_elements(w->mask), at, wide);
    return ((const uint8_t *)tensor_elements(w->mask))[at] != 0 ? -(double)INFINITY : 0;
}

/* Fills w->scores; -infinity where a key takes no part, whatever it has. */
REF_INLINE void read_scores(work *w, bool wide)
{
    const attention_sizes *z = &w->sizes;

    for (size_t s = 0; s < z->keys; s++) {
        const double added = masked(w, s, wide);
        double sum = 0;

        for (size_t d = 0; d < z->width; d++)
            sum += ref_get(w->q, (w->i * z->queries + w->t) * z->width + d, wide) *
                   ref_get(w->k, (w->i * z->keys + s) * z->width + d, wide);
        w->scores[s] = added == -(double)INFINITY ? added : w->attrs->scale * sum + added;
    }
}

/* What dropout multiplies the weight of key s with. */
static double kept(const work *w, size_t s)
{
    const size_t at = (w->i * w->sizes.queries + w->t) * w->sizes.keys + s;

    if (w->attrs->drop == 0)
        return 1;
    return device_drops(w->attrs, at) ? 0 : 1 / (1 - w->attrs->drop);
}

/* The norms of a query. */
typedef struct norms {
    double top;
    double sum;
} norms;

/* Makes w->scores the weights of the keys. */
static norms weigh(work *w)
{
    double top = -(double)INFINITY;
    double sum = 0;

    for (size_t s = 0; s < w->sizes.keys; s++)
        top = fmax(top, w->scores[s]);
    if (top == -(double)INFINITY)
        top = 0;
    for (size_t s = 0; s < w->sizes.keys; s++)
        sum += exp(w->scores[s] - top);
    for (size_t s = 0; s < w->sizes.keys; s++)
        w->scores[s] = exp(w->scores[s] - top) / (sum == 0 ? 1 : sum);
    return sum == 0 ? (norms){(double)INFINITY, 1} : (norms){top, sum};
}

REF_INLINE void attend(work *w, const op_call *call, bool wide)
{
    const attention_sizes *z = &w->sizes;
    const size_t row = w->i * z->queries + w->t;
    norms of;

    read_scores(w, wide);
    of = weigh(w);
    if (call->out[1] != NULL) {
        ref_put(tensor_elements(call->out[1]), 2 * row, of.top, wide);
        ref_put(tensor_elements(call->out[1]), 2 * row + 1, of.sum, wide);
    }
    for (size_t e = 0; e < z->values; e++) {
        double sum = 0;

        for (size_t s = 0; s < z->keys; s++)
            sum += w->scores[s] * kept(w, s) *
                   ref_get(w->v, (w->i * z->keys + s) * z->values + e, wide);
        ref_put(tensor_elements(call->out[0]), row * z->values + e, sum, wide);
    }
}

ls_status ref_attention(const op_call *call)
{
    work w = work_of(call, call->in[1], call->in[2], call->in[3]);

    LS_TRY(LS_NEW(&w.scores, w.sizes.keys + 1, "for the scores of %zu keys", w.sizes.keys));
    for (w.i = 0; w.i < w.sizes.n; w.i++) {
        for (w.t = 0; w.t < w.sizes.queries; w.t++)
            REF_RUN(call->in[0], attend, &w, call);
    }
    ls_free(w.scores);
    return LS_OK;
}

/* --- backward --- */

enum { IN_Q, IN_DY, IN_K, IN_V, IN_MASK, IN_Y, IN_NORMS };

/* The terms of one key of the query, whose sum(dy y) is `total`. */
REF_INLINE void add_key(work *w, const void *dy, double total, size_t s, bool wide)
{
    const attention_sizes *z = &w->sizes;
    const size_t row = w->i * z->queries + w->t;
    const size_t key = w->i * z->keys + s;
    const double weight = w->scores[s];
    const double factor = kept(w, s);
    double g = 0;
    double slope;

    for (size_t e = 0; e < z->values; e++) {
        const double d = ref_get(dy, row * z->values + e, wide);

        g += d * ref_get(w->v, key * z->values + e, wide);
        w->dv[s * z->values + e] += weight * factor * d;
    }
    slope = w->attrs->scale * weight * (g * factor - total);
    for (size_t d = 0; d < z->width; d++) {
        w->dq[d] += slope * ref_get(w->k, key * z->width + d, wide);
        w->dk[s * z->width + d] += slope * ref_get(w->q, row * z->width + d, wide);
    }
}

REF_INLINE void attend_backward(work *w, const op_call *call, bool wide)
{
    const attention_sizes *z = &w->sizes;
    const size_t row = w->i * z->queries + w->t;
    const void *dy = tensor_elements(call->in[IN_DY]);
    const double top = ref_get(tensor_elements(call->in[IN_NORMS]), 2 * row, wide);
    const double sum = ref_get(tensor_elements(call->in[IN_NORMS]), 2 * row + 1, wide);
    double total = 0;

    read_scores(w, wide);
    for (size_t e = row * z->values; e < (row + 1) * z->values; e++)
        total += ref_get(dy, e, wide) * ref_get(tensor_elements(call->in[IN_Y]), e, wide);
    for (size_t d = 0; d < z->width; d++)
        w->dq[d] = 0;
    for (size_t s = 0; s < z->keys; s++) {
        w->scores[s] = exp(w->scores[s] - top) / sum;
        if (w->scores[s] != 0)
            add_key(w, dy, total, s, wide);
    }
    for (size_t d = 0; d < z->width && call->out[0] != NULL; d++)
        ref_put(tensor_elements(call->out[0]), row * z->width + d, w->dq[d], wide);
}

/* Writes the sums of attention w->i, of `count` elements, and begins the next ones. */
REF_INLINE void give(const work *w, ls_tensor *out, double *sums, size_t count, bool wide)
{
    for (size_t e = 0; e < count; e++) {
        if (out != NULL)
            ref_put(tensor_elements(out), w->i * count + e, sums[e], wide);
        sums[e] = 0;
    }
}

ls_status ref_attention_backward(const op_call *call)
{
    work w = work_of(call, call->in[IN_K], call->in[IN_V], call->in[IN_MASK]);
    const attention_sizes *z = &w.sizes;

    LS_TRY(LS_NEW(&w.scores, z->width + z->keys * (1 + z->width + z->values),
                  "for the gradients of %zu keys", z->keys));
    w.dq = w.scores + z->keys;
    w.dk = w.dq + z->width;
    w.dv = w.dk + z->keys * z->width;
    for (w.i = 0; w.i < z->n; w.i++) {
        for (w.t = 0; w.t < z->queries; w.t++)
            REF_RUN(call->in[0], attend_backward, &w, call);
        REF_RUN(call->in[0], give, &w, call->out[1], w.dk, z->keys * z->width);
        REF_RUN(call->in[0], give, &w, call->out[2], w.dv, z->keys * z->values);
    }
    ls_free(w.scores);
    return LS_OK;
}
