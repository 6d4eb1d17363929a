/* SPDX-License-Identifier: Apache-2.0 */
/* native_team_rank.c - one rank's team without an engine, for the tests of teams. */
#include "comm/native_team_rank.h"

#include "base/clock.h"
#include "base/text.h"

#include <sched.h>
#include <string.h>

#define SPINS  200
#define YIELDS 50

static void on_done(void *self, backend_work *work, ls_status status, const char *text)
{
    team_rank *r = self;
    const long index = work - r->works;

    LS_ASSERT(index >= 0 && index < TEAM_RANK_WORKS && !r->is_done[index]);
    r->is_done[index] = true;
    r->status[index] = status;
    if (status != LS_OK)
        text_format(r->text, sizeof(r->text), "%s", text != NULL ? text : "");
}

static void on_broken(void *self, const job_cause *cause)
{
    team_rank *r = self;

    r->cause = *cause;
    team_abort(r->t, cause_status(cause->kind), cause->text);
}

ls_status team_rank_open(team_rank *r, const comm_boot *boot, size_t piece_bytes)
{
    r->boot = boot;
    r->host = (comm_host){.abi = BACKEND_ABI, .self = r, .done = on_done, .broken = on_broken};
    for (int i = 0; i < boot->size; i++)
        r->members[i] = i;
    r->info = (group_info){.id = 0, .rank = boot->rank, .size = boot->size, .members = r->members};
    LS_TRY(local_join(boot, NULL, &r->l));
    return team_open(r->l, &r->host, &r->info,
                     &(team_options){.segment_bytes = piece_bytes,
                                     .table = r->table,
                                     .shares_cores = r->shares_cores,
                                     .place = r->place},
                     boot->deadline_ms, &r->t);
}

void team_rank_close(team_rank *r)
{
    team_close(r->t);
    local_leave(r->l);
}

coll team_rank_op(coll_kind kind, ls_dtype type, ls_reduce_op redop, int root, const void *src,
                  void *dst, size_t count)
{
    const bool reduces =
        kind == COLL_ALL_REDUCE || kind == COLL_REDUCE || kind == COLL_REDUCE_SCATTER;

    return (coll){.kind = kind,
                  .dtype = type,
                  .redop = redop,
                  .root = root,
                  .src = src,
                  .dst = dst,
                  .count = count,
                  .stamp = {.kind = (uint8_t)kind,
                            .dtype = kind == COLL_BARRIER ? 255 : (uint8_t)type,
                            .redop = reduces ? (uint8_t)redop : 255,
                            .root = root,
                            .count = count,
                            .site = "a_test+0x1"}};
}

void team_rank_start(team_rank *r, int index, const coll *op)
{
    r->works[index] = (backend_work){.op = *op};
    r->works[index].op.divisor = r->info.size;
    r->works[index].op.stamp.sequence = ++r->sequence;
    r->is_done[index] = false;
    team_start(r->t, &r->works[index]);
}

static void sleep_once(team_rank *r)
{
    struct pollfd fds[LOCAL_FDS_MAX];
    int rank;

    local_prepare_sleep(r->l);
    if (!local_has_events(r->l) && !team_progress(r->t))
        (void)poll(fds, (nfds_t)local_poll_fds(r->l, fds), 1000);
    local_end_sleep(r->l);
    local_receive(r->l);
    while (local_next_ended(r->l, &rank))
        r->saw_end = true;
}

ls_status team_rank_wait(team_rank *r, int index)
{
    const int64_t deadline_ms = ls_deadline_ms(60000);
    int idle = 0;

    while (!r->is_done[index]) {
        if (team_progress(r->t)) {
            idle = 0;
            continue;
        }
        if (++idle > SPINS + YIELDS) {
            // The last missing step may be one that a rank did before it exited.
            if (r->is_done[index])
                break;
            if ((r->saw_end && r->fails_at_end) || ls_deadline_left(deadline_ms) == 0)
                return LS_ETIMEOUT;
            sleep_once(r);
        } else if (idle > SPINS) {
            sched_yield();
        }
    }
    return r->status[index];
}

ls_status team_rank_run(team_rank *r, const coll *op)
{
    team_rank_start(r, 0, op);
    return team_rank_wait(r, 0);
}
