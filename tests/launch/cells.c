/* SPDX-License-Identifier: Apache-2.0 */
/* cells.c - runs cases of a matrix, each in a process of its own. See cells.h. */
#include "launch/cells.h"

#include "base/unit.h"

#include "base/clock.h"
#include "launch/job.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WIDTH_MOST = 64, LOOK_MS = 10 };

typedef struct running {
    pid_t pid; /* 0: free */
    int i;
    int out_fd; /* a memory file */
    int64_t since_ms;
    bool is_late;
} running;

static const cell_list *cells;
static int present;

static void body(void **state)
{
    LS_UNUSED(state);
    cells->run(cells->self, present);
}

static int clean_up(void **state)
{
    const int code = job_clean_up(state);

    cells->clean_up();
    return code;
}

/* What it and cmocka print goes to the file. */
static void become_cell(const cell_list *list, int i, int out_fd)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(body, clean_up)};

    (void)dup2(out_fd, STDOUT_FILENO);
    (void)dup2(out_fd, STDERR_FILENO);
    cells = list;
    present = i;
    (void)setpgid(0, 0);
    exit(cmocka_run_group_tests(tests, NULL, NULL) == 0 ? 0 : 1);
}

static void start(const cell_list *list, int i, running *r)
{
    (void)fflush(NULL);
    *r = (running){.i = i, .since_ms = ls_now_ms(), .out_fd = memfd_create("cell", MFD_CLOEXEC)};
    r->pid = fork();
    if (r->pid == 0)
        become_cell(list, i, r->out_fd);
    if (r->pid < 0) {
        fprintf(stderr, "fork: %s\n", strerror(errno));
        exit(2);
    }
}

static void show(int fd)
{
    char bytes[4096];
    ssize_t n;

    (void)lseek(fd, 0, SEEK_SET);
    while ((n = read(fd, bytes, sizeof(bytes))) > 0)
        (void)fwrite(bytes, 1, (size_t)n, stdout);
}

/* 1: it has failed. */
static int finish(const cell_list *list, running *r, int status)
{
    const bool failed = r->is_late || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    char name[128];

    printf("%s %5.1f s  %s%s\n", failed ? "FAILED" : "ok    ",
           (double)(ls_now_ms() - r->since_ms) / 1e3,
           list->name(list->self, r->i, name, sizeof(name)),
           r->is_late ? ": it took too long" : "");
    if (failed)
        show(r->out_fd);
    (void)fflush(stdout);
    (void)close(r->out_fd);
    r->pid = 0;
    return failed;
}

static int look(const cell_list *list, running *r, int limit_ms)
{
    int status;

    if (r->pid == 0)
        return 0;
    if (!r->is_late && ls_now_ms() - r->since_ms > limit_ms) {
        r->is_late = true;
        (void)kill(r->pid, SIGKILL);
    }
    return waitpid(r->pid, &status, WNOHANG) == r->pid ? finish(list, r, status) : 0;
}

int cells_run(const cell_list *list, int width, int limit_ms)
{
    running slots[WIDTH_MOST] = {{0}};
    int next = 0;
    int n_failed = 0;
    int n_running;

    do {
        n_running = 0;
        for (int k = 0; k < width && k < WIDTH_MOST; k++) {
            n_failed += look(list, &slots[k], limit_ms);
            if (slots[k].pid == 0 && next < list->n)
                start(list, next++, &slots[k]);
            n_running += slots[k].pid != 0;
        }
        (void)poll(NULL, 0, LOOK_MS);
    } while (n_running > 0);
    return n_failed;
}
