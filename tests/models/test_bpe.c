/* SPDX-License-Identifier: Apache-2.0 */
/* test_bpe.c - tests text as tokens: words, merges, the two files, and every refusal of them. */
#include "base/unit.h"

#include "base/rng.h"
#include "data/temp_files.h"
#include "models/bpe_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES = 8192, SEED = 17 };

static temp_folder folder;
static char vocab[TEMP_PATH_BYTES];
static char merges[TEMP_PATH_BYTES];

static int make_folder(void **state)
{
    (void)state;
    temp_folder_create(&folder);
    (void)temp_path(&folder, "vocab.json", vocab);
    (void)temp_path(&folder, "merges.txt", merges);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    temp_folder_remove(&folder);
    return 0;
}

static void append(char *text, const char *more)
{
    const size_t n = strlen(text);

    assert_true(n + strlen(more) < FILE_BYTES);
    memcpy(text + n, more, strlen(more) + 1);
}

/* A vocabulary of the 256 bytes, whose ids are not the bytes, and then `more`. */
static void vocab_text(char *text, const char *more)
{
    unsigned rest = 0x100;
    char pair[32];

    text[0] = 0;
    append(text, "{");
    for (unsigned i = 0; i < 256; i++) {
        const bool is_itself = (i > 0x20 && i < 0x7F) || (i > 0xA0 && i != 0xAD);
        const unsigned c = is_itself ? i : rest++;

        if (c > 0x7F)
            (void)snprintf(pair, sizeof(pair), "%s\"\\u%04x\": %u", i > 0 ? ", " : "", c, 255 - i);
        else
            (void)snprintf(pair, sizeof(pair), "%s\"%s%c\": %u", i > 0 ? ", " : "",
                           c == '"' || c == '\\' ? "\\" : "", (int)c, 255 - i);
        append(text, pair);
    }
    append(text, more);
    append(text, "}\n");
}

/* A new file: file systems wait for the disk when a file is truncated and written again. */
static void write_new(const char *path, const void *data, size_t n)
{
    (void)remove(path);
    temp_write(path, data, n);
}

static void write_vocab(const char *more)
{
    static char text[FILE_BYTES];

    vocab_text(text, more);
    write_new(vocab, text, strlen(text));
}

static void write_merges(const char *text)
{
    write_new(merges, text, strlen(text));
}

static bpe *open_files(void)
{
    bpe *b = NULL;

    if (bpe_open(vocab, merges, &b) != LS_OK)
        fail_msg("%s", ls_last_error());
    return b;
}

/* Whether the tokens' bytes are the text. */
static bool is_text_of(const bpe *b, const int64_t *ids, size_t n_ids, const char *text, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < n_ids; i++) {
        size_t bytes;
        const char *token = bpe_token(b, ids[i], &bytes);

        if (bytes > n - at || memcmp(token, text + at, bytes) != 0)
            return false;
        at += bytes;
    }
    return at == n;
}

static void expect_ids(const bpe *b, const char *text, const int64_t *want, size_t n_want)
{
    int64_t *ids;
    size_t n;

    assert_int_equal(bpe_encode(b, text, strlen(text), &ids, &n), LS_OK);
    assert_int_equal(n, n_want);
    assert_memory_equal(ids, want, n * sizeof(ids[0]));
    assert_true(is_text_of(b, ids, n, text, strlen(text)));
    free(ids);
}

static void bytes_are_tokens_without_files(void **state)
{
    bpe *b = NULL;

    (void)state;
    assert_int_equal(bpe_open(NULL, NULL, &b), LS_OK);
    assert_int_equal(bpe_count(b), 256);
    expect_ids(b, "a \xFF", (const int64_t[]){'a', ' ', 0xFF}, 3);
    expect_ids(b, "", NULL, 0);
    bpe_close(b);
}

/* Words are written with a bar between them. */
static void expect_words(const char *bars)
{
    char text[128];
    char found[256];
    size_t n = 0;
    size_t used = 0;

    for (const char *c = bars; *c != 0; c++)
        if (*c != '|')
            text[n++] = *c;
    for (size_t at = 0; at < n;) {
        const size_t end = bpe_word_end(text, n, at);

        assert_true(end > at && end <= n);
        if (at > 0)
            found[used++] = '|';
        memcpy(found + used, text + at, end - at);
        used += end - at;
        at = end;
    }
    found[used] = 0;
    assert_string_equal(found, bars);
}

static void words_are_matches_of_gpt2s_expression(void **state)
{
    static const char *const lines[] = {
        "The| GNU| General| Public| License|,| version|3|.",
        "it|'s| don|'t| we|'ll| you|'re| I|'ve| I|'m| he|'d| IT|'|S| '|x",
        "a|  | b|  | 12|    ",
        "a|\n|b|\n\n|\t|c",
        " (|x|+=|1|)...",
        " | a|   ",
        "x|\r\n\r\n", /* white space at the end is one word */
        "na\xC3\xAFve|\xC2\xA0|caf\xC3\xA9| \xD9\xA3\xC2\xBD|\xE6\x96\x87\xE5\xAD\x97|\xE3\x80\x82",
        "a|\xFF\xFE|b| \xC3|c| \xF0\x9F\x98\x80|z",
        "\x1C|a", /* no white space in Unicode */
        "'",
        "'|l",
    };

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(lines); i++)
        expect_words(lines[i]);
}

static void merges_of_lower_rank_are_made_first(void **state)
{
    bpe *b;

    (void)state;
    write_vocab(", \"bc\": 256, \"ab\": 257, \"abc\": 258, \"\\u0120a\": 259, \"aa\": 260");
    write_merges("#version: 0.2\nb c\na b\na bc\n\xC4\xA0 a\na a\n");
    b = open_files();
    assert_int_equal(bpe_count(b), 261);
    expect_ids(b, "abc", (const int64_t[]){258}, 1);
    expect_ids(b, "ab", (const int64_t[]){257}, 1);
    expect_ids(b, "abb", (const int64_t[]){257, 255 - 'b'}, 2);
    expect_ids(b, " abc", (const int64_t[]){255 - ' ', 258}, 2); /* "b c" before "_ a" */
    expect_ids(b, " ac", (const int64_t[]){259, 255 - 'c'}, 2);
    expect_ids(b, "aaaaa", (const int64_t[]){260, 260, 255 - 'a'}, 3);
    expect_ids(b, "b\ncb c", /* not across words */
               (const int64_t[]){255 - 'b', 255 - '\n', 255 - 'c', 255 - 'b', 255 - ' ', 255 - 'c'},
               6);
    bpe_close(b);
}

/* A byte order mark, and lines that end with CR and LF. */
static void files_of_other_editors_are_the_same(void **state)
{
    static char text[FILE_BYTES];
    int64_t *ids;
    size_t n;
    bpe *b;

    (void)state;
    memcpy(text, "\xEF\xBB\xBF", 3);
    vocab_text(text + 3, ",\r\n \"ab\": 256, \"aba\": 257\r\n");
    write_new(vocab, text, strlen(text));
    write_merges("\xEF\xBB\xBF#version: 0.2\r\na b\r\n\r\nab a\r\n");
    b = open_files();
    expect_ids(b, "aba", (const int64_t[]){257}, 1);
    write_merges("\xEF\xBB\xBF"
                 "aba");
    assert_int_equal(bpe_encode_file(b, merges, &ids, &n), LS_OK);
    assert_int_equal(n, 1);
    free(ids);
    bpe_close(b);
}

static void expect_refused(const char *path, ls_status status, const char *part)
{
    bpe *b = NULL;

    assert_int_equal(bpe_open(vocab, merges, &b), status);
    assert_null(b);
    if (strstr(ls_last_error(), part) == NULL || strstr(ls_last_error(), path) == NULL)
        fail_msg("\"%s\" or \"%s\" is not in \"%s\"", part, path, ls_last_error());
}

static void bad_vocabularies_are_refused(void **state)
{
    static const struct {
        const char *more, *part;
    } cases[] = {
        {", \"aa\": 255", "occurs twice"},
        {", \"aa\": 300", "none has the id 256"},
        {", \"aa\": 1048576", "too large"},
        {", \"aa\": -1", "no id"},
        {", \"aa\": 0256", "no id"},
        {", \"aa\": 25600000", "no id"},
        {", \"aa\": \"256\"", "no id"},
        {", \"aa\" 256", "no colon"},
        {", \"\": 256", "empty token"},
        {", \"a\": 256", "the same token"},
        {", \"a b\": 256", "U+0020 stands for no byte"},
        {", \"\\u0144\": 256", "U+0144 stands for no byte"},
        {", \"\\ud83d\\ude00\": 256", "U+D83D stands for no byte"},
        {", \"\\u12g4\": 256", "invalid escape"},
        {", \"\\x\": 256", "invalid escape"},
        {", \"\xFF\": 256", "not UTF-8"},
        {", \"aa\": 256]", "no end"},
        {", \"aa\": 256}}", "no end"},
        {", [1]", "no token in quotes"},
        {",", "no token in quotes"},
    };

    (void)state;
    write_merges("");
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        write_vocab(cases[i].more);
        expect_refused(vocab, LS_EFORMAT, cases[i].part);
    }
    write_new(vocab, "{\"a\": 0}", 8);
    expect_refused(vocab, LS_EFORMAT, "no token for the byte 0x00");
    write_new(vocab, "[]", 2);
    expect_refused(vocab, LS_EFORMAT, "no JSON object");
}

static void bad_merges_are_refused(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"a\n", "offset 1: not two tokens"},
        {"a \n", "offset 2: not two tokens"},
        {" a\n", "offset 0: not two tokens"},
        {"a b\na c\n", "offset 4: the vocabulary lacks"},
        {"a b c\n", "U+0020 stands for no byte"},
        {"a b\rc\n", "U+000D stands for no byte"},
        {"a \xFF\n", "not UTF-8"},
        {"#version\na b\na b\n", "merges 0 and 1"},
    };

    (void)state;
    write_vocab(", \"ab\": 256");
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        write_merges(cases[i].text);
        expect_refused(merges, LS_EFORMAT, cases[i].part);
    }
}

static void missing_files_are_named(void **state)
{
    bpe *b = NULL;
    int64_t *ids;
    size_t n;

    (void)state;
    write_vocab("");
    (void)remove(merges);
    expect_refused(merges, LS_ENOTFOUND, "No such file");
    temp_folder_make(&folder, "merges.txt");
    expect_refused(merges, LS_EIO, "not a regular file");
    assert_int_equal(rmdir(merges), 0);
    assert_int_equal(mkfifo(merges, 0600), 0);
    expect_refused(merges, LS_EIO, "not a regular file");
    assert_int_equal(unlink(merges), 0);
    assert_int_equal(bpe_open(vocab, NULL, &b), LS_EINVAL);
    assert_int_equal(bpe_open(NULL, NULL, &b), LS_OK);
    assert_int_equal(bpe_encode_file(b, merges, &ids, &n), LS_ENOTFOUND);
    bpe_close(b);
}

static void truncated_vocabularies_are_refused(void **state)
{
    char text[FILE_BYTES];
    bpe *b = NULL;

    (void)state;
    write_merges("");
    vocab_text(text, ", \"ab\": 256");
    for (size_t n = 0; n < strlen(text) - 2; n++) {
        write_new(vocab, text, n);
        assert_int_equal(bpe_open(vocab, merges, &b), LS_EFORMAT);
    }
}

/* Random bytes of text, and files in which a few bytes differ. */
static void any_text_is_that_of_its_tokens(void **state)
{
    static const char start[] = "#version: 0.2\na b\nab ab\n";
    char vocab_file[FILE_BYTES];
    char merges_file[sizeof(start)];
    int n_opened = 0;
    ls_rng rng;

    (void)state;
    print_message("seed %d\n", SEED);
    ls_rng_seed(&rng, SEED);
    for (int round = 0; round < 2000; round++) {
        char text[64];
        int64_t *ids;
        size_t n;
        bpe *b;

        vocab_text(vocab_file, ", \"ab\": 256, \"abab\": 257");
        memcpy(merges_file, start, sizeof(start));
        if (round % 3 == 1)
            vocab_file[ls_rng_below(&rng, strlen(vocab_file))] = (char)ls_rng_next(&rng);
        if (round % 3 == 2)
            merges_file[ls_rng_below(&rng, sizeof(start))] = "ab \n#"[ls_rng_below(&rng, 5)];
        write_new(vocab, vocab_file, strlen(vocab_file));
        write_new(merges, merges_file, sizeof(start) - 1);
        if (bpe_open(vocab, merges, &b) != LS_OK)
            continue;
        n_opened++;
        for (size_t i = 0; i < sizeof(text); i++)
            text[i] = (char)(round % 2 ? ls_rng_next(&rng) : 'a' + ls_rng_below(&rng, 2));
        assert_int_equal(bpe_encode(b, text, sizeof(text), &ids, &n), LS_OK);
        assert_true(is_text_of(b, ids, n, text, sizeof(text)));
        free(ids);
        bpe_close(b);
    }
    assert_in_range(n_opened, 700, 1999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_tokens_without_files),
        cmocka_unit_test(words_are_matches_of_gpt2s_expression),
        cmocka_unit_test(merges_of_lower_rank_are_made_first),
        cmocka_unit_test(files_of_other_editors_are_the_same),
        cmocka_unit_test(bad_vocabularies_are_refused),
        cmocka_unit_test(bad_merges_are_refused),
        cmocka_unit_test(missing_files_are_named),
        cmocka_unit_test(truncated_vocabularies_are_refused),
        cmocka_unit_test(any_text_is_that_of_its_tokens),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
