/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hublink.c - connects to a hub, sends requests and waits for their replies, for control.c and
 * hublink_store.c. The first failure breaks the link for good: all later calls return it.
 */
#include "hub/hublink.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/report/wait_report.h"
#include "base/text.h"
#include "host/process_id.h"
#include "hub/hub_messages.h"
#include "net/socket.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS    10000 /* how much later than its timeout an answer may come */
#define RETRY_MS     20    /* doubled with each refused connection, up to */
#define RETRY_MAX_MS 4000

/* The descriptor stays open, because the caller may poll it. */
ls_status hublink_break(hublink *l, ls_status st)
{
    if (l->broken == LS_OK) {
        l->broken = st;
        text_format(l->broken_text, sizeof(l->broken_text), "%s", ls_last_error());
        shutdown(l->fd, SHUT_RDWR);
    }
    return st;
}

static ls_status check_link(const hublink *l)
{
    if (l->broken != LS_OK)
        return ls_fail(l->broken, "%s", l->broken_text);
    return LS_OK;
}

/* --- opening --- */

/* Without a key only the kernel authenticates the other end. */
static ls_status check_keyless(const hublink_options *opt, int fd)
{
    net_address own;
    uid_t uid;

    if (opt->key != NULL || opt->insecure)
        return LS_OK;
    LS_TRY(net_address_of_socket(fd, &own));
    if (net_address_family(&own) != NET_UNIX)
        return ls_fail(LS_EAUTH, "without a key only a unix socket of this host is allowed");
    LS_TRY(net_peer_user(fd, &uid, NULL));
    if (uid != geteuid())
        return ls_fail(LS_EAUTH, "the server belongs to user %u, not to %u", (unsigned)uid,
                       (unsigned)geteuid());
    return LS_OK;
}

static const char *server_of(const hublink_options *opt)
{
    return opt->server == NULL ? "the store" : opt->server;
}

static ls_status try_to_connect(const hublink_options *opt, int64_t deadline_ms, int *fd,
                                int *which)
{
    if (opt->refused_is_final || opt->n_hub > 1)
        return net_connect_any(opt->hub, opt->n_hub, deadline_ms, fd, which);
    return net_connect_retry(&opt->hub[0], NET_STREAM, deadline_ms, fd);
}

/* Retries until the deadline, and reports a long wait. */
static ls_status connect_hub(const hublink_options *opt, hublink *l, wait_report *report)
{
    int which = 0;

    l->name[0] = 0;
    for (;;) {
        const ls_status st =
            try_to_connect(opt, wait_report_deadline_ms(report, opt->deadline_ms), &l->fd, &which);

        if (st == LS_OK)
            break;
        if (wait_report_is_due(report))
            ls_log(LS_LOG_WARN, "hub", "no connection to %s for %.1f s: %s", server_of(opt),
                   wait_report_seconds(report), ls_last_error());
        if ((st != LS_ETIMEOUT && (st != LS_EPEER || opt->refused_is_final)) ||
            ls_deadline_left(opt->deadline_ms) == 0)
            return st;
        poll(NULL, 0, RETRY_MS);
    }
    net_address_text(l->name, sizeof(l->name), &opt->hub[which]);
    text_format(l->store.url, sizeof(l->store.url), "%s", l->name);
    return LS_OK;
}

const char *hublink_text(const hublink *l, char *buf, size_t n)
{
    if (l->server_pid > 0)
        return text_format(buf, n, "%s at %s (pid %d, %s)", l->server, l->name, (int)l->server_pid,
                           process_state_text(process_state(l->server_pid)));
    return text_format(buf, n, "%s at %s", l->server, l->name);
}

/* One attempt. LS_EPEER: the hub may be ending, or have too many unauthenticated peers. */
static ls_status open_once(const hublink_options *opt, hublink *l, wait_report *report)
{
    char text[sizeof(l->server) + sizeof(l->name) + 8];
    seal_pair seals;
    ls_status st;

    LS_TRY(connect_hub(opt, l, report));
    if (net_peer_user(l->fd, NULL, &l->server_pid) != LS_OK)
        l->server_pid = 0;
    st = net_set_stream_options(l->fd, net_silence_ms());
    if (st == LS_OK)
        st = check_keyless(opt, l->fd);
    if (st == LS_OK)
        st = handshake_connect(l->fd, opt->key, &opt->claim,
                               text_format(text, sizeof(text), "%s at %s", l->server, l->name),
                               opt->deadline_ms, report, &seals);
    if (st != LS_OK) {
        file_close(&l->fd);
        return st;
    }
    l->in.seal = seals.in;
    l->out.seal = seals.out;
    seal_pair_wipe(&seals);
    return LS_OK;
}

ls_status hublink_open(const hublink_options *opt, hublink_push_fn on_push, void *push_arg,
                       hublink *out)
{
    wait_report report = wait_report_begin(wait_report_setting_ms());
    int pause_ms = 0;
    ls_status st;

    memset(out, 0, sizeof(*out));
    text_format(out->server, sizeof(out->server), "%s", server_of(opt));
    out->answer_ms = opt->answer_ms;
    out->store.ops = &hublink_borrowed_store;
    out->fd = -1;
    out->on_push = on_push;
    out->push_arg = push_arg;
    frame_reader_init(&out->in, HUB_MESSAGE_BODY_MAX);
    frame_queue_init(&out->out, HUB_MESSAGE_QUEUE_MAX + HUB_MESSAGE_BODY_MAX);
    for (;;) {
        const int left = ls_deadline_left(opt->deadline_ms);
        int wait_ms;

        st = open_once(opt, out, &report);
        if (st != LS_EPEER || left == 0 || (opt->refused_is_final && out->name[0] == 0))
            break;
        pause_ms = net_retry_pause_ms(pause_ms, RETRY_MS, RETRY_MAX_MS, &wait_ms);
        poll(NULL, 0, left > 0 && left < wait_ms ? left : wait_ms);
    }
    return st;
}

void hublink_close(hublink *l)
{
    file_close(&l->fd);
    frame_reader_free(&l->in);
    frame_queue_free(&l->out);
    wire_writer_free(&l->body);
}

/* --- frames --- */

/* The next frame, after at most one read. *have = false: none has arrived. */
static ls_status take_frame(hublink *l, frame *f, bool *have)
{
    size_t moved;
    ls_status st = frame_reader_next(&l->in, f, have);

    if (st == LS_OK && !*have) {
        st = frame_reader_fill(&l->in, l->fd, l->name, &moved);
        if (st == LS_OK && moved > 0)
            st = frame_reader_next(&l->in, f, have);
    }
    return st == LS_OK ? st : hublink_break(l, ls_context(st, "%s", l->server));
}

static bool is_reply(const frame *f)
{
    return f->type == HUB_MESSAGE_REPLY;
}

static ls_status deliver(hublink *l, const frame *f)
{
    const ls_status st = l->on_push(l->push_arg, f);

    return st == LS_OK ? st : hublink_break(l, ls_context(st, "%s", l->name));
}

/* Delivers all frames that have arrived but replies: late answers to abandoned requests. */
static ls_status deliver_all(hublink *l)
{
    frame f;
    bool have = true;

    while (have) {
        LS_TRY(take_frame(l, &f, &have));
        if (have && !is_reply(&f))
            LS_TRY(deliver(l, &f));
    }
    return LS_OK;
}

/* What the hub has sent before a failure to send counts: it is delivered. */
static ls_status break_output(hublink *l, ls_status st)
{
    char kept[LS_ERROR_BYTES];

    ls_error_save(kept);
    hublink_break(l, st);
    (void)!deliver_all(l);
    ls_error_restore(kept);
    return st;
}

static ls_status flush(hublink *l)
{
    const ls_status st = frame_queue_flush(&l->out, l->fd, l->name);

    return st == LS_OK ? st : break_output(l, st);
}

ls_status hublink_send(hublink *l, uint32_t type, const wire_writer *body)
{
    ls_status st;

    LS_TRY(check_link(l));
    LS_TRY(wire_writer_status(body));
    st = frame_queue_add(&l->out, type, body->data, body->bytes);
    if (st != LS_OK) {
        const size_t waiting = frame_queue_bytes(&l->out);

        return waiting == 0 ? st
                            : break_output(l, ls_fail(LS_EPEER, "%s does not read: %zu bytes wait",
                                                      l->name, waiting));
    }
    return flush(l);
}

void hublink_end(hublink *l, ls_status st, const char *text)
{
    if (l->over != LS_OK)
        return;
    l->over = st;
    text_format(l->over_text, sizeof(l->over_text), "%s", text);
}

static ls_status check_over(const hublink *l)
{
    if (l->over != LS_OK)
        return ls_fail(l->over, "%s", l->over_text);
    return LS_OK;
}

/* Delivers the frames that have arrived with an answer: poll() does not show them. The answer's own
 * bytes stay in place, because only reading moves them. */
static ls_status deliver_rest(hublink *l)
{
    frame f;
    bool have = true;

    while (have) {
        const ls_status st = frame_reader_next(&l->in, &f, &have);

        if (st != LS_OK)
            return hublink_break(l, ls_context(st, "%s", l->name));
        if (have && !is_reply(&f))
            LS_TRY(deliver(l, &f));
    }
    return LS_OK;
}

void hublink_trim(hublink *l)
{
    frame_reader_trim(&l->in);
}

ls_status hublink_poll(hublink *l)
{
    LS_TRY(check_link(l));
    LS_TRY(flush(l));
    return deliver_all(l);
}

/* Calls on_wait; returns until when the caller may sleep. */
static int64_t serve_wait(hublink *l, int64_t deadline_ms)
{
    const int64_t next_ms = l->on_wait == NULL ? INT64_MAX : l->on_wait(l->push_arg);

    return next_ms < deadline_ms ? next_ms : deadline_ms;
}

static void log_silence(const hublink *l, const wait_report *report)
{
    char text[sizeof(l->server) + sizeof(l->name) + 64];

    ls_log(LS_LOG_WARN, "hub", "%s has not answered for %.1f s",
           hublink_text(l, text, sizeof(text)), wait_report_seconds(report));
}

/* Sleeps until the hub has sent something, or takes more of the queued frames. report: NULL when an
 * answer may take long. */
static ls_status await_traffic(hublink *l, int64_t deadline_ms, wait_report *report)
{
    for (;;) {
        const int64_t due_ms =
            report == NULL ? deadline_ms : wait_report_deadline_ms(report, deadline_ms);
        const int64_t until_ms = serve_wait(l, due_ms);
        const short events = frame_queue_bytes(&l->out) > 0 ? POLLIN | POLLOUT : POLLIN;
        const ls_status st = net_wait(l->fd, events, until_ms);

        if (st == LS_OK)
            return flush(l);
        if (st != LS_ETIMEOUT || ls_deadline_left(deadline_ms) == 0)
            return st;
        if (report != NULL && wait_report_is_due(report))
            log_silence(l, report);
    }
}

void hublink_finish(hublink *l, int64_t deadline_ms)
{
    uint8_t ignored[4096];
    size_t moved;

    while (l->broken == LS_OK && frame_queue_bytes(&l->out) > 0) {
        if (net_wait(l->fd, POLLOUT, deadline_ms) != LS_OK || flush(l) != LS_OK)
            return;
    }
    if (l->broken != LS_OK || shutdown(l->fd, SHUT_WR) != 0)
        return;
    while (net_recv_some(l->fd, l->name, ignored, sizeof(ignored), &moved) == LS_OK) {
        if (moved == 0 && net_wait(l->fd, POLLIN, deadline_ms) != LS_OK)
            return;
    }
}

ls_status hublink_expect(hublink *l, uint32_t type, int64_t deadline_ms)
{
    wait_report report = wait_report_begin(wait_report_setting_ms());
    char text[HUB_MESSAGE_TEXT_MAX];
    frame f;
    bool have;

    LS_TRY(check_link(l));
    for (;;) {
        LS_TRY(take_frame(l, &f, &have));
        if (have && f.type == HUB_MESSAGE_REFUSED) {
            wire_reader r = wire_reader_over(f.body, f.bytes);

            wire_read_text(&r, text, sizeof(text));
            return ls_fail(LS_EMISMATCH, "%s", text);
        }
        if (have && f.type == type)
            return deliver_rest(l);
        if (have)
            return ls_fail(LS_EPROTO, "%s sent message %u, not %u", l->name, f.type, type);
        LS_TRY(await_traffic(l, deadline_ms, &report));
    }
}

wire_writer *hublink_begin(hublink *l)
{
    wire_writer_reset(&l->body);
    wire_write_u64(&l->body, ++l->last_id);
    return &l->body;
}

/* The status of a reply; its text becomes this thread's error. */
static ls_status read_reply(hublink *l, wire_reader *r)
{
    char text[HUB_MESSAGE_TEXT_MAX];
    const int32_t status = (int32_t)wire_read_u32(r);

    if (r->failed)
        return hublink_break(l, ls_fail(LS_EPROTO, "%s sent a cut-off answer", l->name));
    if (status == LS_OK)
        return LS_OK;
    wire_read_text(r, text, sizeof(text));
    if (status > 0 || r->failed)
        return hublink_break(l, ls_fail(LS_EPROTO, "malformed reply from %s", l->name));
    return ls_fail((ls_status)status, "%s", text);
}

/* Waits for the next frame and delivers it, unless it is a reply to any request (*have). */
static ls_status next_answer(hublink *l, int64_t deadline_ms, wait_report *report, frame *f,
                             bool *have)
{
    LS_TRY(take_frame(l, f, have));
    if (*have && !is_reply(f)) {
        *have = false;
        LS_TRY(deliver(l, f));
        return check_over(l);
    }
    return *have ? LS_OK : await_traffic(l, deadline_ms, report);
}

/* A late answer is skipped. A hub that must answer at once and does not breaks the connection. */
static ls_status give_up(hublink *l, int64_t timeout_ms)
{
    char text[sizeof(l->server) + sizeof(l->name) + 64];

    hublink_text(l, text, sizeof(text));
    if (timeout_ms > 0)
        return ls_fail(LS_ETIMEOUT, "%s has not answered for %.1f s", text,
                       (double)(ls_duration_ms(timeout_ms) + ANSWER_MS) / 1e3);
    return hublink_break(
        l, ls_fail(LS_EPEER, "%s has not answered for %.1f s", text, (double)l->answer_ms / 1e3));
}

ls_status hublink_request(hublink *l, uint32_t type, int64_t timeout_ms, wire_reader *reply)
{
    const int64_t limit_ms = timeout_ms == 0  ? l->answer_ms
                             : timeout_ms < 0 ? -1
                                              : ls_duration_ms(timeout_ms) + ANSWER_MS;
    const int64_t deadline_ms = ls_deadline_ms(limit_ms);
    wait_report report = wait_report_begin(wait_report_setting_ms());
    frame f = {0};
    bool have = false;

    LS_TRY(check_over(l));
    LS_TRY(hublink_send(l, type, &l->body));
    for (;;) {
        const ls_status st =
            next_answer(l, deadline_ms, timeout_ms == 0 ? &report : NULL, &f, &have);

        if (st == LS_ETIMEOUT)
            return give_up(l, timeout_ms);
        LS_TRY(st);
        if (!have)
            continue;
        *reply = wire_reader_over(f.body, f.bytes);
        if (wire_read_u64(reply) != l->last_id)
            continue; // to an abandoned request
        LS_TRY(deliver_rest(l));
        return read_reply(l, reply);
    }
}
