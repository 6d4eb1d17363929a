/* SPDX-License-Identifier: Apache-2.0 */
/* trace_summary_text.c - the text of `lockstep trace summarize`, in at most 100 columns. */
#include "cli/trace/trace_summary.h"

#include <inttypes.h>
#include <stdlib.h>

/* Of an operator's time, what the ceilings explain: below, neither of them bounds it. */
#define OVERHEAD_SHARE 0.25
/* Times the mean own time of all ranks, from which a rank is called a straggler. */
#define STRAGGLER 1.1

// --- operators ---

static double per(double amount, double us)
{
    return us > 0 ? amount / us * 1e-3 : 0; // per us to G per s
}

static int by_time(const void *a, const void *b)
{
    const double x = (*(summary_operator *const *)a)->us;
    const double y = (*(summary_operator *const *)b)->us;

    return (x < y) - (x > y);
}

static const char *bound_of(const summary_operator *o)
{
    if (!(o->limit_us > 0) || o->us <= 0)
        return "?";
    if (o->limit_us < OVERHEAD_SHARE * o->us)
        return "overhead";
    return o->compute_us >= o->memory_us ? "compute" : "memory";
}

static void append_operator(const summary_operator *o, double all_us, text_buf *out)
{
    text_append(out, "%10.2f %5.1f %% %7" PRId64 " %9.1f %7.1f", o->us * 1e-3,
                all_us > 0 ? 100 * o->us / all_us : 0, o->calls, per(o->flops, o->us),
                per(o->bytes, o->us));
    if (o->limit_us > 0 && o->us > 0)
        text_append(out, " %6.0f %%", 100 * o->limit_us / o->us);
    else
        text_append(out, "        -");
    text_append(out, "  %-8s  %s", bound_of(o), o->name);
    if (o->phase[0] != '\0')
        text_append(out, " (%s)", o->phase);
    text_append(out, "\n");
    if (o->shapes[0] != '\0' || o->layer[0] != '\0')
        text_append(out, "%*s%s%s%s%s\n", 24, "", o->layer, o->has_layers ? " and others" : "",
                    o->layer[0] != '\0' ? ": " : "", o->shapes);
}

static void append_operators(trace_summary *s, int most, text_buf *out)
{
    double all_us = 0;

    // NOLINTNEXTLINE(bugprone-sizeof-expression): the elements are pointers
    qsort(s->operators, (size_t)s->n_operators, sizeof(*s->operators), by_time);
    for (int i = 0; i < s->n_operators; i++)
        all_us += s->operators[i]->us;
    text_append(out, "\noperators of all ranks: %.1f ms\n", all_us * 1e-3);
    text_append(out, "   TIME ms   SHARE   CALLS  GFLOP/S    GB/S  CEILING  BOUND BY  OPERATOR\n");
    for (int i = 0; i < s->n_operators && i < most; i++)
        append_operator(s->operators[i], all_us, out);
    if (s->n_operators > most)
        text_append(out, "and %d more; --top %d shows all\n", s->n_operators - most,
                    s->n_operators);
}

// --- communication ---

static void append_kinds(const trace_summary *s, text_buf *out)
{
    text_append(out, "\ncommunication of all ranks\n"
                     "   TIME ms   CALLS        MB    GB/S  LATE us  OPERATION\n");
    for (int i = 0; i < s->n_kinds; i++) {
        const summary_kind *k = &s->kinds[i];

        text_append(out, "%10.2f %7" PRId64 " %9.1f %7.2f", k->us * 1e-3, k->calls, k->bytes * 1e-6,
                    per(k->bytes, k->us));
        if (k->late_us > 0)
            text_append(out, " %8.0f", k->late_us / (double)k->calls);
        else
            text_append(out, "        -");
        text_append(out, "  %s\n", k->name);
    }
}

// --- ranks ---

/* Time in which the rank did not wait for others. */
static double own_us(const summary_rank *r)
{
    double us = 0;

    for (int i = 0; i < SUMMARY_WAIT; i++)
        us += r->phase_us[i];
    return us;
}

/* Per step, in ms. */
static double step_ms(const summary_rank *r, double us)
{
    return r->steps > 0 ? us * 1e-3 / (double)r->steps : 0;
}

static void append_rank(const summary_rank *r, text_buf *out)
{
    text_append(out, "%6d %6" PRId64 " %9.2f", r->rank, r->steps, step_ms(r, own_us(r)));
    for (int i = 0; i < SUMMARY_PHASES; i++)
        text_append(out, " %9.2f", step_ms(r, r->phase_us[i]));
    if (r->n_late > 0)
        text_append(out, " %8.0f %7" PRId64, r->late_us / (double)r->n_late, r->n_awaited);
    else
        text_append(out, "        -       -");
    text_append(out, "\n");
}

static void append_straggler(const summary_rank *r, double mean_ms, text_buf *out)
{
    int phase = 0;

    for (int i = 1; i < SUMMARY_WAIT; i++)
        phase = r->phase_us[i] > r->phase_us[phase] ? i : phase;
    static const char *const names[] = {"data", "forward", "backward", "optimizer"};
    text_append(out,
                "straggler: %s needs %.2f ms of its own for a step, %.2f times the mean; most "
                "of it is %s\n",
                r->name[0] != '\0' ? r->name : "a rank", step_ms(r, own_us(r)),
                step_ms(r, own_us(r)) / mean_ms, names[phase]);
}

static void append_imbalance(const trace_summary *s, text_buf *out)
{
    const summary_rank *slowest = NULL;
    double sum_ms = 0;
    double mean_ms;
    int n = 0;
    int n_stragglers = 0;

    for (int i = 0; i < s->n_ranks; i++) {
        const summary_rank *r = &s->ranks[i];
        const double ms = step_ms(r, own_us(r));

        if (!(ms > 0))
            continue;
        sum_ms += ms;
        n++;
        if (slowest == NULL || ms > step_ms(slowest, own_us(slowest)))
            slowest = r;
    }
    if (n < 2)
        return;
    mean_ms = sum_ms / n;
    text_append(out, "imbalance: the slowest rank, %d, has %.2f times the mean own time\n",
                slowest->rank, step_ms(slowest, own_us(slowest)) / mean_ms);
    for (int i = 0; i < s->n_ranks; i++) {
        if (step_ms(&s->ranks[i], own_us(&s->ranks[i])) < STRAGGLER * mean_ms)
            continue;
        append_straggler(&s->ranks[i], mean_ms, out);
        n_stragglers++;
    }
    if (n_stragglers == 0)
        text_append(out, "no stragglers: no rank has %.1f times the mean\n", STRAGGLER);
}

static void append_ranks(const trace_summary *s, text_buf *out)
{
    text_append(out, "\nms of a step; own: without waiting for other ranks\n"
                     "  RANK  STEPS       OWN      DATA   FORWARD  BACKWARD OPTIMIZER   WAITING"
                     "  LATE us AWAITED\n");
    for (int i = 0; i < s->n_ranks; i++)
        append_rank(&s->ranks[i], out);
    append_imbalance(s, out);
}

// --- all ---

/* Of the ranks whose profile has them. */
static void append_ceilings(const trace_summary *s, text_buf *out)
{
    double gflops = 0;
    double gb = 0;
    int n = 0;

    for (int i = 0; i < s->n_ranks; i++) {
        gflops += s->ranks[i].ceiling_gflops;
        gb += s->ranks[i].ceiling_gb;
        n += s->ranks[i].ceiling_gflops > 0;
    }
    if (n > 0)
        text_append(out, "measured ceilings of a rank, mean: %.1f GFLOP/s, %.1f GB/s\n", gflops / n,
                    gb / n);
}

void trace_summary_text(trace_summary *s, int most, text_buf *out)
{
    text_append(out, "%d rank%s", s->n_ranks, text_plural(s->n_ranks));
    if (s->first_step > 0)
        text_append(out, ", steps %" PRId64 " to %" PRId64, s->first_step, s->last_step);
    text_append(out, "%s%s\n", s->device[0] != '\0' ? ", " : "", s->device);
    append_ceilings(s, out);
    if (s->n_operators > 0)
        append_operators(s, most, out);
    if (s->n_kinds > 0)
        append_kinds(s, out);
    append_ranks(s, out);
    if (s->n_missing > 0)
        text_append(out, "%" PRId64 " operators did not fit into their profile: use fewer steps\n",
                    s->n_missing);
    if (s->n_skipped > 0)
        text_append(out, "%" PRId64 " events were left out\n", s->n_skipped);
}
