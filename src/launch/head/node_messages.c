/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node_messages.c - writes and reads the bodies of the frames between head and agents. A reader
 * checks every number against its bounds and makes every text printable. Called by both sides.
 */
#include "launch/head/node_messages.h"

#include "base/alloc.h"
#include "base/text.h"

#include <string.h>

#define NONE UINT32_MAX /* -1 on the wire */

/* A number that must fit an int; -1 is allowed where `least` is -1. */
static int read_int(wire_reader *r, int least, int most)
{
    const uint32_t v = wire_read_u32(r);

    if (v == NONE && least < 0)
        return -1;
    if (v > (uint32_t)most || (int)v < least)
        r->failed = true;
    return r->failed ? least : (int)v;
}

static bool read_bool(wire_reader *r)
{
    return wire_read_u8(r) != 0;
}

/* A line of another machine, made printable. */
static void read_line(wire_reader *r, char *out, size_t n)
{
    size_t bytes;
    const uint8_t *text = wire_read_bytes(r, n - 1, &bytes);

    out[0] = 0;
    if (text == NULL)
        return;
    memcpy(out, text, bytes);
    out[bytes] = 0;
    text_printable(out, n, out);
}

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

static void write_int(wire_writer *w, int v)
{
    wire_write_u32(w, (uint32_t)v);
}

static void write_cut(wire_writer *w, const char *text, size_t most)
{
    wire_write_bytes(w, text, strnlen(text, most));
}

/* --- hello --- */

void node_write_hello(wire_writer *w, const rdzv_hello *h)
{
    wire_write_u64(w, h->uid);
    write_int(w, h->id);
    write_int(w, h->n_local);
    write_int(w, h->min_nodes);
    write_int(w, h->max_nodes);
    wire_write_u64(w, h->run_id);
    write_cut(w, h->run_name != NULL ? h->run_name : "", RDZV_NAME_BYTES - 1);
    wire_write_text(w, h->version);
    write_cut(w, h->host, RDZV_HOST_BYTES - 1);
    write_int(w, h->n_per_node);
    for (int i = 0; i < h->n_per_node; i++)
        write_int(w, h->per_node[i]);
}

ls_status node_read_hello(const frame *f, node_hello *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    ls_status st;

    memset(out, 0, sizeof(*out));
    out->hello.uid = wire_read_u64(&r);
    out->hello.id = read_int(&r, -1, RDZV_NODES_MAX - 1);
    out->hello.n_local = read_int(&r, 0, RDZV_LOCAL_MAX);
    out->hello.min_nodes = read_int(&r, 0, RDZV_NODES_MAX);
    out->hello.max_nodes = read_int(&r, 0, RDZV_NODES_MAX);
    out->hello.run_id = wire_read_u64(&r);
    read_line(&r, out->run_name, sizeof(out->run_name));
    read_line(&r, out->version, sizeof(out->version));
    read_line(&r, out->host, sizeof(out->host));
    out->hello.n_per_node = read_int(&r, 0, RDZV_NODES_MAX);
    r.failed |= r.bytes - r.at != (size_t)out->hello.n_per_node * 4;
    if (!r.failed && out->hello.n_per_node > 0) {
        out->per_node = ls_calloc((size_t)out->hello.n_per_node, sizeof(*out->per_node));
        if (out->per_node == NULL)
            return ls_fail(LS_ENOMEM, "no memory for a list of nodes");
        for (int i = 0; i < out->hello.n_per_node; i++)
            out->per_node[i] = read_int(&r, 0, INT32_MAX);
    }
    st = wire_reader_end(&r, "a node's hello");
    if (st != LS_OK)
        node_hello_free(out);
    out->hello.per_node = out->per_node;
    out->hello.run_name = out->run_name;
    out->hello.version = out->version;
    out->hello.host = out->host;
    return st;
}

void node_hello_free(node_hello *h)
{
    ls_free(h->per_node);
    h->per_node = NULL;
    h->hello.per_node = NULL;
    h->hello.n_per_node = 0;
}

/* --- failures and ends --- */

void node_write_failure(wire_writer *w, const node_failure *f)
{
    wire_write_u32(w, f->generation);
    write_int(w, f->local_rank);
    write_int(w, f->exit_code);
    wire_write_u8(w, f->crashed);
    wire_write_text(w, f->text);
}

ls_status node_read_failure(const frame *f, node_failure *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    memset(out, 0, sizeof(*out));
    out->generation = wire_read_u32(&r);
    out->local_rank = read_int(&r, -1, RDZV_LOCAL_MAX - 1);
    out->exit_code = read_int(&r, 0, 255);
    out->crashed = read_bool(&r);
    read_line(&r, out->text, sizeof(out->text));
    return wire_reader_end(&r, "a rank's failure");
}

void node_write_end(wire_writer *w, const node_end *e)
{
    wire_write_u32(w, e->generation);
    wire_write_u8(w, e->stopped);
    write_int(w, e->n_failed);
    write_int(w, e->n_stopped);
    write_int(w, e->local_rank);
    write_int(w, e->exit_code);
    wire_write_u8(w, e->crashed);
    wire_write_i64(w, e->error_s);
    write_cut(w, e->text, NODE_DETAILS_MAX);
    write_cut(w, e->details, NODE_DETAILS_MAX);
}

ls_status node_read_end(const frame *f, node_end *out, text_buf *text, text_buf *details)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    memset(out, 0, sizeof(*out));
    out->generation = wire_read_u32(&r);
    out->stopped = read_bool(&r);
    out->n_failed = read_int(&r, 0, RDZV_LOCAL_MAX);
    out->n_stopped = read_int(&r, 0, RDZV_LOCAL_MAX);
    out->local_rank = read_int(&r, -1, RDZV_LOCAL_MAX - 1);
    out->exit_code = read_int(&r, 0, 255);
    out->crashed = read_bool(&r);
    out->error_s = wire_read_i64(&r);
    read_lines(&r, NODE_DETAILS_MAX, text);
    read_lines(&r, NODE_DETAILS_MAX, details);
    if (out->local_rank >= 0 && out->exit_code == 0)
        r.failed = true; /* no failure */
    out->text = text_str(text);
    out->details = text_str(details);
    return wire_reader_end(&r, "the end of a node's ranks");
}

/* --- welcome --- */

const char *node_silence_text(char buf[NODE_SILENCE_TEXT], int64_t silence_ms)
{
    return text_format(buf, NODE_SILENCE_TEXT, "no heartbeat for %g s", (double)silence_ms / 1e3);
}

void node_write_welcome(wire_writer *w, const node_welcome *v)
{
    const rdzv_place *p = &v->place;

    wire_write_u32(w, p->generation);
    write_int(w, p->n_restarts);
    write_int(w, p->node);
    write_int(w, p->n_nodes);
    write_int(w, p->rank_base);
    write_int(w, p->n_local);
    write_int(w, p->world_size);
    wire_write_u8(w, p->is_late);
    write_int(w, v->max_restarts);
    write_int(w, v->silence_ms);
    wire_write_text(w, v->job);
    write_int(w, v->hub_port);
    wire_write_text(w, v->hub_unix);
    write_int(w, v->members_port);
    wire_write_text(w, v->members_unix);
    wire_write_u8(w, v->has_standby);
    write_int(w, v->head_node);
    wire_write_u8(w, v->has_store);
    wire_write_u8(w, v->collects_rings);
    wire_write_text(w, v->mpi_layout);
}

/* The job's name becomes part of environments, file names and handshakes. */
static bool is_job_id(const char *job)
{
    return strlen(job) == JOB_ID_BYTES - 1 && strspn(job, "0123456789abcdef") == JOB_ID_BYTES - 1;
}

ls_status node_read_welcome(const frame *f, node_welcome *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    rdzv_place *p = &out->place;

    memset(out, 0, sizeof(*out));
    p->generation = wire_read_u32(&r);
    p->n_restarts = read_int(&r, 0, INT32_MAX);
    p->node = read_int(&r, 0, RDZV_NODES_MAX - 1);
    p->n_nodes = read_int(&r, 1, RDZV_NODES_MAX);
    p->rank_base = read_int(&r, 0, INT32_MAX);
    p->n_local = read_int(&r, 1, RDZV_LOCAL_MAX);
    p->world_size = read_int(&r, 1, INT32_MAX);
    p->is_late = read_bool(&r);
    out->max_restarts = read_int(&r, 0, INT32_MAX);
    out->silence_ms = read_int(&r, 1, INT32_MAX);
    wire_read_text(&r, out->job, sizeof(out->job));
    out->hub_port = read_int(&r, 0, 65535);
    wire_read_text(&r, out->hub_unix, sizeof(out->hub_unix));
    out->members_port = read_int(&r, 0, 65535);
    wire_read_text(&r, out->members_unix, sizeof(out->members_unix));
    out->has_standby = read_bool(&r);
    out->head_node = read_int(&r, 0, RDZV_NODES_MAX - 1);
    out->has_store = read_bool(&r);
    out->collects_rings = read_bool(&r);
    wire_read_text(&r, out->mpi_layout, sizeof(out->mpi_layout));
    LS_TRY(wire_reader_end(&r, "a welcome"));
    if (p->generation == 0 || p->node >= p->n_nodes || out->head_node >= p->n_nodes ||
        p->n_local > p->world_size || p->rank_base > p->world_size - p->n_local ||
        !is_job_id(out->job) || (out->hub_port != 0 && out->hub_unix[0] != 0) ||
        (out->members_port != 0 && out->members_unix[0] != 0) || !pmi_is_layout(out->mpi_layout))
        return ls_fail(LS_EPROTO, "malformed welcome: node %d of %d, %d rank%s from %d of %d",
                       p->node, p->n_nodes, p->n_local, text_plural(p->n_local), p->rank_base,
                       p->world_size);
    return LS_OK;
}

/* --- elastic jobs --- */

void node_write_slot(wire_writer *w, const node_slot *s)
{
    wire_write_u32(w, s->generation);
    write_int(w, s->local_rank);
    write_int(w, s->member);
}

ls_status node_read_slot(const frame *f, node_slot *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    out->generation = wire_read_u32(&r);
    out->local_rank = read_int(&r, 0, RDZV_LOCAL_MAX - 1);
    out->member = read_int(&r, 0, INT32_MAX);
    return wire_reader_end(&r, "a place of an elastic job");
}

void node_write_found(wire_writer *w, const node_found *v)
{
    wire_write_u32(w, v->generation);
    write_int(w, v->local_rank);
    write_int(w, v->member);
    wire_write_u8(w, (uint8_t)v->found);
}

ls_status node_read_found(const frame *f, node_found *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    uint8_t found;

    out->generation = wire_read_u32(&r);
    out->local_rank = read_int(&r, 0, RDZV_LOCAL_MAX - 1);
    out->member = read_int(&r, 0, INT32_MAX);
    found = wire_read_u8(&r);
    r.failed |= found > RECOVERY_HAS_ENDED;
    out->found = (recovery_found)found;
    return wire_reader_end(&r, "what has become of a rank");
}

/* --- the store of PyTorch programs --- */

void node_write_master(wire_writer *w, const node_master *m)
{
    wire_write_u32(w, m->generation);
    write_int(w, m->port);
}

ls_status node_read_master(const frame *f, node_master *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    out->generation = wire_read_u32(&r);
    out->port = read_int(&r, 0, 65535);
    return wire_reader_end(&r, "a node's message");
}

static void write_address(wire_writer *w, const net_address *a)
{
    char text[NET_ADDRESS_TEXT_MAX];

    wire_write_text(w, net_address_text(text, sizeof(text), a));
}

static void read_address(wire_reader *r, net_address *out)
{
    char text[NET_ADDRESS_TEXT_MAX];

    wire_read_text(r, text, sizeof(text));
    if (!r->failed && net_address_decode(text, out) != LS_OK)
        r->failed = true;
}

void node_write_owner_query(wire_writer *w, const node_owner_query *o)
{
    wire_write_u32(w, o->generation);
    wire_write_u32(w, o->question);
    write_address(w, &o->client);
    write_address(w, &o->server);
}

ls_status node_read_owner_query(const frame *f, node_owner_query *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    memset(out, 0, sizeof(*out));
    out->generation = wire_read_u32(&r);
    out->question = wire_read_u32(&r);
    read_address(&r, &out->client);
    read_address(&r, &out->server);
    return wire_reader_end(&r, "a query for the owner of a connection");
}

void node_write_owner_answer(wire_writer *w, const node_owner_answer *o)
{
    wire_write_u32(w, o->generation);
    wire_write_u32(w, o->question);
    wire_write_u8(w, o->is_users);
}

ls_status node_read_owner_answer(const frame *f, node_owner_answer *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    out->generation = wire_read_u32(&r);
    out->question = wire_read_u32(&r);
    out->is_users = read_bool(&r);
    return wire_reader_end(&r, "the owner of a connection");
}

/* --- requests to end --- */

void node_write_stop(wire_writer *w, const node_stop *s)
{
    write_int(w, s->signal);
    wire_write_i64(w, s->grace_ms);
    wire_write_text(w, s->text);
}

ls_status node_read_stop(const frame *f, node_stop *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    memset(out, 0, sizeof(*out));
    out->signal = read_int(&r, 1, 64);
    out->grace_ms = wire_read_i64(&r);
    read_line(&r, out->text, sizeof(out->text));
    if (out->grace_ms < 0 || out->grace_ms > NODE_GRACE_MAX_MS)
        r.failed = true;
    return wire_reader_end(&r, "a request to end");
}

void node_write_over(wire_writer *w, const node_over *o)
{
    write_int(w, o->exit_code);
    wire_write_u8(w, o->failed);
    write_cut(w, o->report, NODE_REPORT_MAX);
}

ls_status node_read_over(const frame *f, node_over *out, text_buf *report)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    memset(out, 0, sizeof(*out));
    out->exit_code = read_int(&r, 0, 255);
    out->failed = read_bool(&r);
    read_lines(&r, NODE_REPORT_MAX, report);
    out->report = text_str(report);
    return wire_reader_end(&r, "the end of a job");
}

/* --- small ones --- */

void node_write_exit(wire_writer *w, const node_exit *l)
{
    wire_write_u32(w, l->generation);
    write_int(w, l->local_rank);
    write_int(w, l->pid);
    write_int(w, (int)l->stage);
}

ls_status node_read_exit(const frame *f, node_exit *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    out->generation = wire_read_u32(&r);
    out->local_rank = read_int(&r, 0, RDZV_LOCAL_MAX - 1);
    out->pid = read_int(&r, 0, INT32_MAX);
    out->stage = (pmi_stage)read_int(&r, PMI_SILENT, PMI_LEFT);
    return wire_reader_end(&r, "the end of a rank");
}

void node_write_ring(wire_writer *w, const node_ring *r)
{
    wire_write_u32(w, r->generation);
    write_int(w, r->local_rank);
    wire_write_u32(w, r->total);
    wire_write_u32(w, r->offset);
    wire_write_bytes(w, r->bytes, r->n);
}

ls_status node_read_ring(const frame *f, node_ring *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    memset(out, 0, sizeof(*out));
    out->generation = wire_read_u32(&r);
    out->local_rank = read_int(&r, 0, RDZV_LOCAL_MAX - 1);
    out->total = wire_read_u32(&r);
    out->offset = wire_read_u32(&r);
    out->bytes = wire_read_bytes(&r, NODE_BODY_MAX, &out->n);
    LS_TRY(wire_reader_end(&r, "a flight recorder"));
    if (out->total > NODE_RING_MAX || out->offset > out->total || out->n > out->total - out->offset)
        return ls_fail(LS_EPROTO, "a flight recorder of %u bytes with %zu at %u", out->total,
                       out->n, out->offset);
    return LS_OK;
}

void node_write_mpi(wire_writer *w, const node_mpi *m)
{
    wire_write_u32(w, m->generation);
    wire_write_u32(w, m->barrier);
    wire_write_u8(w, m->has_members);
}

ls_status node_read_mpi(const frame *f, node_mpi *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    out->generation = wire_read_u32(&r);
    out->barrier = wire_read_u32(&r);
    out->has_members = read_bool(&r);
    return wire_reader_end(&r, "the MPI state of ranks");
}

void node_write_barrier(wire_writer *w, const node_barrier *b)
{
    wire_write_u32(w, b->generation);
    wire_write_u32(w, b->number);
}

ls_status node_read_barrier(const frame *f, node_barrier *out)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);

    out->generation = wire_read_u32(&r);
    out->number = wire_read_u32(&r);
    return wire_reader_end(&r, "a barrier of MPI programs");
}

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
