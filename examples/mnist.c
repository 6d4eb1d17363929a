/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mnist.c - trains a ConvNet on MNIST or Fashion-MNIST, in one process or many.
 *
 *   lockstep run --nproc-per-node 2 mnist --data DIR     a launcher starts the ranks
 *   mnist -n 1 -g 2 -i 0 --data DIR                      this program starts them
 */
#include <lockstep/lockstep.h>

#include "models/convnet.h"

/* One rank. */
static ls_status train(ls_run *run, ls_comm *comm, void *arg)
{
    const ls_train_flags *flags = arg;
    ls_dataset *train_set, *test_set;
    ls_batch batch;
    convnet net;

    LS_TRY(ls_dataset_open_mnist(flags->data, "train", &train_set));
    convnet_create(ls_run_model(run), ls_dataset_classes(train_set), &net);
    LS_TRY(ls_run_train_on_take(run, train_set));
    LS_TRY(ls_dataset_open_mnist(flags->data, "t10k", &test_set));
    LS_TRY(ls_run_test_on_take(run, test_set));

    LS_TRY(ls_run_distribute(run, comm, NULL)); /* data-parallel training needs only this line */
    LS_TRY(ls_run_start(run, convnet_forward, &net));
    while (ls_run_next(run, &batch)) {
        ls_tensor *logits = convnet_forward(&net, ls_run_tape(run), batch.x);
        ls_run_step(run, ls_run_classify(run, logits, batch.y));
    }
    return LS_OK;
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
    const ls_train_program mnist = {
        .size = sizeof(mnist),
        .name = "mnist",
        .summary = "Trains a ConvNet on MNIST or Fashion-MNIST.",
        .flags = &flags,
        .train = train,
        .arg = &flags,
    };

    return ls_train_main(&mnist, argc, argv);
}
