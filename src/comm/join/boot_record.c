/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boot_record.c - the wire form of boot records as a table, and the comparison of the settings in
 * them, for join.c.
 */
#include "comm/join/boot_record.h"

#include "base/text.h"
#include "net/messages/wire_fields.h"

#include <inttypes.h>

static const wire_field address[] = {WIRE_ADDRESS_ITSELF(0, 0)};
static const wire_table address_table = WIRE_TABLE(net_address, "an address", address, NULL);

static const wire_field fields[] = {
    WIRE_ID(boot_publication, record.rank),
    WIRE_ID(boot_publication, record.pid),
    WIRE_64(boot_publication, record.instance),
    WIRE_ID(boot_publication, record.generation),
    WIRE_LINE(boot_publication, host_name),
    WIRE_64(boot_publication, host),
    WIRE_64(boot_publication, core_share),
    WIRE_ID(boot_publication, world_group),
    WIRE_TEXT(boot_publication, backend),
    WIRE_TEXT(boot_publication, transport),
    WIRE_64(boot_publication, segment_bytes),
    WIRE_TEXT(boot_publication, algorithms),
    WIRE_NUMBER(boot_publication, security, 1, 0, UINT8_MAX),
    WIRE_NUMBER(boot_publication, connections, 1, 0, UINT8_MAX),
    WIRE_ADDRESS(boot_publication, record.local, 0),
    WIRE_LIST(boot_publication, addresses, record.n_addresses, 2, 0, BOOT_ADDRESSES_MAX,
              &address_table),
};
static const wire_table table = WIRE_TABLE(boot_publication, "fields", fields, NULL);

ls_status boot_record_encode(const boot_publication *p, wire_writer *out)
{
    wire_write_u16(out, BOOT_RECORD_VERSION);
    wire_write_fields(out, &table, p);
    return wire_writer_status(out);
}

ls_status boot_record_decode(const void *data, size_t bytes, int rank, boot_publication *out)
{
    wire_reader r = wire_reader_over(data, bytes);
    boot_publication p;
    ls_status st;
    int version;

    if (bytes > BOOT_RECORD_MAX_BYTES)
        return ls_fail(LS_EPROTO, "boot record of rank %d: %zu bytes are too many", rank, bytes);
    version = wire_read_u16(&r);
    if (version != BOOT_RECORD_VERSION)
        return ls_fail(LS_EPROTO,
                       "boot record of rank %d: version %d, this library uses version %d", rank,
                       version, BOOT_RECORD_VERSION);
    wire_read_fields(&r, &table, &p);
    st = wire_reader_end(&r, table.what);
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
