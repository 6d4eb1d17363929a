/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message.c - encodes, decodes and checks message headers. Nothing of a header is used before
 * message_check() has accepted it. link.c and match.c call it.
 */
#include "comm/backends/native/link/message.h"

#include "net/wire.h"

#include <string.h>

#define MAGIC        0x534c /* "LS" */
#define AT_STAMP     (MESSAGE_HEADER_BYTES - STAMP_BYTES)
#define FLAG_CHARGED 1
#define FLAG_DIRECT  2
#define TOTAL_MAX    (UINT64_C(1) << 62)

void message_encode(const message *m, uint8_t out[MESSAGE_HEADER_BYTES])
{
    wire_put_u16(out, MAGIC);
    out[2] = (uint8_t)m->type;
    out[3] = (uint8_t)((m->is_charged ? FLAG_CHARGED : 0) | (m->is_direct ? FLAG_DIRECT : 0));
    wire_put_u32(out + 4, m->group);
    wire_put_u64(out + 8, m->sequence);
    wire_put_u64(out + 16, m->step);
    wire_put_u64(out + 24, m->bytes);
    wire_put_u64(out + 32, m->total);
    wire_put_u64(out + 40, m->credit);
    if (m->stamp != NULL)
        memcpy(out + AT_STAMP, m->stamp, STAMP_BYTES);
    else
        memset(out + AT_STAMP, 0, STAMP_BYTES);
}

ls_status message_check(const message *m)
{
    const bool has_offer = m->type == MESSAGE_OFFER || m->type == MESSAGE_SHARED;
    const bool has_payload = m->type == MESSAGE_DATA || m->type == MESSAGE_PIECE || has_offer;

    if (m->type < MESSAGE_DATA || m->type > MESSAGE_WRITTEN)
        return ls_fail(LS_EPROTO, "message of unknown type %d", (int)m->type);
    if (m->bytes > (has_payload ? MESSAGE_MAX_BYTES : 0))
        return ls_fail(LS_EPROTO, "message with a payload of %llu bytes",
                       (unsigned long long)m->bytes);
    if (m->is_charged && (m->type != MESSAGE_DATA || m->bytes > MESSAGE_EAGER_BYTES))
        return ls_fail(LS_EPROTO, "message without a receive has a payload of %llu bytes",
                       (unsigned long long)m->bytes);
    if (m->total > TOTAL_MAX || m->total < m->bytes)
        return ls_fail(LS_EPROTO, "message of a transfer of %llu bytes",
                       (unsigned long long)m->total);
    if (m->type == MESSAGE_PIECE && (!m->is_direct || m->bytes == 0))
        return ls_fail(LS_EPROTO, "piece without a point to point message");
    if (m->type == MESSAGE_LEFT && m->sequence != MESSAGE_NO_SEQUENCE)
        return ls_fail(LS_EPROTO, "notice of a leave with a sequence number");
    if (m->type >= MESSAGE_OFFER && !m->is_direct)
        return ls_fail(LS_EPROTO, "offer in a collective");
    if (has_offer && m->bytes != MESSAGE_OFFER_BYTES)
        return ls_fail(LS_EPROTO, "offer of %llu bytes", (unsigned long long)m->bytes);
    return LS_OK;
}

ls_status message_decode(const uint8_t in[MESSAGE_HEADER_BYTES], message *out)
{
    if (wire_get_u16(in) != MAGIC)
        return ls_fail(LS_EPROTO, "message with a wrong magic number");
    out->type = (message_type)in[2];
    out->is_charged = (in[3] & FLAG_CHARGED) != 0;
    out->is_direct = (in[3] & FLAG_DIRECT) != 0;
    out->group = wire_get_u32(in + 4);
    out->sequence = wire_get_u64(in + 8);
    out->step = wire_get_u64(in + 16);
    out->bytes = wire_get_u64(in + 24);
    out->total = wire_get_u64(in + 32);
    out->credit = wire_get_u64(in + 40);
    out->stamp = in + AT_STAMP;
    out->dtype = stamp_dtype(out->stamp);
    if ((in[3] & ~(FLAG_CHARGED | FLAG_DIRECT)) != 0)
        return ls_fail(LS_EPROTO, "message with unknown flags 0x%x", in[3]);
    return message_check(out);
}
