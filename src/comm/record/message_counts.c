/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message_counts.c - a hash table of bounded size. Each key lies within WINDOW slots of its home,
 * or in `current`. A full window makes the table larger; in the largest table the key at home is
 * dropped, and `floor` rises to its number. The engine calls it for each message.
 */
#include "comm/record/message_counts.h"

#include "base/alloc.h"
#include "base/rng.h"

#include <stdbool.h>

#define WINDOW    8U
#define SLOTS_MIN 16U
#define SLOTS_MAX 16384U

static bool is_same(const message_count *a, const message_count *b)
{
    return a->tag == b->tag && a->peer == b->peer && a->is_send == b->is_send;
}

static message_count *slot_at(const message_counts *m, const message_count *key, uint32_t i)
{
    const uint64_t home = ls_hash3((uint64_t)(uint32_t)key->is_send, (uint64_t)(uint32_t)key->peer,
                                   (uint64_t)(uint32_t)key->tag);

    return &m->slots[(uint32_t)(home + i) & (m->n_slots - 1)];
}

/* The slot of the key, or else a free one in its window; NULL: the window is full. */
static message_count *find_slot(const message_counts *m, const message_count *key)
{
    message_count *unused = NULL;

    for (uint32_t i = 0; i < WINDOW && m->n_slots > 0; i++) {
        message_count *s = slot_at(m, key, i);

        if (s->last != 0 && is_same(s, key))
            return s;
        if (s->last == 0 && unused == NULL)
            unused = s;
    }
    return unused;
}

static void put(message_counts *m, const message_count *c)
{
    message_count *s = find_slot(m, c);

    if (s == NULL) {
        s = slot_at(m, c, 0);
        m->floor = s->last > m->floor ? s->last : m->floor;
    }
    *s = *c;
}

static ls_status grow(message_counts *m)
{
    message_counts larger = {.n_slots = m->n_slots == 0 ? SLOTS_MIN : 2 * m->n_slots,
                             .floor = m->floor};

    LS_TRY(LS_NEW(&larger.slots, larger.n_slots, "for the numbers of messages"));
    for (uint32_t i = 0; i < m->n_slots; i++) {
        if (m->slots[i].last != 0)
            put(&larger, &m->slots[i]);
    }
    ls_free(m->slots);
    m->slots = larger.slots;
    m->n_slots = larger.n_slots;
    m->floor = larger.floor;
    return LS_OK;
}

/* Saves the number of `c` in the table. */
static ls_status save(message_counts *m, const message_count *c)
{
    while (find_slot(m, c) == NULL && m->n_slots < SLOTS_MAX)
        LS_TRY(grow(m));
    put(m, c);
    return LS_OK;
}

ls_status message_counts_next(message_counts *m, const message_count *key, uint64_t *number)
{
    message_count *c = &m->current[key->is_send != 0];

    if (c->last == 0 || !is_same(c, key)) {
        const message_count *known;

        if (c->last != 0)
            LS_TRY(save(m, c));
        known = find_slot(m, key);
        *c = *key;
        c->last = known != NULL && known->last != 0 ? known->last : m->floor;
    }
    *number = ++c->last;
    return LS_OK;
}

void message_counts_free(message_counts *m)
{
    ls_free(m->slots);
    *m = (message_counts){.n_slots = 0};
}
