/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flags_help.c - prints the help text of a flag table: flags under their headings with value names,
 * meaning and defaults, wrapped to the width of the terminal. ls_flags_help() is its only entry.
 */
#include <lockstep/flags.h>

#include "base/flags/flag_table.h"
#include "base/flags/terminal.h"
#include "base/options.h"
#include "base/text.h"

#include <string.h>
#include <unistd.h>

enum {
    COLUMNS_USUAL = 80, /* for output that is not a terminal */
    COLUMNS_MOST = 100, /* longer lines are hard to read */
    COLUMNS_LEAST = 30,
    COLUMNS_NARROW = 72, /* below this the meaning is printed under the flag, not beside it */
    MEANING_AT = 28,
    MEANING_AT_NARROW = 8,
    LEFT_MOST = 96
};

/* --- lines --- */

typedef struct page {
    text_buf text;
    int width;
    int column; /* of the current line */
} page;

static void begin_line(page *p, int indent)
{
    text_append(&p->text, "%s%*s", p->column > 0 ? "\n" : "", indent, "");
    p->column = indent;
}

static void end_line(page *p)
{
    text_append(&p->text, "\n");
    p->column = 0;
}

static void add_text(page *p, const char *text, int n)
{
    text_append_bytes(&p->text, text, (size_t)n);
    p->column += n;
}

/* Writes the words of `text` in lines; all but the first begin at column `indent`. */
static void add_words(page *p, const char *text, int indent)
{
    while (*text != 0) {
        const int n = (int)strcspn(text, " \n");
        const bool is_first = p->column <= indent;

        if (!is_first && p->column + 1 + n > p->width)
            begin_line(p, indent);
        else if (!is_first)
            add_text(p, " ", 1);
        add_text(p, text, n);
        text += n;
        if (*text == '\n')
            begin_line(p, indent);
        text += *text != 0;
    }
}

/* --- one flag --- */

int flag_value_name(const ls_flag *flag, const char **name, const char **meaning)
{
    const char *end = flag->help[0] == '`' ? strchr(flag->help + 1, '`') : NULL;

    *meaning = flag->help;
    if (end != NULL) {
        *name = flag->help + 1;
        *meaning = end + 1 + strspn(end + 1, " ");
        return (int)(end - *name);
    }
    *name = flag->kind == LS_FLAG_INT     ? "N"
            : flag->kind == LS_FLAG_REAL  ? "X"
            : flag->kind == LS_FLAG_BYTES ? "BYTES"
                                          : "TEXT";
    return (int)strlen(*name);
}

/* "-b, --batch-size N"; returns the meaning of the flag. */
static const char *flag_usage(const ls_flag *flag, char left[LEFT_MOST])
{
    const char *name;
    const char *meaning;
    const char *before = " ";
    const char *behind = "";
    int n = flag_value_name(flag, &name, &meaning);
    char letter[8] = "    ";

    if (flag->kind == LS_FLAG_ARGUMENT) {
        text_format(left, LEFT_MOST, "%s", flag->name);
        return meaning;
    }
    if (flag->letter != 0)
        text_format(letter, sizeof(letter), "-%c, ", flag->letter);
    if (flag->kind == LS_FLAG_BOOL) {
        before = "";
        n = 0;
    } else if (flag->kind == LS_FLAG_OPTIONAL_TEXT || flag->kind == LS_FLAG_ATTACHED_TEXT) {
        before = flag->kind == LS_FLAG_OPTIONAL_TEXT ? " [" : "[=";
        behind = "]";
    }
    text_format(left, LEFT_MOST, "%s--%s%s%.*s%s", letter, flag->name, before, n, name, behind);
    return meaning;
}

void flag_default_text(const ls_flag *flag, char *buf, size_t n)
{
    char bytes[32];

    buf[0] = 0;
    if (flag->kind == LS_FLAG_INT && *(int64_t *)flag->value != 0)
        text_format(buf, n, "(%lld)", (long long)*(int64_t *)flag->value);
    else if (flag->kind == LS_FLAG_BYTES)
        text_format(buf, n, "(%s)",
                    text_bytes(bytes, sizeof(bytes), (uint64_t) * (int64_t *)flag->value));
    else if (flag->kind == LS_FLAG_REAL && *(double *)flag->value != 0)
        text_format(buf, n, "(%g)", *(double *)flag->value);
    else if (flag->kind == LS_FLAG_TEXT && *(const char **)flag->value != NULL)
        text_format(buf, n, "(%s)", *(const char **)flag->value);
}

static void add_flag(page *p, const ls_flag *flag)
{
    const bool is_narrow = p->width < COLUMNS_NARROW;
    const int at = is_narrow ? MEANING_AT_NARROW : MEANING_AT;
    char left[LEFT_MOST];
    char standard[256];
    const char *meaning = flag_usage(flag, left);

    begin_line(p, 2);
    add_text(p, left, (int)strlen(left));
    if (p->column + 2 > at)
        begin_line(p, at);
    text_append(&p->text, "%*s", at - p->column, "");
    p->column = at;
    add_words(p, meaning, at);
    flag_default_text(flag, standard, sizeof(standard));
    add_words(p, standard, at);
    end_line(p);
}

/* --- the whole text --- */

bool flag_is_hidden(const ls_flags *f, int i)
{
    for (int k = 0; k < i; k++)
        if (flag_at(f, k)->kind != LS_FLAG_HEADING &&
            is_flag_name(flag_at(f, k)->name, flag_at(f, i)->name, strlen(flag_at(f, i)->name)))
            return true;
    return false;
}

/* Whether the short help lists the row. */
static bool is_brief(const ls_flags *f, int i)
{
    if (f->brief == NULL || i < f->n[0])
        return true;
    for (int k = 0; f->brief[k] != NULL; k++)
        if (text_equal(flag_at(f, i)->name, f->brief[k]))
            return true;
    return false;
}

static int choose_width(const ls_flags *flags)
{
    const int width = flags->width > 0 ? flags->width : terminal_columns(STDOUT_FILENO);

    if (width == 0)
        return COLUMNS_USUAL;
    if (width > COLUMNS_MOST)
        return COLUMNS_MOST;
    return width < COLUMNS_LEAST ? COLUMNS_LEAST : width;
}

ls_status ls_flags_help(const ls_flags *flags, char **out)
{
    ls_flags copy;
    const char *heading = "Flags";
    int n_others = 0;
    page p = {0};

    LS_TRY(LS_GIVEN(flags));
    LS_TRY(LS_GIVEN(out));
    LS_TRY(OPTIONS_COPY(ls_flags, flags, &copy));
    flags = &copy;
    p.width = choose_width(flags);
    add_words(&p, "usage:", 2);
    add_words(&p, flags->program, 2);
    add_words(&p, flags->usage, 2);
    end_line(&p);
    add_words(&p, flags->summary, 0);
    end_line(&p);
    for (int i = 0; i < n_flags(flags); i++) {
        const ls_flag *flag = flag_at(flags, i);

        if (flag->kind == LS_FLAG_HEADING)
            heading = flag->name;
        if (flag->kind == LS_FLAG_HEADING || flag->help == NULL || flag_is_hidden(flags, i))
            continue;
        if (!is_brief(flags, i)) {
            n_others++;
            continue;
        }
        if (heading != NULL)
            text_append(&p.text, "\n%s:\n", heading);
        heading = NULL;
        add_flag(&p, flag);
    }
    if (n_others > 0)
        text_append(&p.text, "\n--help=all lists %d more flags.\n", n_others);
    if (text_status(&p.text) != LS_OK) {
        text_free(&p.text);
        return LS_ENOMEM;
    }
    *out = p.text.data;
    return LS_OK;
}
