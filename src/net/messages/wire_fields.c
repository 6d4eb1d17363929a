/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire_fields.c - writes and reads structs by the tables of wire_fields.h. A reader stays within
 * its bytes, checks every bound before it allocates or stores, and stops at the first bad field.
 */
#include "net/messages/wire_fields.h"

#include "base/alloc.h"
#include "base/text.h"
#include "net/address.h"

#include <string.h>

/* --- numbers, in memory and on the wire --- */

static uint64_t load(const void *at, size_t bytes)
{
    uint64_t v = 0;

    memcpy(&v, at, bytes); /* little-endian, as all systems that are supported */
    return v;
}

static const void *pointer_at(const void *at)
{
    const void *pointer;

    memcpy(&pointer, at, sizeof(pointer));
    return pointer;
}

static void write_number(wire_writer *w, uint8_t width, uint64_t v)
{
    uint8_t bytes[8];

    wire_put_u64(bytes, v);
    wire_write_raw(w, bytes, width);
}

/* All ones are -1 where that is allowed, and in 8 bytes. */
static int64_t read_number(wire_reader *r, const wire_field *f)
{
    const uint8_t *at = wire_read_raw(r, f->width);
    uint8_t bytes[8] = {0};
    int64_t v;

    if (at == NULL)
        return f->least;
    memcpy(bytes, at, f->width);
    v = (int64_t)wire_get_u64(bytes);
    if (f->least == -1 && v == (int64_t)(UINT64_MAX >> (64 - 8 * f->width)))
        v = -1;
    r->failed = v < f->least || v > f->most;
    return r->failed ? f->least : v;
}

static void write_bits(wire_writer *w, const uint8_t *bools, unsigned n)
{
    unsigned bits = 0;

    for (unsigned i = 0; i < n; i++)
        bits |= (unsigned)bools[i] << i;
    wire_write_u8(w, (uint8_t)bits);
}

static void read_bits(wire_reader *r, uint8_t *bools, unsigned n)
{
    const unsigned bits = wire_read_u8(r);

    r->failed |= bits >> n != 0;
    for (unsigned i = 0; i < n; i++)
        bools[i] = bits >> i & 1;
}

/* --- texts --- */

static void write_string(wire_writer *w, const char *text)
{
    const char *sent = text != NULL ? text : "";

    wire_write_bytes(w, sent, strlen(sent) + 1);
}

static const char *read_string(wire_reader *r, int64_t least, int64_t most)
{
    size_t n;
    const uint8_t *text = wire_read_bytes(r, r->bytes, &n);

    if (text == NULL || n == 0 || memchr(text, 0, n) != text + n - 1 || (int64_t)n - 1 < least ||
        (int64_t)n - 1 > most)
        r->failed = true;
    return r->failed ? NULL : (const char *)text;
}

static void write_strings(wire_writer *w, char *const *list)
{
    uint32_t n = 0;

    while (list != NULL && list[n] != NULL)
        n++;
    wire_write_u32(w, n);
    for (uint32_t i = 0; i < n; i++)
        write_string(w, list[i]);
}

static char **read_strings(wire_reader *r, const wire_field *f)
{
    const uint32_t n = wire_read_u32(r);
    char **list;

    r->failed |= n < f->least || n > f->most || n > (r->bytes - r->at) / 5;
    list = r->failed ? NULL : ls_calloc((size_t)n + 1, sizeof(*list));
    if (list == NULL && !r->failed)
        r->failed = r->has_no_memory = true;
    for (uint32_t i = 0; i < n && !r->failed; i++)
        list[i] = (char *)(uintptr_t)read_string(r, 0, INT64_MAX);
    if (r->failed) {
        ls_free(list);
        return NULL;
    }
    return list;
}

/* --- addresses: numbers, not names, which would be looked up --- */

static void write_address(wire_writer *w, const wire_field *f, const net_address *a)
{
    char text[NET_ADDRESS_TEXT_MAX] = "";

    if (a->bytes > 0)
        net_address_text(text, sizeof(text), a);
    wire_write_bytes(w, text, strlen(text) + f->width);
}

static void read_address(wire_reader *r, const wire_field *f, net_address *out)
{
    char copy[NET_ADDRESS_TEXT_MAX];
    const char *text = copy;
    char saved[LS_ERROR_BYTES];

    if (f->width > 0)
        text = read_string(r, 0, NET_ADDRESS_TEXT_MAX);
    else
        wire_read_text(r, copy, sizeof(copy));
    if (r->failed)
        return;
    ls_error_save(saved);
    if ((text[0] != 0 && net_address_decode(text, out) != LS_OK) ||
        (int64_t)net_address_family(out) < f->least)
        r->failed = true;
    ls_error_restore(saved);
}

// NOLINTBEGIN(misc-no-recursion): as deep as tables name tables

/* --- lists --- */

static void write_list(wire_writer *w, const wire_field *f, const uint8_t *items, int n)
{
    write_number(w, f->width, (uint64_t)n);
    for (int i = 0; i < n; i++)
        wire_write_fields(w, f->items, items + (size_t)i * f->items->bytes);
}

static void read_items(wire_reader *r, const wire_field *f, uint8_t *items, int n)
{
    for (int i = 0; i < n && !r->failed; i++)
        wire_read_fields(r, f->items, items + (size_t)i * f->items->bytes);
}

static uint8_t *read_new_items(wire_reader *r, const wire_field *f, int n)
{
    uint8_t *items;

    r->failed |= (size_t)n > r->bytes - r->at; /* each has a byte at least */
    if (r->failed || n == 0)
        return NULL;
    items = ls_calloc((size_t)n, f->items->bytes);
    if (items == NULL)
        r->failed = r->has_no_memory = true;
    read_items(r, f, items, n);
    if (!r->failed)
        return items;
    ls_free(items);
    return NULL;
}

static void read_list(wire_reader *r, const wire_field *f, uint8_t *message)
{
    int n = (int)read_number(r, f);
    const uint8_t *items;

    if (f->kind == WIRE_IS_NEW_LIST) {
        items = read_new_items(r, f, n);
        memcpy(message + f->at, &items, sizeof(items));
    } else {
        read_items(r, f, message + f->at, n);
    }
    if (r->failed)
        n = 0;
    memcpy(message + f->count_at, &n, sizeof(n));
}

/* --- one field --- */

static void write_field(wire_writer *w, const wire_field *f, const void *message)
{
    const uint8_t *at = (const uint8_t *)message + f->at;
    const uint8_t *count = (const uint8_t *)message + f->count_at;

    switch (f->kind) {
    case WIRE_IS_NUMBER:
        write_number(w, f->width, load(at, f->bytes));
        break;
    case WIRE_IS_BITS:
        write_bits(w, at, (unsigned)f->most);
        break;
    case WIRE_IS_RAW:
        wire_write_raw(w, at, f->bytes);
        break;
    case WIRE_IS_TEXT:
    case WIRE_IS_LINE:
        wire_write_text(w, (const char *)at);
        break;
    case WIRE_IS_STRING:
        write_string(w, pointer_at(at));
        break;
    case WIRE_IS_STRINGS:
        write_strings(w, pointer_at(at));
        break;
    case WIRE_IS_BYTES:
        wire_write_bytes(w, pointer_at(at), load(count, sizeof(size_t)));
        break;
    case WIRE_IS_ADDRESS:
        write_address(w, f, (const void *)at);
        break;
    case WIRE_IS_STRUCT:
        wire_write_fields(w, f->items, at);
        break;
    case WIRE_IS_LIST:
        write_list(w, f, at, (int)load(count, sizeof(int)));
        break;
    case WIRE_IS_NEW_LIST:
        write_list(w, f, pointer_at(at), (int)load(count, sizeof(int)));
        break;
    }
}

static void read_text(wire_reader *r, const wire_field *f, char *out)
{
    wire_read_text(r, out, f->bytes);
    if (f->kind == WIRE_IS_LINE)
        text_printable(out, f->bytes, r->failed ? "" : out);
}

static void read_bytes(wire_reader *r, const wire_field *f, uint8_t *message)
{
    size_t n;
    const uint8_t *bytes = wire_read_bytes(r, (size_t)f->most, &n);

    memcpy(message + f->at, &bytes, sizeof(bytes));
    memcpy(message + f->count_at, &n, sizeof(n));
}

static void read_raw(wire_reader *r, const wire_field *f, void *at)
{
    const uint8_t *bytes = wire_read_raw(r, f->bytes);

    if (bytes != NULL)
        memcpy(at, bytes, f->bytes);
}

static void read_field(wire_reader *r, const wire_field *f, uint8_t *message)
{
    uint8_t *at = message + f->at;
    const void *pointer;
    const char *text;
    int64_t number;

    switch (f->kind) {
    case WIRE_IS_NUMBER:
        number = read_number(r, f);
        memcpy(at, &number, f->bytes);
        break;
    case WIRE_IS_BITS:
        read_bits(r, at, (unsigned)f->most);
        break;
    case WIRE_IS_RAW:
        read_raw(r, f, at);
        break;
    case WIRE_IS_TEXT:
    case WIRE_IS_LINE:
        read_text(r, f, (char *)at);
        break;
    case WIRE_IS_STRING:
        text = read_string(r, f->least, f->most);
        pointer = text != NULL && text[0] != 0 ? text : NULL;
        memcpy(at, &pointer, sizeof(pointer));
        break;
    case WIRE_IS_STRINGS:
        pointer = read_strings(r, f);
        memcpy(at, &pointer, sizeof(pointer));
        break;
    case WIRE_IS_BYTES:
        read_bytes(r, f, message);
        break;
    case WIRE_IS_ADDRESS:
        read_address(r, f, (net_address *)(void *)at);
        break;
    case WIRE_IS_STRUCT:
        wire_read_fields(r, f->items, at);
        break;
    case WIRE_IS_LIST:
    case WIRE_IS_NEW_LIST:
        read_list(r, f, message);
        break;
    }
}

/* --- messages --- */

void wire_write_fields(wire_writer *w, const wire_table *t, const void *message)
{
    for (size_t i = 0; i < t->n; i++)
        write_field(w, &t->fields[i], message);
}

/* The innermost field is named. */
static void name_failure(wire_reader *r, const char *field)
{
    r->failed = true;
    if (r->field == NULL)
        r->field = field;
}

void wire_free_fields(const wire_table *t, void *message)
{
    static const void *const nothing;

    for (size_t i = 0; i < t->n; i++) {
        const wire_field *f = &t->fields[i];
        uint8_t *at = (uint8_t *)message + f->at;

        if (f->kind == WIRE_IS_NEW_LIST)
            memset((uint8_t *)message + f->count_at, 0, sizeof(int));
        if (f->kind == WIRE_IS_NEW_LIST || f->kind == WIRE_IS_STRINGS) {
            ls_free((void *)(uintptr_t)pointer_at(at));
            memcpy(at, &nothing, sizeof(nothing));
        }
    }
}

void wire_read_fields(wire_reader *r, const wire_table *t, void *message)
{
    const char *bad;

    memset(message, 0, t->bytes);
    for (size_t i = 0; i < t->n && !r->failed; i++) {
        read_field(r, &t->fields[i], message);
        if (r->failed)
            name_failure(r, t->fields[i].name);
    }
    bad = t->check != NULL && !r->failed ? t->check(message) : NULL;
    if (bad != NULL)
        name_failure(r, bad);
    if (r->failed)
        wire_free_fields(t, message);
}

// NOLINTEND(misc-no-recursion)

ls_status wire_read_frame(const frame *f, const wire_table *t, void *message)
{
    wire_reader r = wire_reader_over(f->body, f->bytes);
    ls_status st;

    wire_read_fields(&r, t, message);
    st = wire_reader_end(&r, t->what);
    if (st != LS_OK)
        wire_free_fields(t, message);
    return st;
}
