/* SPDX-License-Identifier: Apache-2.0 */
/*
 * c10d_codec.c - parses requests of PyTorch's TCPStore clients, for c10d_store.c. A field's length
 * is checked as soon as it has arrived, before its bytes; nothing is parsed twice.
 */
#include "c10d/c10d_codec.h"

#include "net/wire.h"

#include <string.h>

#define LENGTH_BYTES 8

/* The fields of a command: k key, v value, 8 i64, 4 u32, K list of keys, P list of keys with
 * values, ? the end unless more bytes follow. */
typedef struct op_form {
    const char *name;
    const char *shape;
} op_form;

static const op_form forms[C10D_OP_COUNT] = {
    [C10D_NONE] = {"nothing", ""},
    [C10D_VALIDATE] = {"VALIDATE", "4"},
    [C10D_SET] = {"SET", "kv"},
    [C10D_COMPARE_SET] = {"COMPARE_SET", "kvv"},
    [C10D_GET] = {"GET", "k"},
    [C10D_ADD] = {"ADD", "k8"},
    [C10D_CHECK] = {"CHECK", "K"},
    [C10D_WAIT] = {"WAIT", "K"},
    [C10D_COUNT] = {"GETNUMKEYS", ""},
    [C10D_DELETE] = {"DELETE_KEY", "k"},
    [C10D_APPEND] = {"APPEND", "kv"},
    [C10D_MULTI_GET] = {"MULTI_GET", "K"},
    [C10D_MULTI_SET] = {"MULTI_SET", "P"},
    [C10D_CANCEL_WAIT] = {"CANCEL_WAIT", ""},
    [C10D_PING] = {"PING", "4"},
    [C10D_QUEUE_PUSH] = {"QUEUE_PUSH", "kv"},
    [C10D_QUEUE_POP] = {"QUEUE_POP", "k"},
    [C10D_QUEUE_LEN] = {"QUEUE_LEN", "k"},
    [C10D_LIST_KEYS] = {"LIST_KEYS", ""},
    [C10D_BARRIER] = {"BARRIER", "k8"},
    [C10D_UNDECIDED] = {"DELETE_KEY or APPEND", "k?v"},
};

/* The first number that only clients of 2.1 send; in older ones it is WATCH_KEY, for C++ only. */
#define RAW_SINCE_2_1 7

/* A command's number is its index in the row of the dialect. */
#define COMMANDS_MAX 19
static const uint8_t commands[][COMMANDS_MAX] = {
    [C10D_RAW] = {C10D_SET, C10D_COMPARE_SET, C10D_GET, C10D_ADD, C10D_CHECK, C10D_WAIT, C10D_COUNT,
                  C10D_DELETE, C10D_UNDECIDED, C10D_MULTI_GET, C10D_MULTI_SET, C10D_CANCEL_WAIT},
    [C10D_PREFIXED] = {C10D_SET, C10D_COMPARE_SET, C10D_GET, C10D_ADD, C10D_CHECK, C10D_WAIT,
                       C10D_COUNT, C10D_DELETE, C10D_APPEND, C10D_MULTI_GET, C10D_MULTI_SET,
                       C10D_CANCEL_WAIT},
    [C10D_VALIDATED] = {C10D_NONE, C10D_SET, C10D_COMPARE_SET, C10D_GET, C10D_ADD, C10D_CHECK,
                        C10D_WAIT, C10D_COUNT, C10D_DELETE, C10D_APPEND, C10D_MULTI_GET,
                        C10D_MULTI_SET, C10D_CANCEL_WAIT, C10D_PING, C10D_QUEUE_PUSH,
                        C10D_QUEUE_POP, C10D_QUEUE_LEN, C10D_LIST_KEYS, C10D_BARRIER},
};

const char *c10d_op_name(c10d_op op)
{
    return forms[op].name;
}

/* --- the fields of a whole request --- */

static const uint8_t *take(c10d_request *r, size_t bytes)
{
    const uint8_t *at = r->at;

    LS_ASSERT(bytes <= r->bytes);
    r->at += bytes;
    r->bytes -= bytes;
    return at;
}

kv_bytes c10d_read_bytes(c10d_request *r)
{
    const size_t bytes = (size_t)wire_get_u64(take(r, LENGTH_BYTES));

    return (kv_bytes){.data = take(r, bytes), .bytes = bytes};
}

int64_t c10d_read_i64(c10d_request *r)
{
    return (int64_t)wire_get_u64(take(r, 8));
}

/* --- finding the end of a request --- */

static ls_status see_bytes(c10d_parser *p, char kind, const uint8_t *data, size_t bytes, bool *seen)
{
    const size_t most = kind == 'k' ? LS_STORE_KEY_MAX : LS_STORE_VALUE_MAX;
    uint64_t length;

    if (bytes - p->at < LENGTH_BYTES)
        return LS_OK;
    length = wire_get_u64(data + p->at);
    if (length > most || (kind == 'k' && length == 0))
        return ls_fail(LS_EPROTO, "%s with a %s of %llu bytes, allowed are %d to %zu",
                       c10d_op_name(p->op), kind == 'k' ? "key" : "value",
                       (unsigned long long)length, kind == 'k', most);
    if (p->at + LENGTH_BYTES + length > C10D_REQUEST_MAX)
        return ls_fail(LS_EPROTO, "%s of more than %zu bytes", c10d_op_name(p->op),
                       C10D_REQUEST_MAX);
    *seen = bytes - p->at - LENGTH_BYTES >= length;
    if (*seen)
        p->at += LENGTH_BYTES + (size_t)length;
    return LS_OK;
}

static ls_status see_count(c10d_parser *p, char kind, const uint8_t *data, size_t bytes, bool *seen)
{
    uint64_t n;

    if (bytes - p->at < LENGTH_BYTES)
        return LS_OK;
    n = wire_get_u64(data + p->at);
    if (n > C10D_LIST_MAX)
        return ls_fail(LS_EPROTO, "%s of %llu keys, at most %zu are allowed", c10d_op_name(p->op),
                       (unsigned long long)n, C10D_LIST_MAX);
    p->n = (size_t)n;
    p->has_values = kind == 'P';
    p->left = p->has_values ? 2 * p->n : p->n;
    p->at += LENGTH_BYTES;
    p->body = p->at;
    *seen = true;
    return LS_OK;
}

/* The client's age decides how it numbers commands. */
static void set_age(c10d_parser *p, c10d_age age)
{
    p->age = age;
    if (p->op == C10D_UNDECIDED)
        p->op = age == C10D_UP_TO_2_0 ? C10D_DELETE : C10D_APPEND;
}

bool c10d_is_undecided(const c10d_parser *p)
{
    return p->op == C10D_UNDECIDED && *p->shape == '?';
}

void c10d_decide(c10d_parser *p)
{
    set_age(p, C10D_UP_TO_2_0);
    p->shape = "";
}

static ls_status see_field(c10d_parser *p, char kind, const uint8_t *data, size_t bytes, bool *seen)
{
    const size_t fixed = kind == '8' ? 8 : 4;

    *seen = false;
    if (kind == 'k' || kind == 'v')
        return see_bytes(p, kind, data, bytes, seen);
    if (kind == 'K' || kind == 'P')
        return see_count(p, kind, data, bytes, seen);
    if (kind == '?') {
        *seen = bytes > p->at;
        if (*seen)
            set_age(p, C10D_SINCE_2_1);
        return LS_OK;
    }
    *seen = bytes - p->at >= fixed;
    if (*seen)
        p->at += fixed;
    return LS_OK;
}

static char next_kind(const c10d_parser *p)
{
    if (p->left == 0)
        return *p->shape;
    return p->has_values && p->left % 2 == 1 ? 'v' : 'k';
}

static ls_status see_fields(c10d_parser *p, const uint8_t *data, size_t bytes, bool *whole)
{
    *whole = true;
    while (*whole && (p->left > 0 || *p->shape != 0)) {
        const bool is_in_list = p->left > 0;

        LS_TRY(see_field(p, next_kind(p), data, bytes, whole));
        if (is_in_list)
            p->left -= *whole;
        else
            p->shape += *whole;
    }
    return LS_OK;
}

/* --- commands --- */

/* A raw connection may also begin with 0, a SET, but no key is as long as the magic number. */
static void detect_dialect(c10d_parser *p, const uint8_t *data, size_t bytes)
{
    if (bytes == 0)
        return;
    if (data[0] == (C10D_MAGIC & 0xffU))
        p->dialect = C10D_PREFIXED;
    else if (data[0] != 0)
        p->dialect = C10D_RAW;
    else if (bytes >= 5)
        p->dialect = wire_get_u32(data + 1) == C10D_MAGIC ? C10D_VALIDATED : C10D_RAW;
    if (p->dialect == C10D_VALIDATED)
        p->op = C10D_VALIDATE;
}

static ls_status read_command(c10d_parser *p, const uint8_t *data, size_t bytes)
{
    const size_t magic_bytes = p->dialect == C10D_PREFIXED ? 4 : 0;
    uint8_t number;

    if (bytes <= magic_bytes)
        return LS_OK;
    if (magic_bytes > 0 && wire_get_u32(data) != C10D_MAGIC)
        return ls_fail(LS_EPROTO, "a request without the magic number");
    number = data[magic_bytes];
    if (number < COMMANDS_MAX)
        p->op = (c10d_op)commands[p->dialect][number];
    if (p->op == C10D_NONE)
        return ls_fail(LS_EPROTO, "command %d is unknown to a TCPStore", number);
    p->at = magic_bytes;
    if (p->dialect == C10D_RAW && p->op != C10D_UNDECIDED && number >= RAW_SINCE_2_1)
        set_age(p, C10D_SINCE_2_1);
    else if (p->op == C10D_UNDECIDED && p->age != C10D_ANY_AGE)
        set_age(p, p->age);
    return LS_OK;
}

static ls_status begin(c10d_parser *p, const uint8_t *data, size_t bytes)
{
    if (p->dialect == C10D_UNKNOWN)
        detect_dialect(p, data, bytes);
    if (p->dialect != C10D_UNKNOWN && p->op == C10D_NONE)
        LS_TRY(read_command(p, data, bytes));
    if (p->op == C10D_NONE)
        return LS_OK;
    p->at++;
    p->body = p->at;
    p->shape = forms[p->op].shape;
    return LS_OK;
}

ls_status c10d_parse(c10d_parser *p, const uint8_t *data, size_t bytes, c10d_request *out,
                     size_t *used)
{
    bool whole;

    *used = 0;
    if (p->op == C10D_NONE)
        LS_TRY(begin(p, data, bytes));
    if (p->op == C10D_NONE)
        return LS_OK;
    LS_TRY(see_fields(p, data, bytes, &whole));
    if (!whole)
        return LS_OK;
    *out = (c10d_request){.op = p->op, .n = p->n, .at = data + p->body, .bytes = p->at - p->body};
    *used = p->at;
    *p = (c10d_parser){.dialect = p->dialect, .age = p->age};
    return LS_OK;
}
