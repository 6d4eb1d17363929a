/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_messages.c - encodes and decodes the messages of hosts_check_messages.h. A decoder
 * fails with LS_EPROTO on anything that no encoder writes; texts lose their control characters.
 * Called by both ends of a check of several hosts.
 */
#include "diagnose/hosts/hosts_check_messages.h"

#include "base/file.h"
#include "base/text.h"
#include "launch/hosts/hostlist.h"

enum { TEXT_MOST = 1024 };

ls_status hosts_check_write(int fd, const char *peer, hosts_check_message type,
                            const wire_writer *body)
{
    uint8_t header[FRAME_HEADER_BYTES];

    LS_TRY(wire_writer_status(body));
    wire_put_u32(header, (uint32_t)body->bytes);
    wire_put_u32(header + 4, type);
    LS_TRY(file_write_all(fd, peer, header, sizeof(header)));
    return file_write_all(fd, peer, body->data, body->bytes);
}

static const wire_field request[] = {
    WIRE_NUMBER(hosts_check_request, n_ranks, 4, 0, HOSTLIST_SLOTS_MAX),
    WIRE_NUMBER(hosts_check_request, master_port, 4, 0, 65535),
    WIRE_BOOL(hosts_check_request, is_quick),
    WIRE_BOOL(hosts_check_request, tries_gpus),
};
static const wire_table request_table =
    WIRE_TABLE(hosts_check_request, "check request", request, NULL);

void hosts_check_request_write(wire_writer *w, const hosts_check_request *o)
{
    wire_write_u32(w, HOSTS_CHECK_VERSION);
    wire_write_fields(w, &request_table, o);
    launch_request_write(w, &o->base);
}

ls_status hosts_check_request_read(const frame *f, hosts_check_request *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t version = wire_read_u32(&r);
    frame base = {.type = REMOTE_LAUNCH_REQUEST};

    *out = (hosts_check_request){0};
    if (f->type != HOSTS_CHECK_REQUEST || r.failed || version != HOSTS_CHECK_VERSION)
        return ls_fail(LS_EPROTO, "check request has version %u, expected %d", version,
                       HOSTS_CHECK_VERSION);
    wire_read_fields(&r, &request_table, out);
    if (r.failed)
        return wire_reader_end(&r, request_table.what);
    base.body = f->body + r.at;
    base.bytes = f->bytes - r.at;
    return launch_request_read(&base, &out->base);
}

static const wire_field facts[] = {
    WIRE_BOOL(hosts_check_facts, is_uninstalled), WIRE_LINE(hosts_check_facts, version),
    WIRE_LINE(hosts_check_facts, build),          WIRE_LINE(hosts_check_facts, machine),
    WIRE_LINE(hosts_check_facts, kernel),         WIRE_LINE(hosts_check_facts, libc),
    WIRE_LINE(hosts_check_facts, simd),           WIRE_LINE(hosts_check_facts, python),
    WIRE_LINE(hosts_check_facts, torch),
};
const wire_table hosts_check_facts_table =
    WIRE_TABLE(hosts_check_facts, "the facts of a host", facts, NULL);

static const wire_field times[] = {
    WIRE_ID(hosts_check_time, number),
    WIRE_64(hosts_check_time, received_ns),
    WIRE_64(hosts_check_time, sent_ns),
};
const wire_table hosts_check_time_table =
    WIRE_TABLE(hosts_check_time, "the time of a host", times, NULL);

/* A finding on the wire. */
typedef struct sent_finding {
    char id[64];
    finding_severity severity;
    char what[TEXT_MOST];
    char fix[TEXT_MOST];
} sent_finding;

static const wire_field finding_fields[] = {
    WIRE_TEXT(sent_finding, id),
    WIRE_NUMBER(sent_finding, severity, 1, 0, FINDING_ERROR),
    WIRE_TEXT(sent_finding, what),
    WIRE_TEXT(sent_finding, fix),
};
static const wire_table finding_table = WIRE_TABLE(sent_finding, "a finding", finding_fields, NULL);

void hosts_check_finding_write(wire_writer *w, const finding *f)
{
    wire_write_text(w, finding_id(f->kind));
    wire_write_u8(w, (uint8_t)f->severity);
    wire_write_text(w, f->what);
    wire_write_text(w, f->fix);
}

ls_status hosts_check_finding_read(const frame *f, findings *out)
{
    sent_finding sent;
    finding_kind kind;

    LS_TRY(wire_read_frame(f, &finding_table, &sent));
    if (out->n >= HOSTS_CHECK_FINDINGS_MAX)
        return ls_fail(LS_EPROTO, "more than %d findings", HOSTS_CHECK_FINDINGS_MAX);
    if (finding_find_kind(sent.id, &kind))
        finding_add(out, kind, sent.severity, sent.fix, "%s", sent.what);
    return findings_status(out);
}

ls_status hosts_check_text_read(const frame *f, char *out, size_t n)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    wire_read_text(&r, out, n);
    text_printable(out, n, r.failed ? "" : out);
    return wire_reader_end(&r, "the text of a host");
}

ls_status hosts_check_number_read(const frame *f, uint32_t *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    *out = wire_read_u32(&r);
    return wire_reader_end(&r, "a number");
}
