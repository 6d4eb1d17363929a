/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shard_step.c - a step of all shards of a rank: one after the other, or at the same time
 * (shards_together.h).
 */
#include "ddp/shard_step.h"

#include "ddp/reducer.h"

static ls_status add_gradients(ls_ddp *ddp, ls_tape *tape, ls_tensor *loss, int64_t rows,
                               bool is_last, ls_ddp_step *step)
{
    return is_last ? ls_ddp_backward(ddp, tape, loss, rows, step)
                   : ls_ddp_accumulate(ddp, tape, loss, rows);
}

static ls_status step_in_turn(ls_ddp *ddp, const shard_calls *calls, shard_node range,
                              ls_ddp_step *step)
{
    if (ddp->shard_tape == NULL)
        LS_TRY(ls_tape_create(ddp->device, &ddp->shard_tape));
    for (int i = 0; i < range.n; i++) {
        ls_tensor *loss = NULL;
        int64_t rows = 0;
        ls_status st;

        ls_tape_set_training(ddp->shard_tape, 1);
        ls_tape_reset(ddp->shard_tape);
        st = calls->compute(calls->arg, range.first + i, ddp->shard_tape, &loss, &rows);
        if (st == LS_OK)
            st = ddp_check_rows(rows);
        if (st != LS_OK)
            return ddp_abort(ddp, st);
        LS_TRY(add_gradients(ddp, ddp->shard_tape, loss, rows, i == range.n - 1, step));
    }
    return LS_OK;
}

static ls_status step_together(ls_ddp *ddp, const shard_calls *calls, shard_node range,
                               ls_ddp_step *step)
{
    ls_status st = ddp_check_model(ddp);

    if (st == LS_OK)
        st = ddp_follow_model(ddp);
    if (st == LS_OK)
        st = together_compute(ddp, calls);
    if (st != LS_OK)
        return ddp_abort(ddp, st);
    ddp->is_computed = true;
    for (int i = 0; i < range.n && st == LS_OK; i++)
        st = add_gradients(ddp, together_tape(ddp, i), together_loss(ddp, i), together_rows(ddp, i),
                           i == range.n - 1, step);
    ddp->is_computed = false;
    return st;
}

ls_status ddp_step_shards(ls_ddp *ddp, const shard_calls *calls, ls_ddp_step *step)
{
    shard_node range;

    if (ddp->shards == NULL)
        return ls_fail(LS_EINVAL, "ls_ddp_step_shards: the ls_ddp has no shards");
    if (ddp->begun || shards_done(ddp) > 0)
        return ddp_abort(
            ddp, ls_fail(LS_EINVAL, "ls_ddp_step_shards: called %s",
                         ddp->begun ? "after ls_ddp_begin()" : "between the shards of a step"));
    range = ddp_shard_range(ddp);
    if (range.n == 0)
        return ddp_step_idle(ddp, step);
    return shards_are_together(ddp) ? step_together(ddp, calls, range, step)
                                    : step_in_turn(ddp, calls, range, step);
}

ls_status ls_ddp_step_shards(ls_ddp *ddp, ls_shard_fn fn, void *arg, ls_ddp_step *step)
{
    LS_TRY(LS_GIVEN(ddp));
    LS_TRY(LS_GIVEN(fn));
    LS_TRY(LS_GIVEN(step));
    return ddp_step_shards(ddp, &(shard_calls){.compute = fn, .arg = arg}, step);
}
