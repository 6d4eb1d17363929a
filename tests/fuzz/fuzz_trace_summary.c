/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_trace_summary.c - arbitrary bytes as traces: what is read is bounded, and its summary is
 * printable. The byte 0x1e separates two files.
 */
#include "fuzz/fuzz.h"

#include "cli/trace/trace_summary.h"

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

static void add(trace_summary *s, const uint8_t *data, size_t size)
{
    if (trace_summary_add(s, (const char *)data, size, "trace") != LS_OK)
        must(ls_last_error()[0] != 0);
    must(s->n_ranks <= SUMMARY_RANKS && s->n_operators <= SUMMARY_OPERATORS &&
         s->n_kinds <= SUMMARY_KINDS);
    for (int i = 1; i < s->n_ranks; i++)
        must(s->ranks[i - 1].rank < s->ranks[i].rank);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static trace_summary s;
    const uint8_t *mark = size > 0 ? memchr(data, 0x1e, size) : NULL;
    const size_t first = mark != NULL ? (size_t)(mark - data) : size;
    text_buf text = {0};

    add(&s, data, first);
    if (mark != NULL)
        add(&s, mark + 1, size - first - 1);
    trace_summary_text(&s, 10, &text);
    must(text_status(&text) == LS_OK);
    fuzz_must_be_printable(text_str(&text), "\n");
    text_free(&text);
    trace_summary_free(&s);
    return 0;
}
