/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resnet_gradients.c ARCH WEIGHTS BATCH RESULT STATE - one forward and backward of a network on the
 * default device.
 *
 * WEIGHTS and BATCH ("images", "labels") are safetensors files. RESULT gets logits, loss and every
 * gradient as "grad.NAME"; STATE what the model saves, its running statistics having been moved by
 * the batch. Dropout is left out, and its rates are printed. With WEIGHTS "-" there is no step, and
 * STATE gets the initial values.
 */
#include "models/net.h"
#include "step_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    network *net;
    ls_tensor *batch[2]; /* images, labels */
} work;

static ls_status set_up(work *w, char **argv)
{
    static const char *const names[] = {"images", "labels"};
    char error[ARCHITECTURE_LIST_BYTES + 128];
    const int arch = architecture_find(argv[1], error, sizeof(error));
    ls_status st;

    if (arch < 0) {
        fprintf(stderr, "%s\n", error);
        return LS_EINVAL;
    }
    st = ls_device_open(NULL, &w->device);
    if (st == LS_OK)
        st = ls_model_create(w->device, 1, &w->model);
    if (st == LS_OK)
        st = ls_tape_create(w->device, &w->tape);
    if (st == LS_OK)
        st = step_load_batch(w->device, argv[3], names, w->batch, 2);
    if (st != LS_OK)
        return st;
    w->net = net_create(w->model, arch, 1000, (int)ls_tensor_dim(w->batch[0], 3));
    if (w->net == NULL)
        return LS_ENOMEM;
    st = ls_model_status(w->model);
    if (st == LS_OK && strcmp(argv[2], "-") != 0)
        st = step_load_state(w->model, argv[2]);
    return st;
}

static void leave_out_dropout(network *net)
{
    for (int i = 0; i < net->n_ops; i++) {
        if (net->ops[i].rate > 0)
            printf("%.9g\n", net->ops[i].rate);
        net->ops[i].rate = 0;
    }
}

static ls_status run(work *w, char **argv)
{
    ls_named values[2] = {{.name = "logits"}, {.name = "loss"}};

    leave_out_dropout(w->net);
    if (strcmp(argv[2], "-") == 0)
        return step_save_state(w->model, argv[5]);
    values[0].tensor = net_forward(w->net, w->tape, w->batch[0]);
    values[1].tensor = ls_cross_entropy(w->tape, values[0].tensor, w->batch[1]);
    ls_tape_keep(w->tape, values[0].tensor);
    LS_TRY(ls_backward(w->tape, values[1].tensor, 1));
    LS_TRY(step_save_state(w->model, argv[5]));
    return step_save_result(w->model, values, 2, argv[4]);
}

int main(int argc, char **argv)
{
    work *w = calloc(1, sizeof(*w));
    ls_status st;

    if (argc != 6 || w == NULL) {
        fprintf(stderr, "usage: resnet_gradients ARCH WEIGHTS BATCH RESULT STATE\n");
        free(w);
        return 2;
    }
    st = set_up(w, argv);
    if (st == LS_OK)
        st = run(w, argv);
    if (st != LS_OK)
        fprintf(stderr, "resnet_gradients: %s\n", ls_last_error());
    ls_tensor_destroy(w->batch[0]);
    ls_tensor_destroy(w->batch[1]);
    ls_tape_destroy(w->tape);
    net_destroy(w->net);
    ls_model_destroy(w->model);
    ls_device_close(w->device);
    free(w);
    return st == LS_OK ? 0 : 1;
}
