/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of ranks: prefixes, progress bars, terminals, slow readers, retained lines. */
#include "base/unit.h"

#include "launch/output/output.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLEAR "\r\x1b[K"

/* A sink that writes into a socket which keeps the borders between writes. */
typedef struct bench {
    output_sink sink;
    output_recent kept;
    output_stream stream[2];
    int fds[2];
} bench;

static void open_bench(bench *b, bool terminal)
{
    memset(b, 0, sizeof(*b));
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, b->fds),
                     0);
    output_sink_open(&b->sink, b->fds[1]);
    b->sink.terminal = terminal;
    for (int i = 0; i < 2; i++)
        b->stream[i] = (output_stream){
            .sink = &b->sink, .recent = &b->kept, .rank = i + 1, .n_ranks = 12, .prefix = true};
}

static void close_bench(bench *b)
{
    output_free(&b->stream[0]);
    output_free(&b->stream[1]);
    output_free_recent(&b->kept);
    output_sink_close(&b->sink);
    (void)close(b->fds[0]);
    (void)close(b->fds[1]);
}

/* What the next write() brought, "" when there was none. */
static const char *next_write(const bench *b)
{
    static char bytes[200000];
    const ssize_t n = read(b->fds[0], bytes, sizeof(bytes) - 1);

    bytes[n > 0 ? n : 0] = 0;
    return bytes;
}

static void feed(output_stream *s, const char *text)
{
    output_feed(s, text, strlen(text));
}

/* --- lines --- */

static void line_is_one_write(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b, false);
    feed(&b.stream[0], "he");
    feed(&b.stream[0], "llo");
    assert_string_equal(next_write(&b), "");
    feed(&b.stream[0], "\nsecond\nthi");
    feed(&b.stream[1], "other\n");
    feed(&b.stream[0], "rd");
    output_end(&b.stream[0]);
    output_end(&b.stream[1]);
    assert_string_equal(next_write(&b), "rank  1| hello\n");
    assert_string_equal(next_write(&b), "rank  1| second\n");
    assert_string_equal(next_write(&b), "rank  2| other\n");
    assert_string_equal(next_write(&b), "rank  1| third\n");
    assert_string_equal(next_write(&b), "");
    close_bench(&b);
}

static void empty_lines_stay(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b, false);
    feed(&b.stream[0], "\n\na\n");
    assert_string_equal(next_write(&b), "rank  1| \n");
    assert_string_equal(next_write(&b), "rank  1| \n");
    assert_string_equal(next_write(&b), "rank  1| a\n");
    close_bench(&b);
}

/* Fed in every way of cutting it in two, the text gives the same writes. */
static void expect_lines(bool terminal, const char *text, const char *const *lines)
{
    const size_t n = strlen(text);

    for (size_t cut = 0; cut <= n; cut++) {
        bench b;

        open_bench(&b, terminal);
        output_feed(&b.stream[0], text, cut);
        output_feed(&b.stream[0], text + cut, n - cut);
        output_end(&b.stream[0]);
        for (const char *const *line = lines; *line != NULL; line++)
            assert_string_equal(next_write(&b), *line);
        assert_string_equal(next_write(&b), "");
        close_bench(&b);
    }
}

static void carriage_return_and_line_feed_end_one_line(void **state)
{
    static const char *const lines[] = {"rank  1| one\n", "rank  1| two\n", "rank  1| \n",
                                        "rank  1| three\n", NULL};

    LS_UNUSED(state);
    expect_lines(false, "one\r\ntwo\r\r\n\r\nthree\n", lines);
}

static void progress_bar_is_left_out_without_a_terminal(void **state)
{
    static const char *const leading[] = {"rank  1| begin\n", "rank  1| 100%\n", "rank  1| end\n",
                                          NULL};
    static const char *const trailing[] = {"rank  1| 100%\n", NULL};
    static const char *const cleared[] = {"rank  1| loss 0.1\n", NULL};

    LS_UNUSED(state);
    expect_lines(false, "begin\n\r10%\r50%\r100%\nend\n", leading);
    expect_lines(false, "10%\r50%\r100%\r", trailing);
    expect_lines(false, "\r10%\x1b[K\r20%\x1b[K\r\x1b[Kloss 0.1\n\r30%\r\x1b[K", cleared);
}

static void progress_bar_is_redrawn_on_a_terminal(void **state)
{
    static const char bar[] = "\x1b[?7l\x1b[33mrank  1|\x1b[0m 10%\x1b[?7h";
    bench b;

    LS_UNUSED(state);
    open_bench(&b, true);
    feed(&b.stream[0], "\r10%");
    assert_string_equal(next_write(&b), bar);
    feed(&b.stream[1], "a line\n");
    assert_string_equal(next_write(&b), CLEAR "\x1b[35mrank  2|\x1b[0m a line\n"
                                              "\x1b[?7l\x1b[33mrank  1|\x1b[0m 10%\x1b[?7h");
    feed(&b.stream[0], "\r20%");
    assert_string_equal(next_write(&b), CLEAR "\x1b[?7l\x1b[33mrank  1|\x1b[0m 20%\x1b[?7h");
    feed(&b.stream[0], "\n");
    assert_string_equal(next_write(&b), CLEAR "\x1b[33mrank  1|\x1b[0m 20%\n");
    feed(&b.stream[0], "\r30%");
    (void)next_write(&b);
    feed(&b.stream[0], "\r\x1b[K");
    assert_string_equal(next_write(&b), CLEAR);
    output_end(&b.stream[0]);
    assert_string_equal(next_write(&b), "");
    close_bench(&b);
}

static void prompt_of_rank_0_is_shown_on_a_terminal(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b, true);
    feed(&b.stream[1], "name? "); /* rank 2 has no stdin */
    assert_string_equal(next_write(&b), "");
    b.stream[0].rank = 0;
    b.stream[0].prefix = false;
    feed(&b.stream[0], "name? ");
    assert_string_equal(next_write(&b), "\x1b[?7lname? \x1b[?7h");
    close_bench(&b);
}

static void long_line_is_broken(void **state)
{
    static char text[3 * OUTPUT_LINE_MOST];
    bench b;
    size_t got = 0;
    int n = 0;

    LS_UNUSED(state);
    open_bench(&b, false);
    memset(text, 'x', sizeof(text));
    for (size_t at = 0; at < sizeof(text); at += 1000)
        output_feed(&b.stream[0], text + at, at + 1000 < sizeof(text) ? 1000 : sizeof(text) - at);
    output_feed(&b.stream[0], "y\n", 2);
    for (const char *line = next_write(&b); *line != 0; line = next_write(&b)) {
        assert_true(strlen(line) <= OUTPUT_LINE_MOST + sizeof("rank  1| \n"));
        assert_int_equal(line[strlen(line) - 1], '\n');
        got += strspn(line + strlen("rank  1| "), "xy");
        n++;
    }
    assert_int_equal(n, 4);
    assert_int_equal(got, sizeof(text) + 1);
    close_bench(&b);
}

static void bytes_pass_unchanged_without_a_terminal(void **state)
{
    static const char text[] = "a\0b\x01\x7f\xff\xc3\xa9\t\n";
    bench b;
    char got[64];

    LS_UNUSED(state);
    open_bench(&b, false);
    output_feed(&b.stream[0], text, sizeof(text) - 1);
    assert_int_equal(read(b.fds[0], got, sizeof(got)), strlen("rank  1| ") + sizeof(text) - 1);
    assert_memory_equal(got + strlen("rank  1| "), text, sizeof(text) - 1);
    close_bench(&b);
}

/* A rank's control sequences must not change the lines of others on the terminal. */
static void terminal_gets_colours_but_no_control_sequences(void **state)
{
    static const char *const cases[][2] = {
        {"\x1b[1;31mred\x1b[0m \x1b[38:5:7mx\x1b[m", "\x1b[1;31mred\x1b[0m \x1b[38:5:7mx\x1b[m"},
        {"a\x1b[Kb\x1b[0Kc\x1b[1Kd\x1b[2Ke\x1b[Jf", "a\x1b[Kb\x1b[0Kcdef"},
        {"up\x1b[A\x1b[10;1Hover\x1b[?1049h\x1b[6n\x1b[c\x1b[>0m", "upover"},
        {"\x1b]0;title\x07"
         "a\x1b]52;c;ZXZpbA==\x1b\\b\x1bP+q\x1b\\c\x1b_x\x1b\\d",
         "abcd"},
        {"a\x1b]0;no end", "a"},
        {"a\x1b]0;cut\x1b[31mred", "a\x1b[31mred"},
        {"\x1b"
         "c\x1b(0a\x1b)Bb\x1b#8c\x1b=d\x1b"
         "7",
         "abcd"},
        {"a\x07\x0e\x0f\x0b\x0c\x01\x7f"
         "b\tc",
         "ab\tc"},
        {"1%\b\b2%\b\b\b\b\b\b\b3%", "3%"},
        {"caf\xc3\xa9\b\be", "cae"},
        {"a\x1b[31m\b\bb", "a\x1b[31mb"},
        {"\xc2\x9b"
         "31mx\x9b"
         "2J\xff \xe2\x80\xaegnp",
         "??31mx?2J? ???gnp"},
        {"caf\xc3\xa9 \xe6\xbc\xa2", "caf\xc3\xa9 \xe6\xbc\xa2"},
        {"\x1b", ""},
        {"\x1b[31", "[31"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        text_buf line = {0};
        text_buf shown = {0};
        const char *lines[] = {NULL, NULL};

        text_append(&line, "%s\n", cases[i][0]);
        text_append(&shown, "\x1b[33mrank  1|\x1b[0m %s\n", cases[i][1]);
        lines[0] = text_str(&shown);
        expect_lines(true, text_str(&line), lines);
        text_free(&shown);
        text_append(&shown, "rank  1| %s\n", cases[i][0]); /* a file gets it as it is */
        lines[0] = text_str(&shown);
        expect_lines(false, text_str(&line), lines);
        text_free(&line);
        text_free(&shown);
    }
}

static void unfinished_line_has_no_control_sequences(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b, true);
    feed(&b.stream[0], "\r\x1b[2A\x1b]2;t\x07\x1b[32m10%");
    assert_string_equal(next_write(&b), "\x1b[?7l\x1b[33mrank  1|\x1b[0m \x1b[32m10%\x1b[?7h");
    close_bench(&b);
}

/* --- what is remembered --- */

static void last_lines_of_both_pipes_keep_their_order(void **state)
{
    bench b;
    text_buf t = {0};
    char line[32];

    LS_UNUSED(state);
    open_bench(&b, false);
    for (int i = 0; i < OUTPUT_RECENT + 7; i++) {
        text_format(line, sizeof(line), "line %d\n", i);
        feed(&b.stream[i % 2], line);
    }
    output_append_recent(&b.kept, OUTPUT_RECENT, &t);
    assert_true(text_starts(text_str(&t), "  | line 7\n  | line 8\n"));
    text_format(line, sizeof(line), "  | line %d\n", OUTPUT_RECENT + 6);
    assert_string_equal(text_str(&t) + t.length - strlen(line), line);
    text_free(&t);
    close_bench(&b);
}

static void retained_lines_have_no_control_sequences(void **state)
{
    static const char text[] = "\x1b[1;31mred\x1b[0m \x1b]0;title\x07 a\0b caf\xc3\xa9\n";
    bench b;
    text_buf t = {0};

    LS_UNUSED(state);
    open_bench(&b, false);
    output_feed(&b.stream[0], text, sizeof(text) - 1);
    output_append_recent(&b.kept, OUTPUT_RECENT, &t);
    assert_string_equal(text_str(&t), "  | red  ab caf\xc3\xa9\n");
    text_free(&t);
    close_bench(&b);
}

/* --- the sink --- */

static void note_is_written_above_the_progress_bar(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b, true);
    b.stream[0].prefix = false;
    feed(&b.stream[0], "\r10%");
    (void)next_write(&b);
    output_note(&b.sink, "lockstep: %s", "note");
    assert_string_equal(next_write(&b), CLEAR "lockstep: note\n\x1b[?7l10%\x1b[?7h");
    close_bench(&b);
}

/* Writes lines into a pipe that is not read, then reads it. */
static void full_pipe_does_not_block_and_loses_nothing(void **state)
{
    static char line[5000];
    output_sink sink;
    output_stream s = {.sink = &sink};
    size_t wanted = 0, got = 0;
    int fds[2];

    LS_UNUSED(state);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    output_sink_open(&sink, fds[1]);
    assert_int_equal(fcntl(fds[1], F_GETFL) & O_NONBLOCK, 0); /* others may hold it */
    memset(line, 'x', sizeof(line) - 1);
    line[sizeof(line) - 2] = '\n';
    while (output_waiting(&sink) < 3 * OUTPUT_QUEUE_MOST) {
        feed(&s, line);
        wanted += strlen(line);
    }
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    while (got < wanted) {
        static char bytes[70000];
        const ssize_t n = read(fds[0], bytes, sizeof(bytes));

        for (ssize_t i = 0; i < n; i++, got++)
            assert_int_equal(bytes[i], line[got % strlen(line)]);
        output_flush(&sink);
    }
    assert_int_equal(output_waiting(&sink), 0);
    output_free(&s);
    output_sink_close(&sink);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

static void sink_is_broken_when_its_reader_closes(void **state)
{
    output_sink sink;
    output_stream s = {.sink = &sink};
    int fds[2];

    LS_UNUSED(state);
    (void)signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    output_sink_open(&sink, fds[1]);
    (void)close(fds[0]);
    feed(&s, "lost\n");
    assert_true(sink.is_broken);
    feed(&s, "lost too\n");
    assert_int_equal(output_waiting(&sink), 0);
    output_free(&s);
    output_sink_close(&sink);
    (void)close(fds[1]);
}

static void random_bytes_in_random_pieces_do_no_harm(void **state)
{
    static const char alphabet[] = "\n\r\x1b[K ab2\0";
    uint32_t seed = 12345;
    bench b;

    LS_UNUSED(state);
    print_message("seed %u\n", seed);
    for (int terminal = 0; terminal < 2; terminal++) {
        open_bench(&b, terminal != 0);
        for (int i = 0; i < 20000; i++) {
            char bytes[16];
            size_t n;

            for (n = 0; n < sizeof(bytes); n++) {
                seed = seed * 1664525 + 1013904223;
                bytes[n] = alphabet[(seed >> 16) % (sizeof(alphabet) - 1)];
            }
            output_feed(&b.stream[i % 2], bytes, (seed >> 20) % (sizeof(bytes) + 1));
            while (*next_write(&b) != 0)
                continue;
            output_flush(&b.sink);
        }
        output_end(&b.stream[0]);
        output_end(&b.stream[1]);
        assert_null(b.sink.shown_of);
        close_bench(&b);
    }
}

static void template_of_a_prefix_gets_its_values(void **state)
{
    static const struct {
        const char *template;
        const char *prefix;
    } cases[] = {
        {LINE_PREFIX_DEFAULT, "[trainer3]:"},
        {"${hostname}:${rank}: ", "node1:11: "},
        {"$rank/$local_rank ", "11/3 "},
        {"$$rank ${rank ${other} $other $", "$rank ${rank ${other} $other $"},
        {"${rank}${rank}x", "1111x"},
        {"\x1b[31m", "?[31m"},
        {"", ""},
    };
    const line_prefix_values values = {
        .role_name = "trainer", .hostname = "node1", .rank = 11, .local_rank = 3};
    char text[LINE_PREFIX_BYTES];
    char small[4];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
        assert_string_equal(line_prefix_make(cases[i].template, &values, text, sizeof(text)),
                            cases[i].prefix);
    assert_string_equal(line_prefix_make("a${hostname}b", &values, small, sizeof(small)), "ano");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_is_one_write),
        cmocka_unit_test(template_of_a_prefix_gets_its_values),
        cmocka_unit_test(empty_lines_stay),
        cmocka_unit_test(carriage_return_and_line_feed_end_one_line),
        cmocka_unit_test(progress_bar_is_left_out_without_a_terminal),
        cmocka_unit_test(progress_bar_is_redrawn_on_a_terminal),
        cmocka_unit_test(prompt_of_rank_0_is_shown_on_a_terminal),
        cmocka_unit_test(long_line_is_broken),
        cmocka_unit_test(bytes_pass_unchanged_without_a_terminal),
        cmocka_unit_test(terminal_gets_colours_but_no_control_sequences),
        cmocka_unit_test(unfinished_line_has_no_control_sequences),
        cmocka_unit_test(last_lines_of_both_pipes_keep_their_order),
        cmocka_unit_test(retained_lines_have_no_control_sequences),
        cmocka_unit_test(note_is_written_above_the_progress_bar),
        cmocka_unit_test(full_pipe_does_not_block_and_loses_nothing),
        cmocka_unit_test(sink_is_broken_when_its_reader_closes),
        cmocka_unit_test(random_bytes_in_random_pieces_do_no_harm),
    };

    return cmocka_run_group_tests_name("launch output", tests, NULL, NULL);
}
