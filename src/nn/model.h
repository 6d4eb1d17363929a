/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.h - the internals of models and layers, for the files that create layers.
 *
 * A create function calls model_add() for a layer with named tensors, sets the members that forward
 * needs, and the initial values. Random values come from the model's generator in the order of
 * creation, weight before bias, so the seed alone decides them.
 *
 * nn/: layers and models, behind <lockstep/nn.h>; ddp also uses buffers.h.
 */
#ifndef LS_NN_MODEL_H
#define LS_NN_MODEL_H

#include <lockstep/nn.h>

#include "base/rng.h"
#include "base/status.h"
#include "base/text.h"
#include "nn/buffers.h"

#include <stdbool.h>

#define LAYER_TENSORS    5   /* the least capacity of a layer */
#define LAYER_NAME_BYTES 128 /* longest layer name with its terminator */

/* A list of named tensors that grows. */
typedef struct named_list {
    ls_named *items;
    int n;
    int capacity;
} named_list;

typedef struct model_summary model_summary;

struct ls_model {
    ls_device *device;
    ls_rng rng;
    ls_layer *first; /* in order of creation */
    ls_layer *last;
    named_list parameters;
    named_list buffers;
    named_list state;
    buffer_block *blocks; /* of the buffers */
    int n_blocks;
    model_summary *summary; /* that ls_model_summary() makes now; else NULL */
    ls_status failure;
    char failure_text[LS_ERROR_BYTES];
};

/* One tensor of a layer: made, registered and named by model_add(). */
typedef struct layer_slot {
    const char *suffix; /* "weight"; NULL: the tensor has the layer's name */
    bool is_buffer;     /* saved, not trained */
    ls_dtype type;
    int n_dims;
    int64_t dims[LS_MAX_DIMS];
} layer_slot;

/* Of an LSTM or GRU layer, or a cell. */
typedef struct recurrent_shape {
    bool is_lstm;
    bool is_cell;
    bool no_bias;
    int in;
    int hidden;
    int layers;
    int directions;
    double dropout;
} recurrent_shape;

struct ls_layer {
    ls_layer *next;
    ls_model *model;
    char name[LAYER_NAME_BYTES];
    ls_tensor *(*forward)(ls_tape *tape, ls_layer *layer, ls_tensor *x);
    int n_tensors;
    ls_tensor **tensors; /* in the order of the slots; NULL where it has fewer than LAYER_TENSORS */
    char **tensor_names;
    union {
        ls_conv1d_params conv1d;
        ls_conv2d_params conv2d;
        ls_conv_transpose1d_params conv_transpose1d;
        ls_conv_transpose2d_params conv_transpose2d;
        struct {
            int groups;
            double eps;
        } group_norm;
    };
    ls_batch_norm_params batch_norm;
    ls_nn_layer_norm_options layer_norm;
    int heads;             /* of attention */
    int64_t padding_index; /* of an embedding */
    recurrent_shape recurrent;
    ls_layer_fn fn;   /* of ls_nn_layer() */
    void *arg;        /* of fn; of a sequential its layers */
    size_t arg_bytes; /* the layer owns so many of arg; 0: it is the program's */
};

/* False for NULL, with an error text, and after a failure of the model. */
bool model_can_add(const ls_model *model);

/* A layer with zeroed tensors; parameters are leaves. NULL on failure: the model has
 * been marked. */
ls_layer *model_add(ls_model *model, const char *name, const layer_slot *slots, int n_slots);

/* Makes this thread's last error the model's failure, unless it has one already. Returns NULL. */
ls_layer *model_fail(ls_model *model, ls_status status);

/* What a forward of a layer begins and ends with: false if the tape has failed or there is no
 * layer. Errors between the two name the layer; y, its result, is NULL if there was one. */
bool layer_enter(ls_tape *tape, const ls_layer *layer, const char **outer);
void layer_leave(ls_tape *tape, const ls_layer *layer, const char *outer, const ls_tensor *y);

/* summary.c: a layer begins and ends while ls_model_summary() runs. */
void summary_enter(model_summary *s, const ls_layer *layer);
void summary_leave(model_summary *s, const ls_layer *layer, const ls_tensor *y);

/* The text that ls_model_summary() prints. */
LS_MUST_USE ls_status model_summary_text(ls_model *model, ls_layer_fn forward, void *arg,
                                         ls_tensor *x, text_buf *out);

/* init.c: a failure marks the model. */
void model_fill_constant(ls_model *model, ls_tensor *t, double value);

/* Uniform in [-bound, bound), from the model's generator. */
void model_fill_uniform(ls_model *model, ls_tensor *t, double bound);

/* Normal with mean 0, from the model's generator. */
void model_fill_normal(ls_model *model, ls_tensor *t, double deviation);

#endif
