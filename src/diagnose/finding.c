/* SPDX-License-Identifier: Apache-2.0 */
/*
 * finding.c - the list of findings and its forms as JSON and as lines. Used by all checks and by
 * the commands that print them.
 */
#include "diagnose/finding.h"

#include "base/alloc.h"

#include <stdio.h>

enum { TEXT_MOST = 1024 };

static const struct {
    const char *id;
    const char *why;
} kinds[] = {
#define FINDING_ROW(name, id, why) {id, why},
    FINDING_KINDS(FINDING_ROW) FINDING_HOSTS_KINDS(FINDING_ROW) FINDING_FILE_KINDS(FINDING_ROW)
#undef FINDING_ROW
};

const char *finding_id(finding_kind kind)
{
    return kinds[kind].id;
}

bool finding_find_kind(const char *id, finding_kind *out)
{
    for (int i = 0; i < FINDING_KIND_COUNT; i++) {
        if (!text_equal(kinds[i].id, id))
            continue;
        *out = (finding_kind)i;
        return true;
    }
    return false;
}

const char *finding_why(finding_kind kind)
{
    return kinds[kind].why;
}

const char *finding_severity_text(finding_severity severity)
{
    static const char *const texts[] = {"ok", "note", "warning", "error"};

    return texts[severity];
}

static char *copy_printable(const char *text)
{
    char clean[TEXT_MOST];

    text_printable(clean, sizeof(clean), text);
    return ls_strdup(clean);
}

static bool grow(findings *list)
{
    finding *items;

    if (list->n < list->capacity)
        return true;
    items = ls_realloc(list->items, (size_t)list->capacity + 32, sizeof(*items));
    if (items == NULL)
        return false;
    list->items = items;
    list->capacity += 32;
    return true;
}

void finding_add(findings *list, finding_kind kind, finding_severity severity, const char *fix,
                 const char *format, ...)
{
    finding made = {.kind = kind, .severity = severity};
    char what[TEXT_MOST];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    made.what = copy_printable(what);
    made.fix = copy_printable(fix != NULL ? fix : "");
    if (made.what == NULL || made.fix == NULL || !grow(list)) {
        ls_free(made.what);
        ls_free(made.fix);
        list->failed = true;
        return;
    }
    list->items[list->n++] = made;
}

ls_status findings_status(const findings *list)
{
    return list->failed ? ls_fail(LS_ENOMEM, "no memory for a list of findings") : LS_OK;
}

finding_severity findings_worst(const findings *list)
{
    finding_severity worst = FINDING_OK;

    for (int i = 0; i < list->n; i++)
        if (list->items[i].severity > worst)
            worst = list->items[i].severity;
    return worst;
}

void findings_free(findings *list)
{
    for (int i = 0; i < list->n; i++) {
        ls_free(list->items[i].what);
        ls_free(list->items[i].fix);
    }
    ls_free(list->items);
    *list = (findings){0};
}

void findings_put_json(const findings *list, const char *host, json_writer *w)
{
    for (int i = 0; i < list->n; i++) {
        const finding *f = &list->items[i];
        json_open(w, NULL, '{');
        json_put_string(w, "host", host);
        json_put_string(w, "id", finding_id(f->kind));
        json_put_string(w, "severity", finding_severity_text(f->severity));
        json_put_string(w, "what", f->what);
        json_put_string(w, "why", finding_why(f->kind));
        json_put_string(w, "fix", f->fix);
        json_close(w, '}');
    }
}

void findings_to_json(const findings *list, const char *host, text_buf *out)
{
    json_writer w;

    json_begin(&w, out);
    json_open(&w, NULL, '[');
    findings_put_json(list, host, &w);
    json_close(&w, ']');
}

void findings_to_lines(const findings *list, finding_severity least, text_buf *out)
{
    for (int i = 0; i < list->n; i++) {
        const finding *f = &list->items[i];
        if (f->severity < least)
            continue;
        text_append(out, "%s %s: %s%s%s\n", finding_severity_text(f->severity), finding_id(f->kind),
                    f->what, f->fix[0] != 0 ? "; fix: " : "", f->fix);
    }
}
