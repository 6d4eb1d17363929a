/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ljspeech.c - reads LJSpeech's metadata.csv and the headers of its wav files, for programs that
 * train on speech. Lines and ids are bounded, and an id cannot name a file outside DIR/wavs.
 */
#include "models/speech/ljspeech.h"

#include "models/speech/text.h"
#include "models/speech/wav.h"
#include "models/utf8.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FIRST_CAPACITY = 256 };

typedef struct entry {
    char *line; /* the three fields, each terminated; id is the first */
    const char *text;
    const char *normalised;
    char *wav;
    size_t samples;
    size_t number; /* of the line, from 1 */
} entry;

struct ljspeech {
    char *metadata; /* path */
    entry *entries;
    size_t n;
    size_t capacity;
};

/* --- paths and memory --- */

static char *join(const char *a, const char *b, const char *c)
{
    const size_t n = strlen(a) + strlen(b) + strlen(c) + 1;
    char *path = malloc(n);

    if (path != NULL)
        (void)snprintf(path, n, "%s%s%s", a, b, c);
    return path;
}

/* A zeroed entry at the end; NULL: no memory. */
static entry *add_entry(ljspeech *set)
{
    if (set->n == set->capacity) {
        const size_t capacity = set->capacity == 0 ? FIRST_CAPACITY : 2 * set->capacity;
        entry *entries = realloc(set->entries, capacity * sizeof(*entries));

        if (entries == NULL)
            return NULL;
        set->entries = entries;
        set->capacity = capacity;
    }
    set->entries[set->n] = (entry){0};
    return &set->entries[set->n++];
}

void ljspeech_close(ljspeech *set)
{
    if (set == NULL)
        return;
    for (size_t i = 0; i < set->n; i++) {
        free(set->entries[i].line);
        free(set->entries[i].wav);
    }
    free(set->entries);
    free(set->metadata);
    free(set);
}

/* --- lines --- */

static ls_status fail_line(const ljspeech *set, size_t number, const char *what,
                           speech_error *error)
{
    return speech_fail(error, LS_EFORMAT, "%s:%zu: %s", set->metadata, number, what);
}

typedef struct reader {
    FILE *file;
    char line[LJSPEECH_MAX_LINE + 1];
    size_t number;
} reader;

/* Reads a line without its end. *is_end: there is none. */
static ls_status read_line(const ljspeech *set, reader *r, bool *is_end, speech_error *error)
{
    size_t n = 0;
    int c = getc(r->file);

    *is_end = c == EOF;
    r->number++;
    for (; c != EOF && c != '\n'; c = getc(r->file)) {
        if (c == 0)
            return fail_line(set, r->number, "a zero byte; metadata.csv is UTF-8 text", error);
        if (n == LJSPEECH_MAX_LINE)
            return speech_fail(error, LS_EFORMAT, "%s:%zu: the line has more than %d bytes",
                               set->metadata, r->number, LJSPEECH_MAX_LINE);
        r->line[n++] = (char)c;
    }
    if (ferror(r->file))
        return speech_fail(error, LS_EIO, "%s: cannot read: %s", set->metadata, strerror(errno));
    if (n > 0 && r->line[n - 1] == '\r')
        n--;
    r->line[n] = 0;
    if (r->number == 1)
        memmove(r->line, r->line + utf8_bom_bytes(r->line, n), n + 1);
    return LS_OK;
}

/* NULL, or what is wrong with an id. */
static const char *check_id(const char *id)
{
    if (*id == 0)
        return "the id is empty";
    if (strlen(id) > LJSPEECH_MAX_ID)
        return "the id is too long";
    if (*id == '.')
        return "the id begins with a dot";
    for (; *id != 0; id++) {
        if (*id == '/' || *id == '\\')
            return "the id has a path separator; it names a file in wavs/";
        if ((unsigned char)*id < ' ' || *id == 0x7F)
            return "the id has a control character";
    }
    return NULL;
}

/* NULL, or what is wrong with a text. */
static const char *check_text(const char *text)
{
    if (text[strspn(text, " \t")] == 0)
        return "the text is empty";
    return strlen(text) > TEXT_MAX_BYTES ? "the text is too long" : NULL;
}

/* Divides e->line into its fields; NULL, or what is wrong. */
static const char *split(entry *e)
{
    char *first = strchr(e->line, '|');
    char *second = first != NULL ? strchr(first + 1, '|') : NULL;
    const char *wrong;

    if (second == NULL || strchr(second + 1, '|') != NULL)
        return "expected three fields, ID|TEXT|NORMALISED TEXT";
    if (!text_is_utf8(e->line))
        return "the line is not UTF-8; convert it with iconv -t UTF-8";
    *first = 0;
    *second = 0;
    e->text = first + 1;
    e->normalised = second + 1;
    wrong = check_id(e->line);
    wrong = wrong != NULL ? wrong : check_text(e->text);
    return wrong != NULL ? wrong : check_text(e->normalised);
}

static ls_status parse_line(ljspeech *set, const char *dir, const reader *r, speech_error *error)
{
    entry *e = set->n < LJSPEECH_MAX_SAMPLES ? add_entry(set) : NULL;
    const char *wrong;

    if (e == NULL || (e->line = join(r->line, "", "")) == NULL)
        return speech_fail(error, LS_ENOMEM, "%s:%zu: no memory for more lines", set->metadata,
                           r->number);
    e->number = r->number;
    wrong = split(e);
    if (wrong != NULL)
        return fail_line(set, r->number, wrong, error);
    e->wav = join(dir, "/wavs/", e->line);
    if (e->wav != NULL) {
        char *with_ending = join(e->wav, ".wav", "");

        free(e->wav);
        e->wav = with_ending;
    }
    return e->wav != NULL ? LS_OK
                          : speech_fail(error, LS_ENOMEM, "%s:%zu: no memory for a path",
                                        set->metadata, r->number);
}

static ls_status read_lines(ljspeech *set, const char *dir, FILE *file, speech_error *error)
{
    reader *r = calloc(1, sizeof(*r));
    ls_status st = LS_OK;
    bool is_end = false;

    if (r == NULL)
        return speech_fail(error, LS_ENOMEM, "%s: no memory to read it", set->metadata);
    r->file = file;
    for (;;) {
        st = read_line(set, r, &is_end, error);
        if (st != LS_OK || is_end)
            break;
        st = parse_line(set, dir, r, error);
        if (st != LS_OK)
            break;
    }
    free(r);
    if (st == LS_OK && set->n == 0)
        return speech_fail(error, LS_EFORMAT, "%s: is empty", set->metadata);
    return st;
}

/* --- the whole --- */

static int compare_ids(const void *a, const void *b)
{
    const entry *const *x = a;
    const entry *const *y = b;
    const int order = strcmp((*x)->line, (*y)->line);

    return order != 0 ? order : ((*x)->number > (*y)->number) - ((*x)->number < (*y)->number);
}

static ls_status refuse_duplicates(const ljspeech *set, speech_error *error)
{
    const entry **sorted = malloc(set->n * sizeof(*sorted));
    ls_status st = LS_OK;

    if (sorted == NULL)
        return speech_fail(error, LS_ENOMEM, "%s: no memory to compare ids", set->metadata);
    for (size_t i = 0; i < set->n; i++)
        sorted[i] = &set->entries[i];
    qsort(sorted, set->n, sizeof(*sorted), compare_ids);
    for (size_t i = 1; i < set->n && st == LS_OK; i++)
        if (strcmp(sorted[i - 1]->line, sorted[i]->line) == 0)
            st = speech_fail(error, LS_EFORMAT, "%s:%zu: the id %s is already in line %zu",
                             set->metadata, sorted[i]->number, sorted[i]->line,
                             sorted[i - 1]->number);
    free(sorted);
    return st;
}

static ls_status read_headers(ljspeech *set, speech_error *error)
{
    for (size_t i = 0; i < set->n; i++) {
        entry *e = &set->entries[i];
        speech_error cause;
        const ls_status st = wav_count(e->wav, &e->samples, &cause);

        if (st != LS_OK)
            return speech_fail(error, st, "%s:%zu: %s", set->metadata, e->number, cause.text);
    }
    return LS_OK;
}

static ls_status read_set(ljspeech *set, const char *dir, speech_error *error)
{
    struct stat info;
    FILE *file = NULL;
    ls_status st;

    if (stat(set->metadata, &info) == 0) {
        if (!S_ISREG(info.st_mode)) // opening a pipe would wait for its writer
            return speech_fail(error, LS_EFORMAT, "%s: not a regular file", set->metadata);
        file = fopen(set->metadata, "rb");
    }
    if (file == NULL)
        return speech_fail(error, errno == ENOENT ? LS_ENOTFOUND : LS_EIO,
                           "%s: cannot open: %s; a folder in LJSpeech's layout has metadata.csv "
                           "and wavs/",
                           set->metadata, strerror(errno));
    st = read_lines(set, dir, file, error);
    (void)fclose(file);
    if (st == LS_OK)
        st = refuse_duplicates(set, error);
    if (st == LS_OK)
        st = read_headers(set, error);
    return st;
}

ls_status ljspeech_open(const char *dir, ljspeech **out, speech_error *error)
{
    ljspeech *set;
    ls_status st;

    if (dir == NULL || out == NULL)
        return speech_fail(error, LS_EINVAL, "ljspeech_open() needs a folder");
    *out = NULL;
    set = calloc(1, sizeof(*set));
    if (set == NULL || (set->metadata = join(dir, "/metadata.csv", "")) == NULL) {
        ljspeech_close(set);
        return speech_fail(error, LS_ENOMEM, "%s: no memory to open it", dir);
    }
    st = read_set(set, dir, error);
    if (st != LS_OK) {
        ljspeech_close(set);
        return st;
    }
    *out = set;
    return LS_OK;
}

size_t ljspeech_count(const ljspeech *set)
{
    return set->n;
}

const char *ljspeech_id(const ljspeech *set, size_t index)
{
    return set->entries[index].line;
}

const char *ljspeech_raw_text(const ljspeech *set, size_t index)
{
    return set->entries[index].text;
}

const char *ljspeech_text(const ljspeech *set, size_t index)
{
    return set->entries[index].normalised;
}

const char *ljspeech_wav(const ljspeech *set, size_t index)
{
    return set->entries[index].wav;
}

size_t ljspeech_samples(const ljspeech *set, size_t index)
{
    return set->entries[index].samples;
}
