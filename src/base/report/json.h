/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.h - reads and writes JSON; json.c is the only file that includes jansson.
 *
 * A json_value from json_parse() owns its tree; json_get() and json_at() borrow from it.
 *
 * base/report/: JSON, trace events, time stamps and reports of long waits; open to all.
 */
#ifndef LS_BASE_REPORT_JSON_H
#define LS_BASE_REPORT_JSON_H

#include "base/status.h"
#include "base/text.h"

typedef struct json_value json_value;

typedef enum json_kind {
    JSON_IS_NULL,
    JSON_IS_BOOL,
    JSON_IS_INT,
    JSON_IS_REAL,
    JSON_IS_STRING,
    JSON_IS_ARRAY,
    JSON_IS_OBJECT
} json_kind;

/* jansson defines json_string, json_real, JSON_OBJECT ..., in its header and in the linker; hence
 * json_as_string() and JSON_IS_OBJECT here. */

/* Parses `bytes` bytes; rejects duplicate keys, trailing text and depth over 64. `what` names the
 * source in the error text, which has line and column. */
LS_MUST_USE ls_status json_parse(const char *text, size_t bytes, const char *what,
                                 json_value **out);
void json_free(json_value *v); /* NULL is allowed; only for values of json_parse() */

json_kind json_kind_of(const json_value *v); /* NULL gives JSON_IS_NULL */
size_t json_size(const json_value *v);       /* elements of an array or object, else 0 */
json_value *json_get(const json_value *object, const char *key); /* NULL = absent */
json_value *json_at(const json_value *array, size_t i);          /* NULL = past the end */
/* Iterates over an object: start with *cursor = NULL; false at the end. */
bool json_next(const json_value *object, void **cursor, const char **key, json_value **value);
int64_t json_as_int(const json_value *v, int64_t otherwise);
double json_as_real(const json_value *v, double otherwise); /* accepts integers too */
bool json_as_bool(const json_value *v, bool otherwise);
const char *json_as_string(const json_value *v, const char *otherwise);

/* A writer appends to a text_buf, with commas and escapes. Keys are NULL inside arrays. Non-finite
 * numbers become null. */
typedef struct json_writer {
    text_buf *out;
    uint64_t has_items; /* one bit per level */
    int depth;
} json_writer;

void json_begin(json_writer *w, text_buf *out);
void json_open(json_writer *w, const char *key, char bracket); /* '{' or '[' */
void json_close(json_writer *w, char bracket);                 /* '}' or ']' */
void json_put_string(json_writer *w, const char *key, const char *value);
void json_put_int(json_writer *w, const char *key, int64_t value);
void json_put_real(json_writer *w, const char *key, double value);
void json_put_bool(json_writer *w, const char *key, bool value);
/* A whole tree. */
void json_put_value(json_writer *w, const char *key, const json_value *value);

#endif
