/* SPDX-License-Identifier: Apache-2.0 */
/* run_audit.c - see run_audit.h. The other files of this folder call it. */
#include "train/run/run_audit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "comm/comm.h"
#include "data/sampler.h"
#include "train/run/run.h"

#include <lockstep/log.h>

#include <inttypes.h>
#include <string.h>

enum { LEAVE_AFTER = 2 }; /* offences, in an elastic job */

/* --- life --- */

ls_status audit_check_run(const ls_run *run)
{
    if (run->flags->audit == 0 || run->flags->evaluate)
        return LS_OK;
    if (run->train.set == NULL)
        return ls_fail(LS_EINVAL, "--audit needs a program that calls ls_run_train_on_take(): "
                                  "ranks read the batches of each other's shards");
    if (run_size(run) == 1 && !comm_is_new(run->comm))
        return ls_fail(LS_EINVAL, "--audit on one rank: there is no shard of another rank to "
                                  "compute; start at least 2 ranks, or leave it out");
    return ddp_audit_check(run->ddp);
}

void audit_close_reader(ls_run *run)
{
    if (run->audit.reader != NULL)
        run_close_part(run->audit.reader);
    ls_free(run->audit.reader);
    run->audit.reader = NULL;
}

void audit_close_run(ls_run *run)
{
    audit_close_reader(run);
    ls_free(run->audit.before);
}

/* --- what is counted in a step that may be done again --- */

static ls_status keep_sums(ls_run *run)
{
    run_audit *a = &run->audit;

    if (!run->flags->heal)
        return LS_OK;
    LS_TRY(LS_RESIZE(&a->before, (size_t)run->partition.n + 1, "for the sums of shards"));
    for (int i = 0; i < run->partition.n; i++)
        a->before[i] = *report_part(run, i);
    a->samples = run->report.progress.samples;
    a->bad_step = run->report.bad_step;
    return LS_OK;
}

/* Times and broken images stay. */
static void restore_sums(ls_run *run)
{
    for (int i = 0; i < run->partition.n; i++) {
        const rank_sums now = *report_part(run, i);

        *report_part(run, i) = run->audit.before[i];
        report_part(run, i)->bad = now.bad;
        memcpy(report_part(run, i)->seconds, now.seconds, sizeof(now.seconds));
    }
    run->report.progress.samples = run->audit.samples;
    run->report.bad_step = run->audit.bad_step;
}

/* --- the batch of an audit --- */

ls_status audit_begin(ls_run *run)
{
    const int64_t every = run->flags->audit;
    run_audit *a = &run->audit;

    if (every == 0 || run->at.step % every != 0)
        return LS_OK;
    LS_TRY(ddp_audit_begin(run->ddp, run->at.step / every, &a->shard));
    LS_TRY(keep_sums(run));
    a->is_begun = true;
    return LS_OK;
}

bool audit_has_batch(const ls_run *run)
{
    return run->audit.is_begun && run->audit.shard >= 0;
}

/* One sampler and one loader, without threads, for all shards. */
static ls_status open_reader(ls_run *run)
{
    run_audit *a = &run->audit;

    if (a->reader != NULL) {
        sampler_set_rank(a->reader->sampler, a->shard);
        return LS_OK;
    }
    LS_TRY(LS_NEW(&a->reader, 1, "to read shards of other ranks"));
    return run_open_part(run, &run->train, true, a->shard, -1, a->reader);
}

ls_status audit_load(ls_run *run, ls_batch *batch)
{
    run_audit *a = &run->audit;

    run->report.mark_ns = ls_now_ns();
    a->start_ns = run->report.mark_ns;
    LS_TRY(open_reader(run));
    LS_TRY(ls_loader_start(a->reader->loader, (uint64_t)run->at.epoch, (size_t)run->at.batch));
    LS_TRY(run_load_batch(run, a->reader, a->shard, batch));
    a->batch = AUDIT_GIVEN;
    report_phase(run, PHASE_DATA);
    return LS_OK;
}

ls_status audit_backward(ls_run *run, ls_tensor *loss)
{
    run_audit *a = &run->audit;

    report_phase(run, PHASE_FORWARD);
    LS_TRY(ddp_audit_backward(run->ddp, run->tape, loss, run->weight));
    report_phase(run, PHASE_BACKWARD);
    a->ns += run->report.mark_ns - a->start_ns;
    run->train_s += (double)(run->report.mark_ns - a->start_ns) * 1e-9;
    a->shard = -1;
    a->batch = AUDIT_COMPUTED;
    return LS_OK;
}

ls_status audit_leave_batch(ls_run *run)
{
    if (run->audit.batch == AUDIT_GIVEN)
        return ls_fail(LS_EINVAL, "--audit needs a program that calls ls_run_step() for each batch "
                                  "of ls_run_next()");
    run->audit.batch = AUDIT_NONE;
    return LS_OK;
}

/* --- the results --- */

/* What differs, for the message. */
static void append_difference(const ls_run *run, text_buf *out)
{
    const audit_finding *f = &run->audit.found;

    text_append(out,
                "step %" PRId64 ": rank %d, which has shard %d, and rank %d, which has audited it, "
                "have computed ",
                run->at.step + 1, f->owner, f->shard, f->auditor);
    if (f->param != NULL)
        text_append(out, "other gradients, first of parameter %s", f->param);
    else
        text_append(out, "%s", f->is_loss ? "other losses" : "other buffers (running statistics)");
}

static void append_verdict(const audit_finding *f, audit_verdict verdict, text_buf *out)
{
    const int wrong = verdict == AUDIT_OWNER_WRONG ? f->owner : f->auditor;
    const int right = verdict == AUDIT_OWNER_WRONG ? f->auditor : f->owner;
    const bool repeats = f->evidence.owner_again == f->evidence.owner;

    if (verdict == AUDIT_UNDECIDED && f->third >= 0)
        text_append(out,
                    "; rank %d has a third result: it cannot be decided which rank computes "
                    "wrongly",
                    f->third);
    else if (verdict == AUDIT_UNDECIDED)
        text_append(out, "; %s: with two ranks it cannot be decided which one computes wrongly",
                    repeats ? "both repeat their result" : "neither repeats its result");
    else if (f->third >= 0)
        text_append(out, "; rank %d has the result of rank %d: rank %d computes wrongly", f->third,
                    right, wrong);
    else
        text_append(out,
                    "; rank %d repeats its result and rank %d does not: rank %d computes "
                    "wrongly",
                    right, wrong, wrong);
}

ls_status audit_compare(ls_run *run, bool *differs)
{
    run_audit *a = &run->audit;
    text_buf reason = {0};
    ls_status st;

    *differs = false;
    if (!a->is_begun)
        return LS_OK;
    a->n_steps++;
    LS_TRY(ddp_audit_compare(run->ddp, a->offences, differs, &a->found));
    report_phase(run, PHASE_COMMUNICATION);
    if (!*differs)
        return LS_OK;
    a->differs = true;
    a->n_found++;
    a->shard = ddp_audit_is_asked(run->ddp, &a->found) ? a->found.shard : -1;
    append_difference(run, &reason);
    st = text_status(&reason);
    if (st == LS_OK)
        st = capsule_leave_begun(run, text_str(&reason));
    text_free(&reason);
    return st;
}

/* --- the judgement --- */

/* The batches of the step are read again. */
static ls_status return_to_begin(ls_run *run)
{
    ddp_audit_undo(run->ddp);
    restore_sums(run);
    ls_tape_reset(run->tape);
    run->n_added = 0;
    run->part = 0;
    for (int i = 0; i < run->train.n_parts; i++)
        LS_TRY(ls_loader_start(run->train.parts[i].loader, (uint64_t)run->at.epoch,
                               (size_t)run->at.batch));
    return LS_OK;
}

/* The wrong rank ends, so the barrier fails, and the others recover. */
static ls_status replace(ls_run *run, int wrong, const char *text)
{
    if (run_rank(run) == wrong)
        return ls_fail(LS_EMISMATCH, "%s, as at an earlier step: this rank leaves the job", text);
    LS_TRY(return_to_begin(run));
    comm_label(run->comm, "a rank leaves after an audit");
    return ls_barrier(run->comm, NULL);
}

static ls_status heal(ls_run *run, int wrong, const char *text)
{
    run_audit *a = &run->audit;
    const bool leaves = comm_is_elastic(run->comm) && a->found.offences[wrong] + 1 >= LEAVE_AFTER;

    if (run_rank(run) == 0)
        ls_log(LS_LOG_WARN, "train", "%s; %s%s", text,
               leaves ? "it leaves the job after its second time, and the others do the step again"
                      : "the others do the step again",
               run->capsule.note);
    capsule_forget_note(run);
    a->n_again++;
    a->offences += run_rank(run) == wrong;
    if (leaves)
        return replace(run, wrong, text);
    LS_TRY(return_to_begin(run));
    return ddp_audit_leave_out(run->ddp, wrong);
}

ls_status audit_judge(ls_run *run)
{
    run_audit *a = &run->audit;
    audit_verdict verdict;
    text_buf text = {0};
    ls_status st;

    LS_TRY(ddp_audit_judge(run->ddp, &a->found, &verdict));
    a->differs = a->is_begun = false;
    append_difference(run, &text);
    append_verdict(&a->found, verdict, &text);
    st = text_status(&text);
    if (st == LS_OK && run->flags->heal && verdict != AUDIT_UNDECIDED)
        st = heal(run, verdict == AUDIT_OWNER_WRONG ? a->found.owner : a->found.auditor,
                  text_str(&text));
    else if (st == LS_OK)
        st = ls_fail(LS_EMISMATCH, "--audit: %s%s%s", text_str(&text),
                     run->flags->heal ? "" : "; --heal does such a step again without that rank",
                     run->capsule.note);
    text_free(&text);
    return st;
}

void audit_end(ls_run *run)
{
    run_audit *a = &run->audit;

    a->is_begun = false;
    if (run->flags->audit > 0)
        ddp_audit_end(run->ddp);
}

void audit_drop(ls_run *run)
{
    run_audit *a = &run->audit;

    a->is_begun = a->differs = false;
    a->shard = -1;
    a->batch = AUDIT_NONE;
    audit_close_reader(run);
}

int64_t audit_take_ns(ls_run *run)
{
    const int64_t ns = run->audit.ns;

    run->audit.ns = 0;
    return ns;
}

void audit_print(ls_run *run)
{
    const run_audit *a = &run->audit;

    if (run->flags->audit == 0 || run->ddp == NULL || a->n_steps == 0)
        return;
    progress_line(&run->progress, "--audit: %" PRId64 " step%s audited, %" PRId64 " difference%s%s",
                  a->n_steps, text_plural(a->n_steps), a->n_found, text_plural(a->n_found),
                  a->n_again > 0 ? ", after which the step was done again" : "");
}
