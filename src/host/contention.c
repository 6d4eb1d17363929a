/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contention.c - compares the number of runnable threads with that of processors, several times
 * before it changes its answer: threads of the kernel run now and then on an idle machine, and
 * threads of a busy one sleep now and then. The engine's waiting loop calls it.
 */
#include "host/contention.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEVEL_CONTENDED 3 /* reached from below */
#define LEVEL_MAX       8
#define LOOK_STEADY_NS  (20 * INT64_C(1000000))
#define LOOK_CHANGE_NS  (2 * INT64_C(1000000))

/* The fourth field of /proc/loadavg, "RUNNABLE/ALL"; 0: unknown. */
static long read_runnable(const char *path)
{
    char text[128];
    const char *at = text;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    text[n < 0 ? 0 : n] = '\0';
    for (int i = 0; i < 3 && at != NULL; i++) {
        at = strchr(at, ' ');
        at = at == NULL ? NULL : at + 1;
    }
    return at == NULL ? 0 : strtol(at, NULL, 10);
}

static void set_level(contention *c, int level, int64_t now_ns)
{
    c->level = level;
    if (level >= LEVEL_CONTENDED)
        c->is_contended = true;
    else if (level == 0)
        c->is_contended = false;
    c->next_look_ns = now_ns + (level == 0 || level == LEVEL_MAX ? LOOK_STEADY_NS : LOOK_CHANGE_NS);
}

bool contention_look(contention *c, int64_t now_ns)
{
    if (now_ns < c->next_look_ns)
        return c->is_contended;
    if (c->n_processors == 0) {
        const long online = sysconf(_SC_NPROCESSORS_ONLN);

        c->n_processors = online > 0 ? (int)online : 1;
    }
    if (read_runnable(c->path != NULL ? c->path : "/proc/loadavg") > c->n_processors)
        set_level(c, c->level < LEVEL_MAX ? c->level + 1 : LEVEL_MAX, now_ns);
    else
        set_level(c, c->level > 0 ? c->level - 1 : 0, now_ns);
    return c->is_contended;
}

void contention_lost_time(contention *c, int64_t now_ns)
{
    set_level(c, LEVEL_MAX, now_ns);
}
