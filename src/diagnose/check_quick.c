/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check_quick.c - the quick check: subjects that take milliseconds, and the helpers that all
 * subjects share. Called by lockstep check --quick and at the start of every job.
 */
#include "diagnose/check_internal.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* --- shared --- */

finding_severity check_between_nodes(const check *c)
{
    return c->options->several_nodes ? FINDING_WARNING : FINDING_NOTE;
}

const char *check_path(const check *c, char *buf, size_t n, const char *format, ...)
{
    const size_t root = strlen(c->from->root);
    va_list args;

    text_format(buf, n, "%s", c->from->root);
    va_start(args, format);
    if (root < n)
        (void)vsnprintf(buf + root, n - root, format, args);
    va_end(args);
    return buf;
}

bool check_read(const check *c, const char *path, char *buf, size_t n)
{
    char full[PATH_MAX];
    size_t done = 0;
    ssize_t got = 1;
    int fd;

    buf[0] = 0;
    fd = open(check_path(c, full, sizeof(full), "%s", path), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    while (done < n - 1 && got > 0) {
        got = read(fd, buf + done, n - 1 - done);
        done += got > 0 ? (size_t)got : 0;
    }
    (void)close(fd);
    buf[done] = 0;
    if (done > 0 && buf[done - 1] == '\n')
        buf[done - 1] = 0;
    return got >= 0;
}

bool check_read_number(const check *c, const char *path, int64_t *out)
{
    char text[64];

    return check_read(c, path, text, sizeof(text)) &&
           text_parse_int(text, path, INT64_MIN, INT64_MAX, out) == LS_OK;
}

bool check_exists(const check *c, const char *path)
{
    char full[PATH_MAX];

    return access(check_path(c, full, sizeof(full), "%s", path), F_OK) == 0;
}

/* --- control groups --- */

/* Whether the comma list of controllers contains `name`. */
static bool has_controller(const char *list, size_t n, const char *name)
{
    const size_t length = strlen(name);

    for (size_t i = 0; i + length <= n; i++)
        if ((i == 0 || list[i - 1] == ',') && strncmp(list + i, name, length) == 0 &&
            (i + length == n || list[i + length] == ','))
            return true;
    return false;
}

/*
 * Lowers *least to the smallest limit in FOLDER/file and in the folders above it; the first
 * `n_mount` bytes of FOLDER are the mount point.
 */
static void least_in(const check *c, char *folder, size_t n_mount, const char *file,
                     const char *used, uint64_t *least)
{
    for (;;) {
        char path[PATH_MAX];
        int64_t limit;
        int64_t use = 0;
        char *slash = strrchr(folder + n_mount, '/');

        text_format(path, sizeof(path), "%s/%s", folder, file);
        if (check_read_number(c, path, &limit) && limit >= 0) {
            text_format(path, sizeof(path), "%s/%s", folder, used);
            if (used[0] == 0 || !check_read_number(c, path, &use) || use < 0)
                use = 0;
            limit = limit > use ? limit - use : 0;
            *least = (uint64_t)limit < *least ? (uint64_t)limit : *least;
        }
        if (slash == NULL)
            return;
        *slash = 0;
    }
}

/* Version 2 is mounted at one of two paths; version 1 has a tree for each controller. */
static void least_of_line(const check *c, const char *line, const char *controller,
                          const char *file, const char *used, uint64_t *least)
{
    const char *list = strchr(line, ':');
    const char *group = list != NULL ? strchr(list + 1, ':') : NULL;
    const char *mounts[2] = {"", "/unified"};
    char v1[64];
    const bool is_v2 = list != NULL && group == list + 1;

    if (group == NULL ||
        (!is_v2 && !has_controller(list + 1, (size_t)(group - list) - 1, controller)))
        return;
    text_format(v1, sizeof(v1), "/%s", controller);
    for (int i = 0; i < (is_v2 ? 2 : 1); i++) {
        char folder[2048];
        const size_t n_mount = strlen("/sys/fs/cgroup") + strlen(is_v2 ? mounts[i] : v1);

        text_format(folder, sizeof(folder), "/sys/fs/cgroup%s%.*s", is_v2 ? mounts[i] : v1,
                    (int)strcspn(group + 1, "\n"), group + 1);
        if (strlen(folder) >= n_mount)
            least_in(c, folder, n_mount, file, used, least);
    }
}

bool check_group_limit(const check *c, const char *controller, const char *file, const char *used,
                       uint64_t *out)
{
    char saved[LS_ERROR_BYTES];
    uint64_t least = INT64_MAX / 2; /* version 1 writes "no limit" as a huge number */
    char groups[4096];

    if (!check_read(c, "/proc/self/cgroup", groups, sizeof(groups)))
        return false;
    ls_error_save(saved); /* "max" does not parse as a number, which is no failure */
    for (const char *line = groups; line != NULL && *line != 0; line = strchr(line, '\n')) {
        line += *line == '\n';
        least_of_line(c, line, controller, file, used, &least);
    }
    ls_error_restore(saved);
    *out = least;
    return least < INT64_MAX / 2;
}

/* --- the quick ones --- */

static void (*const subjects[])(check *c) = {
    check_name,  check_networks, check_network_variables, check_files, check_processes,
    check_cores, check_shm,
};

ls_status check_begin(const check_options *options, findings *out, check *c)
{
    *c = (check){
        .options = options, .from = options->sources, .out = out, .n_ranks = options->n_ranks};
    if (c->n_ranks < 1)
        c->n_ranks = c->from->usable_cores(c->from->self);
    c->from->host_name(c->from->self, c->host, sizeof(c->host));
    return c->from->interfaces(c->from->self, NULL, c->ifaces, CHECK_INTERFACES_MAX, &c->n_ifaces);
}

void check_quick_subjects(check *c)
{
    for (size_t i = 0; i < LS_COUNT_OF(subjects); i++)
        subjects[i](c);
}

ls_status check_quick(const check_options *options, findings *out)
{
    check c;

    LS_TRY(check_begin(options, out, &c));
    check_quick_subjects(&c);
    return findings_status(out);
}
