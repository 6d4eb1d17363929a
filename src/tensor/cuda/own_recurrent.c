/* SPDX-License-Identifier: Apache-2.0 */
/* own_recurrent.c - the steps of LSTM and GRU cells behind their matrix products. */
#include "tensor/cuda/own.h"

/* in[state] is (N,H); in[lengths] may be NULL. */
static ls_status run_step(device_state *self, const op_call *call, own_kernels kernels, int state,
                          int lengths)
{
    own_operands o = own_begin(self, call);
    recurrent_args a = {.lengths = own_operand(&o, call->in[lengths], false),
                        .position = call->attrs.begin,
                        .limit = call->attrs.limit,
                        .n_rows = (size_t)call->in[state]->dims[0],
                        .units = (size_t)call->in[state]->dims[1],
                        .failure = cuda_accel_failure(self->accel),
                        .op = (int)call->op};

    for (int i = 0; i < call->n_in; i++)
        a.in[i] = own_operand(&o, call->in[i], false);
    for (int i = 0; i < call->n_out; i++)
        a.out[i] = own_output(&o, call->out[i], false);
    own_launch(&o, kernels, own_type(call->in[0]->dtype), own_blocks(self, a.n_rows * a.units),
               OWN_THREADS, &a);
    return own_end(&o);
}

ls_status cuda_lstm(device_state *self, const op_call *call)
{
    static const own_kernels kernels = OWN_KERNELS(lstm);

    return run_step(self, call, kernels, 2, 4);
}

ls_status cuda_lstm_backward(device_state *self, const op_call *call)
{
    static const own_kernels kernels = OWN_KERNELS(lstm_backward);

    return run_step(self, call, kernels, 1, 2);
}

ls_status cuda_gru(device_state *self, const op_call *call)
{
    static const own_kernels kernels = OWN_KERNELS(gru);

    return run_step(self, call, kernels, 2, 3);
}

ls_status cuda_gru_backward(device_state *self, const op_call *call)
{
    static const own_kernels kernels = OWN_KERNELS(gru_backward);

    return run_step(self, call, kernels, 1, 2);
}
