/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op_case_step.c - the operators of a training step around the network. Those of optimizers take
 * two parameters in a call, of the shapes `x` and `other` of the case.
 */
#include "tensor/op_case_run.h"

#include "base/alloc.h"

#include <math.h>

static ls_tensor *gradient(case_run *r, int i, double scale, double shift)
{
    const op_case *c = r->c;

    return i == 0 ? parameter(r, c->n_dims, c->x, scale, shift)
                  : parameter(r, c->n_other, c->other, scale, shift);
}

static void run_many(case_run *r, const op_call calls[2])
{
    if (r->status == LS_OK)
        r->status = ls_context(device_run_many(r->device, calls, 2), "%s: %s", r->c->name,
                               device_op_name(calls[0].op));
}

static void update_results(case_run *r, const op_call calls[2])
{
    static const char *const names[2][4] = {
        {"w", "first state", "second state", "third state"},
        {"other w", "first state of other", "second state of other", "third state of other"}};

    // Every value is the result of less than 16 operations with some terms.
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < calls[i].n_out; k++)
            result(r, names[i][k], calls[i].out[k], 16);
    }
}

/* The first update, a further one whose `skip` is 0, and one that is skipped. */
static void run_updates(case_run *r, op_kind op, int n_state)
{
    const op_case *c = r->c;
    op_update rates = c->update;
    op_call calls[2];
    ls_tensor *skip[3] = {NULL, filled(r, LS_F32, 0, NULL, 0), filled(r, LS_F32, 0, NULL, 1)};

    for (int i = 0; i < 2; i++) {
        calls[i] = (op_call){.op = op, .n_in = 2, .n_out = 1 + n_state, .update = &rates};
        calls[i].in[0] = gradient(r, i, 1, 0);
        calls[i].out[0] = gradient(r, i, 1, 0);
        for (int k = 0; k < n_state; k++)
            calls[i].out[1 + k] = gradient(r, i, 0.5, 0.5);
    }
    for (int step = 0; step < 3; step++) {
        rates.first = step == 0;
        for (int i = 0; i < 2; i++)
            calls[i].in[1] = skip[step];
        run_many(r, calls);
    }
    update_results(r, calls);
}

void run_sgd(case_run *r)
{
    run_updates(r, OP_SGD, r->c->update.momentum != 0);
}

void run_adam(case_run *r)
{
    run_updates(r, OP_ADAM, r->c->n_state);
}

/* Clips by norm, then by value. */
void run_clip(case_run *r)
{
    ls_tensor *squares = filled(r, LS_F64, 1, (int64_t[]){2}, (double)NAN);
    ls_tensor *norm = filled(r, LS_F64, 0, NULL, (double)NAN);
    ls_tensor *factor = filled(r, LS_F64, 0, NULL, (double)NAN);
    op_call calls[2];
    double count = 0;

    for (int i = 0; i < 2; i++) {
        calls[i] = (op_call){.op = OP_SQUARES, .n_in = 1, .n_out = 1, .out = {squares}};
        calls[i].in[0] = gradient(r, i, 1, 0);
        calls[i].attrs.begin = i;
        count += calls[i].in[0] == NULL ? 0 : (double)ls_tensor_count(calls[i].in[0]);
    }
    run_many(r, calls);
    run_op(
        r,
        (op_call){
            .op = OP_CLIP_FACTOR, .n_in = 1, .n_out = 2, .in = {squares}, .out = {norm, factor}});
    result(r, "squares", squares, count);
    result(r, "norm", norm, count);
    result(r, "factor", factor, count);
    for (int i = 0; i < 2; i++)
        calls[i] = (op_call){.op = OP_SCALE_BY,
                             .n_in = 2,
                             .n_out = 1,
                             .in = {calls[i].in[0], factor},
                             .out = {calls[i].in[0]}};
    run_many(r, calls);
    result(r, "scaled", calls[0].out[0], count);
    result(r, "other scaled", calls[1].out[0], count);
    for (int i = 0; i < 2; i++) {
        calls[i].op = OP_CLAMP;
        calls[i].n_in = 1;
        calls[i].attrs.value = 0.0625;
    }
    run_many(r, calls);
    result(r, "clamped", calls[0].out[0], count);
    result(r, "other clamped", calls[1].out[0], count);
}

/* Finite gradients, then the second of them infinite. */
void run_unscale(case_run *r)
{
    static const char *const names[2][3] = {
        {"g", "other g", "found"},
        {"g beside infinity", "infinity", "found infinity"},
    };
    op_call calls[2];

    for (int pass = 0; pass < 2; pass++) {
        ls_tensor *found = filled(r, LS_F32, 0, NULL, 0);

        for (int i = 0; i < 2; i++) {
            ls_tensor *g = i == 1 && pass == 1 ? filled(r, r->parameters, r->c->n_other,
                                                        r->c->other, (double)INFINITY)
                                               : gradient(r, i, 1000, 0);

            calls[i] = (op_call){.op = OP_UNSCALE,
                                 .attrs = r->attrs,
                                 .n_in = 1,
                                 .n_out = 2,
                                 .in = {g},
                                 .out = {g, found}};
        }
        run_many(r, calls);
        for (int i = 0; i < 2; i++)
            result(r, names[pass][i], calls[i].out[0], 1);
        result(r, names[pass][2], found, 1);
    }
}

void run_fill(case_run *r)
{
    ls_tensor *x = filled(r, r->type, r->c->n_dims, r->c->x, (double)NAN);

    run_op(r, (op_call){.op = OP_FILL, .n_out = 1, .out = {x}});
    result(r, "x", x, 1);
}

/* Twice, so that the second call adds to the first one's sums. */
void run_class_sums(case_run *r)
{
    const op_case *c = r->c;
    const int64_t n_sums = 2 + c->out;
    ls_tensor *logits = noise(r, 2, c->x, c->scale == 0 ? 1 : c->scale, 0);
    ls_tensor *y = targets(r, c->x[0], c->x[1]);
    ls_tensor *sums = filled(r, LS_F64, 1, &n_sums, 0.5);

    for (int i = 0; i < 2; i++)
        run_op(r,
               (op_call){
                   .op = OP_CLASS_SUMS, .n_in = 2, .n_out = 1, .in = {logits, y}, .out = {sums}});
    result(r, "sums", sums, (double)c->x[1]);
}

/* Bytes; every value occurs where there are enough. */
static ls_tensor *pixels_of(case_run *r)
{
    ls_tensor *t = filled(r, LS_U8, r->c->n_dims, r->c->x, 0);
    double *values = values_for(r, t);

    for (size_t i = 0; values != NULL && i < ls_tensor_count(t); i++)
        values[i] = i < 256 ? (double)i : (double)ls_rng_below(&r->rng, 256);
    write_values(r, t, values);
    ls_free(values);
    return t;
}

void run_normalize(case_run *r)
{
    const op_case *c = r->c;
    const int64_t dims[2] = {c->out, 256};
    ls_tensor *values = noise_of(r, LS_F32, 2, dims, 1, 0);
    ls_tensor *pixels = pixels_of(r);
    ls_tensor *x = unplaced(r, LS_F32, c->n_dims, c->x);

    run_op(r, (op_call){
                  .op = OP_NORMALIZE, .n_in = 2, .n_out = 1, .in = {values, pixels}, .out = {x}});
    result(r, "x", x, 1);
}
