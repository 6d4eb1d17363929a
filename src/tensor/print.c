/* SPDX-License-Identifier: Apache-2.0 */
/*
 * print.c - ls_tensor_print(): elements as print() of a NumPy array shows them, with its defaults:
 * 8 digits, lines of 75 characters, and of more than 1000 elements the 3 at each end of
 * a dimension. bfloat16, which NumPy lacks, follows the rules of its other floating-point types.
 */
#include "base/alloc.h"
#include "base/text.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THRESHOLD = 1000, EDGE = 3, LINE = 75, PRECISION = 8, DIGITS = 17, WORD_BYTES = 64 };

typedef struct printer {
    const ls_tensor *t;
    const char *elements;
    text_buf *out;
    bool is_shortened;
    size_t *shown; /* indices of the elements that are printed, in turn */
    size_t n_shown;
    size_t next;
    bool is_scientific; /* with an exponent, as the next of all elements together */
    int left;           /* characters before the point */
    int right;          /* digits behind it */
    int exponent;       /* digits of the exponent */
} printer;

/* d.ddd times 10 to the exponent. */
typedef struct decimal {
    char digits[DIGITS + 1];
    int n;
    int exponent;
} decimal;

static const char *element(const printer *p, size_t i)
{
    return p->elements + i * ls_dtype_size(p->t->dtype);
}

static double rounded(ls_dtype type, double x)
{
    double copy; // aligned for any type

    return tensor_encode(x, type, &copy) == LS_OK ? tensor_decode(&copy, type) : x;
}

/* --- words --- */

static decimal split(double x, int n)
{
    char text[WORD_BYTES];
    decimal d = {.n = n};

    (void)snprintf(text, sizeof(text), "%.*e", n - 1, fabs(x));
    d.exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    for (int i = 0; i < n; i++)
        d.digits[i] = text[i == 0 ? 0 : strchr(text, 'e') - text - n + i];
    while (d.n > 1 && d.digits[d.n - 1] == '0')
        d.n--;
    return d;
}

/* As many digits as the type needs for this number, but at most PRECISION behind the point. */
static decimal split_shortest(ls_dtype type, double x, bool is_scientific)
{
    int n = 1;
    decimal d;
    int most;

    while (n < DIGITS) {
        char text[WORD_BYTES];

        (void)snprintf(text, sizeof(text), "%.*e", n - 1, fabs(x));
        if (rounded(type, strtod(text, NULL)) == fabs(x))
            break;
        n++;
    }
    d = split(x, n);
    most = PRECISION + 1 + (is_scientific || d.exponent < -PRECISION ? 0 : d.exponent);
    return n > most ? split(x, most) : d;
}

static int digits_behind(const printer *p, const decimal *d)
{
    const int n = p->is_scientific ? d->n - 1 : d->n - 1 - d->exponent;

    return n > 0 ? n : 0;
}

static int digits_before(const printer *p, const decimal *d)
{
    return p->is_scientific || d->exponent < 0 ? 1 : d->exponent + 1;
}

/* The digit at 10 to the power of `place`. */
static char digit_at(const decimal *d, int place)
{
    const int i = d->exponent - place;

    return (char)(i >= 0 && i < d->n ? d->digits[i] : '0');
}

static int width_of(const printer *p)
{
    return p->left + 1 + p->right + (p->is_scientific ? 2 + p->exponent : 0);
}

static void write_finite(const printer *p, double x, char word[WORD_BYTES])
{
    decimal d = p->is_scientific ? split(x, p->right + 1) : split_shortest(p->t->dtype, x, false);
    const int behind = digits_behind(p, &d);
    const int exponent = d.exponent;
    int at = p->left - digits_before(p, &d) - (signbit(x) != 0);

    memset(word, ' ', (size_t)(at > 0 ? at : 0));
    if (signbit(x) != 0)
        word[at++] = '-';
    if (p->is_scientific)
        d.exponent = 0;
    for (int place = digits_before(p, &d) - 1; place >= 0; place--)
        word[at++] = digit_at(&d, place);
    word[at++] = '.';
    for (int i = 0; i < p->right; i++)
        word[at++] = (char)(p->is_scientific || i < behind ? digit_at(&d, -1 - i) : ' ');
    word[at] = 0;
    if (p->is_scientific)
        (void)snprintf(word + at, (size_t)(WORD_BYTES - at), "e%c%0*d", exponent < 0 ? '-' : '+',
                       p->exponent, abs(exponent));
}

static void write_word(const printer *p, size_t i, char word[WORD_BYTES])
{
    const void *at = element(p, i);

    if (!tensor_is_floating(p->t)) {
        const int64_t n =
            p->t->dtype == LS_I64 ? *(const int64_t *)at : (int64_t)tensor_decode(at, p->t->dtype);

        (void)snprintf(word, WORD_BYTES, "%*" PRId64, p->left, n);
        return;
    }
    const double x = tensor_decode(at, p->t->dtype);

    if (isfinite(x))
        write_finite(p, x, word);
    else
        (void)snprintf(word, WORD_BYTES, "%*s", width_of(p),
                       isnan(x) ? "nan"
                       : x < 0  ? "-inf"
                                : "inf");
}

/* --- the format of all elements --- */

static int larger(int a, int b)
{
    return a > b ? a : b;
}

/* Numbers get an exponent where any is large for its type (since NumPy 2.3) or small, or they
 * differ much. */
static void choose_notation(printer *p)
{
    const ls_dtype type = p->t->dtype;
    const double large = type == LS_F64 ? 1e8 : type == LS_F32 ? 1e6 : type == LS_F16 ? 1e3 : 1e2;
    double low = HUGE_VAL;
    double high = 0;

    for (size_t i = 0; i < p->n_shown; i++) {
        const double x = fabs(tensor_decode(element(p, p->shown[i]), type));

        if (!isfinite(x) || x == 0)
            continue;
        low = fmin(low, x);
        high = fmax(high, x);
    }
    p->is_scientific = high > 0 && (high >= large || low < rounded(type, 1e-4) ||
                                    rounded(type, high / low) > 1000);
}

static void find_widths(printer *p)
{
    bool has_special = false;
    int special = 3;
    int rest;

    for (size_t i = 0; i < p->n_shown; i++) {
        const double x = tensor_decode(element(p, p->shown[i]), p->t->dtype);
        decimal d;

        if (!isfinite(x)) {
            has_special = true;
            special = larger(special, isinf(x) && x < 0 ? 4 : 3);
            continue;
        }
        d = split_shortest(p->t->dtype, x, p->is_scientific);
        p->left = larger(p->left, digits_before(p, &d) + (signbit(x) != 0));
        p->right = larger(p->right, digits_behind(p, &d));
        p->exponent = larger(p->exponent, abs(d.exponent) >= 100 ? 3 : 2);
    }
    rest = width_of(p) - p->left;
    if (has_special && p->left + rest < special)
        p->left = special - rest;
}

static void find_format(printer *p)
{
    char word[WORD_BYTES];

    if (tensor_is_floating(p->t)) {
        choose_notation(p);
        find_widths(p);
        return;
    }
    for (size_t i = 0, width = 0; i < p->n_shown; i++) {
        write_word(p, p->shown[i], word);
        width = strlen(word) > width ? strlen(word) : width;
        if (i + 1 == p->n_shown)
            p->left = (int)width;
    }
}

/* --- layout --- */

static bool is_cut(const printer *p, int axis)
{
    return p->is_shortened && p->t->dims[axis] > (int64_t)2 * EDGE;
}

/* Lists the elements that are printed; `first` is the index of the part's first one. */
// NOLINTNEXTLINE(misc-no-recursion): as deep as there are dimensions
static void list_shown(printer *p, int axis, size_t first)
{
    size_t stride = 1;

    if (axis == p->t->n_dims) {
        p->shown[p->n_shown++] = first;
        return;
    }
    for (int d = axis + 1; d < p->t->n_dims; d++)
        stride *= (size_t)p->t->dims[d];
    for (int64_t i = 0; i < p->t->dims[axis]; i++) {
        if (is_cut(p, axis) && i == EDGE)
            i = p->t->dims[axis] - EDGE;
        list_shown(p, axis + 1, first + (size_t)i * stride);
    }
}

static void append_spaces(text_buf *out, int n)
{
    text_append(out, "%*s", n, "");
}

/* Appends `word`. The line is `column` characters long, of which the first `indent` are blank. */
static int append_word(text_buf *out, const char *word, int column, int indent)
{
    if (column > indent && column + (int)strlen(word) > LINE - indent) {
        while (out->length > 0 && out->data[out->length - 1] == ' ')
            out->data[--out->length] = 0;
        text_append(out, "\n");
        append_spaces(out, indent);
        column = indent;
    }
    text_append(out, "%s", word);
    return column + (int)strlen(word);
}

static void append_row(printer *p, int axis)
{
    const int indent = axis + 1;
    const int64_t n = is_cut(p, axis) ? 2 * EDGE + 1 : p->t->dims[axis];
    int column = indent;

    for (int64_t i = 0; i < n; i++) {
        char word[WORD_BYTES];

        if (is_cut(p, axis) && i == EDGE)
            (void)text_format(word, sizeof(word), "...");
        else
            write_word(p, p->shown[p->next++], word);
        column = append_word(p->out, word, column, indent);
        if (i + 1 < n) {
            text_append(p->out, " ");
            column++;
        }
    }
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as there are dimensions
static void append_part(printer *p, int axis)
{
    const int64_t n = is_cut(p, axis) ? 2 * EDGE + 1 : p->t->dims[axis];

    text_append(p->out, "[");
    if (axis == p->t->n_dims - 1) {
        append_row(p, axis);
        text_append(p->out, "]");
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (i > 0) {
            for (int d = axis; d < p->t->n_dims - 1; d++)
                text_append(p->out, "\n");
            append_spaces(p->out, axis + 1);
        }
        if (is_cut(p, axis) && i == EDGE)
            text_append(p->out, "...");
        else
            append_part(p, axis + 1);
    }
    text_append(p->out, "]");
}

/* One element without brackets; a whole number is 2.0, not 2. as in an array. */
static void append_scalar(printer *p)
{
    const double x = tensor_is_floating(p->t) ? tensor_decode(p->elements, p->t->dtype) : 0;
    char word[WORD_BYTES];

    find_format(p);
    write_word(p, 0, word);
    text_append(p->out, "%s%s", word,
                tensor_is_floating(p->t) && isfinite(x) && word[strlen(word) - 1] == '.' ? "0"
                                                                                         : "");
}

static void append_all(printer *p)
{
    list_shown(p, 0, 0);
    if (p->t->n_dims == 0) {
        append_scalar(p);
        return;
    }
    find_format(p);
    append_part(p, 0);
}

ls_status tensor_append_elements(const ls_tensor *t, text_buf *out)
{
    const size_t count = ls_tensor_count(t);
    printer p = {.t = t, .out = out, .is_shortened = count > THRESHOLD};
    char *elements = ls_calloc(count + 1, ls_dtype_size(t->dtype));
    ls_status st;

    p.shown = ls_calloc(count + 1, sizeof(*p.shown));
    p.elements = elements;
    st = elements == NULL || p.shown == NULL
             ? ls_fail(LS_ENOMEM, "no memory to print %zu elements", count)
             : ls_tensor_read(t, elements, count);
    if (st == LS_OK && count == 0)
        text_append(out, "[]");
    else if (st == LS_OK)
        append_all(&p);
    ls_free(p.shown);
    ls_free(elements);
    return st == LS_OK ? text_status(out) : st;
}

ls_status ls_tensor_print(const ls_tensor *t)
{
    text_buf text = {0};
    ls_status st;

    LS_TRY(LS_GIVEN(t));
    st = tensor_append_elements(t, &text);
    if (st == LS_OK && (fputs(text_str(&text), stdout) == EOF || fputs("\n", stdout) == EOF))
        st = ls_fail(LS_EIO, "ls_tensor_print: standard output cannot be written");
    text_free(&text);
    return st;
}
