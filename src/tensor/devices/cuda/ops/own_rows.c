/* SPDX-License-Identifier: Apache-2.0 */
/* own_rows.c - softmax and the losses over classes, by rows. */
#include "tensor/devices/cuda/ops/own.h"

/* Threads for a row, of which each takes up to four units: at least 64, a multiple of the lanes of
 * every card. */
static unsigned threads_for(size_t units)
{
    unsigned threads = 64;

    while (threads < OWN_THREADS && 4 * (size_t)threads < units)
        threads *= 2;
    return threads;
}

static unsigned row_blocks(const own_operands *o, size_t n_rows)
{
    const size_t most = 32 * (size_t)o->self->card.n_processors;

    return (unsigned)(n_rows < most ? n_rows : most);
}

void own_launch_rows(own_operands *o, own_kernels kernels, kernel_type type, const row_args *a,
                     size_t unit)
{
    own_launch(o, kernels, type, row_blocks(o, a->n_rows),
               threads_for((a->columns + unit - 1) / unit), a);
}

/* --- softmax --- */

static void run_forward(own_operands *o, const op_call *call, own_kernels kernels)
{
    const axis_parts p = axis_rows(call->in[0]);
    row_args a = {.x = own_operand(o, call->in[0], false),
                  .y = own_output(o, call->out[0], false),
                  .n_rows = p.outer,
                  .columns = p.n,
                  .scale = call->attrs.scale};

    a.wide = own_has_whole_packs(call->in[0], a.x);
    own_launch_rows(o, kernels, own_type(call->in[0]->dtype), &a, 1);
}

static void run_backward(own_operands *o, const op_call *call, own_kernels kernels)
{
    const axis_parts p = axis_rows(call->in[0]);
    const row_args a = {.x = own_operand(o, call->in[0], false),
                        .dy = own_operand(o, call->in[1], false),
                        .y = own_output_over_grad(o, call, call->out[0], false),
                        .n_rows = p.outer,
                        .columns = p.n,
                        .scale = call->attrs.scale};

    own_launch_rows(o, kernels, own_type(call->in[0]->dtype), &a, 1);
}

void cuda_softmax(own_operands *o, const op_call *call)
{
    run_forward(o, call, OWN_KERNELS(softmax));
}

void cuda_softmax_backward(own_operands *o, const op_call *call)
{
    run_backward(o, call, OWN_KERNELS(softmax_backward));
}

void cuda_log_softmax(own_operands *o, const op_call *call)
{
    run_forward(o, call, OWN_KERNELS(log_softmax));
}

void cuda_log_softmax_backward(own_operands *o, const op_call *call)
{
    run_backward(o, call, OWN_KERNELS(log_softmax_backward));
}

/* --- extremes and cumulative sums --- */

void cuda_extreme(own_operands *o, const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);
    const row_args a = {.x = own_operand(o, call->in[0], false),
                        .y = own_output(o, call->out[0], false),
                        .n_rows = p.outer,
                        .columns = p.n,
                        .scale = call->attrs.binary == BINARY_MINIMUM ? -1 : 1};

    own_launch_rows(o, OWN_KERNELS(extreme), own_type(call->in[0]->dtype), &a, 1);
}

void cuda_extreme_backward(own_operands *o, const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);
    const row_args a = {.x = own_operand(o, call->in[0], false),
                        .mean = own_operand(o, call->in[1], false),
                        .dy = own_operand(o, call->in[2], false),
                        .y = own_output(o, call->out[0], false),
                        .n_rows = p.outer,
                        .columns = p.n};

    own_launch_rows(o, OWN_KERNELS(extreme_backward), own_type(call->in[0]->dtype), &a, 1);
}

void cuda_cumsum(own_operands *o, const op_call *call)
{
    const axis_parts p = axis_rows(call->in[0]);
    const row_args a = {.x = own_operand(o, call->in[0], false),
                        .y = own_output(o, call->out[0], false),
                        .n_rows = p.outer,
                        .columns = p.n,
                        .reverse = call->attrs.reverse};

    own_launch(o, OWN_KERNELS(cumsum), own_type(call->in[0]->dtype), own_blocks(o->self, p.outer),
               OWN_THREADS, &a);
}

/* --- embedding --- */

static embedding_args embedding_of(own_operands *o, const op_call *call, const ls_tensor *weight,
                                   void *y)
{
    return (embedding_args){.x = own_operand(o, call->in[0], false),
                            .indices = own_operand(o, call->in[1], false),
                            .y = y,
                            .n = call->in[1]->count,
                            .columns = (size_t)weight->dims[1],
                            .n_rows = weight->dims[0],
                            .ignored = call->attrs.begin,
                            .failure = cuda_accel_failure(o->self->accel),
                            .op = (int)call->op};
}

void cuda_embedding(own_operands *o, const op_call *call)
{
    const kernel_type type = own_type(call->in[0]->dtype);
    const size_t pack = own_pack(type);
    embedding_args a = embedding_of(o, call, call->in[0], own_output(o, call->out[0], false));

    a.wide = a.columns % pack == 0 && own_is_aligned(a.x) && own_is_aligned(a.y);
    own_launch(o, OWN_KERNELS(embedding), type,
               own_blocks(o->self, a.n * a.columns / (a.wide ? pack : 1)), OWN_THREADS, &a);
}

void cuda_embedding_backward(own_operands *o, const op_call *call)
{
    const ls_tensor *dw = call->out[0];
    const embedding_args a = embedding_of(o, call, dw, own_data(dw));

    if (!call->accumulate)
        own_zero(o, a.y, dw->count * own_element_bytes(dw->dtype));
    own_launch(o, OWN_KERNELS(embedding_backward), own_type(call->in[0]->dtype), row_blocks(o, a.n),
               threads_for(a.columns), &a);
}

/* --- losses over classes --- */

static loss_args loss_of(own_operands *o, const op_call *call)
{
    const ls_tensor *x = call->in[0];
    loss_args a = {.x = own_operand(o, x, false),
                   .targets = own_operand(o, call->in[1], false),
                   .n_rows = (size_t)x->dims[0],
                   .n_classes = (size_t)x->dims[1],
                   .smoothing = call->attrs.label_smoothing,
                   .ticket = o->self->tickets,
                   .failure = cuda_accel_failure(o->self->accel),
                   .op = call->op};

    a.wide = own_has_whole_packs(x, a.x);
    return a;
}

/* One block at least, which writes the result. */
static void launch_loss(own_operands *o, own_kernels kernels, const op_call *call, loss_args *a)
{
    const unsigned blocks = row_blocks(o, a->n_rows);

    a->row_values = own_memory(o, LS_F64, a->n_rows * LOSS_VALUES);
    own_launch(o, kernels, own_type(call->in[0]->dtype), blocks == 0 ? 1 : blocks,
               threads_for(a->n_classes), a);
}

void cuda_cross_entropy(own_operands *o, const op_call *call)
{
    loss_args a = loss_of(o, call);

    a.loss = own_output(o, call->out[0], false);
    a.loss_type = own_type(call->out[0]->dtype);
    a.probabilities = own_output(o, call->out[1], false);
    a.wide = a.wide && own_is_aligned(a.probabilities);
    launch_loss(o, OWN_KERNELS(cross_entropy), call, &a);
}

void cuda_class_sums(own_operands *o, const op_call *call)
{
    const int n_top = (int)call->out[0]->dims[0] - 2;
    loss_args a = loss_of(o, call);

    a.sums = own_data(call->out[0]);
    a.n_top = n_top;
    for (int i = 0; i < n_top; i++)
        a.top_k[i] = call->attrs.top_k[i];
    launch_loss(o, OWN_KERNELS(class_sums), call, &a);
}

void cuda_nll(own_operands *o, const op_call *call)
{
    loss_args a = loss_of(o, call);

    a.loss = own_output(o, call->out[0], false);
    a.loss_type = own_type(call->out[0]->dtype);
    own_launch(o, OWN_KERNELS(nll), own_type(call->in[0]->dtype), 1, OWN_THREADS, &a);
}
