/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup.c - finds and creates control groups through the cgroup2 file system. A killed subgroup is
 * never used again (see survives_fork()). Called by the agent, its shims and guardian, and by
 * checks that read limits.
 */
#include "host/cgroup.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAME_PREFIX "lockstep-"

#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP UINT64_C(0x200000000)
#endif

/* struct clone_args of clone3(). */
typedef struct fork_request {
    uint64_t flags;
    uint64_t unused[3];
    uint64_t exit_signal;
    uint64_t also_unused[5];
    uint64_t cgroup;
} fork_request;

enum { TABLE_MOST = 1 << 24, DEPTH_MOST = 16, EMPTY_STEP_MS = 5 };

/* --- the group of a process --- */

/*
 * Copies the n-th blank-separated word of a line (from 0) and decodes the kernel's octal escapes
 * (\040).
 */
static bool take_word(const char *line, int n, char *out, size_t size)
{
    size_t length = 0;

    for (; n > 0; n--) {
        line += strcspn(line, " \n");
        line += *line == ' ';
    }
    while (*line != 0 && *line != ' ' && *line != '\n' && length + 1 < size) {
        if (line[0] == '\\' && line[1] >= '0' && line[1] <= '3' && line[2] >= '0' &&
            line[2] <= '7' && line[3] >= '0' && line[3] <= '7') {
            out[length++] = (char)((line[1] - '0') * 64 + (line[2] - '0') * 8 + line[3] - '0');
            line += 4;
        } else {
            out[length++] = *line++;
        }
    }
    out[length] = 0;
    return length > 0 && length + 1 < size;
}

/* Whether a comma-separated list contains this word. */
static bool list_has(const char *list, size_t n, const char *word)
{
    const size_t want = strlen(word);

    for (size_t at = 0; at + want <= n; at += strcspn(list + at, ",\n ") + 1)
        if (strncmp(list + at, word, want) == 0 && (at + want == n || list[at + want] == ','))
            return true;
    return false;
}

/* "ID PARENT DEVICE ROOT FOLDER OPTIONS ... - TYPE SOURCE SUPER-OPTIONS" */
static bool is_hierarchy(const char *line, size_t n, const char *controller)
{
    const char *dash = memmem(line, n, " - ", 3);
    const char *super;
    char type[16];

    if (dash == NULL || !take_word(dash + 3, 0, type, sizeof(type)))
        return false;
    if (controller == NULL)
        return text_equal(type, "cgroup2");
    super = dash + 3;
    for (int i = 0; i < 2; i++) {
        super += strcspn(super, " \n");
        super += *super == ' ';
    }
    return text_equal(type, "cgroup") && list_has(super, strcspn(super, "\n"), controller);
}

/* Finds the line "ID:CONTROLLERS:GROUP"; returns its group, up to the line's end, or NULL. */
static const char *find_group(const char *groups, const char *controller)
{
    for (const char *line = groups; *line != 0; line += *line == '\n') {
        const char *list = line + strcspn(line, ":\n");
        const char *group = *list == ':' ? list + 1 + strcspn(list + 1, ":\n") : list;
        const bool is_v2 = text_starts(line, "0::");

        if (*group == ':' && group[1] == '/' &&
            (controller == NULL ? is_v2
                                : list_has(list + 1, (size_t)(group - list - 1), controller)))
            return group + 1;
        line = group + strcspn(group, "\n");
    }
    return NULL;
}

/*
 * The part of the group's path below the root of the mount; NULL when the mount does not show the
 * group.
 */
static const char *below(const char *group, const char *mounted)
{
    const size_t n = text_equal(mounted, "/") ? 0 : strlen(mounted);

    if (strncmp(group, mounted, n) != 0 || (group[n] != '/' && group[n] != '\n' && group[n] != 0))
        return NULL;
    return group + n;
}

ls_status cgroup_find_place(const char *mounts, const char *groups, const char *controller,
                            cgroup_place *out)
{
    const char *group = find_group(groups, controller);
    char mounted[CGROUP_PATH_BYTES];
    size_t n;

    for (const char *line = mounts; group != NULL && *line != 0; line += *line == '\n') {
        const char *rest = NULL;

        n = strcspn(line, "\n");
        if (is_hierarchy(line, n, controller) && take_word(line, 3, mounted, sizeof(mounted)))
            rest = below(group, mounted);
        if (rest != NULL && take_word(line, 4, out->path, sizeof(out->path))) {
            out->n_mount = strlen(out->path);
            n = strcspn(rest, "\n");
            n -= n == 1; /* a lone '/' */
            if (out->n_mount + n >= sizeof(out->path) || memmem(rest, n, "/..", 3) != NULL)
                break;
            memcpy(out->path + out->n_mount, rest, n);
            out->path[out->n_mount + n] = 0;
            return LS_OK;
        }
        line += n;
    }
    return ls_fail(LS_ENOTFOUND, "this process is in no visible control group of %s",
                   controller != NULL ? controller : "version 2");
}

static ls_status read_table(const char *root, const char *name, char **out)
{
    char path[PATH_MAX];
    size_t bytes;

    text_format(path, sizeof(path), "%s/proc/self/%s", root, name);
    return file_read(path, TABLE_MOST, out, &bytes);
}

ls_status cgroup_locate(const char *root, const char *controller, cgroup_place *out)
{
    const size_t n = strlen(root);
    char *mounts = NULL;
    char *groups = NULL;
    ls_status st = read_table(root, "mountinfo", &mounts);

    if (st == LS_OK)
        st = read_table(root, "cgroup", &groups);
    if (st == LS_OK)
        st = cgroup_find_place(mounts, groups, controller, out);
    if (st == LS_OK && n + strlen(out->path) >= sizeof(out->path))
        st = ls_fail(LS_ENOTFOUND, "path too long: %s%s", root, out->path);
    if (st == LS_OK) {
        memmove(out->path + n, out->path, strlen(out->path) + 1);
        memcpy(out->path, root, n);
        out->n_mount += n;
    }
    ls_free(mounts);
    ls_free(groups);
    return st;
}

bool cgroup_parse_name(const char *name, char job[CGROUP_JOB_BYTES], process_id *agent)
{
    char text[CGROUP_NAME_BYTES];
    const size_t n = strcspn(name, "/\n");
    char *dash;

    if (!text_starts(name, NAME_PREFIX) || n >= sizeof(text))
        return false;
    text_format(text, sizeof(text), "%.*s", (int)n, name);
    dash = strrchr(text + strlen(NAME_PREFIX), '-');
    if (dash == NULL || (size_t)(dash - text) - strlen(NAME_PREFIX) >= CGROUP_JOB_BYTES)
        return false;
    *dash = 0;
    text_format(job, CGROUP_JOB_BYTES, "%s", text + strlen(NAME_PREFIX));
    return process_id_parse(dash + 1, agent);
}

/* --- removal --- */

static DIR *open_folder(int fd)
{
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = own >= 0 ? fdopendir(own) : NULL;

    if (folder == NULL)
        file_close(&own);
    return folder;
}

/* Removes a group and its subgroups; the files in them vanish with the folders. */
// NOLINTNEXTLINE(misc-no-recursion): bounded
static bool remove_group(int parent_fd, const char *name, int depth)
{
    int fd;
    DIR *folder;
    const struct dirent *entry;

    if (unlinkat(parent_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
        return true;
    if (depth == DEPTH_MOST)
        return false;
    fd = openat(parent_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    folder = fd >= 0 ? open_folder(fd) : NULL;
    while (folder != NULL && (entry = file_next_entry(folder)) != NULL)
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.')
            (void)remove_group(fd, entry->d_name, depth + 1);
    if (folder != NULL)
        closedir(folder);
    file_close(&fd);
    return unlinkat(parent_fd, name, AT_REMOVEDIR) == 0;
}

static bool is_of_dead_agent(const char *name, uint64_t pid_ns)
{
    char job[CGROUP_JOB_BYTES];
    process_id agent;

    return cgroup_parse_name(name, job, &agent) &&
           process_id_liveness("", pid_ns, &agent) == PROCESS_DEAD;
}

/*
 * Removes groups of dead agents in a group and n_levels below it. A group that has processes stays;
 * lockstep clean kills them.
 */
// NOLINTNEXTLINE(misc-no-recursion): bounded
static void remove_stale(int parent_fd, uint64_t pid_ns, int n_levels)
{
    DIR *folder = open_folder(parent_fd);
    const struct dirent *entry;

    while (folder != NULL && (entry = file_next_entry(folder)) != NULL) {
        int fd;
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.' ||
            (is_of_dead_agent(entry->d_name, pid_ns) &&
             remove_group(parent_fd, entry->d_name, 0)) ||
            n_levels == 0)
            continue;
        fd = openat(parent_fd, entry->d_name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            remove_stale(fd, pid_ns, n_levels - 1);
        file_close(&fd);
    }
    if (folder != NULL)
        closedir(folder);
}

void cgroup_remove_stale(void)
{
    char saved[LS_ERROR_BYTES];
    cgroup_place place;
    uint64_t pid_ns;
    int fd = -1;

    ls_error_save(saved);
    if (process_namespace("", &pid_ns) == LS_OK && cgroup_locate("", NULL, &place) == LS_OK) {
        place.path[place.n_mount] = 0;
        fd = open(place.path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    ls_error_restore(saved);
    if (fd >= 0)
        remove_stale(fd, pid_ns, DEPTH_MOST);
    file_close(&fd);
}

/* --- the group of a job --- */

static bool holds_processes(int fd)
{
    char type[32];
    int type_fd = openat(fd, "cgroup.type", O_RDONLY | O_CLOEXEC);
    const ssize_t n = type_fd >= 0 ? read(type_fd, type, sizeof(type) - 1) : -1;

    file_close(&type_fd);
    type[n > 0 ? n : 0] = 0;
    return text_equal(type, "domain\n");
}

static ls_status open_group(cgroup *g)
{
    g->fd = openat(g->parent_fd, g->name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (g->fd < 0)
        return ls_fail_errno("%s/%s", g->parent.path, g->name);
    if (!holds_processes(g->fd))
        return ls_fail(LS_EUNSUPPORTED, "%s is a threaded group", g->parent.path);
    if (faccessat(g->fd, "cgroup.kill", W_OK, AT_EACCESS) != 0)
        return ls_fail(LS_EUNSUPPORTED, "the kernel cannot kill a control group (before 5.14)");
    /* Moving a process needs write access to the common ancestor of both groups. */
    if (faccessat(g->parent_fd, "cgroup.procs", W_OK, AT_EACCESS) != 0)
        return ls_fail_errno("%s/cgroup.procs", g->parent.path);
    return LS_OK;
}

ls_status cgroup_create(const char *job, cgroup *out)
{
    char agent[PROCESS_ID_TEXT_MAX];
    process_id self;
    ls_status st;

    *out = CGROUP_NONE;
    LS_TRY(process_id_self(&self));
    LS_TRY(cgroup_locate("", NULL, &out->parent));
    text_format(out->name, sizeof(out->name), NAME_PREFIX "%.*s-%s", CGROUP_JOB_BYTES - 1, job,
                process_id_text(agent, sizeof(agent), &self));
    out->parent_fd = open(out->parent.path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (out->parent_fd < 0)
        return ls_fail_errno("%s", out->parent.path);
    remove_stale(out->parent_fd, self.pid_ns, 0);
    if (mkdirat(out->parent_fd, out->name, 0755) != 0) {
        st = ls_fail_errno("%s", out->parent.path);
        cgroup_close(out);
        return st;
    }
    st = open_group(out);
    if (st != LS_OK) {
        (void)unlinkat(out->parent_fd, out->name, AT_REMOVEDIR);
        cgroup_close(out);
    }
    return st;
}

/* --- processes of the group --- */

/*
 * Starting a process in the group avoids moving it there, for which the kernel waits 10 ms and
 * more.
 */
static pid_t fork_into(int leaf_fd)
{
    const fork_request request = {
        .flags = CLONE_INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = (uint64_t)leaf_fd};

    return (pid_t)syscall(SYS_clone3, &request, sizeof(request));
}

/* One character, to a file of a group. */
static void write_to(int group_fd, const char *name, char value)
{
    int fd = group_fd >= 0 ? openat(group_fd, name, O_WRONLY | O_CLOEXEC) : -1;

    if (fd >= 0)
        (void)!write(fd, &value, 1);
    file_close(&fd);
}

pid_t cgroup_fork(const cgroup *g)
{
    pid_t pid = g->leaf_fd >= 0 && g->takes_forks ? fork_into(g->leaf_fd) : -1;

    if (pid >= 0)
        return pid;
    pid = fork();
    if (pid == 0)
        write_to(g->leaf_fd, "cgroup.procs", '0'); /* 0: the writing process */
    return pid;
}

/*
 * Since Linux 6.14 a process that starts in a group dies at once if that group was killed more or
 * less often than the group of its parent. So each start gets a new subgroup, and a short-lived
 * child tests it.
 */
static bool survives_fork(int leaf_fd)
{
    const pid_t pid = fork_into(leaf_fd);
    int status;

    if (pid == 0)
        _exit(0);
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status);
}

ls_status cgroup_begin(cgroup *g)
{
    char name[16];

    if (g->fd < 0)
        return LS_OK;
    file_close(&g->leaf_fd);
    text_format(name, sizeof(name), "%d", g->n_leaves);
    (void)remove_group(g->fd, name, 0); /* fails while it has processes */
    text_format(name, sizeof(name), "%d", ++g->n_leaves);
    if (mkdirat(g->fd, name, 0755) != 0)
        return ls_fail_errno("%s/%s/%s", g->parent.path, g->name, name);
    g->leaf_fd = openat(g->fd, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (g->leaf_fd < 0)
        return ls_fail_errno("%s/%s/%s", g->parent.path, g->name, name);
    g->takes_forks = survives_fork(g->leaf_fd);
    return LS_OK;
}

void cgroup_kill(const cgroup *g)
{
    write_to(g->fd, "cgroup.kill", '1');
}

bool cgroup_remove(const cgroup *g, int64_t deadline_ms)
{
    if (g->fd < 0)
        return true;
    cgroup_kill(g);
    while (!remove_group(g->parent_fd, g->name, 0)) {
        if (ls_deadline_left(deadline_ms) == 0)
            return false;
        (void)poll(NULL, 0, EMPTY_STEP_MS);
        cgroup_kill(g);
    }
    return true;
}

void cgroup_close(cgroup *g)
{
    file_close(&g->leaf_fd);
    file_close(&g->fd);
    file_close(&g->parent_fd);
}

void cgroup_for_each(const cgroup *g, void (*fn)(void *arg, pid_t pid), void *arg)
{
    int fd = g->leaf_fd >= 0 ? openat(g->leaf_fd, "cgroup.procs", O_RDONLY | O_CLOEXEC) : -1;
    FILE *file = fd >= 0 ? fdopen(fd, "re") : NULL;
    char line[32];

    if (file == NULL) {
        file_close(&fd);
        return;
    }
    while (fgets(line, sizeof(line), file) != NULL)
        fn(arg, (pid_t)strtol(line, NULL, 10));
    (void)fclose(file);
}
