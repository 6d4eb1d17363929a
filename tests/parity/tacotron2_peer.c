/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tacotron2_peer.c - one forward and backward of Tacotron2 on the default device, for
 * tacotron2_parity.py.
 *
 *   tacotron2_peer initial STATE                          initial values of NVIDIA's configuration
 *   tacotron2_peer whole|mask WEIGHTS BATCH RESULT STATE  a step, without or with masked padding
 *
 * Files are safetensors. Sizes are those of WEIGHTS; BATCH has the fields of tacotron2_batch. All
 * dropout rates are 0. RESULT gets outputs, loss and every gradient as "grad.NAME"; STATE what the
 * model saves, its running statistics having been moved by the batch.
 */
#include "models/tacotron2.h"

#include <lockstep/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELDS = 6, MAX_ITEMS = 256, NAME_BYTES = 128 };

static const char *const field_names[FIELDS] = {"text", "text_lengths", "text_padding",
                                                "mel",  "mel_padding",  "gate"};

typedef struct work {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    tacotron2 net;
    ls_tensor *fields[FIELDS];
    ls_named results[MAX_ITEMS];
    char names[MAX_ITEMS][NAME_BYTES];
    int n_results;
} work;

static ls_status read_fields(work *w, ls_checkpoint *file)
{
    ls_named items[FIELDS];

    for (int i = 0; i < FIELDS; i++) {
        ls_checkpoint_entry e = {.name = NULL};

        for (int k = 0; k < ls_checkpoint_count(file); k++) {
            LS_TRY(ls_checkpoint_entry_at(file, k, &e));
            if (strcmp(e.name, field_names[i]) == 0)
                break;
        }
        LS_TRY(ls_tensor_create(w->device, e.type, e.n_dims, e.dims, &w->fields[i]));
        items[i] = (ls_named){.name = field_names[i], .tensor = w->fields[i]};
    }
    return ls_checkpoint_load(file, items, FIELDS, LS_LOAD_STRICT);
}

static ls_status load(const char *path, work *w, int is_batch)
{
    ls_checkpoint *file;
    int n;
    const ls_named *state = ls_model_state(w->model, &n);
    ls_status st;

    LS_TRY(ls_checkpoint_open(path, &file));
    st = is_batch ? read_fields(w, file) : ls_checkpoint_load(file, state, n, LS_LOAD_STRICT);
    ls_checkpoint_close(file);
    return st;
}

static ls_status save_state(work *w, const char *path)
{
    int n;
    const ls_named *state = ls_model_state(w->model, &n);

    return ls_checkpoint_save(path, state, n, NULL, 0);
}

static ls_status set_up(work *w, const char *weights, int mask)
{
    tacotron2_config config;

    tacotron2_defaults(&config);
    if (weights != NULL)
        LS_TRY(tacotron2_read_sizes(weights, &config));
    config.mask_padding = mask;
    config.p_attention_dropout = config.p_decoder_dropout = 0;
    config.p_convolution_dropout = config.p_prenet_dropout = 0;
    LS_TRY(ls_device_open(NULL, &w->device));
    LS_TRY(ls_model_create(w->device, 1, &w->model));
    LS_TRY(ls_tape_create(w->device, &w->tape));
    return tacotron2_create(w->model, &config, &w->net);
}

static void add_result(work *w, const char *prefix, const char *name, ls_tensor *t)
{
    ls_tape_keep(w->tape, t);
    (void)snprintf(w->names[w->n_results], NAME_BYTES, "%s%s", prefix, name);
    w->results[w->n_results] = (ls_named){.name = w->names[w->n_results], .tensor = t};
    w->n_results++;
}

static ls_status step(work *w, char **files)
{
    const tacotron2_batch batch = {.text = w->fields[0],
                                   .text_lengths = w->fields[1],
                                   .text_padding = w->fields[2],
                                   .mel = w->fields[3],
                                   .mel_padding = w->fields[4],
                                   .gate = w->fields[5]};
    tacotron2_output out;
    const ls_named *p;
    ls_tensor *loss;
    int n;

    LS_TRY(tacotron2_forward(&w->net, w->tape, &batch, &out));
    loss = tacotron2_loss(w->tape, &out, &batch);
    add_result(w, "", "mel", out.mel);
    add_result(w, "", "mel_postnet", out.mel_postnet);
    add_result(w, "", "gate", out.gate);
    add_result(w, "", "loss", loss);
    LS_TRY(ls_backward(w->tape, loss, 1));
    p = ls_model_parameters(w->model, &n);
    for (int i = 0; i < n; i++)
        add_result(w, "grad.", p[i].name, ls_grad(p[i].tensor));
    LS_TRY(ls_checkpoint_save(files[2], w->results, w->n_results, NULL, 0));
    return save_state(w, files[3]);
}

static ls_status run(work *w, int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "initial") == 0) {
        LS_TRY(set_up(w, NULL, 0));
        return save_state(w, argv[2]);
    }
    LS_TRY(set_up(w, argv[2], strcmp(argv[1], "mask") == 0));
    LS_TRY(load(argv[2], w, 0));
    LS_TRY(load(argv[3], w, 1));
    return step(w, argv + 2);
}

int main(int argc, char **argv)
{
    static work w;
    ls_status st;

    if (argc != 3 && argc != 6) {
        fprintf(stderr, "usage: tacotron2_peer initial STATE\n"
                        "       tacotron2_peer whole|mask WEIGHTS BATCH RESULT STATE\n");
        return 2;
    }
    st = run(&w, argc, argv);
    if (st != LS_OK)
        fprintf(stderr, "tacotron2_peer: %s\n", ls_last_error());
    for (int i = 0; i < FIELDS; i++)
        ls_tensor_destroy(w.fields[i]);
    tacotron2_destroy(&w.net);
    ls_tape_destroy(w.tape);
    ls_model_destroy(w.model);
    ls_device_close(w.device);
    return st == LS_OK ? 0 : 1;
}
