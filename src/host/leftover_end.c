/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftover_end.c - kills leftovers and waits until they have exited. A process is examined again
 * after its pidfd is open, so a reused pid is never killed. Called by lockstep clean.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "host/cgroup.h"
#include "host/leftover_internal.h"
#include "host/process.h"

#include <poll.h>

enum {
    PASSES_CLEAN = 3,   /* scans in a row that must find nothing */
    PAUSE_CLEAN_MS = 20 /* between scans, for processes that exit or are just starting */
};

typedef struct ending {
    leftovers all;
    bool *is_reported;
} ending;

/* False when the process has exited, its pid is reused, or it must not be killed. */
static bool kill_one(const leftover_scan *s, const leftover *what)
{
    int fd = process_open(what->id.pid);
    leftover again;
    const bool is_same =
        leftover_examine(s, what->id.pid, &again) && process_id_equal(&again.id, &what->id);
    const bool sent = is_same && process_kill(fd, what->id.pid);

    file_close(&fd);
    return sent;
}

static bool is_gone(const process_id *id)
{
    process_stat facts;

    return !process_stat_read("", id->pid, &facts) || facts.start != id->start ||
           process_stat_has_exited(&facts);
}

static ls_status remember(ending *e, const leftover *what)
{
    const size_t n = (size_t)e->all.n + 1;

    for (int i = 0; i < e->all.n; i++)
        if (process_id_equal(&e->all.items[i].id, &what->id))
            return LS_OK;
    LS_TRY(LS_RESIZE(&e->all.items, n, "for a list of processes"));
    LS_TRY(LS_RESIZE(&e->is_reported, n, "for a list of processes"));
    e->is_reported[e->all.n] = false;
    e->all.items[e->all.n++] = *what;
    return LS_OK;
}

/* One scan; *n_found is the number of processes that exist. */
static ls_status kill_all(const leftover_query *query, ending *e, int *n_found)
{
    leftovers found;
    leftovers unused;
    leftover_scan s;
    ls_status st;

    LS_TRY(leftover_find(query, &found));
    st = leftover_begin(query, &unused, &s);
    for (int i = 0; i < found.n && st == LS_OK; i++) {
        st = remember(e, &found.items[i]);
        if (st == LS_OK)
            (void)kill_one(&s, &found.items[i]);
    }
    *n_found = found.n;
    leftovers_free(&found);
    return st;
}

/* Returns how many are not gone. */
static int report_gone(ending *e, leftover_report_fn report, void *arg)
{
    int n_left = 0;

    for (int i = 0; i < e->all.n; i++) {
        if (!e->is_reported[i] && is_gone(&e->all.items[i].id)) {
            e->is_reported[i] = true;
            report(arg, &e->all.items[i], true);
        }
        n_left += !e->is_reported[i];
    }
    return n_left;
}

ls_status leftover_end(const leftover_query *query, int64_t deadline_ms, leftover_report_fn report,
                       void *arg, int *n_left)
{
    ending e = {0};
    int n_clean = 0;
    ls_status st = LS_OK;

    *n_left = 0;
    while (st == LS_OK && n_clean < PASSES_CLEAN) {
        int n_found = 0;
        st = kill_all(query, &e, &n_found);
        // A process that is exiting is found no more, as its environment cannot be read.
        n_clean = report_gone(&e, report, arg) == 0 && n_found == 0 ? n_clean + 1 : 0;
        if (ls_deadline_left(deadline_ms) == 0)
            break;
        (void)poll(NULL, 0, PAUSE_CLEAN_MS);
    }
    for (int i = 0; i < e.all.n; i++)
        if (!e.is_reported[i]) {
            report(arg, &e.all.items[i], false);
            (*n_left)++;
        }
    ls_free(e.is_reported);
    leftovers_free(&e.all);
    return st;
}
