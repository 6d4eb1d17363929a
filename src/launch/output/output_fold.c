/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output_fold.c - the queue of lines that wait for the same line of other ranks. The lines of a
 * rank are never reordered. Called by output.c, and by the agent's timer for lines that are due.
 */
#include "launch/output/output_fold.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/rng.h"
#include "base/text.h"

#include <string.h>

enum { RANGES_SHOWN = 8, WORD_BITS = 64 };

typedef struct fold_line {
    list_node place;            /* in output_fold.lines */
    const output_stream *first; /* the stream that added it */
    int64_t due_ns;
    uint64_t depth;
    uint64_t hash;
    char *text;
    size_t bytes;
    int n_ranks;
    uint64_t *ranks; /* a bit each, of fold->n_ranks */
} fold_line;

/*
 * The depth of a line is one more than the depth of the line before it of the same rank. The queue
 * is in the order of depth, so equal lines of ranks stay together while each rank also prints lines
 * of its own in between.
 */
struct output_fold {
    const ls_clock *clock;
    int first_rank;
    int n_ranks;
    int n_shown;
    list_node lines; /* in the order of writing */
    size_t n_lines;
    size_t bytes;
    fold_line **newest_of; /* each rank's newest line in the queue, NULL: none */
};

ls_status output_fold_create(int first_rank, int n_ranks, int n_shown, const ls_clock *clock,
                             output_fold **out)
{
    output_fold *f = ls_calloc(1, sizeof(*f));

    if (f != NULL)
        f->newest_of = ls_calloc((size_t)n_ranks, sizeof(fold_line *));
    if (f == NULL || f->newest_of == NULL) {
        ls_free(f);
        return ls_fail(LS_ENOMEM, "no memory for folding the lines of %d ranks", n_ranks);
    }
    f->clock = clock;
    f->first_rank = first_rank;
    f->n_ranks = n_ranks;
    f->n_shown = n_shown;
    list_init(&f->lines);
    *out = f;
    return LS_OK;
}

static void free_line(fold_line *l)
{
    if (l == NULL)
        return;
    ls_free(l->text);
    ls_free(l->ranks);
    ls_free(l);
}

void output_fold_destroy(output_fold *f)
{
    if (f == NULL)
        return;
    while (!list_empty(&f->lines)) {
        fold_line *l = list_entry(f->lines.next, fold_line, place);
        list_remove(&l->place);
        free_line(l);
    }
    ls_free(f->newest_of);
    ls_free(f);
}

static int64_t now_ns(const output_fold *f)
{
    return f->clock->now_ns(f->clock->self);
}

static fold_line *line_at(list_node *place)
{
    return list_entry(place, fold_line, place);
}

/* --- writing --- */

static bool has_rank(const fold_line *l, int i)
{
    return (l->ranks[i / WORD_BITS] >> (i % WORD_BITS) & 1) != 0;
}

/* "ranks 0-3,7| " */
static void make_prefix(const output_fold *f, const fold_line *l, char *buf, size_t n)
{
    const char *between = "";
    text_buf list = {0};
    int n_ranges = 0;

    for (int i = 0; i < f->n_ranks; i++) {
        const int first = i;
        if (!has_rank(l, i))
            continue;
        while (i + 1 < f->n_ranks && has_rank(l, i + 1))
            i++;
        if (++n_ranges > RANGES_SHOWN) {
            text_append(&list, ",...");
            break;
        }
        text_append(&list, "%s%d", between, f->first_rank + first);
        if (i > first)
            text_append(&list, "-%d", f->first_rank + i);
        between = ",";
    }
    text_format(buf, n, l->first->sink->terminal ? "\x1b[1mranks %s|\x1b[0m " : "ranks %s| ",
                text_str(&list));
    text_free(&list);
}

/* An unfinished line on the terminal is the beginning of its rank's line in the queue. */
static const output_stream *shown_begin(const output_fold *f, const fold_line *l)
{
    const output_stream *shown = l->first->sink->shown_of;

    return shown != NULL && has_rank(l, shown->rank - f->first_rank) ? shown : NULL;
}

static void write_first(output_fold *f)
{
    fold_line *l = line_at(f->lines.next);
    char prefix[256];

    if (l->n_ranks == 1)
        output_prefix(l->first, prefix, sizeof(prefix));
    else
        make_prefix(f, l, prefix, sizeof(prefix));
    output_write_line(l->first->sink, shown_begin(f, l), prefix, l->text, l->bytes);
    for (int i = 0; i < f->n_ranks; i++)
        if (f->newest_of[i] == l)
            f->newest_of[i] = NULL;
    list_remove(&l->place);
    f->bytes -= l->bytes;
    f->n_lines--;
    free_line(l);
}

static int64_t left_ns(const output_fold *f)
{
    int64_t due_ns = INT64_MAX;

    for (list_node *at = f->lines.next; at != &f->lines; at = at->next)
        if (line_at(at)->due_ns < due_ns)
            due_ns = line_at(at)->due_ns;
    return due_ns - now_ns(f);
}

/* A line that is due takes all lines before it along. */
void output_fold_flush(output_fold *f)
{
    while (!list_empty(&f->lines) &&
           (line_at(f->lines.next)->n_ranks == f->n_shown || left_ns(f) <= 0))
        write_first(f);
}

void output_fold_flush_rank(output_fold *f, const output_stream *s)
{
    while (output_fold_has(f, s))
        write_first(f);
}

void output_fold_flush_all(output_fold *f)
{
    while (!list_empty(&f->lines))
        write_first(f);
}

int output_fold_due(const output_fold *f)
{
    int64_t left;

    if (list_empty(&f->lines))
        return -1;
    left = left_ns(f);
    return left <= 0 ? 0 : (int)((left + 999999) / 1000000);
}

bool output_fold_has(const output_fold *f, const output_stream *s)
{
    return f->newest_of[s->rank - f->first_rank] != NULL;
}

/* --- taking --- */

static void add_rank(output_fold *f, fold_line *l, int rank)
{
    const int i = rank - f->first_rank;

    l->ranks[i / WORD_BITS] |= UINT64_C(1) << (i % WORD_BITS);
    l->n_ranks++;
    f->newest_of[i] = l;
}

/* The same line of other ranks, behind the newest line of this rank; NULL: there is none. */
static fold_line *find_same(const output_fold *f, const output_stream *s, uint64_t hash,
                            const char *line, size_t bytes)
{
    const fold_line *newest = f->newest_of[s->rank - f->first_rank];

    for (list_node *at = newest != NULL ? newest->place.next : f->lines.next; at != &f->lines;
         at = at->next) {
        fold_line *l = line_at(at);
        if (l->hash == hash && l->bytes == bytes && l->first->sink == s->sink &&
            memcmp(l->text, line, bytes) == 0)
            return l;
    }
    return NULL;
}

static uint64_t next_depth(const output_fold *f, const output_stream *s)
{
    const fold_line *newest = f->newest_of[s->rank - f->first_rank];

    if (newest != NULL)
        return newest->depth + 1;
    return list_empty(&f->lines) ? 0 : line_at(f->lines.next)->depth;
}

/* Inserts a line behind all lines that are not deeper; NULL: no memory. */
static fold_line *insert(output_fold *f, const output_stream *s, uint64_t hash, const char *line,
                         size_t bytes, int ms)
{
    const size_t n_words = ((size_t)f->n_ranks + WORD_BITS - 1) / WORD_BITS;
    fold_line *l = ls_calloc(1, sizeof(*l));
    list_node *behind = f->lines.prev;

    if (l != NULL) {
        l->text = ls_calloc(bytes + 1, 1);
        l->ranks = ls_calloc(n_words, sizeof(*l->ranks));
    }
    if (l == NULL || l->text == NULL || l->ranks == NULL) {
        free_line(l);
        return NULL;
    }
    memcpy(l->text, line, bytes);
    l->first = s;
    l->due_ns = now_ns(f) + (int64_t)ms * 1000000;
    l->depth = next_depth(f, s);
    l->hash = hash;
    l->bytes = bytes;
    while (behind != &f->lines && line_at(behind)->depth > l->depth)
        behind = behind->prev;
    list_append(behind->next, &l->place);
    f->bytes += bytes;
    f->n_lines++;
    return l;
}

void output_fold_add(output_fold *f, const output_stream *s, const char *line, size_t bytes,
                     bool is_failure)
{
    const uint64_t hash = ls_hash_bytes(line, bytes, 0);
    fold_line *l = find_same(f, s, hash, line, bytes);
    char prefix[64];

    if (l == NULL)
        l = insert(f, s, hash, line, bytes, is_failure ? OUTPUT_FAILURE_MS : OUTPUT_FOLD_MS);
    if (l != NULL) {
        add_rank(f, l, s->rank);
    } else {
        output_fold_flush_all(f);
        output_write_line(s->sink, s, output_prefix(s, prefix, sizeof(prefix)), line, bytes);
    }
    output_fold_flush(f);
    while (f->n_lines == OUTPUT_FOLD_LINES || f->bytes > OUTPUT_FOLD_BYTES)
        write_first(f);
}
