/* SPDX-License-Identifier: Apache-2.0 */
/* ref_linear.c - y = x W^T + b and its gradients. x: (N,I), weight: (O,I), y: (N,O). */
#include "tensor/devices/cpu_ref/ref.h"

REF_INLINE void linear(const op_call *call, bool wide)
{
    const size_t n_rows = (size_t)call->in[0]->dims[0];
    const size_t n_in = (size_t)call->in[0]->dims[1];
    const size_t n_out = (size_t)call->in[1]->dims[0];
    const void *x = tensor_elements(call->in[0]);
    const void *weight = tensor_elements(call->in[1]);
    const void *bias = call->in[2] == NULL ? NULL : tensor_elements(call->in[2]);
    void *y = tensor_elements(call->out[0]);

    for (size_t n = 0; n < n_rows; n++) {
        for (size_t o = 0; o < n_out; o++) {
            double sum = bias == NULL ? 0 : ref_get(bias, o, wide);

            for (size_t i = 0; i < n_in; i++)
                sum += ref_get(x, n * n_in + i, wide) * ref_get(weight, o * n_in + i, wide);
            ref_put(y, n * n_out + o, sum, wide);
        }
    }
}

REF_KERNEL(ref_linear, linear)

/* dx = dy W */
REF_INLINE void backward_data(const op_call *call, bool wide)
{
    const size_t n_rows = (size_t)call->in[0]->dims[0];
    const size_t n_out = (size_t)call->in[1]->dims[0];
    const size_t n_in = (size_t)call->in[1]->dims[1];
    const void *dy = tensor_elements(call->in[0]);
    const void *weight = tensor_elements(call->in[1]);
    void *dx = tensor_elements(call->out[0]);

    for (size_t n = 0; n < n_rows; n++) {
        for (size_t i = 0; i < n_in; i++) {
            double sum = 0;

            for (size_t o = 0; o < n_out; o++)
                sum += ref_get(dy, n * n_out + o, wide) * ref_get(weight, o * n_in + i, wide);
            ref_put(dx, n * n_in + i, sum, wide);
        }
    }
}

REF_KERNEL(ref_linear_backward_data, backward_data)

/* dW = dy^T x, db = the sum of dy over the rows */
REF_INLINE void backward_weights(const op_call *call, bool wide)
{
    const size_t n_rows = (size_t)call->in[0]->dims[0];
    const size_t n_in = (size_t)call->in[0]->dims[1];
    const size_t n_out = (size_t)call->in[1]->dims[1];
    const void *x = tensor_elements(call->in[0]);
    const void *dy = tensor_elements(call->in[1]);

    for (size_t o = 0; o < n_out; o++) {
        double dbias = 0;

        for (size_t i = 0; i < n_in; i++) {
            double sum = 0;

            for (size_t n = 0; n < n_rows; n++)
                sum += ref_get(dy, n * n_out + o, wide) * ref_get(x, n * n_in + i, wide);
            ref_give(tensor_elements(call->out[0]), o * n_in + i, sum, call->accumulate, wide);
        }
        if (call->out[1] == NULL)
            continue;
        for (size_t n = 0; n < n_rows; n++)
            dbias += ref_get(dy, n * n_out + o, wide);
        ref_give(tensor_elements(call->out[1]), o, dbias, call->accumulate, wide);
    }
}

REF_KERNEL(ref_linear_backward_weights, backward_weights)
