/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_messages.c - writes and reads the bodies of the frames between head and agents. A reader
 * checks every number against its bounds and makes every text printable. Called by both sides.
 */
#include "launch/head/node_messages.h"

#include "base/text.h"

#include <string.h>

/* Several lines, of `most` bytes, made printable except for newlines and tabs. */
static void read_lines(wire_reader *r, size_t most, text_buf *out)
{
    size_t bytes;
    const char *text = (const char *)wire_read_bytes(r, most, &bytes);
    size_t taken;

    text_free(out);
    for (size_t i = 0; text != NULL && i < bytes; i += taken) {
        const size_t printable = text_char_bytes(text + i, bytes - i);
        const bool is_space = text[i] == '\n' || text[i] == '\t';

        taken = printable > 0 ? printable : 1;
        text_append_bytes(out, printable > 0 || is_space ? text + i : "?", taken);
    }
}

static void write_cut(wire_writer *w, const char *text, size_t most)
{
    wire_write_bytes(w, text, strnlen(text, most));
}

/* --- hello --- */

enum { LOCAL_LAST = RDZV_LOCAL_MAX - 1, NODE_LAST = RDZV_NODES_MAX - 1, PORT_LAST = 65535 };

static const wire_field node_ranks[] = {WIRE_NUMBER(node_count, n, 4, 0, INT32_MAX)};
static const wire_table node_ranks_table =
    WIRE_TABLE(node_count, "the ranks of a node", node_ranks, NULL);

static const wire_field hello[] = {
    WIRE_64(node_hello, hello.uid),
    WIRE_NUMBER(node_hello, hello.id, 4, -1, NODE_LAST),
    WIRE_NUMBER(node_hello, hello.n_local, 4, 0, RDZV_LOCAL_MAX),
    WIRE_NUMBER(node_hello, hello.min_nodes, 4, 0, RDZV_NODES_MAX),
    WIRE_NUMBER(node_hello, hello.max_nodes, 4, 0, RDZV_NODES_MAX),
    WIRE_64(node_hello, hello.run_id),
    WIRE_LINE(node_hello, run_name),
    WIRE_LINE(node_hello, version),
    WIRE_LINE(node_hello, host),
    WIRE_NEW_LIST(node_hello, per_node, hello.n_per_node, 4, 0, RDZV_NODES_MAX, &node_ranks_table),
};
static const wire_table hello_table = WIRE_TABLE(node_hello, "a node's hello", hello, NULL);

void node_write_hello(wire_writer *w, const rdzv_hello *h)
{
    node_hello sent = {.hello = *h, .per_node = (node_count *)(uintptr_t)h->per_node};

    text_format(sent.run_name, sizeof(sent.run_name), "%s", h->run_name != NULL ? h->run_name : "");
    text_format(sent.version, sizeof(sent.version), "%s", h->version);
    text_format(sent.host, sizeof(sent.host), "%s", h->host);
    wire_write_fields(w, &hello_table, &sent);
}

ls_status node_read_hello(const frame *f, node_hello *out)
{
    LS_TRY(wire_read_frame(f, &hello_table, out));
    out->hello.per_node = (const int *)(const void *)out->per_node;
    out->hello.run_name = out->run_name;
    out->hello.version = out->version;
    out->hello.host = out->host;
    return LS_OK;
}

void node_hello_free(node_hello *h)
{
    wire_free_fields(&hello_table, h);
    h->hello.per_node = NULL;
}

/* --- messages without pointers --- */

static const wire_field failure[] = {
    WIRE_ID(node_failure, generation),
    WIRE_NUMBER(node_failure, local_rank, 4, -1, LOCAL_LAST),
    WIRE_NUMBER(node_failure, exit_code, 4, 0, 255),
    WIRE_BOOL(node_failure, crashed),
    WIRE_LINE(node_failure, text),
};
const wire_table node_failure_table = WIRE_TABLE(node_failure, "a rank's failure", failure, NULL);

static const wire_field welcome[] = {
    WIRE_NUMBER(node_welcome, place.generation, 4, 1, UINT32_MAX),
    WIRE_NUMBER(node_welcome, place.n_restarts, 4, 0, INT32_MAX),
    WIRE_NUMBER(node_welcome, place.node, 4, 0, NODE_LAST),
    WIRE_NUMBER(node_welcome, place.n_nodes, 4, 1, RDZV_NODES_MAX),
    WIRE_NUMBER(node_welcome, place.rank_base, 4, 0, INT32_MAX),
    WIRE_NUMBER(node_welcome, place.n_local, 4, 1, RDZV_LOCAL_MAX),
    WIRE_NUMBER(node_welcome, place.world_size, 4, 1, INT32_MAX),
    WIRE_BOOL(node_welcome, place.is_late),
    WIRE_NUMBER(node_welcome, max_restarts, 4, 0, INT32_MAX),
    WIRE_NUMBER(node_welcome, silence_ms, 4, 1, INT32_MAX),
    WIRE_TEXT(node_welcome, job),
    WIRE_NUMBER(node_welcome, hub_port, 4, 0, PORT_LAST),
    WIRE_TEXT(node_welcome, hub_unix),
    WIRE_NUMBER(node_welcome, members_port, 4, 0, PORT_LAST),
    WIRE_TEXT(node_welcome, members_unix),
    WIRE_BOOL(node_welcome, has_standby),
    WIRE_NUMBER(node_welcome, head_node, 4, 0, NODE_LAST),
    WIRE_BOOL(node_welcome, has_store),
    WIRE_BOOL(node_welcome, collects_rings),
    WIRE_TEXT(node_welcome, mpi_layout),
};

static const char *check_welcome(const void *message)
{
    const node_welcome *v = message;
    const rdzv_place *p = &v->place;

    if (p->node >= p->n_nodes)
        return "node";
    if (v->head_node >= p->n_nodes)
        return "head_node";
    if (p->n_local > p->world_size || p->rank_base > p->world_size - p->n_local)
        return "world_size";
    // it becomes part of environments, file names and handshakes
    if (strlen(v->job) != JOB_ID_BYTES - 1 ||
        strspn(v->job, "0123456789abcdef") != JOB_ID_BYTES - 1)
        return "job";
    if ((v->hub_port != 0 && v->hub_unix[0] != 0) ||
        (v->members_port != 0 && v->members_unix[0] != 0))
        return "hub_port or members_port";
    return pmi_is_layout(v->mpi_layout) ? NULL : "mpi_layout";
}

const wire_table node_welcome_table = WIRE_TABLE(node_welcome, "a welcome", welcome, check_welcome);

static const wire_field master[] = {
    WIRE_ID(node_master, generation),
    WIRE_NUMBER(node_master, port, 4, 0, PORT_LAST),
};
const wire_table node_master_table = WIRE_TABLE(node_master, "a node's message", master, NULL);

static const wire_field slot[] = {
    WIRE_ID(node_slot, generation),
    WIRE_NUMBER(node_slot, local_rank, 4, 0, LOCAL_LAST),
    WIRE_NUMBER(node_slot, member, 4, 0, INT32_MAX),
};
const wire_table node_slot_table = WIRE_TABLE(node_slot, "a place of an elastic job", slot, NULL);

static const wire_field found[] = {
    WIRE_ID(node_found, generation),
    WIRE_NUMBER(node_found, local_rank, 4, 0, LOCAL_LAST),
    WIRE_NUMBER(node_found, member, 4, 0, INT32_MAX),
    WIRE_NUMBER(node_found, found, 1, 0, RECOVERY_HAS_ENDED),
};
const wire_table node_found_table =
    WIRE_TABLE(node_found, "what has become of a rank", found, NULL);

static const wire_field owner_query[] = {
    WIRE_ID(node_owner_query, generation),
    WIRE_ID(node_owner_query, question),
    WIRE_ADDRESS(node_owner_query, client, NET_UNIX),
    WIRE_ADDRESS(node_owner_query, server, NET_UNIX),
};
const wire_table node_owner_query_table =
    WIRE_TABLE(node_owner_query, "a query for the owner of a connection", owner_query, NULL);

static const wire_field owner_answer[] = {
    WIRE_ID(node_owner_answer, generation),
    WIRE_ID(node_owner_answer, question),
    WIRE_BOOL(node_owner_answer, is_users),
};
const wire_table node_owner_answer_table =
    WIRE_TABLE(node_owner_answer, "the owner of a connection", owner_answer, NULL);

static const wire_field stop[] = {
    WIRE_NUMBER(node_stop, signal, 4, 1, 64),
    WIRE_NUMBER(node_stop, grace_ms, 8, 0, NODE_GRACE_MAX_MS),
    WIRE_LINE(node_stop, text),
};
const wire_table node_stop_table = WIRE_TABLE(node_stop, "a request to end", stop, NULL);

static const wire_field rank_exit[] = {
    WIRE_ID(node_exit, generation),
    WIRE_NUMBER(node_exit, local_rank, 4, 0, LOCAL_LAST),
    WIRE_NUMBER(node_exit, pid, 4, 0, INT32_MAX),
    WIRE_NUMBER(node_exit, state, 4, PMI_SILENT, PMI_LEFT),
};
const wire_table node_exit_table = WIRE_TABLE(node_exit, "the end of a rank", rank_exit, NULL);

static const wire_field ring[] = {
    WIRE_ID(node_ring, generation),
    WIRE_NUMBER(node_ring, local_rank, 4, 0, LOCAL_LAST),
    WIRE_NUMBER(node_ring, total, 4, 0, NODE_RING_MAX),
    WIRE_ID(node_ring, offset),
    WIRE_BYTES(node_ring, bytes, n, NODE_BODY_MAX),
};

static const char *check_ring(const void *message)
{
    const node_ring *r = message;

    return r->offset <= r->total && r->n <= r->total - r->offset ? NULL : "offset";
}

const wire_table node_ring_table = WIRE_TABLE(node_ring, "a flight recorder", ring, check_ring);

static const wire_field mpi[] = {
    WIRE_ID(node_mpi, generation),
    WIRE_ID(node_mpi, barrier),
    WIRE_BOOL(node_mpi, has_members),
};
const wire_table node_mpi_table = WIRE_TABLE(node_mpi, "the MPI state of ranks", mpi, NULL);

static const wire_field barrier[] = {
    WIRE_ID(node_barrier, generation),
    WIRE_ID(node_barrier, number),
};
const wire_table node_barrier_table =
    WIRE_TABLE(node_barrier, "a barrier of MPI programs", barrier, NULL);

/* --- ends, whose long texts follow the fields --- */

static const wire_field end[] = {
    WIRE_ID(node_end, generation),
    WIRE_BOOL(node_end, stopped),
    WIRE_NUMBER(node_end, n_well, 4, 0, RDZV_LOCAL_MAX),
    WIRE_NUMBER(node_end, n_failed, 4, 0, RDZV_LOCAL_MAX),
    WIRE_NUMBER(node_end, n_stopped, 4, 0, RDZV_LOCAL_MAX),
    WIRE_NUMBER(node_end, local_rank, 4, -1, LOCAL_LAST),
    WIRE_NUMBER(node_end, exit_code, 4, 0, 255),
    WIRE_BOOL(node_end, crashed),
    WIRE_64(node_end, error_s),
};

static const char *check_end(const void *message)
{
    const node_end *e = message;

    return e->local_rank >= 0 && e->exit_code == 0 ? "exit_code" : NULL; /* no failure */
}

static const wire_table end_table =
    WIRE_TABLE(node_end, "the end of a node's ranks", end, check_end);

void node_write_end(wire_writer *w, const node_end *e)
{
    wire_write_fields(w, &end_table, e);
    write_cut(w, e->text, NODE_DETAILS_MAX);
    write_cut(w, e->details, NODE_DETAILS_MAX);
}

ls_status node_read_end(const frame *f, node_end *out, text_buf *text, text_buf *details)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    wire_read_fields(&r, &end_table, out);
    read_lines(&r, NODE_DETAILS_MAX, text);
    read_lines(&r, NODE_DETAILS_MAX, details);
    out->text = text_str(text);
    out->details = text_str(details);
    return wire_reader_end(&r, end_table.what);
}

static const wire_field over[] = {
    WIRE_NUMBER(node_over, exit_code, 4, 0, 255),
    WIRE_BOOL(node_over, failed),
};
static const wire_table over_table = WIRE_TABLE(node_over, "the end of a job", over, NULL);

void node_write_over(wire_writer *w, const node_over *o)
{
    wire_write_fields(w, &over_table, o);
    write_cut(w, o->report, NODE_REPORT_MAX);
}

ls_status node_read_over(const frame *f, node_over *out, text_buf *report)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    wire_read_fields(&r, &over_table, out);
    read_lines(&r, NODE_REPORT_MAX, report);
    out->report = text_str(report);
    return wire_reader_end(&r, over_table.what);
}

const char *node_silence_text(char buf[NODE_SILENCE_TEXT], int64_t silence_ms)
{
    return text_format(buf, NODE_SILENCE_TEXT, "no heartbeat for %g s", (double)silence_ms / 1e3);
}

/* --- one number, one text --- */

ls_status node_read_number(const frame *f, uint32_t *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    *out = wire_read_u32(&r);
    return wire_reader_end(&r, "a node's message");
}

ls_status node_read_text(const frame *f, text_buf *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    read_lines(&r, NODE_DETAILS_MAX, out);
    return wire_reader_end(&r, "a text from another node");
}
