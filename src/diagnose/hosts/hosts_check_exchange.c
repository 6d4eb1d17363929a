/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hosts_check_exchange.c - the messages between the starting machine and the hosts, and the
 * findings for hosts that do not start or are lost. A message out of order loses the host. Called
 * by hosts_check.c through the starter's events.
 */
#include "diagnose/hosts/hosts_check_run.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "launch/spec/launch_request.h"

#include <string.h>

enum {
    LOCAL_MS = 60000,   /* until the next message: resolver, GPU driver and Python may all hang */
    GPU_MS = 130000,    /* more for GPUs that hang, and for NCCL (GPU_TRY_MS, NCCL_TRY_MS) */
    NETWORK_MS = 20000, /* for all network tests */
    ADDRESS_MS = 250    /* more for each address */
};

const char *hosts_check_name_of(const struct hosts_check_run *run, int i)
{
    return run->opt->hosts->list->hosts[i].name;
}

bool hosts_check_is_own(const struct hosts_check_run *run, int i)
{
    return i == run->opt->hosts->own;
}

/* --- lost hosts --- */

static void end_host(run_host *host)
{
    host->is_over = true;
    poller_timer_cancel(&host->limit);
    hosts_check_turn_soon(host->run);
}

void hosts_check_lose_host(run_host *host, const char *why)
{
    struct hosts_check_run *run = host->run;
    char fix[512];

    if (host->is_over)
        return;
    if (run->opt->hosts->start.way == START_SSH)
        text_format(fix, sizeof(fix), "lockstep check   # on that host");
    else
        text_format(fix, sizeof(fix), "srun -N1 -n1 -w %s --overlap lockstep check",
                    hosts_check_name_of(run, host->index));
    finding_add(&run->out->hosts[host->index].found, FINDING_HOST_LOST_KIND, FINDING_ERROR, fix,
                "agent lost: %s", why);
    end_host(host);
}

static void on_timeout(void *arg)
{
    run_host *host = arg;

    hosts_check_lose_host(host, "timed out waiting for its next message");
    if (host->run->starter != NULL && !hosts_check_is_own(host->run, host->index))
        starter_dismiss(host->run->starter, host->index);
}

void hosts_check_wait_for(run_host *host)
{
    int64_t limit_ms = LOCAL_MS + (host->run->opt->checks.tries_gpus ? GPU_MS : 0);

    if (host->run->phase == HOSTS_CHECK_NETWORK)
        limit_ms = NETWORK_MS + (int64_t)ADDRESS_MS * host->run->n * NET_ADDRESSES_MAX;
    poller_timer_set(host->run->loop, &host->limit, ls_now_ms() + limit_ms, on_timeout, host);
}

/* `why` is the text of ssh or srun, followed by "; fix: " and the starter's fix. */
static void add_unstarted(const struct hosts_check_run *run, int i, const char *why)
{
    const char *fix = starter_fix(run->starter, i);
    const size_t n_fix = strlen("; fix: ") + strlen(fix);
    const size_t n = strlen(why);
    char what[LS_ERROR_BYTES];

    text_format(what, sizeof(what), "%s", why);
    if (fix[0] != 0 && n > n_fix && n < sizeof(what))
        what[n - n_fix] = 0;
    finding_add(&run->out->hosts[i].found, FINDING_HOST_UNSTARTED_KIND, FINDING_ERROR,
                fix[0] != 0 ? fix : "lockstep check   # on that host",
                "the agent could not be started: %s", what);
}

ls_status hosts_check_ask(struct hosts_check_run *run, int i, hosts_check_message type,
                          const wire_writer *body)
{
    LS_TRY(wire_writer_status(body));
    if (hosts_check_is_own(run, i)) {
        const frame f = {.type = type, .body = body->data, .bytes = body->bytes};

        return hosts_check_node_receive(run->own, &f);
    }
    return starter_send(run->starter, i, type, body->data, body->bytes);
}

static ls_status ask_time(run_host *host)
{
    wire_writer w = {0};
    ls_status st;

    wire_write_u32(&w, ++host->n_asked);
    host->asked_ns = hosts_check_now_ns();
    st = hosts_check_ask(host->run, host->index, HOSTS_CHECK_ASK_TIME, &w);
    wire_writer_free(&w);
    return st;
}

/* --- answers --- */

static ls_status take_offer(run_host *host, const frame *f)
{
    LS_TRY(wire_read_frame(f, &net_offer_table, &host->run->out->hosts[host->index].offer));
    if (host->has_offer)
        return ls_fail(LS_EPROTO, "addresses received twice");
    host->has_offer = true;
    return hosts_check_is_own(host->run, host->index) ? LS_OK : ask_time(host);
}

static ls_status take_time(run_host *host, const frame *f)
{
    const int64_t answered_ns = hosts_check_now_ns();
    hosts_check_time t;

    LS_TRY(hosts_check_time_read(f, &t));
    if (t.number != host->n_asked || host->n_asked == 0)
        return ls_fail(LS_EPROTO, "unexpected answer about its clock");
    (void)clock_offset_add(&host->run->out->hosts[host->index].clock, host->asked_ns, t.received_ns,
                           t.sent_ns, answered_ns);
    if (host->n_asked < HOSTS_CHECK_QUESTIONS)
        return ask_time(host);
    host->n_asked++; /* the last answer */
    return LS_OK;
}

static ls_status take_checked(run_host *host, const frame *f)
{
    char why[LS_ERROR_BYTES];

    LS_TRY(hosts_check_text_read(f, why, sizeof(why)));
    if (why[0] != 0)
        finding_add(&host->run->out->hosts[host->index].found, FINDING_HOST_LOST_KIND,
                    FINDING_ERROR, "lockstep check   # on that host",
                    "the check of this host is incomplete: %s", why);
    host->has_checked = true;
    return LS_OK;
}

static ls_status take_report(run_host *host, const frame *f)
{
    hosts_check_host *facts = &host->run->out->hosts[host->index];

    if (host->run->phase != HOSTS_CHECK_NETWORK || host->has_report)
        return ls_fail(LS_EPROTO, "unexpected report of network tests");
    LS_TRY(wire_read_frame(f, &net_report_table, &facts->report));
    host->has_report = true;
    facts->has_answered = true;
    return LS_OK;
}

static ls_status take_facts(run_host *host, const frame *f)
{
    hosts_check_host *facts = &host->run->out->hosts[host->index];

    LS_TRY(hosts_check_facts_read(f, &facts->facts));
    facts->has_facts = true;
    return LS_OK;
}

static ls_status take(run_host *host, const frame *f)
{
    switch (f->type) {
    case HOSTS_CHECK_OFFER:
        return take_offer(host, f);
    case HOSTS_CHECK_FACTS:
        return take_facts(host, f);
    case HOSTS_CHECK_FINDING:
        return hosts_check_finding_read(f, &host->run->out->hosts[host->index].found);
    case HOSTS_CHECK_LOCAL_DONE:
        return take_checked(host, f);
    case HOSTS_CHECK_TIME:
        return take_time(host, f);
    case HOSTS_CHECK_REPORT:
        return take_report(host, f);
    case REMOTE_FAILED:
        return hosts_check_text_read(f, host->failure, sizeof(host->failure));
    default:
        return ls_fail(LS_EPROTO, "unknown message %u", f->type);
    }
}

ls_status hosts_check_take_message(void *arg, int i, const frame *f)
{
    struct hosts_check_run *run = arg;
    run_host *host = &run->list[i];

    if (host->is_over)
        return LS_OK;
    LS_TRY(take(host, f));
    if (host->has_report || (run->phase == HOSTS_CHECK_LOCAL && hosts_check_has_checked(host)))
        poller_timer_cancel(&host->limit); // its next message follows one to it
    else
        hosts_check_wait_for(host);
    hosts_check_turn_soon(run);
    return LS_OK;
}

void hosts_check_take_own(void *arg, hosts_check_message type, const wire_writer *body)
{
    struct hosts_check_run *run = arg;
    const frame f = {.type = type, .body = body->data, .bytes = body->bytes};
    const int own = run->opt->hosts->own;
    ls_status st = wire_writer_status(body);

    if (own < 0 && type == HOSTS_CHECK_OFFER && st == LS_OK) {
        st = wire_read_frame(&f, &net_offer_table, &run->out->start);
        run->out->has_start = st == LS_OK;
    } else if (own >= 0 && st == LS_OK) {
        st = hosts_check_take_message(run, own, &f);
    }
    if (st != LS_OK && own >= 0)
        hosts_check_lose_host(&run->list[own], ls_last_error());
}

static ls_status write_request(const struct hosts_check_run *run, int i, int cores, wire_writer *w)
{
    static char *argv[] = {(char *)(uintptr_t) "lockstep", (char *)(uintptr_t) "check", NULL};
    const agent_hosts_spec *hosts = run->opt->hosts;
    const int slots = hosts->list->hosts[i].slots;
    hosts_check_request o = {
        .n_ranks = slots,
        .master_port = run->opt->checks.master_port,
        .is_quick = run->opt->is_quick,
        .tries_gpus = run->opt->checks.tries_gpus,
        .base = {.key = *run->opt->key,
                 .node = i,
                 .n_nodes = run->n,
                 .n_ranks = slots > 0 ? slots : cores,
                 .host = hosts_check_name_of(run, i),
                 .folder = hosts->folder,
                 .job = {.argv = argv, .net = run->opt->net, .ports = run->opt->ports}}};
    ls_status st = launch_request_list_env(hosts->exports, hosts->n_exports,
                                           hosts->start.way == START_SSH, &o.base);

    if (st == LS_OK) {
        hosts_check_request_write(w, &o);
        st = wire_writer_status(w);
    }
    ls_free(o.base.env);
    net_key_wipe(&o.base.key);
    return st;
}

void hosts_check_on_greeted(void *arg, int i, int cores)
{
    struct hosts_check_run *run = arg;
    wire_writer w = {0};
    ls_status st = write_request(run, i, cores, &w);

    if (st == LS_OK)
        st = starter_launch(run->starter, i, HOSTS_CHECK_REQUEST, w.data, w.bytes);
    if (w.data != NULL)
        explicit_bzero(w.data, w.bytes);
    wire_writer_free(&w);
    if (st == LS_OK)
        hosts_check_wait_for(&run->list[i]);
    else
        hosts_check_lose_host(&run->list[i], ls_last_error());
    hosts_check_turn_soon(run);
}

void hosts_check_on_ended(void *arg, int i, bool was_launched, const char *why)
{
    struct hosts_check_run *run = arg;
    run_host *host = &run->list[i];

    if (run->phase == HOSTS_CHECK_DONE || host->is_over)
        return;
    if (was_launched) {
        hosts_check_lose_host(host, host->failure[0] != 0 ? host->failure : why);
        return;
    }
    add_unstarted(run, i, why);
    end_host(host);
}

void hosts_check_on_line(void *arg, int i, const char *text)
{
    const struct hosts_check_run *run = arg;
    char line[LS_ERROR_BYTES + 300];

    run->opt->note(run->opt->self, text_format(line, sizeof(line), "host %s: %s",
                                               hosts_check_name_of(run, i), text));
}
