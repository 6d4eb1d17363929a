/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt_gradients.c PREFIX LAYERS HEADS WEIGHTS BATCH RESULT STATE - one forward and backward of
 * GPT-2 on the default device, without dropout, for gpt_parity.py.
 *
 * WEIGHTS and BATCH ("ids", "targets", int64 (N,T)) are safetensors files; the shapes are those of
 * WEIGHTS. RESULT gets logits, loss and every gradient as "grad.NAME", STATE what the model saves.
 */
#include "models/gpt.h"
#include "step_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_tensor *batch[2];
    gpt net;
} work;

/* Vocabulary, width and context, from the shapes of the two embeddings. */
static ls_status read_shapes(const char *path, const char *prefix, gpt_config *out)
{
    const size_t skip = strlen(prefix);
    ls_checkpoint *file;
    ls_checkpoint_entry e;

    LS_TRY(ls_checkpoint_open(path, &file));
    for (int i = 0; i < ls_checkpoint_count(file); i++) {
        if (ls_checkpoint_entry_at(file, i, &e) != LS_OK || strlen(e.name) < skip)
            continue;
        if (strcmp(e.name + skip, "wte.weight") == 0)
            out->vocab = e.dims[0], out->width = e.dims[1];
        if (strcmp(e.name + skip, "wpe.weight") == 0)
            out->context = e.dims[0];
    }
    ls_checkpoint_close(file);
    return LS_OK;
}

static ls_status run(work *w, char **argv)
{
    static const char *const names[] = {"ids", "targets"};
    gpt_config config = {.prefix = argv[1], .layers = atoi(argv[2]), .heads = atoi(argv[3])};
    ls_named values[2] = {{.name = "logits"}, {.name = "loss"}};
    ls_tensor *targets;

    LS_TRY(ls_device_open(NULL, &w->device));
    LS_TRY(ls_model_create(w->device, 1, &w->model));
    LS_TRY(ls_tape_create(w->device, &w->tape));
    LS_TRY(read_shapes(argv[4], argv[1], &config));
    gpt_create(w->model, &config, &w->net);
    LS_TRY(ls_model_status(w->model));
    LS_TRY(step_load_state(w->model, argv[4]));
    LS_TRY(step_load_batch(w->device, argv[5], names, w->batch, 2));
    targets = ls_reshape(w->tape, w->batch[1], 1, (int64_t[]){-1});
    values[0].tensor = gpt_forward(&w->net, w->tape, w->batch[0]);
    values[1].tensor = ls_cross_entropy(w->tape, values[0].tensor, targets);
    ls_tape_keep(w->tape, values[0].tensor);
    LS_TRY(ls_backward(w->tape, values[1].tensor, 1));
    LS_TRY(step_save_state(w->model, argv[7]));
    return step_save_result(w->model, values, 2, argv[6]);
}

int main(int argc, char **argv)
{
    static work w;
    ls_status st;

    if (argc != 8) {
        fprintf(stderr, "usage: gpt_gradients PREFIX LAYERS HEADS WEIGHTS BATCH RESULT STATE\n");
        return 2;
    }
    st = run(&w, argv);
    if (st != LS_OK)
        fprintf(stderr, "gpt_gradients: %s\n", ls_last_error());
    ls_tensor_destroy(w.batch[0]);
    ls_tensor_destroy(w.batch[1]);
    ls_tape_destroy(w.tape);
    ls_model_destroy(w.model);
    ls_device_close(w.device);
    return st == LS_OK ? 0 : 1;
}
