/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.c - wraps jansson: a json_value is a json_t. Input is limited in depth and must be UTF-8;
 * output is independent of the locale. Used for reports, metrics, safetensors headers and traces.
 */
#include "base/report/json.h"

#include <jansson.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 63 /* json_writer.has_items has a bit for each, and one for the whole */

static json_value *from_jansson(json_t *v)
{
    return (json_value *)v;
}

/* jansson's readers take non-const pointers for reference counts, which borrowing does not
 * change. */
static json_t *to_jansson(const json_value *v)
{
    union {
        const json_value *in;
        json_t *out;
    } pun = {v};

    return pun.out;
}

/* Whether brackets outside of strings nest deeper than MAX_DEPTH, and where; jansson itself
 * recurses up to 2048 levels. */
static bool is_too_deep(const char *text, size_t bytes, size_t *line, size_t *column)
{
    size_t depth = 0;
    size_t line_start = 0;
    bool in_string = false;

    *line = 1;
    for (size_t i = 0; i < bytes; i++) {
        const char c = text[i];

        if (c == '\n') {
            (*line)++;
            line_start = i + 1;
        } else if (in_string) {
            if (c == '\\')
                i++;
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > MAX_DEPTH) {
                *column = i - line_start + 1;
                return true;
            }
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        }
    }
    return false;
}

ls_status json_parse(const char *text, size_t bytes, const char *what, json_value **out)
{
    json_error_t error;
    json_t *root;
    size_t line;
    size_t column;
    char shown[JSON_ERROR_TEXT_LENGTH];

    if (is_too_deep(text, bytes, &line, &column))
        return ls_fail(LS_EFORMAT, "%s: line %zu column %zu: nested deeper than %d", what, line,
                       column, MAX_DEPTH);
    root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (root == NULL) {
        if (json_error_code(&error) == json_error_out_of_memory)
            return ls_fail(LS_ENOMEM, "%s: no memory for %zu bytes of JSON", what, bytes);
        text_printable(shown, sizeof(shown), error.text);
        return ls_fail(LS_EFORMAT, "%s: line %d column %d: %s", what, error.line, error.column,
                       shown);
    }
    *out = from_jansson(root);
    return LS_OK;
}

void json_free(json_value *v)
{
    json_decref(to_jansson(v));
}

json_kind json_kind_of(const json_value *v)
{
    if (v == NULL)
        return JSON_IS_NULL;
    switch (json_typeof(to_jansson(v))) {
    case JSON_OBJECT:
        return JSON_IS_OBJECT;
    case JSON_ARRAY:
        return JSON_IS_ARRAY;
    case JSON_STRING:
        return JSON_IS_STRING;
    case JSON_INTEGER:
        return JSON_IS_INT;
    case JSON_REAL:
        return JSON_IS_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return JSON_IS_BOOL;
    case JSON_NULL:
        break;
    }
    return JSON_IS_NULL;
}

size_t json_size(const json_value *v)
{
    const json_t *j = to_jansson(v);

    return json_is_object(j) ? json_object_size(j) : json_array_size(j);
}

json_value *json_get(const json_value *object, const char *key)
{
    return from_jansson(json_object_get(to_jansson(object), key));
}

json_value *json_at(const json_value *array, size_t i)
{
    return from_jansson(json_array_get(to_jansson(array), i));
}

bool json_next(const json_value *object, void **cursor, const char **key, json_value **value)
{
    json_t *j = to_jansson(object);

    *cursor = *cursor == NULL ? json_object_iter(j) : json_object_iter_next(j, *cursor);
    if (*cursor == NULL)
        return false;
    *key = json_object_iter_key(*cursor);
    *value = from_jansson(json_object_iter_value(*cursor));
    return true;
}

int64_t json_as_int(const json_value *v, int64_t otherwise)
{
    const json_t *j = to_jansson(v);

    return json_is_integer(j) ? json_integer_value(j) : otherwise;
}

double json_as_real(const json_value *v, double otherwise)
{
    const json_t *j = to_jansson(v);

    return json_is_number(j) ? json_number_value(j) : otherwise;
}

bool json_as_bool(const json_value *v, bool otherwise)
{
    const json_t *j = to_jansson(v);

    return json_is_boolean(j) ? json_is_true(j) : otherwise;
}

const char *json_as_string(const json_value *v, const char *otherwise)
{
    const json_t *j = to_jansson(v);

    return json_is_string(j) ? json_string_value(j) : otherwise;
}

void json_begin(json_writer *w, text_buf *out)
{
    *w = (json_writer){.out = out};
}

static void append_string(text_buf *out, const char *s)
{
    text_append_bytes(out, "\"", 1);
    while (*s != '\0') {
        const unsigned char c = (unsigned char)*s;
        uint32_t code;
        const size_t length = text_decode_utf8(s, 4, &code);

        if (c == '"' || c == '\\')
            text_append(out, "\\%c", c);
        else if (c == '\n')
            text_append_bytes(out, "\\n", 2);
        else if (c < 0x20 || c == 0x7F)
            text_append(out, "\\u%04x", c);
        else if (length == 0)
            text_append_bytes(out, "\xEF\xBF\xBD", 3); // the replacement character
        else
            text_append_bytes(out, s, length);
        s += length == 0 ? 1 : length;
    }
    text_append_bytes(out, "\"", 1);
}

/* The comma before a value, and its key with the colon. */
static void begin_item(json_writer *w, const char *key)
{
    const uint64_t level = (uint64_t)1 << w->depth;

    if ((w->has_items & level) != 0)
        text_append_bytes(w->out, ",", 1);
    w->has_items |= level;
    if (key != NULL) {
        append_string(w->out, key);
        text_append_bytes(w->out, ":", 1);
    }
}

void json_open(json_writer *w, const char *key, char bracket)
{
    LS_ASSERT(w->depth < MAX_DEPTH && (bracket == '{' || bracket == '['));
    begin_item(w, key);
    text_append_bytes(w->out, &bracket, 1);
    w->depth++;
    w->has_items &= ~((uint64_t)1 << w->depth);
}

void json_close(json_writer *w, char bracket)
{
    LS_ASSERT(w->depth > 0 && (bracket == '}' || bracket == ']'));
    text_append_bytes(w->out, &bracket, 1);
    w->depth--;
}

void json_put_string(json_writer *w, const char *key, const char *value)
{
    begin_item(w, key);
    append_string(w->out, value);
}

void json_put_int(json_writer *w, const char *key, int64_t value)
{
    begin_item(w, key);
    text_append(w->out, "%lld", (long long)value);
}

/* The shortest text that parses to the same value, in any locale. */
static void format_real(char *text, size_t n, double value)
{
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    const locale_t before = uselocale(c_locale);

    for (int digits = 15; digits <= 17; digits++) {
        (void)text_format(text, n, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    (void)uselocale(before);
    freelocale(c_locale);
    // a whole number must parse as a real
    if (strpbrk(text, ".e") == NULL)
        (void)strncat(text, ".0", n - strlen(text) - 1);
}

void json_put_real(json_writer *w, const char *key, double value)
{
    char text[40];

    begin_item(w, key);
    if (isfinite(value))
        format_real(text, sizeof(text), value);
    text_append(w->out, "%s", isfinite(value) ? text : "null");
}

void json_put_bool(json_writer *w, const char *key, bool value)
{
    begin_item(w, key);
    text_append(w->out, "%s", value ? "true" : "false");
}

// NOLINTNEXTLINE(misc-no-recursion): see json_put_value()
static void put_members(json_writer *w, const json_value *value)
{
    void *cursor = NULL;
    const char *key;
    json_value *member;

    while (json_next(value, &cursor, &key, &member))
        json_put_value(w, key, member);
}

/* No deeper than json_parse() accepts. */
// NOLINTNEXTLINE(misc-no-recursion): as deep as the value
void json_put_value(json_writer *w, const char *key, const json_value *value)
{
    switch (json_kind_of(value)) {
    case JSON_IS_OBJECT:
        json_open(w, key, '{');
        put_members(w, value);
        json_close(w, '}');
        break;
    case JSON_IS_ARRAY:
        json_open(w, key, '[');
        for (size_t i = 0; i < json_size(value); i++)
            json_put_value(w, NULL, json_at(value, i));
        json_close(w, ']');
        break;
    case JSON_IS_STRING:
        json_put_string(w, key, json_as_string(value, ""));
        break;
    case JSON_IS_INT:
        json_put_int(w, key, json_as_int(value, 0));
        break;
    case JSON_IS_BOOL:
        json_put_bool(w, key, json_as_bool(value, false));
        break;
    case JSON_IS_REAL:
        json_put_real(w, key, json_as_real(value, 0));
        break;
    case JSON_IS_NULL:
        json_put_real(w, key, (double)NAN);
        break;
    }
}
