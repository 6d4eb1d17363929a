/* SPDX-License-Identifier: Apache-2.0 */
/* state_copy.c - see state_copy.h. */
#include "train/state/state_copy.h"

#include "base/alloc.h"
#include "tensor/tensor.h"

#include <string.h>

void state_copy_free(state_copy *c)
{
    for (int i = 0; i < c->list.n; i++) {
        ls_tensor_destroy(c->list.items[i].tensor);
        ls_free(c->list.items[i].bytes);
    }
    name_list_free(&c->list);
    c->is_complete = false;
}

size_t state_copy_bytes(const name_list *list)
{
    size_t bytes = 0;

    for (int i = 0; i < list->n; i++)
        bytes += item_bytes(&list->items[i]);
    return bytes;
}

static ls_status make_item(const ls_named *from, ls_named *to)
{
    const ls_tensor *t = from->tensor;

    if (t != NULL)
        return tensor_create_undefined(t->device, t->dtype, t->n_dims, t->dims, &to->tensor);
    to->bytes = ls_calloc(from->n_bytes + 1, 1);
    return to->bytes != NULL ? LS_OK : ls_fail(LS_ENOMEM, "no memory for a copy of %s", to->name);
}

static ls_status make_items(state_copy *c, const name_list *from)
{
    ls_status st;

    state_copy_free(c);
    st = name_list_add(&c->list, "", from->items, from->n);
    for (int i = 0; i < c->list.n; i++) { // the list must own nothing of the original
        c->list.items[i].tensor = NULL;
        c->list.items[i].bytes = NULL;
    }
    LS_TRY(st);
    for (int i = 0; i < c->list.n; i++)
        LS_TRY(make_item(&from->items[i], &c->list.items[i]));
    return LS_OK;
}

ls_status state_copy_take(state_copy *c, const name_list *from)
{
    ls_status st = LS_OK;

    c->is_complete = false;
    if (c->list.n != from->n)
        st = make_items(c, from);
    for (int i = 0; i < from->n && st == LS_OK; i++) {
        const ls_named *item = &from->items[i];

        if (item->tensor != NULL)
            st = ls_tensor_copy(c->list.items[i].tensor, item->tensor);
        else
            memcpy(c->list.items[i].bytes, item->bytes, item->n_bytes);
    }
    if (st != LS_OK) {
        state_copy_free(c);
        return st;
    }
    c->is_complete = true;
    return LS_OK;
}
