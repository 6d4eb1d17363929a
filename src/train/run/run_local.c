/* SPDX-License-Identifier: Apache-2.0 */
/* run_local.c - see run_local.h. run.c, loop.c, save.c and resume.c call it. */
#include "train/run/run_local.h"

#include "base/clock.h"
#include "base/text.h"
#include "comm/comm.h"
#include "ddp/local_sgd.h"
#include "train/run/run.h"

#include <inttypes.h>

enum { SHOWN_ISLANDS = 16 };

/* --- flags --- */

/* As in ls_local_sgd_options; 0: not given. */
static ls_status read_islands(const ls_train_flags *f, int *out)
{
    int64_t n;

    *out = 0;
    if (f->islands == NULL)
        return LS_OK;
    *out = LS_ISLANDS_OF_HOSTS;
    if (text_equal(f->islands, "host"))
        return LS_OK;
    if (text_parse_int(f->islands, "islands", 1, 1 << 20, &n) != LS_OK)
        return ls_fail(LS_EINVAL,
                       "--islands %s: must be a number of islands, at least 1, or host: the ranks "
                       "of each host are an island",
                       f->islands);
    *out = (int)n;
    return LS_OK;
}

static ls_status check_without(const ls_train_flags *f)
{
    if (f->islands != NULL)
        return ls_fail(LS_EINVAL, "--islands needs --sync-every H");
    if (f->sync_fragments > 1 || f->sync_delay > 0)
        return ls_fail(LS_EINVAL, "--%s needs --sync-every H",
                       f->sync_delay > 0 ? "sync-delay" : "sync-fragments");
    if ((f->outer_lr != 0 && f->outer_lr != LOCAL_OUTER_LR) ||
        (f->outer_momentum != 0 && f->outer_momentum != LOCAL_OUTER_MOMENTUM))
        return ls_fail(LS_EINVAL, "--outer-lr and --outer-momentum need --sync-every H");
    if (f->compress != NULL && (text_equal(f->compress, "int8") || text_equal(f->compress, "int4")))
        return ls_fail(LS_EINVAL,
                       "--compress %s needs --sync-every H: gradients of each step are sent with "
                       "16 bits at least",
                       f->compress);
    return LS_OK;
}

ls_status run_local_check(const ls_train_flags *f)
{
    const struct {
        int is_given;
        const char *flag, *why;
    } refused[] = {
        {f->balance != NULL, "--balance",
         "each island takes as many steps; a slow rank needs fewer rows"},
        {f->sync_bn, "--sync-bn", "the batch norms of all ranks meet in each step"},
        {f->check_replicas > 0, "--check-replicas", "the parameters of islands differ"},
        {f->audit > 0, "--audit", "the parameters of islands differ"},
        {f->capsule_step > 0, "--capsule-step", "the parameters of islands differ"},
        {state_path_is_set(f->replay), "--replay", "the parameters of islands differ"},
        {text_equal(hyperparameters_precision(f), "fp16"), "--precision fp16",
         "all ranks have one scale of the loss; bf16 needs none"},
        {f->accumulate > 1 && f->shards > 0, "--accumulate and --shards",
         "a shard is an island, with one batch a step; use a larger --batch-size"},
    };
    int ignored;

    if (f->sync_every == 0)
        return check_without(f);
    LS_TRY(read_islands(f, &ignored));
    if (f->sync_fragments > f->sync_every)
        return ls_fail(LS_EINVAL,
                       "--sync-fragments %" PRId64 ": must be at most --sync-every %" PRId64
                       ", one fragment a step",
                       f->sync_fragments, f->sync_every);
    if (f->sync_delay > f->sync_every / (f->sync_fragments > 0 ? f->sync_fragments : 1))
        return ls_fail(LS_EINVAL,
                       "--sync-delay %" PRId64 ": must be at most --sync-every / --sync-fragments, "
                       "%" PRId64 ": a mean is applied before the next one is sent",
                       f->sync_delay,
                       f->sync_every / (f->sync_fragments > 0 ? f->sync_fragments : 1));
    if (f->outer_lr < 0)
        return ls_fail(LS_EINVAL, "--outer-lr is 0: must be over 0");
    if (f->outer_momentum >= 1)
        return ls_fail(LS_EINVAL, "--outer-momentum %g: must be below 1", f->outer_momentum);
    for (size_t i = 0; i < LS_COUNT_OF(refused); i++)
        if (refused[i].is_given)
            return ls_fail(LS_EINVAL, "--sync-every does not go with %s: %s", refused[i].flag,
                           refused[i].why);
    return LS_OK;
}

/* --- life --- */

static ls_status check_ranks(const ls_run *run, const ls_ddp_options *opt)
{
    const char *flag = run->flags->islands;
    int islands;

    LS_TRY(read_islands(run->flags, &islands));
    if (flag == NULL)
        return LS_OK;
    if (opt->shards > 0)
        return ls_fail(LS_EINVAL,
                       "--islands %s does not go with --shards %d, whose shards are the islands: "
                       "omit one of them",
                       flag, opt->shards);
    if (comm_is_elastic(run->comm))
        return ls_fail(LS_EINVAL,
                       "--islands %s does not go with lockstep run --elastic: islands are not "
                       "divided anew when a rank is lost; use --shards V, or --max-restarts "
                       "without --elastic",
                       flag);
    if (islands > run_size(run))
        return ls_fail(LS_EINVAL,
                       "--islands %s on %d rank%s: an island has at least one; use --shards %s for "
                       "several islands on a rank",
                       flag, run_size(run), text_plural(run_size(run)), flag);
    return LS_OK;
}

ls_status run_local_distribute(ls_run *run, const ls_ddp_options *opt)
{
    LS_TRY(check_ranks(run, opt));
    if (opt->sync_batch_norm || opt->plain_mean)
        return ls_fail(LS_EINVAL, "--sync-every needs a program without sync_batch_norm and "
                                  "plain_mean in ls_run_distribute()");
    if (opt->shards > 0 && opt->shards < run_size(run))
        return ls_fail(LS_EINVAL, "--sync-every: %d shards on %d ranks: each rank needs an island",
                       opt->shards, run_size(run));
    if (opt->shards == 0 && comm_is_elastic(run->comm))
        return ls_fail(LS_EINVAL, "--sync-every in a job of lockstep run --elastic needs --shards "
                                  "V: the islands that ranks have, and others when one is lost");
    run->island_ddp = *opt;
    run->island_ddp.hook = LS_DDP_HOOK_NONE; // it is for differences
    return LS_OK;
}

ls_status run_local_open(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    ls_local_sgd_options opt = {.size = sizeof(opt),
                                .every = f->sync_every,
                                .outer_lr = f->outer_lr,
                                .outer_momentum = f->outer_momentum,
                                .fragments = (int)f->sync_fragments,
                                .delay = (int)f->sync_delay,
                                .hook = run->hook};
    ls_comm *group;

    if (f->sync_every == 0 || f->evaluate)
        return LS_OK;
    LS_TRY(read_islands(f, &opt.islands));
    if (opt.islands == 0)
        opt.islands = run->partition.n_all;
    if (run->train.set == NULL || run->comm == NULL)
        return ls_fail(LS_EINVAL, "--sync-every needs a program that calls ls_run_train_on_take() "
                                  "and ls_run_distribute()");
    LS_TRY(ls_context(ls_local_sgd_create(run->comm, run->model, run->optimizer, &opt, &run->local),
                      "--sync-every"));
    group = ls_local_sgd_group(run->local);
    return group == NULL ? LS_OK : ls_ddp_create(group, run->model, &run->island_ddp, &run->ddp);
}

static void print_islands(ls_run *run)
{
    const int *counts = local_sgd_counts(run->local);
    const int n = local_sgd_islands(run->local);
    text_buf list = {0};

    if (counts == NULL)
        return;
    for (int i = 0; i < n && i < SHOWN_ISLANDS; i++)
        text_append(&list, " %d", counts[i]);
    progress_line(&run->progress, "%d island%s, ranks of each:%s%s", n, text_plural(n),
                  text_str(&list), n > SHOWN_ISLANDS ? " ..." : "");
    text_free(&list);
}

ls_status run_local_begin(ls_run *run, bool has_islands)
{
    if (run->local == NULL)
        return LS_OK;
    print_islands(run);
    return has_islands ? local_sgd_spread(run->local, run->at.step)
                       : local_sgd_restart(run->local, run->at.step);
}

/* --- steps --- */

ls_status run_local_enter(ls_run *run)
{
    return run->local == NULL
               ? LS_OK
               : ls_local_sgd_enter(run->local, ls_local_sgd_island(run->local) + run->part);
}

/* Whether all ranks communicate after step `step`, counted from 1, which is the present one. */
static bool all_communicate(const ls_run *run, int64_t step)
{
    return local_sgd_is_due(run->local, step) || run->at.batch + 1 >= run->epoch_batches ||
           step == run->flags->steps;
}

/* A rank that is asked to stop does not wait until all ranks communicate anyway, but begins to: if
 * all are asked, they stop after the step of the one that is ahead. Not with a delay: others may
 * send a mean before they are asked, and ranks start their operations in the same order. */
static ls_status agree_to_stop(ls_run *run, int64_t step, bool stop)
{
    const bool begins = stop && local_sgd_delay(run->local) == 0;
    int64_t values[] = {stop, step};

    if (run->stop_at > 0 || run_size(run) == 1 || !(begins || all_communicate(run, step)))
        return LS_OK;
    comm_label(run->comm, "stop signals");
    LS_TRY(ls_all_reduce(run->comm, values, values, LS_COUNT_OF(values), LS_I64, LS_MAX, NULL));
    run->stop_at = values[0] != 0 ? values[1] : 0;
    return LS_OK;
}

ls_status run_local_step(ls_run *run, ls_ddp_step *step)
{
    const int64_t at = run->at.step + 1;

    if (run->local == NULL)
        return LS_OK;
    LS_TRY(agree_to_stop(run, at, step->stop));
    LS_TRY(ls_local_sgd_step(run->local));
    if (run_size(run) > 1)
        step->stop = run->stop_at == at;
    report_phase(run, PHASE_COMMUNICATION);
    return LS_OK;
}

bool run_local_meets(const ls_run *run)
{
    return run->local == NULL || local_sgd_is_due(run->local, run->at.step);
}

ls_status run_local_show(ls_run *run, bool is_end)
{
    if (run->local == NULL)
        return LS_OK;
    run->report.mark_ns = ls_now_ns();
    if (is_end)
        LS_TRY(local_sgd_finish(run->local));
    LS_TRY(ls_local_sgd_show(run->local));
    report_phase(run, PHASE_COMMUNICATION);
    return LS_OK;
}

void run_local_failed(ls_run *run)
{
    if (run->local == NULL || local_sgd_counts(run->local) == NULL)
        return;
    if (ls_comm_status(run->comm) != LS_OK)
        text_format(run->failure_text, sizeof(run->failure_text), "%s", ls_last_error());
    local_sgd_abort(run->local, run->failure_text);
}

/* --- files --- */

ls_status run_local_collect(ls_run *run)
{
    return run->local == NULL || !run->collects_states ? LS_OK : local_sgd_collect(run->local);
}

void run_local_drop(ls_run *run)
{
    if (run->local != NULL)
        local_sgd_drop_copies(run->local);
}

ls_status run_local_list(ls_run *run, name_list *list)
{
    const ls_named *items;
    char prefix[32];
    int n;

    if (run->local == NULL)
        return LS_OK;
    items = local_sgd_outer(run->local, &n);
    LS_TRY(name_list_add(list, "outer.", items, n));
    for (int i = 0; i < local_sgd_islands(run->local); i++) {
        items = local_sgd_copy(run->local, i, &n);
        text_format(prefix, sizeof(prefix), "island.%d.", i);
        LS_TRY(name_list_add(list, prefix, items, n));
    }
    return LS_OK;
}
