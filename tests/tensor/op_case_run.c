/* SPDX-License-Identifier: Apache-2.0 */
/* op_case_run.c - runs one operator case with all its kernels and collects what they gave: the
 * operators of networks. */
#include "tensor/op_case_run.h"

#include "base/alloc.h"

#include <math.h>
#include <string.h>

/* --- one function a family --- */

static int64_t window_count(int64_t size, const op_attrs *a, int axis)
{
    const int64_t reach = (int64_t)a->dilation[axis] * (a->kernel[axis] - 1) + 1;

    return (size + 2 * (int64_t)a->padding[axis] - reach) / a->stride[axis] + 1;
}

/* Height (axis 0) or width (axis 1) of what a pool gives. */
static int64_t pooled_size(const case_run *r, int axis)
{
    const op_attrs *a = &r->attrs;
    const int64_t size = r->c->x[2 + axis];
    const int64_t n = window_count(size, a, axis);
    const int64_t next = n * a->stride[axis]; // where the window behind the last full one begins
    const bool has_rest =
        next - a->stride[axis] + a->kernel[axis] < size + 2 * (int64_t)a->padding[axis];

    return r->c->ceil_mode && has_rest && next < size + a->padding[axis] ? n + 1 : n;
}

/* Of images, or with 3 dimensions of sequences, whose kernel is attrs.kernel[1]. */
static void run_conv2d(case_run *r)
{
    const op_case *c = r->c;
    const op_attrs *a = &r->attrs;
    const int n = c->n_dims;
    const int first = 4 - n; // axis
    int64_t wdims[4] = {c->out, c->x[1] / a->groups};
    int64_t ydims[4] = {c->x[0], c->out};
    double area = 1;
    double sites = (double)c->x[0];
    ls_tensor *x = noise(r, n, c->x, 1, 0);
    ls_tensor *w;
    ls_tensor *b;
    ls_tensor *dy;
    ls_tensor *y;
    ls_tensor *dx = unplaced(r, r->type, n, c->x);

    for (int axis = first; axis < 2; axis++) {
        const int d = 2 + axis - first;

        wdims[d] = a->kernel[axis];
        ydims[d] = window_count(c->x[d], a, axis);
        area *= (double)wdims[d];
        sites *= (double)ydims[d];
    }
    w = parameter(r, n, wdims, 1, 0);
    b = c->no_bias ? NULL : parameter(r, 1, &c->out, 1, 0);
    dy = noise(r, n, ydims, 1, 0);
    y = unplaced(r, r->type, n, ydims);
    run_op(r, (op_call){.op = OP_CONV2D, .n_in = 3, .n_out = 1, .in = {x, w, b}, .out = {y}});
    result(r, "y", y, (double)wdims[1] * area);
    run_op(r,
           (op_call){
               .op = OP_CONV2D_BACKWARD_DATA, .n_in = 2, .n_out = 1, .in = {dy, w}, .out = {dx}});
    result(r, "dx", dx, (double)(c->out / a->groups) * area);
    run_gradients(
        r,
        (op_call){
            .op = OP_CONV2D_BACKWARD_WEIGHTS, .n_in = 2, .n_out = 2, .in = {x, dy}, .out = {w, b}},
        0, gradient_names, sites);
}

static void run_linear(case_run *r)
{
    const op_case *c = r->c;
    const int64_t wdims[2] = {c->out, c->x[1]};
    const int64_t ydims[2] = {c->x[0], c->out};
    ls_tensor *x = noise(r, 2, c->x, 1, 0);
    ls_tensor *w = parameter(r, 2, wdims, 1, 0);
    ls_tensor *b = c->no_bias ? NULL : parameter(r, 1, &c->out, 1, 0);
    ls_tensor *dy = noise(r, 2, ydims, 1, 0);
    ls_tensor *y = unplaced(r, r->type, 2, ydims);
    ls_tensor *dx = unplaced(r, r->type, 2, c->x);

    run_op(r, (op_call){.op = OP_LINEAR, .n_in = 3, .n_out = 1, .in = {x, w, b}, .out = {y}});
    result(r, "y", y, (double)c->x[1]);
    run_op(r,
           (op_call){
               .op = OP_LINEAR_BACKWARD_DATA, .n_in = 2, .n_out = 1, .in = {dy, w}, .out = {dx}});
    result(r, "dx", dx, (double)c->out);
    run_gradients(
        r,
        (op_call){
            .op = OP_LINEAR_BACKWARD_WEIGHTS, .n_in = 2, .n_out = 2, .in = {x, dy}, .out = {w, b}},
        0, gradient_names, (double)c->x[0]);
}

/* A sum and a ReLU behind a batch norm, whose backward `call` is: the gradient of what was added,
 * once from two gradients, once in the memory of the only one. */
static void run_masked_backward(case_run *r, op_call call, double k)
{
    static const char *const names[2][2] = {{"dx of two gradients", "dadded of two gradients"},
                                            {"dx behind a sum", "dadded over dy"}};
    const op_case *c = r->c;

    for (int i = 0; i < 2; i++) {
        call.n_out = 4;
        call.in[7] = i == 0 ? noise(r, c->n_dims, c->x, 1, 0) : NULL;
        call.may_reuse_grad = i == 1;
        call.out[0] = unplaced(r, r->type, c->n_dims, c->x);
        call.out[1] = filled(r, r->parameters, 1, &c->x[1], 0);
        call.out[2] = filled(r, r->parameters, 1, &c->x[1], 0);
        call.out[3] = unplaced(r, r->type, c->n_dims, c->x);
        run_op(r, call);
        result(r, names[i][0], call.out[0], k);
        result(r, names[i][1], call.out[3], 1);
    }
}

static void run_batch_norm(case_run *r)
{
    const op_case *c = r->c;
    const int64_t *channels = &c->x[1];
    const double per_channel = (double)c->x[0] * (c->n_dims > 2 ? (double)c->x[2] : 1.0) *
                               (c->n_dims > 3 ? (double)c->x[3] : 1.0);
    const double scale = c->scale == 0 ? 1 : c->scale;
    ls_tensor *x = noise(r, c->n_dims, c->x, 1, scale == 1 ? 0 : scale);
    ls_tensor *w = parameter(r, 1, channels, 1, 0);
    ls_tensor *b = parameter(r, 1, channels, 1, 0);
    ls_tensor *running_mean = parameter(r, 1, channels, 1, 0);
    ls_tensor *running_var = parameter(r, 1, channels, 0.5, 1);
    ls_tensor *counter = filled(r, LS_I64, 0, NULL, 6);
    ls_tensor *dy = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *added = c->adds ? noise(r, c->n_dims, c->x, 1, 0) : NULL;
    ls_tensor *y = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *mean = NULL;
    ls_tensor *variance = NULL;
    ls_tensor *mask = NULL;
    ls_tensor *dx = unplaced(r, r->type, c->n_dims, c->x);
    op_call back;

    if (r->attrs.training) {
        mean = unplaced(r, r->parameters, 1, channels);
        variance = unplaced(r, r->parameters, 1, channels);
        mask = r->attrs.relu ? unplaced(r, LS_I32, c->n_dims, c->x) : NULL;
    }
    run_op(r, (op_call){.op = OP_BATCH_NORM,
                        .n_in = 7,
                        .n_out = 4,
                        .in = {x, w, b, running_mean, running_var, added, counter},
                        .out = {y, mean, variance, mask}});
    // A mean far from 0 costs its ratio to the spread in accuracy, in float32 as in any other type.
    result(r, "y", y, per_channel * scale * scale);
    result(r, "running_mean", running_mean, per_channel);
    result(r, "running_var", running_var, per_channel * scale * scale);
    result(r, "counter", counter, 1);
    if (!r->attrs.training)
        return;
    result(r, "mean", mean, per_channel);
    result(r, "variance", variance, per_channel * scale * scale);
    back = (op_call){.op = OP_BATCH_NORM_BACKWARD,
                     .n_in = 8,
                     .n_out = 3,
                     .in = {x, dy, w, b, mean, variance, mask},
                     .out = {dx, w, b}};
    run_gradients(r, back, 1, gradient_names, per_channel * scale * scale);
    result(r, "dx", dx, per_channel * scale * scale);
    if (added != NULL && mask != NULL)
        run_masked_backward(r, back, per_channel * scale * scale);
}

static void run_relu(case_run *r)
{
    const op_case *c = r->c;
    ls_tensor *x = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *dy = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *y = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *dx = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *sum = unplaced(r, r->type, c->n_dims, c->x);

    run_op(r, (op_call){.op = OP_RELU, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
    result(r, "y", y, 1);
    run_op(r, (op_call){.op = OP_RELU_BACKWARD, .n_in = 2, .n_out = 1, .in = {y, dy}, .out = {dx}});
    result(r, "dx", dx, 1);
    run_op(r, (op_call){.op = OP_RELU_BACKWARD,
                        .n_in = 3,
                        .n_out = 1,
                        .in = {y, dy, noise(r, c->n_dims, c->x, 1, 0)},
                        .out = {sum}});
    result(r, "dx of two gradients", sum, 1);
}

/* To each other type, and back from it. */
static void run_cast(case_run *r)
{
    static const struct {
        ls_dtype type;
        const char *name;
    } types[] = {{LS_F32, "as float32"},
                 {LS_F64, "as float64"},
                 {LS_F16, "as float16"},
                 {LS_BF16, "as bfloat16"}};
    const op_case *c = r->c;
    ls_tensor *x = noise(r, c->n_dims, c->x, c->scale == 0 ? 1 : c->scale, 0);

    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        ls_tensor *y = unplaced(r, types[i].type, c->n_dims, c->x);
        ls_tensor *back = unplaced(r, r->type, c->n_dims, c->x);

        if (types[i].type == r->type)
            continue;
        run_op(r, (op_call){.op = OP_CAST, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
        result(r, types[i].name, y, 1);
        run_op(r, (op_call){.op = OP_CAST, .n_in = 1, .n_out = 1, .in = {y}, .out = {back}});
        result(r, "back", back, 1);
    }
}

static void run_add_relu(case_run *r)
{
    const op_case *c = r->c;
    ls_tensor *a = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *b = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *dy = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *y = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *dx = unplaced(r, r->type, c->n_dims, c->x);

    run_op(r, (op_call){.op = OP_ADD_RELU, .n_in = 2, .n_out = 1, .in = {a, b}, .out = {y}});
    result(r, "y", y, 1);
    run_op(r, (op_call){.op = OP_RELU_BACKWARD, .n_in = 2, .n_out = 1, .in = {y, dy}, .out = {dx}});
    result(r, "dx", dx, 1);
}

static void run_avg_pool2d(case_run *r)
{
    const op_case *c = r->c;
    const op_attrs *a = &r->attrs;
    const int64_t ydims[4] = {c->x[0], c->x[1], a->adaptive ? c->out : pooled_size(r, 0),
                              a->adaptive ? c->out : pooled_size(r, 1)};
    const double area =
        a->adaptive ? (double)(c->x[2] * c->x[3]) : (double)a->kernel[0] * a->kernel[1];
    ls_tensor *x = noise(r, 4, c->x, 1, 0);
    ls_tensor *dy = noise(r, 4, ydims, 1, 0);
    ls_tensor *y = unplaced(r, r->type, 4, ydims);
    ls_tensor *dx = unplaced(r, r->type, 4, c->x);

    run_op(r, (op_call){.op = OP_AVG_POOL2D, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
    result(r, "y", y, area);
    run_op(r,
           (op_call){.op = OP_AVG_POOL2D_BACKWARD, .n_in = 1, .n_out = 1, .in = {dy}, .out = {dx}});
    result(r, "dx", dx, area);
}

static void run_max_pool2d(case_run *r)
{
    const op_case *c = r->c;
    const int64_t ydims[4] = {c->x[0], c->x[1], pooled_size(r, 0), pooled_size(r, 1)};
    const double area = (double)r->attrs.kernel[0] * r->attrs.kernel[1];
    ls_tensor *x = noise(r, 4, c->x, 1, 0);
    ls_tensor *dy = noise(r, 4, ydims, 1, 0);
    ls_tensor *y = unplaced(r, r->type, 4, ydims);
    ls_tensor *without_where = unplaced(r, r->type, 4, ydims);
    ls_tensor *indices = unplaced(r, LS_I32, 4, ydims);
    ls_tensor *dx = unplaced(r, r->type, 4, c->x);

    run_op(
        r,
        (op_call){
            .op = OP_MAX_POOL2D, .n_in = 1, .n_out = 2, .in = {x}, .out = {without_where, NULL}});
    result(r, "y in evaluation", without_where, 1);
    run_op(r,
           (op_call){.op = OP_MAX_POOL2D, .n_in = 1, .n_out = 2, .in = {x}, .out = {y, indices}});
    result(r, "y", y, 1);
    run_op(
        r,
        (op_call){
            .op = OP_MAX_POOL2D_BACKWARD, .n_in = 2, .n_out = 1, .in = {dy, indices}, .out = {dx}});
    result(r, "dx", dx, area);
}

static void run_cross_entropy(case_run *r)
{
    const op_case *c = r->c;
    const double scale = c->scale == 0 ? 1 : c->scale;
    ls_tensor *logits = noise(r, 2, c->x, scale, 0);
    ls_tensor *y = targets(r, c->x[0], c->x[1]);
    ls_tensor *loss = unplaced(r, r->parameters, 0, NULL);
    ls_tensor *only_loss = unplaced(r, r->parameters, 0, NULL);
    ls_tensor *probabilities = unplaced(r, r->parameters, 2, c->x);
    ls_tensor *dloss = filled(r, r->parameters, 0, NULL, 1.5);
    ls_tensor *dlogits = unplaced(r, r->type, 2, c->x);
    // exp() turns the logits' own rounding into a relative error of their size.
    const double k = (double)c->x[1] * scale * scale;

    run_op(r, (op_call){.op = OP_CROSS_ENTROPY,
                        .n_in = 2,
                        .n_out = 2,
                        .in = {logits, y},
                        .out = {only_loss, NULL}});
    result(r, "loss alone", only_loss, k);
    run_op(r, (op_call){.op = OP_CROSS_ENTROPY,
                        .n_in = 2,
                        .n_out = 2,
                        .in = {logits, y},
                        .out = {loss, probabilities}});
    result(r, "loss", loss, k);
    result(r, "probabilities", probabilities, k);
    run_op(r, (op_call){.op = OP_CROSS_ENTROPY_BACKWARD,
                        .n_in = 3,
                        .n_out = 1,
                        .in = {probabilities, y, dloss},
                        .out = {dlogits}});
    result(r, "dlogits", dlogits, k);
}

static void run_log_softmax(case_run *r)
{
    const op_case *c = r->c;
    const double scale = c->scale == 0 ? 1 : c->scale;
    ls_tensor *x = noise(r, 2, c->x, scale, 0);
    ls_tensor *dy = noise(r, 2, c->x, 1, 0);
    ls_tensor *y = unplaced(r, r->type, 2, c->x);
    ls_tensor *dx = unplaced(r, r->type, 2, c->x);
    const double k = (double)c->x[1] * scale * scale;

    run_op(r, (op_call){.op = OP_LOG_SOFTMAX, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
    result(r, "y", y, k);
    run_op(r,
           (op_call){
               .op = OP_LOG_SOFTMAX_BACKWARD, .n_in = 2, .n_out = 1, .in = {y, dy}, .out = {dx}});
    result(r, "dx", dx, k);
}

static void run_nll(case_run *r)
{
    const op_case *c = r->c;
    ls_tensor *x = noise(r, 2, c->x, 1, 0);
    ls_tensor *y = targets(r, c->x[0], c->x[1]);
    ls_tensor *loss = unplaced(r, r->type, 0, NULL);
    ls_tensor *dloss = filled(r, r->type, 0, NULL, 1.5);
    ls_tensor *dx = unplaced(r, r->type, 2, c->x);

    run_op(r, (op_call){.op = OP_NLL, .n_in = 2, .n_out = 1, .in = {x, y}, .out = {loss}});
    result(r, "loss", loss, (double)c->x[0]);
    run_op(r, (op_call){
                  .op = OP_NLL_BACKWARD, .n_in = 3, .n_out = 1, .in = {x, y, dloss}, .out = {dx}});
    result(r, "dx", dx, 1);
}

static void run_dropout(case_run *r)
{
    const op_case *c = r->c;
    ls_tensor *x = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *y = unplaced(r, r->type, c->n_dims, c->x);

    run_op(r, (op_call){.op = OP_DROPOUT, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
    result(r, "y", y, 1);
}

static void run_mse(case_run *r)
{
    const op_case *c = r->c;
    ls_tensor *prediction = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *target = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *loss = unplaced(r, r->type, 0, NULL);
    ls_tensor *dloss = filled(r, r->type, 0, NULL, -0.75);
    ls_tensor *dprediction = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *alone = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *dtarget = unplaced(r, r->type, c->n_dims, c->x);
    op_call call = {.op = OP_MSE_BACKWARD,
                    .n_in = 3,
                    .n_out = 2,
                    .in = {prediction, target, dloss},
                    .out = {dprediction, dtarget}};

    run_op(r, (op_call){
                  .op = OP_MSE, .n_in = 2, .n_out = 1, .in = {prediction, target}, .out = {loss}});
    result(r, "loss", loss, r->status == LS_OK ? (double)ls_tensor_count(prediction) : 1);
    run_op(r, call);
    result(r, "dprediction", dprediction, 1);
    result(r, "dtarget", dtarget, 1);
    call.out[0] = alone;
    call.out[1] = NULL;
    run_op(r, call);
    result(r, "dprediction alone", alone, 1);
}

/* Forward, and a backward that reads the forward's input or result and dy. */
static void run_pointwise(case_run *r, op_kind op, op_kind back, bool reads_y, double k)
{
    const op_case *c = r->c;
    ls_tensor *x = noise(r, c->n_dims, c->x, c->scale == 0 ? 1 : c->scale, c->shift);
    ls_tensor *dy = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *y = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *dx = unplaced(r, r->type, c->n_dims, c->x);

    run_op(r, (op_call){.op = op, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
    result(r, "y", y, k);
    run_op(r,
           (op_call){.op = back, .n_in = 2, .n_out = 1, .in = {reads_y ? y : x, dy}, .out = {dx}});
    result(r, "dx", dx, k);
    if (r->status == LS_OK)
        tensor_release(dx);
    run_op(r, (op_call){.op = back,
                        .may_reuse_grad = true,
                        .n_in = 2,
                        .n_out = 1,
                        .in = {reads_y ? y : x, dy},
                        .out = {dx}});
    result(r, "dx over dy", dx, k);
}

static void run_activate(case_run *r)
{
    run_pointwise(r, OP_ACTIVATE, OP_ACTIVATE_BACKWARD, false, 1);
}

static void run_softmax(case_run *r)
{
    const op_case *c = r->c;
    const double size = c->attrs.scale * (c->scale == 0 ? 1 : c->scale);

    // As in run_cross_entropy().
    run_pointwise(r, OP_SOFTMAX, OP_SOFTMAX_BACKWARD, true,
                  (double)c->x[c->n_dims - 1] * (size > 1 ? size * size : 1));
}

/* The terms that one element of `part` adds up, or serves. */
static double share_of(const case_run *r, const ls_tensor *whole, const ls_tensor *part)
{
    return r->status == LS_OK && ls_tensor_count(part) > 0
               ? (double)ls_tensor_count(whole) / (double)ls_tensor_count(part)
               : 1;
}

/* The shape that x and the second input are broadcast to. */
static int common_shape(const op_case *c, int n_other, const int64_t *other, int64_t *dims)
{
    const int n = c->n_dims > n_other ? c->n_dims : n_other;

    for (int d = 1; d <= n; d++) {
        const int64_t of_x = d <= c->n_dims ? c->x[c->n_dims - d] : 1;

        dims[n - d] = of_x == 1 && d <= n_other ? other[n_other - d] : of_x;
    }
    return n;
}

/* Without a second shape it is x's, and the result is added to x and copied as well. */
static void run_binary(case_run *r)
{
    static const char *const names[2] = {"da", "db"};
    const op_case *c = r->c;
    const bool is_alike = c->n_other == 0;
    const int n_other = is_alike ? c->n_dims : c->n_other;
    const int64_t *other = is_alike ? c->x : c->other;
    int64_t dims[4];
    const int n = common_shape(c, n_other, other, dims);
    ls_tensor *a = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *b = noise(r, n_other, other, 1, c->attrs.binary == BINARY_DIV ? 2 : 0);
    ls_tensor *dy = noise(r, n, dims, 1, 0);
    ls_tensor *y = unplaced(r, r->type, n, dims);

    run_op(r, (op_call){.op = OP_BINARY, .n_in = 2, .n_out = 1, .in = {a, b}, .out = {y}});
    result(r, "y", y, 1);
    for (int i = 0; i < 2; i++) {
        ls_tensor *d =
            i == 0 ? unplaced(r, r->type, c->n_dims, c->x) : unplaced(r, r->type, n_other, other);

        r->attrs.operand = i;
        r->attrs.scale = 1;
        run_op(r, (op_call){.op = OP_REDUCE, .n_in = 3, .n_out = 1, .in = {dy, a, b}, .out = {d}});
        result(r, names[i], d, share_of(r, dy, d));
    }
    if (!is_alike)
        return;
    run_op(r, (op_call){.op = OP_ADD_INTO, .n_in = 1, .n_out = 1, .in = {y}, .out = {a}});
    result(r, "a + y", a, 1);
    run_op(r, (op_call){.op = OP_COPY, .n_in = 1, .n_out = 1, .in = {y}, .out = {b}});
    result(r, "copy of y", b, 1);
}

/* The other shape to x's, and sums in the other direction. */
static void run_expand(case_run *r)
{
    const op_case *c = r->c;
    ls_tensor *x = noise(r, c->n_other, c->other, 1, 0);
    ls_tensor *dy = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *y = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *dx = unplaced(r, r->type, c->n_other, c->other);

    run_op(r, (op_call){.op = OP_EXPAND, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
    result(r, "y", y, 1);
    r->attrs.scale = 0.375;
    run_op(r, (op_call){.op = OP_REDUCE, .n_in = 1, .n_out = 1, .in = {dy}, .out = {dx}});
    result(r, "dx", dx, share_of(r, dy, dx));
}

/* With a mask of the second shape, and x's shape or a number in the place of masked elements. */
static void run_select(case_run *r)
{
    const op_case *c = r->c;
    ls_tensor *x = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *other = c->no_bias ? NULL : noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *mask = created(r, LS_U8, c->n_other, c->other);
    ls_tensor *y = unplaced(r, r->type, c->n_dims, c->x);
    uint8_t bytes[1024];

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(ls_rng_below(&r->rng, 3) == 0 ? 1 + i % 255 : 0);
    if (r->status == LS_OK)
        r->status = ls_tensor_write(mask, bytes, ls_tensor_count(mask));
    run_op(r,
           (op_call){.op = OP_SELECT, .n_in = 3, .n_out = 1, .in = {x, other, mask}, .out = {y}});
    result(r, "y", y, 1);
}

static void run_embedding(case_run *r)
{
    const op_case *c = r->c;
    const int64_t ydims[2] = {c->out, c->x[1]};
    ls_tensor *weight = parameter(r, 2, c->x, 1, 0);
    ls_tensor *indices = targets(r, c->out, c->x[0]);
    ls_tensor *dy = parameter(r, 2, ydims, 1, 0);
    ls_tensor *y = unplaced(r, r->parameters, 2, ydims);

    run_op(r, (op_call){
                  .op = OP_EMBEDDING, .n_in = 2, .n_out = 1, .in = {weight, indices}, .out = {y}});
    result(r, "y", y, 1);
    run_gradients(r,
                  (op_call){.op = OP_EMBEDDING_BACKWARD,
                            .n_in = 2,
                            .n_out = 1,
                            .in = {dy, indices},
                            .out = {weight}},
                  0, gradient_names, (double)c->out);
}

static void run_extreme(case_run *r)
{
    const op_case *c = r->c;
    ls_tensor *x = noise(r, 2, c->x, 1, 0);
    ls_tensor *dy = noise(r, 1, c->x, 1, 0);
    ls_tensor *y = unplaced(r, r->type, 1, c->x);
    ls_tensor *dx = unplaced(r, r->type, 2, c->x);

    run_op(r, (op_call){.op = OP_EXTREME, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
    result(r, "y", y, 1);
    run_op(r, (op_call){
                  .op = OP_EXTREME_BACKWARD, .n_in = 3, .n_out = 1, .in = {x, y, dy}, .out = {dx}});
    result(r, "dx", dx, 1);
}

static void run_cumsum(case_run *r)
{
    const op_case *c = r->c;
    ls_tensor *x = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *y = unplaced(r, r->type, c->n_dims, c->x);

    run_op(r, (op_call){.op = OP_CUMSUM, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
    result(r, "y", y, (double)c->x[c->n_dims - 1]);
}

static void run_permute(case_run *r)
{
    const op_case *c = r->c;
    int64_t dims[4];
    ls_tensor *x = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *y;

    for (int i = 0; i < c->n_dims; i++)
        dims[i] = c->x[c->attrs.order[i]];
    y = unplaced(r, r->type, c->n_dims, dims);
    run_op(r, (op_call){.op = OP_PERMUTE, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
    result(r, "y", y, 1);
}

/* The first, the other and the first again. */
static void run_concat(case_run *r)
{
    const op_case *c = r->c;
    const int axis = c->attrs.axis;
    int64_t dims[4];
    ls_tensor *x = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *other = noise(r, c->n_dims, c->other, 1, 0);
    ls_tensor *y;

    memcpy(dims, c->x, sizeof(dims));
    dims[axis] = 2 * c->x[axis] + c->other[axis];
    y = unplaced(r, r->type, c->n_dims, dims);
    run_op(r, (op_call){.op = OP_CONCAT, .n_in = 3, .n_out = 1, .in = {x, other, x}, .out = {y}});
    result(r, "y", y, 1);
}

static void run_slice(case_run *r)
{
    const op_case *c = r->c;
    int64_t dims[4];
    ls_tensor *x = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *dx = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *y;

    memcpy(dims, c->x, sizeof(dims));
    dims[c->attrs.axis] = c->out;
    y = unplaced(r, r->type, c->n_dims, dims);
    run_op(r, (op_call){.op = OP_SLICE, .n_in = 1, .n_out = 1, .in = {x}, .out = {y}});
    result(r, "y", y, 1);
    run_op(r, (op_call){.op = OP_SLICE_BACKWARD, .n_in = 1, .n_out = 1, .in = {y}, .out = {dx}});
    result(r, "dx", dx, 1);
}

static void run_matmul(case_run *r)
{
    const op_case *c = r->c;
    const int rows = c->n_dims - 2;
    const int columns = c->n_dims - 1;
    const int64_t depth = c->x[c->attrs.transposed[0] ? rows : columns];
    int64_t dims[4];
    ls_tensor *a = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *b = noise(r, c->n_other, c->other, 1, 0);
    ls_tensor *y;

    memcpy(dims, c->x, sizeof(dims));
    dims[rows] = c->x[c->attrs.transposed[0] ? columns : rows];
    dims[columns] = c->other[c->attrs.transposed[1] ? rows : columns];
    y = unplaced(r, r->type, c->n_dims, dims);
    run_op(r, (op_call){.op = OP_MATMUL, .n_in = 2, .n_out = 1, .in = {a, b}, .out = {y}});
    result(r, "y", y, (double)depth);
}

static void run_layer_norm(case_run *r)
{
    const op_case *c = r->c;
    const int64_t *width = &c->x[c->n_dims - 1];
    const double scale = c->scale == 0 ? 1 : c->scale;
    int64_t rows = 1;
    ls_tensor *x = noise(r, c->n_dims, c->x, 1, scale == 1 ? 0 : scale);
    ls_tensor *w = (c->out & 1) != 0 ? NULL : parameter(r, 1, width, 1, 0);
    ls_tensor *b = (c->out & 2) != 0 ? NULL : parameter(r, 1, width, 1, 0);
    ls_tensor *dy = noise(r, c->n_dims, c->x, 1, 0);
    ls_tensor *y = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *alone = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *dx = unplaced(r, r->type, c->n_dims, c->x);
    ls_tensor *mean;
    ls_tensor *inverse;

    for (int i = 0; i < c->n_dims - 1; i++)
        rows *= c->x[i];
    mean = unplaced(r, r->parameters, 1, &rows);
    inverse = unplaced(r, r->parameters, 1, &rows);
    run_op(r,
           (op_call){.op = OP_LAYER_NORM, .n_in = 3, .n_out = 3, .in = {x, w, b}, .out = {alone}});
    result(r, "y in evaluation", alone, (double)*width * scale * scale);
    run_op(r, (op_call){.op = OP_LAYER_NORM,
                        .n_in = 3,
                        .n_out = 3,
                        .in = {x, w, b},
                        .out = {y, mean, inverse}});
    result(r, "y", y, (double)*width * scale * scale);
    result(r, "mean", mean, (double)*width);
    result(r, "inverse", inverse, (double)*width * scale * scale);
    run_gradients(r,
                  (op_call){.op = OP_LAYER_NORM_BACKWARD,
                            .n_in = 5,
                            .n_out = 3,
                            .in = {x, dy, w, mean, inverse},
                            .out = {dx, w, b}},
                  1, gradient_names, (double)rows * scale * scale);
    result(r, "dx", dx, (double)*width * scale * scale);
}

/* --- the suite's functions --- */

static void resolve(op_attrs *a, op_kind op)
{
    for (int i = 0; i < 2; i++) {
        if (a->stride[i] == 0)
            a->stride[i] = op == OP_MAX_POOL2D || op == OP_AVG_POOL2D ? a->kernel[i] : 1;
        if (a->dilation[i] == 0)
            a->dilation[i] = 1;
    }
    if (a->groups == 0)
        a->groups = 1;
    if (op == OP_CONV2D && a->kernel[0] == 0)
        a->kernel[0] = 1; // of a sequence
}

static void (*runner_of(op_kind op))(case_run *)
{
    switch (op) {
    case OP_CONV2D:
        return run_conv2d;
    case OP_BATCH_NORM:
        return run_batch_norm;
    case OP_RELU:
        return run_relu;
    case OP_ADD_RELU:
        return run_add_relu;
    case OP_MAX_POOL2D:
        return run_max_pool2d;
    case OP_AVG_POOL2D:
        return run_avg_pool2d;
    case OP_LINEAR:
        return run_linear;
    case OP_CROSS_ENTROPY:
        return run_cross_entropy;
    case OP_LOG_SOFTMAX:
        return run_log_softmax;
    case OP_NLL:
        return run_nll;
    case OP_DROPOUT:
        return run_dropout;
    case OP_MSE:
        return run_mse;
    case OP_ACTIVATE:
        return run_activate;
    case OP_BINARY:
        return run_binary;
    case OP_EXPAND:
        return run_expand;
    case OP_SELECT:
        return run_select;
    case OP_EMBEDDING:
        return run_embedding;
    case OP_EXTREME:
        return run_extreme;
    case OP_CUMSUM:
        return run_cumsum;
    case OP_PERMUTE:
        return run_permute;
    case OP_CONCAT:
        return run_concat;
    case OP_SLICE:
        return run_slice;
    case OP_MATMUL:
        return run_matmul;
    case OP_LAYER_NORM:
        return run_layer_norm;
    case OP_SOFTMAX:
        return run_softmax;
    case OP_ATTENTION:
        return run_attention;
    case OP_CAST:
        return run_cast;
    case OP_LSTM:
        return run_lstm;
    case OP_GRU:
        return run_gru;
    case OP_SGD:
        return run_sgd;
    case OP_ADAM:
        return run_adam;
    case OP_SQUARES:
        return run_clip;
    case OP_UNSCALE:
        return run_unscale;
    case OP_FILL:
        return run_fill;
    case OP_CLASS_SUMS:
        return run_class_sums;
    case OP_NORMALIZE:
        return run_normalize;
    default:
        return NULL;
    }
}

ls_status op_case_run(ls_device *device, const op_case *c, ls_dtype type, op_results *out)
{
    case_run r = {.device = device,
                  .c = c,
                  .type = type,
                  .parameters = type == LS_F64 ? LS_F64 : LS_F32,
                  .attrs = c->attrs,
                  .out = out};
    void (*const run)(case_run *) = runner_of(c->op);

    memset(out, 0, sizeof(*out));
    if (run == NULL)
        return ls_fail(LS_EINVAL, "%s: no forward operator", c->name);
    resolve(&r.attrs, c->op);
    ls_rng_seed(&r.rng, ls_hash_bytes(c->name, strlen(c->name), 1));
    run(&r);
    for (int i = 0; i < r.n_tensors; i++)
        ls_tensor_destroy(r.tensors[i]);
    return r.status;
}

bool op_case_mixes(const op_case *c)
{
    return c->op != OP_CROSS_ENTROPY && c->op != OP_LOG_SOFTMAX && c->op != OP_NLL &&
           c->op != OP_MSE && c->op != OP_SOFTMAX && c->op != OP_SGD && c->op != OP_ADAM &&
           c->op != OP_SQUARES && c->op != OP_UNSCALE && c->op != OP_CLASS_SUMS;
}

bool op_case_is_large(const op_case *c)
{
    int64_t count = 1;

    for (int i = 0; i < c->n_dims; i++)
        count *= c->x[i];
    return count > 100000;
}
