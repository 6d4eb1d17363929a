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
    return ddp_balancer(run->ddp) != NULL;
}

static bool divides_rows(const ls_run *run)
{
    return ddp_rows(run->ddp) != NULL;
}

/* --- measuring --- */

static int64_t take_ns(double total_s, double *before_s)
{
    const double s = total_s - *before_s;

    *before_s = total_s;
    return s > 0 ? (int64_t)(s * 1e9) : 0;
}

/* Shards of this rank in the step, or rows. */
static int64_t take_count(ls_run *run)
{
    const double samples = run->report.progress.samples;
    const int64_t n = (int64_t)(samples - run->balance.samples);

    run->balance.samples = samples;
    return divides_rows(run) ? n : run->partition.n;
}

static void show_own(ls_run *run)
{
    recorder_progress *p = &run->report.progress;

    if (divides_rows(run)) {
        p->rows = ddp_rows(run->ddp)[run_rank(run)];
        p->row_s = ddp_own_s(run->ddp);
    } else {
        p->shards = run->partition.n;
        p->shard_s = ddp_own_s(run->ddp);
    }
}

void run_measure(ls_run *run)
{
    const double *totals = run->report.progress.seconds;
    run_balance *b = &run->balance;
    int64_t ns[PHASE_TRAINING];
    ddp_times t;

    if (!is_balanced(run))
        return;
    for (int i = 0; i < PHASE_TRAINING; i++)
        ns[i] = take_ns(totals[i], &b->seconds[i]);
    t = (ddp_times){.n = take_count(run),
                    .own_ns = ns[PHASE_DATA] + ns[PHASE_FORWARD] + ns[PHASE_BACKWARD] -
                              audit_take_ns(run) -
                              take_ns(ddp_batch_norm_wait(run->ddp), &b->batch_norm_wait_s),
                    .fixed_ns = ns[PHASE_OPTIMIZER],
                    .wait_ns = take_ns(run->wait_s, &b->wait_s)};
    if (b->shard_ns != NULL)
        t.own_ns = t.n * b->shard_ns(run_rank(run), run->at.step);
    ddp_note_times(run->ddp, &t);
    show_own(run);
}

/* --- a new partition --- */

static const char *share_word(const ls_run *run)
{
    return divides_rows(run) ? "row" : "shard";
}

/* "11 5" */
static void append_counts(const ls_run *run, text_buf *out)
{
    const int ranks = ddp_balancer(run->ddp)->ranks;

    for (int r = 0; r < ranks && r < SHOWN_RANKS; r++)
        text_append(out, "%s%d", r > 0 ? " " : "", ddp_share(run->ddp, r).n);
    if (ranks > SHOWN_RANKS)
        text_append(out, " ...");
}

static void print_partition(ls_run *run)
{
    text_buf counts = {0};

    append_counts(run, &counts);
    progress_line(&run->progress, "step %" PRId64 ": %ss of the ranks from now on: %s",
                  run->at.step, share_word(run), text_str(&counts));
    text_free(&counts);
}

static ls_status change_partition(ls_run *run)
{
    partition to;

    LS_TRY(ddp_change_partition(run->ddp));
    if (divides_rows(run))
        return run_change_rows(run);
    to = run_find_partition(run, run->partition.n_all);
    return run_change_partition(run, &to);
}

ls_status run_rebalance(ls_run *run)
{
    bool changes_by_speed;

    if (run->n_added > 0 || run->ddp == NULL || !ddp_has_new_partition(run->ddp))
        return LS_OK;
    run->report.mark_ns = ls_now_ns();
    changes_by_speed = is_balanced(run) && !ddp_audit_leaves_out(run->ddp);
    LS_TRY(losses_collect(&run->losses));
    LS_TRY(change_partition(run));
    if (changes_by_speed)
        print_partition(run);
    report_phase(run, PHASE_COMMUNICATION);
    return LS_OK;
}

/* --- output --- */

const double *run_balance_ranks(ls_run *run)
{
    const balancer *b = ddp_balancer(run->ddp);
    double *of_ranks = run->balance.of_ranks;

    if (b == NULL ||
        LS_RESIZE(&run->balance.of_ranks, 2 * (size_t)b->ranks, "for %d ranks", b->ranks) != LS_OK)
        return NULL;
    of_ranks = run->balance.of_ranks;
    for (int r = 0; r < b->ranks; r++) {
        const balance_share s = ddp_share(run->ddp, r);

        of_ranks[2 * r] = s.n;
        of_ranks[2 * r + 1] = s.one_s;
    }
    return of_ranks;
}

static void print_rank(ls_run *run, int r)
{
    const balance_share s = ddp_share(run->ddp, r);
    const double seconds = run->train_s > 0 ? run->train_s : 1;
    char speed[40] = "";

    if (s.one_s > 0)
        text_format(speed, sizeof(speed), ", %.*f ms for a %s", divides_rows(run) ? 4 : 2,
                    s.one_s * 1e3, share_word(run));
    progress_line(&run->progress, "  rank %d: %d of %d %ss%s, waited %.1f %% of the time", r, s.n,
                  s.n_all, share_word(run), speed, 100 * s.wait_s / seconds);
}

void run_balance_print(ls_run *run)
{
    const balancer *b = ddp_balancer(run->ddp);

    if (b == NULL || b->n_steps == 0)
        return;
    progress_line(&run->progress, "--balance: %" PRId64 " change%s of the partition", b->n_changes,
                  text_plural(b->n_changes));
    for (int r = 0; r < b->ranks && r < SHOWN_RANKS; r++)
        print_rank(run, r);
    if (b->ranks > SHOWN_RANKS)
        progress_line(&run->progress, "  and %d more ranks", b->ranks - SHOWN_RANKS);
}
