/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_messages.c - encodes and decodes the messages of hosts_check_messages.h. A decoder
 * fails with LS_EPROTO on anything that no encoder writes; texts lose their control characters.
 * Called by both ends of a check of several hosts.
 */
#include "diagnose/hosts_check_messages.h"

#include "base/file.h"
#include "base/text.h"
#include "launch/hosts/hostlist.h"

enum { TEXT_MOST = 1024 };

/* --- writing --- */

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

void hosts_check_request_write(wire_writer *w, const hosts_check_request *o)
{
    wire_write_u32(w, HOSTS_CHECK_VERSION);
    wire_write_u32(w, (uint32_t)o->n_ranks);
    wire_write_u32(w, (uint32_t)o->master_port);
    wire_write_u8(w, o->is_quick);
    wire_write_u8(w, o->tries_gpus);
    launch_request_write(w, &o->base);
}

void hosts_check_facts_write(wire_writer *w, const hosts_check_facts *facts)
{
    wire_write_u8(w, facts->is_uninstalled);
    wire_write_text(w, facts->version);
    wire_write_text(w, facts->build);
    wire_write_text(w, facts->machine);
    wire_write_text(w, facts->kernel);
    wire_write_text(w, facts->libc);
    wire_write_text(w, facts->simd);
    wire_write_text(w, facts->python);
    wire_write_text(w, facts->torch);
}

void hosts_check_finding_write(wire_writer *w, const finding *f)
{
    wire_write_text(w, finding_id(f->kind));
    wire_write_u8(w, (uint8_t)f->severity);
    wire_write_text(w, f->what);
    wire_write_text(w, f->fix);
}

void hosts_check_time_write(wire_writer *w, const hosts_check_time *t)
{
    wire_write_u32(w, t->number);
    wire_write_i64(w, t->received_ns);
    wire_write_i64(w, t->sent_ns);
}

void hosts_check_peers_write(wire_writer *w, const net_peer *peers, int n)
{
    wire_write_u32(w, (uint32_t)n);
    for (int i = 0; i < n; i++)
        net_peer_write(w, &peers[i]);
}

/* --- reading --- */

static wire_reader over(const frame *f)
{
    return wire_reader_over(f->body, f->bytes);
}

/* Reads a text that is printed later, so control characters become '?'. */
static void read_shown(wire_reader *r, char *out, size_t n)
{
    wire_read_text(r, out, n);
    text_printable(out, n, r->failed ? "" : out);
}

static bool read_flag(wire_reader *r)
{
    const uint8_t value = wire_read_u8(r);

    r->failed |= value > 1;
    return value == 1;
}

static int read_number(wire_reader *r, uint32_t most)
{
    const uint32_t value = wire_read_u32(r);

    r->failed |= value > most;
    return r->failed ? 0 : (int)value;
}

ls_status hosts_check_request_read(const frame *f, hosts_check_request *out)
{
    wire_reader r = over(f);
    const uint32_t version = wire_read_u32(&r);
    frame base = {.type = REMOTE_LAUNCH_REQUEST};

    *out = (hosts_check_request){0};
    if (f->type != HOSTS_CHECK_REQUEST || r.failed || version != HOSTS_CHECK_VERSION)
        return ls_fail(LS_EPROTO, "check request has version %u, expected %d", version,
                       HOSTS_CHECK_VERSION);
    out->n_ranks = read_number(&r, HOSTLIST_SLOTS_MAX);
    out->master_port = read_number(&r, 65535);
    out->is_quick = read_flag(&r);
    out->tries_gpus = read_flag(&r);
    if (r.failed)
        return wire_reader_end(&r, "check request");
    base.body = f->body + r.at;
    base.bytes = f->bytes - r.at;
    return launch_request_read(&base, &out->base);
}

ls_status hosts_check_facts_read(const frame *f, hosts_check_facts *out)
{
    wire_reader r = over(f);

    *out = (hosts_check_facts){.is_uninstalled = read_flag(&r)};
    read_shown(&r, out->version, sizeof(out->version));
    read_shown(&r, out->build, sizeof(out->build));
    read_shown(&r, out->machine, sizeof(out->machine));
    read_shown(&r, out->kernel, sizeof(out->kernel));
    read_shown(&r, out->libc, sizeof(out->libc));
    read_shown(&r, out->simd, sizeof(out->simd));
    read_shown(&r, out->python, sizeof(out->python));
    read_shown(&r, out->torch, sizeof(out->torch));
    return wire_reader_end(&r, "the facts of a host");
}

ls_status hosts_check_finding_read(const frame *f, findings *out)
{
    wire_reader r = over(f);
    finding_kind kind;
    char id[64];
    char what[TEXT_MOST];
    char fix[TEXT_MOST];
    uint8_t severity;

    wire_read_text(&r, id, sizeof(id));
    severity = wire_read_u8(&r);
    wire_read_text(&r, what, sizeof(what));
    wire_read_text(&r, fix, sizeof(fix));
    r.failed |= severity > FINDING_ERROR;
    LS_TRY(wire_reader_end(&r, "a finding"));
    if (out->n >= HOSTS_CHECK_FINDINGS_MAX)
        return ls_fail(LS_EPROTO, "more than %d findings", HOSTS_CHECK_FINDINGS_MAX);
    if (finding_find_kind(id, &kind))
        finding_add(out, kind, (finding_severity)severity, fix, "%s", what);
    return findings_status(out);
}

ls_status hosts_check_time_read(const frame *f, hosts_check_time *out)
{
    wire_reader r = over(f);

    out->number = wire_read_u32(&r);
    out->received_ns = wire_read_i64(&r);
    out->sent_ns = wire_read_i64(&r);
    return wire_reader_end(&r, "the time of a host");
}

ls_status hosts_check_peers_read(const frame *f, net_peer out[NET_PEERS_MAX], int *n)
{
    wire_reader r = over(f);

    *n = read_number(&r, NET_PEERS_MAX);
    for (int i = 0; i < *n && !r.failed; i++)
        net_peer_read(&r, &out[i]);
    return wire_reader_end(&r, "a list of hosts to test");
}

ls_status hosts_check_offer_read(const frame *f, net_offer *out)
{
    wire_reader r = over(f);

    net_offer_read(&r, out);
    return wire_reader_end(&r, "the addresses of a host");
}

ls_status hosts_check_report_read(const frame *f, net_report *out)
{
    wire_reader r = over(f);
    ls_status st = net_report_read(&r, out);

    if (st == LS_OK)
        st = wire_reader_end(&r, "the network report of a host");
    if (st != LS_OK)
        net_report_free(out);
    return st;
}

ls_status hosts_check_text_read(const frame *f, char *out, size_t n)
{
    wire_reader r = over(f);

    read_shown(&r, out, n);
    return wire_reader_end(&r, "the text of a host");
}

ls_status hosts_check_number_read(const frame *f, uint32_t *out)
{
    wire_reader r = over(f);

    *out = wire_read_u32(&r);
    return wire_reader_end(&r, "a number");
}
