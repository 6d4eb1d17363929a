/* SPDX-License-Identifier: Apache-2.0 */
/*
 * * elastic_ddp.c - a minimal data-parallel training step: a 10-10-5 network, random inputs,
 * squared error, SGD.
 *
 *   lockstep run --nproc-per-node 4 elastic_ddp
 */
#include <lockstep/lockstep.h>

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 20, IN = 10, HIDDEN = 10, OUT = 5 };

#define TRY(call)                                                                                  \
    do {                                                                                           \
        ls_status try_ = (call);                                                                   \
        if (try_ != LS_OK)                                                                         \
            return try_;                                                                           \
    } while (0)

/* Pseudo-random numbers between -1 and 1. */
static void fill(float *values, size_t count, unsigned seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U; /* Numerical Recipes, section 7.1 */
        values[i] = (float)(seed >> 8) / 8388608.0F - 1.0F;
    }
}

/* One step on a different batch on each rank; all ranks then have the same parameters. */
static ls_status train(ls_run *run, ls_comm *comm, ls_tensor *x, ls_tensor *y)
{
    ls_tape *tape = ls_run_tape(run);
    ls_model *model = ls_run_model(run);
    ls_layer *net1 = ls_nn_linear(model, "net1", IN, HIDDEN, 0);
    ls_layer *net2 = ls_nn_linear(model, "net2", HIDDEN, OUT, 0);
    ls_tensor *h;

    TRY(ls_run_distribute(run, comm, NULL));
    TRY(ls_run_start(run, NULL, NULL));
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

    TRY(ls_tensor_create(ls_run_device(run), LS_F32, 2, dims, out));
    fill(values, count, seed);
    return ls_tensor_write(*out, values, count);
}

static ls_status train_on_own_batch(ls_run *run, ls_comm *comm)
{
    const unsigned rank = (unsigned)ls_comm_rank(comm);
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    ls_status st = make_tensor(run, IN, rank, &x);

    if (st == LS_OK)
        st = make_tensor(run, OUT, 1000U + rank, &y);
    if (st == LS_OK)
        st = train(run, comm, x, y);
    ls_tape_reset(ls_run_tape(run)); /* frees what depends on x and y */
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    return st;
}

static ls_status run_rank(const ls_train_flags *flags)
{
    const ls_init_options options = {.size = sizeof(options), .backend = flags->backend};
    ls_comm *comm = NULL;
    ls_run *run = NULL;
    ls_status st;

    st = ls_init(&options, &comm);
    if (st == LS_OK) {
        printf("Start running basic DDP example on rank %d.\n", ls_comm_rank(comm));
        st = ls_run_open(flags, &run);
    }
    if (st == LS_OK)
        st = train_on_own_batch(run, comm);
    st = ls_run_close(run, st);
    ls_comm_destroy(comm);
    return st;
}

int main(int argc, char **argv)
{
    ls_train_flags flags = {.epochs = 1, .batch_size = ROWS, .lr = 0.001};
    ls_status st;

    st = ls_train_parse("elastic_ddp", "Takes one data-parallel step with a toy network.", argc,
                        argv, &flags, NULL, 0);
    if (st == LS_OK && flags.help)
        return EXIT_SUCCESS;
    if (st == LS_OK)
        st = run_rank(&flags);
    return ls_train_exit("elastic_ddp", st);
}
