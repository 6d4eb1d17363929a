/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ref_attention.c - the operators of transformers: matrix products, layer normalisation, softmax.
 *
 * Layer norm (Ba, Kiros and Hinton, 2016), for each row of D elements: with g = dy weight and
 * xhat = (x - mean) inverse, dx = inverse (g - sum g / D - xhat sum(g xhat) / D).
 */
#include "tensor/devices/cpu_ref/ref.h"
#include "tensor/formulas/axis.h"

#include <math.h>

/* --- matmul --- */

/* One matrix: element (row, column) is at first + row * row_step + column * column_step. */
typedef struct matrix {
    const void *data;
    size_t first;
    size_t row_step;
    size_t column_step;
} matrix;

/* Number `i` of the matrices of t. */
static matrix matrix_of(const ls_tensor *t, bool transposed, size_t i)
{
    const size_t rows = (size_t)t->dims[t->n_dims - 2];
    const size_t columns = (size_t)t->dims[t->n_dims - 1];

    return (matrix){.data = tensor_elements(t),
                    .first = i * rows * columns,
                    .row_step = transposed ? 1 : columns,
                    .column_step = transposed ? columns : 1};
}

REF_INLINE void multiply(const matrix *a, const matrix *b, size_t depth, ls_tensor *y, size_t first,
                         bool wide)
{
    const size_t rows = (size_t)y->dims[y->n_dims - 2];
    const size_t columns = (size_t)y->dims[y->n_dims - 1];

    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++) {
            double sum = 0;

            for (size_t k = 0; k < depth; k++)
                sum += ref_get(a->data, a->first + r * a->row_step + k * a->column_step, wide) *
                       ref_get(b->data, b->first + k * b->row_step + c * b->column_step, wide);
            ref_put(tensor_elements(y), first + r * columns + c, sum, wide);
        }
    }
}

ls_status ref_matmul(const op_call *call)
{
    const ls_tensor *a = call->in[0];
    ls_tensor *y = call->out[0];
    const size_t n = axis_split(y, y->n_dims - 2).outer;
    const size_t area = (size_t)(y->dims[y->n_dims - 2] * y->dims[y->n_dims - 1]);
    const size_t depth = (size_t)a->dims[a->n_dims - (call->attrs.transposed[0] ? 2 : 1)];

    for (size_t i = 0; i < n; i++) {
        const matrix left = matrix_of(a, call->attrs.transposed[0], i);
        const matrix right = matrix_of(call->in[1], call->attrs.transposed[1], i);

        REF_RUN(a, multiply, &left, &right, depth, y, i * area);
    }
    return LS_OK;
}

/* --- layer norm --- */

/* Element i of a parameter, or without one `otherwise`. */
REF_INLINE double parameter_at(const ls_tensor *t, size_t i, double otherwise, bool wide)
{
    return t == NULL ? otherwise : ref_get(tensor_elements(t), i, wide);
}

REF_INLINE void normalise_row(const op_call *call, size_t row, size_t n, bool wide)
{
    const void *x = tensor_elements(call->in[0]);
    double mean = 0;
    double variance = 0;
    double inverse;

    for (size_t i = 0; i < n; i++)
        mean += ref_get(x, row * n + i, wide);
    mean /= (double)n;
    for (size_t i = 0; i < n; i++) {
        const double distance = ref_get(x, row * n + i, wide) - mean;

        variance += distance * distance;
    }
    inverse = 1 / sqrt(variance / (double)n + call->attrs.eps);
    for (size_t i = 0; i < n; i++) {
        const double xhat = (ref_get(x, row * n + i, wide) - mean) * inverse;

        ref_put(tensor_elements(call->out[0]), row * n + i,
                xhat * parameter_at(call->in[1], i, 1, wide) +
                    parameter_at(call->in[2], i, 0, wide),
                wide);
    }
    if (call->out[1] != NULL)
        ref_put(tensor_elements(call->out[1]), row, mean, wide);
    if (call->out[2] != NULL)
        ref_put(tensor_elements(call->out[2]), row, inverse, wide);
}

ls_status ref_layer_norm(const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);

    for (size_t row = 0; row < p.outer; row++)
        REF_RUN(call->in[0], normalise_row, call, row, p.n);
    return LS_OK;
}

/* The terms of dx for element i of a row. */
typedef struct slope {
    double xhat;
    double dy;
    double g; /* dy weight */
} slope;

REF_INLINE slope slope_at(const op_call *call, size_t row, size_t n, size_t i, bool wide)
{
    const double mean = ref_get(tensor_elements(call->in[3]), row, wide);
    const double inverse = ref_get(tensor_elements(call->in[4]), row, wide);
    const double x = ref_get(tensor_elements(call->in[0]), row * n + i, wide);
    const double dy = ref_get(tensor_elements(call->in[1]), row * n + i, wide);

    return (slope){
        .xhat = (x - mean) * inverse, .dy = dy, .g = dy * parameter_at(call->in[2], i, 1, wide)};
}

REF_INLINE void row_backward(const op_call *call, size_t row, size_t n, bool wide)
{
    const double inverse = ref_get(tensor_elements(call->in[4]), row, wide);
    double sum_g = 0;
    double sum_g_xhat = 0;

    for (size_t i = 0; i < n; i++) {
        const slope s = slope_at(call, row, n, i, wide);

        sum_g += s.g;
        sum_g_xhat += s.g * s.xhat;
    }
    for (size_t i = 0; i < n; i++) {
        const slope s = slope_at(call, row, n, i, wide);

        ref_put(tensor_elements(call->out[0]), row * n + i,
                inverse * (s.g - sum_g / (double)n - s.xhat * sum_g_xhat / (double)n), wide);
    }
}

REF_INLINE void norm_backward(const op_call *call, bool wide)
{
    const axis_parts p = axis_rows(call->in[0]);

    for (size_t row = 0; call->out[0] != NULL && row < p.outer; row++)
        row_backward(call, row, p.n, wide);
    for (size_t i = 0; i < p.n; i++) {
        double dweight = 0;
        double dbias = 0;

        for (size_t row = 0; row < p.outer; row++) {
            const slope s = slope_at(call, row, p.n, i, wide);

            dweight += s.dy * s.xhat;
            dbias += s.dy;
        }
        if (call->out[1] != NULL)
            ref_give(tensor_elements(call->out[1]), i, dweight, call->accumulate, wide);
        if (call->out[2] != NULL)
            ref_give(tensor_elements(call->out[2]), i, dbias, call->accumulate, wide);
    }
}

REF_KERNEL(ref_layer_norm_backward, norm_backward)

/* --- softmax --- */

REF_INLINE void softmax_row(const op_call *call, size_t first, size_t n, bool wide)
{
    const void *x = tensor_elements(call->in[0]);
    const double scale = call->attrs.scale;
    void *y = tensor_elements(call->out[0]);
    double top = -(double)INFINITY;
    double sum = 0;

    for (size_t i = first; i < first + n; i++)
        top = fmax(top, scale * ref_get(x, i, wide));
    if (top == -(double)INFINITY)
        top = 0;
    for (size_t i = first; i < first + n; i++)
        sum += exp(scale * ref_get(x, i, wide) - top);
    for (size_t i = first; i < first + n; i++)
        ref_put(y, i, exp(scale * ref_get(x, i, wide) - top) / (sum == 0 ? 1 : sum), wide);
}

ls_status ref_softmax(const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);

    for (size_t row = 0; row < p.outer; row++)
        REF_RUN(call->in[0], softmax_row, call, row * p.n, p.n);
    return LS_OK;
}

/* dx = scale y (dy - sum(dy y)) */
REF_INLINE void softmax_row_backward(const op_call *call, size_t first, size_t n, bool wide)
{
    const void *y = tensor_elements(call->in[0]);
    const void *dy = tensor_elements(call->in[1]);
    double sum = 0;

    for (size_t i = first; i < first + n; i++)
        sum += ref_get(dy, i, wide) * ref_get(y, i, wide);
    for (size_t i = first; i < first + n; i++)
        ref_put(tensor_elements(call->out[0]), i,
                call->attrs.scale * ref_get(y, i, wide) * (ref_get(dy, i, wide) - sum), wide);
}

ls_status ref_softmax_backward(const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);

    for (size_t row = 0; row < p.outer; row++)
        REF_RUN(call->in[0], softmax_row_backward, call, row * p.n, p.n);
    return LS_OK;
}
