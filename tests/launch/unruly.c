/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unruly.c - a rank that is hard to kill or uses too much memory: unruly ROLE [ARGS]. Used by
 * test_isolate.c and test_limits.c.
 */
#include <lockstep/comm.h>

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int own_rank(void)
{
    const char *text = getenv("LOCKSTEP_RANK");

    return text == NULL ? 0 : (int)strtol(text, NULL, 10);
}

static int say(const char *what)
{
    printf("rank %d %s\n", own_rank(), what);
    (void)fflush(stdout);
    return 0;
}

static void wait_for_ever(void)
{
    for (;;)
        pause();
}

/*
 * Starts a process without any mark: new session, no parent, environment or descriptor. `seconds`
 * identifies it.
 */
static void become_stray(char *seconds)
{
    static char name[] = "sleep";
    char *argv[] = {name, seconds, NULL};
    char *none[] = {NULL};

    (void)setsid();
    if (fork() != 0)
        _exit(0);
    for (int fd = 0; fd < 1024; fd++)
        (void)close(fd);
    (void)open("/dev/null", O_RDWR);
    (void)execve("/bin/sleep", argv, none);
    _exit(1);
}

/* stray SECONDS: starts such a process, and waits. */
static int role_stray(char **args)
{
    const pid_t pid = fork();

    if (pid == 0)
        become_stray(args[0]);
    (void)waitpid(pid, NULL, 0);
    say("has a stray");
    wait_for_ever();
    return 0;
}

/* hog MIB RANK: rank RANK allocates MIB of memory; the others wait. */
static int role_hog(char **args)
{
    const size_t piece = 1 << 20;

    if (own_rank() != (int)strtol(args[1], NULL, 10))
        wait_for_ever();
    for (long i = strtol(args[0], NULL, 10); i > 0; i--) {
        char *memory = malloc(piece);

        if (memory == NULL)
            return 3;
        memset(memory, (int)i | 1, piece);
        // Prevents clang from removing the allocation.
        __asm__ volatile("" : : "r"(memory) : "memory");
    }
    return say("had memory");
}

/* peek: each of two ranks reads the other's memory by the pid that the other reports. */
static int role_peek(char **args)
{
    volatile int64_t value = 1000 + own_rank();
    int64_t own[2] = {getpid(), (int64_t)(uintptr_t)&value};
    int64_t all[4] = {0};
    int64_t seen = 0;
    const int64_t *other = all + 2 * (1 - own_rank());
    struct iovec to = {&seen, sizeof(seen)};
    struct iovec from;
    ls_comm *comm;

    (void)args;
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (ls_init(NULL, &comm) != LS_OK || ls_all_gather(comm, own, all, 2, LS_I64, NULL) != LS_OK)
        return 1;
    from = (struct iovec){(void *)(uintptr_t)other[1], sizeof(seen)};
    if (process_vm_readv((pid_t)other[0], &to, 1, &from, 1, 0) != (ssize_t)sizeof(seen))
        perror("process_vm_readv");
    if (ls_barrier(comm, NULL) != LS_OK)
        return 1;
    ls_comm_destroy(comm);
    printf("rank %d sees %d\n", own_rank(), (int)seen);
    return 0;
}

/* wait: does nothing and ignores SIGTERM. */
static int role_wait(char **args)
{
    (void)args;
    (void)signal(SIGTERM, SIG_IGN);
    say("waits");
    wait_for_ever();
    return 0;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int n_args;
        int (*play)(char **args);
    } roles[] = {{"stray", 1, role_stray},
                 {"hog", 2, role_hog},
                 {"peek", 0, role_peek},
                 {"wait", 0, role_wait}};

    for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
        if (argc == 2 + roles[i].n_args && strcmp(argv[1], roles[i].name) == 0)
            return roles[i].play(argv + 2);
    fprintf(stderr, "unruly: which role?\n");
    return 2;
}
