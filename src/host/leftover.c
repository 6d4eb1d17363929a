/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftover.c - one scan of /proc for leftovers. Each mark of a process is judged by itself: a mark
 * of a living job, or of one in another pid namespace, protects the process. Called by lockstep
 * clean and by the check.
 */
#include "host/leftover.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "host/cgroup.h"
#include "host/leftover_internal.h"
#include "host/process.h"
#include "host/process_id.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the marks of a process --- */

/* All marks of a process together. */
typedef struct verdict {
    bool is_dead;      /* at least one belongs to a dead job */
    bool is_protected; /* at least one does not */
    process_id agent;
    char job[PROCESS_JOB_BYTES];
} verdict;

static void judge(const leftover_scan *s, const process_id *id, const char *job, verdict *v)
{
    if (process_id_liveness(s->query->root, s->pid_ns, id) != PROCESS_DEAD) {
        v->is_protected = true;
        if (job[0] != 0 && s->query->job != NULL && text_equal(job, s->query->job) &&
            id->pid_ns == s->pid_ns)
            s->out->living = *id;
        return;
    }
    if (!v->is_dead) {
        v->agent = *id;
        text_format(v->job, sizeof(v->job), "%s", job);
    }
    v->is_dead = true;
}

static void judge_text(const leftover_scan *s, const char *agent, const char *job, verdict *v)
{
    process_id id;

    if (process_id_parse(agent, &id))
        judge(s, &id, job, v);
}

/* "/memfd:lockstep-key 4711.123456.4026531836 (deleted)" */
static void judge_descriptors(const leftover_scan *s, pid_t pid, verdict *v)
{
    static const char key[] = "/memfd:" PROCESS_KEY_NAME;
    const struct dirent *entry;
    char path[PATH_MAX];
    DIR *fds;

    text_format(path, sizeof(path), "%s/proc/%d/fd", s->query->root, (int)pid);
    fds = opendir(path);
    if (fds == NULL)
        return;
    while (!v->is_protected && (entry = file_next_entry(fds)) != NULL) {
        char link[256];
        const ssize_t n = readlinkat(dirfd(fds), entry->d_name, link, sizeof(link) - 1);
        link[n > 0 ? n : 0] = 0;
        if (!text_starts(link, key))
            continue;
        link[strcspn(link + sizeof(key) - 1, " ") + sizeof(key) - 1] = 0;
        judge_text(s, link + sizeof(key) - 1, "", v);
    }
    closedir(fds);
}

/* "0::/user.slice/lockstep-0123456789abcdef-4711.123456.4026531836", or a group below it. */
static void judge_groups(const leftover_scan *s, pid_t pid, verdict *v)
{
    char path[PATH_MAX];
    char line[CGROUP_PATH_BYTES];
    char job[CGROUP_JOB_BYTES];
    process_id agent;
    FILE *file;

    text_format(path, sizeof(path), "%s/proc/%d/cgroup", s->query->root, (int)pid);
    file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        for (const char *at = strchr(line, '/'); at != NULL; at = strchr(at + 1, '/'))
            if (text_starts(line, "0::") && cgroup_parse_name(at + 1, job, &agent))
                judge(s, &agent, process_is_job_name(job) ? job : "", v);
    if (file != NULL)
        (void)fclose(file);
}

static verdict judge_process(const leftover_scan *s, pid_t pid)
{
    mark_scan marks;
    verdict v = {0};

    process_marks_read(s->query->root, pid, &marks);
    judge_text(s, marks.agent, marks.job, &v);
    if (!v.is_protected)
        judge_groups(s, pid, &v);
    if (!v.is_protected)
        judge_descriptors(s, pid, &v);
    return v;
}

/* --- processes that may be killed --- */

/* "Uid: real effective saved filesystem" */
static bool read_users(const char *root, pid_t pid, unsigned uid[4])
{
    char number[16];
    char text[64];
    char *at = text;

    text_format(number, sizeof(number), "%d", (int)pid);
    if (!process_status_line(root, number, "Uid", text, sizeof(text)))
        return false;
    for (int i = 0; i < 4; i++)
        uid[i] = (unsigned)strtoul(at, &at, 10);
    return true;
}

/*
 * Spares this process and its ancestors: one of them may be a leftover shell in which the user
 * works.
 */
static void list_spared(leftover_scan *s)
{
    pid_t pid = getpid();
    process_stat facts;

    while (pid > 0 && s->n_spared < LEFTOVER_SPARED_MOST) {
        s->spared[s->n_spared++] = pid;
        pid = process_stat_read(s->query->root, pid, &facts) ? facts.parent : 0;
    }
}

static bool is_spared(const leftover_scan *s, pid_t pid)
{
    for (int i = 0; i < s->n_spared; i++)
        if (s->spared[i] == pid)
            return true;
    return false;
}

/* --- the scan --- */

bool leftover_examine(const leftover_scan *s, pid_t pid, leftover *out)
{
    process_stat facts;
    unsigned uid[4] = {0};
    verdict v;

    if (is_spared(s, pid) || !process_stat_read(s->query->root, pid, &facts) ||
        process_stat_has_exited(&facts) || !read_users(s->query->root, pid, uid))
        return false;
    if (!s->query->all_users &&
        !(uid[0] == geteuid() && uid[1] == uid[0] && uid[2] == uid[0] && uid[3] == uid[0]))
        return false;
    v = judge_process(s, pid);
    if (!v.is_dead || v.is_protected)
        return false;
    *out = (leftover){.id = {.pid = pid, .start = facts.start, .pid_ns = s->pid_ns},
                      .uid = (uid_t)uid[0],
                      .agent = v.agent,
                      .age_s = process_age(s->uptime_s, &facts)};
    text_format(out->job, sizeof(out->job), "%s", v.job);
    text_format(out->program, sizeof(out->program), "%s", facts.name);
    return true;
}

static ls_status append(leftovers *list, const leftover *item)
{
    if (list->n % 16 == 0) {
        LS_TRY(LS_RESIZE(&list->items, (size_t)list->n + 16, "for a list of processes"));
    }
    list->items[list->n++] = *item;
    return LS_OK;
}

static ls_status scan_all(const leftover_scan *s, leftovers *out)
{
    char path[PATH_MAX];
    ls_status st = LS_OK;
    leftover found;
    pid_t pid;
    DIR *proc;

    text_format(path, sizeof(path), "%s/proc", s->query->root);
    proc = opendir(path);
    if (proc == NULL)
        return ls_fail_errno("%s", path);
    while (st == LS_OK && (pid = file_next_number(proc)) >= 0)
        if (leftover_examine(s, pid, &found))
            st = append(out, &found);
    closedir(proc);
    return st;
}

/* Completes job names from other processes of the same agent; the key's mark has no job name. */
static void name_jobs(leftovers *list)
{
    for (int i = 0; i < list->n; i++)
        for (int k = 0; k < list->n && list->items[i].job[0] == 0; k++)
            if (process_id_equal(&list->items[i].agent, &list->items[k].agent))
                memcpy(list->items[i].job, list->items[k].job, sizeof(list->items[i].job));
}

static void filter_job(leftovers *list, const char *job)
{
    int n = 0;

    for (int i = 0; i < list->n; i++)
        if (job == NULL || text_equal(list->items[i].job, job))
            list->items[n++] = list->items[i];
    list->n = n;
}

static int by_pid(const void *a, const void *b)
{
    return ((const leftover *)a)->id.pid - ((const leftover *)b)->id.pid;
}

ls_status leftover_begin(const leftover_query *query, leftovers *out, leftover_scan *s)
{
    *out = (leftovers){0};
    *s = (leftover_scan){.query = query, .out = out};
    LS_TRY(process_namespace(query->root, &s->pid_ns));
    s->uptime_s = process_uptime(query->root);
    list_spared(s);
    return LS_OK;
}

ls_status leftover_find(const leftover_query *query, leftovers *out)
{
    leftover_scan s;
    ls_status st;

    LS_TRY(leftover_begin(query, out, &s));
    st = scan_all(&s, out);
    if (st != LS_OK) {
        leftovers_free(out);
        return st;
    }
    name_jobs(out);
    filter_job(out, query->job);
    if (out->n > 1)
        qsort(out->items, (size_t)out->n, sizeof(*out->items), by_pid);
    return LS_OK;
}

void leftovers_free(leftovers *list)
{
    ls_free(list->items);
    *list = (leftovers){0};
}

const char *leftover_text(char *buf, size_t n, const leftover *what)
{
    char age[32];

    return text_format(buf, n, "pid %d (%s), %s old, of %s%s", (int)what->id.pid, what->program,
                       process_age_text(age, sizeof(age), what->age_s),
                       what->job[0] != 0 ? "job " : "an unnamed job", what->job);
}
