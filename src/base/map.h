/* SPDX-License-Identifier: Apache-2.0 */
/* map.h - a hash map from byte strings to pointers, and an intrusive doubly linked list. */
#ifndef LS_BASE_MAP_H
#define LS_BASE_MAP_H

#include "base/status.h"

#include <stdbool.h>

/* Open addressing, grows by doubling; keys are copied, values are borrowed. Zero-initialise. */
typedef struct byte_map_slot byte_map_slot;
typedef struct byte_map {
    byte_map_slot *slots;
    size_t n_slots; /* a power of two or 0 */
    size_t count;
    size_t n_used; /* with tombstones */
} byte_map;

/* Sets or replaces. *old (may be NULL) gets the replaced value or NULL. */
LS_MUST_USE ls_status byte_map_set(byte_map *m, const void *key, size_t key_bytes, void *value,
                                   void **old);
void *byte_map_get(const byte_map *m, const void *key, size_t key_bytes); /* NULL = absent */
void *byte_map_remove(byte_map *m, const void *key, size_t key_bytes);    /* the value, or NULL */
/* Iterates over all entries in no particular order: start with *cursor = 0; false at the end. The
 * map must not change meanwhile. */
bool byte_map_next(const byte_map *m, size_t *cursor, const void **key, size_t *key_bytes,
                   void **value);
void byte_map_free(byte_map *m);

typedef struct list_node {
    struct list_node *prev;
    struct list_node *next;
} list_node;

/* A list is a ring through its head node. */
static inline void list_init(list_node *head)
{
    head->prev = head;
    head->next = head;
}

static inline bool list_empty(const list_node *head)
{
    return head->next == head;
}

static inline void list_append(list_node *head, list_node *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void list_remove(list_node *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    node->prev = node;
    node->next = node;
}

#define list_entry(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))
// NOLINTBEGIN(bugprone-macro-parentheses): a declared name cannot be in parentheses
#define list_for_each(it, head)                                                                    \
    for (list_node *it = (head)->next; (it) != (head); (it) = (it)->next)
/* The body may remove `it`. */
#define list_for_each_safe(it, head)                                                               \
    for (list_node *it = (head)->next, *it##_next = (it)->next; (it) != (head);                    \
         (it) = it##_next, it##_next = (it)->next)
/* The same by the structs, whose list_node is `member`. */
#define list_for_each_entry(type, entry, head, member)                                             \
    for (type *entry = list_entry((head)->next, type, member); &(entry)->member != (head);         \
         (entry) = list_entry((entry)->member.next, type, member))
// NOLINTEND(bugprone-macro-parentheses)

#endif
