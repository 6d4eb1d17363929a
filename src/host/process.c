/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.c - keeps hold of processes and descriptors through the kernel's interfaces, with
 * fallbacks for old kernels. Much of it runs between fork and exec, so it avoids allocation except
 * where process.h says otherwise. Called by agents, shims, guardians and starters.
 */
#include "host/process.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "host/process_id.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

enum {
    CHILDREN_MOST = 512, /* killed in one pass */
    KILL_PAUSE_MS = 2,   /* after kills, until the processes have exited */
    CLEAN_PASSES = 5,    /* scans in a row that must find nothing */
    CLEAN_PAUSE_MS = 20, /* between them */
};

void process_allow_files(uint64_t needed)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed)
        return;
    limit.rlim_cur = needed < limit.rlim_max ? needed : limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

int process_open(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0); /* CLOEXEC by definition */
}

void process_reset_signals(const sigset_t *mask)
{
    struct sigaction standard;

    memset(&standard, 0, sizeof(standard));
    standard.sa_handler = SIG_DFL;
    for (int i = 1; i < 32; i++)
        sigaction(i, &standard, NULL);
    pthread_sigmask(SIG_SETMASK, mask, NULL);
}

bool process_kill(int fd, pid_t pid)
{
    return (fd >= 0 ? (int)syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0)
                    : kill(pid, SIGKILL)) == 0;
}

static void pause_ms(int ms)
{
    poll(NULL, 0, ms);
}

/* --- children --- */

static void for_each_process(void (*fn)(pid_t pid, void *arg), void *arg)
{
    DIR *proc = opendir("/proc");
    pid_t pid;

    if (proc == NULL)
        return;
    while ((pid = file_next_number(proc)) >= 0)
        fn(pid, arg);
    closedir(proc);
}

typedef struct child_list {
    pid_t parent;
    pid_t *pids;
    int n;
    int most;
} child_list;

static void add_child(child_list *list, pid_t pid)
{
    if (list->n < list->most)
        list->pids[list->n++] = pid;
}

static void add_if_child(pid_t pid, void *arg)
{
    child_list *list = arg;
    process_stat stat;

    if (process_stat_read("", pid, &stat) && stat.parent == list->parent)
        add_child(list, pid);
}

// NOLINTNEXTLINE(readability-non-const-parameter): written through the list
int process_list_children(pid_t parent, pid_t *out, int most)
{
    child_list list = {.parent = parent, .pids = out, .most = most};
    char path[64];
    char text[4096];

    if (parent == getpid()) /* its pid may differ in this /proc */
        text_format(path, sizeof(path), "/proc/self/task/%d/children", (int)parent);
    else
        text_format(path, sizeof(path), "/proc/%d/task/%d/children", (int)parent, (int)parent);
    if (file_read_start(path, text, sizeof(text)) < 0) { /* the kernel lacks this file */
        for_each_process(add_if_child, &list);
        return list.n;
    }
    for (char *at = text, *end = text; *at != 0; at = end) {
        const long pid = strtol(at, &end, 10);
        if (end == at)
            break;
        add_child(&list, (pid_t)pid);
    }
    return list.n;
}

/* The pid of a child is not reused until waitpid(). */
static void kill_children_once(void)
{
    pid_t pids[CHILDREN_MOST];
    const int n = process_list_children(getpid(), pids, CHILDREN_MOST);

    for (int i = 0; i < n; i++)
        kill(pids[i], SIGKILL);
}

void process_kill_children(int64_t deadline_ms)
{
    for (;;) {
        pid_t pid;
        kill_children_once();
        do {
            pid = waitpid(-1, NULL, WNOHANG);
        } while (pid > 0 || (pid < 0 && errno == EINTR));
        if (pid < 0 || ls_deadline_left(deadline_ms) == 0)
            return; /* no child is left, or one cannot be killed (waiting for a device) */
        pause_ms(KILL_PAUSE_MS);
    }
}

/* --- processes of a job --- */

typedef struct sweep {
    char entry[64]; /* "LOCKSTEP_AGENT=..." */
    bool has_key;
    struct stat key;
    pid_t spared;
    int n_found;
} sweep;

/* Searches the environment for an entry between two zeros, in pieces that overlap by its length. */
static bool environment_has(pid_t pid, const char *entry)
{
    char wanted[sizeof(((sweep *)0)->entry) + 1] = {0};
    const size_t want = strlen(entry) + 2;
    char path[64];
    char piece[4096] = {0};
    size_t have = 1; /* a zero before the first entry */
    bool found = false;
    ssize_t got;
    int fd;

    text_format(wanted + 1, sizeof(wanted) - 1, "%s", entry);
    text_format(path, sizeof(path), "/proc/%d/environ", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    while (!found && (got = read(fd, piece + have, sizeof(piece) - have)) > 0) {
        have += (size_t)got;
        found = memmem(piece, have, wanted, want) != NULL;
        if (have == sizeof(piece)) {
            memmove(piece, piece + have - want, want);
            have = want;
        }
    }
    close(fd);
    return found;
}

/* Whether one of its descriptors is the job's key. */
static bool has_key_open(pid_t pid, const struct stat *key)
{
    const struct dirent *entry;
    struct stat facts;
    char path[64];
    bool found = false;
    DIR *fds;

    text_format(path, sizeof(path), "/proc/%d/fd", (int)pid);
    fds = opendir(path);
    if (fds == NULL)
        return false;
    while (!found && (entry = file_next_entry(fds)) != NULL)
        found = isdigit((unsigned char)entry->d_name[0]) &&
                fstatat(dirfd(fds), entry->d_name, &facts, 0) == 0 && facts.st_dev == key->st_dev &&
                facts.st_ino == key->st_ino;
    closedir(fds);
    return found;
}

static bool is_of_job(pid_t pid, const sweep *s)
{
    return environment_has(pid, s->entry) || (s->has_key && has_key_open(pid, &s->key));
}

static void kill_if_of_job(pid_t pid, void *arg)
{
    sweep *s = arg;
    int fd;

    if (pid == getpid() || pid == s->spared || !is_of_job(pid, s))
        return;
    if (process_state(pid) == 'Z')
        return; /* a zombie */
    s->n_found++;
    fd = process_open(pid);
    if (fd < 0 || is_of_job(pid, s)) /* its pid was not reused before the pidfd was open */
        (void)process_kill(fd, pid);
    file_close(&fd);
}

void process_sweep_job(const process_mark *mark, int64_t deadline_ms)
{
    sweep s = {.spared = mark->spared};
    int n_clean = 0;

    text_format(s.entry, sizeof(s.entry), "%s=%s", PROCESS_AGENT_ENV, mark->agent);
    s.has_key = mark->key_fd >= 0 && fstat(mark->key_fd, &s.key) == 0;
    while (n_clean < CLEAN_PASSES && ls_deadline_left(deadline_ms) != 0) {
        s.n_found = 0;
        for_each_process(kill_if_of_job, &s);
        n_clean = s.n_found == 0 ? n_clean + 1 : 0;
        pause_ms(s.n_found == 0 ? CLEAN_PAUSE_MS : KILL_PAUSE_MS);
    }
}

/* --- descriptors --- */

static int ascending(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

static void close_span(unsigned first, unsigned last)
{
    if (first > last || syscall(SYS_close_range, first, last, 0) == 0)
        return;
    for (unsigned fd = first; fd <= last && fd < 65536; fd++)
        close((int)fd);
}

/* `sorted` may have entries that are -1, or twice. */
static void close_others(const int *sorted, size_t n)
{
    unsigned next = 0;

    for (size_t i = 0; i < n; i++) {
        if (sorted[i] < 0 || (unsigned)sorted[i] < next)
            continue;
        if (sorted[i] > 0)
            close_span(next, (unsigned)sorted[i] - 1);
        next = (unsigned)sorted[i] + 1;
    }
    close_span(next, ~0U);
}

void process_close_all_but(const int *keep, int n)
{
    int sorted[16];

    LS_ASSERT(n <= (int)LS_COUNT_OF(sorted));
    memcpy(sorted, keep, (size_t)n * sizeof(*keep));
    qsort(sorted, (size_t)n, sizeof(*sorted), ascending);
    close_others(sorted, (size_t)n);
}

static ls_status add_fd(process_fds *list, int *capacity, int fd)
{
    if (list->n == *capacity) {
        LS_TRY(LS_RESIZE(&list->fds, (size_t)*capacity * 2 + 64, "for a list of descriptors"));
        *capacity = *capacity * 2 + 64;
    }
    list->fds[list->n++] = fd;
    return LS_OK;
}

ls_status process_list_fds(process_fds *out)
{
    DIR *fds = opendir("/proc/self/fd");
    int capacity = 0;
    int fd;
    ls_status st = LS_OK;

    *out = (process_fds){0};
    if (fds == NULL)
        return ls_fail_errno("/proc/self/fd");
    while (st == LS_OK && (fd = file_next_number(fds)) >= 0)
        if (fd != dirfd(fds))
            st = add_fd(out, &capacity, fd);
    closedir(fds);
    if (st != LS_OK) {
        ls_free(out->fds);
        *out = (process_fds){0};
    }
    return st;
}

/* Does not read /proc/self/fd: the kernel keeps 0.9 KiB for each entry that is read there, until
 * the process ends. */
void process_close_since(const process_fds *then, const int *keep, int n_keep)
{
    const size_t n_then = (size_t)then->n;
    const size_t n = n_then + (size_t)n_keep;
    int *kept = ls_calloc(n, sizeof(*kept));

    if (kept == NULL)
        return; /* the descriptors stay open */
    if (n_then > 0)
        memcpy(kept, then->fds, n_then * sizeof(*kept));
    memcpy(kept + n_then, keep, (size_t)n_keep * sizeof(*kept));
    qsort(kept, n, sizeof(*kept), ascending);
    close_others(kept, n);
    ls_free(kept);
}

ls_status process_make_pipe(int *read_end, int *write_end)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) != 0)
        return ls_fail_errno("a pipe to a child");
    *read_end = fds[0];
    *write_end = fds[1];
    return LS_OK;
}

ls_status process_make_channel(int *ours, int *childs)
{
    int fds[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0)
        return ls_fail_errno("a socket to a child");
    *ours = fds[0];
    *childs = fds[1];
    return LS_OK;
}

int process_count_threads(void)
{
    DIR *tasks = opendir("/proc/self/task");
    int n = 0;

    if (tasks == NULL)
        return 1; /* without /proc */
    while (file_next_number(tasks) >= 0)
        n++;
    closedir(tasks);
    return n;
}

/* --- texts --- */

const char *process_signal_name(int number)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {
        {SIGHUP, "SIGHUP"},       {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"},
        {SIGILL, "SIGILL"},       {SIGTRAP, "SIGTRAP"}, {SIGABRT, "SIGABRT"},
        {SIGBUS, "SIGBUS"},       {SIGFPE, "SIGFPE"},   {SIGKILL, "SIGKILL"},
        {SIGUSR1, "SIGUSR1"},     {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"},
        {SIGPIPE, "SIGPIPE"},     {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
        {SIGXCPU, "SIGXCPU"},     {SIGXFSZ, "SIGXFSZ"}, {SIGSYS, "SIGSYS"},
        {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"}, {SIGTSTP, "SIGTSTP"},
        {SIGIO, "SIGIO"},         {SIGPWR, "SIGPWR"},   {SIGSTKFLT, "SIGSTKFLT"},
    };

    for (size_t i = 0; i < LS_COUNT_OF(names); i++)
        if (names[i].number == number)
            return names[i].name;
    return "a real-time signal";
}

const char *process_end_text(char *buf, size_t n, int wait_status)
{
    if (WIFSIGNALED(wait_status))
        return text_format(buf, n, "was killed by signal %d (%s)%s", WTERMSIG(wait_status),
                           process_signal_name(WTERMSIG(wait_status)),
                           WCOREDUMP(wait_status) ? ", core dumped" : "");
    return text_format(buf, n, "exited with code %d", WEXITSTATUS(wait_status));
}

void process_set_shown_pid(char *const *env, pid_t inner, pid_t outer)
{
    static const char name[] = PROCESS_OUTER_PID_ENV "=";

    for (; *env != NULL; env++)
        if (text_starts(*env, name))
            text_format(*env + sizeof(name) - 1, PROCESS_SHOWN_BYTES, "%d:%d", (int)inner,
                        (int)outer);
}
