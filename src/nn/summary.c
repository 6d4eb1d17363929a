/* SPDX-License-Identifier: Apache-2.0 */
/*
 * summary.c - ls_model_summary(): runs a model once and prints its layers in the order of their
 * use, as torchinfo does. layer_enter() and layer_leave() call it for each layer that runs.
 */
#include "nn/model.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

enum { INDENT = 2, GAP = 3 };

/* One use of a layer. */
typedef struct summary_row {
    const ls_layer *layer;
    int depth; /* number of layers that it is inside of */
    bool has_layers;
    bool is_repeated;
    size_t bytes; /* of its result */
    char shape[TENSOR_TEXT_BYTES];
} summary_row;

struct model_summary {
    summary_row *rows;
    int n;
    int capacity;
    int depth;     /* number of layers that are running */
    ls_status why; /* the first failure to add a row */
};

static bool is_used(const model_summary *s, const ls_layer *layer)
{
    for (int i = 0; i < s->n; i++) {
        if (s->rows[i].layer == layer)
            return true;
    }
    return false;
}

void summary_enter(model_summary *s, const ls_layer *layer)
{
    const int depth = s->depth++;

    if (s->n == s->capacity) {
        const int wanted = s->capacity == 0 ? 64 : 2 * s->capacity;
        summary_row *grown = ls_realloc(s->rows, (size_t)wanted, sizeof(*grown));

        if (grown == NULL) {
            s->why = ls_fail(LS_ENOMEM, "no memory for a summary of %d layers", wanted);
            return;
        }
        s->rows = grown;
        s->capacity = wanted;
    }
    for (int i = s->n - 1; i >= 0 && s->rows[i].depth >= depth - 1; i--) {
        if (s->rows[i].depth == depth - 1) {
            s->rows[i].has_layers = true;
            break;
        }
    }
    s->rows[s->n] = (summary_row){.layer = layer, .depth = depth, .is_repeated = is_used(s, layer)};
    s->n++;
}

void summary_leave(model_summary *s, const ls_layer *layer, const ls_tensor *y)
{
    s->depth--;
    for (int i = s->n - 1; i >= 0; i--) {
        summary_row *row = &s->rows[i];

        if (row->layer != layer || row->depth != s->depth)
            continue;
        row->bytes = ls_tensor_count(y) * ls_dtype_size(ls_tensor_dtype(y));
        (void)tensor_dims_text(row->shape, sizeof(row->shape), y);
        return;
    }
}

/* --- the table --- */

/* Elements and bytes of parameters. */
typedef struct amount {
    size_t count;
    size_t trainable;
    size_t bytes;
} amount;

static void add_tensor(amount *a, const ls_tensor *t)
{
    a->count += ls_tensor_count(t);
    a->trainable += autograd_is_frozen(t) ? 0 : ls_tensor_count(t);
    a->bytes += ls_tensor_count(t) * ls_dtype_size(ls_tensor_dtype(t));
}

static bool is_parameter(const ls_model *model, const ls_tensor *t)
{
    for (int i = 0; i < model->parameters.n; i++) {
        if (model->parameters.items[i].tensor == t)
            return true;
    }
    return false;
}

static amount parameters_of(const ls_layer *layer)
{
    amount a = {0};

    for (int i = 0; i < layer->n_tensors; i++) {
        if (is_parameter(layer->model, layer->tensors[i]))
            add_tensor(&a, layer->tensors[i]);
    }
    return a;
}

/* "1200"; "(1200)" when all are frozen; "--" for none. */
static void append_parameters(text_buf *out, const ls_layer *layer, const char *remark)
{
    const amount a = parameters_of(layer);
    const bool is_frozen = a.count > 0 && a.trainable == 0;

    if (remark[0] == 0 && a.count == 0)
        text_append(out, "--\n");
    else if (a.count == 0)
        text_append(out, "%s\n", remark);
    else
        text_append(out, "%s%zu%s%s%s\n", is_frozen ? "(" : "", a.count, is_frozen ? ")" : "",
                    remark[0] == 0 ? "" : "   ", remark);
}

static void append_row(text_buf *out, const int widths[2], int depth, const char *name,
                       const char *shape)
{
    text_append(out, "%*s%-*s%-*s", depth * INDENT, "", widths[0] - depth * INDENT, name, widths[1],
                shape);
}

/* Parameters outside of layers, and layers that did not run. */
static void append_rest(text_buf *out, const ls_model *model, const model_summary *s,
                        const int widths[2])
{
    for (const ls_layer *l = model->first; l != NULL; l = l->next) {
        char shape[TENSOR_TEXT_BYTES] = "--";

        if (l->n_tensors == 0 || is_used(s, l))
            continue;
        if (l->forward == NULL)
            (void)tensor_dims_text(shape, sizeof(shape), l->tensors[0]);
        append_row(out, widths, 0, l->name, shape);
        append_parameters(out, l,
                          l->forward != NULL                   ? "did not run"
                          : is_parameter(model, l->tensors[0]) ? "parameter"
                                                               : "buffer");
    }
}

static int longer(int a, size_t b)
{
    return (int)b > a ? (int)b : a;
}

static void find_widths(const ls_model *model, const model_summary *s, int widths[2])
{
    widths[0] = (int)strlen("layer");
    widths[1] = (int)strlen("output shape");
    for (int i = 0; i < s->n; i++) {
        const summary_row *row = &s->rows[i];

        widths[0] = longer(widths[0], strlen(row->layer->name) + (size_t)(row->depth * INDENT));
        widths[1] = longer(widths[1], strlen(row->shape));
    }
    for (const ls_layer *l = model->first; l != NULL; l = l->next)
        widths[0] = longer(widths[0], strlen(l->name));
    widths[0] += GAP;
    widths[1] += GAP;
}

static void append_sums(text_buf *out, const ls_model *model, const model_summary *s,
                        const ls_tensor *x)
{
    amount parameters = {0};
    amount buffers = {0};
    size_t results = 0;
    char bytes[4][32];

    for (int i = 0; i < model->parameters.n; i++)
        add_tensor(&parameters, model->parameters.items[i].tensor);
    for (int i = 0; i < model->buffers.n; i++)
        add_tensor(&buffers, model->buffers.items[i].tensor);
    for (int i = 0; i < s->n; i++)
        results += s->rows[i].has_layers ? 0 : s->rows[i].bytes;
    text_append(out, "parameters: %zu, trainable: %zu, frozen: %zu\n", parameters.count,
                parameters.trainable, parameters.count - parameters.trainable);
    text_append(out, "parameters: %s, buffers: %s, input: %s, results of layers: %s\n",
                text_bytes(bytes[0], sizeof(bytes[0]), parameters.bytes),
                text_bytes(bytes[1], sizeof(bytes[1]), buffers.bytes),
                text_bytes(bytes[2], sizeof(bytes[2]),
                           ls_tensor_count(x) * ls_dtype_size(ls_tensor_dtype(x))),
                text_bytes(bytes[3], sizeof(bytes[3]), results));
}

static void append_table(text_buf *out, const ls_model *model, const model_summary *s,
                         const ls_tensor *x)
{
    int widths[2];

    find_widths(model, s, widths);
    append_row(out, widths, 0, "layer", "output shape");
    text_append(out, "parameters\n");
    for (int i = 0; i < s->n; i++) {
        const summary_row *row = &s->rows[i];

        append_row(out, widths, row->depth, row->layer->name, row->shape);
        append_parameters(out, row->layer, row->is_repeated ? "repeated" : "");
    }
    append_rest(out, model, s, widths);
    append_sums(out, model, s, x);
}

/* --- running --- */

static ls_status run_once(ls_model *model, ls_layer_fn forward, void *arg, ls_tensor *x)
{
    ls_tape *tape;
    ls_status st;

    LS_TRY(ls_tape_create(model->device, &tape));
    ls_tape_set_training(tape, 0);
    if (forward(arg, tape, x) == NULL && !autograd_has_failed(tape))
        (void)autograd_fail(tape, ls_fail(LS_EINVAL, "the function returned NULL"));
    st = ls_tape_status(tape);
    ls_tape_destroy(tape);
    return st;
}

ls_status model_summary_text(ls_model *model, ls_layer_fn forward, void *arg, ls_tensor *x,
                             text_buf *out)
{
    model_summary s = {.why = LS_OK};
    ls_status st = ls_model_status(model);

    if (st == LS_OK) {
        model->summary = &s;
        st = run_once(model, forward, arg, x);
        model->summary = NULL;
    }
    if (st == LS_OK)
        st = s.why;
    if (st == LS_OK) {
        append_table(out, model, &s, x);
        st = text_status(out);
    }
    ls_free(s.rows);
    return st;
}

ls_status ls_model_summary(ls_model *model, ls_layer_fn forward, void *arg, ls_tensor *x)
{
    text_buf text = {0};
    ls_status st;

    LS_TRY(LS_GIVEN(model));
    LS_TRY(LS_GIVEN(forward));
    LS_TRY(LS_GIVEN(x));
    st = ls_context(model_summary_text(model, forward, arg, x, &text), "summary");
    if (st == LS_OK && fputs(text_str(&text), stdout) == EOF)
        st = ls_fail(LS_EIO, "summary: standard output cannot be written");
    text_free(&text);
    return st;
}
