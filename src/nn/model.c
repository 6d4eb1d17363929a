/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.c - models: their layers, and the lists of named tensors that optimizers, ddp and
 * checkpoints read.
 */
#include "nn/model.h"

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text.h"
#include "tensor/device.h"

#include <string.h>

ls_status ls_model_create(ls_device *device, uint64_t seed, ls_model **out)
{
    ls_model *model;

    LS_TRY(LS_GIVEN(out));
    if (device == NULL)
        return ls_fail(LS_EINVAL, "model: the device is NULL");
    LS_TRY(LS_NEW(&model, 1, "for a model"));
    model->device = device;
    device->n_users++;
    ls_rng_seed(&model->rng, seed);
    *out = model;
    return LS_OK;
}

static void layer_free(ls_layer *layer)
{
    for (int i = 0; i < layer->n_tensors; i++) {
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there are n_tensors
        ls_tensor_destroy(layer->tensors[i]);
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): there are n_tensors
        ls_free(layer->tensor_names[i]);
    }
    if (layer->arg_bytes > 0)
        ls_free(layer->arg);
    ls_free(layer->tensors);
    ls_free(layer->tensor_names);
    ls_free(layer);
}

void ls_model_destroy(ls_model *model)
{
    if (model == NULL)
        return;
    while (model->first != NULL) {
        ls_layer *layer = model->first;

        model->first = layer->next;
        layer_free(layer);
    }
    ls_free(model->parameters.items);
    ls_free(model->buffers.items);
    ls_free(model->state.items);
    for (int i = 0; i < model->n_blocks; i++)
        ls_tensor_destroy(model->blocks[i].memory);
    ls_free(model->blocks);
    model->device->n_users--;
    ls_free(model);
}

ls_status ls_model_status(ls_model *model)
{
    LS_TRY(LS_GIVEN(model));
    return model->failure == LS_OK ? LS_OK : ls_fail(model->failure, "%s", model->failure_text);
}

bool model_can_add(const ls_model *model)
{
    if (model == NULL)
        (void)ls_fail(LS_EINVAL, "layer: the model is NULL");
    return model != NULL && model->failure == LS_OK;
}

ls_layer *model_fail(ls_model *model, ls_status status)
{
    if (model->failure == LS_OK) {
        model->failure = status;
        (void)text_format(model->failure_text, sizeof(model->failure_text), "%s", ls_last_error());
    }
    return NULL;
}

/* --- lists --- */

static const ls_named *give_list(const named_list *list, int *n)
{
    if (n == NULL)
        return NULL;
    *n = list == NULL ? 0 : list->n;
    return list == NULL ? NULL : list->items;
}

const ls_named *ls_model_parameters(const ls_model *model, int *n)
{
    return give_list(model == NULL ? NULL : &model->parameters, n);
}

const ls_named *ls_model_buffers(const ls_model *model, int *n)
{
    return give_list(model == NULL ? NULL : &model->buffers, n);
}

const ls_named *ls_model_state(const ls_model *model, int *n)
{
    return give_list(model == NULL ? NULL : &model->state, n);
}

void ls_model_zero_grad(ls_model *model)
{
    if (model == NULL)
        return;
    for (int i = 0; i < model->parameters.n; i++)
        ls_zero_grad(model->parameters.items[i].tensor);
}

ls_status ls_model_freeze(ls_model *model, const char *pattern, int frozen, int *n_matched)
{
    int n = 0;

    LS_TRY(LS_GIVEN(model));
    LS_TRY(LS_GIVEN(pattern));
    for (int i = 0; i < model->parameters.n; i++) {
        const ls_named *p = &model->parameters.items[i];

        if (!text_matches(p->name, pattern))
            continue;
        n++;
        if (frozen)
            autograd_freeze(p->tensor);
        else
            LS_TRY(ls_require_grad(p->tensor));
    }
    if (n_matched != NULL)
        *n_matched = n;
    return n > 0 ? LS_OK : ls_fail(LS_ENOTFOUND, "no parameter matches %s", pattern);
}

static ls_status list_reserve(named_list *list, int more)
{
    int wanted = list->capacity == 0 ? 16 : list->capacity;
    ls_named *grown;

    while (wanted < list->n + more)
        wanted *= 2;
    if (wanted == list->capacity)
        return LS_OK;
    grown = ls_realloc(list->items, (size_t)wanted, sizeof(*grown));
    if (grown == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d named tensors", wanted);
    list->items = grown;
    list->capacity = wanted;
    return LS_OK;
}

static void list_append_tensor(named_list *list, const char *name, ls_tensor *t)
{
    list->items[list->n++] = (ls_named){.name = name, .tensor = t};
}

/* --- memory of buffers --- */

#define BLOCK_BYTES     ((size_t)256 << 10) /* ResNet-50 has 216 KiB of buffers */
#define BLOCK_ALIGNMENT ((size_t)64)

const buffer_block *model_buffer_blocks(const ls_model *model, int *n)
{
    *n = model->n_blocks;
    return model->blocks;
}

static ls_status add_block(ls_model *model, size_t bytes)
{
    const int64_t size = (int64_t)(bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES);

    LS_TRY(LS_RESIZE(&model->blocks, (size_t)model->n_blocks + 1, "for a list of %d blocks",
                     model->n_blocks + 1));
    model->blocks[model->n_blocks] = (buffer_block){.used = 0};
    LS_TRY(
        ls_tensor_create(model->device, LS_U8, 1, &size, &model->blocks[model->n_blocks].memory));
    model->n_blocks++;
    return LS_OK;
}

/* Zeros, after the buffers of the last block or in a new one. */
static ls_status create_buffer(ls_model *model, const layer_slot *slot, ls_tensor **out)
{
    size_t bytes = ls_dtype_size(slot->type);
    buffer_block *last;
    size_t at;

    for (int i = 0; i < slot->n_dims; i++)
        LS_TRY(ls_mul_size(bytes, (size_t)slot->dims[i], &bytes));
    last = model->n_blocks == 0 ? NULL : &model->blocks[model->n_blocks - 1];
    at = last == NULL ? 0 : (last->used + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
    if (last == NULL || at > tensor_bytes(last->memory) ||
        bytes > tensor_bytes(last->memory) - at) {
        LS_TRY(add_block(model, bytes));
        last = &model->blocks[model->n_blocks - 1];
        at = 0;
    }
    LS_TRY(tensor_create_part(last->memory, at, slot->type, slot->n_dims, slot->dims, out));
    last->used = at + bytes;
    return LS_OK;
}

/* --- adding a layer --- */

static ls_status check_name(const ls_model *model, const char *name)
{
    if (name == NULL || name[0] == '\0')
        return ls_fail(LS_EINVAL, "a layer needs a name");
    if (strlen(name) >= LAYER_NAME_BYTES)
        return ls_fail(LS_EINVAL, "the name is longer than %d bytes", LAYER_NAME_BYTES - 1);
    for (const ls_layer *l = model->first; l != NULL; l = l->next) {
        if (text_equal(l->name, name))
            return ls_fail(LS_EINVAL, "the model has a layer of this name");
    }
    return LS_OK;
}

static ls_status make_tensor(ls_layer *layer, const layer_slot *slot)
{
    const int i = layer->n_tensors;
    text_buf full = {0};

    text_append(&full, slot->suffix == NULL ? "%s" : "%s.%s", layer->name, slot->suffix);
    if (text_status(&full) != LS_OK) {
        text_free(&full);
        return ls_fail(LS_ENOMEM, "no memory for a name");
    }
    layer->tensor_names[i] = full.data;
    layer->n_tensors++;
    if (slot->is_buffer)
        return create_buffer(layer->model, slot, &layer->tensors[i]);
    LS_TRY(ls_tensor_create(layer->model->device, slot->type, slot->n_dims, slot->dims,
                            &layer->tensors[i]));
    return ls_require_grad(layer->tensors[i]);
}

static ls_status make_layer(ls_model *model, const char *name, const layer_slot *slots, int n_slots,
                            ls_layer **out)
{
    const size_t capacity = n_slots > LAYER_TENSORS ? (size_t)n_slots : LAYER_TENSORS;
    ls_layer *layer;
    ls_status st = LS_OK;

    LS_TRY(LS_NEW(&layer, 1, "for a layer"));
    // NOLINTBEGIN(bugprone-sizeof-expression): the elements are pointers
    layer->tensors = ls_calloc(capacity, sizeof(*layer->tensors));
    layer->tensor_names = ls_calloc(capacity, sizeof(*layer->tensor_names));
    // NOLINTEND(bugprone-sizeof-expression)
    if (layer->tensors == NULL || layer->tensor_names == NULL) {
        layer_free(layer);
        return ls_fail(LS_ENOMEM, "no memory for the %zu tensors of a layer", capacity);
    }
    layer->model = model;
    (void)text_format(layer->name, sizeof(layer->name), "%s", name);
    for (int i = 0; i < n_slots && st == LS_OK; i++)
        st = make_tensor(layer, &slots[i]);
    if (st != LS_OK) {
        layer_free(layer);
        return st;
    }
    *out = layer;
    return LS_OK;
}

/* Appends a complete layer to the model's lists; list_reserve() has been called. */
static void register_layer(ls_model *model, ls_layer *layer, const layer_slot *slots)
{
    for (int i = 0; i < layer->n_tensors; i++) {
        list_append_tensor(slots[i].is_buffer ? &model->buffers : &model->parameters,
                           layer->tensor_names[i], layer->tensors[i]);
        list_append_tensor(&model->state, layer->tensor_names[i], layer->tensors[i]);
    }
    if (model->last == NULL)
        model->first = layer;
    else
        model->last->next = layer;
    model->last = layer;
}

ls_layer *model_add(ls_model *model, const char *name, const layer_slot *slots, int n_slots)
{
    ls_layer *layer = NULL;
    ls_status st;

    if (model->failure != LS_OK)
        return NULL;
    st = check_name(model, name);
    if (st == LS_OK)
        st = list_reserve(&model->parameters, n_slots);
    if (st == LS_OK)
        st = list_reserve(&model->buffers, n_slots);
    if (st == LS_OK)
        st = list_reserve(&model->state, n_slots);
    if (st == LS_OK)
        st = make_layer(model, name, slots, n_slots, &layer);
    if (st != LS_OK)
        return model_fail(model, ls_context(st, "layer %s", name == NULL ? "NULL" : name));
    LS_ASSERT(layer != NULL);
    register_layer(model, layer, slots);
    return layer;
}

/* The tensor of a layer that has the tensor's name. */
static ls_tensor *add_tensor(ls_model *model, const char *name, layer_slot slot,
                             const int64_t *dims)
{
    ls_layer *layer;

    if (!model_can_add(model))
        return NULL;
    if (slot.n_dims < 0 || slot.n_dims > LS_MAX_DIMS || (slot.n_dims > 0 && dims == NULL)) {
        (void)model_fail(model, ls_fail(LS_EINVAL, "%s %s: %d dimensions%s; 0 to %d are supported",
                                        slot.is_buffer ? "buffer" : "parameter",
                                        name == NULL ? "NULL" : name, slot.n_dims,
                                        dims == NULL ? " at NULL" : "", LS_MAX_DIMS));
        return NULL;
    }
    for (int i = 0; i < slot.n_dims; i++)
        slot.dims[i] = dims[i];
    layer = model_add(model, name, &slot, 1);
    return layer == NULL ? NULL : layer->tensors[0];
}

ls_tensor *ls_nn_parameter(ls_model *model, const char *name, int n_dims, const int64_t *dims)
{
    return add_tensor(model, name, (layer_slot){.type = LS_F32, .n_dims = n_dims}, dims);
}

ls_tensor *ls_nn_buffer(ls_model *model, const char *name, ls_dtype type, int n_dims,
                        const int64_t *dims)
{
    return add_tensor(model, name, (layer_slot){.is_buffer = true, .type = type, .n_dims = n_dims},
                      dims);
}

ls_tensor *ls_layer_tensor(const ls_layer *layer, const char *name)
{
    if (layer == NULL || name == NULL)
        return NULL;
    for (int i = 0; i < layer->n_tensors; i++) {
        if (text_equal(layer->tensor_names[i] + strlen(layer->name) + 1, name))
            return layer->tensors[i];
    }
    return NULL;
}
