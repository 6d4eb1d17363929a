/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch_request.c - the fields of launch requests in the order of their bytes, and the frames that
 * follow a request. Called by both ends of a starter's connection.
 */
#include "launch/spec/launch_request.h"

#include "base/alloc.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { TERMINAL_SIDE_MOST = 65535 };

enum { STRINGS_MOST = LAUNCH_REQUEST_STRINGS_MAX, TEXT_MOST = LAUNCH_REQUEST_BODY_MAX };

static const wire_field size_fields[] = {
    WIRE_NUMBER(pty_size, rows, 4, 0, TERMINAL_SIDE_MOST),
    WIRE_NUMBER(pty_size, columns, 4, 0, TERMINAL_SIDE_MOST),
};
const wire_table pty_size_table = WIRE_TABLE(pty_size, "a terminal's size", size_fields, NULL);

static const wire_field part[] = {
    WIRE_NUMBER(rank_part, first, 4, 0, RANK_LIST_RANK_MOST),
    WIRE_NUMBER(rank_part, last, 4, 0, RANK_LIST_RANK_MOST),
    WIRE_NUMBER(rank_part, streams, 4, 0, RANK_STREAMS_BOTH),
};
static const wire_table part_table = WIRE_TABLE(rank_part, "a range of ranks", part, NULL);

static const wire_field list[] = {
    WIRE_NUMBER(rank_list, otherwise, 4, 0, RANK_STREAMS_BOTH),
    WIRE_LIST(rank_list, parts, n, 4, 0, RANK_LIST_MOST, &part_table),
};
static const wire_table list_table = WIRE_TABLE(rank_list, "a list of ranks", list, NULL);

static const wire_field address[] = {WIRE_ADDRESS_ITSELF(1, NET_UNIX)};
static const wire_table address_table = WIRE_TABLE(net_address, "an address", address, NULL);

/* --- the request: behind its version --- */

static const wire_field request[] = {
    WIRE_RAW(launch_request, key.bytes),
    WIRE_LIST(launch_request, heads, n_heads, 4, 0, DIAL_ADDRESSES_MAX, &address_table),
    WIRE_NUMBER(launch_request, node, 4, 0, INT32_MAX),
    WIRE_NUMBER(launch_request, n_nodes, 4, 1, INT32_MAX),
    WIRE_NUMBER(launch_request, n_ranks, 4, 1, INT32_MAX),
    WIRE_64(launch_request, run_hash),
    WIRE_STRING(launch_request, host, 0, TEXT_MOST),
    WIRE_STRING(launch_request, folder, 1, TEXT_MOST),
    WIRE_STRINGS(launch_request, job.argv, 1, STRINGS_MOST),
    WIRE_STRINGS(launch_request, env, 0, STRINGS_MOST),
    WIRE_NUMBER(launch_request, job.grace_ms, 8, 0, INT64_MAX),
    WIRE_64(launch_request, job.stop_signals),
    WIRE_STRING(launch_request, job.run_id, 0, TEXT_MOST),
    WIRE_STRING(launch_request, job.role, 0, TEXT_MOST),
    WIRE_STRING(launch_request, job.log_dir, 0, TEXT_MOST),
    WIRE_STRING(launch_request, job.filters[0], 0, LINE_FILTER_MOST),
    WIRE_STRING(launch_request, job.filters[1], 0, LINE_FILTER_MOST),
    WIRE_STRING(launch_request, job.line_prefix, 0, TEXT_MOST),
    WIRE_STRING(launch_request, job.master_addr, 0, TEXT_MOST),
    WIRE_STRING(launch_request, job.net, 0, TEXT_MOST),
    WIRE_NUMBER(launch_request, job.ports.first, 4, 0, 65535),
    WIRE_NUMBER(launch_request, job.ports.last, 4, 0, 65535),
    WIRE_NUMBER(launch_request, security, 4, NET_AUTH, NET_ENCRYPT),
    WIRE_BOOL(launch_request, job.virtual_local_rank),
    WIRE_BOOL(launch_request, terminal),
    WIRE_BOOL(launch_request, input_terminal),
    WIRE_BOOL(launch_request, job.pty),
    WIRE_STRUCT(launch_request, size, &pty_size_table),
    WIRE_BOOL(launch_request, job.hosts_store),
    WIRE_STRUCT(launch_request, job.redirect, &list_table),
    WIRE_STRUCT(launch_request, job.tee, &list_table),
    WIRE_STRUCT(launch_request, job.shown_local, &list_table),
    WIRE_STRUCT(launch_request, job.shown, &list_table),
    WIRE_BOOL(launch_request, job.isolate),
    WIRE_NUMBER(launch_request, job.binding, 1, 0, BINDING_KINDS - 1),
};

static const char *check_request(const void *message)
{
    const launch_request *o = message;

    return o->job.ports.last < o->job.ports.first ? "job.ports.last" : NULL;
}

static const wire_table request_table =
    WIRE_TABLE(launch_request, "a launch request", request, check_request);

void launch_request_write(wire_writer *w, const launch_request *o)
{
    wire_write_u32(w, LAUNCH_REQUEST_VERSION);
    wire_write_fields(w, &request_table, o);
}

ls_status launch_request_read(const frame *f, launch_request *out)
{
    void *memory;
    wire_reader r;
    uint32_t version;

    *out = (launch_request){0};
    if (f->type != REMOTE_LAUNCH_REQUEST)
        return ls_fail(LS_EPROTO, "message %u instead of a launch request", f->type);
    memory = ls_calloc(f->bytes + 1, 1);
    if (memory == NULL)
        return ls_fail(LS_ENOMEM, "no memory for a launch request of %zu bytes", f->bytes);
    memcpy(memory, f->body, f->bytes);
    r = wire_reader_over(memory, f->bytes);
    version = wire_read_u32(&r);
    if (version == LAUNCH_REQUEST_VERSION)
        wire_read_fields(&r, &request_table, out);
    out->memory = memory;
    out->memory_bytes = f->bytes;
    if (version == LAUNCH_REQUEST_VERSION && !r.failed && r.at == r.bytes)
        return LS_OK;
    launch_request_free(out);
    if (version != LAUNCH_REQUEST_VERSION)
        return ls_fail(LS_EPROTO, "launch request of version %u, this Lockstep reads version %d",
                       version, LAUNCH_REQUEST_VERSION);
    return wire_reader_end(&r, request_table.what);
}

void launch_request_free(launch_request *o)
{
    net_key_wipe(&o->key);
    if (o->memory != NULL)
        explicit_bzero(o->memory, o->memory_bytes); /* the key is in it */
    wire_free_fields(&request_table, o);
    ls_free(o->memory);
    *o = (launch_request){0};
}

/* --- what follows it --- */

ls_status remote_read_window(const frame *f, size_t *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    *out = wire_read_u32(&r);
    r.failed |= *out < 1 || *out > REMOTE_INPUT_WINDOW;
    return wire_reader_end(&r, "a window of rank 0's input");
}

ls_status remote_read_failure_line(const frame *f, int *rank, uint64_t *hash)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t number = wire_read_u32(&r);

    *rank = (int)number;
    *hash = wire_read_u64(&r);
    r.failed |= number > INT32_MAX;
    return wire_reader_end(&r, "the failure of a rank");
}

ls_status remote_read_output(const frame *f, int *rank, int *stream, const char **bytes, size_t *n)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t number = wire_read_u32(&r);

    *rank = (int)number;
    *stream = wire_read_u8(&r);
    if (r.failed || number > INT32_MAX || *stream > 1)
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
