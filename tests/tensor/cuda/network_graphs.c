/* SPDX-License-Identifier: Apache-2.0 */
/* network_graphs.c - see network_graphs.h. */
#include "tensor/cuda/network_graphs.h"

#include "base/alloc.h"
#include "devices/cudahost.h"
#include "devices/dnn_plan_host.h"
#include "models/architectures.h"
#include "models/convnet.h"
#include "models/gpt.h"
#include "models/tacotron2.h"

#include <string.h>

/* The device's memory is simulated: the batch of the recorded step is small, and graphs get the
 * real one. No choice of the device depends on it. */
#define RECORDED_BATCH 2
#define DEVICE_BYTES   ((size_t)16 << 30)

enum { TEXT_IDS = 160, MEL_FRAMES = 800, SENTENCES = 48, GPT_TOKENS = 1024 };

typedef struct step {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    int64_t batch; /* of the graphs */
    graph_list *out;
} step;

/* --- recording --- */

static bool has(const graph_list *l, const dnn_graph *g)
{
    for (size_t i = 0; i < l->n; i++) {
        if (memcmp(&l->graphs[i], g, sizeof(*g)) == 0)
            return true;
    }
    return false;
}

static void append(graph_list *l, const dnn_graph *g)
{
    dnn_graph *more = ls_calloc(l->n + 1, sizeof(*more));

    if (more == NULL) {
        l->is_short_of_memory = true;
        return;
    }
    if (l->n > 0)
        memcpy(more, l->graphs, l->n * sizeof(*more));
    more[l->n] = *g;
    ls_free(l->graphs);
    l->graphs = more;
    l->n++;
}

/* Weights (and a bias) have no batch; the tensors of a convolution that have are x, y, and the
 * virtual one that is not yet y. */
static void note_graph(void *arg, const dnn_graph *recorded)
{
    const step *s = arg;
    dnn_graph g = *recorded;
    const int32_t weights = g.nodes[0].tensors[1];

    for (int32_t i = 0; i < g.n_tensors; i++) {
        if (i != weights && g.tensors[i].dims[0] == RECORDED_BATCH)
            g.tensors[i].dims[0] = s->batch;
    }
    if (!has(s->out, &g))
        append(s->out, &g);
}

/* --- networks --- */

static ls_status add_images(step *s, int channels, int side, ls_tensor **images,
                            ls_tensor **targets)
{
    const int64_t dims[4] = {RECORDED_BATCH, channels, side, side};

    LS_TRY(ls_model_status(s->model));
    LS_TRY(ls_tensor_create(s->device, LS_F32, 4, dims, images));
    return ls_tensor_create(s->device, LS_I64, 1, dims, targets);
}

static ls_status backward_of(step *s, ls_tensor *logits, ls_tensor *targets)
{
    return ls_backward(s->tape, ls_cross_entropy(s->tape, logits, targets), 1);
}

static ls_status train_images(step *s, int channels, int side, void *net,
                              ls_tensor *(*forward)(void *net, ls_tape *tape, ls_tensor *images))
{
    ls_tensor *images = NULL;
    ls_tensor *targets = NULL;
    ls_status st = add_images(s, channels, side, &images, &targets);

    if (st == LS_OK)
        st = backward_of(s, forward(net, s->tape, images), targets);
    ls_tensor_destroy(images);
    ls_tensor_destroy(targets);
    return st;
}

static ls_status train_convnet(step *s)
{
    convnet net;

    convnet_create(s->model, 10, &net);
    return train_images(s, 1, 28, &net, convnet_forward);
}

static ls_status train_architecture(step *s, const char *name)
{
    const int side = strcmp(name, "inception_v3") == 0 ? 299 : 224;
    char error[ARCHITECTURE_LIST_BYTES + 128];
    const int number = architecture_find(name, error, sizeof(error));
    network *net;
    ls_status st;

    if (number < 0)
        return ls_fail(LS_EINVAL, "%s", error);
    net = net_create(s->model, number, 1000, side);
    if (net == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %s", name);
    st = train_images(s, 3, side, net, net_forward);
    net_destroy(net);
    return st;
}

static ls_status train_gpt2(step *s)
{
    static const gpt_config small = {.prefix = "",
                                     .layers = 12,
                                     .heads = 12,
                                     .width = 768,
                                     .context = GPT_TOKENS,
                                     .vocab = 50257};
    const int64_t dims[2] = {RECORDED_BATCH, GPT_TOKENS};
    const int64_t n_targets = RECORDED_BATCH * GPT_TOKENS;
    ls_tensor *ids = NULL;
    ls_tensor *targets = NULL;
    ls_status st;
    gpt net;

    gpt_create(s->model, &small, &net);
    LS_TRY(ls_model_status(s->model));
    st = ls_tensor_create(s->device, LS_I64, 2, dims, &ids);
    if (st == LS_OK)
        st = ls_tensor_create(s->device, LS_I64, 1, &n_targets, &targets);
    if (st == LS_OK)
        st = backward_of(s, gpt_forward(&net, s->tape, ids), targets);
    ls_tensor_destroy(ids);
    ls_tensor_destroy(targets);
    return st;
}

static ls_status add_speech(const step *s, const tacotron2_config *c, tacotron2_batch *b)
{
    const int64_t n = RECORDED_BATCH;
    const int64_t steps = MEL_FRAMES / c->n_frames_per_step;
    const int64_t bands = c->n_mel_channels * c->n_frames_per_step;

    LS_TRY(ls_tensor_create(s->device, LS_I64, 2, (int64_t[]){n, TEXT_IDS}, &b->text));
    LS_TRY(ls_tensor_create(s->device, LS_I64, 1, &n, &b->text_lengths));
    LS_TRY(ls_tensor_create(s->device, LS_F32, 3, (int64_t[]){n, steps, bands}, &b->mel));
    return ls_tensor_create(s->device, LS_F32, 3, (int64_t[]){n, steps, 1}, &b->gate);
}

static ls_status train_tacotron2(step *s)
{
    tacotron2_batch batch = {.text = NULL};
    tacotron2_output result;
    tacotron2_config config;
    tacotron2 net = {.zero = NULL};
    ls_status st;

    s->batch = SENTENCES;
    tacotron2_defaults(&config);
    LS_TRY(tacotron2_create(s->model, &config, &net));
    st = ls_model_status(s->model);
    if (st == LS_OK)
        st = add_speech(s, &config, &batch);
    if (st == LS_OK)
        st = tacotron2_forward(&net, s->tape, &batch, &result);
    if (st == LS_OK)
        st = ls_backward(s->tape, tacotron2_loss(s->tape, &result, &batch), 1);
    ls_tensor_destroy(batch.text);
    ls_tensor_destroy(batch.text_lengths);
    ls_tensor_destroy(batch.mel);
    ls_tensor_destroy(batch.gate);
    tacotron2_destroy(&net);
    return st;
}

static ls_status train(step *s, const char *name)
{
    if (strcmp(name, "convnet") == 0)
        return train_convnet(s);
    if (strcmp(name, "gpt2") == 0)
        return train_gpt2(s);
    if (strcmp(name, "tacotron2") == 0)
        return train_tacotron2(s);
    return train_architecture(s, name);
}

static const char *const others[] = {"convnet", "gpt2", "tacotron2"};

const char *network_name(int i)
{
    const int n = (int)LS_COUNT_OF(others);

    return i < n ? others[i] : architecture_name(i - n);
}

/* --- the device --- */

static ls_status find_state(dnn_host **out)
{
    gpu_host *card = cudahost();
    void *symbol = card == NULL ? NULL : cudahost_symbol(DNN_HOST_STATE);
    dnn_host_state_fn get;

    if (symbol == NULL)
        return LS_EUNSUPPORTED;
    memcpy(&get, &symbol, sizeof(get));
    card->is_dry = true;
    card->total_bytes = DEVICE_BYTES;
    *out = get();
    return LS_OK;
}

static ls_status run(step *s, const char *name, ls_dtype compute)
{
    const ls_device_options options = {.size = sizeof(options), .name = "cudahost"};

    LS_TRY(ls_device_open(&options, &s->device));
    LS_TRY(ls_model_create(s->device, 1, &s->model));
    LS_TRY(ls_tape_create(s->device, &s->tape));
    LS_TRY(ls_tape_set_compute(s->tape, compute));
    ls_tape_set_random(s->tape, 1, 0);
    return train(s, name);
}

ls_status network_graphs(const char *name, ls_dtype compute, int64_t batch, graph_list *out)
{
    step s = {.batch = batch, .out = out};
    dnn_host *state = NULL;
    ls_status st;

    LS_TRY(find_state(&state));
    state->on_graph = note_graph;
    state->arg = &s;
    st = run(&s, name, compute);
    if (st == LS_OK && out->is_short_of_memory)
        st = ls_fail(LS_ENOMEM, "no memory for the graphs of %s", name);
    state->on_graph = NULL;
    ls_tape_destroy(s.tape);
    ls_model_destroy(s.model);
    (void)ls_device_close(s.device); // what did not run has no results, of which it may complain
    return st;
}
