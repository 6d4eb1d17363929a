/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.c - starts the tool as a user does, collects its output and finds its processes. Each wait
 * has a deadline. Used by all tests of whole jobs.
 */
#include "launch/job.h"

#include "base/clock.h"
#include "base/file.h"
#include "host/process_id.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK_NAME "TEST_JOB_MARK"
#define LOOK_MS   5

static job jobs[JOB_MOST];

int job_rounds(void)
{
    const char *text = getenv("LS_TEST_ROUNDS");
    const long n = text != NULL ? strtol(text, NULL, 10) : 0;

    return n > 0 ? (int)n : 3;
}

/* --- starting --- */

static void become_program(job *j, const char *const *argv, const char *const *env,
                           const int *streams)
{
    sigset_t none;

    (void)dup2(streams[0], STDIN_FILENO);
    (void)dup2(streams[1], STDOUT_FILENO);
    (void)dup2(streams[2], STDERR_FILENO);
    for (; env != NULL && *env != NULL; env++) {
        if (strchr(*env, '=') != NULL)
            (void)putenv((char *)(uintptr_t)*env);
        else
            (void)unsetenv(*env);
    }
    (void)unsetenv("LS_TEST_ROUNDS"); /* meant for us */
    (void)unsetenv("LS_TEST_FULL");
    (void)putenv(j->mark);
    (void)fcntl(j->mark_fd, F_SETFD, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (isatty(STDIN_FILENO) && setsid() > 0)
        (void)ioctl(STDIN_FILENO, TIOCSCTTY, 0); /* Ctrl-C becomes SIGINT */
    else
        (void)setpgid(0, 0);
    execvp(argv[0], (char *const *)(uintptr_t)argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(99);
}

static void make_pipe(int *read_end, int *write_end)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        fail_msg("pipe: %s", strerror(errno));
    *read_end = fds[0];
    *write_end = fds[1];
}

/* A free place with a mark of its own. */
static job *new_job(void)
{
    uint64_t number;
    job *j = jobs;

    while (j < jobs + JOB_MOST && j->is_used)
        j++;
    assert_true(j < jobs + JOB_MOST);
    *j = (job){.is_used = true};
    assert_int_equal(getrandom(&number, sizeof(number), 0), sizeof(number));
    text_format(j->mark, sizeof(j->mark), MARK_NAME "=%016llx", (unsigned long long)number);
    j->mark_fd = memfd_create("lockstep-test", MFD_CLOEXEC);
    j->in_fd = j->out_fd = j->err_fd = -1;
    return j;
}

static void start(job *j, const char *const *argv, const char *const *env, const int *streams)
{
    (void)fflush(NULL);
    j->pid = fork();
    if (j->pid == 0)
        become_program(j, argv, env, streams);
    assert_true(j->pid > 0);
}

job *job_start(const char *const *argv, const char *const *env)
{
    job *j = new_job();
    int streams[3];

    make_pipe(&streams[0], &j->in_fd);
    make_pipe(&j->out_fd, &streams[1]);
    make_pipe(&j->err_fd, &streams[2]);
    start(j, argv, env, streams);
    for (int i = 0; i < 3; i++)
        (void)close(streams[i]);
    return j;
}

job *job_start_on_terminal(const char *const *argv, const char *const *env)
{
    job *j = new_job();
    char name[64];
    int streams[3];

    j->out_fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(j->out_fd >= 0);
    assert_int_equal(grantpt(j->out_fd), 0);
    assert_int_equal(unlockpt(j->out_fd), 0);
    assert_int_equal(ptsname_r(j->out_fd, name, sizeof(name)), 0);
    j->in_fd = fcntl(j->out_fd, F_DUPFD_CLOEXEC, 0);
    streams[0] = streams[1] = streams[2] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(streams[0] >= 0);
    start(j, argv, env, streams);
    (void)close(streams[0]);
    return j;
}

/* --- what it prints --- */

static void read_some(int *fd, text_buf *into)
{
    static char bytes[65536];
    const ssize_t n = read(*fd, bytes, sizeof(bytes));

    if (n > 0)
        text_append_bytes(into, bytes, (size_t)n);
    else if (n == 0 || errno == EIO) /* a terminal that no process has open */
        file_close(fd);
}

/* Reads for at most `ms`; returns at the first news. */
static void pump(job *j, int ms)
{
    struct pollfd fds[] = {{.fd = j->out_fd, .events = POLLIN},
                           {.fd = j->err_fd, .events = POLLIN}};
    const int n = poll(fds, 2, ms);

    if (n > 0 && fds[0].revents != 0)
        read_some(&j->out_fd, &j->out);
    if (n > 0 && fds[1].revents != 0)
        read_some(&j->err_fd, &j->err);
    if (!j->has_ended && waitpid(j->pid, &j->status, WNOHANG) == j->pid)
        j->has_ended = true;
}

/* cmocka prints 1 KiB at a time. */
static void show(const char *title, const text_buf *text)
{
    print_message("--- %s:\n", title);
    for (size_t at = 0; at < text->length; at += 500)
        print_message("%.500s", text_str(text) + at);
}

static void show_job(const job *j)
{
    show("stdout", &j->out);
    show("stderr", &j->err);
    print_message("---\n");
    if (j->has_ended)
        print_message("ended with status 0x%x\n", (unsigned)j->status);
}

void job_fail(const job *j, const char *file, int line, const char *condition)
{
    show_job(j);
    for (job *other = jobs; other < jobs + JOB_MOST; other++) {
        if (!other->is_used || other == j)
            continue;
        print_message("=== another job, process %d\n", (int)other->pid);
        pump(other, 0);
        show_job(other);
    }
    print_message("%s:%d: %s does not hold\n", file, line, condition);
    fail();
    abort(); /* fail() does not return, but its declaration does not say so */
}

void job_await_end(job *j)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);

    while (!j->has_ended || j->out_fd >= 0 || j->err_fd >= 0) {
        job_expect(j, ls_deadline_left(deadline_ms) > 0);
        pump(j, LOOK_MS);
        if (j->has_ended && job_count_alive(j) > 0 && ls_deadline_left(deadline_ms) == 0)
            break;
    }
}

bool job_printed(const job *j, int which, const char *text)
{
    return strstr(text_str(which == 0 ? &j->out : &j->err), text) != NULL;
}

void job_await_text(job *j, int which, const char *text)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);

    while (!job_printed(j, which, text)) {
        if (j->has_ended && j->out_fd < 0 && j->err_fd < 0)
            job_fail(j, __FILE__, __LINE__, text);
        job_expect(j, ls_deadline_left(deadline_ms) > 0);
        pump(j, 50);
    }
}

bool job_counts_others(const job *j, int n)
{
    const char *failed = strstr(text_str(&j->err), " failed after it\n");
    const char *stopped = strstr(text_str(&j->err), " stopped because of it\n");
    const char *const ends[] = {failed, stopped};
    long sum = 0;

    for (size_t i = 0; i < LS_COUNT_OF(ends); i++) {
        const char *at = ends[i];

        while (at != NULL && at > text_str(&j->err) && at[-1] != '\n')
            at--;
        sum += at != NULL ? strtol(at, NULL, 10) : 0;
    }
    return sum == n;
}

long job_await_number(job *j, int which, const char *word)
{
    const char *at;

    job_await_text(j, which, word);
    at = strstr(text_str(which == 0 ? &j->out : &j->err), word) + strlen(word);
    while (strchr(at, '\n') == NULL) {
        pump(j, 50);
        at = strstr(text_str(which == 0 ? &j->out : &j->err), word) + strlen(word);
    }
    return strtol(at, NULL, 10);
}

void job_read_output(job *j, int64_t ms)
{
    const int64_t deadline_ms = ls_deadline_ms(ms);

    while (ls_deadline_left(deadline_ms) > 0)
        pump(j, ls_deadline_left(deadline_ms));
}

void job_write(job *j, const char *text)
{
    assert_int_equal(write(j->in_fd, text, strlen(text)), strlen(text));
}

void job_close_stdin(job *j)
{
    file_close(&j->in_fd);
}

void job_expect_code(job *j, int code)
{
    int got;

    job_await_end(j);
    got = WIFSIGNALED(j->status) ? 128 + WTERMSIG(j->status) : WEXITSTATUS(j->status);
    if (got != code) {
        print_message("exit code %d, not %d\n", got, code);
        job_expect(j, got == code);
    }
}

/* --- its processes --- */

typedef struct member {
    pid_t pid;
    uint64_t start; /* in clock ticks */
    char name[32];
    int rank; /* LOCKSTEP_RANK of its environment, -1: none */
} member;

enum { MEMBERS_MAX = 2048 };

typedef struct members {
    member list[MEMBERS_MAX];
    int n;
} members;

static ssize_t read_file(pid_t pid, const char *name, char *buf, size_t n)
{
    char path[64];
    ssize_t got;
    int fd;

    text_format(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    got = read(fd, buf, n - 1);
    (void)close(fd);
    if (got >= 0)
        buf[got] = 0;
    return got;
}

static const char *find_entry(const char *env, ssize_t n, const char *entry)
{
    return n <= 0 ? NULL : memmem(env, (size_t)n, entry, strlen(entry));
}

static bool has_mark_open(const job *j, pid_t pid)
{
    struct stat own, facts;
    char path[64];
    bool found = false;
    const struct dirent *e;
    DIR *fds;

    text_format(path, sizeof(path), "/proc/%d/fd", (int)pid);
    fds = opendir(path);
    if (fds == NULL || fstat(j->mark_fd, &own) != 0)
        return false;
    while (!found && (e = readdir(fds)) != NULL)
        found = isdigit((unsigned char)e->d_name[0]) &&
                fstatat(dirfd(fds), e->d_name, &facts, 0) == 0 && facts.st_ino == own.st_ino &&
                facts.st_dev == own.st_dev;
    closedir(fds);
    return found;
}

static pid_t parent_of(pid_t pid)
{
    process_stat facts;

    return process_stat_read("", pid, &facts) ? facts.parent : 0;
}

static void add_member(const job *j, members *m, pid_t pid)
{
    static char env[1 << 17];
    const ssize_t n = read_file(pid, "environ", env, sizeof(env));
    process_stat facts;
    const char *rank;
    member *one = &m->list[m->n];

    if (pid == getpid() || m->n == MEMBERS_MAX)
        return;
    if (find_entry(env, n, j->mark) == NULL &&
        (find_entry(env, n, MARK_NAME "=") != NULL || !has_mark_open(j, pid)))
        return; /* of another job, or of none */
    if (!process_stat_read("", pid, &facts) || facts.state == 'Z')
        return;
    rank = find_entry(env, n, "LOCKSTEP_RANK=");
    *one = (member){.pid = pid, .start = facts.start, .rank = -1};
    text_format(one->name, sizeof(one->name), "%s", facts.name);
    if (rank != NULL)
        one->rank = (int)strtol(rank + strlen("LOCKSTEP_RANK="), NULL, 10);
    m->n++;
}

static void list_members(const job *j, members *m)
{
    DIR *proc = opendir("/proc");
    const struct dirent *e;

    m->n = 0;
    assert_non_null(proc);
    while ((e = readdir(proc)) != NULL)
        if (isdigit((unsigned char)e->d_name[0]))
            add_member(j, m, (pid_t)strtol(e->d_name, NULL, 10));
    closedir(proc);
}

int job_count_alive(const job *j)
{
    static members m;

    list_members(j, &m);
    return m.n;
}

static bool is_named(pid_t pid, const char *name)
{
    char comm[32];

    return read_file(pid, "comm", comm, sizeof(comm)) > 0 && strncmp(comm, name, strlen(name)) == 0;
}

/* Whether it is a shim: a child of the program under test or, of isolated ranks, of the first
 * process of their namespace. */
static bool is_shim(const job *j, pid_t pid)
{
    const pid_t parent = parent_of(pid);

    return is_named(pid, "lockstep-shim") &&
           (parent == j->pid || (is_named(parent, "lockstep-init") && parent_of(parent) == j->pid));
}

/* A rank's parent is its shim, as that of orphans, which do not lead a group. Shims come in the
 * order of their ranks. */
static bool is_part(const job *j, const member *m, job_part part)
{
    switch (part) {
    case JOB_AGENT:
        return m->pid == j->pid;
    case JOB_SHIM:
        return is_shim(j, m->pid);
    case JOB_GUARDIAN:
        return parent_of(m->pid) == j->pid && text_equal(m->name, "lockstep-guard");
    case JOB_RANK:
        return is_shim(j, parent_of(m->pid)) && getpgid(m->pid) == m->pid;
    case JOB_INIT:
        return parent_of(m->pid) == j->pid && text_equal(m->name, "lockstep-init");
    }
    return false;
}

/* By age, also where the numbers of processes have started again. */
static int compare_starts(const void *a, const void *b)
{
    const member *x = a;
    const member *y = b;

    return x->start != y->start ? (x->start > y->start) - (x->start < y->start) : x->pid - y->pid;
}

pid_t job_find(job *j, job_part part, int n)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_LONG_MS);
    static members m;

    for (;;) {
        int seen = 0;

        list_members(j, &m);
        qsort(m.list, (size_t)m.n, sizeof(*m.list), compare_starts);
        for (int i = 0; i < m.n; i++) {
            if (!is_part(j, &m.list[i], part))
                continue;
            if (part == JOB_RANK && m.list[i].rank >= 0 ? m.list[i].rank == n : seen == n)
                return m.list[i].pid;
            seen++;
        }
        job_expect(j, ls_deadline_left(deadline_ms) > 0 && !j->has_ended);
        pump(j, LOOK_MS);
    }
}

/* The 0 bytes of /proc/PID/NAME become blanks. */
static bool has_words(pid_t pid, const char *name, const char *words)
{
    static char text[1 << 17];
    const ssize_t n = read_file(pid, name, text, sizeof(text));

    for (ssize_t i = 0; i < n; i++)
        text[i] = (char)(text[i] == 0 ? ' ' : text[i]);
    return n >= 0 && strstr(text, words) != NULL;
}

pid_t job_find_process(const job *j, const char *name, const char *words, const char *entry)
{
    static members m;

    list_members(j, &m);
    for (int i = 0; i < m.n; i++)
        if ((name == NULL || text_equal(m.list[i].name, name)) &&
            has_words(m.list[i].pid, "cmdline", words) &&
            has_words(m.list[i].pid, "environ", entry))
            return m.list[i].pid;
    return 0;
}

static pid_t find_stray(const char *seconds)
{
    char wanted[64];
    DIR *proc = opendir("/proc");
    const struct dirent *e;
    pid_t found = 0;

    text_format(wanted, sizeof(wanted), "sleep %s ", seconds);
    assert_non_null(proc);
    while (found == 0 && (e = readdir(proc)) != NULL) {
        const pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);

        if (isdigit((unsigned char)e->d_name[0]) && has_words(pid, "cmdline", wanted))
            found = pid;
    }
    closedir(proc);
    return found;
}

pid_t job_await_process(job *j, const char *seconds, bool is_there)
{
    const int64_t deadline_ms = ls_deadline_ms(is_there ? JOB_LONG_MS : JOB_GONE_MS);

    pid_t pid;

    while (((pid = find_stray(seconds)) != 0) != is_there) {
        job_expect(j, ls_deadline_left(deadline_ms) > 0);
        pump(j, LOOK_MS);
    }
    return pid;
}

pid_t job_find_below(const job *j, pid_t parent, const char *name, bool leads, int n)
{
    static members m;

    list_members(j, &m);
    qsort(m.list, (size_t)m.n, sizeof(*m.list), compare_starts);
    for (int i = 0; i < m.n; i++) {
        const pid_t pid = m.list[i].pid;

        if (parent_of(pid) == parent && (name == NULL || text_equal(m.list[i].name, name)) &&
            (getpgid(pid) == pid) == leads && n-- == 0)
            return pid;
    }
    return 0;
}

/* --- its sockets --- */

static void note_sockets_of(job *j, pid_t pid)
{
    const struct dirent *e;
    char path[64];
    DIR *fds;

    text_format(path, sizeof(path), "/proc/%d/fd", (int)pid);
    fds = opendir(path);
    while (fds != NULL && (e = readdir(fds)) != NULL) {
        char link[64] = "";

        if (readlinkat(dirfd(fds), e->d_name, link, sizeof(link) - 1) > 0 &&
            text_starts(link, "socket:[") && j->n_sockets < JOB_SOCKETS_MAX)
            j->sockets[j->n_sockets++] = strtoull(link + strlen("socket:["), NULL, 10);
    }
    if (fds != NULL)
        closedir(fds);
}

void job_note_sockets(job *j)
{
    static members m;

    list_members(j, &m);
    for (int i = 0; i < m.n; i++)
        note_sockets_of(j, m.list[i].pid);
    job_expect(j, j->n_sockets > 0);
}

static bool has_socket(const job *j, uint64_t inode)
{
    for (int i = 0; i < j->n_sockets; i++)
        if (j->sockets[i] == inode)
            return true;
    return false;
}

/* The inode is field 7 of /proc/net/unix and field 10 of /proc/net/tcp, counted from 1. */
static bool table_has_sockets(const job *j, const char *path, int field)
{
    FILE *table = fopen(path, "re");
    char line[512];
    bool found = false;

    while (table != NULL && !found && fgets(line, sizeof(line), table) != NULL) {
        const char *at = line;

        for (int i = 1; i < field; i++) {
            at += strspn(at, " ");
            at += strcspn(at, " ");
        }
        found = has_socket(j, strtoull(at, NULL, 10));
    }
    if (table != NULL)
        (void)fclose(table);
    return found;
}

bool job_has_connection(pid_t pid)
{
    job its = {.n_sockets = 0};

    note_sockets_of(&its, pid);
    return table_has_sockets(&its, "/proc/net/tcp", 10);
}

static bool has_sockets(const job *j)
{
    return table_has_sockets(j, "/proc/net/unix", 7) || table_has_sockets(j, "/proc/net/tcp", 10) ||
           table_has_sockets(j, "/proc/net/tcp6", 10);
}

static void show_members(const job *j)
{
    static members m;

    list_members(j, &m);
    for (int i = 0; i < m.n; i++)
        print_message("alive: pid %d %s, rank %d, parent %d, state %c\n", (int)m.list[i].pid,
                      m.list[i].name, m.list[i].rank, (int)parent_of(m.list[i].pid),
                      process_state(m.list[i].pid));
}

void job_expect_gone(job *j)
{
    const int64_t deadline_ms = ls_deadline_ms(JOB_GONE_MS);

    while (job_count_alive(j) > 0 || has_sockets(j)) {
        if (ls_deadline_left(deadline_ms) == 0) {
            show_members(j);
            job_fail(j, __FILE__, __LINE__, "nothing is left of the job");
        }
        pump(j, 20);
    }
}

/* --- the end of a test --- */

static void kill_members(const job *j)
{
    static members m;
    const int64_t deadline_ms = ls_deadline_ms(JOB_GONE_MS);

    do {
        list_members(j, &m);
        for (int i = 0; i < m.n; i++)
            (void)kill(m.list[i].pid, SIGKILL);
        (void)poll(NULL, 0, m.n > 0 ? LOOK_MS : 0);
    } while (m.n > 0 && ls_deadline_left(deadline_ms) > 0);
}

int job_clean_up(void **state)
{
    LS_UNUSED(state);
    for (job *j = jobs; j < jobs + JOB_MOST; j++) {
        if (!j->is_used)
            continue;
        kill_members(j);
        if (!j->has_ended)
            (void)waitpid(j->pid, &j->status, 0);
        file_close(&j->mark_fd);
        file_close(&j->in_fd);
        file_close(&j->out_fd);
        file_close(&j->err_fd);
        text_free(&j->out);
        text_free(&j->err);
        j->is_used = false;
    }
    return 0;
}

void job_expect_failed_rank(job *j, int rank, const char *how)
{
    const char *at;
    char start_of[32];

    text_format(start_of, sizeof(start_of), "lockstep: rank %d (pid ", rank);
    at = strstr(text_str(&j->err), start_of);
    job_expect(j, at != NULL && strstr(at, how) != NULL);
    job_expect(j, strstr(at + 1, "lockstep: rank ") == NULL);
    job_expect_gone(j);
}
