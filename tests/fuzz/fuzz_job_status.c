/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_status.c - arbitrary bytes as the text of a job's status. What is read is bounded, is
 * written and read again without a change, and is shown by lockstep top and --metrics-port. The
 * byte 0x1e separates the text from that of an earlier time.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "cli/top/top.h"
#include "launch/status/metrics_text.h"

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

static bool read_status(const uint8_t *text, size_t size, job_status *out)
{
    if (job_status_read((const char *)text, size, out) != LS_OK) {
        must(out->ranks == NULL && out->n_ranks == 0 && ls_last_error()[0] != 0);
        return false;
    }
    must(out->n_ranks <= STATUS_RANKS_MAX && out->n_operations <= STATUS_OPERATIONS);
    for (int i = 0; i < out->n_ranks; i++)
        must(out->ranks[i].rank >= 0 && out->ranks[i].n_groups <= STATUS_GROUPS);
    return true;
}

static void write_status(const job_status *v, text_buf *out)
{
    json_writer w;

    json_begin(&w, out);
    job_status_write(v, &w);
    must(text_status(out) == LS_OK);
}

static void check_written(const job_status *v)
{
    static job_status again;
    text_buf text = {0};
    text_buf text2 = {0};

    write_status(v, &text);
    must(job_status_read(text_str(&text), text.length, &again) == LS_OK);
    write_status(&again, &text2);
    must(text_equal(text_str(&text), text_str(&text2)));
    job_status_free(&again);
    text_free(&text);
    text_free(&text2);
}

static void check_order(const top_times *t, top_key key, top_entry *order)
{
    const int n = t->now->n_ranks;
    int64_t sum = 0;

    top_sort(t, key, order);
    for (int i = 0; i < n; i++) {
        must(i == 0 || order[i - 1].value >= order[i].value);
        must(order[i].index >= 0 && order[i].index < n);
        sum += order[i].index;
    }
    must(sum == (int64_t)n * (n - 1) / 2);
}

static void show(const top_times *t)
{
    const job_status *v = t->now;
    top_entry *order = ls_calloc((size_t)v->n_ranks + 1, sizeof(*order));
    text_buf text = {0};

    must(order != NULL);
    for (int key = 0; key < TOP_KEYS; key++)
        check_order(t, (top_key)key, order);
    top_head(v, &text);
    top_columns(v, &text);
    for (int i = 0; i < v->n_ranks; i++)
        top_row(t, i, &text);
    top_warning(v, &text);
    for (int i = 0; i < v->n_operations; i++)
        top_operation(&v->operations[i], &text);
    metrics_text(v, &text);
    must(text_status(&text) == LS_OK);
    fuzz_must_be_printable(text_str(&text), "\n");
    text_free(&text);
    ls_free(order);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static job_status now;
    static job_status before;
    const uint8_t *mark = size > 0 ? memchr(data, 0x1e, size) : NULL;
    const size_t first = mark != NULL ? (size_t)(mark - data) : size;

    if (!read_status(data, first, &now))
        return 0;
    check_written(&now);
    job_status_mark_late(&now);
    show(&(top_times){.now = &now});
    if (mark != NULL && read_status(mark + 1, size - first - 1, &before)) {
        show(&(top_times){.now = &now, .before = &before});
        job_status_free(&before);
    }
    job_status_free(&now);
    return 0;
}
