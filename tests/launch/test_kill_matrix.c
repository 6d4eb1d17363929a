/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every process of a job of two nodes x every phase of its life x SIGKILL, SIGTERM, SIGSTOP,
 * SIGTSTP: what becomes of the job, how quickly, what it says, and that nothing is left of it.
 *
 * test_kill_matrix core|all|PART-OF-A-NAME...
 */
#include "launch/cells.h"
#include "launch/kill_scene.h"

#include "base/clock.h"
#include "base/file.h"
#include "host/process_id.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BUSY_MS 20000
#else
#define BUSY_MS 8000 /* on a machine with other things to do */
#endif
enum {
    SILENCE_MS = 6500, /* longer than a silent node is waited for */
    CELL_MS = 150000,
    WIDTH = 12,
    TRIES = 5 /* of a phase that was over before the signal came */
};

/* --- what may become of a job --- */

typedef enum outcome {
    NONE,      /* that process is not there yet, or has nothing to do with it */
    KILLED,    /* it was the launcher itself */
    STOPS,     /* in good order */
    STOPS_BY,  /* ... as node 1 has asked for it */
    NO_START,  /* the host could not be started */
    NO_HOST,   /* ... or was lost before there were ranks */
    NO_HEAD,   /* ... as its agent lost the head */
    NO_WORD,   /* ... as it was silent */
    HOST_SAYS, /* ... as its agent was stopped */
    LOST,      /* node 1, with its ranks, as its ssh ended */
    LOST_HEAD, /* ... as it lost the head */
    SILENT,    /* ... as it was silent */
    CLOSED,    /* ... as connection closed */
    NO_SHIM,   /* a rank's watcher was killed */
    NO_RANK,   /* a rank was killed */
    NAMED,     /* a rank is reported as stopped, and goes on */
    GOES_ON,
    WAITS,  /* for node 1 to come again */
    LEAVES, /* ... after it has left by itself */
    EITHER, /* GOES_ON after a restart, or LOST */
    STANDS  /* all stop, and go on */
} outcome;

/* Says: NODE is "node 1 (127.0.0.2)", END "was killed by signal 9 (SIGKILL)", PID its number, N
 * the rank. */
static const struct {
    int code; /* the launcher's; -1: 128 + the signal */
    const char *says;
    bool goes_on;
} outcomes[] = {
    [KILLED] = {137, NULL, false},
    [STOPS] = {143, NULL, false},
    [STOPS_BY] = {143, "stopped by SIGTERM from NODE\n", false},
    [NO_START] = {1, "lockstep: host 127.0.0.2: ssh END", false},
    [NO_HOST] = {1, "host 127.0.0.2: ENDED\n", false},
    [NO_HEAD] = {1, ": the head of the job at ", false},
    [NO_WORD] = {1, "host 127.0.0.2: no heartbeat for 5 s\n", false},
    [HOST_SAYS] = {1, "host 127.0.0.2: stopped by SIGTERM\n", false},
    [LOST] = {1, "lockstep: NODE with ranks 1-2 was lost: ENDED\n", false},
    [LOST_HEAD] = {1, " lost: the head of the job at ", false},
    [SILENT] = {1, "lockstep: NODE with ranks 1-2 was lost: no heartbeat for 5 s\n", false},
    [CLOSED] = {1, "lockstep: NODE with ranks 1-2 was lost: connection closed\n", false},
    [NO_SHIM] = {137, "rank N (pid RANK): the process that watches over it was killed\n", false},
    [NO_RANK] = {-1, "rank N (pid PID) END", false},
    [NAMED] = {143, "not arrived N (pid PID, stopped", true},
    [GOES_ON] = {143, NULL, true},
    [WAITS] = {143, NULL, true},
    [LEAVES] = {143, NULL, true},
    [EITHER] = {1, "with ranks 1-2 was lost: ", false},
    [STANDS] = {143, NULL, true},
};

/* --- the matrix --- */

typedef struct row {
    scene_way way;
    scene_part part;
    const char *name;
    int number; /* of the signal */
    outcome of[SCENE_PHASES];
    unsigned core; /* phases that ./check tries, too: bit i for phase i */
} row;

static const char *const phase_names[SCENE_PHASES] = {"request",  "sending",  "waiting",
                                                      "networks", "joining",  "training",
                                                      "ending",   "draining", "again"};

#define BIT(phase) (1U << (SCENE_##phase))

static const row rows[] = {
    /* in the order of phase_names */
    {SCENE_SSH,
     PART_HEAD,
     "head",
     SIGKILL,
     {KILLED, KILLED, KILLED, KILLED, KILLED, KILLED, KILLED, KILLED, KILLED},
     BIT(REQUEST) | BIT(NETWORKS) | BIT(ENDING) | BIT(AGAIN)},
    {SCENE_SSH,
     PART_HEAD,
     "head",
     SIGTERM,
     {STOPS, STOPS, STOPS, STOPS, STOPS, STOPS, STOPS, STOPS, STOPS},
     BIT(NETWORKS) | BIT(DRAINING)},
    {SCENE_SSH,
     PART_HEAD,
     "head",
     SIGSTOP,
     {GOES_ON, GOES_ON, NO_HEAD, NO_HEAD, LOST_HEAD, LOST_HEAD, STOPS, GOES_ON, EITHER},
     BIT(TRAINING)},
    {SCENE_SSH,
     PART_HEAD,
     "head",
     SIGTSTP,
     {STANDS, STANDS, STANDS, STANDS, STANDS, STANDS, NONE, NONE, NONE},
     BIT(JOINING) | BIT(TRAINING)},

    {SCENE_SSH,
     PART_SSH,
     "ssh",
     SIGKILL,
     {NO_HOST, NO_START, NO_HOST, NO_HOST, LOST, LOST, STOPS, GOES_ON, EITHER},
     BIT(REQUEST) | BIT(NETWORKS) | BIT(TRAINING) | BIT(DRAINING)},
    {SCENE_SSH,
     PART_SSH,
     "ssh",
     SIGTERM,
     {NO_HOST, NO_START, NO_HOST, NO_HOST, LOST, LOST, STOPS, GOES_ON, EITHER},
     0},
    {SCENE_SSH,
     PART_SSH,
     "ssh",
     SIGSTOP,
     {GOES_ON, GOES_ON, GOES_ON, GOES_ON, GOES_ON, GOES_ON, STOPS, GOES_ON, GOES_ON},
     0},

    {SCENE_SSH,
     PART_AGENT,
     "agent",
     SIGKILL,
     {NO_HOST, NONE, NO_HOST, NO_HOST, LOST, LOST, STOPS, GOES_ON, EITHER},
     BIT(WAITING) | BIT(TRAINING)},
    {SCENE_SSH,
     PART_AGENT,
     "agent",
     SIGTERM,
     {NO_HOST, NONE, HOST_SAYS, STOPS_BY, STOPS_BY, STOPS_BY, STOPS, STOPS_BY, STOPS_BY},
     BIT(WAITING) | BIT(DRAINING)},
    {SCENE_SSH,
     PART_AGENT,
     "agent",
     SIGSTOP,
     {GOES_ON, NONE, NO_WORD, NO_WORD, SILENT, SILENT, STOPS, GOES_ON, EITHER},
     BIT(WAITING) | BIT(DRAINING)},

    {SCENE_SSH,
     PART_NEAR_SHIM,
     "near shim",
     SIGKILL,
     {NONE, NONE, NONE, NONE, NO_SHIM, NO_SHIM, STOPS, GOES_ON, NONE},
     0},
    {SCENE_SSH,
     PART_NEAR_SHIM,
     "near shim",
     SIGTERM,
     {NONE, NONE, NONE, NONE, GOES_ON, GOES_ON, STOPS, GOES_ON, NONE},
     0},
    {SCENE_SSH,
     PART_NEAR_SHIM,
     "near shim",
     SIGSTOP,
     {NONE, NONE, NONE, NONE, GOES_ON, GOES_ON, STOPS, GOES_ON, NONE},
     0},
    {SCENE_SSH,
     PART_REMOTE_SHIM,
     "remote shim",
     SIGKILL,
     {NONE, NONE, NONE, NONE, NO_SHIM, NO_SHIM, STOPS, GOES_ON, NONE},
     BIT(JOINING)},
    {SCENE_SSH,
     PART_REMOTE_SHIM,
     "remote shim",
     SIGTERM,
     {NONE, NONE, NONE, NONE, GOES_ON, GOES_ON, STOPS, GOES_ON, NONE},
     0},
    {SCENE_SSH,
     PART_REMOTE_SHIM,
     "remote shim",
     SIGSTOP,
     {NONE, NONE, NONE, NONE, GOES_ON, GOES_ON, STOPS, GOES_ON, NONE},
     BIT(DRAINING)},

    {SCENE_SSH,
     PART_NEAR_RANK,
     "near rank",
     SIGKILL,
     {NONE, NONE, NONE, NONE, NO_RANK, NO_RANK, STOPS, GOES_ON, NONE},
     0},
    {SCENE_SSH,
     PART_NEAR_RANK,
     "near rank",
     SIGTERM,
     {NONE, NONE, NONE, NONE, NO_RANK, NO_RANK, STOPS, GOES_ON, NONE},
     0},
    {SCENE_SSH,
     PART_NEAR_RANK,
     "near rank",
     SIGSTOP,
     {NONE, NONE, NONE, NONE, GOES_ON, NAMED, STOPS, GOES_ON, NONE},
     0},
    {SCENE_SSH,
     PART_REMOTE_RANK,
     "remote rank",
     SIGKILL,
     {NONE, NONE, NONE, NONE, NO_RANK, NO_RANK, STOPS, GOES_ON, NONE},
     BIT(JOINING) | BIT(TRAINING) | BIT(ENDING)},
    {SCENE_SSH,
     PART_REMOTE_RANK,
     "remote rank",
     SIGTERM,
     {NONE, NONE, NONE, NONE, NO_RANK, NO_RANK, STOPS, GOES_ON, NONE},
     0},
    {SCENE_SSH,
     PART_REMOTE_RANK,
     "remote rank",
     SIGSTOP,
     {NONE, NONE, NONE, NONE, GOES_ON, NAMED, STOPS, GOES_ON, NONE},
     BIT(TRAINING) | BIT(ENDING)},
    {SCENE_SSH,
     PART_REMOTE_CHILD,
     "rank's child",
     SIGKILL,
     {NONE, NONE, NONE, NONE, GOES_ON, GOES_ON, NONE, NONE, NONE},
     0},
    {SCENE_SSH,
     PART_REMOTE_CHILD,
     "rank's child",
     SIGTERM,
     {NONE, NONE, NONE, NONE, GOES_ON, GOES_ON, NONE, NONE, NONE},
     0},
    {SCENE_SSH,
     PART_REMOTE_CHILD,
     "rank's child",
     SIGSTOP,
     {NONE, NONE, NONE, NONE, GOES_ON, GOES_ON, NONE, NONE, NONE},
     0},

    {SCENE_SSH,
     PART_NEAR_GUARDIAN,
     "near guardian",
     SIGKILL,
     {NONE, NONE, NONE, GOES_ON, GOES_ON, GOES_ON, STOPS, GOES_ON, GOES_ON},
     0},
    {SCENE_SSH,
     PART_NEAR_GUARDIAN,
     "near guardian",
     SIGTERM,
     {NONE, NONE, NONE, GOES_ON, GOES_ON, GOES_ON, STOPS, GOES_ON, GOES_ON},
     0},
    {SCENE_SSH,
     PART_NEAR_GUARDIAN,
     "near guardian",
     SIGSTOP,
     {NONE, NONE, NONE, GOES_ON, GOES_ON, GOES_ON, STOPS, GOES_ON, GOES_ON},
     0},
    {SCENE_SSH,
     PART_REMOTE_GUARDIAN,
     "remote guardian",
     SIGKILL,
     {NONE, NONE, NONE, GOES_ON, GOES_ON, GOES_ON, STOPS, GOES_ON, GOES_ON},
     BIT(ENDING)},
    {SCENE_SSH,
     PART_REMOTE_GUARDIAN,
     "remote guardian",
     SIGTERM,
     {NONE, NONE, NONE, GOES_ON, GOES_ON, GOES_ON, STOPS, GOES_ON, GOES_ON},
     0},
    {SCENE_SSH,
     PART_REMOTE_GUARDIAN,
     "remote guardian",
     SIGSTOP,
     {NONE, NONE, NONE, GOES_ON, GOES_ON, GOES_ON, STOPS, GOES_ON, GOES_ON},
     0},

    {SCENE_OBSERVED,
     PART_HEAD,
     "observing head",
     SIGKILL,
     {KILLED, KILLED, KILLED, KILLED, KILLED, KILLED, KILLED, KILLED, KILLED},
     BIT(TRAINING)},
    {SCENE_OBSERVED,
     PART_HEAD,
     "observing head",
     SIGTERM,
     {STOPS, STOPS, STOPS, STOPS, STOPS, STOPS, STOPS, STOPS, STOPS},
     0},
    {SCENE_OBSERVED,
     PART_HEAD,
     "observing head",
     SIGSTOP,
     {NO_HEAD, NO_HEAD, NO_HEAD, NO_HEAD, LOST_HEAD, LOST_HEAD, STOPS, GOES_ON, EITHER},
     0},
    {SCENE_OBSERVED,
     PART_HEAD,
     "observing head",
     SIGTSTP,
     {STANDS, STANDS, STANDS, STANDS, STANDS, STANDS, NONE, NONE, NONE},
     0},
    {SCENE_OBSERVED,
     PART_AGENT,
     "observed agent",
     SIGKILL,
     {NO_HOST, NONE, NO_HOST, NO_HOST, LOST, LOST, STOPS, GOES_ON, EITHER},
     0},
    {SCENE_OBSERVED,
     PART_AGENT,
     "observed agent",
     SIGSTOP,
     {GOES_ON, NONE, NO_WORD, NO_WORD, SILENT, SILENT, STOPS, GOES_ON, EITHER},
     0},

    {SCENE_BY_HAND,
     PART_HEAD,
     "node 0",
     SIGKILL,
     {NONE, NONE, KILLED, NONE, KILLED, KILLED, KILLED, KILLED, KILLED},
     0},
    {SCENE_BY_HAND,
     PART_HEAD,
     "node 0",
     SIGTERM,
     {NONE, NONE, STOPS, NONE, STOPS, STOPS, STOPS, STOPS, STOPS},
     BIT(ENDING)},
    {SCENE_BY_HAND,
     PART_HEAD,
     "node 0",
     SIGSTOP,
     {NONE, NONE, WAITS, NONE, CLOSED, CLOSED, STOPS, WAITS, EITHER},
     BIT(JOINING)},
    {SCENE_BY_HAND,
     PART_HEAD,
     "node 0",
     SIGTSTP,
     {NONE, NONE, STANDS, NONE, STANDS, STANDS, NONE, NONE, NONE},
     0},
    {SCENE_BY_HAND,
     PART_AGENT,
     "node 1",
     SIGKILL,
     {NONE, NONE, WAITS, NONE, CLOSED, CLOSED, STOPS, WAITS, EITHER},
     BIT(WAITING) | BIT(DRAINING)},
    {SCENE_BY_HAND,
     PART_AGENT,
     "node 1",
     SIGTERM,
     {NONE, NONE, LEAVES, NONE, STOPS_BY, STOPS_BY, STOPS, STOPS_BY, STOPS_BY},
     0},
    {SCENE_BY_HAND,
     PART_AGENT,
     "node 1",
     SIGSTOP,
     {NONE, NONE, WAITS, NONE, SILENT, SILENT, STOPS, WAITS, EITHER},
     BIT(TRAINING)},
    {SCENE_BY_HAND,
     PART_AGENT,
     "node 1",
     SIGTSTP,
     {NONE, NONE, STANDS, NONE, STANDS, STANDS, NONE, NONE, NONE},
     BIT(TRAINING)},
};

typedef struct cell {
    const row *row;
    scene_phase phase;
} cell;

static outcome outcome_of(const cell *c)
{
    return c->row->of[c->phase];
}

static const char *signal_name(int number)
{
    return number == SIGKILL   ? "SIGKILL"
           : number == SIGTERM ? "SIGTERM"
           : number == SIGSTOP ? "SIGSTOP"
                               : "SIGTSTP";
}

/* --- one cell --- */

static scene present; /* the one of this process */

typedef struct victim {
    pid_t pid;
    pid_t rank; /* below a shim */
} victim;

static void replace(text_buf *out, const char **at, const char *word, const char *by)
{
    if (!text_starts(*at, word))
        return;
    text_append(out, "%s", by);
    *at += strlen(word);
}

static bool is_near(const cell *c)
{
    return c->row->part == PART_NEAR_RANK || c->row->part == PART_NEAR_SHIM;
}

/* How the process of this part ends, as its parent reports it. */
static void write_end(const cell *c, char *buf, size_t n)
{
    if (c->row->part == PART_AGENT)
        text_format(buf, n, "agent killed or connection lost (ssh exited with code 255)");
    else
        text_format(buf, n, "ssh was killed by signal %d (%s)", c->row->number,
                    signal_name(c->row->number));
}

/* "node 1 (127.0.0.2)", or whatever this host's name is. */
static void write_node(const scene *s, char *buf, size_t n)
{
    char host[64] = "?";

    if (s->agent != NULL)
        (void)gethostname(host, sizeof(host) - 1);
    text_format(buf, n, "node 1 (%s)", s->agent != NULL ? host : "127.0.0.2");
}

static void write_text(const scene *s, const cell *c, const victim *v, text_buf *out)
{
    const char *at = outcomes[outcome_of(c)].says;
    char pid[16];
    char rank[16];
    char end[96];
    char ended[128];
    char node[96];

    text_format(pid, sizeof(pid), "%d", (int)v->pid);
    text_format(rank, sizeof(rank), "%d", (int)v->rank);
    text_format(end, sizeof(end), "was killed by signal %d (%s)", c->row->number,
                signal_name(c->row->number));
    write_end(c, ended, sizeof(ended));
    write_node(s, node, sizeof(node));
    while (*at != 0) {
        const char *const from = at;

        replace(out, &at, "ENDED", ended);
        replace(out, &at, "END", end);
        replace(out, &at, "NODE", node);
        replace(out, &at, "N ", is_near(c) ? "0 " : "1 ");
        replace(out, &at, "PID", pid);
        replace(out, &at, "RANK", rank);
        if (at == from)
            text_append_bytes(out, at++, 1);
    }
}

/* Lines of stderr that begin like this and have this in them. */
static int count_lines(const job *j, const char *beginning, const char *part, size_t n)
{
    int found = 0;

    for (const char *line = text_str(&j->err); *line != 0;) {
        const size_t length = strcspn(line, "\n");

        found += text_starts(line, beginning) && memmem(line, length + 1, part, n) != NULL;
        line += length + (line[length] != 0);
    }
    return found;
}

/* Reported once, and to a rank of the other node as the reason of its failed call. */
static void expect_words(const scene *s, const cell *c, const victim *v)
{
    const outcome o = outcome_of(c);
    const char *line = is_near(c) ? "rank 1| all_reduce failed: " : "rank 0| all_reduce failed: ";
    text_buf text = {0};
    const char *cause;
    size_t n;

    if (outcomes[o].says == NULL)
        return;
    write_text(s, c, v, &text);
    cause =
        text_str(&text) + (text_starts(text_str(&text), "lockstep: ") ? strlen("lockstep: ") : 0);
    n = strlen(cause);
    if (count_lines(s->head, "lockstep", cause, n) == 0 ||
        !job_printed(s->head, 1, text_str(&text)))
        job_fail(s->head, __FILE__, __LINE__, text_str(&text));
    job_expect(s->head,
               count_lines(s->head, "lockstep", cause, n) == 1 || c->row->part == PART_HEAD);
    if (c->phase == SCENE_TRAINING && c->row->part != PART_HEAD && o != STOPS_BY)
        job_expect(s->head,
                   count_lines(s->head, line, cause, cause[n - 1] == '\n' ? n - 1 : n) == 1);
    text_free(&text);
}

static bool has_alarm(const scene *s)
{
    const job *both[] = {s->head, s->agent};

    for (int i = 0; i < 2; i++)
        if (both[i] != NULL &&
            (job_printed(both[i], 1, " lost") || job_printed(both[i], 1, "has waited")))
            return true;
    return false;
}

static void listen_to(const scene *s, int64_t ms)
{
    const int64_t deadline_ms = ls_deadline_ms(ms);

    while (ls_deadline_left(deadline_ms) > 0) {
        job_read_output(s->head, 20);
        if (s->agent != NULL)
            job_read_output(s->agent, 20);
    }
}

static void await_stopped(scene *s, pid_t pid)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);

    while (process_state(pid) != 'T') {
        job_expect(s->head, ls_deadline_left(deadline_ms) > 0);
        listen_to(s, 20);
    }
}

static void await_end_of_ssh(scene *s)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);

    while (job_find_process(s->head, "fake_ssh", "127.0.0.2", "") != 0) {
        job_expect(s->head, ls_deadline_left(deadline_ms) > 0);
        listen_to(s, 20);
    }
}

/* While one stands still: until the others have done what they do about it. */
static void await_others(scene *s, const cell *c, const victim *v)
{
    const outcome o = outcome_of(c);
    const bool head_stands = c->row->part == PART_HEAD;
    text_buf text = {0};

    if (o == NAMED) {
        write_text(s, c, v, &text);
        job_await_text(s->head, 1, text_str(&text));
        text_free(&text);
    } else if (head_stands && s->agent != NULL && o != STANDS) {
        job_await_end(s->agent);
    } else if (o == LOST_HEAD || o == NO_HEAD) {
        await_end_of_ssh(s);
    } else if (head_stands || outcomes[o].goes_on || o == EITHER) {
        listen_to(s, SILENCE_MS);
    } else {
        job_await_end(s->head);
    }
}

/* Ctrl-Z at one launcher: the ranks of both nodes stand still, and so does the launcher. */
static void await_standstill(scene *s, const cell *c, const victim *v)
{
    if (c->phase == SCENE_JOINING || c->phase == SCENE_TRAINING) {
        await_stopped(s, scene_find(s, PART_NEAR_RANK));
        await_stopped(s, scene_find(s, PART_REMOTE_RANK));
    }
    await_stopped(s, v->pid);
}

static void expect_steps(scene *s, const cell *c)
{
    const outcome o = outcome_of(c);

    if (c->phase == SCENE_NETWORKS || o == WAITS || o == LEAVES) {
        listen_to(s, 500);
        job_expect(s->head, !s->head->has_ended);
        return;
    }
    scene_release(s);
    text_free(&s->head->out);
    job_await_text(s->head, 0, "step ");
    listen_to(s, 100);
    text_free(&s->head->out);
    job_await_text(s->head, 0, "step ");
}

/* It goes on, and ends on request. */
static void expect_life(scene *s, const cell *c)
{
    const outcome o = outcome_of(c);

    expect_steps(s, c);
    if (o != WAITS && o != LEAVES && c->phase < SCENE_DRAINING && o != NAMED)
        job_expect(s->head, !has_alarm(s));
    assert_int_equal(kill(s->head->pid, SIGTERM), 0);
    job_expect_code(s->head, 143);
}

static void expect_code_of_agent(const scene *s, const cell *c)
{
    const outcome o = outcome_of(c);
    const bool is_victim = c->row->part == PART_AGENT && c->row->number == SIGKILL;
    const int code = is_victim                                                 ? 137
                     : o == LEAVES                                             ? 143
                     : o == KILLED || o == CLOSED || o == WAITS || o == EITHER ? 1
                     : o == SILENT                                             ? 1
                                                                               : 143;

    if (s->agent == NULL)
        return;
    if (c->phase == SCENE_ENDING && c->row->number == SIGSTOP) {
        job_await_end(s->agent); /* it may have received the end, or not */
        return;
    }
    job_expect_code(s->agent, code);
    if (c->row->part == PART_HEAD && code == 1)
        job_expect(s->agent, job_printed(s->agent, 1, "the head of the job at "));
}

static bool goes_on_again(const scene *s)
{
    return job_printed(s->head, 0, "step ") ||
           (s->agent != NULL && job_printed(s->head, 1, "1/2 nodes"));
}

static void expect_end(scene *s, const cell *c, const victim *v)
{
    const outcome o = outcome_of(c);
    const int code = outcomes[o].code < 0 ? 128 + c->row->number : outcomes[o].code;

    job_await_end(s->head);
    if (o == EITHER && goes_on_again(s))
        return;
    expect_words(s, c, v);
    job_expect_code(s->head, code);
}

/* After a second start it may go on for ever, or fail as no restart is left. */
static void end_either(scene *s)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);

    while (!s->head->has_ended && !goes_on_again(s)) {
        job_expect(s->head, ls_deadline_left(deadline_ms) > 0);
        listen_to(s, 20);
    }
    if (!s->head->has_ended)
        assert_int_equal(kill(s->head->pid, SIGTERM), 0);
}

/* From the signal until nothing is left. */
static int64_t limit_of(const cell *c)
{
    return 5000 + (c->row->number == SIGSTOP ? SILENCE_MS + 4000 : 0) +
           (c->phase == SCENE_ENDING ? SCENE_GRACE_MS : 0);
}

static bool is_alive(pid_t pid)
{
    const char state = process_state(pid);

    return state != 0 && state != 'Z';
}

static void send_signal(scene *s, const cell *c, victim *v)
{
    const int late_ms = outcome_of(c) == NAMED ? 300 : outcome_of(c) == STANDS ? 3000 : 0;
    const bool is_shim = c->row->part == PART_NEAR_SHIM || c->row->part == PART_REMOTE_SHIM;

    for (int i = 0; i < TRIES; i++) {
        scene_start(s, c->row->way, c->phase, late_ms);
        v->pid = scene_find(s, c->row->part);
        v->rank = is_shim ? scene_find(s, c->row->part == PART_NEAR_SHIM ? PART_NEAR_RANK
                                                                         : PART_REMOTE_RANK)
                          : 0;
        scene_enter(s);
        if (is_alive(v->pid) && kill(v->pid, c->row->number) == 0)
            return;
        scene_clean_up(s);
        job_clean_up(NULL);
    }
    job_fail(s->head, __FILE__, __LINE__, "the phase lasts until the signal has come");
}

static void run_cell(const cell *c)
{
    const outcome o = outcome_of(c);
    scene *s = &present;
    victim v = {0};
    int64_t since_ms;

    send_signal(s, c, &v);
    since_ms = ls_now_ms();
    if (o == STANDS)
        await_standstill(s, c, &v);
    if (c->row->number == SIGSTOP || o == STANDS) {
        await_others(s, c, &v);
        if (o == STANDS)
            job_expect(s->head, !has_alarm(s) && !s->head->has_ended);
        (void)kill(v.pid, SIGCONT);
    }
    if (o == EITHER)
        end_either(s);
    if (outcomes[o].goes_on)
        expect_life(s, c);
    else
        expect_end(s, c, &v);
    expect_code_of_agent(s, c);
    scene_expect_gone(s);
    if (!outcomes[o].goes_on && o != EITHER)
        job_expect(s->head, ls_now_ms() - since_ms < limit_of(c) + BUSY_MS);
}

static void clean_up(void)
{
    if (present.folder[0] != 0)
        scene_clean_up(&present);
}

/* --- all of them --- */

static cell chosen[LS_COUNT_OF(rows) * SCENE_PHASES];

static const char *name_of(const void *self, int i, char *buf, unsigned n)
{
    const cell *c = (const cell *)self + i;

    return text_format(buf, n, "%s to the %s, %s", signal_name(c->row->number), c->row->name,
                       phase_names[c->phase]);
}

static void run(const void *self, int i)
{
    run_cell((const cell *)self + i);
}

static bool is_selected(const cell *c, int argc, char **argv)
{
    char name[128];

    name_of(c, 0, name, sizeof(name));
    for (int i = 1; i < argc; i++) {
        if (text_equal(argv[i], "core") && (c->row->core >> c->phase & 1) != 0)
            return true;
        if (text_equal(argv[i], "all") || strstr(name, argv[i]) != NULL)
            return true;
    }
    return false;
}

/* Sanitizers cannot be linked statically, so their builds have no agent that travels. */
static bool is_built(scene_phase phase)
{
    return phase != SCENE_SENDING || access(AGENT_BINARY, X_OK) == 0;
}

/* First those that stand still for seconds: the others pass meanwhile. */
static int choose(int argc, char **argv)
{
    int n = 0;

    for (int pass = 0; pass < 2; pass++)
        for (size_t r = 0; r < LS_COUNT_OF(rows); r++)
            for (scene_phase phase = SCENE_REQUEST; phase < SCENE_PHASES; phase++) {
                const cell c = {&rows[r], phase};
                const bool stops = c.row->number == SIGSTOP || c.row->number == SIGTSTP;

                if (outcome_of(&c) != NONE && is_built(phase) && stops == (pass == 0) &&
                    is_selected(&c, argc, argv))
                    chosen[n++] = c;
            }
    return n;
}

int main(int argc, char **argv)
{
    const cell_list list = {
        .n = choose(argc, argv), .self = chosen, .name = name_of, .run = run, .clean_up = clean_up};
    const int n_failed = cells_run(&list, WIDTH, CELL_MS);

    if (!is_built(SCENE_SENDING))
        printf("this build has no static agent: nothing travels\n");
    printf("%d of %d cells failed\n", n_failed, list.n);
    return n_failed == 0 && list.n > 0 ? 0 : 1;
}
