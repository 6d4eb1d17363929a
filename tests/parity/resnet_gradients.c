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

#include <lockstep/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ITEMS = 1024, NAME_BYTES = 128 };

typedef struct work {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    network *net;
    ls_tensor *images;
    ls_tensor *labels;
    ls_named results[MAX_ITEMS];
    char names[MAX_ITEMS][NAME_BYTES];
    int n_results;
} work;

/* Fills `items` from the file, which has nothing else. */
static ls_status load(const char *path, const ls_named *items, int n)
{
    ls_checkpoint *file = NULL;
    ls_status st = ls_checkpoint_open(path, &file);

    if (st == LS_OK)
        st = ls_checkpoint_load(file, items, n, LS_LOAD_STRICT);
    ls_checkpoint_close(file);
    return st;
}

/* A tensor with the type and shape of an entry. */
static ls_status tensor_for(work *w, const ls_checkpoint *file, const char *name, ls_tensor **out)
{
    for (int i = 0; i < ls_checkpoint_count(file); i++) {
        ls_checkpoint_entry e;
        ls_status st = ls_checkpoint_entry_at(file, i, &e);

        if (st != LS_OK)
            return st;
        if (strcmp(e.name, name) == 0)
            return ls_tensor_create(w->device, e.type, e.n_dims, e.dims, out);
    }
    return LS_ENOTFOUND;
}

static ls_status load_batch(work *w, const char *path)
{
    ls_checkpoint *file = NULL;
    ls_status st = ls_checkpoint_open(path, &file);

    if (st == LS_OK)
        st = tensor_for(w, file, "images", &w->images);
    if (st == LS_OK)
        st = tensor_for(w, file, "labels", &w->labels);
    if (st == LS_OK)
        st = ls_checkpoint_load(file,
                                (ls_named[]){{.name = "images", .tensor = w->images},
                                             {.name = "labels", .tensor = w->labels}},
                                2, LS_LOAD_STRICT);
    ls_checkpoint_close(file);
    return st;
}

static ls_status set_up(work *w, char **argv)
{
    char error[ARCHITECTURE_LIST_BYTES + 128];
    const int arch = architecture_find(argv[1], error, sizeof(error));
    const ls_named *state;
    ls_status st;
    int n;

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
        st = load_batch(w, argv[3]);
    if (st != LS_OK)
        return st;
    w->net = net_create(w->model, arch, 1000, (int)ls_tensor_dim(w->images, 3));
    if (w->net == NULL)
        return LS_ENOMEM;
    st = ls_model_status(w->model);
    state = ls_model_state(w->model, &n);
    if (st == LS_OK && strcmp(argv[2], "-") != 0)
        st = load(argv[2], state, n);
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

static void add_result(work *w, const char *prefix, const char *name, ls_tensor *t)
{
    (void)snprintf(w->names[w->n_results], NAME_BYTES, "%s%s", prefix, name);
    w->results[w->n_results] = (ls_named){.name = w->names[w->n_results], .tensor = t};
    w->n_results++;
}

static ls_status run(work *w, char **argv)
{
    int n;
    const ls_named *state = ls_model_state(w->model, &n);
    ls_tensor *logits;
    ls_tensor *loss;
    const ls_named *p;
    ls_status st;

    leave_out_dropout(w->net);
    if (strcmp(argv[2], "-") == 0)
        return ls_checkpoint_save(argv[5], state, n, NULL, 0);
    logits = net_forward(w->net, w->tape, w->images);
    loss = ls_cross_entropy(w->tape, logits, w->labels);
    ls_tape_keep(w->tape, logits);
    st = ls_backward(w->tape, loss, 1);
    if (st == LS_OK)
        st = ls_checkpoint_save(argv[5], state, n, NULL, 0);
    if (st != LS_OK)
        return st;
    add_result(w, "", "logits", logits);
    add_result(w, "", "loss", loss);
    p = ls_model_parameters(w->model, &n);
    for (int i = 0; i < n; i++)
        add_result(w, "grad.", p[i].name, ls_grad(p[i].tensor));
    return ls_checkpoint_save(argv[4], w->results, w->n_results, NULL, 0);
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
    ls_tensor_destroy(w->images);
    ls_tensor_destroy(w->labels);
    ls_tape_destroy(w->tape);
    net_destroy(w->net);
    ls_model_destroy(w->model);
    ls_device_close(w->device);
    free(w);
    return st == LS_OK ? 0 : 1;
}
