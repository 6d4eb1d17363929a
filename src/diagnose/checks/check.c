/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - runs the subjects of a check, the quick ones (milliseconds) or all of them, and holds
 * the helpers that they share. Called by lockstep check, on each host by the check of several, and
 * the quick part at the start of every job.
 */
#include "diagnose/checks/check_internal.h"

#include "base/file.h"
#include "base/text.h"
#include "host/cgroup.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NO_LIMIT (INT64_MAX / 2) /* version 1 writes a huge number instead of "max" */

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
    const ssize_t got = file_read_start(check_path(c, full, sizeof(full), "%s", path), buf, n);

    buf[got > 0 ? got : 0] = 0;
    if (got > 0 && buf[got - 1] == '\n')
        buf[got - 1] = 0;
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

bool check_group_limit(const check *c, const char *controller, const char *file, const char *used,
                       uint64_t *out)
{
    const char *const controllers[] = {NULL, controller}; /* version 2, version 1 */
    const size_t n_root = strlen(c->from->root);
    char saved[LS_ERROR_BYTES];
    cgroup_place place;

    *out = NO_LIMIT;
    ls_error_save(saved); /* neither "max" nor a missing group is a failure */
    for (size_t i = 0; i < LS_COUNT_OF(controllers); i++)
        if (cgroup_locate(c->from->root, controllers[i], &place) == LS_OK)
            least_in(c, place.path + n_root, place.n_mount - n_root, file, used, out);
    ls_error_restore(saved);
    return *out < NO_LIMIT;
}

static void (*const quick_subjects[])(check *c) = {
    check_name,  check_networks, check_network_variables, check_files, check_processes,
    check_cores, check_shm,
};
static void (*const other_subjects[])(check *c) = {
    check_version, check_settings, check_fabric, check_memlock,   check_numa,
    check_pages,   check_memory,   check_ports,  check_clock,     check_key,
    check_kernel,  check_ssh,      check_gpus,   check_leftovers,
};

static ls_status run(const check_options *options, bool is_full, findings *out)
{
    check c = {.options = options,
               .from = options->sources,
               .out = out,
               .n_ranks = options->n_ranks,
               .is_full = is_full};

    if (c.n_ranks < 1)
        c.n_ranks = c.from->usable_cores(c.from->self);
    c.from->host_name(c.from->self, c.host, sizeof(c.host));
    LS_TRY(c.from->interfaces(c.from->self, NULL, c.ifaces, CHECK_INTERFACES_MAX, &c.n_ifaces));
    for (size_t i = 0; i < LS_COUNT_OF(quick_subjects); i++)
        quick_subjects[i](&c);
    for (size_t i = 0; i < LS_COUNT_OF(other_subjects) && is_full; i++)
        other_subjects[i](&c);
    return findings_status(out);
}

ls_status check_quick(const check_options *options, findings *out)
{
    return run(options, false, out);
}

ls_status check_all(const check_options *options, findings *out)
{
    return run(options, true, out);
}
