/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmi_keys.c - one node's copy of the key-value space of a job's MPI programs: the keys that its
 * ranks put, and those of other nodes. The bytes of each owner are bounded. Called by pmi.c, and by
 * the agent for messages of the head.
 */
#include "launch/pmi/pmi_internal.h"

#include "base/alloc.h"

#include <string.h>

enum {
    LAUNCHER = -1, /* owners besides the ranks of this node */
    OTHER_NODE = -2,
    ENTRY_BYTES = 96 /* about what an entry costs beside its text */
};

typedef struct entry {
    int owner; /* the rank that put it, LAUNCHER or OTHER_NODE */
    bool is_new;
    size_t bytes;
    char value[];
} entry;

/* --- one entry --- */

/* The byte count of an owner; NULL: it has none. */
static size_t *account(pmi *p, int owner)
{
    if (owner == OTHER_NODE)
        return &p->remote_bytes;
    return owner == LAUNCHER ? NULL : &p->ranks[owner].key_bytes;
}

static bool fits(pmi *p, const entry *old, int owner, size_t bytes)
{
    const size_t *used = account(p, owner);
    const size_t freed = old != NULL && old->owner == owner ? old->bytes : 0;

    return used == NULL ||
           *used - freed + bytes <= (owner == OTHER_NODE ? PMI_REMOTE_MOST : PMI_RANK_MOST);
}

static void count(pmi *p, const entry *e, bool is_added)
{
    size_t *used = account(p, e->owner);

    p->n_new += e->is_new ? (is_added ? 1 : -1) : 0;
    if (used != NULL)
        *used = is_added ? *used + e->bytes : *used - e->bytes;
}

/* Returns NULL, or the error for the client. */
static const char *share_key(pmi *p, int owner, pmi_slice key, pmi_slice value)
{
    entry *old = byte_map_get(&p->keys, key.at, key.n);
    const size_t bytes = ENTRY_BYTES + key.n + value.n;
    entry *e;

    if (old != NULL && old->owner == LAUNCHER)
        return "key_is_reserved";
    if (!fits(p, old, owner, bytes))
        return "no_space";
    e = ls_calloc(1, sizeof(*e) + value.n + 1);
    if (e == NULL || byte_map_set(&p->keys, key.at, key.n, e, NULL) != LS_OK) {
        ls_free(e);
        return "no_memory";
    }
    *e = (entry){.owner = owner, .is_new = owner >= 0, .bytes = bytes};
    memcpy(e->value, value.at, value.n);
    if (old != NULL)
        count(p, old, false);
    count(p, e, true);
    ls_free(old);
    return NULL;
}

const char *pmi_put(pmi *p, int rank, pmi_slice key, pmi_slice value)
{
    return share_key(p, rank, key, value);
}

const char *pmi_put_layout(pmi *p, const char *layout)
{
    static const char key[] = "PMI_process_mapping";

    if (layout[0] == 0)
        return NULL;
    return share_key(p, LAUNCHER, (pmi_slice){key, strlen(key)},
                     (pmi_slice){layout, strlen(layout)});
}

const char *pmi_get(const pmi *p, pmi_slice key)
{
    const entry *e = byte_map_get(&p->keys, key.at, key.n);

    return e != NULL ? e->value : NULL;
}

void pmi_free_keys(pmi *p)
{
    const void *key;
    void *value;
    size_t key_bytes;
    size_t cursor = 0;

    while (byte_map_next(&p->keys, &cursor, &key, &key_bytes, &value))
        ls_free(value);
    byte_map_free(&p->keys);
}

/* --- between nodes: key, value, key, value, ... --- */

bool pmi_write_new_keys(pmi *p, wire_writer *w, size_t most)
{
    const size_t start = w->bytes;
    const void *key;
    void *value;
    size_t key_bytes;
    size_t cursor = 0;

    while (p->n_new > 0 && w->bytes - start < most &&
           byte_map_next(&p->keys, &cursor, &key, &key_bytes, &value)) {
        entry *e = value;

        if (!e->is_new)
            continue;
        wire_write_bytes(w, key, key_bytes);
        wire_write_text(w, e->value);
        e->is_new = false;
        p->n_new--;
    }
    return w->bytes > start;
}

/* A text that can be a part of a line. */
static bool is_line(const uint8_t *bytes, size_t n)
{
    return bytes != NULL && memchr(bytes, '\n', n) == NULL && memchr(bytes, 0, n) == NULL;
}

ls_status pmi_read_keys(pmi *p, wire_reader *r)
{
    while (!r->failed && r->at < r->bytes) {
        pmi_slice key;
        pmi_slice value;
        const uint8_t *name = wire_read_bytes(r, PMI_KEY_MOST, &key.n);
        const uint8_t *text = wire_read_bytes(r, PMI_LINE_MOST, &value.n);
        const char *wrong;

        if (r->failed)
            break;
        if (key.n == 0 || !is_line(name, key.n) || memchr(name, ' ', key.n) != NULL ||
            (value.n > 0 && !is_line(text, value.n)))
            return ls_fail(LS_EPROTO, "keys of MPI programs: no key or value at byte %zu", r->at);
        key.at = (const char *)name;
        value.at = value.n > 0 ? (const char *)text : "";
        wrong = share_key(p, OTHER_NODE, key, value);
        if (wrong != NULL)
            return ls_fail(LS_ENOMEM, "keys of MPI programs on other nodes: %s", wrong);
    }
    return wire_reader_end(r, "keys of MPI programs");
}

/* --- the layout --- */

void pmi_write_layout(const int *n_local, int n_nodes, char out[PMI_LAYOUT_BYTES])
{
    size_t n = 0;

    text_format(out, PMI_LAYOUT_BYTES, "(vector");
    n = strlen(out);
    for (int first = 0, end; first < n_nodes && n < PMI_LAYOUT_BYTES; first = end) {
        char block[64];

        for (end = first + 1; end < n_nodes && n_local[end] == n_local[first];)
            end++;
        text_format(block, sizeof(block), ",(%d,%d,%d)", first, end - first, n_local[first]);
        text_format(out + n, PMI_LAYOUT_BYTES - n, "%s%s", block, end == n_nodes ? ")" : "");
        n += strlen(block);
    }
    if (n + 2 > PMI_LAYOUT_BYTES)
        out[0] = 0;
}

bool pmi_is_layout(const char *text)
{
    return text[0] == 0 ||
           (text_starts(text, "(vector") &&
            strspn(text + strlen("(vector"), "(),0123456789") == strlen(text) - strlen("(vector"));
}
