/* SPDX-License-Identifier: Apache-2.0 */
/* top_jobs.c - finds this user's jobs by the sockets of agents. Called by cmd_top.c and cmd_ps.c */
#include "cli/top/top.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* The status of one agent, by its name. */
static ls_status ask(const char *agent, status_client **client, job_status *out)
{
    ls_status st;

    LS_TRY(status_client_open(agent, client));
    st = status_client_ask(*client, -1, ls_deadline_ms(TOP_ANSWER_MS), out);
    if (st != LS_OK) {
        status_client_close(*client);
        *client = NULL;
    }
    return st;
}

typedef char agent_name[STATUS_NAME];

static ls_status list(agent_name **names, int *n)
{
    ls_status st;

    LS_TRY(LS_NEW(names, STATUS_JOBS_MAX, "for the list of jobs"));
    st = status_list(*names, n);
    if (st != LS_OK)
        ls_free(*names);
    return st;
}

ls_status top_each_job(void (*found)(void *arg, const job_status *v), void *arg)
{
    agent_name *names;
    job_status *status = ls_calloc(1, sizeof(*status));
    int n;

    if (status == NULL || list(&names, &n) != LS_OK) {
        ls_free(status);
        return ls_fail(LS_ESYSTEM, "cannot list the jobs: %s", ls_last_error());
    }
    for (int i = 0; i < n; i++) {
        status_client *client;

        if (ask(names[i], &client, status) != LS_OK)
            continue;
        found(arg, status);
        job_status_free(status);
        status_client_close(client);
    }
    ls_free(status);
    ls_free(names);
    return LS_OK;
}

typedef struct search {
    const char *name;
    agent_name match;
    int n_matches;
    text_buf jobs; /* a line for each */
    int n_jobs;
} search;

static bool matches(const search *s, const job_status *v)
{
    char pid[16];

    if (s->name == NULL)
        return true;
    text_format(pid, sizeof(pid), "%d", v->pid);
    return text_equal(s->name, pid) || (v->name[0] != '\0' && text_equal(s->name, v->name)) ||
           (strlen(s->name) >= 4 && text_starts(v->agent, s->name));
}

static void look_at(void *arg, const job_status *v)
{
    search *s = arg;

    s->n_jobs++;
    text_append(&s->jobs, "\n  %d %s %s", v->pid, v->name[0] != '\0' ? v->name : v->agent,
                v->command);
    if (!matches(s, v))
        return;
    s->n_matches++;
    text_format(s->match, sizeof(s->match), "%s", v->agent);
}

static ls_status explain(const search *s)
{
    const char *wanted = s->name != NULL ? s->name : "";

    if (s->n_jobs == 0)
        return ls_fail(LS_ENOTFOUND, "no job of this user runs on this machine; --host HOST looks "
                                     "at another one");
    if (s->n_matches == 0)
        return ls_fail(LS_ENOTFOUND, "no job %s; jobs of this user on this machine:%s", wanted,
                       text_str(&s->jobs));
    return ls_fail(LS_EINVAL, "%d jobs match; name one by its pid:%s", s->n_matches,
                   text_str(&s->jobs));
}

ls_status top_connect(const char *name, status_client **out)
{
    search s = {.name = name};
    ls_status st = top_each_job(look_at, &s);

    if (st == LS_OK)
        st = s.n_matches == 1 ? status_client_open(s.match, out) : explain(&s);
    text_free(&s.jobs);
    return st;
}
