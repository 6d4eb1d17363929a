/* SPDX-License-Identifier: Apache-2.0 */
/* op_case_attention.c - runs one case of scaled dot-product attention, as op_case_run.c. */
#include "tensor/op_case_run.h"

#include "base/alloc.h"

#include <string.h>

/* Bytes: every second key of the first ones, and all of the first matrix if there are several. */
static ls_tensor *byte_mask(case_run *r)
{
    const op_case *c = r->c;
    ls_tensor *mask = filled(r, LS_U8, c->n_mask, c->mask, 0);
    double *values = values_for(r, mask);
    const size_t keys = (size_t)c->mask[c->n_mask - 1];
    const size_t rows = (size_t)c->mask[c->n_mask - 2];

    for (size_t i = 0; values != NULL && i < ls_tensor_count(mask); i++) {
        const bool is_first = i < rows * keys && ls_tensor_count(mask) > rows * keys;

        values[i] = is_first || ls_rng_below(&r->rng, 3) == 0 ? 7 : 0;
    }
    write_values(r, mask, values);
    ls_free(values);
    return mask;
}

/* The last dimension of `dims` as `size`. */
static ls_tensor *like(case_run *r, const int64_t *dims, int64_t size, bool placed)
{
    const int n = r->c->n_dims;
    int64_t own[4];

    memcpy(own, dims, sizeof(own));
    own[n - 1] = size;
    return placed ? noise(r, n, own, 1, 0) : unplaced(r, r->type, n, own);
}

static ls_tensor *norms_of(case_run *r)
{
    const int n = r->c->n_dims;
    int64_t dims[4];

    memcpy(dims, r->c->x, sizeof(dims));
    dims[n - 1] = 2;
    return unplaced(r, r->parameters, n, dims);
}

static void run_forward(case_run *r, ls_tensor *const *in, ls_tensor *y, ls_tensor *norms)
{
    op_call call = {.op = OP_ATTENTION, .n_in = 4, .n_out = 2, .out = {y, norms}};

    memcpy(call.in, in, 4 * sizeof(*in));
    run_op(r, call);
}

void run_attention(case_run *r)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    const op_case *c = r->c;
    const int64_t width = c->x[c->n_dims - 1];
    const int64_t keys = c->other[c->n_dims - 2];
    const double scale = c->scale == 0 ? 1 : c->scale;
    const double k = (double)(width + c->out + keys + c->x[c->n_dims - 2]) * scale * scale;
    ls_tensor *q = noise(r, c->n_dims, c->x, scale, 0);
    ls_tensor *key = like(r, c->other, width, true);
    ls_tensor *v = like(r, c->other, c->out, true);
    ls_tensor *dy = like(r, c->x, c->out, true);
    ls_tensor *mask = c->n_mask == 0  ? NULL
                      : c->mask_bytes ? byte_mask(r)
                                      : parameter(r, c->n_mask, c->mask, 2, 0);
    ls_tensor *y = like(r, c->x, c->out, false);
    ls_tensor *alone = like(r, c->x, c->out, false);
    ls_tensor *norms = norms_of(r);
    op_call back = {.op = OP_ATTENTION_BACKWARD,
                    .n_in = 7,
                    .n_out = 3,
                    .in = {q, dy, key, v, mask, y, norms},
                    .out = {like(r, c->x, width, false), like(r, c->other, width, false),
                            like(r, c->other, c->out, false)}};

    run_forward(r, (ls_tensor *const[]){q, key, v, mask}, alone, NULL);
    result(r, "y in evaluation", alone, k);
    run_forward(r, (ls_tensor *const[]){q, key, v, mask}, y, norms);
    result(r, "y", y, k);
    result(r, "norms", norms, k);
    run_op(r, back);
    for (int i = 0; i < 3; i++)
        result(r, names[i], back.out[i], k);
    back.out[0] = NULL;
    back.out[1] = NULL;
    back.out[2] = like(r, c->other, c->out, false);
    run_op(r, back);
    result(r, "dv alone", back.out[2], k);
}
