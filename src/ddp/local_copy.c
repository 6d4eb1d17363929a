/* SPDX-License-Identifier: Apache-2.0 */
/* local_copy.c - see local_copy.h. local_sgd.c calls it. On host devices. */
#include "ddp/local_copy.h"

#include "base/alloc.h"
#include "base/text.h"
#include "tensor/tensor.h"

#include <string.h>

#define ALIGNMENT 64

static ls_status add_items(local_layout *l, const char *prefix, const ls_named *from, int n)
{
    for (int i = 0; i < n; i++) {
        text_buf name = {0};

        text_append(&name, "%s%s", prefix, from[i].name);
        LS_TRY(text_status(&name));
        l->live[l->n] = from[i];
        l->live[l->n].name = name.data;
        l->offsets[l->n] = l->bytes;
        l->bytes += (item_bytes(&from[i]) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        l->n++;
    }
    return LS_OK;
}

ls_status local_layout_open(ls_model *model, ls_optimizer *optimizer, local_layout *out)
{
    int n_model;
    int n_moments;
    const ls_named *state = ls_model_state(model, &n_model);
    const ls_named *moments = ls_optimizer_state(optimizer, &n_moments);
    const size_t n = (size_t)n_model + (size_t)n_moments;

    *out = (local_layout){.optimizer = optimizer,
                          .device = n_model > 0 ? ls_tensor_device(state[0].tensor) : NULL};
    LS_TRY(LS_NEW(&out->live, n + 1, "for a list of %zu tensors", n));
    LS_TRY(LS_NEW(&out->offsets, n + 1, "for a list of %zu tensors", n));
    LS_TRY(add_items(out, "model.", state, n_model));
    return add_items(out, "optimizer.", moments, n_moments);
}

void local_layout_close(local_layout *l)
{
    for (int i = 0; i < l->n; i++)
        ls_free((void *)(uintptr_t)l->live[i].name);
    ls_free(l->live);
    ls_free(l->offsets);
    *l = (local_layout){0};
}

static ls_status wrap_item(const local_layout *l, int i, local_copy *c)
{
    const ls_named *live = &l->live[i];
    char *memory = c->memory + l->offsets[i];
    ls_named item = {.name = live->name};

    if (live->tensor == NULL) {
        item.bytes = memory;
        item.n_bytes = live->n_bytes;
    } else {
        LS_TRY(ls_tensor_wrap(l->device, ls_tensor_dtype(live->tensor),
                              ls_tensor_n_dims(live->tensor), ls_tensor_dims(live->tensor), memory,
                              &item.tensor));
    }
    c->items[c->n++] = item;
    return LS_OK;
}

ls_status local_copy_create(const local_layout *l, local_copy **out)
{
    local_copy *c;
    ls_status st;

    LS_TRY(LS_NEW(&c, 1, "for the state of an island"));
    c->memory = ls_alloc_aligned(ALIGNMENT, l->bytes + ALIGNMENT);
    c->items = ls_calloc((size_t)l->n + 1, sizeof(*c->items));
    st = c->memory != NULL && c->items != NULL
             ? LS_OK
             : ls_fail(LS_ENOMEM, "no memory for the state of an island: %zu bytes", l->bytes);
    for (int i = 0; i < l->n && st == LS_OK; i++)
        st = wrap_item(l, i, c);
    if (st != LS_OK) {
        local_copy_destroy(c);
        return st;
    }
    memset(c->memory, 0, l->bytes);
    *out = c;
    return LS_OK;
}

void local_copy_destroy(local_copy *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < c->n; i++)
        ls_tensor_destroy(c->items[i].tensor);
    ls_free(c->items);
    ls_free(c->memory);
    ls_free(c);
}

static ls_status live_memory(const ls_named *live, void **out)
{
    *out = live->bytes;
    return live->tensor == NULL ? LS_OK : tensor_plain(live->tensor, out);
}

ls_status local_copy_store(const local_layout *l, local_copy *c)
{
    for (int i = 0; i < l->n; i++) {
        void *memory;

        LS_TRY(live_memory(&l->live[i], &memory));
        memcpy(c->memory + l->offsets[i], memory, item_bytes(&l->live[i]));
    }
    return LS_OK;
}

ls_status local_copy_load(const local_layout *l, const local_copy *c)
{
    for (int i = 0; i < l->n; i++) {
        void *memory;

        LS_TRY(live_memory(&l->live[i], &memory));
        memcpy(memory, c->memory + l->offsets[i], item_bytes(&l->live[i]));
        if (l->live[i].tensor != NULL)
            tensor_written(l->live[i].tensor, "ls_local_sgd_enter()");
    }
    return ls_optimizer_loaded(l->optimizer);
}
