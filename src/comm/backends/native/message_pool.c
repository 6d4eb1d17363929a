/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message_pool.c - transfers, queued messages and unexpected messages from free lists. Every
 * recycled struct begins with its list node. match.c, direct.c and exec.c take from it, under the
 * engine's lock.
 */
#include "comm/backends/native/message_pool.h"

#include "base/alloc.h"

static void *take(list_node *list, size_t bytes)
{
    list_node *node = list->next;

    if (list_empty(list))
        return ls_calloc(1, bytes);
    list_remove(node);
    return node;
}

transfer *message_pool_new_transfer(message_pool *p)
{
    transfer *t = take(&p->transfers, sizeof(*t));

    if (t != NULL)
        *t = (transfer){0};
    return t;
}

void message_pool_free_transfer(message_pool *p, transfer *t)
{
    list_append(&p->transfers, &t->node);
}

void message_pool_drop_transfer(message_pool *p, transfer *t)
{
    if (!t->is_direct)
        message_pool_free_transfer(p, t);
}

link_item *message_pool_new_item(message_pool *p)
{
    link_item *item = take(&p->items, sizeof(*item));

    if (item != NULL)
        *item = (link_item){0};
    return item;
}

void message_pool_free_item(message_pool *p, link_item *item)
{
    ls_free(item->copy);
    list_append(&p->items, &item->node);
}

static int size_class(size_t bytes)
{
    int c = 0;

    while (((size_t)64 << c) < bytes)
        c++;
    return c;
}

unexpected_message *message_pool_new_unexpected(message_pool *p, size_t bytes)
{
    const int c = size_class(bytes);
    unexpected_message *u;

    LS_ASSERT(c < POOL_SIZE_CLASSES);
    u = take(&p->unexpected[c], sizeof(*u) + ((size_t)64 << c));
    if (u != NULL)
        *u = (unexpected_message){.size_class = c, .data = (uint8_t *)(u + 1)};
    return u;
}

void message_pool_free_unexpected(message_pool *p, unexpected_message *u)
{
    list_append(&p->unexpected[u->size_class], &u->node);
}

void message_pool_init(message_pool *p)
{
    list_init(&p->items);
    list_init(&p->transfers);
    for (int c = 0; c < POOL_SIZE_CLASSES; c++)
        list_init(&p->unexpected[c]);
}

static void free_list(list_node *list)
{
    while (!list_empty(list)) {
        list_node *node = list->next;

        list_remove(node);
        ls_free(node);
    }
}

void message_pool_destroy(message_pool *p)
{
    free_list(&p->items);
    free_list(&p->transfers);
    for (int c = 0; c < POOL_SIZE_CLASSES; c++)
        free_list(&p->unexpected[c]);
}
