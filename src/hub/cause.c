/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cause.c - the status and the wire form of a cause. Text from the wire is made printable. The hub,
 * the control connection and the launcher call it.
 */
#include "hub/cause.h"

#include "base/text.h"

#include <string.h>

ls_status cause_status(cause_kind kind)
{
    switch (kind) {
    case CAUSE_DIED:
    case CAUSE_LEFT:
    case CAUSE_FAULT:
        return LS_EPEER;
    case CAUSE_MISMATCH:
        return LS_EMISMATCH;
    case CAUSE_DEADLINE:
        return LS_EDEADLINE;
    case CAUSE_ABORTED:
        return LS_ECANCELED;
    case CAUSE_NONE:
        break;
    }
    return LS_EINTERNAL;
}

void cause_write(wire_writer *w, const job_cause *cause)
{
    wire_write_u32(w, (uint32_t)cause->kind);
    wire_write_u32(w, cause->group);
    wire_write_u32(w, (uint32_t)cause->rank);
    wire_write_text(w, cause->text);
}

void cause_read(wire_reader *r, job_cause *out)
{
    char text[sizeof(out->text)];
    uint32_t kind;

    memset(out, 0, sizeof(*out));
    kind = wire_read_u32(r);
    out->group = wire_read_u32(r);
    out->rank = (int)wire_read_u32(r);
    wire_read_text(r, text, sizeof(text));
    if (kind == CAUSE_NONE || kind > CAUSE_FAULT || out->rank < -1)
        r->failed = true;
    out->kind = r->failed ? CAUSE_NONE : (cause_kind)kind;
    text_printable(out->text, sizeof(out->text), text);
}
