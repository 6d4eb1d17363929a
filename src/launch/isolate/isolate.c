/* SPDX-License-Identifier: Apache-2.0 */
/*
 * isolate.c - creates the pid namespace of --isolate. The first process runs between fork and exec
 * like a shim, so it makes plain system calls only. Called by the agent.
 *
 * Root creates the namespace directly. Other users first need a user namespace, in which they keep
 * their ids; programs that switch users (sudo) do not work in it.
 */
#include "launch/isolate/isolate.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "host/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAIT_STEP_MS = 2 };

/* --- inside: the first process --- */

typedef enum isolate_step { STEP_DONE, STEP_USERS, STEP_MOUNTS, STEP_PROC } isolate_step;

/* The outcome of the set-up, sent in one write(). */
typedef struct isolate_result {
    int32_t step; /* the step that failed */
    int32_t error;
} isolate_result;

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done;

    if (fd < 0)
        return false;
    done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    file_close(&fd);
    return done;
}

/* Maps this user and group to themselves; other ids are unmapped. */
static bool map_user(uid_t uid, gid_t gid)
{
    char line[64];

    if (!write_file("/proc/self/setgroups", "deny") && errno != ENOENT)
        return false;
    text_format(line, sizeof(line), "%u %u 1\n", (unsigned)uid, (unsigned)uid);
    if (!write_file("/proc/self/uid_map", line))
        return false;
    text_format(line, sizeof(line), "%u %u 1\n", (unsigned)gid, (unsigned)gid);
    return write_file("/proc/self/gid_map", line);
}

/* Mounts propagate into the namespace, but not out of it. */
static isolate_step set_up(bool has_users, uid_t uid, gid_t gid)
{
    if (has_users && !map_user(uid, gid))
        return STEP_USERS;
    if (mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) != 0)
        return STEP_MOUNTS;
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
        return STEP_PROC;
    return STEP_DONE;
}

static void reap_until_end(int lifeline_fd, int child_fd)
{
    struct pollfd fds[] = {{.fd = lifeline_fd, .events = POLLIN},
                           {.fd = child_fd, .events = POLLIN}};
    struct signalfd_siginfo info;

    while (fds[0].revents == 0) {
        if (poll(fds, 2, -1) < 0)
            fds[0].revents = 0;
        while (waitpid(-1, NULL, WNOHANG) > 0)
            ;
        if (fds[1].revents != 0)
            (void)!read(child_fd, &info, sizeof(info));
    }
}

typedef struct first_process {
    const isolate_plan *plan;
    bool has_users;
    uid_t uid;
    gid_t gid;
    int lifeline_fd;
    int result_fd;
} first_process;

static void become_first(const first_process *f)
{
    /* The outer namespace's. */
    const int proc_fd = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    isolate_result result;
    sigset_t all;
    sigset_t child;
    int child_fd;

    /* The lifeline covers an agent that has exited before this call. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "lockstep-init");
    setsid();
    result.step = (int32_t)set_up(f->has_users, f->uid, f->gid);
    result.error = errno;
    if (write(f->result_fd, &result, sizeof(result)) != (ssize_t)sizeof(result) ||
        result.step != STEP_DONE)
        _exit(1);
    f->plan->fill(f->plan->arg, proc_fd);

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    child_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
    if (child_fd >= 0) {
        const int mine[] = {f->lifeline_fd, f->plan->key_fd, child_fd};
        process_close_all_but(mine, (int)LS_COUNT_OF(mine));
        reap_until_end(f->lifeline_fd, child_fd);
    }
    _exit(0); /* the kernel kills all other processes of the namespace */
}

pid_t isolate_outer_pid(int proc_fd)
{
    char link[32];
    const ssize_t n = proc_fd >= 0 ? readlinkat(proc_fd, "self", link, sizeof(link) - 1) : -1;

    link[n > 0 ? n : 0] = 0;
    return (pid_t)strtol(link, NULL, 10);
}

/* --- failures --- */

/* The number in a file under /proc/sys, or `otherwise`. */
static long setting(const char *name, long otherwise)
{
    char path[128];
    char text[32];

    text_format(path, sizeof(path), "/proc/sys/%s", name);
    return file_read_start(path, text, sizeof(text)) > 0 ? strtol(text, NULL, 10) : otherwise;
}

static ls_status fail_namespace(int error)
{
    if (setting("kernel/unprivileged_userns_clone", 1) == 0)
        return ls_fail(LS_EUNSUPPORTED,
                       "the kernel permits namespaces to root only: run `sysctl "
                       "kernel.unprivileged_userns_clone=1` as root, or run without --isolate");
    if (setting("user/max_user_namespaces", 1) == 0 || setting("user/max_pid_namespaces", 1) == 0 ||
        setting("user/max_mnt_namespaces", 1) == 0)
        return ls_fail(LS_EUNSUPPORTED, "the kernel permits no namespaces: run `sysctl "
                                        "user.max_user_namespaces=10000 user.max_pid_namespaces="
                                        "10000 user.max_mnt_namespaces=10000` as root, or run "
                                        "without --isolate");
    if (error == ENOSPC || error == EUSERS)
        return ls_fail(
            LS_EUNSUPPORTED,
            "the limit of namespaces is reached (%s): see `sysctl user`, or run without --isolate",
            ls_errno_text(error));
    if (error == EINVAL)
        return ls_fail(LS_EUNSUPPORTED,
                       "this kernel has no pid or user namespaces: run without --isolate");
    return ls_fail(LS_EUNSUPPORTED,
                   "permission denied to create a pid namespace (%s): start the container with "
                   "--cap-add SYS_ADMIN, run as root, or run without --isolate",
                   ls_errno_text(error));
}

static ls_status fail_step(const isolate_result *result)
{
    const char *error = ls_errno_text(result->error);

    if (result->step != STEP_DONE &&
        setting("kernel/apparmor_restrict_unprivileged_userns", 0) != 0 && geteuid() != 0)
        return ls_fail(LS_EUNSUPPORTED,
                       "AppArmor restricts namespaces of unprivileged users (%s): run `sysctl "
                       "kernel.apparmor_restrict_unprivileged_userns=0` as root, or run without "
                       "--isolate",
                       error);
    switch ((isolate_step)result->step) {
    case STEP_USERS:
        return ls_fail(LS_EUNSUPPORTED,
                       "cannot map this user into the namespace (/proc/self/uid_map: %s): run as "
                       "root, or run without --isolate",
                       error);
    case STEP_MOUNTS:
        return ls_fail(LS_EUNSUPPORTED,
                       "cannot make the mounts of the namespace private (%s): run as root, or run "
                       "without --isolate",
                       error);
    case STEP_PROC:
        return ls_fail(
            LS_EUNSUPPORTED,
            "cannot mount /proc in the namespace (%s), as in a container that hides parts of "
            "/proc: start the container with --privileged, or run without --isolate",
            error);
    case STEP_DONE:
        break;
    }
    return ls_fail(LS_ESYSTEM, "the first process of the namespace was killed");
}

/* --- outside --- */

/* As fork(), but the child starts in new namespaces. */
static pid_t fork_into(unsigned long namespaces)
{
    return (pid_t)syscall(SYS_clone, namespaces | SIGCHLD, NULL, NULL, NULL, NULL);
}

static ls_status fork_first(first_process *f, pid_t *pid)
{
    const unsigned long namespaces = CLONE_NEWPID | CLONE_NEWNS;

    *pid = fork_into(namespaces);
    if (*pid < 0 && errno == EPERM) {
        f->has_users = true;
        *pid = fork_into(namespaces | CLONE_NEWUSER);
    }
    if (*pid == 0)
        become_first(f);
    return *pid > 0 ? LS_OK : fail_namespace(errno);
}

static ls_status read_result(int fd)
{
    isolate_result result = {0};
    ssize_t n;

    do {
        n = read(fd, &result, sizeof(result));
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof(result) && result.step == STEP_DONE ? LS_OK : fail_step(&result);
}

/* The inode of a process's pid namespace; 0 when it cannot be read. */
static uint64_t pid_ns_of(pid_t pid)
{
    char path[64];
    struct stat facts;

    text_format(path, sizeof(path), "/proc/%d/ns/pid", (int)pid);
    return stat(path, &facts) == 0 ? (uint64_t)facts.st_ino : 0;
}

ls_status isolate_start(const isolate_plan *plan, isolation *out)
{
    first_process f = {.plan = plan, .uid = geteuid(), .gid = getegid()};
    int result_fd = -1;
    ls_status st;

    *out = ISOLATION_NONE;
    LS_TRY(process_make_pipe(&f.lifeline_fd, &out->lifeline_fd));
    st = process_make_pipe(&result_fd, &f.result_fd);
    if (st == LS_OK)
        st = fork_first(&f, &out->pid);
    file_close(&f.lifeline_fd);
    if (result_fd >= 0)
        file_close(&f.result_fd);
    if (st == LS_OK)
        st = read_result(result_fd);
    file_close(&result_fd);
    if (st == LS_OK) {
        out->pid_ns = pid_ns_of(out->pid);
        return LS_OK;
    }
    if (out->pid > 0)
        (void)waitpid(out->pid, NULL, 0); /* it exits after its report */
    file_close(&out->lifeline_fd);
    *out = ISOLATION_NONE;
    return ls_context(st, "--isolate");
}

bool isolate_end(isolation *i, int64_t deadline_ms)
{
    file_close(&i->lifeline_fd);
    if (i->pid <= 0)
        return true;
    kill(i->pid, SIGKILL); /* a stopped process does not see the lifeline */
    while (waitpid(i->pid, NULL, WNOHANG) == 0) {
        if (ls_deadline_left(deadline_ms) == 0)
            return false;
        (void)poll(NULL, 0, WAIT_STEP_MS);
    }
    *i = ISOLATION_NONE;
    return true;
}

bool isolate_has_died(isolation *i)
{
    if (i->pid <= 0 || waitpid(i->pid, NULL, WNOHANG) != i->pid)
        return false;
    i->pid = 0;
    return true;
}

void isolate_for_each(const isolation *i, void (*fn)(void *arg, pid_t pid), void *arg)
{
    DIR *proc = i->pid_ns != 0 ? opendir("/proc") : NULL;
    pid_t pid;

    if (proc == NULL)
        return;
    while ((pid = file_next_number(proc)) >= 0)
        if (pid != i->pid && pid_ns_of(pid) == i->pid_ns)
            fn(arg, pid);
    closedir(proc);
}
