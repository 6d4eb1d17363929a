/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run_balance.c - see run_balance.h. A rank's own time for its shards is that of data, forward and
 * backward without the waits for other ranks. loop.c and summary.c call it.
 */
#include "train/run/run_balance.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "ddp/shard_step.h"
#include "train/run/run.h"

#include <inttypes.h>

enum { SHOWN_RANKS = 16 };

static bool is_balanced(const ls_run *run)
{
    const balance_speed *ignored;

    return ddp_balancer(run->ddp, &ignored) != NULL;
}

/* --- measuring --- */

static int64_t take_ns(double total_s, double *before_s)
{
    const double s = total_s - *before_s;

    *before_s = total_s;
    return s > 0 ? (int64_t)(s * 1e9) : 0;
}

void run_measure(ls_run *run)
{
    const double *totals = run->report.progress.seconds;
    run_balance *b = &run->balance;
    int64_t ns[PHASE_TRAINING];
    int64_t shards_ns;

    if (!is_balanced(run))
        return;
    for (int i = 0; i < PHASE_TRAINING; i++)
        ns[i] = take_ns(totals[i], &b->seconds[i]);
    shards_ns = ns[PHASE_DATA] + ns[PHASE_FORWARD] + ns[PHASE_BACKWARD] - audit_take_ns(run) -
                take_ns(ddp_batch_norm_wait(run->ddp), &b->batch_norm_wait_s);
    if (b->shard_ns != NULL)
        shards_ns = run->partition.n * b->shard_ns(run_rank(run), run->at.step);
    ddp_note_times(run->ddp, shards_ns, ns[PHASE_OPTIMIZER], take_ns(run->wait_s, &b->wait_s));
    run->report.progress.shards = run->partition.n;
    run->report.progress.shard_s = (double)ddp_shard_ns(run->ddp) * 1e-9;
}

/* --- a new partition --- */

/* "11 5" */
static void append_counts(const balancer *b, text_buf *out)
{
    for (int r = 0; r < b->ranks && r < SHOWN_RANKS; r++)
        text_append(out, "%s%d", r > 0 ? " " : "", b->starts[r + 1] - b->starts[r]);
    if (b->ranks > SHOWN_RANKS)
        text_append(out, " ...");
}

static void print_partition(ls_run *run)
{
    const balance_speed *speeds;
    text_buf counts = {0};

    append_counts(ddp_balancer(run->ddp, &speeds), &counts);
    progress_line(&run->progress, "step %" PRId64 ": shards of the ranks from now on: %s",
                  run->at.step, text_str(&counts));
    text_free(&counts);
}

ls_status run_rebalance(ls_run *run)
{
    partition to;
    bool changes_by_speed;

    if (run->n_added > 0 || run->ddp == NULL || !ddp_has_new_partition(run->ddp))
        return LS_OK;
    run->report.mark_ns = ls_now_ns();
    changes_by_speed = is_balanced(run) && !ddp_audit_leaves_out(run->ddp);
    LS_TRY(losses_collect(&run->losses));
    LS_TRY(ddp_change_partition(run->ddp));
    to = run_find_partition(run, run->partition.n_all);
    LS_TRY(run_change_partition(run, &to));
    if (changes_by_speed)
        print_partition(run);
    report_phase(run, PHASE_COMMUNICATION);
    return LS_OK;
}

/* --- output --- */

const double *run_balance_ranks(ls_run *run)
{
    const balance_speed *speeds;
    const balancer *b = ddp_balancer(run->ddp, &speeds);
    double *of_ranks = run->balance.of_ranks;

    if (b == NULL ||
        LS_RESIZE(&run->balance.of_ranks, 2 * (size_t)b->ranks, "for %d ranks", b->ranks) != LS_OK)
        return NULL;
    of_ranks = run->balance.of_ranks;
    for (int r = 0; r < b->ranks; r++) {
        of_ranks[2 * r] = b->starts[r + 1] - b->starts[r];
        of_ranks[2 * r + 1] = (double)speeds[r].shard_ns * 1e-9;
    }
    return of_ranks;
}

static void print_rank(ls_run *run, const balancer *b, const balance_speed *s, int r)
{
    const double seconds = run->train_s > 0 ? run->train_s : 1;
    char speed[40] = "";

    if (s->shard_ns > 0)
        text_format(speed, sizeof(speed), ", %.2f ms for a shard", (double)s->shard_ns * 1e-6);
    progress_line(&run->progress, "  rank %d: %d of %d shards%s, waited %.1f %% of the time", r,
                  b->starts[r + 1] - b->starts[r], b->shards, speed,
                  100 * (double)b->wait_total[r] * 1e-9 / seconds);
}

void run_balance_print(ls_run *run)
{
    const balance_speed *speeds;
    const balancer *b = ddp_balancer(run->ddp, &speeds);

    if (b == NULL || b->n_steps == 0)
        return;
    progress_line(&run->progress, "--balance: %" PRId64 " change%s of the partition", b->n_changes,
                  text_plural(b->n_changes));
    for (int r = 0; r < b->ranks && r < SHOWN_RANKS; r++)
        print_rank(run, b, &speeds[r], r);
    if (b->ranks > SHOWN_RANKS)
        progress_line(&run->progress, "  and %d more ranks", b->ranks - SHOWN_RANKS);
}
