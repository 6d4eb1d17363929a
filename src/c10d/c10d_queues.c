/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c10d_queues.c - the queues of PyTorch's store, for c10d_requests.c. The counted bytes include the
 * overhead of queues and items, so that small values cannot pass the bound.
 */
#include "c10d/c10d_queues.h"

#include "base/alloc.h"

#include <string.h>

typedef struct queue {
    list_node items; /* oldest first */
    size_t n;
    size_t name_bytes;
} queue;

static size_t queue_cost(size_t name_bytes)
{
    return sizeof(queue) + name_bytes;
}

static size_t item_cost(const c10d_queue_item *item)
{
    return sizeof(*item) + item->value.bytes;
}

static c10d_queue_item *first_item(const queue *one)
{
    return list_entry(one->items.next, c10d_queue_item, node);
}

void c10d_queues_free(c10d_queues *q)
{
    size_t cursor = 0;
    const void *name;
    size_t name_bytes;
    void *value;

    while (byte_map_next(&q->map, &cursor, &name, &name_bytes, &value)) {
        queue *one = value;

        while (!list_empty(&one->items)) {
            c10d_queue_item *item = first_item(one);

            list_remove(&item->node);
            ls_free(item);
        }
        ls_free(one);
    }
    byte_map_free(&q->map);
    memset(q, 0, sizeof(*q));
}

static c10d_queue_item *make_item(kv_bytes value)
{
    c10d_queue_item *item = ls_realloc(NULL, sizeof(*item) + value.bytes, 1);

    if (item == NULL)
        return NULL;
    *item = (c10d_queue_item){.value = {item->data, value.bytes}};
    if (value.bytes > 0)
        memcpy(item->data, value.data, value.bytes);
    return item;
}

static queue *find_or_add(c10d_queues *q, kv_bytes name)
{
    queue *one = byte_map_get(&q->map, name.data, name.bytes);

    if (one != NULL)
        return one;
    one = ls_calloc(1, sizeof(*one));
    if (one == NULL || byte_map_set(&q->map, name.data, name.bytes, one, NULL) != LS_OK) {
        ls_free(one);
        return NULL;
    }
    list_init(&one->items);
    one->name_bytes = name.bytes;
    q->bytes += queue_cost(name.bytes);
    return one;
}

ls_status c10d_queues_push(c10d_queues *q, kv_bytes name, kv_bytes value, size_t bytes_max)
{
    const size_t cost = queue_cost(name.bytes) + sizeof(c10d_queue_item) + value.bytes;
    c10d_queue_item *item;
    queue *one;
    char text[80];

    if (q->n_items >= C10D_QUEUED_MAX || q->bytes > bytes_max || cost > bytes_max - q->bytes)
        return ls_fail(LS_ENOMEM, "the store is full: no space in queue %s",
                       table_key_text(text, sizeof(text), name));
    item = make_item(value);
    one = item == NULL ? NULL : find_or_add(q, name);
    if (one == NULL) {
        ls_free(item);
        return ls_fail(LS_ENOMEM, "no memory for a value of %zu bytes", value.bytes);
    }
    list_append(&one->items, &item->node);
    one->n++;
    q->n_items++;
    q->bytes += item_cost(item);
    return LS_OK;
}

c10d_queue_item *c10d_queues_pop(c10d_queues *q, kv_bytes name)
{
    queue *one = byte_map_get(&q->map, name.data, name.bytes);
    c10d_queue_item *item;

    if (one == NULL)
        return NULL;
    item = first_item(one);
    list_remove(&item->node);
    one->n--;
    q->n_items--;
    q->bytes -= item_cost(item);
    if (one->n == 0) {
        byte_map_remove(&q->map, name.data, name.bytes);
        q->bytes -= queue_cost(one->name_bytes);
        ls_free(one);
    }
    return item;
}

size_t c10d_queues_length(const c10d_queues *q, kv_bytes name)
{
    const queue *one = byte_map_get(&q->map, name.data, name.bytes);

    return one == NULL ? 0 : one->n;
}
