/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_calls.c - compares which operations ranks have called, for backends whose messages carry no
 * stamps: there, different operations could run against each other and give wrong results.
 *
 * Each rank sends samples of its calls a few times a second, at the same operation numbers as the
 * other ranks (control.h). The digest of a sample covers all calls before it.
 */
#include "hub/hub_internal.h"

#include "base/alloc.h"
#include "hub/control.h"

#define SAMPLES_MAX 64  /* of one group; older ones are dropped */
#define GROUPS_MAX  256 /* the least recently reported one is dropped */

typedef struct sample {
    int rank; /* the first that sent it */
    op_stamp stamp;
    uint64_t digest;
} sample;

struct hub_calls {
    list_node node;
    uint32_t group;
    int n_samples;
    sample samples[SAMPLES_MAX];
};

static void free_calls(hub *h, hub_calls *calls)
{
    list_remove(&calls->node);
    h->n_calls--;
    ls_free(calls);
}

void hub_calls_end_group(hub *h, uint32_t group)
{
    list_for_each_safe (it, &h->calls) {
        hub_calls *calls = list_entry(it, hub_calls, node);

        if (group == GROUP_ALL || calls->group == group)
            free_calls(h, calls);
    }
}

/* The group's samples, moved to the end of the list; NULL: no memory. */
static hub_calls *calls_of(hub *h, uint32_t group)
{
    hub_calls *calls;

    list_for_each (it, &h->calls) {
        calls = list_entry(it, hub_calls, node);
        if (calls->group == group) {
            list_remove(&calls->node);
            list_append(&h->calls, &calls->node);
            return calls;
        }
    }
    if (h->n_calls == GROUPS_MAX)
        free_calls(h, list_entry(h->calls.next, hub_calls, node));
    calls = ls_calloc(1, sizeof(*calls));
    if (calls == NULL)
        return NULL;
    calls->group = group;
    list_append(&h->calls, &calls->node);
    h->n_calls++;
    return calls;
}

/* The sample of this number, or a free one, or else the oldest; NULL if all are newer. */
static sample *sample_of(hub_calls *calls, uint64_t sequence)
{
    sample *oldest = &calls->samples[0];

    for (int i = 0; i < calls->n_samples; i++) {
        sample *s = &calls->samples[i];

        if (s->stamp.sequence == sequence)
            return s;
        if (s->stamp.sequence < oldest->stamp.sequence)
            oldest = s;
    }
    if (calls->n_samples < SAMPLES_MAX)
        return &calls->samples[calls->n_samples++];
    return sequence > oldest->stamp.sequence ? oldest : NULL;
}

/* False when the group broke. */
static bool note_call(hub *h, hub_calls *calls, const sample *sent)
{
    sample *known = sample_of(calls, sent->stamp.sequence);

    if (known == NULL)
        return true;
    if (known->stamp.sequence != sent->stamp.sequence) {
        *known = *sent;
        return true;
    }
    if (stamp_equal(&known->stamp, &sent->stamp) && known->digest == sent->digest)
        return true;
    hub_break_mismatch(h, known->rank, &known->stamp, sent->rank, &sent->stamp);
    return false;
}

ls_status hub_calls_message(hub_conn *c, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t n = wire_read_u32(&r);
    bool is_whole = true;

    if (r.failed || n > CONTROL_CALLS_MAX || r.bytes - r.at != (size_t)n * (STAMP_BYTES + 8))
        return ls_fail(LS_EPROTO, "%u calls in %zu bytes", n, f->bytes);
    for (uint32_t i = 0; i < n && is_whole; i++) {
        const uint8_t *wire = wire_read_raw(&r, STAMP_BYTES);
        sample sent = {.rank = c->rank};
        hub_calls *calls;

        if (wire == NULL)
            return ls_fail(LS_EPROTO, "a cut-off call");
        LS_TRY(stamp_decode(wire, &sent.stamp));
        sent.digest = wire_read_u64(&r);
        if (hub_is_broken(c->owner, sent.stamp.group))
            continue;
        calls = calls_of(c->owner, sent.stamp.group);
        is_whole = calls == NULL || note_call(c->owner, calls, &sent);
    }
    return LS_OK;
}
