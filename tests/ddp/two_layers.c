/* SPDX-License-Identifier: Apache-2.0 */
/* two_layers.c - see two_layers.h. */
#include "ddp/two_layers.h"

#include "tensor/suite_device.h"

ls_status net_open_on(const char *device, small_net *n, uint64_t seed)
{
    LS_TRY(small_net_open(n, device, seed));
    n->layers[0] = ls_nn_linear(n->model, "first", IN, HIDDEN, 0);
    n->layers[1] = ls_nn_linear(n->model, "second", HIDDEN, OUT, 0);
    return ls_model_status(n->model);
}

ls_status net_open(small_net *n, uint64_t seed)
{
    return net_open_on(test_device_name(), n, seed);
}

ls_status net_join(small_net *n, ls_comm *comm, const ls_ddp_options *opt)
{
    LS_TRY(small_net_join(n, comm, opt, 0.1));
    // A rank that is ready first would else abort the group while another still joins.
    return comm == NULL ? LS_OK : ls_barrier(comm, NULL);
}

static void hidden(ls_tape *tape, ls_tensor *const *in, ls_tensor **out, void *arg)
{
    const small_net *n = arg;

    out[0] = ls_relu(tape, ls_forward(tape, n->layers[0], in[0]));
}

/* Mean loss over rows [first, first + rows) of a step. Every second step is checkpointed. */
static ls_status loss_of(small_net *n, int step, int first, int rows, ls_tensor **x, ls_tensor **y,
                         ls_tensor **loss)
{
    ls_tensor *h;

    LS_TRY(small_net_rows(n, step, first, (int64_t[]){0, IN}, 2, rows, 0, OUT, x, y));
    if (step % 2 == 1)
        ls_tape_checkpoint(n->tape, hidden, n, 0, x, 1, &h, 1);
    else
        hidden(n->tape, x, &h, n);
    *loss = ls_cross_entropy(n->tape, ls_forward(n->tape, n->layers[1], h), *y);
    return ls_tape_status(n->tape);
}

ls_status ddp_backward(small_net *n, ls_tensor *loss, int64_t rows, ls_ddp_step *step)
{
    return ls_ddp_backward(n->ddp, n->tape, loss, rows, step);
}

ls_status ddp_accumulate(small_net *n, ls_tensor *loss, int64_t rows, ls_ddp_step *step)
{
    LS_UNUSED(step);
    return ls_ddp_accumulate(n->ddp, n->tape, loss, rows);
}

ls_status plain_backward(small_net *n, ls_tensor *loss, int64_t rows, ls_ddp_step *step)
{
    *step = (ls_ddp_step){.weight = (double)rows, .more_data = rows > 0};
    ls_model_zero_grad(n->model);
    return ls_backward(n->tape, loss, 1.0);
}

ls_status rows_through(small_net *n, backward_fn backward, int step, int first, int rows,
                       ls_ddp_step *result)
{
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    ls_tensor *loss = NULL;
    ls_status st = loss_of(n, step, first, rows, &x, &y, &loss);

    if (st == LS_OK)
        st = backward(n, loss, rows, result);
    ls_tape_reset(n->tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    return st;
}

ls_status read_parameters(small_net *n, float *out, size_t *count)
{
    int n_params;
    const ls_named *list = ls_model_parameters(n->model, &n_params);

    *count = 0;
    for (int i = 0; i < n_params; i++) {
        LS_TRY(ls_tensor_read(list[i].tensor, out + *count, ls_tensor_count(list[i].tensor)));
        *count += ls_tensor_count(list[i].tensor);
    }
    return LS_OK;
}
