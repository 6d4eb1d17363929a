/* SPDX-License-Identifier: Apache-2.0 */
/* shard_net.c - see shard_net.h. */
#include "ddp/shard_net.h"

#include "base/rng.h"
#include "tensor/suite_device.h"

#include <string.h>

bool is_stream_device(void)
{
    return strcmp(test_device_name(), "cpu_ref") != 0;
}

ls_status shard_net_open(small_net *n)
{
    LS_TRY(small_net_open(n, test_device_name(), 100));
    n->layers[FIRST] = ls_nn_linear(n->model, "first", IN, HIDDEN, 0);
    n->layers[NORM] = ls_nn_batch_norm2d(n->model, "norm", HIDDEN, NULL);
    n->layers[SECOND] = ls_nn_linear(n->model, "second", HIDDEN, OUT, 0);
    n->layers[EXTRA] = ls_nn_linear(n->model, "extra", HIDDEN, OUT, 0);
    n->layers[LAST_NORM] = ls_nn_batch_norm2d(n->model, "last", OUT, NULL);
    return ls_model_status(n->model);
}

int shard_rows_of(int step, int shard)
{
    return step % 2 == 1 && shard == 1 ? 0 : 2 + (shard * 3 + step) % 5;
}

/* How the hidden layer is computed. */
typedef struct hidden_args {
    small_net *net;
    int step;
} hidden_args;

static void hidden(ls_tape *tape, ls_tensor *const *inputs, ls_tensor **outputs, void *arg)
{
    const hidden_args *a = arg;
    int n_buffers;
    ls_tensor *h =
        ls_forward(tape, a->net->layers[NORM], ls_forward(tape, a->net->layers[FIRST], inputs[0]));

    if (a->step > 0) // all shards of a step see the same running mean
        h = ls_mul(tape, h, ls_model_buffers(a->net->model, &n_buffers)[0].tensor);
    outputs[0] = ls_dropout(tape, ls_relu(tape, h), 0.3);
}

static ls_tensor *loss_on(small_net *n, ls_tape *tape, int step, int shard, ls_tensor *x,
                          ls_tensor *y)
{
    hidden_args args = {n, step};
    ls_tensor *h;
    ls_tensor *out;

    ls_tape_set_training(tape, 1);
    ls_tape_set_random(tape, ls_hash3(5, (uint64_t)shard, 0), step);
    if (step == 3)
        ls_tape_checkpoint(tape, hidden, &args, sizeof(args), &x, 1, &h, 1);
    else
        hidden(tape, &x, &h, &args);
    out = ls_forward(tape, n->layers[SECOND], h);
    if ((shard + step) % 3 == 0 && step != 2)
        out = ls_add(tape, out, ls_forward(tape, n->layers[EXTRA], h));
    out = ls_forward(tape, n->layers[LAST_NORM], out);
    return ls_cross_entropy(tape, out, y);
}

ls_status shard_rows_at(small_net *n, int step, int shard, ls_tensor **x, ls_tensor **y)
{
    return small_net_rows(n, step, shard * 100, (int64_t[]){0, IN}, 2, shard_rows_of(step, shard),
                          1, OUT, x, y);
}

ls_status shard_loss_of(small_net *n, int step, int shard, ls_tensor **x, ls_tensor **y,
                        ls_tensor **loss)
{
    LS_TRY(shard_rows_at(n, step, shard, x, y));
    *loss = loss_on(n, n->tape, step, shard, *x, *y);
    return ls_tape_status(n->tape);
}

ls_status shard_through(small_net *n, int step, int shard, bool is_last, ls_ddp_step *result)
{
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    ls_tensor *loss = NULL;
    ls_status st = shard_loss_of(n, step, shard, &x, &y, &loss);

    if (st == LS_OK && is_last)
        st = ls_ddp_backward(n->ddp, n->tape, loss, shard_rows_of(step, shard), result);
    else if (st == LS_OK)
        st = ls_ddp_accumulate(n->ddp, n->tape, loss, shard_rows_of(step, shard));
    ls_tape_reset(n->tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    return st;
}

ls_status shard_compute(void *arg, int shard, ls_tape *tape, ls_tensor **loss, int64_t *rows)
{
    shard_step *s = arg;

    LS_TRY(shard_rows_at(s->net, s->step, shard, &s->x[shard], &s->y[shard]));
    *loss = loss_on(s->net, tape, s->step, shard, s->x[shard], s->y[shard]);
    *rows = shard_rows_of(s->step, shard);
    return LS_OK;
}

ls_status shard_step_run(small_net *n, int step, ls_shard_fn fn, ls_ddp_step *result)
{
    shard_step s = {.net = n, .step = step};
    ls_status st = ls_ddp_step_shards(n->ddp, fn, &s, result);

    for (int i = 0; i < SHARDS_TOP; i++) {
        ls_tensor_destroy(s.x[i]);
        ls_tensor_destroy(s.y[i]);
    }
    return st;
}
