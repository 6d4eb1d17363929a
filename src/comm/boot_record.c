/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boot_record.c - the wire form of boot records, and the comparison of the settings in them, for
 * join.c. Every field from another rank is bounded before it is used.
 */
#include "comm/boot_record.h"

#include "base/text.h"
#include "net/wire.h"

#include <inttypes.h>

static void write_address(wire_writer *w, const net_address *a)
{
    char text[NET_ADDRESS_TEXT_MAX];

    wire_write_text(w, a->bytes == 0 ? "" : net_address_text(text, sizeof(text), a));
}

static ls_status read_address(wire_reader *r, net_address *out)
{
    char text[NET_ADDRESS_TEXT_MAX];

    wire_read_text(r, text, sizeof(text));
    *out = (net_address){.bytes = 0};
    return r->failed || text[0] == '\0' ? LS_OK : net_address_decode(text, out);
}

ls_status boot_record_encode(const boot_publication *p, wire_writer *out)
{
    const boot_record *b = &p->record;

    wire_write_u16(out, BOOT_RECORD_VERSION);
    wire_write_u32(out, (uint32_t)b->rank);
    wire_write_u32(out, (uint32_t)b->pid);
    wire_write_u64(out, b->instance);
    wire_write_u32(out, b->generation);
    wire_write_text(out, p->host_name);
    wire_write_u64(out, p->host);
    wire_write_u64(out, p->core_share);
    wire_write_u32(out, p->world_group);
    wire_write_text(out, p->backend);
    wire_write_text(out, p->transport);
    wire_write_u64(out, p->segment_bytes);
    wire_write_text(out, p->algorithms);
    wire_write_u8(out, (uint8_t)p->security);
    wire_write_u8(out, (uint8_t)p->connections);
    write_address(out, &b->local);
    wire_write_u16(out, (uint16_t)b->n_addresses);
    for (int i = 0; i < b->n_addresses; i++)
        write_address(out, &p->addresses[i]);
    return wire_writer_status(out);
}

static ls_status read_fields(wire_reader *r, boot_publication *out)
{
    boot_record *b = &out->record;
    char host[BOOT_HOST_BYTES];

    b->rank = (int)wire_read_u32(r);
    b->pid = (pid_t)wire_read_u32(r);
    b->instance = wire_read_u64(r);
    b->generation = wire_read_u32(r);
    wire_read_text(r, host, sizeof(host));
    text_printable(out->host_name, sizeof(out->host_name), host);
    out->host = wire_read_u64(r);
    out->core_share = wire_read_u64(r);
    out->world_group = wire_read_u32(r);
    wire_read_text(r, out->backend, sizeof(out->backend));
    wire_read_text(r, out->transport, sizeof(out->transport));
    out->segment_bytes = wire_read_u64(r);
    wire_read_text(r, out->algorithms, sizeof(out->algorithms));
    out->security = (net_security)wire_read_u8(r);
    out->connections = wire_read_u8(r);
    LS_TRY(read_address(r, &b->local));
    b->n_addresses = wire_read_u16(r);
    if (b->n_addresses > BOOT_ADDRESSES_MAX)
        return ls_fail(LS_EPROTO, "%d addresses are too many", b->n_addresses);
    for (int i = 0; i < b->n_addresses; i++)
        LS_TRY(read_address(r, &out->addresses[i]));
    return LS_OK;
}

ls_status boot_record_decode(const void *data, size_t bytes, int rank, boot_publication *out)
{
    wire_reader r = wire_reader_over(data, bytes);
    boot_publication p = {0};
    ls_status st;
    int version;

    if (bytes > BOOT_RECORD_MAX_BYTES)
        return ls_fail(LS_EPROTO, "boot record of rank %d: %zu bytes are too many", rank, bytes);
    version = wire_read_u16(&r);
    if (version != BOOT_RECORD_VERSION)
        return ls_fail(LS_EPROTO,
                       "boot record of rank %d: version %d, this library uses version %d", rank,
                       version, BOOT_RECORD_VERSION);
    st = read_fields(&r, &p);
    if (st == LS_OK)
        st = wire_reader_end(&r, "fields");
    if (st == LS_OK && p.record.rank != rank)
        st = ls_fail(LS_EPROTO, "it belongs to rank %d", p.record.rank);
    if (st != LS_OK)
        return ls_context(LS_EPROTO, "boot record of rank %d", rank);
    *out = p;
    return LS_OK;
}

static ls_status differ(const boot_publication *own, const boot_publication *other,
                        const char *setting, const char *own_value, const char *other_value)
{
    char shown[BOOT_ROWS_BYTES];

    text_printable(shown, sizeof(shown), other_value);
    return ls_fail(LS_EMISMATCH, "%s is %s on rank %d (%s), but %s on rank %d (%s)", setting,
                   own_value, own->record.rank, own->host_name, shown, other->record.rank,
                   other->host_name);
}

static const char *or_unset(const char *value)
{
    return *value == '\0' ? "not set" : value;
}

ls_status boot_record_compare(const boot_publication *own, const boot_publication *other)
{
    char a[24];
    char b[24];

    if (!text_equal(own->backend, other->backend))
        return differ(own, other, "backend", own->backend, other->backend);
    if (!text_equal(own->transport, other->transport))
        return differ(own, other, "transport", own->transport, other->transport);
    if (own->segment_bytes != other->segment_bytes)
        return differ(own, other, "LOCKSTEP_SEGMENT",
                      text_format(a, sizeof(a), "%" PRIu64, own->segment_bytes),
                      text_format(b, sizeof(b), "%" PRIu64, other->segment_bytes));
    if (!text_equal(own->algorithms, other->algorithms))
        return differ(own, other, "LOCKSTEP_ALGORITHMS", or_unset(own->algorithms),
                      or_unset(other->algorithms));
    if (own->security != other->security)
        return differ(own, other, "LOCKSTEP_SECURITY", net_security_text(own->security),
                      net_security_text(other->security));
    if (own->connections != other->connections)
        return differ(own, other, "LOCKSTEP_CONNECTIONS",
                      text_format(a, sizeof(a), "%d", own->connections),
                      text_format(b, sizeof(b), "%d", other->connections));
    if (own->record.generation != other->record.generation)
        return differ(own, other, "generation",
                      text_format(a, sizeof(a), "%u", own->record.generation),
                      text_format(b, sizeof(b), "%u", other->record.generation));
    return LS_OK;
}
