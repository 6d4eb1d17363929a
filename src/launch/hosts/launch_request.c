/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch_request.c - writes and reads launch requests and the frames that follow them. Counts and
 * lengths are checked before memory is allocated. Called by both ends of a starter's connection.
 */
#include "launch/hosts/launch_request.h"

#include "base/alloc.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { TERMINAL_SIDE_MOST = 65535 };

/* --- texts: with their terminator, so that a decoder can point to them --- */

/* NULL is sent as "". */
static void write_text(wire_writer *w, const char *text)
{
    const char *sent = text != NULL ? text : "";

    wire_write_bytes(w, sent, strlen(sent) + 1);
}

static const char *read_text(wire_reader *r)
{
    size_t n;
    const uint8_t *text = wire_read_bytes(r, LAUNCH_REQUEST_BODY_MAX, &n);

    if (text == NULL || n == 0 || memchr(text, 0, n) != text + n - 1)
        r->failed = true;
    return r->failed ? "" : (const char *)text;
}

static void write_texts(wire_writer *w, char *const *list, int n)
{
    wire_write_u32(w, (uint32_t)n);
    for (int i = 0; i < n; i++)
        write_text(w, list[i]);
}

/* A count larger than the bytes left allow is malformed. */
static ls_status read_texts(wire_reader *r, char ***out, int *n)
{
    const uint32_t count = wire_read_u32(r);

    if (r->failed || count > LAUNCH_REQUEST_STRINGS_MAX || count > (r->bytes - r->at) / 5) {
        r->failed = true;
        return LS_OK;
    }
    *out = ls_calloc((size_t)count + 1, sizeof(**out));
    if (*out == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %u strings", count);
    for (uint32_t i = 0; i < count; i++)
        (*out)[i] = (char *)(uintptr_t)read_text(r); /* in our own copy of the message */
    *n = (int)count;
    return LS_OK;
}

/* --- numbers --- */

static int read_number(wire_reader *r, int least, int most)
{
    const uint32_t v = wire_read_u32(r);

    if (v > (uint32_t)most || (int)v < least)
        r->failed = true;
    return r->failed ? least : (int)v;
}

static void write_list(wire_writer *w, const rank_list *list)
{
    wire_write_u32(w, list->otherwise);
    wire_write_u32(w, (uint32_t)list->n);
    for (int i = 0; i < list->n; i++) {
        wire_write_u32(w, (uint32_t)list->parts[i].first);
        wire_write_u32(w, (uint32_t)list->parts[i].last);
        wire_write_u32(w, list->parts[i].streams);
    }
}

static void read_list(wire_reader *r, rank_list *list)
{
    list->otherwise = (unsigned)read_number(r, 0, RANK_STREAMS_BOTH);
    list->n = read_number(r, 0, RANK_LIST_MOST);
    for (int i = 0; i < list->n; i++) {
        list->parts[i].first = read_number(r, 0, RANK_LIST_RANK_MOST);
        list->parts[i].last = read_number(r, 0, RANK_LIST_RANK_MOST);
        list->parts[i].streams = (unsigned)read_number(r, 0, RANK_STREAMS_BOTH);
    }
}

static void write_heads(wire_writer *w, const launch_request *o)
{
    char text[NET_ADDRESS_TEXT_MAX];

    wire_write_u32(w, (uint32_t)o->n_heads);
    for (int i = 0; i < o->n_heads; i++)
        write_text(w, net_address_text(text, sizeof(text), &o->heads[i]));
}

static void read_heads(wire_reader *r, launch_request *o)
{
    o->n_heads = read_number(r, 0, DIAL_ADDRESSES_MAX);
    for (int i = 0; i < o->n_heads; i++)
        if (net_address_decode(read_text(r), &o->heads[i]) != LS_OK)
            r->failed = true;
}

void remote_write_size(wire_writer *w, pty_size size)
{
    wire_write_u32(w, (uint32_t)size.rows);
    wire_write_u32(w, (uint32_t)size.columns);
}

static pty_size read_size(wire_reader *r)
{
    pty_size size;

    size.rows = read_number(r, 0, TERMINAL_SIDE_MOST);
    size.columns = read_number(r, 0, TERMINAL_SIDE_MOST);
    return size;
}

ls_status remote_read_size(const frame *f, pty_size *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    *out = read_size(&r);
    return wire_reader_end(&r, "a terminal's size");
}

ls_status remote_read_window(const frame *f, size_t *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    *out = (size_t)read_number(&r, 1, (int)REMOTE_INPUT_WINDOW);
    return wire_reader_end(&r, "a window of rank 0's input");
}

ls_status remote_read_failure_line(const frame *f, int *rank, uint64_t *hash)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    *rank = read_number(&r, 0, INT32_MAX);
    *hash = wire_read_u64(&r);
    return wire_reader_end(&r, "the failure of a rank");
}

/* --- the request --- */

void launch_request_write(wire_writer *w, const launch_request *o)
{
    wire_write_u32(w, LAUNCH_REQUEST_VERSION);
    wire_write_raw(w, o->key.bytes, sizeof(o->key.bytes));
    write_heads(w, o);
    wire_write_u32(w, (uint32_t)o->node);
    wire_write_u32(w, (uint32_t)o->n_nodes);
    wire_write_u32(w, (uint32_t)o->n_ranks);
    wire_write_u64(w, o->run_hash);
    write_text(w, o->host);
    write_text(w, o->folder);
    write_texts(w, o->argv, o->n_argv);
    write_texts(w, o->env, o->n_env);
    wire_write_i64(w, o->grace_ms);
    wire_write_u64(w, o->stop_signals);
    write_text(w, o->run_id);
    write_text(w, o->role);
    write_text(w, o->log_dir);
    write_text(w, o->filters[0]);
    write_text(w, o->filters[1]);
    write_text(w, o->line_prefix);
    write_text(w, o->master_addr);
    write_text(w, o->net);
    wire_write_u32(w, (uint32_t)o->ports.first);
    wire_write_u32(w, (uint32_t)o->ports.last);
    wire_write_u32(w, o->security);
    wire_write_u8(w, o->virtual_local_rank);
    wire_write_u8(w, o->terminal);
    wire_write_u8(w, o->input_terminal);
    wire_write_u8(w, o->pty);
    remote_write_size(w, o->size);
    wire_write_u8(w, o->hosts_store);
    write_list(w, &o->redirect);
    write_list(w, &o->tee);
    write_list(w, &o->shown_local);
    write_list(w, &o->shown);
    wire_write_u8(w, o->isolate);
    wire_write_u8(w, o->binding);
}

static void read_place(wire_reader *r, launch_request *o)
{
    const uint8_t *key = wire_read_raw(r, sizeof(o->key.bytes));

    if (key != NULL)
        memcpy(o->key.bytes, key, sizeof(o->key.bytes));
    read_heads(r, o);
    o->node = read_number(r, 0, INT32_MAX);
    o->n_nodes = read_number(r, 1, INT32_MAX);
    o->n_ranks = read_number(r, 1, INT32_MAX);
    o->run_hash = wire_read_u64(r);
    o->host = read_text(r);
    o->folder = read_text(r);
}

static void read_options(wire_reader *r, launch_request *o)
{
    o->grace_ms = wire_read_i64(r);
    o->stop_signals = wire_read_u64(r);
    o->run_id = read_text(r);
    o->role = read_text(r);
    o->log_dir = read_text(r);
    o->filters[0] = read_text(r);
    o->filters[1] = read_text(r);
    o->line_prefix = read_text(r);
    o->master_addr = read_text(r);
    o->net = read_text(r);
    o->ports.first = read_number(r, 0, 65535);
    o->ports.last = read_number(r, o->ports.first, 65535);
    o->security = (net_security)read_number(r, NET_AUTH, NET_ENCRYPT);
    o->virtual_local_rank = wire_read_u8(r) != 0;
    o->terminal = wire_read_u8(r) != 0;
    o->input_terminal = wire_read_u8(r) != 0;
    o->pty = wire_read_u8(r) != 0;
    o->size = read_size(r);
    o->hosts_store = wire_read_u8(r) != 0;
    read_list(r, &o->redirect);
    read_list(r, &o->tee);
    read_list(r, &o->shown_local);
    read_list(r, &o->shown);
    o->isolate = wire_read_u8(r) != 0;
    o->binding = (binding_kind)wire_read_u8(r);
    if (o->binding >= BINDING_KINDS || o->grace_ms < 0 ||
        strlen(o->filters[0]) > LINE_FILTER_MOST || strlen(o->filters[1]) > LINE_FILTER_MOST)
        r->failed = true;
}

static ls_status read_all(wire_reader *r, launch_request *o)
{
    const uint32_t version = wire_read_u32(r);

    if (version != LAUNCH_REQUEST_VERSION)
        return ls_fail(LS_EPROTO, "launch request of version %u, this Lockstep reads version %d",
                       version, LAUNCH_REQUEST_VERSION);
    read_place(r, o);
    LS_TRY(read_texts(r, &o->argv, &o->n_argv));
    LS_TRY(read_texts(r, &o->env, &o->n_env));
    read_options(r, o);
    if (o->n_argv == 0)
        r->failed = true;
    return wire_reader_end(r, "a launch request");
}

ls_status launch_request_read(const frame *f, launch_request *out)
{
    wire_reader r;
    ls_status st;

    *out = (launch_request){0};
    if (f->type != REMOTE_LAUNCH_REQUEST)
        return ls_fail(LS_EPROTO, "message %u instead of a launch request", f->type);
    out->memory = ls_calloc(f->bytes + 1, 1);
    if (out->memory == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a launch request of %zu bytes", f->bytes);
    out->memory_bytes = f->bytes;
    memcpy(out->memory, f->body, f->bytes);
    r = wire_reader_over(out->memory, f->bytes);
    st = read_all(&r, out);
    if (st != LS_OK)
        launch_request_free(out);
    return st;
}

void launch_request_free(launch_request *o)
{
    net_key_wipe(&o->key);
    if (o->memory != NULL)
        explicit_bzero(o->memory, o->memory_bytes); /* the key is in it */
    ls_free(o->argv);
    ls_free(o->env);
    ls_free(o->memory);
    *o = (launch_request){0};
}

ls_status remote_read_output(const frame *f, int *rank, int *stream, const char **bytes, size_t *n)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    *rank = read_number(&r, 0, INT32_MAX);
    *stream = wire_read_u8(&r);
    if (r.failed || *stream > 1)
        return ls_fail(LS_EPROTO, "malformed output frame");
    *bytes = (const char *)f->body + r.at;
    *n = f->bytes - r.at;
    return LS_OK;
}

/* --- the greeting --- */

const char *remote_greeting(char *buf, size_t n, int cores)
{
    return text_format(buf, n, REMOTE_GREETING " %d %s %d\n", LAUNCH_REQUEST_VERSION, ls_version(),
                       cores);
}

bool remote_read_greeting(const char *line, char *version, size_t n, int *cores)
{
    char word[64];
    int protocol;
    int end = 0;

    if (!text_starts(line, REMOTE_GREETING " ") ||
        sscanf(line, // NOLINT(cert-err34-c): the widths bound the numbers
               REMOTE_GREETING " %9d %63s %9d%n", &protocol, word, cores, &end) != 3 ||
        line[end] != 0 || *cores < 1)
        return false;
    text_printable(version, n, word);
    return protocol == LAUNCH_REQUEST_VERSION;
}
