/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mnist.c - trains a ConvNet on MNIST or Fashion-MNIST, in one process or many.
 *
 *   lockstep run --nproc-per-node 2 mnist --data DIR     a launcher starts the ranks
 *   mnist -n 1 -g 2 -i 0 --data DIR                      this program starts them
 */
#include <lockstep/lockstep.h>

#include "models/convnet.h"

#include <stdlib.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        ls_status try_ = (call);                                                                   \
        if (try_ != LS_OK)                                                                         \
            return try_;                                                                           \
    } while (0)

static ls_status train(ls_run *run, ls_comm *comm, const ls_train_flags *flags)
{
    ls_dataset *train_set, *test_set;
    ls_batch batch;
    convnet net;

    TRY(ls_dataset_open_mnist(flags->data, "train", &train_set));
    convnet_create(ls_run_model(run), ls_dataset_classes(train_set), &net);
    TRY(ls_run_train_on_take(run, train_set));
    TRY(ls_dataset_open_mnist(flags->data, "t10k", &test_set));
    TRY(ls_run_test_on_take(run, test_set));

    /* Data-parallel training needs this line, and ls_init() and ls_comm_destroy() below. */
    TRY(ls_run_distribute(run, comm, NULL));
    TRY(ls_run_start(run, convnet_forward, &net));
    while (ls_run_next(run, &batch)) {
        ls_tensor *logits = convnet_forward(&net, ls_run_tape(run), batch.x);
        ls_run_step(run, ls_run_classify(run, logits, batch.y));
    }
    return LS_OK;
}

/* One rank: joins the job, trains, leaves. */
static ls_status run_rank(int local_rank, void *arg)
{
    const ls_train_flags *flags = arg;
    const ls_init_options options = {.size = sizeof(options), .backend = flags->backend};
    ls_comm *comm = NULL;
    ls_run *run = NULL;
    ls_status st;

    (void)local_rank; /* ls_init() finds the rank */
    st = ls_init(&options, &comm);
    if (st == LS_OK)
        st = ls_run_open(flags, &run);
    if (st == LS_OK)
        st = train(run, comm, flags);
    st = ls_run_close(run, st);
    ls_comm_destroy(comm);
    return st;
}

int main(int argc, char **argv)
{
    ls_train_flags flags = {
        .epochs = 5,
        .batch_size = 100,
        .lr = 0.02,
        .momentum = 0.9,
        .schedule = "cosine",
        .data = "/usr/share/datasets/fashion-mnist",
    };
    ls_spawn_options spawn = {.size = sizeof(spawn)};
    int n_local = 0;
    ls_status st;

    st = ls_train_parse("mnist", "Trains a ConvNet on MNIST or Fashion-MNIST.", argc, argv, &flags,
                        NULL, 0);
    if (st == LS_OK && flags.help)
        return EXIT_SUCCESS;
    if (st == LS_OK)
        st = ls_train_local_ranks(&flags, &n_local);
    spawn.nodes = (int)flags.nodes;
    spawn.per_node = flags.per_node;
    spawn.node = (int)flags.node_id;
    spawn.master = flags.master;
    if (st == LS_OK)
        st = n_local > 0 ? ls_spawn(run_rank, n_local, &flags, &spawn) : run_rank(0, &flags);
    return ls_train_exit("mnist", st);
}
