/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_status.c - collects the status of a job: what /proc and the flight recorders say of this
 * node's ranks, and where the head is in this process, the same of all other nodes. Nodes that do
 * not answer in time are left out. Driven by the poller.
 */
#include "launch/agent/agent.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "host/process_id.h"
#include "launch/status/status_ring.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    ANSWER_MS = 500,
    RANKS_A_MESSAGE = 64 /* at most about 2 KiB each: below NODE_BODY_MAX */
};

/* --- the ranks of this node --- */

static double resident_bytes(pid_t pid)
{
    char path[64];
    char text[128];
    char *end;
    int fd;
    ssize_t n;

    text_format(path, sizeof(path), "/proc/%d/statm", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof(text) - 1);
    file_close(&fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    end = strchr(text, ' ');
    return end == NULL ? 0 : (double)strtoll(end, NULL, 10) * (double)sysconf(_SC_PAGESIZE);
}

static void fill_process(const agent_rank *r, status_rank *out)
{
    process_stat facts;

    out->pid = (int)r->pid;
    if (r->ended) {
        text_format(out->state, sizeof(out->state), "%s", agent_ended_well(r) ? "ended" : "failed");
        return;
    }
    if (r->pid == 0 || !process_stat_read("", r->pid, &facts)) {
        text_format(out->state, sizeof(out->state), "%s", "starting");
        return;
    }
    text_format(out->state, sizeof(out->state), "%s", process_state_text(facts.state));
    out->memory_bytes = resident_bytes(r->pid);
    out->cpu_s = (double)facts.cpu_ticks / (double)sysconf(_SC_CLK_TCK);
}

static const char *host_name(const agent *a)
{
    static char own[64];

    if (a->ctx.spec->nodes != NULL && a->ctx.spec->nodes->name != NULL)
        return a->ctx.spec->nodes->name;
    if (own[0] == '\0' && gethostname(own, sizeof(own) - 1) != 0)
        text_format(own, sizeof(own), "this machine");
    return own;
}

static ls_status fill_ranks(const agent *a, job_status *v)
{
    for (int i = 0; a->ctx.phase != AGENT_IDLE && i < a->ctx.spec->n_ranks; i++) {
        const agent_rank *r = &a->ranks[i];
        status_rank *out = status_add_rank(v);

        if (out == NULL)
            return ls_fail(LS_ENOMEM, "no memory for the status of a job");
        out->rank = r->rank;
        text_printable(out->host, sizeof(out->host), host_name(a));
        fill_process(r, out);
        status_ring_add(r->ring_fd, out, v->chosen == r->rank ? v : NULL);
    }
    return LS_OK;
}

/* Ranks of ls_spawn() have no command line: that of the program which has called it. */
static void fill_command(const agent *a, job_status *v)
{
    size_t used = 0;

    if (a->ctx.spec->job->argv == NULL) {
        process_command("", getpid(), v->command, sizeof(v->command));
        return;
    }
    for (char *const *arg = a->ctx.spec->job->argv; *arg != NULL; arg++) {
        text_format(v->command + used, sizeof(v->command) - used, "%s%s", used > 0 ? " " : "",
                    *arg);
        used = strlen(v->command);
    }
    text_printable(v->command, sizeof(v->command), v->command);
}

static const char *state_text(const agent *a)
{
    if (a->ctx.is_over || a->ctx.phase == AGENT_STOPPING || a->ctx.phase == AGENT_FAILING)
        return "ending";
    if (a->ctx.phase == AGENT_RUNNING)
        return "running";
    return agent_generation(&a->ctx) == 0 ? "waiting for nodes" : "starting";
}

static void fill_job(const agent *a, job_status *v)
{
    const rdzv_place *place = &a->ctx.place.place;

    if (a->ctx.spec->job->run_id != NULL)
        text_printable(v->name, sizeof(v->name), a->ctx.spec->job->run_id);
    text_format(v->agent, sizeof(v->agent), "%s", a->name);
    text_printable(v->host, sizeof(v->host), host_name(a));
    text_format(v->version, sizeof(v->version), "%s", ls_version());
    text_format(v->state, sizeof(v->state), "%s", state_text(a));
    text_printable(v->warning, sizeof(v->warning), a->status.warning);
    fill_command(a, v);
    v->pid = (int)getpid();
    v->age_s = (double)(ls_now_ms() - a->status.opened_ms) / 1000;
    v->world_size = place->world_size;
    v->n_nodes = place->n_nodes;
    v->n_restarts = place->n_restarts;
    v->is_head = a->link.head != NULL;
}

/* --- collecting --- */

static void start_collecting(void *arg);

static void plan_collecting(agent_status *v, int64_t due_ms)
{
    poller_timer_set(v->agent->ctx.poller, &v->limit, due_ms, start_collecting, v);
}

/* An agent without ranks of its own has no place in the job. */
static void complete(job_status *status)
{
    if (status->world_size < status->n_ranks)
        status->world_size = status->n_ranks;
    if (status->n_nodes == 0 && status->n_ranks > 0)
        text_format(status->state, sizeof(status->state), "running");
    job_status_mark_late(status);
}

static void finish_collecting(void *arg)
{
    agent_status *v = arg;

    poller_timer_cancel(&v->limit);
    complete(v->status);
    v->is_collecting = false;
    list_for_each_safe (it, &v->requests) {
        status_request *request = list_entry(it, status_request, node);

        if (request->rank >= 0 && request->rank != v->status->chosen)
            continue; // it is of the next collection
        agent_status_forget(request);
        request->done(request->arg, v->status);
    }
    job_status_free(v->status);
    if (!list_empty(&v->requests))
        plan_collecting(v, ls_now_ms());
}

static void start_collecting(void *arg)
{
    agent_status *v = arg;
    const agent *a = v->agent;

    if (list_empty(&v->requests))
        return;
    v->is_collecting = true;
    *v->status = (job_status){.chosen = list_entry(v->requests.next, status_request, node)->rank};
    v->question++;
    fill_job(a, v->status);
    if (fill_ranks(a, v->status) != LS_OK)
        ls_log(LS_LOG_WARN, "launch", "%s", ls_last_error());
    v->n_missing =
        a->link.head == NULL ? 0 : head_ask_status(a->link.head, v->question, v->status->chosen);
    if (v->n_missing == 0)
        finish_collecting(v);
    else
        poller_timer_set(a->ctx.poller, &v->limit, ls_now_ms() + ANSWER_MS, finish_collecting, v);
}

void agent_status_ask(agent_status *v, status_request *request)
{
    if (request->is_set)
        return;
    request->is_set = true;
    list_append(&v->requests, &request->node);
    if (!v->is_collecting)
        plan_collecting(v, ls_now_ms());
}

void agent_status_forget(status_request *request)
{
    if (request->is_set)
        list_remove(&request->node);
    request->is_set = false;
}

/* --- other nodes --- */

static void send_part(const agent *a, uint32_t question, const job_status *v, int first,
                      bool is_last)
{
    text_buf text = {0};
    json_writer w;
    wire_writer body = {0};

    json_begin(&w, &text);
    json_open(&w, NULL, '{');
    job_status_write_ranks(v, first, RANKS_A_MESSAGE, &w);
    if (is_last && v->n_operations > 0)
        job_status_write_operations(v, &w);
    json_close(&w, '}');
    wire_write_u32(&body, question);
    wire_write_u8(&body, is_last);
    wire_write_bytes(&body, text_str(&text), text.length);
    if (text_status(&text) == LS_OK)
        agent_send(&a->ctx, NODE_STATUS, &body);
    else
        wire_writer_free(&body);
    text_free(&text);
}

ls_status agent_status_answer(agent *a, const frame *f)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t question = wire_read_u32(&r);
    job_status status = {.chosen = (int)wire_read_u32(&r)};
    ls_status st;
    int first = 0;

    LS_TRY(wire_reader_end(&r, "a request for a status"));
    st = fill_ranks(a, &status);
    do {
        send_part(a, question, &status, first, first + RANKS_A_MESSAGE >= status.n_ranks);
        first += RANKS_A_MESSAGE;
    } while (first < status.n_ranks);
    job_status_free(&status);
    return st;
}

static ls_status take_part(agent_status *v, const char *text, size_t bytes)
{
    const int chosen = v->status->chosen;
    json_value *o;
    ls_status st;

    LS_TRY(json_parse(text, bytes, "the status of a node", &o));
    st = job_status_read_ranks(json_get(o, "ranks"), v->status);
    if (chosen >= 0)
        job_status_read_operations(o, v->status);
    v->status->chosen = chosen; // whatever the node has sent
    json_free(o);
    return st;
}

ls_status agent_status_take(void *arg, const frame *f)
{
    agent *a = arg;
    agent_status *v = &a->status;
    wire_reader r = wire_reader_over(f->body, f->bytes);
    const uint32_t question = wire_read_u32(&r);
    const bool is_last = wire_read_u8(&r) != 0;
    size_t bytes;
    const uint8_t *text = wire_read_bytes(&r, NODE_BODY_MAX, &bytes);

    LS_TRY(wire_reader_end(&r, "the status of a node"));
    if (!v->is_collecting || question != v->question)
        return LS_OK;
    LS_TRY(take_part(v, (const char *)text, bytes));
    if (is_last && --v->n_missing == 0)
        poller_timer_set(a->ctx.poller, &v->limit, ls_now_ms(), finish_collecting, v);
    return LS_OK;
}

/* --- life --- */

void agent_status_note(agent_status *v, const char *line)
{
    text_printable(v->warning, sizeof(v->warning), line);
}

static void on_warning(void *status, const char *text)
{
    agent_status_note(status, text);
}

ls_status agent_status_open(agent_status *v, agent *a)
{
    const agent_spec *spec = a->ctx.spec;

    v->agent = a;
    v->opened_ms = ls_now_ms();
    list_init(&v->requests);
    LS_TRY(LS_NEW(&v->status, 1, "for the status of a job"));
    log_observe(on_warning, v);
    if (status_socket_open(v, a->ctx.poller, a->name, &v->socket) != LS_OK)
        ls_log(LS_LOG_INFO, "launch", "lockstep top cannot see this job: %s", ls_last_error());
    return metrics_port_open(v, a->ctx.poller, spec->metrics_port, &v->metrics);
}

void agent_status_close(agent_status *v)
{
    if (v->agent == NULL)
        return;
    log_observe(NULL, v);
    poller_timer_cancel(&v->limit);
    status_socket_close(v->socket);
    metrics_port_close(v->metrics);
    if (v->status != NULL)
        job_status_free(v->status);
    ls_free(v->status);
    *v = (agent_status){.agent = NULL};
}
