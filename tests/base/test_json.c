/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_json.c - JSON: parsing with its limits and error places, and writing that parses to the same
 * values.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/report/json.h"
#include "base/rng.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static json_value *parsed(const char *text)
{
    json_value *v = NULL;

    assert_ok(json_parse(text, strlen(text), "t.json", &v));
    return v;
}

static void refuse(const char *text, size_t bytes)
{
    json_value *v = NULL;

    if (json_parse(text, bytes, "t.json", &v) != LS_EFORMAT)
        fail_msg("\"%s\" was taken", text);
    assert_last_error("t.json: line ");
    assert_null(v);
}

static void values_are_found_by_key_and_place(void **state)
{
    json_value *v =
        parsed("{\"a\": [1, -2.5, true, false, null, \"x\\u00e9\\n\"], \"b\": {\"c\": 7}}");
    const json_value *a = json_get(v, "a");

    LS_UNUSED(state);
    assert_int_equal(json_kind_of(v), JSON_IS_OBJECT);
    assert_int_equal(json_size(v), 2);
    assert_int_equal(json_kind_of(a), JSON_IS_ARRAY);
    assert_int_equal(json_size(a), 6);
    assert_int_equal(json_as_int(json_at(a, 0), -1), 1);
    assert_int_equal(json_kind_of(json_at(a, 1)), JSON_IS_REAL);
    assert_true(json_as_real(json_at(a, 1), 0) == -2.5);
    assert_true(json_as_real(json_at(a, 0), 0) == 1);
    assert_int_equal(json_kind_of(json_at(a, 2)), JSON_IS_BOOL);
    assert_true(json_as_bool(json_at(a, 2), false));
    assert_false(json_as_bool(json_at(a, 3), true));
    assert_int_equal(json_kind_of(json_at(a, 4)), JSON_IS_NULL);
    assert_string_equal(json_as_string(json_at(a, 5), ""), "x\xC3\xA9\n");
    assert_null(json_at(a, 6));
    assert_int_equal(json_as_int(json_get(json_get(v, "b"), "c"), 0), 7);
    json_free(v);
}

static void absent_or_mistyped_value_gives_the_default(void **state)
{
    json_value *v = parsed("{\"s\": \"1\", \"i\": 1, \"r\": 1.5}");

    LS_UNUSED(state);
    assert_null(json_get(v, "none"));
    assert_null(json_get(NULL, "none"));
    assert_null(json_get(json_get(v, "s"), "none"));
    assert_null(json_at(v, 0));
    assert_int_equal(json_as_int(json_get(v, "s"), -3), -3);
    assert_int_equal(json_as_int(json_get(v, "r"), -3), -3);
    assert_int_equal(json_as_int(NULL, -3), -3);
    assert_true(json_as_real(json_get(v, "s"), 2.5) == 2.5);
    assert_true(json_as_bool(json_get(v, "i"), true));
    assert_string_equal(json_as_string(json_get(v, "i"), "no"), "no");
    assert_int_equal(json_kind_of(NULL), JSON_IS_NULL);
    assert_int_equal(json_size(NULL), 0);
    assert_int_equal(json_size(json_get(v, "s")), 0);
    json_free(v);
    json_free(NULL);
}

static void object_iteration_visits_each_item_once(void **state)
{
    json_value *v = parsed("{\"a\":1,\"b\":2,\"c\":3}");
    json_value *empty = parsed("{}");
    void *cursor = NULL;
    const char *key;
    json_value *value;
    int64_t sum = 0;
    int n = 0;

    LS_UNUSED(state);
    while (json_next(v, &cursor, &key, &value)) {
        assert_int_equal(json_as_int(value, 0), key[0] - 'a' + 1);
        sum += json_as_int(value, 0);
        n++;
    }
    assert_int_equal(n, 3);
    assert_int_equal(sum, 6);
    cursor = NULL;
    assert_false(json_next(empty, &cursor, &key, &value));
    cursor = NULL;
    assert_false(json_next(NULL, &cursor, &key, &value));
    json_free(v);
    json_free(empty);
}

static void bad_text_is_refused_with_its_place(void **state)
{
    static const char *const bad[] = {"",
                                      " ",
                                      "{",
                                      "[1,]",
                                      "{\"a\":1,}",
                                      "{a:1}",
                                      "'a'",
                                      "[1] x",
                                      "{} {}",
                                      "01",
                                      "+1",
                                      ".5",
                                      "1.",
                                      "nan",
                                      "Infinity",
                                      "tru",
                                      "\"a",
                                      "\"\\x\"",
                                      "\"\\u12\"",
                                      "\"\n\"",
                                      "]",
                                      "[1 2]",
                                      "{\"a\" 1}",
                                      "{1:2}",
                                      "\"\\ud800\"",
                                      "1e999",
                                      "\"\xFF\"",
                                      "// x\n1",
                                      "[1]\x01",
                                      "{\"a\":}",
                                      "\"\xC0\xAF\"",
                                      "\"\\u0000\"",
                                      "99999999999999999999"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++)
        refuse(bad[i], strlen(bad[i]));
    refuse("[1]\0", 4);
    refuse("{\n  \"a\": 1,\n  \"b\" 2\n}", 22);
    assert_last_error("line 3");
    refuse("{\"lr\": 1, \"lr\": 2}", 18);
    assert_last_error("lr");
}

static void no_bytes_past_the_given_count_are_read(void **state)
{
    json_value *v = NULL;

    LS_UNUSED(state);
    assert_ok(json_parse("12345", 2, "t", &v));
    assert_int_equal(json_as_int(v, 0), 12);
    json_free(v);
    assert_status(json_parse("\"abc\\", 5, "t", &v), LS_EFORMAT);
}

static void nest(char *text, int depth, char open, char close)
{
    memset(text, open, (size_t)depth);
    memset(text + depth, close, (size_t)depth);
    text[2 * depth] = '\0';
}

static void depth_is_limited_to_63(void **state)
{
    static char text[2000001];
    text_buf written = {0};
    json_writer w = {.out = &written};
    json_value *v;

    LS_UNUSED(state);
    nest(text, 63, '[', ']');
    v = parsed(text);
    json_put_value(&w, NULL, v);
    assert_string_equal(text_str(&written), text);
    text_free(&written);
    json_free(v);
    nest(text, 64, '[', ']');
    refuse(text, strlen(text));
    assert_string_equal(ls_last_error(), "t.json: line 1 column 64: nested deeper than 63");
    nest(text, 1000000, '[', ']');
    refuse(text, strlen(text));
    nest(text, 1000000, '{', '}');
    refuse(text, strlen(text));
    memset(text, '[', sizeof(text));
    text[0] = text[200] = '"'; // brackets in a string are text
    assert_ok(json_parse(text, 201, "t", &v));
    assert_int_equal(strlen(json_as_string(v, "")), 199);
    json_free(v);
    v = parsed("[\"\\\\\",\"\\\"[[\", [2]]");
    assert_int_equal(json_size(v), 3);
    json_free(v);
}

static void put_all(json_writer *w)
{
    json_open(w, NULL, '{');
    json_put_int(w, "int", INT64_MIN);
    json_put_real(w, "real", 0.1);
    json_put_real(w, "whole", 3);
    json_put_real(w, "nan", (double)NAN);
    json_put_real(w, "inf", -HUGE_VAL);
    json_put_bool(w, "yes", true);
    json_put_bool(w, "no", false);
    json_put_string(w, "key \"\\\n", "\x01\t\x7f/\xC3\xA9\xF0\x9F\x98\x80");
    json_open(w, "list", '[');
    json_put_int(w, NULL, 1);
    json_open(w, NULL, '[');
    json_close(w, ']');
    json_open(w, NULL, '{');
    json_close(w, '}');
    json_put_string(w, NULL, "");
    json_close(w, ']');
    json_put_int(w, "last", 0);
    json_close(w, '}');
}

static void written_json_has_the_expected_form(void **state)
{
    text_buf t = {0};
    json_writer w;

    LS_UNUSED(state);
    json_begin(&w, &t);
    put_all(&w);
    assert_ok(text_status(&t));
    assert_string_equal(
        text_str(&t), "{\"int\":-9223372036854775808,\"real\":0.1,\"whole\":3.0,\"nan\":null,"
                      "\"inf\":null,\"yes\":true,\"no\":false,\"key \\\"\\\\\\n\":\"\\u0001\\u0009"
                      "\\u007f/\xC3\xA9\xF0\x9F\x98\x80\",\"list\":[1,[],{},\"\"],\"last\":0}");
    text_free(&t);
}

static void written_json_parses_to_the_same_values(void **state)
{
    text_buf t = {0};
    json_writer w;
    json_value *v;

    LS_UNUSED(state);
    json_begin(&w, &t);
    put_all(&w);
    v = parsed(text_str(&t));
    assert_true(json_as_int(json_get(v, "int"), 0) == INT64_MIN);
    assert_true(json_as_real(json_get(v, "real"), 0) == 0.1);
    assert_int_equal(json_kind_of(json_get(v, "whole")), JSON_IS_REAL);
    assert_int_equal(json_kind_of(json_get(v, "nan")), JSON_IS_NULL);
    assert_string_equal(json_as_string(json_get(v, "key \"\\\n"), ""),
                        "\x01\t\x7f/\xC3\xA9\xF0\x9F\x98\x80");
    assert_int_equal(json_size(json_get(v, "list")), 4);
    json_free(v);
    text_free(&t);
}

static void every_real_comes_back_to_the_bit(void **state)
{
    text_buf t = {0};
    json_writer w;
    json_value *v;
    ls_rng rng;
    double want[1000];

    LS_UNUSED(state);
    ls_rng_seed(&rng, 12);
    json_begin(&w, &t);
    json_open(&w, NULL, '[');
    for (size_t i = 0; i < LS_COUNT_OF(want); i++) {
        uint64_t bits;

        do {
            bits = ls_rng_next(&rng);
            memcpy(&want[i], &bits, sizeof(bits));
        } while (!isnormal(want[i]));
        json_put_real(&w, NULL, want[i]);
    }
    json_close(&w, ']');
    v = parsed(text_str(&t));
    for (size_t i = 0; i < LS_COUNT_OF(want); i++)
        assert_true(json_as_real(json_at(v, i), 0) == want[i]);
    json_free(v);
    text_free(&t);
}

static void the_programs_locale_changes_nothing(void **state)
{
    text_buf t = {0};
    json_writer w;
    json_value *v;

    LS_UNUSED(state);
    if (!use_comma_locale())
        skip();
    json_begin(&w, &t);
    json_put_real(&w, NULL, 0.5);
    assert_string_equal(text_str(&t), "0.5");
    v = parsed("0.5");
    assert_true(json_as_real(v, 0) == 0.5);
    json_free(v);
    text_free(&t);
    (void)setlocale(LC_ALL, "C");
}

/* The result is valid JSON, whatever bytes a name has. */
static void invalid_utf8_is_replaced(void **state)
{
    static const char *const bad[] = {"\x80",         "\xC0\xAF",         "\xE0\x80\xAF",
                                      "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80",
                                      "\xC3",         "\xE2\x82",         "\xFF\xFE"};
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, 13);
    for (size_t i = 0; i < LS_COUNT_OF(bad) + 2000; i++) {
        text_buf t = {0};
        json_writer w;
        char text[16] = "";

        if (i < LS_COUNT_OF(bad)) {
            (void)text_format(text, sizeof(text), "%s", bad[i]);
        } else {
            for (size_t k = 0; k < 12; k++)
                text[k] = (char)(0x80 | ls_rng_below(&rng, 128));
        }
        json_begin(&w, &t);
        json_put_string(&w, NULL, text);
        if (i < LS_COUNT_OF(bad))
            assert_non_null(strstr(text_str(&t), "\xEF\xBF\xBD"));
        json_free(parsed(text_str(&t)));
        text_free(&t);
    }
}

static void garbage_never_crashes_the_parser(void **state)
{
    static const char alphabet[] = "{}[]\",:\\u0019.eE+-truefalsn \n";
    ls_rng rng;
    int n_taken = 0;

    LS_UNUSED(state);
    ls_rng_seed(&rng, 14);
    for (int i = 0; i < 20000; i++) {
        char text[24];
        const size_t n = (size_t)ls_rng_below(&rng, sizeof(text));
        char *exact = ls_calloc(n, 1); // so that ASan sees a read beyond it
        json_value *v = NULL;

        for (size_t k = 0; k < n; k++)
            exact[k] = alphabet[ls_rng_below(&rng, sizeof(alphabet) - 1)];
        if (json_parse(exact, n, "garbage", &v) == LS_OK) {
            json_free(v);
            n_taken++;
        }
        ls_free(exact);
    }
    assert_true(n_taken > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_found_by_key_and_place),
        cmocka_unit_test(absent_or_mistyped_value_gives_the_default),
        cmocka_unit_test(object_iteration_visits_each_item_once),
        cmocka_unit_test(bad_text_is_refused_with_its_place),
        cmocka_unit_test(no_bytes_past_the_given_count_are_read),
        cmocka_unit_test(depth_is_limited_to_63),
        cmocka_unit_test(written_json_has_the_expected_form),
        cmocka_unit_test(written_json_parses_to_the_same_values),
        cmocka_unit_test(every_real_comes_back_to_the_bit),
        cmocka_unit_test(the_programs_locale_changes_nothing),
        cmocka_unit_test(invalid_utf8_is_replaced),
        cmocka_unit_test(garbage_never_crashes_the_parser),
    };

    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
