/* SPDX-License-Identifier: Apache-2.0 */
/*
 * top_table.c - a job's status as lines of text, and the rates between two states. Pure. Called by
 * cmd_top.c and top_screen.c.
 */
#include "cli/top/top.h"

#include "host/process_id.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const top_key_names[TOP_KEYS] = {"rank",          "step-time", "data",
                                             "communication", "memory",    "late"};

ls_status top_key_parse(const char *text, top_key *out)
{
    for (int i = 0; i < TOP_KEYS; i++)
        if (text_equal(text, top_key_names[i])) {
            *out = (top_key)i;
            return LS_OK;
        }
    return ls_fail(LS_EINVAL,
                   "--sort %s: must be rank, step-time, data, communication, memory or late", text);
}

/* --- rates --- */

typedef struct rates {
    double share[STATUS_PHASES]; /* of the time of training */
    double step_s;
    double samples_per_s;
} rates;

/* The same process at the earlier time; NULL: unknown. Mostly it has the same place in both states,
 * as agents sort them. */
static const status_rank *find_before(const top_times *t, const status_rank *now)
{
    const int place = (int)(now - t->now->ranks);

    for (int i = 0; t->before != NULL && i < t->before->n_ranks; i++) {
        const status_rank *r = &t->before->ranks[(place + i) % t->before->n_ranks];

        if (r->rank == now->rank)
            return r->pid == now->pid ? r : NULL;
    }
    return NULL;
}

/* The same, NULL also if it trains anew since. */
static const status_rank *find_progress_before(const top_times *t, const status_rank *now)
{
    const status_rank *r = find_before(t, now);

    return r != NULL && r->has_progress && r->step <= now->step ? r : NULL;
}

static double sum(const double *seconds)
{
    double s = 0;

    for (int i = 0; i < STATUS_PHASES; i++)
        s += seconds[i];
    return s;
}

/* Since `before`; since the start if no step has ended since then. */
static rates rates_of(const top_times *t, const status_rank *now)
{
    const status_rank *before = find_progress_before(t, now);
    const double wall_s = before != NULL ? t->now->age_s - t->before->age_s : 0;
    double seconds[STATUS_PHASES];
    double steps = 0;
    rates r = {.step_s = now->step_s};

    memcpy(seconds, now->seconds, sizeof(seconds));
    if (before != NULL && before->step < now->step) {
        steps = (double)(now->step - before->step);
        for (int i = 0; i < STATUS_PHASES; i++)
            seconds[i] -= before->seconds[i];
    }
    for (int i = 0; i < STATUS_PHASES; i++)
        r.share[i] = sum(seconds) > 0 ? seconds[i] / sum(seconds) : 0;
    if (steps > 0)
        r.step_s = sum(seconds) / steps;
    if (before != NULL && wall_s > 0)
        r.samples_per_s = (now->samples - before->samples) / wall_s;
    else if (sum(seconds) > 0)
        r.samples_per_s = now->samples / sum(seconds);
    return r;
}

static double key_value(const top_times *t, const status_rank *r, top_key key)
{
    const rates rate = rates_of(t, r);

    switch (key) {
    case TOP_BY_STEP_TIME:
        return rate.step_s;
    case TOP_BY_DATA:
        return rate.share[0];
    case TOP_BY_COMMUNICATION:
        return rate.share[3];
    case TOP_BY_MEMORY:
        return r->memory_bytes;
    case TOP_BY_LATE:
        return r->is_late;
    default:
        return -(double)r->rank;
    }
}

/* The greatest value first; equal ones in the order of the status. */
static int compare_entries(const void *a, const void *b)
{
    const top_entry *x = a;
    const top_entry *y = b;

    if (x->value != y->value)
        return x->value < y->value ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

void top_sort(const top_times *t, top_key key, top_entry *order)
{
    const int n = t->now->n_ranks;

    for (int i = 0; i < n; i++)
        order[i] = (top_entry){.value = key_value(t, &t->now->ranks[i], key), .index = i};
    if (n > 1)
        qsort(order, (size_t)n, sizeof(*order), compare_entries);
}

/* --- lines --- */

void top_column(const char *text, int width, text_buf *out)
{
    for (int i = 0; i < width; i++) {
        const size_t n = text[0] != '\0' ? text_char_bytes(text, strlen(text)) : 0;

        text_append_bytes(out, n > 0 ? text : " ", n > 0 ? n : 1);
        text += n;
    }
}

static const status_rank *slowest_progress(const job_status *v)
{
    const status_rank *found = NULL;

    for (int i = 0; i < v->n_ranks; i++)
        if (v->ranks[i].has_progress && (found == NULL || v->ranks[i].step < found->step))
            found = &v->ranks[i];
    return found;
}

void top_head(const job_status *v, text_buf *out)
{
    const status_rank *r = slowest_progress(v);
    char age[32];
    int n_late = 0;

    for (int i = 0; i < v->n_ranks; i++)
        n_late += v->ranks[i].is_late;
    text_append(out, "job %s  pid %d on %s  %s for %s  %d rank%s on %d node%s",
                v->name[0] != '\0' ? v->name : v->agent, v->pid, v->host, v->state,
                process_age_text(age, sizeof(age), (int64_t)v->age_s), v->world_size,
                text_plural(v->world_size), v->n_nodes, text_plural(v->n_nodes));
    if (v->n_restarts > 0)
        text_append(out, "  %d restart%s", v->n_restarts, text_plural(v->n_restarts));
    if (n_late > 0)
        text_append(out, "  %d late", n_late);
    text_append(out, "\n");
    if (!v->is_head)
        text_append(out, "(ranks of this node only) ");
    if (r != NULL) {
        text_append(out, "epoch %lld/%lld  step %lld", (long long)r->epoch, (long long)r->epochs,
                    (long long)r->step);
        if (r->steps > 0)
            text_append(out, "/%lld", (long long)r->steps);
        if (isfinite(r->loss))
            text_append(out, "  loss %.4f", r->loss);
        text_append(out, "  ");
    }
    text_append(out, "%s\n", v->command);
}

static bool has_device(const job_status *v)
{
    for (int i = 0; i < v->n_ranks; i++)
        if (v->ranks[i].device_bytes > 0)
            return true;
    return false;
}

/* With --balance. */
static bool has_shards(const job_status *v)
{
    for (int i = 0; i < v->n_ranks; i++)
        if (v->ranks[i].shards > 0)
            return true;
    return false;
}

/* With --balance rows. */
static bool has_rows(const job_status *v)
{
    for (int i = 0; i < v->n_ranks; i++)
        if (v->ranks[i].rows > 0)
            return true;
    return false;
}

void top_columns(const job_status *v, text_buf *out)
{
    text_append(
        out, "  RANK HOST     STATE       STEP ms/step DATA  FWD  BWD COMM SAMPLES/S    MEMORY%s%s",
        has_device(v) ? "       GPU" : "",
        has_shards(v) ? " SHARDS ms/shard"
        : has_rows(v) ? "   ROWS   ms/row"
                      : "");
}

static void append_rates(const top_times *t, const status_rank *r, text_buf *out)
{
    const rates rate = rates_of(t, r);

    text_append(out, " %7lld %7.1f", (long long)r->step, rate.step_s * 1000);
    for (int i = 0; i < 4; i++) // the rest is the optimizer's
        text_append(out, " %3.0f%%", rate.share[i] * 100);
    text_append(out, " %9.1f", rate.samples_per_s);
}

void top_row(const top_times *t, int i, text_buf *out)
{
    const status_rank *r = &t->now->ranks[i];
    char bytes[32];

    text_append(out, "%c %4d ", r->is_late ? '!' : ' ', r->rank);
    top_column(r->host, 8, out);
    text_append(out, " ");
    top_column(r->state, 8, out);
    if (r->has_progress)
        append_rates(t, r, out);
    else
        text_append(out, " %7s %7s %4s %4s %4s %4s %9s", "-", "-", "-", "-", "-", "-", "-");
    text_append(out, " %9s", text_bytes(bytes, sizeof(bytes), (uint64_t)r->memory_bytes));
    if (has_device(t->now))
        text_append(out, " %9s", text_bytes(bytes, sizeof(bytes), (uint64_t)r->device_bytes));
    if (has_shards(t->now))
        text_append(out, " %6lld %8.1f", (long long)r->shards, r->shard_s * 1000);
    else if (has_rows(t->now))
        text_append(out, " %6lld %8.4f", (long long)r->rows, r->row_s * 1000);
}

/* --- pairs --- */

const char top_no_pairs[] = "no bytes have been received by the native backend";

static double bytes_before(const status_rank *before, int source)
{
    for (int i = 0; before != NULL && i < before->n_sources; i++)
        if (before->sources[i].rank == source)
            return before->sources[i].bytes;
    return -1;
}

static int compare_pairs(const void *a, const void *b)
{
    const top_pair *x = a;
    const top_pair *y = b;

    if (x->bytes_per_s != y->bytes_per_s)
        return x->bytes_per_s < y->bytes_per_s ? 1 : -1;
    return x->to != y->to ? (x->to > y->to) - (x->to < y->to)
                          : (x->from > y->from) - (x->from < y->from);
}

int top_pairs(const top_times *t, top_pair *pairs)
{
    int n = 0;

    for (int i = 0; i < t->now->n_ranks; i++) {
        const status_rank *r = &t->now->ranks[i];
        const status_rank *before = find_before(t, r);

        for (int k = 0; k < r->n_sources; k++) {
            const double bytes = r->sources[k].bytes;
            const double earlier = bytes_before(before, r->sources[k].rank);
            const bool is_known = earlier >= 0 && earlier <= bytes;
            const double wall_s = t->now->age_s - (is_known ? t->before->age_s : 0);

            pairs[n++] = (top_pair){
                .from = r->sources[k].rank,
                .to = r->rank,
                .bytes = bytes,
                .bytes_per_s = wall_s > 0 ? (bytes - (is_known ? earlier : 0)) / wall_s : 0};
        }
    }
    if (n > 1)
        qsort(pairs, (size_t)n, sizeof(*pairs), compare_pairs);
    return n;
}

void top_pair_columns(text_buf *out)
{
    text_append(out, "  FROM     TO        RATE       TOTAL");
}

void top_pair_row(const top_pair *p, text_buf *out)
{
    char rate[32];
    char total[32];

    text_append(out, "%6d %6d %9s/s %11s", p->from, p->to,
                text_bytes(rate, sizeof(rate), (uint64_t)p->bytes_per_s),
                text_bytes(total, sizeof(total), (uint64_t)p->bytes));
}

void top_warning(const job_status *v, text_buf *out)
{
    if (v->warning[0] != '\0') {
        text_append(out, "last warning: %s", v->warning);
        return;
    }
    for (int i = 0; i < v->n_ranks; i++)
        if (v->ranks[i].warning[0] != '\0') {
            text_append(out, "last warning of rank %d: %s", v->ranks[i].rank, v->ranks[i].warning);
            return;
        }
}

void top_operation(const status_operation *o, text_buf *out)
{
    char bytes[32];

    (void)text_bytes(bytes, sizeof(bytes), (uint64_t)o->bytes);
    if (o->took_s >= 0)
        text_append(out, "%10.3f ms %10s %s%s", o->took_s * 1000, bytes, o->text,
                    o->has_failed ? " FAILED" : "");
    else
        text_append(out, "%8.1f s.. %10s %s, not ended", o->age_s, bytes, o->text);
}
