/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_process.c - the calls about processes, signals and this machine, and the forks of the
 * launcher (shim_start, guardian_start), which begin fibers of job.c. See calls.c.
 */
#include "sim/sim.h"

#include "base/thread.h"
#include "host/process.h"
#include "launch/isolate/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

pid_t __real_waitpid(pid_t pid, int *status, int flags);
int __real_raise(int number);
long __real_sysconf(int name);

#define IS_OUTSIDE (W == NULL || W->current == NULL)

/* --- processes --- */

pid_t __wrap_getpid(void)
{
    return IS_OUTSIDE ? 1 : W->current->pid;
}

pid_t __wrap_getppid(void)
{
    return W->current->parent != NULL ? W->current->parent->pid : 1;
}

int __wrap_kill(pid_t pid, int number)
{
    process *p = process_of(pid);

    if (p == NULL)
        return fail(ESRCH);
    process_signal(p, number);
    return 0;
}

int __wrap_raise(int number)
{
    process *p = W != NULL ? W->current : NULL;

    if (p == NULL)
        return __real_raise(number);
    if (number == SIGSTOP) {
        process_stop(p, true);
        p->was_woken = true;
        process_wait(NEVER);
    }
    return 0;
}

static process *find_child(pid_t pid, bool *has_any)
{
    *has_any = false;
    for (process *p = W->processes; p != NULL; p = p->next) {
        if (p->parent != W->current || p->is_reaped || (pid > 0 && p->pid != pid))
            continue;
        *has_any = true;
        if (p->is_dead)
            return p;
    }
    return NULL;
}

pid_t __wrap_waitpid(pid_t pid, int *status, int flags)
{
    bool has_any;
    process *p;

    if (IS_OUTSIDE)
        return __real_waitpid(pid, status, flags);
    begin_call();
    while ((p = find_child(pid, &has_any)) == NULL) {
        if (!has_any)
            return fail(ECHILD);
        if ((flags & WNOHANG) != 0)
            return 0;
        process_wait(NEVER);
    }
    p->is_reaped = true;
    if (status != NULL)
        *status = p->wait_status;
    return p->pid;
}

int __wrap_signalfd(int fd, const sigset_t *set, int flags)
{
    object *o = object_new(OBJECT_SIGNALS);

    (void)fd;
    (void)set;
    o->owner = W->current;
    o->flags = (flags & SFD_NONBLOCK) != 0 ? O_NONBLOCK : 0;
    return fd_of(o);
}

int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
    (void)how;
    (void)set;
    if (old != NULL)
        sigemptyset(old);
    return 0;
}

int __wrap_sigaction(int number, const struct sigaction *action, struct sigaction *old)
{
    (void)number;
    (void)action;
    if (old != NULL)
        memset(old, 0, sizeof(*old));
    return 0;
}

int __wrap_prctl(int option, ...)
{
    (void)option;
    return 0;
}

long __wrap_syscall(long number, ...)
{
    (void)number;
    return fail(ENOSYS);
}

int __wrap_getrlimit(int resource, struct rlimit *out)
{
    (void)resource;
    *out = (struct rlimit){1 << 20, 1 << 20};
    return 0;
}

int __wrap_sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
    (void)pid;
    memset(set, 0, bytes);
    CPU_SET(0, set);
    CPU_SET(1, set);
    return 0;
}

long __wrap_sysconf(int name)
{
    return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? 2 : __real_sysconf(name);
}

int __wrap_gethostname(char *buf, size_t n)
{
    (void)snprintf(buf, n, "m%d", W->current->host);
    return 0;
}

ssize_t __wrap_getrandom(void *data, size_t bytes, unsigned flags)
{
    unsigned char *at = data;

    (void)flags;
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)(ls_hash3(W->spec->seed, ++W->last_random, 7) >> 32);
    return (ssize_t)bytes;
}

int __wrap_setenv(const char *name, const char *value, int replaces)
{
    (void)replaces;
    environment_add(W->current, name, value);
    environ = W->current->env->list;
    return 0;
}

/* The simulator forks, not a simulated process. */
int __wrap_pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void));
int __wrap_pthread_atfork(void (*before)(void), void (*parent)(void), void (*child)(void))
{
    (void)before;
    (void)parent;
    (void)child;
    return 0;
}

/* Operations progress in calls only, then. */
ls_status __wrap_ls_thread_start(ls_thread *t, const char *name, void (*fn)(void *arg), void *arg);
ls_status __wrap_ls_thread_start(ls_thread *t, const char *name, void (*fn)(void *arg), void *arg)
{
    (void)t;
    (void)fn;
    (void)arg;
    return ls_fail(LS_ESYSTEM, "thread %s: a simulated process has one thread", name);
}

/* --- forks --- */

ls_status __wrap_process_list_fds(process_fds *out);
ls_status __wrap_process_list_fds(process_fds *out)
{
    *out = (process_fds){0};
    return LS_OK;
}

static void inherit(process *p, int fd, int as)
{
    object *o = fd >= 0 ? object_of(fd) : NULL;

    if (o == NULL)
        return;
    o->refs++;
    p->fds[as] = o;
}

static void run_rank(void *arg)
{
    const process *p = W->current;
    const ls_status st = job_rank(p->local_rank, arg);

    process_die(W->current, st == LS_OK ? 0 : 1 << 8);
}

ls_status __wrap_shim_start(const shim_spec *spec, pid_t *pid);
ls_status __wrap_shim_start(const shim_spec *spec, pid_t *pid)
{
    machine *h = own_host();
    process *shim;
    process *rank;
    object *console;

    begin_call();
    if (call_fails(CALL_FORK)) {
        errno = EAGAIN;
        *pid = -1;
        return ls_fail_errno("starting rank %d", spec->local_rank);
    }
    shim = process_new(ROLE_SHIM, W->current->host, W->current, job_shim, NULL);
    rank = process_new(ROLE_RANK, W->current->host, shim, run_rank, spec->fn_arg);
    shim->rank = rank;
    shim->local_rank = rank->local_rank = spec->local_rank;
    shim->env = environment_make(NULL, NULL, NULL);
    rank->env = environment_make(spec->environment, NULL, NULL);
    (void)snprintf(shim->name, sizeof(shim->name), "shim %d.%d", shim->host, spec->local_rank);
    (void)snprintf(rank->name, sizeof(rank->name), "rank %d.%d", shim->host, spec->local_rank);
    inherit(shim, spec->agent_fd, 3);
    console = object_new(OBJECT_NULL);
    console->refs = 1;
    rank->fds[0] = console;
    inherit(rank, spec->stdout_fd, 1);
    inherit(rank, spec->stderr_fd, 2);
    inherit(rank, spec->key_fd, spec->key_fd);
    inherit(rank, spec->ring_fd, spec->ring_fd);
    inherit(rank, spec->listen_fd, spec->listen_fd);
    h->ranks[spec->local_rank] = rank;
    h->shims[spec->local_rank] = shim;
    *pid = shim->pid;
    return LS_OK;
}

ls_status __wrap_guardian_start(const process_mark *job, const cgroup *group, int lifeline_fd,
                                pid_t *pid);
ls_status __wrap_guardian_start(const process_mark *job, const cgroup *group, int lifeline_fd,
                                pid_t *pid)
{
    process *p;

    (void)job;
    (void)group;
    begin_call();
    if (call_fails(CALL_FORK)) {
        errno = EAGAIN;
        *pid = -1;
        return ls_fail_errno("starting the guardian");
    }
    p = process_new(ROLE_GUARDIAN, W->current->host, W->current, job_guardian, NULL);
    p->env = environment_make(NULL, NULL, NULL);
    (void)snprintf(p->name, sizeof(p->name), "guardian %d", p->host);
    inherit(p, lifeline_fd, 3);
    own_host()->guardian = p;
    *pid = p->pid;
    return LS_OK;
}
