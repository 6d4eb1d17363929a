/* SPDX-License-Identifier: Apache-2.0 */
/* op_case_tensors.c - the inputs of a case, running its operators, and collecting their results. */
#include "tensor/op_case_run.h"

#include "base/alloc.h"
#include "base/compute/half.h"
#include "tensor/doubles.h"

#include <math.h>
#include <string.h>

static ls_tensor *keep(case_run *r, ls_status st, ls_tensor *t)
{
    if (st != LS_OK) {
        r->status = st;
        return NULL;
    }
    LS_ASSERT(r->n_tensors < MAX_TENSORS);
    r->tensors[r->n_tensors++] = t;
    return t;
}

ls_tensor *unplaced(case_run *r, ls_dtype type, int n_dims, const int64_t *dims)
{
    ls_tensor *t = NULL;
    ls_status st;

    if (r->status != LS_OK)
        return NULL;
    st = tensor_shape(r->device, type, n_dims, dims, &t);
    return keep(r, st, t);
}

void write_values(case_run *r, ls_tensor *t, const double *values)
{
    if (t != NULL && r->status == LS_OK)
        r->status = doubles_write(t, values);
}

double *values_for(case_run *r, const ls_tensor *t)
{
    double *values =
        t == NULL || r->status != LS_OK ? NULL : ls_calloc(ls_tensor_count(t) + 1, sizeof(double));

    if (values == NULL && r->status == LS_OK)
        r->status = ls_fail(LS_ENOMEM, "%s: no memory for the elements", r->c->name);
    return values;
}

ls_tensor *created(case_run *r, ls_dtype type, int n_dims, const int64_t *dims)
{
    ls_tensor *t = NULL;
    ls_status st;

    if (r->status != LS_OK)
        return NULL;
    st = ls_tensor_create(r->device, type, n_dims, dims, &t);
    return keep(r, st, t);
}

/* A part of a larger one, which begins with the second element of that. */
static ls_tensor *created_unaligned(case_run *r, ls_dtype type, int n_dims, const int64_t *dims)
{
    ls_tensor *t = unplaced(r, type, n_dims, dims);
    const int64_t count = t == NULL ? 0 : (int64_t)ls_tensor_count(t) + 1;
    ls_tensor *whole = created(r, type, 1, &count);

    if (whole == NULL)
        return NULL;
    tensor_share(t, whole);
    t->offset = tensor_bytes(whole) / (size_t)count;
    return t;
}

ls_tensor *filled(case_run *r, ls_dtype type, int n_dims, const int64_t *dims, double value)
{
    ls_tensor *t =
        r->c->unaligned ? created_unaligned(r, type, n_dims, dims) : created(r, type, n_dims, dims);
    double *values;

    values = values_for(r, t);
    for (size_t i = 0; values != NULL && i < ls_tensor_count(t); i++)
        values[i] = value;
    write_values(r, t, values);
    ls_free(values);
    return t;
}

/* The nearest value that inputs may have. */
static double exact(const case_run *r, double value)
{
    if (r->c->exact == LS_BF16)
        return (double)ls_bf16_to_f32(ls_f32_to_bf16((float)value));
    if (r->c->exact == LS_F16)
        return (double)ls_f16_to_f32(ls_f32_to_f16((float)value));
    return (double)(float)value;
}

ls_tensor *noise_of(case_run *r, ls_dtype type, int n_dims, const int64_t *dims, double scale,
                    double shift)
{
    ls_tensor *t = filled(r, type, n_dims, dims, 0);
    double *values = values_for(r, t);

    for (size_t i = 0; values != NULL && i < ls_tensor_count(t); i++) {
        const double u = 2 * ls_rng_double(&r->rng) - 1;
        const double v = r->c->ties ? round(2 * u) / 2 : u;

        values[i] = exact(r, v * scale + shift);
    }
    write_values(r, t, values);
    ls_free(values);
    return t;
}

static void reshape(ls_tensor *t, int n_dims, const int64_t *dims)
{
    t->n_dims = n_dims;
    memcpy(t->dims, dims, (size_t)n_dims * sizeof(*dims));
}

/* The same elements as a pool leaves them: the first maximum of a window of one element. Sequences
 * as those of images of height 1. */
static ls_tensor *arranged(case_run *r, ls_tensor *x)
{
    const bool is_sequence = x->n_dims == 3;
    const int64_t image[4] = {x->dims[0], x->dims[1], is_sequence ? 1 : x->dims[2],
                              x->dims[is_sequence ? 2 : 3]};
    ls_tensor *y = unplaced(r, x->dtype, 4, image);
    const op_call pool = {.op = OP_MAX_POOL2D,
                          .attrs = {.kernel = {1, 1}, .stride = {1, 1}, .dilation = {1, 1}},
                          .n_in = 1,
                          .n_out = 2,
                          .in = {x},
                          .out = {y}};

    reshape(x, 4, image);
    if (r->status == LS_OK)
        r->status = ls_context(device_run(r->device, &pool), "%s: arranging", r->c->name);
    if (is_sequence && y != NULL)
        reshape(y, 3, (int64_t[]){image[0], image[1], image[3]});
    return y;
}

ls_tensor *noise(case_run *r, int n_dims, const int64_t *dims, double scale, double shift)
{
    ls_tensor *t = noise_of(r, r->type, n_dims, dims, scale, shift);

    return r->c->arranged && (n_dims == 3 || n_dims == 4) && t != NULL ? arranged(r, t) : t;
}

ls_tensor *parameter(case_run *r, int n_dims, const int64_t *dims, double scale, double shift)
{
    return noise_of(r, r->parameters, n_dims, dims, scale, shift);
}

ls_tensor *targets(case_run *r, int64_t n_rows, int64_t n_classes)
{
    ls_tensor *t = created(r, LS_I64, 1, &n_rows);
    int64_t *data;

    if (t == NULL)
        return NULL;
    data = ls_calloc((size_t)n_rows, sizeof(*data));
    for (int64_t n = 0; data != NULL && n < n_rows; n++)
        data[n] = (int64_t)ls_rng_below(&r->rng, (uint64_t)n_classes);
    r->status = data == NULL ? ls_fail(LS_ENOMEM, "%s: no memory for the targets", r->c->name)
                             : ls_tensor_write(t, data, (size_t)n_rows);
    ls_free(data);
    return t;
}

/* --- running and collecting --- */

void result(case_run *r, const char *name, ls_tensor *t, double k)
{
    op_result *into = &r->out->r[r->out->n];

    if (r->status != LS_OK)
        return;
    LS_ASSERT(r->out->n < OP_MAX_RESULTS);
    into->values = values_for(r, t);
    if (into->values != NULL)
        r->status = ls_context(doubles_read(t, into->values), "%s: %s", r->c->name, name);
    if (r->status != LS_OK) {
        ls_free(into->values);
        into->values = NULL;
        return;
    }
    into->name = name;
    into->count = ls_tensor_count(t);
    into->k = k < 1 ? 1 : k;
    r->out->n++;
}

void run_op(case_run *r, op_call call)
{
    call.attrs = r->attrs;
    if (r->status == LS_OK)
        r->status =
            ls_context(device_run(r->device, &call), "%s: %s", r->c->name, device_op_name(call.op));
}

void run_gradients(case_run *r, op_call call, int first, const char *const *names, double k)
{
    for (int pass = 0; pass < 2; pass++) {
        for (int i = first; i < call.n_out && r->status == LS_OK; i++) {
            const ls_tensor *like = call.out[i];

            if (like != NULL)
                call.out[i] =
                    filled(r, like->dtype, like->n_dims, like->dims, pass == 0 ? (double)NAN : 0.5);
        }
        if (first > 0 && call.out[0] != NULL)
            tensor_release(call.out[0]);
        call.accumulate = pass == 1;
        run_op(r, call);
        for (int i = first; i < call.n_out && r->status == LS_OK; i++) {
            if (call.out[i] != NULL)
                result(r, names[(i - first) * 2 + pass], call.out[i], k);
        }
    }
}

const char *const gradient_names[] = {"dweight", "dweight added", "dbias", "dbias added"};
