/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_wire_fields.c - structs by tables of fields: every kind of field keeps its value, a reader
 * refuses what a row does not allow, names the field, and leaves nothing allocated.
 */
#include "base/unit.h"

#include "net/address.h"
#include "net/messages/wire_fields.h"

#include <stdlib.h>

typedef struct point {
    int x;
    int8_t y;
} point;

typedef struct everything {
    int number;
    uint64_t big;
    bool a;
    bool b;
    uint8_t raw[3];
    char text[8];
    char line[8];
    const char *string;
    char **strings;
    const uint8_t *bytes;
    size_t n_bytes;
    net_address at;
    point one;
    point few[2];
    int n_few;
    point *many;
    int n_many;
} everything;

static const wire_field point_fields[] = {
    WIRE_NUMBER(point, x, 4, -1, 100),
    WIRE_NUMBER(point, y, 1, -1, 15),
};
static const wire_table point_table = WIRE_TABLE(point, "a point", point_fields, NULL);

static const wire_field fields[] = {
    WIRE_NUMBER(everything, number, 2, 1, 1000),
    WIRE_64(everything, big),
    WIRE_BITS(everything, a, 2),
    WIRE_RAW(everything, raw),
    WIRE_TEXT(everything, text),
    WIRE_LINE(everything, line),
    WIRE_STRING(everything, string, 0, 5),
    WIRE_STRINGS(everything, strings, 1, 3),
    WIRE_BYTES(everything, bytes, n_bytes, 4),
    WIRE_ADDRESS(everything, at, NET_NONE),
    WIRE_STRUCT(everything, one, &point_table),
    WIRE_LIST(everything, few, n_few, 1, 0, 2, &point_table),
    WIRE_NEW_LIST(everything, many, n_many, 4, 0, 3, &point_table),
};

static const char *check(const void *message)
{
    const everything *e = message;

    return e->one.x == 99 ? "sense" : NULL;
}

static const wire_table table = WIRE_TABLE(everything, "a message", fields, check);

static char *words[] = {(char *)(uintptr_t) "", (char *)(uintptr_t) "two", NULL};
static point points[] = {{1, 2}, {-1, -1}};

static everything example(void)
{
    everything e = {.number = 1000,
                    .big = UINT64_MAX,
                    .b = true,
                    .raw = {7, 8, 9},
                    .text = "seven77",
                    .line = "line",
                    .string = "five5",
                    .strings = words,
                    .bytes = (const uint8_t *)"abc",
                    .n_bytes = 3,
                    .one = {100, 15},
                    .few = {{3, 4}},
                    .n_few = 1,
                    .many = points,
                    .n_many = 2};

    assert_ok(net_address_decode("tcp://10.0.0.1:80", &e.at));
    return e;
}

/* Writes and reads it; from memory of the exact size, in which a sanitizer sees a read past its
 * end. */
static ls_status pass(const everything *e, size_t cut, everything *out)
{
    wire_writer w = {0};
    uint8_t *copy;
    ls_status st;

    wire_write_fields(&w, &table, e);
    assert_ok(wire_writer_status(&w));
    copy = malloc(w.bytes - cut);
    assert_true(copy != NULL && cut < w.bytes);
    memcpy(copy, w.data, w.bytes - cut);
    st = wire_read_frame(&(frame){.body = copy, .bytes = w.bytes - cut}, &table, out);
    wire_writer_free(&w);
    if (st != LS_OK)
        assert_true(out->strings == NULL && out->many == NULL && out->n_many == 0);
    else
        assert_string_equal(out->string != NULL ? out->string : "", e->string ? e->string : "");
    if (st == LS_OK)
        for (int i = 0; words[i] != NULL; i++)
            assert_string_equal(out->strings[i], words[i]);
    free(copy);
    return st;
}

static void every_kind_of_field_keeps_its_value(void **state)
{
    const everything e = example();
    everything got;

    LS_UNUSED(state);
    assert_ok(pass(&e, 0, &got));
    assert_int_equal(got.number, 1000);
    assert_true(got.big == UINT64_MAX && !got.a && got.b);
    assert_memory_equal(got.raw, e.raw, sizeof(e.raw));
    assert_string_equal(got.text, "seven77");
    assert_string_equal(got.line, "line");
    assert_null(got.strings[2]);
    assert_int_equal(got.n_bytes, 3);
    assert_true(net_address_equal(&got.at, &e.at));
    assert_true(got.one.x == 100 && got.one.y == 15);
    assert_true(got.n_few == 1 && got.few[0].x == 3 && got.few[0].y == 4);
    assert_true(got.n_many == 2 && got.many[0].y == 2 && got.many[1].x == -1 &&
                got.many[1].y == -1);
    wire_free_fields(&table, &got);
    assert_true(got.strings == NULL && got.many == NULL && got.n_many == 0);
}

static void what_is_not_given_stays_so(void **state)
{
    everything e = example();
    everything got;

    LS_UNUSED(state);
    e.string = NULL;
    e.at = (net_address){.bytes = 0};
    e.n_few = e.n_many = 0;
    e.n_bytes = 0;
    assert_ok(pass(&e, 0, &got));
    assert_null(got.string);
    assert_null(got.many);
    assert_int_equal(net_address_family(&got.at), NET_NONE);
    assert_int_equal(got.n_bytes, 0);
    wire_free_fields(&table, &got);
}

static void cut_message_is_refused_and_nothing_is_saved(void **state)
{
    const everything e = example();
    wire_writer w = {0};
    everything got;

    LS_UNUSED(state);
    wire_write_fields(&w, &table, &e);
    for (size_t cut = 1; cut < w.bytes; cut++)
        assert_status(pass(&e, cut, &got), LS_EPROTO);
    wire_write_u8(&w, 0);
    assert_status(wire_read_frame(&(frame){.body = w.data, .bytes = w.bytes}, &table, &got),
                  LS_EPROTO);
    assert_last_error("a message: 1 bytes too many");
    assert_true(got.strings == NULL && got.many == NULL && got.n_many == 0);
    wire_writer_free(&w);
}

#define expect_bad(change, name)                                                                   \
    do {                                                                                           \
        everything e = example();                                                                  \
        everything got;                                                                            \
                                                                                                   \
        change;                                                                                    \
        assert_status(pass(&e, 0, &got), LS_EPROTO);                                               \
        assert_last_error("a message: bad field " name " at byte ");                               \
    } while (0)

static void value_outside_its_bounds_is_refused_by_name(void **state)
{
    static point far[] = {{0, 0}, {0, -2}};
    static char *none[] = {NULL};
    static char *four[] = {(char *)(uintptr_t) "1", (char *)(uintptr_t) "2",
                           (char *)(uintptr_t) "3", (char *)(uintptr_t) "4", NULL};

    LS_UNUSED(state);
    expect_bad(e.number = 0, "number");
    expect_bad(e.number = 1001, "number");
    expect_bad(e.number = -1, "number");
    expect_bad(e.string = "six666", "string");
    expect_bad(e.strings = none, "strings");
    expect_bad(e.strings = four, "strings");
    expect_bad(e.bytes = (const uint8_t *)"abcde"; e.n_bytes = 5, "bytes");
    expect_bad(e.one.x = 101, "x");
    expect_bad(e.one.x = -2, "x");
    expect_bad(e.few[0].y = 16, "y");
    expect_bad(e.many = far, "y");
    expect_bad(e.n_many = -1, "many");
    expect_bad(e.one.x = 99, "sense");
}

/* Bytes that no writer produces, in a message of this one field. */
static void expect_bad_bytes(const wire_field *f, const void *bytes, size_t n)
{
    const wire_table only = {
        .what = "it", .bytes = sizeof(everything), .fields = f, .n = 1, .check = NULL};
    uint8_t *copy = malloc(n);
    everything got;

    assert_non_null(copy);
    memcpy(copy, bytes, n);
    assert_status(wire_read_frame(&(frame){.body = copy, .bytes = n}, &only, &got), LS_EPROTO);
    assert_last_error(f->name);
    free(copy);
}

static void bytes_that_no_writer_produces_are_refused(void **state)
{
    LS_UNUSED(state);
    expect_bad_bytes(&fields[2], "\x04", 1);                        /* a third bool */
    expect_bad_bytes(&fields[4], "\x08\0\0\0seven777", 12);         /* too long */
    expect_bad_bytes(&fields[4], "\x03\0\0\0a\0b", 7);              /* a 0 in a text */
    expect_bad_bytes(&fields[6], "\x01\0\0\0a", 5);                 /* no terminator */
    expect_bad_bytes(&fields[6], "\x03\0\0\0a\0\0", 7);             /* two */
    expect_bad_bytes(&fields[6], "\0\0\0\0", 4);                    /* none */
    expect_bad_bytes(&fields[7], "\xff\xff\xff\xff", 4);            /* strings without end */
    expect_bad_bytes(&fields[8], "\xff\xff\xff\xff", 4);            /* bytes without end */
    expect_bad_bytes(&fields[9], "\x09\0\0\0a name:80", 13);        /* a name to be looked up */
    expect_bad_bytes(&fields[12], "\x03\0\0\0\0\0", 6);             /* more than there are */
    expect_bad_bytes(&fields[12], "\xff\xff\xff\xff\0\0\0\0\0", 9); /* many more */
}

static void line_loses_what_controls_a_terminal(void **state)
{
    everything e = example();
    everything got;

    LS_UNUSED(state);
    memcpy(e.line, "a\033[m\n", 6);
    assert_ok(pass(&e, 0, &got));
    assert_string_equal(got.line, "a?[m?");
    wire_free_fields(&table, &got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_field_keeps_its_value),
        cmocka_unit_test(what_is_not_given_stays_so),
        cmocka_unit_test(cut_message_is_refused_and_nothing_is_saved),
        cmocka_unit_test(value_outside_its_bounds_is_refused_by_name),
        cmocka_unit_test(bytes_that_no_writer_produces_are_refused),
        cmocka_unit_test(line_loses_what_controls_a_terminal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
