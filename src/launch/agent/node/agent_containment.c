/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_containment.c - the control group, namespace and guardian of the ranks, and their end. All
 * waits here are bounded. Called by the agent when a job and its generations begin and end.
 */
#include "launch/agent/node/agent_containment.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "host/process_id.h"
#include "launch/isolate/shim.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    KILL_MS = 3000,
    KILL_AGAIN_MS = 300, /* where a process was left behind before */
    GUARDIANS_MOST = 100
};

static int64_t kill_deadline_ms(const agent_containment *c)
{
    return ls_deadline_ms(c->n_left > 0 ? KILL_AGAIN_MS : KILL_MS);
}

/* --- the control group --- */

static void log_no_group(void)
{
    ls_log(LS_LOG_DEBUG, "agent", "no control group for the ranks: %s", ls_last_error());
}

/* Nothing depends on the group, so its failure is no failure of the job. */
static void open_group(agent_containment *c)
{
    char saved[LS_ERROR_BYTES];
    cgroup_place place;

    ls_error_save(saved);
    if (cgroup_create(c->ctx->place.job, &c->group) != LS_OK) {
        log_no_group();
        ls_error_restore(saved);
        return;
    }
    ls_log(LS_LOG_DEBUG, "agent", "the ranks are in the control group %s/%s", c->group.parent.path,
           c->group.name);
    place.n_mount = c->group.parent.n_mount;
    text_format(place.path, sizeof(place.path), "%s/%s", c->group.parent.path, c->group.name);
    oom_begin(&c->oom, "", &place);
}

void agent_containment_begin(agent_containment *c)
{
    char saved[LS_ERROR_BYTES];

    ls_error_save(saved);
    if (cgroup_begin(&c->group) != LS_OK)
        log_no_group();
    ls_error_restore(saved);
}

/* --- the guardian --- */

static ls_status start_guardian(agent_containment *c)
{
    int lifeline = -1;
    ls_status st;

    if (c->n_guardians++ == GUARDIANS_MOST)
        return ls_fail(LS_ESYSTEM, "%d guardians were killed", GUARDIANS_MOST);
    LS_TRY(process_make_pipe(&lifeline, &c->guardian_fd));
    st = guardian_start(&c->mark, &c->group, lifeline, &c->guardian);
    close(lifeline);
    if (st != LS_OK)
        file_close(&c->guardian_fd); // it may be tried again
    return st;
}

void agent_containment_reap(agent_containment *c)
{
    (void)isolate_has_died(&c->isolation); /* the pipes of its shims report what that means */
    if (c->guardian <= 0 || waitpid(c->guardian, NULL, WNOHANG) != c->guardian)
        return;
    c->guardian = 0;
    file_close(&c->guardian_fd);
    if (start_guardian(c) != LS_OK)
        agent_note(c->ctx, "the guardian was killed, and no new one could be started: %s",
                   ls_last_error());
}

/* --- processes that cannot be killed --- */

bool agent_containment_was_noted(agent_containment *c, pid_t pid)
{
    for (int i = 0; i < c->n_left; i++)
        if (c->left[i] == pid)
            return true;
    if (c->n_left == CONTAINMENT_LEFT_MOST)
        return true; /* no more lines about this */
    c->left[c->n_left++] = pid;
    return false;
}

void agent_containment_note_left(void *containment, pid_t pid)
{
    agent_containment *c = containment;
    process_stat facts;

    if (!process_stat_read("", pid, &facts) || process_stat_has_exited(&facts) ||
        agent_containment_was_noted(c, pid))
        return;
    agent_note(c->ctx, "pid %d (%s) cannot be killed (%s) and is left behind", (int)pid, facts.name,
               process_state_text(facts.state));
}

/* --- the end --- */

void agent_containment_end_ranks(agent_containment *c)
{
    cgroup_kill(&c->group); /* finds processes that have escaped their shim */
    if (isolate_end(&c->isolation, kill_deadline_ms(c)))
        return;
    isolate_for_each(&c->isolation, agent_containment_note_left, c);
    c->isolation = ISOLATION_NONE; /* the kernel ends it with the last of its processes */
}

void agent_containment_end_job(agent_containment *c)
{
    if (!cgroup_remove(&c->group, kill_deadline_ms(c)))
        cgroup_for_each(&c->group, agent_containment_note_left, c);
    cgroup_close(&c->group);
}

void agent_containment_sweep(agent_containment *c)
{
    process_mark mark = c->mark;

    mark.spared = c->guardian; /* it still waits for the end of the agent */
    if (c->has_lost_shim)
        process_sweep_job(&mark, ls_deadline_ms(KILL_MS));
}

void agent_containment_close(agent_containment *c)
{
    if (c->guardian > 0) {
        kill(c->guardian, SIGKILL); /* no process is left to guard */
        waitpid(c->guardian, NULL, 0);
    }
    file_close(&c->guardian_fd);
    if (c->has_lost_shim && c->ctx->spec->job->argv != NULL)
        process_kill_children(ls_deadline_ms(KILL_MS));
}

ls_status agent_containment_open_job(agent_containment *c)
{
    if (c->ctx->spec->job->argv != NULL)
        open_group(c);
    return start_guardian(c);
}

void agent_containment_init(agent_containment *c, const agent_context *ctx)
{
    *c = (agent_containment){.ctx = ctx,
                             .mark = {.key_fd = -1},
                             .group = CGROUP_NONE,
                             .isolation = ISOLATION_NONE,
                             .guardian_fd = -1};
    oom_begin(&c->oom, "", NULL);
}
