/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.c - linear probing. A removed entry leaves a tombstone, so that probes continue past it; a
 * rehash at three quarters full drops the tombstones. The hub's store and the head use it.
 */
#include "base/map.h"

#include "base/alloc.h"
#include "base/rng.h"

#include <string.h>

typedef enum slot_state { SLOT_FREE = 0, SLOT_USED, SLOT_TOMBSTONE } slot_state;

struct byte_map_slot {
    void *key;
    size_t key_bytes;
    uint64_t hash;
    void *value;
    slot_state state;
};

static uint64_t hash_key(const void *key, size_t key_bytes)
{
    return ls_hash_bytes(key, key_bytes, 0);
}

static bool has_key(const byte_map_slot *slot, uint64_t hash, const void *key, size_t key_bytes)
{
    return slot->state == SLOT_USED && slot->hash == hash && slot->key_bytes == key_bytes &&
           (key_bytes == 0 || memcmp(slot->key, key, key_bytes) == 0);
}

/* The slot of this key, or NULL. Terminates, because a quarter of the slots is free. */
static byte_map_slot *find_slot(const byte_map *m, const void *key, size_t key_bytes)
{
    const uint64_t hash = hash_key(key, key_bytes);
    const size_t mask = m->n_slots - 1;

    if (m->n_slots == 0)
        return NULL;
    for (size_t i = hash & mask; m->slots[i].state != SLOT_FREE; i = (i + 1) & mask) {
        if (has_key(&m->slots[i], hash, key, key_bytes))
            return &m->slots[i];
    }
    return NULL;
}

/* The first free slot or tombstone in this hash's probe sequence. */
static byte_map_slot *open_slot(byte_map_slot *slots, size_t n_slots, uint64_t hash)
{
    const size_t mask = n_slots - 1;
    size_t i = hash & mask;

    while (slots[i].state == SLOT_USED)
        i = (i + 1) & mask;
    return &slots[i];
}

/* Reserves a slot for one more entry; without memory the map is unchanged. */
static bool reserve(byte_map *m)
{
    size_t n_slots = m->n_slots == 0 ? 8 : m->n_slots;
    byte_map_slot *slots;

    if (m->n_slots != 0 && m->n_used + 1 <= m->n_slots - m->n_slots / 4)
        return true;
    // with few live entries the tombstones fill the table
    if (m->count >= n_slots / 2)
        n_slots *= 2;
    slots = ls_calloc(n_slots, sizeof(*slots));
    if (slots == NULL)
        return false;
    for (size_t i = 0; i < m->n_slots; i++) {
        if (m->slots[i].state == SLOT_USED)
            *open_slot(slots, n_slots, m->slots[i].hash) = m->slots[i];
    }
    ls_free(m->slots);
    m->slots = slots;
    m->n_slots = n_slots;
    m->n_used = m->count;
    return true;
}

/* Adds a key that the map does not have. */
static ls_status add_entry(byte_map *m, const void *key, size_t key_bytes, void *value)
{
    void *copy = ls_calloc(key_bytes, 1);
    byte_map_slot *slot;
    uint64_t hash;

    if (copy == NULL || !reserve(m)) {
        ls_free(copy);
        return ls_fail(LS_ENOMEM, "no memory for a map of %zu entries", m->count + 1);
    }
    if (key_bytes > 0)
        memcpy(copy, key, key_bytes);
    hash = hash_key(key, key_bytes);
    slot = open_slot(m->slots, m->n_slots, hash);
    if (slot->state == SLOT_FREE)
        m->n_used++;
    *slot = (byte_map_slot){copy, key_bytes, hash, value, SLOT_USED};
    m->count++;
    return LS_OK;
}

ls_status byte_map_set(byte_map *m, const void *key, size_t key_bytes, void *value, void **old)
{
    byte_map_slot *slot = find_slot(m, key, key_bytes);

    if (old != NULL)
        *old = slot == NULL ? NULL : slot->value;
    if (slot == NULL)
        return add_entry(m, key, key_bytes, value);
    slot->value = value;
    return LS_OK;
}

void *byte_map_get(const byte_map *m, const void *key, size_t key_bytes)
{
    const byte_map_slot *slot = find_slot(m, key, key_bytes);

    return slot == NULL ? NULL : slot->value;
}

void *byte_map_remove(byte_map *m, const void *key, size_t key_bytes)
{
    byte_map_slot *slot = find_slot(m, key, key_bytes);
    void *value;

    if (slot == NULL)
        return NULL;
    value = slot->value;
    ls_free(slot->key);
    *slot = (byte_map_slot){.state = SLOT_TOMBSTONE};
    m->count--;
    return value;
}

bool byte_map_next(const byte_map *m, size_t *cursor, const void **key, size_t *key_bytes,
                   void **value)
{
    while (*cursor < m->n_slots) {
        const byte_map_slot *slot = &m->slots[(*cursor)++];

        if (slot->state == SLOT_USED) {
            *key = slot->key;
            *key_bytes = slot->key_bytes;
            *value = slot->value;
            return true;
        }
    }
    return false;
}

void byte_map_free(byte_map *m)
{
    for (size_t i = 0; i < m->n_slots; i++)
        ls_free(m->slots[i].key); // NULL where no entry is
    ls_free(m->slots);
    *m = (byte_map){0};
}
