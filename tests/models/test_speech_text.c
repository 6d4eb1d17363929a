/* SPDX-License-Identifier: Apache-2.0 */
/* test_speech_text.c - tests the cleaning of English text and its symbol ids. */
#include "base/unit.h"

#include "models/speech/text.h"

#include <string.h>

static speech_error error;

static void expect_clean(const char *text, const char *expected)
{
    char out[TEXT_MAX_IDS + 1];

    if (text_clean(text, out, sizeof(out), &error) != LS_OK)
        fail_msg("\"%s\": %s", text, error.text);
    assert_string_equal(out, expected);
}

static void expect_refused(const char *text, const char *part)
{
    char out[TEXT_MAX_IDS + 1];

    assert_int_equal(text_clean(text, out, sizeof(out), &error), LS_EFORMAT);
    if (strstr(error.text, part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, error.text);
}

/* Expected words: inflect.engine().number_to_words() with the arguments of NVIDIA's cleaner. */
static void numbers_become_words(void **state)
{
    (void)state;
    expect_clean("0 7 13 21 100", "zero seven thirteen twenty-one one hundred");
    expect_clean("123", "one hundred twenty-three");
    expect_clean("1000", "one thousand");
    expect_clean("3005", "three thousand five");
    expect_clean("1,234,567", "one million, two hundred thirty-four thousand, five hundred "
                              "sixty-seven");
    expect_clean("20000015", "twenty million fifteen");
    expect_clean("3.14", "three point fourteen");
    expect_clean("1.2.3", "one point two.three");
    expect_clean("007", "seven");
    expect_clean("999999999999999",
                 "nine hundred ninety-nine trillion, nine hundred ninety-nine billion, nine "
                 "hundred ninety-nine million, nine hundred ninety-nine thousand, nine hundred "
                 "ninety-nine");
    expect_clean("1234567890123456",
                 "one two three four five six seven eight nine zero one two three four five six");
}

static void years_are_read_in_pairs(void **state)
{
    (void)state;
    expect_clean("1905 1999 1900", "nineteen oh five nineteen ninety-nine nineteen hundred");
    expect_clean("2000 2005 2011", "two thousand two thousand five twenty eleven");
    expect_clean("1001 2999", "ten oh one twenty-nine ninety-nine");
}

static void ordinals_become_words(void **state)
{
    (void)state;
    expect_clean("1st 2nd 3rd 4th 5th", "first second third fourth fifth");
    expect_clean("12th 20th 21st 100th", "twelfth twentieth twenty-first one hundredth");
    expect_clean("101st", "one hundred and first");
    expect_clean("1234th", "one thousand, two hundred and thirty-fourth");
}

static void money_becomes_words(void **state)
{
    (void)state;
    expect_clean("$1 $3.50 $0.01 $0", "one dollar three dollars, fifty cents one cent zero "
                                      "dollars");
    expect_clean("$1,000.", "one thousand dollars.");
    expect_clean("\xC2\xA3"
                 "20",
                 "twenty pounds");
    expect_clean("$ and $x", "$ and $x");
}

static void abbreviations_become_words(void **state)
{
    (void)state;
    expect_clean("Mr. and Mrs. Smith, Dr. No", "mister and misess smith, doctor no");
    expect_clean("St. Col. Ltd.", "saint colonel limited");
    expect_clean("first. must. mr", "first. must. mr");
}

static void letters_lose_accents(void **state)
{
    (void)state;
    expect_clean("\xC3\x89t\xC3\xA9 \xC5\x81\xC3\xB3\x64\xC5\xBA \xC3\x86on stra\xC3\x9F\x65",
                 "ete lodz aeon strasse");
    expect_clean("e\xCC\x81", "e");
    expect_clean("it\xE2\x80\x99s \xE2\x80\x94 well\xE2\x80\xA6", "it's -- well...");
}

static void white_space_becomes_one_space(void **state)
{
    (void)state;
    expect_clean("a \t\n b\xC2\xA0\xE2\x80\x83 c", "a b c");
}

/* Ids: '_' 0, '-' 1, "!'(),.:;? " 2-11, A-Z 12-37, a-z 38-63. */
static void ids_are_those_of_nvidia(void **state)
{
    static const int64_t expected[] = {38, 63, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    int64_t ids[32];
    size_t n;

    (void)state;
    assert_int_equal(text_to_ids("Az-!'(),.:;? ", ids, 32, &n, NULL, &error), LS_OK);
    assert_int_equal(n, sizeof(expected) / sizeof(expected[0]));
    assert_memory_equal(ids, expected, sizeof(expected));
}

static void unknown_symbols_are_named_and_counted(void **state)
{
    text_unknown unknown;
    int64_t ids[32];
    size_t n;

    (void)state;
    assert_int_equal(text_to_ids("a\"b\" & \xE4\xB8\xAD_", ids, 32, &n, &unknown, &error), LS_OK);
    assert_int_equal(n, 4); /* a, b and two spaces */
    assert_int_equal(unknown.n, 5);
    assert_string_equal(unknown.names, "\" & U+4E2D _");
    assert_int_equal(text_to_ids("\xE4\xB8\xAD", ids, 32, &n, &unknown, &error), LS_EFORMAT);
    assert_non_null(strstr(error.text, "U+4E2D"));
}

static void bad_text_is_refused(void **state)
{
    char longer[TEXT_MAX_BYTES + 2];
    char small[4];
    int64_t ids[2];
    size_t n;

    (void)state;
    expect_refused("", "empty");
    expect_refused(" \t", "empty");
    expect_refused("ab\xFF", "offset 2");
    expect_refused("\xC0\x80", "not UTF-8");
    expect_refused("\xED\xA0\x80", "not UTF-8");
    expect_refused("\xE4\xB8", "not UTF-8");
    expect_refused("{HH AH0}", "ARPAbet");
    memset(longer, 'a', sizeof(longer));
    longer[sizeof(longer) - 1] = 0;
    expect_refused(longer, "4097 bytes");
    memset(longer, '7', sizeof(longer));
    longer[TEXT_MAX_BYTES] = 0;
    expect_refused(longer, "too long");
    assert_int_equal(text_clean("hello", small, sizeof(small), &error), LS_EFORMAT);
    assert_int_equal(text_to_ids("abc", ids, 2, &n, NULL, &error), LS_EFORMAT);
    assert_int_equal(text_to_ids("abc", ids, 2, &n, NULL, NULL), LS_EFORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_become_words),
        cmocka_unit_test(years_are_read_in_pairs),
        cmocka_unit_test(ordinals_become_words),
        cmocka_unit_test(money_becomes_words),
        cmocka_unit_test(abbreviations_become_words),
        cmocka_unit_test(letters_lose_accents),
        cmocka_unit_test(white_space_becomes_one_space),
        cmocka_unit_test(ids_are_those_of_nvidia),
        cmocka_unit_test(unknown_symbols_are_named_and_counted),
        cmocka_unit_test(bad_text_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
