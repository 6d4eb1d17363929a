/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hub_calls.c - what ranks have called, on backends whose messages do not carry stamps: there ranks
 * that call different operations may pass each other unharmed and with wrong results. Each rank
 * tells a sample of its calls a few times a second. Samples meet at the same numbers (control.h),
 * and the digest with each covers all calls before it.
 */
#include "store/hub_internal.h"

#include "base/alloc.h"
#include "base/text.h"
#include "store/control.h"

#define SAMPLES_MAX    64  /* of one group that are remembered, the newest */
#define GROUPS_MAX     256 /* that are remembered, those that were heard of last */
#define STAMP_TEXT_MAX 160

typedef struct sample {
    int rank; /* who told it first */
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
    list_node *it = h->calls.next;

    while (it != &h->calls) {
        hub_calls *calls = list_entry(it, hub_calls, node);

        it = it->next;
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

/* The sample of this number, a place for it (in place of the oldest) when there is none, or NULL
 * when it is older than all. */
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

static void break_different(hub *h, const sample *a, const sample *b)
{
    job_cause cause = {.kind = CAUSE_MISMATCH, .group = a->stamp.group, .rank = -1};
    const sample *low = a->rank < b->rank ? a : b;
    const sample *high = low == a ? b : a;
    char texts[2][STAMP_TEXT_MAX];

    stamp_text(texts[0], STAMP_TEXT_MAX, &low->stamp);
    stamp_text(texts[1], STAMP_TEXT_MAX, &high->stamp);
    if (stamp_equal(&low->stamp, &high->stamp))
        text_format(cause.text, sizeof(cause.text),
                    "rank %d and rank %d have not called the same operations before %s", low->rank,
                    high->rank, texts[0]);
    else
        text_format(cause.text, sizeof(cause.text), "rank %d: %s; rank %d: %s", low->rank, texts[0],
                    high->rank, texts[1]);
    hub_break(h, &cause);
}

/* False when the group broke. */
static bool note_call(hub *h, hub_calls *calls, const sample *told)
{
    sample *known = sample_of(calls, told->stamp.sequence);

    if (known == NULL)
        return true;
    if (known->stamp.sequence != told->stamp.sequence) {
        *known = *told;
        return true;
    }
    if (stamp_equal(&known->stamp, &told->stamp) && known->digest == told->digest)
        return true;
    break_different(h, known, told);
    return false;
}

ls_status hub_calls_told(hub_conn *c, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t n = wire_read_u32(&r);
    bool is_whole = true;

    if (r.failed || n > CONTROL_CALLS_MAX || r.bytes - r.at != (size_t)n * (STAMP_BYTES + 8))
        return ls_fail(LS_EPROTO, "%u calls in %zu bytes", n, f->bytes);
    for (uint32_t i = 0; i < n && is_whole; i++) {
        const uint8_t *wire = wire_read_raw(&r, STAMP_BYTES);
        sample told = {.rank = c->rank};
        hub_calls *calls;

        if (wire == NULL)
            return ls_fail(LS_EPROTO, "half a call");
        LS_TRY(stamp_decode(wire, &told.stamp));
        told.digest = wire_read_u64(&r);
        if (hub_is_broken(c->owner, told.stamp.group))
            continue;
        calls = calls_of(c->owner, told.stamp.group);
        is_whole = calls == NULL || note_call(c->owner, calls, &told);
    }
    return LS_OK;
}
