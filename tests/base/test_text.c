/* SPDX-License-Identifier: Apache-2.0 */
/* test_text.c - number parsing, sizes, growing strings and printable text. */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "base/text.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>

static void refuse_int(const char *s, int64_t min, int64_t max)
{
    int64_t out = -77;

    assert_status(text_parse_int(s, "--n", min, max, &out), LS_EINVAL);
    assert_last_error("--n: ");
    assert_int_equal(out, -77);
}

static int64_t parsed_int(const char *s)
{
    int64_t out = 0;

    assert_ok(text_parse_int(s, "--n", INT64_MIN, INT64_MAX, &out));
    return out;
}

static void whole_numbers_are_read_to_the_last_bit(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(parsed_int("0"), 0);
    assert_int_equal(parsed_int("-0"), 0);
    assert_int_equal(parsed_int("+17"), 17);
    assert_int_equal(parsed_int("-17"), -17);
    assert_int_equal(parsed_int("007"), 7);
    assert_true(parsed_int("9223372036854775807") == INT64_MAX);
    assert_true(parsed_int("-9223372036854775808") == INT64_MIN);
    assert_true(parsed_int("000000000000000000000000000009223372036854775807") == INT64_MAX);
}

static void invalid_whole_numbers_are_refused(void **state)
{
    static const char *const bad[] = {"",
                                      " ",
                                      "+",
                                      "-",
                                      "+-1",
                                      "--1",
                                      " 1",
                                      "1 ",
                                      "1x",
                                      "0x10",
                                      "1.0",
                                      "1e3",
                                      "ten",
                                      "\n1",
                                      "1\n",
                                      "1,000",
                                      "1_0",
                                      "\xD9\xA1",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "18446744073709551616",
                                      "99999999999999999999999999999999999999"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++)
        refuse_int(bad[i], INT64_MIN, INT64_MAX);
}

static void bounds_of_whole_numbers_hold(void **state)
{
    int64_t out;

    LS_UNUSED(state);
    assert_ok(text_parse_int("1", "--n", 1, 8, &out));
    assert_ok(text_parse_int("8", "--n", 1, 8, &out));
    refuse_int("0", 1, 8);
    refuse_int("9", 1, 8);
    assert_string_equal(ls_last_error(), "--n: \"9\" is not a whole number from 1 to 8");
    refuse_int("-1", 0, 8);
}

static void a_long_bad_value_is_shown_short_and_printable(void **state)
{
    char huge[5000];

    LS_UNUSED(state);
    memset(huge, '9', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = '\0';
    refuse_int(huge, 0, 1);
    assert_true(strlen(ls_last_error()) < 150);
    refuse_int("1\x1b[31m\n", 0, 1);
    assert_last_error("\"1?[31m?\"");
}

static void random_whole_numbers_come_back(void **state)
{
    ls_rng rng;
    char text[32];

    LS_UNUSED(state);
    ls_rng_seed(&rng, 6);
    for (int i = 0; i < 20000; i++) {
        const int64_t value = (int64_t)(ls_rng_next(&rng) >> ls_rng_below(&rng, 64));

        (void)text_format(text, sizeof(text), "%" PRId64, value);
        assert_true(parsed_int(text) == value);
    }
}

static double parsed_double(const char *s)
{
    double out = 0;

    assert_ok(text_parse_double(s, "--lr", -HUGE_VAL, HUGE_VAL, &out));
    return out;
}

static void numbers_are_read_exactly(void **state)
{
    LS_UNUSED(state);
    assert_true(parsed_double("0.1") == 0.1);
    assert_true(parsed_double("-1e-3") == -1e-3);
    assert_true(parsed_double("+2.5E+2") == 250);
    assert_true(parsed_double(".5") == 0.5);
    assert_true(parsed_double("5.") == 5);
    assert_true(parsed_double("4.9406564584124654e-324") > 0);
    assert_true(parsed_double("1e-999") == 0);
    assert_true(parsed_double("inf") == HUGE_VAL);
    assert_true(parsed_double("-Infinity") == -HUGE_VAL);
    assert_true(parsed_double("1.7976931348623157e308") < HUGE_VAL);
}

static void invalid_numbers_are_refused(void **state)
{
    static const char *const bad[] = {"",     " ",     ".",      "-",     "e5", "1e",
                                      "1e+",  "1..2",  "1,5",    " 1",    "1 ", "nan",
                                      "-nan", "NAN",   "nan(1)", "0x1p3", "1f", "--1",
                                      "+-1",  "1e999", "-1e999", "infx",  "in", "1d3"};
    double out = -7;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        if (text_parse_double(bad[i], "--lr", -HUGE_VAL, HUGE_VAL, &out) != LS_EINVAL)
            fail_msg("\"%s\" was taken", bad[i]);
        assert_true(out == -7);
    }
    assert_status(text_parse_double("1.5", "--lr", 0, 1, &out), LS_EINVAL);
    assert_string_equal(ls_last_error(), "--lr: \"1.5\" is not a number from 0 to 1");
    assert_status(text_parse_double("inf", "--lr", 0, 1e308, &out), LS_EINVAL);
}

static void the_programs_locale_changes_nothing(void **state)
{
    char buf[32];

    LS_UNUSED(state);
    if (!use_comma_locale())
        skip();
    assert_true(parsed_double("1.5") == 1.5);
    assert_string_equal(text_bytes(buf, sizeof(buf), 1536), "1.5 KiB");
    (void)setlocale(LC_ALL, "C");
}

static void all_numbers_but_1_have_a_plural(void **state)
{
    LS_UNUSED(state);
    assert_string_equal(text_plural(1), "");
    assert_string_equal(text_plural(0), "s");
    assert_string_equal(text_plural(2), "s");
}

static void sizes_are_binary_multiples(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"8", 8},
                {"64K", 65536},
                {"64k", 65536},
                {"32M", (uint64_t)32 << 20},
                {"1G", (uint64_t)1 << 30},
                {"2t", (uint64_t)2 << 40},
                {"16777215T", (uint64_t)16777215 << 40},
                {"18446744073709551615", UINT64_MAX}};
    static const char *const bad[] = {"",
                                      "K",
                                      " 8",
                                      "8 ",
                                      "8 K",
                                      "-8",
                                      "+8",
                                      "1.5K",
                                      "8KK",
                                      "8KB",
                                      "8X",
                                      "0x8",
                                      "8K ",
                                      "8@",
                                      "16777216T",
                                      "8\v",
                                      "18446744073709551616",
                                      "18014398509481984K"};
    uint64_t out = 0;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(good); i++) {
        assert_ok(text_parse_bytes(good[i].text, "-b", UINT64_MAX, &out));
        assert_true(out == good[i].bytes);
    }
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        if (text_parse_bytes(bad[i], "-b", UINT64_MAX, &out) != LS_EINVAL)
            fail_msg("\"%s\" was taken", bad[i]);
    }
    assert_ok(text_parse_bytes("1M", "-b", 1 << 20, &out));
    assert_status(text_parse_bytes("1025K", "-b", 1 << 20, &out), LS_EINVAL);
    assert_last_error("at most 1 MiB");
    assert_last_error("\"1025K\"");
}

static void switches_take_the_usual_words(void **state)
{
    static const char *const yes[] = {"1", "true", "yes", "on", "TRUE", "On"};
    static const char *const no[] = {"0", "false", "no", "off", "False"};
    static const char *const bad[] = {"", "2", "y", "tru", "01", " 1", "enable"};
    bool out = false;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(yes); i++) {
        assert_ok(text_parse_bool(yes[i], "--x", &out));
        assert_true(out);
    }
    for (size_t i = 0; i < LS_COUNT_OF(no); i++) {
        assert_ok(text_parse_bool(no[i], "--x", &out));
        assert_false(out);
    }
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++)
        assert_status(text_parse_bool(bad[i], "--x", &out), LS_EINVAL);
    assert_last_error("--x: \"enable\"");
}

static void sizes_are_shown_rounded(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0 B"},
                 {1023, "1023 B"},
                 {1024, "1 KiB"},
                 {1536, "1.5 KiB"},
                 {1048575, "1 MiB"},
                 {(uint64_t)3 << 19, "1.5 MiB"},
                 {((uint64_t)1 << 30) - 1, "1 GiB"},
                 {(uint64_t)5 << 40, "5 TiB"},
                 {UINT64_MAX, "16 EiB"}};
    char buf[32];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
        assert_string_equal(text_bytes(buf, sizeof(buf), cases[i].bytes), cases[i].text);
    assert_string_equal(text_bytes(buf, 4, 1536), "1.5");
}

static void a_growing_text_holds_all_of_it(void **state)
{
    text_buf t = {0};
    char want[16];
    size_t at = 0;

    LS_UNUSED(state);
    assert_string_equal(text_str(&t), "");
    for (int i = 0; i < 5000; i++)
        text_append(&t, "%d,", i);
    assert_ok(text_status(&t));
    assert_int_equal(strlen(text_str(&t)), t.length);
    for (int i = 0; i < 5000; i++) {
        (void)text_format(want, sizeof(want), "%d,", i);
        assert_true(strncmp(text_str(&t) + at, want, strlen(want)) == 0);
        at += strlen(want);
    }
    assert_int_equal(at, t.length);
    text_free(&t);
    text_append_bytes(&t, "a\0b", 3);
    text_append_bytes(&t, NULL, 0);
    assert_int_equal(t.length, 3);
    assert_memory_equal(t.data, "a\0b", 4);
    text_free(&t);
}

static void each_failed_growth_is_remembered(void **state)
{
    LS_UNUSED(state);
    for (uint64_t n = 1; n <= 4; n++) {
        text_buf t = {0};

        ls_alloc_fail_at(n);
        for (int i = 0; i < 100; i++)
            text_append(&t, "%08d", i);
        ls_alloc_fail_at(0);
        assert_status(text_status(&t), LS_ENOMEM);
        assert_true(t.length < 800);
        assert_int_equal(strlen(text_str(&t)), t.length);
        text_free(&t);
        text_append(&t, "again");
        assert_ok(text_status(&t));
        text_free(&t);
    }
}

static void printable_utf8_is_preserved(void **state)
{
    static const struct {
        const char *in;
        const char *out;
    } cases[] = {
        {"h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x98\x80",
         "h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xc2\x9b"
         "31m",
         "??31m"},                           /* CSI in one character */
        {"\x9b", "?"},                       /* and in one byte */
        {"\xc0\x9b \xe0\x82\x9b", "?? ???"}, /* overlong forms */
        /* A surrogate, and a value beyond the last character. */
        {"\xed\xa0\x80 \xf4\x90\x80\x80", "??? ????"},
        {"\xe2\x80\xae \xe2\x81\xa6", "??? ???"}, /* changes the direction of the line */
        {"\xc3", "?"},                            /* cut */
        {"\xe2\x82 \xf0\x9f\x98", "?? ???"},      /* cut */
        {"\xff\xfe", "??"},
    };
    char cut[5];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        char dst[64];

        text_printable(dst, sizeof(dst), cases[i].in);
        assert_string_equal(dst, cases[i].out);
        text_format(dst, sizeof(dst), "%s", cases[i].in);
        text_printable(dst, sizeof(dst), dst);
        assert_string_equal(dst, cases[i].out);
    }
    text_printable(cut, sizeof(cut), "ab\xe2\x82\xac");
    assert_string_equal(cut, "ab"); /* no half characters */
    assert_int_equal(text_char_bytes("\xe2\x82\xac", 3), 3);
    assert_int_equal(text_char_bytes("\xe2\x82\xac", 2), 0);
    assert_int_equal(text_char_bytes("", 0), 0);
}

static void foreign_text_is_made_printable(void **state)
{
    char dst[8];
    char one[1] = {'x'};

    LS_UNUSED(state);
    text_printable(dst, sizeof(dst), "a\x1b\n\x7f\xc3~z0");
    assert_string_equal(dst, "a????~z");
    text_printable(one, 1, "abc");
    assert_int_equal(one[0], 0);
    text_printable(dst, 0, "abc");
    assert_string_equal(dst, "a????~z");
    assert_string_equal(text_format(dst, sizeof(dst), "%s", "0123456789"), "0123456");
    assert_string_equal(text_format(dst, 0, "x"), "");
}

static void texts_are_compared_whole_and_by_prefix(void **state)
{
    LS_UNUSED(state);
    assert_true(text_equal("a", "a"));
    assert_false(text_equal("a", "ab"));
    assert_true(text_starts("--rank=3", "--rank="));
    assert_true(text_starts("x", ""));
    assert_false(text_starts("--ran", "--rank="));
}

static void items_of_a_list_have_no_blanks_around_them(void **state)
{
    static const char *const items[] = {"8", "2", "", "long"};
    const char *list = " 8 ,\t2,, longer,";
    char item[5];

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(items); i++) {
        assert_true(text_next_item(&list, item, sizeof(item)));
        assert_string_equal(item, items[i]);
    }
    assert_false(text_next_item(&list, item, sizeof(item)));
}

static void patterns_match_whole_names(void **state)
{
    static const struct {
        const char *pattern;
        const char *text;
        bool matches;
    } all[] = {
        {"", "", true},
        {"", "a", false},
        {"*", "", true},
        {"?", "", false},
        {"*", "a.b/c", true},
        {"a.*", "a.b.c", true},
        {"a.*", "ab", false},
        {"*.bias", "a.bias", true},
        {"*.bias", "a.bias2", false},
        {"*a*b", "xaxbxb", true},
        {"*a*b", "xaxbx", false},
        {"a?c", "abc", true},
        {"l[12].w", "l2.w", true},
        {"l[12].w", "l3.w", false},
        {"l[0-9]", "l7", true},
        {"l[0-9]", "lx", false},
        {"l[!0-9]", "lx", true},
        {"l[!0-9]", "l7", false},
        {"[]]", "]", true},
        {"[a", "[a", true},
        {"[", "[", true},
        {"[a-]", "-", true},
        {"**", "x", true},
        {"a", "A", false},
    };
    char many[2048];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        if (text_matches(all[i].text, all[i].pattern) != all[i].matches)
            fail_msg("%s and %s", all[i].pattern, all[i].text);
    }
    // Patterns that take exponential time in simpler implementations.
    memset(many, 'a', sizeof(many) - 1);
    many[sizeof(many) - 1] = 0;
    assert_false(text_matches(many, "*a*a*a*a*a*a*a*a*a*a*a*a*b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_of_a_list_have_no_blanks_around_them),
        cmocka_unit_test(whole_numbers_are_read_to_the_last_bit),
        cmocka_unit_test(invalid_whole_numbers_are_refused),
        cmocka_unit_test(bounds_of_whole_numbers_hold),
        cmocka_unit_test(a_long_bad_value_is_shown_short_and_printable),
        cmocka_unit_test(random_whole_numbers_come_back),
        cmocka_unit_test(numbers_are_read_exactly),
        cmocka_unit_test(invalid_numbers_are_refused),
        cmocka_unit_test(the_programs_locale_changes_nothing),
        cmocka_unit_test(all_numbers_but_1_have_a_plural),
        cmocka_unit_test(sizes_are_binary_multiples),
        cmocka_unit_test(switches_take_the_usual_words),
        cmocka_unit_test(sizes_are_shown_rounded),
        cmocka_unit_test(a_growing_text_holds_all_of_it),
        cmocka_unit_test(each_failed_growth_is_remembered),
        cmocka_unit_test(printable_utf8_is_preserved),
        cmocka_unit_test(foreign_text_is_made_printable),
        cmocka_unit_test(texts_are_compared_whole_and_by_prefix),
        cmocka_unit_test(patterns_match_whole_names),
    };

    return cmocka_run_group_tests_name("text", tests, NULL, NULL);
}
