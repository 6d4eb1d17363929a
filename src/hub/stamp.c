/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stamp.c - wire form, 80 bytes: sequence u64, count u64, group u32, root i32, kind u8, dtype u8,
 * redop u8, form u8, 12 zeros, site[40]. Everything that is compared stands in front of the site.
 */
#include "hub/stamp.h"

#include "base/text.h"
#include "net/wire.h"

#include <inttypes.h>
#include <string.h>

#define NO_VALUE 255
#define AT_DTYPE 25
#define AT_ZEROS 28
#define AT_SITE  (STAMP_BYTES - STAMP_SITE_BYTES)

/* By the values of ls_reduce_op, which go over the wire. */
static const char *const redop_names[] = {"sum", "avg",  "prod", "min",
                                          "max", "band", "bor",  "bxor"};

void stamp_encode(const op_stamp *s, uint8_t out[STAMP_BYTES])
{
    memset(out, 0, STAMP_BYTES);
    wire_put_u64(out, s->sequence);
    wire_put_u64(out + 8, s->count);
    wire_put_u32(out + 16, s->group);
    wire_put_u32(out + 20, (uint32_t)s->root);
    out[24] = s->kind;
    out[AT_DTYPE] = s->dtype;
    out[26] = s->redop;
    out[27] = s->form;
    memcpy(out + AT_SITE, s->site, strnlen(s->site, STAMP_SITE_BYTES - 1));
}

/* A stage has number 0 and the kind of a barrier. */
static bool is_sound(const op_stamp *s)
{
    return (s->sequence != 0 || s->kind == COLL_BARRIER) && s->kind < COLL_KIND_COUNT &&
           s->form <= (STAMP_V | STAMP_ON_DEVICE) && s->root >= -1 &&
           (s->dtype < LS_DTYPE_COUNT || s->dtype == NO_VALUE) &&
           (s->redop < LS_COUNT_OF(redop_names) || s->redop == NO_VALUE);
}

ls_status stamp_decode(const uint8_t in[STAMP_BYTES], op_stamp *out)
{
    char site[STAMP_SITE_BYTES];

    *out = (op_stamp){
        .sequence = wire_get_u64(in),
        .count = wire_get_u64(in + 8),
        .group = wire_get_u32(in + 16),
        .root = (int32_t)wire_get_u32(in + 20),
        .kind = in[24],
        .dtype = in[AT_DTYPE],
        .redop = in[26],
        .form = in[27],
    };
    memcpy(site, in + AT_SITE, sizeof(site));
    for (int i = AT_ZEROS; i < AT_SITE; i++) {
        if (in[i] != 0)
            return ls_fail(LS_EPROTO, "an operation stamp with unknown fields");
    }
    if (!is_sound(out))
        return ls_fail(LS_EPROTO,
                       "an operation stamp with impossible values (kind %u, type %u, reduction %u)",
                       out->kind, out->dtype, out->redop);
    if (site[STAMP_SITE_BYTES - 1] != 0)
        return ls_fail(LS_EPROTO, "an operation stamp with an unterminated call site");
    text_printable(out->site, sizeof(out->site), site);
    return LS_OK;
}

uint8_t stamp_dtype(const uint8_t stamp[STAMP_BYTES])
{
    return stamp[AT_DTYPE];
}

bool stamp_equal(const op_stamp *a, const op_stamp *b)
{
    return a->group == b->group && a->sequence == b->sequence && a->kind == b->kind &&
           a->dtype == b->dtype && a->redop == b->redop && a->form == b->form &&
           a->root == b->root && a->count == b->count;
}

const char *stamp_redop_name(uint8_t redop)
{
    return redop < LS_COUNT_OF(redop_names) ? redop_names[redop] : "?";
}

static void append_root(text_buf *t, const op_stamp *s)
{
    if (s->kind == COLL_SEND)
        text_append(t, "to %d, ", s->root);
    else if (s->kind == COLL_RECV && s->root < 0)
        text_append(t, "from any, ");
    else if (s->kind == COLL_RECV)
        text_append(t, "from %d, ", s->root);
    else if (s->root >= 0)
        text_append(t, "root %d, ", s->root);
}

const char *stamp_text(char *buf, size_t n, const op_stamp *s)
{
    const char *on_device = (s->form & STAMP_ON_DEVICE) != 0 ? " on device" : "";
    text_buf t = {0};

    if (s->sequence == 0) // a stage, not an operation
        return text_format(buf, n, "%s", s->site);
    text_append(&t, "%s%s #%" PRIu64, coll_name((coll_kind)s->kind),
                (s->form & STAMP_V) != 0 ? "_v" : "", s->sequence);
    if (s->group != 0)
        text_append(&t, " of group %u", s->group);
    if (s->dtype != NO_VALUE) {
        text_append(&t, " (");
        if (s->redop < LS_COUNT_OF(redop_names))
            text_append(&t, "%s, ", redop_names[s->redop]);
        append_root(&t, s);
        if ((s->form & STAMP_V) != 0) // the count is a hash of the counts
            text_append(&t, "%s, counts ~%08x%s)", ls_dtype_name((ls_dtype)s->dtype),
                        (unsigned)(s->count >> 32), on_device);
        else
            text_append(&t, "%" PRIu64 " %s%s)", s->count, ls_dtype_name((ls_dtype)s->dtype),
                        on_device);
    }
    if (s->site[0] != 0)
        text_append(&t, " at %s", s->site);
    text_format(buf, n, "%s", text_str(&t));
    text_free(&t);
    return buf;
}
