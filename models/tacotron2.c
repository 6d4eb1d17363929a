/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tacotron2.c - the network of Tacotron2 (tacotron2.h) with public functions only: encoder,
 * location-sensitive attention (Chorowski et al. 2015), decoder, postnet. examples/tacotron2.c
 * trains it.
 *
 * A step of the decoder makes only what the next one reads. What depends on all steps, as the
 * prenet of the targets and the projections, is one operator over the whole mel.
 */
#include "models/tacotron2.h"

#include <lockstep/checkpoint.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 128, MAX_SIZE = 1 << 16, MAX_SEGMENT = 64 };

/* --- configuration --- */

void tacotron2_defaults(tacotron2_config *out)
{
    *out = (tacotron2_config){
        .n_mel_channels = 80,
        .n_symbols = 148,
        .symbols_embedding_dim = 512,
        .encoder_kernel_size = 5,
        .encoder_n_convolutions = 3,
        .encoder_embedding_dim = 512,
        .attention_rnn_dim = 1024,
        .attention_dim = 128,
        .attention_location_n_filters = 32,
        .attention_location_kernel_size = 31,
        .n_frames_per_step = 1,
        .decoder_rnn_dim = 1024,
        .prenet_dim = 256,
        .p_attention_dropout = 0.1,
        .p_decoder_dropout = 0.1,
        .postnet_embedding_dim = 512,
        .postnet_kernel_size = 5,
        .postnet_n_convolutions = 5,
        .p_convolution_dropout = 0.5,
        .p_prenet_dropout = 0.5,
        .checkpoint_steps = 20, // about the square root of the steps of a sentence
    };
}

const char *tacotron2_check(const tacotron2_config *c)
{
    const int64_t sizes[] = {c->n_mel_channels,
                             c->n_symbols,
                             c->symbols_embedding_dim,
                             c->encoder_kernel_size,
                             c->encoder_n_convolutions,
                             c->attention_rnn_dim,
                             c->attention_dim,
                             c->attention_location_n_filters,
                             c->attention_location_kernel_size,
                             c->n_frames_per_step,
                             c->decoder_rnn_dim,
                             c->prenet_dim,
                             c->postnet_embedding_dim,
                             c->postnet_kernel_size,
                             c->postnet_n_convolutions};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i] < 1 || sizes[i] > MAX_SIZE)
            return "sizes must be 1 to 65536";
    if (c->symbols_embedding_dim != c->encoder_embedding_dim)
        return "symbols_embedding_dim and encoder_embedding_dim must be equal";
    if (c->encoder_embedding_dim % 2 != 0)
        return "encoder_embedding_dim must be even: half of it is for each direction of the LSTM";
    if (c->encoder_kernel_size % 2 == 0 || c->attention_location_kernel_size % 2 == 0 ||
        c->postnet_kernel_size % 2 == 0)
        return "the kernel sizes must be odd";
    if (c->encoder_n_convolutions > TACOTRON2_MAX_CONVOLUTIONS || c->postnet_n_convolutions < 2 ||
        c->postnet_n_convolutions > TACOTRON2_MAX_CONVOLUTIONS)
        return "encoder_n_convolutions must be 1 to 16, and postnet_n_convolutions 2 to 16";
    if (c->checkpoint_steps < 0 || c->checkpoint_steps > MAX_SEGMENT)
        return "checkpoint_steps must be 0 to 64";
    return NULL;
}

/* Dimension d of an entry; 0 if the file does not have it. */
static int64_t size_in_file(const ls_checkpoint *file, const char *name, int d)
{
    for (int i = 0; i < ls_checkpoint_count(file); i++) {
        ls_checkpoint_entry e;

        if (ls_checkpoint_entry_at(file, i, &e) == LS_OK && strcmp(e.name, name) == 0)
            return d < e.n_dims ? e.dims[d] : 0;
    }
    return 0;
}

static int64_t convolutions_in_file(const ls_checkpoint *file, const char *part)
{
    char name[NAME_BYTES];
    int64_t n = 0;

    for (; n <= TACOTRON2_MAX_CONVOLUTIONS; n++) {
        (void)snprintf(name, sizeof(name), "%s.convolutions.%d.0.conv.weight", part, (int)n);
        if (size_in_file(file, name, 0) == 0)
            break;
    }
    return n;
}

ls_status tacotron2_read_sizes(const char *weights, tacotron2_config *c)
{
    static const char location[] =
        "decoder.attention_layer.location_layer.location_conv.conv.weight";
    const char *problem;
    ls_checkpoint *f;

    LS_TRY(ls_checkpoint_open_unverified(weights, &f));
    c->n_symbols = size_in_file(f, "embedding.weight", 0);
    c->symbols_embedding_dim = size_in_file(f, "embedding.weight", 1);
    c->encoder_embedding_dim = c->symbols_embedding_dim;
    c->encoder_kernel_size = size_in_file(f, "encoder.convolutions.0.0.conv.weight", 2);
    c->encoder_n_convolutions = convolutions_in_file(f, "encoder");
    c->attention_rnn_dim = size_in_file(f, "decoder.attention_rnn.weight_hh", 1);
    c->attention_dim = size_in_file(f, "decoder.attention_layer.v.linear_layer.weight", 1);
    c->attention_location_n_filters = size_in_file(f, location, 0);
    c->attention_location_kernel_size = size_in_file(f, location, 2);
    c->decoder_rnn_dim = size_in_file(f, "decoder.decoder_rnn.weight_hh", 1);
    c->prenet_dim = size_in_file(f, "decoder.prenet.layers.0.linear_layer.weight", 0);
    c->n_mel_channels = size_in_file(f, "postnet.convolutions.0.0.conv.weight", 1);
    c->n_frames_per_step = size_in_file(f, "decoder.linear_projection.linear_layer.bias", 0) /
                           (c->n_mel_channels > 0 ? c->n_mel_channels : 1);
    c->postnet_embedding_dim = size_in_file(f, "postnet.convolutions.0.0.conv.weight", 0);
    c->postnet_kernel_size = size_in_file(f, "postnet.convolutions.0.0.conv.weight", 2);
    c->postnet_n_convolutions = convolutions_in_file(f, "postnet");
    ls_checkpoint_close(f);
    problem = tacotron2_check(c);
    if (problem == NULL)
        return LS_OK;
    return ls_set_error(LS_EFORMAT, "%s does not have the weights of a Tacotron2 (%s)", weights,
                        problem);
}

/* --- layers --- */

/* Of the weight of layer `name`. */
static void init_xavier(ls_model *model, const char *name, double gain)
{
    char weight[NAME_BYTES + 8];

    (void)snprintf(weight, sizeof(weight), "%s.weight", name);
    ls_model_init(model, weight,
                  &(ls_nn_init_options){.kind = LS_INIT_XAVIER_UNIFORM, .gain = gain});
}

/* Gains of torch.nn.init.calculate_gain(); that of linear and sigmoid is 1. */
static const double gain_linear = 1;
static const double gain_tanh = 5.0 / 3;
static const double gain_relu = 1.4142135623730951;

static ls_layer *add_linear(ls_model *model, const char *name, int64_t in, int64_t out, int no_bias,
                            double gain)
{
    char full[NAME_BYTES];
    ls_layer *layer;

    (void)snprintf(full, sizeof(full), "decoder.%s.linear_layer", name);
    layer = ls_nn_linear(model, full, (int)in, (int)out, no_bias);
    init_xavier(model, full, gain);
    return layer;
}

static ls_layer *add_conv(ls_model *model, const char *name, int64_t in, int64_t out,
                          int64_t kernel, int no_bias, double gain)
{
    const ls_nn_conv1d_options how = {
        .kernel = (int)kernel, .padding = (int)(kernel - 1) / 2, .no_bias = no_bias};
    ls_layer *layer = ls_nn_conv1d(model, name, (int)in, (int)out, &how);

    init_xavier(model, name, gain);
    return layer;
}

/* Convolution i of encoder or postnet with its batch norm. */
static void add_conv_norm(ls_model *model, const tacotron2_config *c, const char *part, int i,
                          const int64_t widths[2], double gain, ls_layer *out[2])
{
    const int is_encoder = strcmp(part, "encoder") == 0;
    const ls_nn_batch_norm_options norm = {.relu = is_encoder};
    const int64_t kernel = is_encoder ? c->encoder_kernel_size : c->postnet_kernel_size;
    char name[NAME_BYTES];

    (void)snprintf(name, sizeof(name), "%s.convolutions.%d.0.conv", part, i);
    out[0] = add_conv(model, name, widths[0], widths[1], kernel, 0, gain);
    (void)snprintf(name, sizeof(name), "%s.convolutions.%d.1", part, i);
    out[1] = ls_nn_batch_norm1d(model, name, (int)widths[1], &norm);
}

static void add_encoder(ls_model *model, tacotron2 *net)
{
    const ls_nn_rnn_options both = {.bidirectional = 1};
    const tacotron2_config *c = &net->config;
    const int64_t width = c->encoder_embedding_dim;

    net->embedding = ls_nn_parameter(model, "embedding.weight", 2,
                                     (int64_t[]){c->n_symbols, c->symbols_embedding_dim});
    init_xavier(model, "embedding", gain_linear);
    for (int i = 0; i < c->encoder_n_convolutions; i++)
        add_conv_norm(model, c, "encoder", i, (int64_t[]){width, width}, gain_relu,
                      net->encoder[i]);
    net->encoder_lstm = ls_nn_lstm(model, "encoder.lstm", (int)width, (int)width / 2, &both);
}

static void add_decoder(ls_model *model, tacotron2 *net)
{
    const tacotron2_config *c = &net->config;
    const int64_t frame = c->n_mel_channels * c->n_frames_per_step;
    const int64_t memory = c->encoder_embedding_dim;
    const int64_t query = c->attention_rnn_dim;
    const int64_t out = c->decoder_rnn_dim + memory;

    net->prenet[0] = add_linear(model, "prenet.layers.0", frame, c->prenet_dim, 1, gain_linear);
    net->prenet[1] =
        add_linear(model, "prenet.layers.1", c->prenet_dim, c->prenet_dim, 1, gain_linear);
    net->attention_rnn = ls_nn_lstm_cell(model, "decoder.attention_rnn",
                                         (int)(c->prenet_dim + memory), (int)query, 0);
    net->query =
        add_linear(model, "attention_layer.query_layer", query, c->attention_dim, 1, gain_tanh);
    net->memory =
        add_linear(model, "attention_layer.memory_layer", memory, c->attention_dim, 1, gain_tanh);
    net->energy = add_linear(model, "attention_layer.v", c->attention_dim, 1, 1, gain_linear);
    net->location_conv = add_conv(
        model, "decoder.attention_layer.location_layer.location_conv.conv", 2,
        c->attention_location_n_filters, c->attention_location_kernel_size, 1, gain_linear);
    net->location_dense =
        add_linear(model, "attention_layer.location_layer.location_dense",
                   c->attention_location_n_filters, c->attention_dim, 1, gain_tanh);
    net->decoder_rnn = ls_nn_lstm_cell(model, "decoder.decoder_rnn", (int)(query + memory),
                                       (int)c->decoder_rnn_dim, 0);
    net->projection = add_linear(model, "linear_projection", out, frame, 0, gain_linear);
    net->gate = add_linear(model, "gate_layer", out, 1, 0, gain_linear);
}

static void add_postnet(ls_model *model, tacotron2 *net)
{
    const tacotron2_config *c = &net->config;
    const int last = (int)c->postnet_n_convolutions - 1;

    for (int i = 0; i <= last; i++) {
        const int64_t widths[] = {i == 0 ? c->n_mel_channels : c->postnet_embedding_dim,
                                  i == last ? c->n_mel_channels : c->postnet_embedding_dim};

        add_conv_norm(model, c, "postnet", i, widths, i == last ? gain_linear : gain_tanh,
                      net->postnet[i]);
    }
}

ls_status tacotron2_create(ls_model *model, const tacotron2_config *config, tacotron2 *net)
{
    *net = (tacotron2){.config = *config};
    add_encoder(model, net);
    add_decoder(model, net);
    add_postnet(model, net);
    if (!config->disable_uniform_initialize_bn_weight)
        ls_model_init(model, "*.convolutions.*.1.weight",
                      &(ls_nn_init_options){.kind = LS_INIT_UNIFORM}); // of 0 to 1
    LS_TRY(ls_model_status(model));
    return ls_tensor_create(ls_tensor_device(net->embedding), LS_F32, 1, (int64_t[]){1},
                            &net->zero);
}

void tacotron2_destroy(tacotron2 *net)
{
    ls_tensor_destroy(net->zero);
    net->zero = NULL;
}

/* --- forward --- */

/* y, which was made from x; no later operator reads x. */
static ls_tensor *replaced(ls_tape *tape, ls_tensor *x, ls_tensor *y)
{
    ls_tape_done(tape, x);
    return y;
}

static ls_tensor *convolve(ls_tape *tape, ls_layer *const layers[2], ls_tensor *x)
{
    ls_tensor *h = ls_forward(tape, layers[0], x);

    return replaced(tape, h, ls_forward(tape, layers[1], h));
}

/* (N,S) -> (N,S,E) */
static ls_tensor *encode(const tacotron2 *net, ls_tape *tape, ls_tensor *text, ls_tensor *lengths)
{
    const tacotron2_config *c = &net->config;
    ls_tensor *h = ls_embedding(tape, net->embedding, text, -1);

    h = ls_transpose(tape, h, 1, 2);
    for (int i = 0; i < c->encoder_n_convolutions; i++) {
        h = convolve(tape, net->encoder[i], h);
        h = ls_dropout(tape, h, c->p_convolution_dropout);
    }
    return ls_forward_sequence(tape, net->encoder_lstm, ls_transpose(tape, h, 1, 2), lengths, NULL,
                               NULL);
}

/* (...,R*B) -> (...,P) */
static ls_tensor *prenet(const tacotron2 *net, ls_tape *tape, ls_tensor *x)
{
    for (int i = 0; i < 2; i++) {
        ls_tensor *h = ls_forward(tape, net->prenet[i], x);

        x = replaced(tape, h, ls_relu(tape, h));
        x = ls_dropout_always(tape, x, net->config.p_prenet_dropout);
    }
    return x;
}

/* What the attention reads in each step. */
typedef struct memory {
    ls_tensor *values;  /* (N,S,E) */
    ls_tensor *keys;    /* (N,S,A) */
    ls_tensor *padding; /* (N,1,S) or NULL */
    int64_t n, length;
} memory;

typedef struct decoder_state {
    ls_rnn_state attention_rnn; /* (N,Q) */
    ls_rnn_state decoder_rnn;   /* (N,D) */
    ls_tensor *weights;         /* (N,1,S), of the last step */
    ls_tensor *total;           /* (N,1,S), the sum over all steps */
    ls_tensor *context;         /* (N,E) */
} decoder_state;

static memory remember(const tacotron2 *net, ls_tape *tape, ls_tensor *values, ls_tensor *padding)
{
    return (memory){.values = values,
                    .keys = ls_forward(tape, net->memory, values),
                    .padding = padding,
                    .n = ls_tensor_dim(values, 0),
                    .length = ls_tensor_dim(values, 1)};
}

static decoder_state first_state(const tacotron2 *net, ls_tape *tape, const memory *m)
{
    ls_tensor *weights = ls_expand(tape, net->zero, 3, (int64_t[]){m->n, 1, m->length});

    return (decoder_state){
        .weights = weights,
        .total = weights,
        .context =
            ls_expand(tape, net->zero, 2, (int64_t[]){m->n, net->config.encoder_embedding_dim}),
    };
}

/* Attention weights and context of a step: energies v tanh(query + location + key). */
static void attend(const tacotron2 *net, ls_tape *tape, const memory *m, decoder_state *s)
{
    ls_tensor *past = ls_concat(tape, (ls_tensor *[]){s->weights, s->total}, 2, 1); /* (N,2,S) */
    ls_tensor *query = ls_forward(tape, net->query, s->attention_rnn.h);            /* (N,A) */
    ls_tensor *h = ls_forward(tape, net->location_conv, past);                      /* (N,F,S) */

    h = replaced(tape, h, ls_transpose(tape, h, 1, 2));
    h = ls_forward(tape, net->location_dense, h); /* (N,S,A) */
    h = replaced(tape, h, ls_add(tape, h, m->keys));
    query = ls_reshape(tape, query, 3, (int64_t[]){m->n, 1, -1});
    h = replaced(tape, h, ls_add(tape, h, query));
    h = replaced(tape, h, ls_tanh(tape, h));
    h = replaced(tape, h, ls_forward(tape, net->energy, h)); /* (N,S,1) */
    h = ls_reshape(tape, h, 3, (int64_t[]){m->n, 1, m->length});
    s->weights = ls_softmax_over(tape, h, 2, m->padding);
    s->total = ls_add(tape, s->total, s->weights);
    s->context = ls_matmul(tape, s->weights, m->values, 0); /* (N,1,E) */
    s->context = ls_reshape(tape, s->context, 2, (int64_t[]){m->n, -1});
}

static void run_cell(ls_tape *tape, ls_layer *cell, ls_tensor *x, ls_tensor *context,
                     ls_rnn_state *state, double dropout)
{
    const ls_rnn_state before = *state;

    x = ls_concat(tape, (ls_tensor *[]){x, context}, 2, 1);
    ls_forward_cell(tape, cell, x, &before, state);
    state->h = ls_dropout(tape, state->h, dropout);
}

/* A step for input x (N,P): what the projections read, (N,1,D+E). */
static ls_tensor *decode(const tacotron2 *net, ls_tape *tape, const memory *m, ls_tensor *x,
                         decoder_state *s)
{
    const tacotron2_config *c = &net->config;
    ls_tensor *h;

    run_cell(tape, net->attention_rnn, x, s->context, &s->attention_rnn, c->p_attention_dropout);
    attend(net, tape, m, s);
    run_cell(tape, net->decoder_rnn, s->attention_rnn.h, s->context, &s->decoder_rnn,
             c->p_decoder_dropout);
    h = ls_concat(tape, (ls_tensor *[]){s->decoder_rnn.h, s->context}, 2, 1);
    return ls_reshape(tape, h, 3, (int64_t[]){m->n, 1, -1});
}

/* (N,T,R*B) -> (N,T,R*B), its sum with the correction of each frame. */
static ls_tensor *apply_postnet(const tacotron2 *net, ls_tape *tape, ls_tensor *mel)
{
    const tacotron2_config *c = &net->config;
    const int last = (int)c->postnet_n_convolutions - 1;
    ls_tensor *h =
        ls_reshape(tape, mel, 3,
                   (int64_t[]){ls_tensor_dim(mel, 0), ls_tensor_dim(mel, 1) * c->n_frames_per_step,
                               c->n_mel_channels});

    h = ls_transpose(tape, h, 1, 2);
    for (int i = 0; i <= last; i++) {
        h = convolve(tape, net->postnet[i], h);
        if (i < last)
            h = replaced(tape, h, ls_tanh(tape, h));
        h = ls_dropout(tape, h, c->p_convolution_dropout);
    }
    h = ls_transpose(tape, h, 1, 2);
    h = ls_reshape(tape, h, ls_tensor_n_dims(mel), ls_tensor_dims(mel));
    return ls_add(tape, mel, h);
}

/* The inputs of all steps, each (N,P): step t reads the targets of step t - 1, step 0 zeros. */
static void teach(const tacotron2 *net, ls_tape *tape, ls_tensor *mel, ls_tensor **inputs,
                  int64_t *ones)
{
    const int64_t steps = ls_tensor_dim(mel, 1);
    ls_tensor *h = ls_pad(tape, mel, (int64_t[]){0, 0, 1, 0}, 4, 0);

    h = prenet(net, tape, ls_slice(tape, h, 1, 0, steps)); /* (N,T,P) */
    for (int64_t t = 0; t < steps; t++)
        ones[t] = 1;
    ls_split(tape, h, 1, ones, (int)steps, inputs);
    for (int64_t t = 0; t < steps; t++)
        inputs[t] = ls_reshape(tape, inputs[t], 2,
                               (int64_t[]){ls_tensor_dim(mel, 0), net->config.prenet_dim});
}

/* The tensors of each step of a mel. */
typedef struct unrolled {
    ls_tensor **inputs;
    ls_tensor **hidden;  /* of each step, or in training of each segment of steps */
    ls_tensor **weights; /* as hidden */
    int64_t *ones;
} unrolled;

static ls_status unrolled_create(size_t steps, unrolled *out)
{
    *out = (unrolled){.inputs = calloc(steps, sizeof(ls_tensor *)),
                      .hidden = calloc(steps, sizeof(ls_tensor *)),
                      .weights = calloc(steps, sizeof(ls_tensor *)),
                      .ones = calloc(steps, sizeof(int64_t))};
    if (out->inputs != NULL && out->hidden != NULL && out->weights != NULL && out->ones != NULL)
        return LS_OK;
    return ls_set_error(LS_ENOMEM, "no memory for the steps of a mel");
}

static void unrolled_destroy(unrolled *u)
{
    free(u->inputs);
    free(u->hidden);
    free(u->weights);
    free(u->ones);
}

/* Decoder steps as a function of ls_tape_checkpoint(): what a segment reads and writes. */
enum { STATE_TENSORS = 7, SEGMENT_INPUTS = 3 + STATE_TENSORS };

typedef struct segment {
    const tacotron2 *net;
    int64_t n, length; /* of the memory */
    int steps;
} segment;

static void list_state(const decoder_state *s, ls_tensor **out)
{
    ls_tensor *const list[STATE_TENSORS] = {
        s->attention_rnn.h, s->attention_rnn.c, s->decoder_rnn.h, s->decoder_rnn.c,
        s->weights,         s->total,           s->context};

    memcpy(out, list, sizeof(list));
}

static decoder_state state_of(ls_tensor *const *list)
{
    return (decoder_state){.attention_rnn = {list[0], list[1]},
                           .decoder_rnn = {list[2], list[3]},
                           .weights = list[4],
                           .total = list[5],
                           .context = list[6]};
}

/* inputs: memory, state, and x of each step; outputs: state, what the projections read, and the
 * attention weights. */
static void run_segment(ls_tape *tape, ls_tensor *const *inputs, ls_tensor **outputs, void *arg)
{
    const segment *g = arg;
    const memory m = {inputs[0], inputs[1], inputs[2], g->n, g->length};
    ls_tensor *hidden[MAX_SEGMENT], *weights[MAX_SEGMENT];
    decoder_state s = state_of(inputs + 3);

    ls_tape_keep_steps(tape, 1); // their products are most of the work
    for (int t = 0; t < g->steps; t++) {
        hidden[t] = decode(g->net, tape, &m, inputs[SEGMENT_INPUTS + t], &s);
        weights[t] = s.weights;
    }
    list_state(&s, outputs);
    outputs[STATE_TENSORS] = ls_concat(tape, hidden, g->steps, 1);
    outputs[STATE_TENSORS + 1] = ls_concat(tape, weights, g->steps, 1);
}

/* The next steps, whose values backward computes again: (N,steps,D+E), *weights (N,steps,S). */
static ls_tensor *checkpoint_steps(const tacotron2 *net, ls_tape *tape, const memory *m,
                                   ls_tensor *const *x, int steps, decoder_state *s,
                                   ls_tensor **weights)
{
    segment g = {net, m->n, m->length, steps};
    ls_tensor *inputs[SEGMENT_INPUTS + MAX_SEGMENT] = {m->values, m->keys, m->padding};
    ls_tensor *outputs[STATE_TENSORS + 2];

    list_state(s, inputs + 3);
    memcpy(inputs + SEGMENT_INPUTS, x, (size_t)steps * sizeof(*x));
    ls_tape_checkpoint(tape, run_segment, &g, sizeof(g), inputs, SEGMENT_INPUTS + steps, outputs,
                       STATE_TENSORS + 2);
    *s = state_of(outputs);
    *weights = outputs[STATE_TENSORS + 1];
    return outputs[STATE_TENSORS];
}

/* All steps, as n pieces of u->hidden and u->weights; returns n. */
static int decode_all(const tacotron2 *net, ls_tape *tape, const memory *m, int steps, unrolled *u)
{
    const int most = (int)net->config.checkpoint_steps;
    decoder_state s = first_state(net, tape, m);
    int n = 0;

    for (int t = 0; t < steps;) {
        const int left = steps - t;
        const int now = most == 0 || !ls_tape_training(tape) ? 1 : left < most ? left : most;

        if (now > 1) {
            u->hidden[n] = checkpoint_steps(net, tape, m, &u->inputs[t], now, &s, &u->weights[n]);
        } else {
            u->hidden[n] = decode(net, tape, m, u->inputs[t], &s);
            u->weights[n] = s.weights;
        }
        n++;
        t += now;
    }
    return n;
}

static void forward(const tacotron2 *net, ls_tape *tape, const tacotron2_batch *batch, unrolled *u,
                    tacotron2_output *out)
{
    const int steps = (int)ls_tensor_dim(batch->mel, 1);
    const memory m = remember(net, tape, encode(net, tape, batch->text, batch->text_lengths),
                              batch->text_padding);
    ls_tensor *h;
    int n;

    teach(net, tape, batch->mel, u->inputs, u->ones);
    n = decode_all(net, tape, &m, steps, u);
    h = ls_concat(tape, u->hidden, n, 1); /* (N,T,D+E) */
    for (int i = 0; i < n; i++)
        ls_tape_done(tape, u->hidden[i]);
    out->mel = ls_forward(tape, net->projection, h);
    out->mel_postnet = apply_postnet(net, tape, out->mel);
    out->gate = ls_forward(tape, net->gate, h);
    if (!ls_tape_training(tape) || batch->guide != NULL)
        out->alignment = ls_concat(tape, u->weights, n, 1);
}

ls_status tacotron2_forward(const tacotron2 *net, ls_tape *tape, const tacotron2_batch *batch,
                            tacotron2_output *out)
{
    unrolled u;
    ls_status st = unrolled_create((size_t)ls_tensor_dim(batch->mel, 1), &u);

    *out = (tacotron2_output){.mel = NULL};
    if (st == LS_OK)
        forward(net, tape, batch, &u, out);
    unrolled_destroy(&u);
    if (st == LS_OK && net->config.mask_padding && batch->mel_padding != NULL) {
        out->mel = ls_masked_fill(tape, out->mel, batch->mel_padding, 0);
        out->mel_postnet = ls_masked_fill(tape, out->mel_postnet, batch->mel_padding, 0);
        out->gate = ls_masked_fill(tape, out->gate, batch->mel_padding, 1000);
    }
    return st == LS_OK ? ls_tape_status(tape) : st;
}

ls_tensor *tacotron2_loss(ls_tape *tape, const tacotron2_output *out, const tacotron2_batch *batch)
{
    ls_tensor *mel = ls_mse_loss(tape, out->mel, batch->mel);
    ls_tensor *postnet = ls_mse_loss(tape, out->mel_postnet, batch->mel);
    ls_tensor *gate = ls_bce_with_logits(tape, out->gate, batch->gate, NULL);
    ls_tensor *loss = ls_add(tape, ls_add(tape, mel, postnet), gate);

    if (batch->guide == NULL)
        return loss;
    return ls_add(tape, loss, ls_sum(tape, ls_mul(tape, out->alignment, batch->guide), NULL, 0, 0));
}

/* --- inference --- */

static ls_status open_text(const tacotron2 *net, const int64_t *ids, size_t n_ids, ls_tensor **text,
                           ls_tensor **length)
{
    ls_device *device = ls_tensor_device(net->zero);
    const int64_t n = (int64_t)n_ids;

    LS_TRY(ls_tensor_create(device, LS_I64, 2, (int64_t[]){1, n}, text));
    LS_TRY(ls_tensor_write(*text, ids, n_ids));
    LS_TRY(ls_tensor_create(device, LS_I64, 1, (int64_t[]){1}, length));
    return ls_tensor_write(*length, &n, 1);
}

/* Decodes until the gate opens; u has the frames of each step in `inputs`. */
static ls_status generate(const tacotron2 *net, ls_tape *tape, const memory *m, double threshold,
                          size_t max_steps, unrolled *u, tacotron2_speech *out)
{
    const int64_t frame = net->config.n_mel_channels * net->config.n_frames_per_step;
    decoder_state s = first_state(net, tape, m);
    ls_tensor *mel = ls_expand(tape, net->zero, 3, (int64_t[]){1, 1, frame});

    while (out->steps < max_steps && !out->has_ended) {
        ls_tensor *x =
            ls_reshape(tape, prenet(net, tape, mel), 2, (int64_t[]){1, net->config.prenet_dim});
        ls_tensor *h = decode(net, tape, m, x, &s);
        double gate;

        mel = ls_forward(tape, net->projection, h);
        h = ls_forward(tape, net->gate, h);
        LS_TRY(ls_tape_status(tape));
        LS_TRY(ls_item(h, &gate));
        u->inputs[out->steps] = mel;
        u->weights[out->steps++] = s.weights;
        out->has_ended = 1 / (1 + exp(-gate)) > threshold;
    }
    return LS_OK;
}

/* Copies a tensor's elements into new memory. */
static ls_status copy_out(ls_tape *tape, const ls_tensor *t, float **out)
{
    LS_TRY(ls_tape_status(tape));
    *out = malloc(ls_tensor_count(t) * sizeof(**out));
    if (*out == NULL)
        return ls_set_error(LS_ENOMEM, "no memory for a mel");
    return ls_tensor_read(t, *out, ls_tensor_count(t));
}

static ls_status speak(const tacotron2 *net, ls_tape *tape, ls_tensor *text, ls_tensor *length,
                       double threshold, size_t max_steps, unrolled *u, tacotron2_speech *out)
{
    const memory m = remember(net, tape, encode(net, tape, text, length), NULL);
    ls_tensor *mel;

    LS_TRY(generate(net, tape, &m, threshold, max_steps, u, out));
    mel = ls_concat(tape, u->inputs, (int)out->steps, 1);
    LS_TRY(copy_out(tape, apply_postnet(net, tape, mel), &out->mel));
    return copy_out(tape, ls_concat(tape, u->weights, (int)out->steps, 1), &out->alignment);
}

ls_status tacotron2_speak(const tacotron2 *net, ls_tape *tape, const int64_t *ids, size_t n_ids,
                          double gate_threshold, int64_t max_steps, uint64_t seed,
                          tacotron2_speech *out)
{
    ls_tensor *text = NULL, *length = NULL;
    unrolled u;
    ls_status st = unrolled_create((size_t)max_steps, &u);

    *out = (tacotron2_speech){.mel = NULL};
    ls_tape_reset(tape);
    ls_tape_set_random(tape, seed, 0);
    if (st == LS_OK)
        st = open_text(net, ids, n_ids, &text, &length);
    if (st == LS_OK)
        st = speak(net, tape, text, length, gate_threshold, (size_t)max_steps, &u, out);
    ls_tape_reset(tape);
    ls_tensor_destroy(text);
    ls_tensor_destroy(length);
    unrolled_destroy(&u);
    if (st != LS_OK)
        tacotron2_speech_free(out);
    return st;
}

void tacotron2_speech_free(tacotron2_speech *speech)
{
    free(speech->mel);
    free(speech->alignment);
    *speech = (tacotron2_speech){.mel = NULL};
}

void tacotron2_guide(const int64_t *steps, const int64_t *n_ids, size_t rows, size_t T, size_t S,
                     double weight, float *guide)
{
    const double width = 0.2;
    int64_t total = 0;

    for (size_t n = 0; n < rows; n++)
        total += steps[n];
    memset(guide, 0, rows * T * S * sizeof(*guide));
    for (size_t n = 0; n < rows; n++)
        for (size_t t = 0; t < (size_t)steps[n]; t++)
            for (size_t s = 0; s < (size_t)n_ids[n]; s++) {
                const double away =
                    ((double)s + 0.5) / (double)n_ids[n] - ((double)t + 0.5) / (double)steps[n];

                guide[(n * T + t) * S + s] =
                    (float)(weight / (double)total * (1 - exp(-away * away / (2 * width * width))));
            }
}

double tacotron2_diagonal(const float *alignment, size_t steps, size_t n_ids, size_t row)
{
    double inside = 0;

    for (size_t t = 0; t < steps; t++) {
        const double time = ((double)t + 0.5) / (double)steps;

        for (size_t s = 0; s < n_ids; s++)
            if (fabs(((double)s + 0.5) / (double)n_ids - time) <= TACOTRON2_BAND)
                inside += (double)alignment[t * row + s];
    }
    return inside / (double)steps;
}
