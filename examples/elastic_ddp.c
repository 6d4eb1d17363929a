/* SPDX-License-Identifier: Apache-2.0 */
/*
 * * elastic_ddp.c - a minimal data-parallel training step: a 10-10-5 network, random inputs,
 * squared error, SGD.
 *
 *   lockstep run --nproc-per-node 4 elastic_ddp
 */
#include <lockstep/lockstep.h>

#include <stdio.h>

enum { ROWS = 20, IN = 10, HIDDEN = 10, OUT = 5 };

/* Pseudo-random numbers between -1 and 1. */
static void fill(float *values, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U; /* Numerical Recipes, section 7.1 */
        values[i] = (float)(seed >> 8) / 8388608.0F - 1.0F;
    }
}

/* One step on a different batch on each rank; all ranks then have the same parameters. */
static ls_status step(ls_run *run, ls_comm *comm, ls_tensor *x, ls_tensor *y)
{
    ls_tape *tape = ls_run_tape(run);
    ls_model *model = ls_run_model(run);
    ls_layer *net1 = ls_nn_linear(model, "net1", IN, HIDDEN, 0);
    ls_layer *net2 = ls_nn_linear(model, "net2", HIDDEN, OUT, 0);
    ls_tensor *h;

    LS_TRY(ls_run_distribute(run, comm, NULL));
    LS_TRY(ls_run_start(run, NULL, NULL));
    h = ls_relu(tape, ls_forward(tape, net1, x));
    ls_run_step(run, ls_mse_loss(tape, ls_forward(tape, net2, h), y));
    return LS_OK;
}

/* A tensor of pseudo-random numbers, in the memory of the run's device. */
static ls_status make_tensor(ls_run *run, int64_t columns, unsigned seed, ls_tensor **out)
{
    const int64_t dims[] = {ROWS, columns};
    float values[ROWS * IN];
    const size_t count = (size_t)(ROWS * columns);

    LS_TRY(ls_tensor_create(ls_run_device(run), LS_F32, 2, dims, out));
    fill(values, count, seed);
    return ls_tensor_write(*out, values, count);
}

/* One rank. */
static ls_status train(ls_run *run, ls_comm *comm, void *arg)
{
    const unsigned rank = (unsigned)ls_comm_rank(comm);
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    ls_status st;

    (void)arg;
    printf("Start running basic DDP example on rank %u.\n", rank);
    st = make_tensor(run, IN, rank, &x);
    if (st == LS_OK)
        st = make_tensor(run, OUT, 1000U + rank, &y);
    if (st == LS_OK)
        st = step(run, comm, x, y);
    ls_tape_reset(ls_run_tape(run)); /* frees what depends on x and y */
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    return st;
}

int main(int argc, char **argv)
{
    ls_train_flags flags = {.epochs = 1, .batch_size = ROWS, .lr = 0.001};
    const ls_train_program elastic_ddp = {
        .size = sizeof(elastic_ddp),
        .name = "elastic_ddp",
        .summary = "Takes one data-parallel step with a toy network.",
        .flags = &flags,
        .train = train,
    };

    return ls_train_main(&elastic_ddp, argc, argv);
}
