/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_ranks.c - the ranks of one generation on this node: started at the head's word, watched through their shims, and ended.
 */
#include "launch/agent.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/thread.h"
#include "launch/process.h"
#include "launch/rank_args.h"
#include "launch/rank_env.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum {
    TELL_MS = 300, /* after a failure: for the others to say what they heard, before SIGTERM */
    KILL_MS = 700, /* from SIGTERM to SIGKILL after a failure */
    ROOT_MS =
        100, /* within which a crash is the cause of another rank's exit, not its consequence */
    LOST_MS =
        4000 /* from SIGKILL until a rank that is still there counts as one that cannot be killed */
};

/* --- signals to ranks --- */

static void signal_rank(agent_rank *r, int number)
{
    const unsigned char byte = (unsigned char)number;

    if (r->ended || r->lifeline_fd < 0)
        return;
    if (write(r->lifeline_fd, &byte, 1) != 1)
        file_close(&r->lifeline_fd); /* the shim is gone, and with it the rank */
}

void agent_signal_ranks(agent *a, int number)
{
    for (int i = 0; a->phase != AGENT_IDLE && i < a->spec->n_ranks; i++)
        signal_rank(&a->ranks[i], number);
}

static void rank_ended(agent_rank *r, int wait_status);

/* A process that waits for a device ends when that answers, if ever. We do not wait with it. */
static void leave_unkillable(void *arg)
{
    agent *a = arg;

    for (int i = 0; i < a->spec->n_ranks; i++) {
        agent_rank *r = &a->ranks[i];
        if (r->ended)
            continue;
        agent_note(a, "rank %d (pid %d) cannot be killed (%s) and is left behind", r->rank,
                   (int)r->pid, file_process_state_text(file_process_state(r->pid)));
        rank_ended(r, SIGKILL);
    }
}

/* SIGCONT first: a stopped rank hears nothing else but SIGKILL, and a stopped shim would not even pass that on. */
void agent_kill_ranks(agent *a)
{
    if (a->phase == AGENT_IDLE)
        return;
    if (a->phase == AGENT_RUNNING)
        a->phase = AGENT_FAILING;
    for (int i = 0; i < a->spec->n_ranks; i++)
        if (a->ranks[i].shim > 0)
            kill(a->ranks[i].shim, SIGCONT);
    agent_signal_ranks(a, SIGCONT);
    agent_signal_ranks(a, SIGKILL);
    poller_timer_set(a->poller, &a->lost_timer, ls_now_ms() + LOST_MS, leave_unkillable, a);
}

static void failed_long_enough(void *arg)
{
    agent_kill_ranks(arg);
}

static void terminate_ranks(void *arg)
{
    agent *a = arg;

    agent_signal_ranks(a, SIGCONT);
    agent_signal_ranks(a, SIGTERM);
    poller_timer_set(a->poller, &a->kill_timer, ls_now_ms() + KILL_MS, failed_long_enough, a);
}

/* The hub tells them why; those that do not end by themselves are ended. */
void agent_abort_ranks(agent *a)
{
    a->phase = AGENT_FAILING;
    poller_timer_set(a->poller, &a->term_timer, ls_now_ms() + TELL_MS, terminate_ranks, a);
}

static void grace_is_over(void *arg)
{
    agent *a = arg;

    for (int i = 0; i < a->spec->n_ranks; i++)
        if (!a->ranks[i].ended)
            agent_note(a, "rank %d (pid %d) did not end within %.1f s and is killed",
                       a->ranks[i].rank, (int)a->ranks[i].pid, (double)a->grace_ms / 1e3);
    agent_kill_ranks(a);
}

void agent_stop_ranks(agent *a, int number, int64_t grace_ms, const char *why)
{
    if (a->phase != AGENT_RUNNING)
        return;
    a->phase = AGENT_STOPPING;
    a->grace_ms = grace_ms;
    agent_signal_ranks(a, SIGCONT);
    agent_signal_ranks(a, SIGTERM);
    poller_timer_set(a->poller, &a->kill_timer, ls_now_ms() + grace_ms, grace_is_over, a);
    if (number != SIGPIPE &&
        a->spec->far == NULL) /* the reader has gone; nothing needs to be said */
        agent_note(a, "%s: the ranks have %.1f s to end%s", why, (double)grace_ms / 1e3,
                   a->stop_signal != 0 ? "; a second one kills them" : "");
}

/* --- the end of a rank --- */

bool agent_ended_well(const agent_rank *r)
{
    return r->failed_code == 0 && WIFEXITED(r->wait_status) && WEXITSTATUS(r->wait_status) == 0;
}

int agent_exit_code(const agent_rank *r)
{
    if (r->failed_code != 0)
        return r->failed_code;
    return WIFSIGNALED(r->wait_status) ? 128 + WTERMSIG(r->wait_status)
                                       : WEXITSTATUS(r->wait_status);
}

/* The kernel ended it: that is no consequence of another rank's end. */
bool agent_has_crashed(const agent_rank *r)
{
    const int number = WIFSIGNALED(r->wait_status) ? WTERMSIG(r->wait_status) : 0;

    return number == SIGKILL || number == SIGSEGV || number == SIGBUS || number == SIGILL ||
           number == SIGFPE;
}

/* Nobody but the kernel knows for certain why it killed; this is what its counter says. */
static const char *describe_memory(const agent *a, const agent_rank *r, char *buf, size_t n)
{
    const bool killed = WIFSIGNALED(r->wait_status) && WTERMSIG(r->wait_status) == SIGKILL;
    char peak[32];

    if (!killed || process_oom_kills() <= a->oom_kills)
        return "";
    return text_format(buf, n, ", as memory ran out (it had %s)",
                       text_bytes(peak, sizeof(peak), (uint64_t)r->peak_bytes));
}

void agent_describe_end(const agent *a, const agent_rank *r, char *buf, size_t n)
{
    char end[96];
    char memory[96];

    if (r->message[0] != 0)
        text_format(buf, n, "rank %d (pid %d): %s", r->rank, (int)r->pid, r->message);
    else
        text_format(buf, n, "rank %d (pid %d) %s%s", r->rank, (int)r->pid,
                    process_end_text(end, sizeof(end), r->wait_status),
                    describe_memory(a, r, memory, sizeof(memory)));
}

void agent_describe_rank(void *arg, int local_rank, char *buf, size_t n)
{
    const agent *a = arg;
    const agent_rank *r = &a->ranks[local_rank];

    if (a->phase == AGENT_IDLE)
        text_format(buf, n, "not started");
    else if (r->ended)
        process_end_text(buf, n, r->wait_status);
    else
        text_format(buf, n, "%s",
                    r->pid > 0 ? file_process_state_text(file_process_state(r->pid)) : "starting");
}

/* The news of two deaths may come in the wrong order. */
static bool is_the_cause(const agent *a, const agent_rank *r)
{
    return agent_has_crashed(r) && !WIFSIGNALED(a->ranks[a->root].wait_status) &&
           ls_now_ms() - a->failed_ms < ROOT_MS;
}

static void note_failure(agent_rank *r)
{
    agent *a = r->agent;

    if (a->phase == AGENT_STOPPING)
        return; /* it may end an orderly stop as it likes */
    if (a->root < 0) {
        a->root = (int)(r - a->ranks);
        a->failed_ms = ls_now_ms();
    } else if (is_the_cause(a, r)) {
        a->root = (int)(r - a->ranks);
    }
    agent_tell_failure(a, r);
}

void agent_rank_failed(agent_rank *r, int code)
{
    r->agent->n_failed += r->ended && agent_ended_well(r);
    r->failed_code = code;
    note_failure(r);
}

static void tell_rank_left(const agent_rank *r)
{
    agent *a = r->agent;
    const node_left left = {
        .generation = a->place.place.generation, .local_rank = (int)(r - a->ranks), .pid = r->pid};
    wire_writer w = {0};

    node_write_left(&w, &left);
    agent_send(a, NODE_RANK_LEFT, &w);
    wire_writer_free(&w);
}

static void rank_ended(agent_rank *r, int wait_status)
{
    agent *a = r->agent;

    if (r->ended)
        return;
    agent_hear_pmi(r); /* its last words may say why */
    agent_end_pmi(r);
    r->ended = true;
    r->wait_status = wait_status;
    a->n_ended++;
    a->n_failed += !agent_ended_well(r);
    if (!agent_ended_well(r)) {
        if (r->failed_code == 0)
            note_failure(r);
        return;
    }
    tell_rank_left(r);
    agent_end_vain_mpi(a);
}

/* --- news from a shim --- */

/* Why a program did not start, with what to do about the usual reason. */
static void describe_exec(agent_rank *r, int error)
{
    const char *program = r->agent->spec->argv[0];
    const bool is_here =
        error == ENOENT && strchr(program, '/') == NULL && access(program, X_OK) == 0;

    text_format(r->message, sizeof(r->message), "cannot run %s: %s%s%s", program,
                ls_errno_text(error), is_here ? "; it is in this folder: ./" : "",
                is_here ? program : "");
}

static void take_record(agent_rank *r, const shim_record *record)
{
    switch ((shim_news)record->news) {
    case SHIM_STARTED:
        r->pid = (pid_t)record->value;
        return;
    case SHIM_NOT_STARTED:
        text_format(r->message, sizeof(r->message), "no process could be made for it: %s",
                    ls_errno_text(record->value));
        return;
    case SHIM_EXEC_FAILED:
        describe_exec(r, record->value);
        return;
    case SHIM_MESSAGE:
        text_format(r->message, sizeof(r->message), "%.*s", (int)sizeof(record->text) - 1,
                    record->text);
        return;
    case SHIM_ENDED:
        r->peak_bytes = record->peak_bytes;
        rank_ended(r, record->value);
        return;
    }
}

static void shim_ended(agent_rank *r)
{
    if (r->ended)
        return;
    /* Without a word: somebody has killed the shim, and the kernel the rank with it. */
    r->agent->shim_lost = true;
    text_format(r->message, sizeof(r->message), "the process that watches over it was killed");
    rank_ended(r, SIGKILL);
}

static void on_news(void *rank, unsigned events)
{
    agent_rank *r = rank;
    shim_record record;
    ssize_t n;

    LS_UNUSED(events);
    do {
        n = read(r->news_fd, &record, sizeof(record));
        if (n == (ssize_t)sizeof(record))
            take_record(r, &record);
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (n < 0)
        return;
    poller_unwatch(r->news_watch);
    r->news_watch = NULL;
    file_close(&r->news_fd);
    shim_ended(r);
}

void agent_reap(agent *a)
{
    agent_hosts_reap(a->hosts);
    for (int i = 0; a->phase != AGENT_IDLE && i < a->spec->n_ranks; i++) {
        agent_rank *r = &a->ranks[i];
        if (r->shim <= 0 || waitpid(r->shim, NULL, WNOHANG) != r->shim)
            continue;
        r->shim = 0;
        /* Its last words may be waiting. The pipe need not end with it: what the rank has forked may hold it. */
        if (r->news_fd >= 0)
            on_news(r, POLL_READ);
        shim_ended(r);
    }
    if (a->guardian > 0 && waitpid(a->guardian, NULL, WNOHANG) == a->guardian) {
        a->guardian = 0;
        file_close(&a->guardian_fd);
        if (agent_start_guardian(a) != LS_OK)
            agent_note(a, "the guardian was killed, and there is no new one: %s", ls_last_error());
    }
}

/* --- one rank --- */

static ls_status start_shim(agent_rank *r, const rank_place *place, shim_spec *shim)
{
    char **argv = NULL;
    char **env = NULL;
    ls_status st = LS_OK;

    if (r->agent->spec->argv != NULL)
        st = rank_args_make(r->agent->spec->argv, place->local_rank, &argv);
    if (st == LS_OK)
        st = rank_env_make(environ, place, &env);
    shim->argv = argv;
    shim->environment = env;
    if (st == LS_OK)
        st = shim_start(shim, &r->shim);
    rank_args_free(argv);
    rank_env_free(env);
    return st;
}

static ls_status open_news(agent_rank *r, int *child_end)
{
    LS_TRY(process_make_pipe(&r->news_fd, child_end));
    if (fcntl(r->news_fd, F_SETFL, O_NONBLOCK) != 0)
        return ls_fail_errno("a pipe from the shim of rank %d", r->rank);
    return poller_watch(r->agent->poller, r->news_fd, POLL_READ, on_news, r, &r->news_watch);
}

static ls_status open_rank(agent *a, agent_rank *r, const rank_place *job)
{
    shim_spec shim = {.job = a->spec,
                      .local_rank = (int)(r - a->ranks),
                      .lifeline_fd = -1,
                      .news_fd = -1,
                      .stdin_fd = r->rank == 0 ? STDIN_FILENO : -1,
                      .stdout_fd = -1,
                      .stderr_fd = -1,
                      .key_fd = a->key_fd,
                      .pmi_fd = -1,
                      .listen_fd = -1,
                      .mask = a->old_mask,
                      .users = &a->users};
    int listen_fd = -1;
    char error_path[sizeof(a->logs.path) + 64] = "";
    rank_place place = *job;
    ls_status st;

    st = a->spec->make_ring != NULL ? a->spec->make_ring(&r->ring_fd) : LS_OK;
    if (st == LS_OK)
        st = process_make_pipe(&shim.lifeline_fd, &r->lifeline_fd);
    if (st == LS_OK)
        st = open_news(r, &shim.news_fd);
    if (st == LS_OK && a->spec->capture)
        st = agent_open_stream(r, 0, &shim.stdout_fd);
    if (st == LS_OK && a->spec->capture)
        st = agent_open_stream(r, 1, &shim.stderr_fd);
    if (st == LS_OK)
        st = agent_open_rank_logs(r, error_path, sizeof(error_path));
    if (st == LS_OK && a->pmi != NULL)
        st = agent_open_pmi(r, &shim.pmi_fd);
    if (st == LS_OK)
        st = agent_open_listener(a, r->rank, &listen_fd);
    if (st == LS_OK) {
        shim.listen_fd = listen_fd;
        place.listen_fd = listen_fd;
        shim.ring_fd = r->ring_fd;
        place.error_file = error_path[0] != 0 ? error_path : NULL;
        place.rank = r->rank;
        place.local_rank = shim.local_rank;
        place.ring_fd = r->ring_fd;
        place.terminal = r->rank == 0 && a->spec->capture && agent_shows(r, 1) &&
                         (a->spec->far != NULL ? a->spec->far->terminal : a->sinks[1].terminal);
        place.pmi_fd = shim.pmi_fd;
        st = start_shim(r, &place, &shim);
    }
    file_close(&shim.lifeline_fd);
    file_close(&shim.news_fd);
    file_close(&shim.stdout_fd);
    file_close(&shim.stderr_fd);
    file_close(&shim.pmi_fd);
    file_close(&listen_fd);
    return st;
}

/* --- all of them --- */

void agent_prepare_ranks(agent *a)
{
    a->n_ended = 0;
    a->n_failed = 0;
    a->root = -1;
    a->failed_ms = 0;
    a->drained = false;
    a->started_s = (int64_t)time(NULL);
    for (int i = 0; i < a->spec->n_ranks; i++)
        a->ranks[i] = (agent_rank){.agent = a,
                                   .rank = a->place.place.rank_base + i,
                                   .attempt = a->place.place.generation - 1,
                                   .lifeline_fd = -1,
                                   .news_fd = -1,
                                   .stream_fd = {-1, -1},
                                   .log_fd = {-1, -1},
                                   .error_fd = -1,
                                   .ring_fd = -1,
                                   .pmi_fd = -1};
}

static ls_status enter_store(void *arg, int fd, const char *peer)
{
    agent *a = arg;

    LS_UNUSED(peer);
    return stream_mux_begin(&a->streams, fd);
}

/* Where programs that are not ours meet. */
static ls_status open_master(agent *a, rank_place *place)
{
    const user_door_options door = {
        .name = "store", .user = geteuid(), .self = a, .enter = enter_store};

    place->agent_store = a->place.has_store;
    place->master_port = a->place.store_port;
    if (a->place.has_store && a->place.store_port == 0) {
        LS_TRY(user_door_open(a->poller, &door, &a->store_door));
        place->master_port = user_door_port(a->store_door);
    }
    return LS_OK;
}

/* The machine of rank 0, where it hosts a store itself. */
static const char *master_host(const agent *a, char *buf, size_t n)
{
    const agent_nodes *nodes = a->spec->nodes;

    const bool is_started_from_one = a->spec->hosts != NULL || a->spec->far != NULL;

    if (a->spec->master_addr != NULL && (nodes == NULL || is_started_from_one))
        return a->spec->master_addr;
    if (nodes == NULL)
        return "127.0.0.1";
    if (a->head == NULL)
        return net_address_host(buf, n, &a->head_at);
    return net_address_is_any(&nodes->listen) ? "127.0.0.1"
                                              : net_address_host(buf, n, &nodes->listen);
}

static void write_hub_url(const agent *a, char *url, size_t n)
{
    net_address hub = a->head_at;

    if (a->place.hub_unix[0] != 0) {
        text_format(url, n, "%s", a->place.hub_unix);
        return;
    }
    net_address_set_port(&hub, a->place.hub_port);
    net_address_text(url, n, &hub);
}

static ls_status open_ranks(agent *a)
{
    const agent_spec *spec = a->spec;
    const rdzv_place *p = &a->place.place;
    char url[NET_ADDRESS_TEXT_MAX];
    char host[NET_ADDRESS_TEXT_MAX];
    const int threads = ls_usable_cores(NULL) / spec->n_ranks;
    rank_place place = {
        .world_size = p->world_size,
        .local_size = p->n_local,
        .node_rank = p->node,
        .n_nodes = p->n_nodes,
        .job = a->place.job,
        .agent = a->name,
        .store = url,
        .master_addr = a->place.has_store ? "127.0.0.1" : master_host(a, host, sizeof(host)),
        .run_id = spec->run_id != NULL ? spec->run_id : a->place.job,
        .role = spec->role != NULL ? spec->role : "default",
        .generation = p->generation,
        .n_restarts = p->n_restarts,
        .max_restarts = a->place.max_restarts,
        .virtual_local_rank = spec->virtual_local_rank,
        .key_fd = a->key_fd,
        .threads = threads > 0 ? threads : 1,
    };

    if (a->pick.n > 0)
        place.n_variables = net_pick_variables(&a->pick, environ, place.variables);
    write_hub_url(a, url, sizeof(url));
    if (spec->argv != NULL && p->n_nodes == 1)
        LS_TRY(pmi_create(a->place.job, spec->n_ranks, &a->pmi));
    LS_TRY(agent_open_fold(a));
    LS_TRY(open_master(a, &place));
    for (int i = 0; i < spec->n_ranks; i++)
        LS_TRY(open_rank(a, &a->ranks[i], &place));
    return LS_OK;
}

/* After a failure the caller closes what has been started; nothing of it may look like a rank that failed. */
ls_status agent_start_ranks(agent *a)
{
    ls_status st;

    agent_prepare_ranks(a);
    st = open_ranks(a);
    if (st == LS_OK)
        a->phase = AGENT_RUNNING;
    return st;
}

/* A shim that still lives kills its rank now: all at once, before any of them is waited for. */
static void let_go(agent_rank *r)
{
    file_close(&r->lifeline_fd);
    if (r->shim > 0)
        kill(r->shim, SIGCONT); /* if somebody has stopped it */
}

static void close_rank(agent_rank *r)
{
    poller_unwatch(r->news_watch);
    file_close(&r->news_fd);
    file_close(&r->ring_fd);
    agent_close_rank_logs(r);
    agent_end_pmi(r);
    output_free(&r->stream[0]);
    output_free(&r->stream[1]);
    output_free_kept(&r->kept);
    if (r->shim > 0)
        waitpid(r->shim, NULL, 0); /* bounded: it gives up after a few seconds */
    r->shim = 0;
}

void agent_close_ranks(agent *a)
{
    poller_timer_cancel(&a->term_timer);
    poller_timer_cancel(&a->kill_timer);
    poller_timer_cancel(&a->lost_timer);
    poller_timer_cancel(&a->drain_timer);
    poller_timer_cancel(&a->fold_timer);
    agent_end_output(a);
    for (int i = 0; i < a->spec->n_ranks; i++)
        let_go(&a->ranks[i]);
    for (int i = 0; i < a->spec->n_ranks; i++)
        close_rank(&a->ranks[i]);
    agent_prepare_ranks(a);
    if (a->hosts == NULL) {
        output_fold_destroy(a->fold);
        a->fold = NULL;
    }
    stream_mux_end(&a->streams);
    user_door_close(a->store_door);
    a->store_door = NULL;
    pmi_destroy(a->pmi);
    a->pmi = NULL;
    a->phase = AGENT_IDLE;
}
