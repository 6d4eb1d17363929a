/* SPDX-License-Identifier: Apache-2.0 */
/* kill_scene.c - brings a job of two nodes into a phase of its life and finds its processes. */
#include "launch/kill_scene.h"

#include "base/clock.h"
#include "base/file.h"
#include "net/key.h"

#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ARGS_MOST = 40, LOOK_MS = 20 };

/* --- the folder --- */

static void make_folder(scene *s)
{
    char path[128];

    text_format(s->folder, sizeof(s->folder), "/tmp/lockstep-test-kill-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    text_format(path, sizeof(path), "%s/tmp", s->folder);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void await_file(const scene *s, const char *name)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);
    char path[128];

    text_format(path, sizeof(path), "%s/%s", s->folder, name);
    while (access(path, F_OK) != 0) {
        job_expect(s->head, ls_deadline_left(deadline_ms) > 0);
        job_read_output(s->head, LOOK_MS);
    }
}

static void let_go(const scene *s)
{
    char path[128];
    int fd;

    text_format(path, sizeof(path), "%s/go", s->folder);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
}

/* --- commands --- */

typedef struct words {
    const char *list[ARGS_MOST];
    int n;
} words;

static void add(words *w, const char *const *list)
{
    for (; *list != NULL && w->n < ARGS_MOST - 1; list++)
        w->list[w->n++] = *list;
    w->list[w->n] = NULL;
}

#define ADD(w, ...) add(w, JOB_LIST(__VA_ARGS__))

/* What the ranks do; each has a child, and daemons in other sessions. */
static void add_program(const scene *s, words *w, const char *go)
{
    ADD(w, JOB_ACTOR, "child", "daemon");
    if (s->phase == SCENE_JOINING)
        ADD(w, "late", go, "2", "steps", "0", "2");
    else if (s->phase == SCENE_ENDING)
        ADD(w, "stubborn");
    else if (s->phase == SCENE_DRAINING || s->phase == SCENE_AGAIN)
        ADD(w, "refuse", go, "2", "steps", "0", "2");
    else
        ADD(w, "steps", "0", "2");
}

static bool has_restart(const scene *s)
{
    return s->phase == SCENE_DRAINING || s->phase == SCENE_AGAIN;
}

static bool has_third(const scene *s)
{
    return s->phase == SCENE_WAITING || s->phase == SCENE_NETWORKS;
}

static const char *hosts_of(const scene *s)
{
    static const char *const lists[2][2] = {
        {"localhost:1,127.0.0.2:2", "localhost:1,127.0.0.2:2,127.0.0.3:1"},
        {"127.0.0.4:1,127.0.0.2:2", "127.0.0.4:1,127.0.0.2:2,127.0.0.3:1"}};

    return lists[s->way == SCENE_OBSERVED][has_third(s)];
}

static const char *modes_of(const scene *s)
{
    switch (s->phase) {
    case SCENE_REQUEST:
        return "FAKE_SSH=127.0.0.2=held";
    case SCENE_SENDING:
        return "FAKE_SSH=127.0.0.2=bareheld";
    case SCENE_WAITING:
        return "FAKE_SSH=127.0.0.3=later";
    case SCENE_NETWORKS:
        return "FAKE_SSH=127.0.0.3=still";
    default:
        return "FAKE_SSH=none";
    }
}

static job *start(const scene *s, const words *w, int late_ms)
{
    char folder[128];
    char temporary[128];
    char late[64];

    text_format(folder, sizeof(folder), "FAKE_SSH_FOLDER=%s", s->folder);
    text_format(temporary, sizeof(temporary), "TMPDIR=%s/tmp", s->folder);
    text_format(late, sizeof(late), "LOCKSTEP_LATE_MS=%d", late_ms);
    return job_start(w->list, JOB_LIST(modes_of(s), folder, temporary, "XDG_RUNTIME_DIR",
                                       "FAKE_SSH_STILL=" STILL_NODE,
                                       s->key_env[0] != 0 ? s->key_env : "FAKE_SSH_KEY=none",
                                       late_ms > 0 ? late : "LOCKSTEP_LATE_MS"));
}

static void start_by_ssh(scene *s, const char *go, int late_ms)
{
    words w = {.n = 0};

    ADD(&w, JOB_TOOL, "run", "--ssh", FAKE_SSH, "--grace", "3", "--max-restarts",
        has_restart(s) ? "1" : "0", "-H", hosts_of(s));
    add_program(s, &w, go);
    s->head = start(s, &w, late_ms);
}

static job *start_node(const scene *s, const char *number, const char *n_ranks, const char *go,
                       int late_ms)
{
    words w = {.n = 0};

    ADD(&w, JOB_TOOL, "run", "--grace", "3", "--max-restarts", has_restart(s) ? "1" : "0",
        "--nnodes", has_third(s) ? "3" : "2", "--node-rank", number, "--master-addr", "127.0.0.1",
        "--master-port", s->port, "-n", n_ranks);
    add_program(s, &w, go);
    return start(s, &w, late_ms);
}

/* The port is ours until this process ends, and a process with SO_REUSEADDR may listen there: no
 * other test gets it. */
static void choose_port(scene *s)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof(at);
    const int on = 1;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    text_format(s->port, sizeof(s->port), "%d", ntohs(at.sin_port));
}

static void make_key(scene *s)
{
    char path[128];
    net_key key;

    text_format(path, sizeof(path), "%s/key", s->folder);
    assert_int_equal(net_key_random(&key), LS_OK);
    assert_int_equal(net_key_write_file(path, &key), LS_OK);
    text_format(s->key_env, sizeof(s->key_env), NET_KEY_FILE_ENV "=%s", path);
}

/* --- phases --- */

static void await_ranks(const scene *s, const char *words_of_rank)
{
    for (int rank = 0; rank < 3; rank++) {
        char line[64];

        text_format(line, sizeof(line), "rank %d| %s", rank, words_of_rank);
        job_await_text(s->agent != NULL && rank > 0 ? s->agent : s->head, 0, line);
    }
}

static void await_both(const scene *s, const char *text)
{
    job_await_text(s->head, 1, text);
    if (s->agent != NULL)
        job_await_text(s->agent, 1, text);
}

/* The head's greeting of node 1 is past when that has a connection. */
static void await_connection(const scene *s)
{
    const pid_t pid = scene_find(s, PART_AGENT);
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);

    while (!job_has_connection(pid)) {
        job_expect(s->head, ls_deadline_left(deadline_ms) > 0);
        job_read_output(s->head, LOOK_MS);
    }
}

void scene_start(scene *s, scene_way way, scene_phase phase, int late_ms)
{
    char go[128];

    *s = (scene){.way = way, .phase = phase};
    make_folder(s);
    text_format(go, sizeof(go), "%s/go", s->folder);
    if (way == SCENE_BY_HAND) {
        choose_port(s);
        make_key(s);
        s->head = start_node(s, "0", "1", go, late_ms);
        s->agent = start_node(s, "1", "2", go, late_ms);
    } else {
        start_by_ssh(s, go, late_ms);
    }
    if (phase == SCENE_REQUEST || phase == SCENE_SENDING)
        await_file(s, "held");
    else if (phase == SCENE_WAITING && way == SCENE_BY_HAND)
        await_both(s, "2/3 nodes joined");
    else if (phase == SCENE_WAITING)
        job_await_text(s->head, 1, "waiting for 127.0.0.3");
    else if (phase == SCENE_NETWORKS)
        job_await_text(s->head, 1, "networks are tried");
    else if (phase == SCENE_TRAINING)
        job_await_text(s->head, 0, "step 100\n");
    else
        await_ranks(s, "rank "); /* "rank 0 begins", "rank 0 is ready" */
    if (phase == SCENE_WAITING && way != SCENE_BY_HAND)
        await_connection(s);
}

void scene_enter(scene *s)
{
    job_note_sockets(s->head);
    if (s->agent != NULL)
        job_note_sockets(s->agent);
    if (s->phase == SCENE_ENDING) {
        assert_int_equal(kill(s->head->pid, SIGTERM), 0);
        await_both(s, "SIGTERM");
    } else if (has_restart(s)) {
        let_go(s);
    }
    if (s->phase == SCENE_AGAIN)
        await_both(s, "restart 1 of 1");
    if (s->phase != SCENE_DRAINING)
        return;
    job_await_text(s->head, 0, "rank 0| it was asked");
    job_await_text(s->agent != NULL ? s->agent : s->head, 0, "rank 1| it was asked");
}

void scene_release(scene *s)
{
    let_go(s);
    if (s->way == SCENE_BY_HAND && s->phase == SCENE_WAITING)
        s->third = start_node(s, "2", "1", "none", 0);
}

/* --- parts --- */

static pid_t find_agent(const scene *s, const char *host)
{
    const pid_t ssh = job_find_process(s->head, "fake_ssh", host, "");

    if (s->agent != NULL)
        return s->agent->pid;
    return ssh == 0 ? 0 : job_find_below(s->head, ssh, "lockstep-agent", true, 0);
}

/* Of node 0 or 1. */
static pid_t find_shim(const scene *s, bool is_remote)
{
    const pid_t agent = is_remote                  ? find_agent(s, "127.0.0.2")
                        : s->way == SCENE_OBSERVED ? find_agent(s, "127.0.0.4")
                                                   : s->head->pid;
    const job *j = is_remote && s->agent != NULL ? s->agent : s->head;

    return agent == 0 ? 0 : job_find_below(j, agent, "lockstep-shim", true, 0);
}

static pid_t find_guardian(const scene *s, bool is_remote)
{
    const job *j = is_remote && s->agent != NULL ? s->agent : s->head;
    const pid_t agent = is_remote ? find_agent(s, "127.0.0.2") : s->head->pid;

    return agent == 0 ? 0 : job_find_below(j, agent, "lockstep-guard", true, 0);
}

static pid_t find_rank(const scene *s, bool is_remote)
{
    const pid_t shim = find_shim(s, is_remote);

    return shim == 0 ? 0
                     : job_find_below(is_remote && s->agent != NULL ? s->agent : s->head, shim,
                                      NULL, true, 0);
}

static pid_t find_child(const scene *s)
{
    const pid_t rank = find_rank(s, true);

    return rank == 0 ? 0
                     : job_find_below(s->agent != NULL ? s->agent : s->head, rank, NULL, false, 0);
}

static pid_t find_now(const scene *s, scene_part part)
{
    switch (part) {
    case PART_HEAD:
        return s->head->pid;
    case PART_SSH:
        return job_find_process(s->head, "fake_ssh", "127.0.0.2", "");
    case PART_AGENT:
        return find_agent(s, "127.0.0.2");
    case PART_NEAR_SHIM:
    case PART_REMOTE_SHIM:
        return find_shim(s, part == PART_REMOTE_SHIM);
    case PART_NEAR_RANK:
    case PART_REMOTE_RANK:
        return find_rank(s, part == PART_REMOTE_RANK);
    case PART_REMOTE_CHILD:
        return find_child(s);
    case PART_NEAR_GUARDIAN:
    case PART_REMOTE_GUARDIAN:
        return find_guardian(s, part == PART_REMOTE_GUARDIAN);
    }
    return 0;
}

pid_t scene_find(const scene *s, scene_part part)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);
    pid_t pid;

    while ((pid = find_now(s, part)) == 0) {
        job_expect(s->head, ls_deadline_left(deadline_ms) > 0);
        job_read_output(s->head, LOOK_MS);
    }
    return pid;
}

/* --- what is left --- */

static int count_entries(const char *path, const char *beginning)
{
    DIR *folder = opendir(path);
    const struct dirent *e;
    int n = 0;

    while (folder != NULL && (e = readdir(folder)) != NULL)
        n += e->d_name[0] != '.' && text_starts(e->d_name, beginning);
    if (folder != NULL)
        closedir(folder);
    return n;
}

void scene_expect_gone(const scene *s)
{
    char path[128];

    job_expect_gone(s->head);
    if (s->agent != NULL)
        job_expect_gone(s->agent);
    text_format(path, sizeof(path), "%s/tmp", s->folder);
    job_expect(s->head, count_entries(path, "") == 0);
    job_expect(s->head, count_entries("/dev/shm", "lockstep") == 0);
}

void scene_clean_up(scene *s)
{
    static const char *const names[] = {"go", "held", "key", "tmp"};

    for (size_t i = 0; i < LS_COUNT_OF(names); i++) {
        char path[128];

        text_format(path, sizeof(path), "%s/%s", s->folder, names[i]);
        (void)remove(path);
    }
    (void)rmdir(s->folder);
}
