/* SPDX-License-Identifier: Apache-2.0 */
/* threads.c - runs a body as threads of one process, each with its own environment. */
#include "harness/ranks.h"

#include "base/text.h"
#include "base/thread.h"
#include "harness/ranks_internal.h"
#include "hub/hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The variables of one rank that is a thread. */
typedef struct thread_env {
    char rank[12];
    char size[12];
    char url[NET_ADDRESS_TEXT_MAX];
    char job[JOB_ID_BYTES];
} thread_env;

typedef struct thread_rank {
    thread_env vars;
    comm_env env;
    ls_test_rank self;
    ls_thread thread;
    ls_status status;
    char text[LS_ERROR_BYTES];
} thread_rank;

static const char *from_thread(void *self, const char *name)
{
    const thread_env *e = self;

    if (strcmp(name, "LOCKSTEP_RANK") == 0 || strcmp(name, "LOCKSTEP_LOCAL_RANK") == 0)
        return e->rank;
    if (strcmp(name, "LOCKSTEP_WORLD_SIZE") == 0 || strcmp(name, "LOCKSTEP_LOCAL_WORLD_SIZE") == 0)
        return e->size;
    if (strcmp(name, "LOCKSTEP_STORE") == 0)
        return e->url;
    if (strcmp(name, "LOCKSTEP_JOB") == 0)
        return e->job;
    if (strcmp(name, "LOCKSTEP_NNODES") == 0)
        return "1";
    return NULL;
}

static void run_rank(void *arg)
{
    thread_rank *t = arg;

    t->status = t->self.job->body(&t->self, t->self.job->arg);
    if (t->status != LS_OK)
        text_format(t->text, sizeof(t->text), "%s", ls_last_error());
}

static void describe(thread_rank *t, const ls_test_job *job, int rank, const char *job_id,
                     const char *url)
{
    text_format(t->vars.rank, sizeof(t->vars.rank), "%d", rank);
    text_format(t->vars.size, sizeof(t->vars.size), "%d", job->n);
    text_format(t->vars.url, sizeof(t->vars.url), "%s", url);
    text_format(t->vars.job, sizeof(t->vars.job), "%s", job_id);
    t->env = (comm_env){.get = from_thread, .self = &t->vars};
    t->self = (ls_test_rank){.rank = rank, .size = job->n, .job = job, .env = &t->env};
}

static bool join_all(thread_rank *ranks, int n)
{
    bool all_good = true;

    for (int r = 0; r < n; r++) {
        ls_thread_join(&ranks[r].thread);
        if (ranks[r].status == LS_OK)
            continue;
        all_good = false;
        fprintf(stderr, "--- rank %d of %d (a thread): %s: %s\n", r, n,
                ls_status_text(ranks[r].status), ranks[r].text);
    }
    return all_good;
}

bool ls_test_threads(const ls_test_job *job)
{
    thread_rank *ranks = calloc((size_t)job->n, sizeof(*ranks));
    hub_options opt = {.world_size = job->n};
    char url[NET_ADDRESS_TEXT_MAX];
    hub_thread *served = NULL;
    bool is_started = ranks != NULL;
    bool all_good;
    net_address at;

    if (ranks == NULL)
        return false;
    ls_test_fresh_job(opt.job, &at);
    is_started = hub_thread_start(&opt, &at, &served) == LS_OK;
    for (int r = 0; is_started && r < job->n; r++) {
        describe(&ranks[r], job, r, opt.job, net_address_text(url, sizeof(url), &at));
        is_started = ls_thread_start(&ranks[r].thread, "rank", run_rank, &ranks[r]) == LS_OK;
    }
    if (!is_started)
        fprintf(stderr, "the harness failed: %s\n", ls_last_error());
    all_good = join_all(ranks, job->n) && is_started;
    hub_thread_stop(served, 1000);
    free(ranks);
    return all_good;
}
