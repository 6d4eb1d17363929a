/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch_request.c - gets the launch request of a job from its head, over a connection of its own
 * that the head closes after the answer. Called by `lockstep join`.
 */
#include "launch/head/fetch_request.h"

#include "base/clock.h"
#include "base/text.h"
#include "launch/head/node_messages.h"
#include "net/auth/dial.h"
#include "net/messages/frame_link.h"
#include "net/poller.h"

enum { WAIT_REPORT_MS = 900, WAIT_REPORT_AGAIN_MS = 10000 };

typedef struct fetch {
    poller *loop;
    const char *endpoint;
    char peer[NET_ADDRESS_TEXT_MAX];
    void (*log_line)(const char *line);
    poll_timer wait_report;
    dial *dial;
    frame_link link;
    launch_request *out;
    bool is_over;
    ls_status status;
    char why[LS_ERROR_BYTES];
} fetch;

static void end(fetch *a, ls_status st, const char *why)
{
    if (a->is_over)
        return;
    a->is_over = true;
    a->status = st;
    text_format(a->why, sizeof(a->why), "%s", why);
}

static ls_status on_message(void *self, const frame *f)
{
    fetch *a = self;
    frame answer = {.type = REMOTE_LAUNCH_REQUEST, .body = f->body, .bytes = f->bytes};
    text_buf text = {0};
    ls_status st;

    if (f->type == NODE_LAUNCH_REQUEST) {
        st = launch_request_read(&answer, a->out);
        end(a, st, st == LS_OK ? "" : ls_last_error());
    } else if (f->type == NODE_REJECT) {
        st = node_read_text(f, &text);
        end(a, LS_EMISMATCH, st == LS_OK ? text_str(&text) : ls_last_error());
        text_free(&text);
    }
    return LS_OK;
}

static void on_ended(void *self, const char *why)
{
    end(self, LS_EPEER, why);
}

static void on_dialled(void *self, int fd, const net_address *at, ls_status st, const char *why)
{
    fetch *a = self;

    poller_timer_cancel(&a->wait_report);
    if (fd < 0) {
        end(a, st, why);
        return;
    }
    net_address_text(a->peer, sizeof(a->peer), at);
    a->link.self = a;
    a->link.message = on_message;
    a->link.ended = on_ended;
    st = frame_link_open(&a->link, a->loop, fd, a->peer, LAUNCH_REQUEST_BODY_MAX, NODE_BODY_MAX);
    if (st != LS_OK) {
        end(a, st, ls_last_error());
        return;
    }
    frame_link_seal(&a->link, dial_seals(a->dial));
    frame_link_send(&a->link, NODE_FETCH_REQUEST, NULL, 0);
}

static void log_wait(void *self)
{
    fetch *a = self;
    const char *error = dial_last_error(a->dial);
    char line[LS_ERROR_BYTES + 400];

    a->log_line(text_format(line, sizeof(line), "waiting for the head of the job at %s%s%s",
                            a->endpoint, error[0] != 0 ? ": " : "", error));
    poller_timer_set(a->loop, &a->wait_report, ls_now_ms() + WAIT_REPORT_AGAIN_MS, log_wait, a);
}

ls_status fetch_launch_request(const char *endpoint, const net_key *key, net_security security,
                               int64_t deadline_ms, void (*log_line)(const char *line),
                               launch_request *out)
{
    fetch a = {.endpoint = endpoint, .log_line = log_line, .out = out};
    const dial_options options = {.to = endpoint,
                                  .default_port = NET_PORT_REQUIRED,
                                  .key = key,
                                  .claim = {.purpose = NET_PURPOSE_NODE,
                                            .from = HANDSHAKE_ANY_RANK,
                                            .to = HANDSHAKE_ANY_RANK,
                                            .security = security},
                                  .deadline_ms = deadline_ms,
                                  .self = &a,
                                  .done = on_dialled};
    ls_status st = poller_create(&a.loop);

    if (st == LS_OK)
        st = dial_open(a.loop, &options, &a.dial);
    if (st == LS_OK)
        poller_timer_set(a.loop, &a.wait_report, ls_now_ms() + WAIT_REPORT_MS, log_wait, &a);
    while (st == LS_OK && !a.is_over)
        st = poller_run_once(a.loop, -1);
    poller_timer_cancel(&a.wait_report);
    dial_close(a.dial);
    frame_link_close(&a.link);
    poller_destroy(a.loop);
    return st == LS_OK && a.status != LS_OK ? ls_fail(a.status, "%s: %s", endpoint, a.why) : st;
}
