/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_hold.c - what the kernel keeps together for us, a control group and a namespace; their end; and words about what even that did not
 * end: a process that waits for a device. Nobody waits with it.
 */
#include "launch/agent/agent.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/process_id.h"

enum {
    KILL_MS = 3000,
    AGAIN_MS = 300 /* what has not ended by then is no matter of time any more */
};

/* Nothing depends on it, so that there is none is only worth a line for who looks for one. */
void agent_open_group(agent *a)
{
    char kept[LS_ERROR_BYTES];
    cgroup_place place;

    ls_error_save(kept);
    if (cgroup_create(a->place.job, &a->group) != LS_OK) {
        ls_log(LS_LOG_DEBUG, "agent", "no control group for the ranks: %s", ls_last_error());
        ls_error_restore(kept);
        return;
    }
    ls_log(LS_LOG_DEBUG, "agent", "the ranks are in the control group %s/%s", a->group.parent.path,
           a->group.name);
    place.n_mount = a->group.parent.n_mount;
    text_format(place.path, sizeof(place.path), "%s/%s", a->group.parent.path, a->group.name);
    oom_begin(&a->oom, "", &place);
}

void agent_begin_group(agent *a)
{
    char kept[LS_ERROR_BYTES];

    ls_error_save(kept);
    if (cgroup_begin(&a->group) != LS_OK)
        ls_log(LS_LOG_DEBUG, "agent", "no control group for the ranks: %s", ls_last_error());
    ls_error_restore(kept);
}

bool agent_has_noted(agent *a, pid_t pid)
{
    for (int i = 0; i < a->n_left; i++)
        if (a->left[i] == pid)
            return true;
    if (a->n_left == AGENT_LEFT_MOST)
        return true; /* these are words enough */
    a->left[a->n_left++] = pid;
    return false;
}

void agent_note_left(void *arg, pid_t pid)
{
    agent *a = arg;
    process_stat facts;

    if (!process_stat_read("", pid, &facts) || process_stat_has_exited(&facts) ||
        agent_has_noted(a, pid))
        return;
    agent_note(a, "pid %d (%s) cannot be killed (%s) and is left behind", (int)pid, facts.name,
               process_state_text(facts.state));
}

void agent_end_below(agent *a)
{
    const int64_t limit_ms = a->n_left > 0 ? AGAIN_MS : KILL_MS;

    cgroup_kill(&a->group); /* what outlived its shim may be in no other way ours */
    if (isolate_end(&a->isolation, ls_deadline_ms(limit_ms)))
        return;
    isolate_for_each(&a->isolation, agent_note_left, a);
    a->isolation = ISOLATION_NONE; /* the kernel ends it with the last of them */
}

void agent_remove_group(agent *a)
{
    const int64_t limit_ms = a->n_left > 0 ? AGAIN_MS : KILL_MS;

    if (!cgroup_remove(&a->group, ls_deadline_ms(limit_ms)))
        cgroup_for_each(&a->group, agent_note_left, a);
    cgroup_close(&a->group);
}
