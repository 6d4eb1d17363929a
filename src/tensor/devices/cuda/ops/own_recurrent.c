/* SPDX-License-Identifier: Apache-2.0 */
/* own_recurrent.c - the steps of LSTM and GRU cells behind their matrix products. */
#include "tensor/devices/cuda/ops/own.h"

/* in[state] is (N,H); in[lengths] may be NULL. */
static void run_step(own_operands *o, const op_call *call, own_kernels kernels, int state,
                     int lengths)
{
    recurrent_args a = {.lengths = own_operand(o, call->in[lengths], false),
                        .position = call->attrs.begin,
                        .limit = call->attrs.limit,
                        .n_rows = (size_t)call->in[state]->dims[0],
                        .units = (size_t)call->in[state]->dims[1],
                        .failure = cuda_accel_failure(o->self->accel),
                        .op = (int)call->op};

    for (int i = 0; i < call->n_in; i++)
        a.in[i] = own_operand(o, call->in[i], false);
    for (int i = 0; i < call->n_out; i++)
        a.out[i] = own_output(o, call->out[i], false);
    own_launch(o, kernels, own_type(call->in[0]->dtype), own_blocks(o->self, a.n_rows * a.units),
               OWN_THREADS, &a);
}

void cuda_lstm(own_operands *o, const op_call *call)
{
    run_step(o, call, OWN_KERNELS(lstm), 2, 4);
}

void cuda_lstm_backward(own_operands *o, const op_call *call)
{
    run_step(o, call, OWN_KERNELS(lstm_backward), 1, 2);
}

void cuda_gru(own_operands *o, const op_call *call)
{
    run_step(o, call, OWN_KERNELS(gru), 2, 3);
}

void cuda_gru_backward(own_operands *o, const op_call *call)
{
    run_step(o, call, OWN_KERNELS(gru_backward), 1, 2);
}
