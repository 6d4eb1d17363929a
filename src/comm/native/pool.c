/* SPDX-License-Identifier: Apache-2.0 */
/* pool.c - transfers, queued messages and early messages: taken from free lists, so that warm operations allocate nothing. */
#include "comm/native/native.h"

#include "base/alloc.h"

#define CHARGE(bytes) (MESSAGE_HEADER_BYTES + (uint64_t)(bytes))

static void *take(list_node *list, size_t bytes)
{
    list_node *node = list->next;

    if (list_empty(list))
        return ls_calloc(1, bytes);
    list_remove(node);
    return node; // every recycled struct begins with its node
}

transfer *pool_new_transfer(native_state *s)
{
    transfer *t = take(&s->free_transfers, sizeof(*t));

    if (t != NULL)
        *t = (transfer){0};
    return t;
}

void pool_free_transfer(native_state *s, transfer *t)
{
    list_append(&s->free_transfers, &t->node);
}

void pool_drop_transfer(native_state *s, transfer *t)
{
    if (!t->is_direct)
        pool_free_transfer(s, t);
}

link_item *pool_new_item(native_state *s)
{
    link_item *item = take(&s->free_items, sizeof(*item));

    if (item != NULL)
        *item = (link_item){0};
    return item;
}

void pool_free_item(native_state *s, link_item *item)
{
    ls_free(item->copy);
    list_append(&s->free_items, &item->node);
}

static int size_class(size_t bytes)
{
    int c = 0;

    while (((size_t)64 << c) < bytes)
        c++;
    return c;
}

unexpected_message *pool_new_unexpected(native_state *s, size_t bytes)
{
    const int c = size_class(bytes);
    unexpected_message *made;

    LS_ASSERT(c < NATIVE_SIZE_CLASS);
    made = take(&s->free_unexpected[c], sizeof(*made) + ((size_t)64 << c));
    if (made == NULL)
        return NULL;
    *made = (unexpected_message){.size_class = c, .data = (uint8_t *)(made + 1)};
    return made;
}

void pool_free_unexpected(unexpected_message *c)
{
    native_state *s = c->peer->state;

    list_remove(&c->node);
    c->peer->n_unexpected--;
    c->peer->unexpected_bytes -= c->m.is_charged ? CHARGE(c->m.bytes) : 0;
    if (c->peer->receiving_unexpected == c) { // its payload is still coming: drop that
        c->peer->receiving_unexpected = NULL;
        link_drop_payload(c->peer->link);
    }
    list_append(&s->free_unexpected[c->size_class], &c->node);
}

static void free_list(list_node *list)
{
    while (!list_empty(list)) {
        list_node *node = list->next;

        list_remove(node);
        ls_free(node);
    }
}

void pool_free(native_state *s)
{
    while (!list_empty(&s->unexpected))
        pool_free_unexpected(list_entry(s->unexpected.next, unexpected_message, node));
    for (int i = 0; i < s->size && s->peers != NULL; i++)
        while (!list_empty(&s->peers[i].unexpected))
            pool_free_unexpected(list_entry(s->peers[i].unexpected.next, unexpected_message, node));
    free_list(&s->free_items);
    free_list(&s->free_transfers);
    for (int c = 0; c < NATIVE_SIZE_CLASS; c++)
        free_list(&s->free_unexpected[c]);
}
