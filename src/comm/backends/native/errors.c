/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errors.c - the texts of what went wrong between two ranks. Each names both ranks and the
 * operation. match.c and direct.c call it when messages disagree and when a link ends.
 */
#include "comm/backends/native/errors.h"

#include "base/text.h"

#include <inttypes.h>
#include <string.h>

#define STAMP_COMPARED (STAMP_BYTES - STAMP_SITE_BYTES) /* the call site is at the end */

// The counts of all_to_all_v may differ between ranks; each pair compares the bytes of its
// messages.
bool errors_same_operation(const uint8_t *a, const uint8_t *b)
{
    op_stamp left;
    op_stamp right;

    if (memcmp(a, b, STAMP_COMPARED) == 0)
        return true;
    if (stamp_decode(a, &left) != LS_OK || stamp_decode(b, &right) != LS_OK)
        return false;
    if (coll_is_pairwise((coll_kind)left.kind) && (left.form & right.form & STAMP_V) != 0)
        left.count = right.count;
    return stamp_equal(&left, &right);
}

static const char *decoded_text(char *buf, size_t n, const uint8_t *stamp)
{
    op_stamp s;

    if (stamp_decode(stamp, &s) != LS_OK)
        return text_format(buf, n, "an operation with an invalid stamp");
    return stamp_text(buf, n, &s);
}

void errors_stamp_mismatch(native_group *g, native_peer *p, const uint8_t *theirs,
                           const uint8_t *ours)
{
    char their_text[200];
    char our_text[200];
    native_state *s = g->state;

    decoded_text(their_text, sizeof(their_text), theirs);
    decoded_text(our_text, sizeof(our_text), ours);
    if (p->rank < s->rank)
        native_break(g, CAUSE_MISMATCH, -1, "rank %d: %s; rank %d: %s", p->rank, their_text,
                     s->rank, our_text);
    else
        native_break(g, CAUSE_MISMATCH, -1, "rank %d: %s; rank %d: %s", s->rank, our_text, p->rank,
                     their_text);
}

void errors_size_mismatch(native_group *g, native_peer *p, uint64_t theirs, uint64_t ours,
                          const uint8_t *stamp)
{
    char text[200];

    native_break(g, CAUSE_MISMATCH, -1,
                 "rank %d has %" PRIu64 " bytes where rank %d has %" PRIu64 " in %s", p->rank,
                 theirs, g->state->rank, ours, decoded_text(text, sizeof(text), stamp));
}

// The counts of all_to_all_v, or the segment sizes, differ.
void errors_extra_message(native_group *g, const native_peer *p, const message *m,
                          const uint8_t *stamp)
{
    const bool is_ready = m->type == MESSAGE_READY;
    op_stamp s;
    char text[200];

    native_break(g, CAUSE_MISMATCH, -1,
                 "rank %d %s %" PRIu64 " bytes %s rank %d, which %s fewer, in %s%s", p->rank,
                 is_ready ? "expects" : "sends", m->total, is_ready ? "of" : "to", g->state->rank,
                 is_ready ? "sends" : "expects", decoded_text(text, sizeof(text), stamp),
                 stamp_decode(stamp, &s) == LS_OK && (s.form & STAMP_V) != 0
                     ? ""
                     : ": set LOCKSTEP_SEGMENT to the same value on all ranks");
}

void errors_lost_peer(native_group *g, native_peer *p, const uint8_t *stamp)
{
    char peer[96];
    char text[200];
    const peer_link *l = p->link;

    native_peer_text(p, peer, sizeof(peer));
    decoded_text(text, sizeof(text), stamp);
    if (p->unreachable != NULL)
        native_break(g, CAUSE_FAULT, p->rank, "%s cannot be reached for %s: %s", peer, text,
                     p->unreachable);
    else if (l->fault[0] != 0)
        native_break(g, CAUSE_FAULT, p->rank, "%s sent an invalid message (%s) during %s", peer,
                     l->fault, text);
    else if (l->error != 0)
        native_break(g, CAUSE_FAULT, p->rank, "connection to %s lost during %s: %s", peer, text,
                     ls_errno_text(l->error));
    else
        native_break(g, CAUSE_FAULT, p->rank, "%s closed its connection during %s", peer, text);
}
