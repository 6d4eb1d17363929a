/* SPDX-License-Identifier: Apache-2.0 */
/* Equal lines of several ranks are written once, and the order of each rank is kept. */
#include "base/unit.h"

#include "base/alloc.h"
#include "comm/record/recorder.h"
#include "launch/output/output_fold.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define CLEAR   "\r\x1b[K"
#define RANK0   "\x1b[36mrank 0|\x1b[0m "
#define RANK1   "\x1b[33mrank 1|\x1b[0m "
#define RANK2   "\x1b[35mrank 2|\x1b[0m "
#define BOLD(s) "\x1b[1mranks " s "|\x1b[0m "

enum { N = 4 };

/* Four ranks on one terminal, and a clock that stands still. */
typedef struct bench {
    output_sink sink;
    output_stream stream[N];
    output_fold *fold;
    int64_t now_ns;
    ls_clock clock;
    int fds[2];
} bench;

static int64_t now_of(void *self)
{
    return *(const int64_t *)self;
}

static void open_bench(bench *b)
{
    memset(b, 0, sizeof(*b));
    b->clock = (ls_clock){.now_ns = now_of, .self = &b->now_ns};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, b->fds),
                     0);
    output_sink_open(&b->sink, b->fds[1]);
    b->sink.terminal = true;
    assert_ok(output_fold_create(0, N, N, &b->clock, &b->fold));
    for (int i = 0; i < N; i++)
        b->stream[i] = (output_stream){
            .sink = &b->sink, .rank = i, .n_ranks = N, .prefix = true, .fold = b->fold};
}

static void close_bench(bench *b)
{
    for (int i = 0; i < N; i++)
        output_free(&b->stream[i]);
    output_fold_destroy(b->fold);
    output_sink_close(&b->sink);
    (void)close(b->fds[0]);
    (void)close(b->fds[1]);
}

static void feed(bench *b, int rank, const char *text)
{
    output_feed(&b->stream[rank], text, strlen(text));
}

static void pass_ms(bench *b, int ms)
{
    b->now_ns += (int64_t)ms * 1000000;
    output_fold_flush(b->fold);
    for (int i = 0; i < N; i++)
        output_show_deferred(&b->stream[i]);
}

static const char *next_write(const bench *b)
{
    static char bytes[100000];
    const ssize_t n = read(b->fds[0], bytes, sizeof(bytes) - 1);

    bytes[n > 0 ? n : 0] = 0;
    return bytes;
}

static void expect(const bench *b, const char *const *writes)
{
    for (; *writes != NULL; writes++)
        assert_string_equal(next_write(b), *writes);
    assert_string_equal(next_write(b), "");
}
#define EXPECT(b, ...) expect(b, (const char *const[]){__VA_ARGS__, NULL})

static void line_of_all_ranks_is_written_once_and_at_once(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b);
    for (int i = 0; i < N; i++) {
        assert_string_equal(next_write(&b), "");
        feed(&b, i, "hello\n");
    }
    EXPECT(&b, BOLD("0-3") "hello\n");
    assert_int_equal(output_fold_due(b.fold), -1);
    close_bench(&b);
}

static void line_waits_no_longer_than_the_limit(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b);
    feed(&b, 0, "a\n");
    assert_int_equal(output_fold_due(b.fold), OUTPUT_FOLD_MS);
    pass_ms(&b, 20);
    feed(&b, 3, "a\n");
    feed(&b, 2, "b\n");
    assert_int_equal(output_fold_due(b.fold), OUTPUT_FOLD_MS - 20);
    pass_ms(&b, 29);
    EXPECT(&b, NULL);
    pass_ms(&b, 1);
    EXPECT(&b, BOLD("0,3") "a\n");
    assert_int_equal(output_fold_due(b.fold), 20);
    feed(&b, 1, "a\n"); /* too late to join the others */
    pass_ms(&b, 50);
    EXPECT(&b, RANK2 "b\n", RANK1 "a\n");
    close_bench(&b);
}

static void lines_of_a_rank_keep_their_order(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b);
    feed(&b, 0, "a\nb\n");
    feed(&b, 1, "b\na\n"); /* its a may not join the one before its b */
    pass_ms(&b, 50);
    EXPECT(&b, RANK0 "a\n", BOLD("0-1") "b\n", RANK1 "a\n");
    close_bench(&b);
}

static void same_line_twice_of_one_rank_is_written_twice(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b);
    feed(&b, 0, "a\na\n");
    feed(&b, 1, "a\na\n");
    pass_ms(&b, 50);
    EXPECT(&b, BOLD("0-1") "a\n", BOLD("0-1") "a\n");
    close_bench(&b);
}

static void lines_of_one_rank_do_not_prevent_folding(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b);
    feed(&b, 0, "I am 0\nready\n");
    feed(&b, 1, "I am 1\nready\n");
    feed(&b, 2, "I am 2\nready\n");
    pass_ms(&b, 50);
    EXPECT(&b, RANK0 "I am 0\n", RANK1 "I am 1\n", RANK2 "I am 2\n", BOLD("0-2") "ready\n");
    close_bench(&b);
}

static void two_streams_of_a_rank_keep_their_order_and_do_not_mix(void **state)
{
    bench b;
    output_stream err;

    LS_UNUSED(state);
    open_bench(&b);
    output_sink other = {.fd = b.fds[1], .terminal = true, .is_socket = true};
    err = b.stream[0];
    err.sink = &other;
    feed(&b, 0, "a\n");
    output_feed(&err, "b\n", 2);
    feed(&b, 1, "b\n"); /* the same text, but to stdout */
    pass_ms(&b, 50);
    EXPECT(&b, RANK0 "a\n", RANK1 "b\n", RANK0 "b\n");
    output_free(&err);
    close_bench(&b);
}

static void many_ranges_are_cut(void **state)
{
    enum { MANY = 200 };
    static output_stream streams[MANY];
    output_fold *fold;
    bench b;

    LS_UNUSED(state);
    open_bench(&b);
    assert_ok(output_fold_create(1000, MANY, MANY, &b.clock, &fold));
    for (int i = 0; i < MANY; i += 2) {
        streams[i] = (output_stream){
            .sink = &b.sink, .rank = 1000 + i, .n_ranks = 2000, .prefix = true, .fold = fold};
        output_feed(&streams[i], "x\n", 2);
    }
    output_fold_flush_all(fold);
    EXPECT(&b, BOLD("1000,1002,1004,1006,1008,1010,1012,1014,...") "x\n");
    for (int i = 0; i < MANY; i += 2)
        output_free(&streams[i]);
    output_fold_destroy(fold);
    close_bench(&b);
}

/* Python writes a line and its end separately: the folded line replaces the shown beginning. */
static void folded_line_replaces_its_shown_beginning(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b);
    feed(&b, 0, "hello");
    EXPECT(&b, "\x1b[?7l" RANK0 "hello\x1b[?7h");
    feed(&b, 0, "\n");
    feed(&b, 0, "name? "); /* is not shown before the line in front of it */
    EXPECT(&b, NULL);
    for (int i = 1; i < N; i++)
        feed(&b, i, "hello\n");
    EXPECT(&b, CLEAR BOLD("0-3") "hello\n");
    pass_ms(&b, 0);
    EXPECT(&b, "\x1b[?7l" RANK0 "name? \x1b[?7h");
    close_bench(&b);
}

static void progress_bar_stays_below_folded_lines(void **state)
{
    static const char bar[] = "\x1b[?7l" RANK1 "10%\x1b[?7h";
    bench b;

    LS_UNUSED(state);
    open_bench(&b);
    feed(&b, 1, "\r10%");
    EXPECT(&b, bar);
    feed(&b, 0, "a\n");
    feed(&b, 2, "a\n");
    pass_ms(&b, 50);
    EXPECT(&b, CLEAR BOLD("0,2") "a\n\x1b[?7l" RANK1 "10%\x1b[?7h");
    feed(&b, 1, "\n");
    pass_ms(&b, 50);
    EXPECT(&b, CLEAR RANK1 "10%\n");
    assert_null(b.sink.shown_of);
    close_bench(&b);
}

static void queue_of_folded_lines_is_bounded(void **state)
{
    static char line[5000];
    bench b;
    int n = 0;

    LS_UNUSED(state);
    open_bench(&b);
    for (int i = 0; i < 3 * OUTPUT_FOLD_LINES; i++) {
        text_format(line, sizeof(line), "%d\n", i);
        feed(&b, 0, line);
        n += *next_write(&b) != 0;
    }
    assert_true(n >= 2 * OUTPUT_FOLD_LINES);
    output_fold_flush_all(b.fold);
    while (*next_write(&b) != 0)
        output_flush(&b.sink);
    memset(line, 'x', sizeof(line) - 1);
    line[sizeof(line) - 2] = '\n';
    for (n = 0; n < 2 * OUTPUT_FOLD_BYTES / (int)sizeof(line); n++)
        feed(&b, 0, line);
    assert_true(*next_write(&b) != 0);
    close_bench(&b);
}

static void lines_are_written_at_once_without_memory(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_bench(&b);
    for (uint64_t n = 1; n <= 3; n++) {
        feed(&b, 0, "first\n");
        feed(&b, 1, "seco"); /* has its memory */
        ls_alloc_fail_at(n);
        feed(&b, 1, "nd\n");
        ls_alloc_fail_at(0);
        EXPECT(&b, RANK0 "first\n", RANK1 "second\n");
    }
    for (uint64_t n = 1; n <= 2; n++) {
        output_fold *fold;

        ls_alloc_fail_at(n);
        assert_status(output_fold_create(0, N, N, &b.clock, &fold), LS_ENOMEM);
        ls_alloc_fail_at(0);
    }
    close_bench(&b);
}

/* --- without a terminal --- */

static void open_file_bench(bench *b, const char *failure)
{
    open_bench(b);
    b->sink.terminal = false;
    for (int i = 0; i < N; i++)
        b->stream[i].failure_line = recorder_hash_line(failure, strlen(failure));
}

static void failure_of_several_ranks_is_written_once_to_a_file(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_file_bench(&b, "mnist: no data");
    feed(&b, 2, "mnist: no data\n");
    pass_ms(&b, 500); // ranks of a busy machine
    feed(&b, 0, "mnist: no data\n");
    feed(&b, 3, "mnist: no data\n");
    EXPECT(&b, NULL);
    feed(&b, 1, "mnist: no data\n");
    EXPECT(&b, "ranks 0-3| mnist: no data\n");
    feed(&b, 1, "mnist: no data\n");
    feed(&b, 3, "mnist: no data\n");
    pass_ms(&b, OUTPUT_FAILURE_MS - 1);
    EXPECT(&b, NULL);
    pass_ms(&b, 1);
    EXPECT(&b, "ranks 1,3| mnist: no data\n");
    close_bench(&b);
}

static void other_lines_of_a_file_are_not_folded(void **state)
{
    bench b;

    LS_UNUSED(state);
    open_file_bench(&b, "mnist: no data");
    feed(&b, 0, "hello\n");
    feed(&b, 1, "hello\n");
    EXPECT(&b, "rank 0| hello\n", "rank 1| hello\n");
    b.stream[0].failure_line = 0; // it has not failed
    feed(&b, 0, "mnist: no data\n");
    EXPECT(&b, "rank 0| mnist: no data\n");
    feed(&b, 1, "mnist: no data\n");
    feed(&b, 2, "mnist: no data\nbye\n");
    EXPECT(&b, "ranks 1-2| mnist: no data\n", "rank 2| bye\n");
    close_bench(&b);
}

/* Whatever comes, each rank's lines come out whole, in their order, and none is lost. */
static void random_lines_keep_each_ranks_order(void **state)
{
    uint32_t seed = 4711;
    static char shown[1 << 20];
    size_t length = 0;
    int n_fed[N] = {0};
    int n_seen[N] = {0};
    bench b;

    LS_UNUSED(state);
    print_message("seed %u\n", seed);
    open_bench(&b);
    for (int i = 0; i < 4000; i++) {
        char text[32];
        int r;

        seed = seed * 1664525 + 1013904223;
        r = (int)(seed >> 16) % N;
        if ((seed >> 20) % 3 == 0)
            text_format(text, sizeof(text), "own-%d %d\n", r, n_fed[r]);
        else
            text_format(text, sizeof(text), "%d\n", n_fed[r]);
        n_fed[r]++;
        feed(&b, r, text);
        if ((seed >> 24) % 16 == 0)
            pass_ms(&b, (int)(seed >> 28));
        for (const char *w = next_write(&b); *w != 0; w = next_write(&b)) {
            memcpy(shown + length, w, strlen(w) + 1);
            length += strlen(w);
        }
    }
    output_fold_flush_all(b.fold);
    for (const char *w = next_write(&b); *w != 0; w = next_write(&b), output_flush(&b.sink)) {
        memcpy(shown + length, w, strlen(w) + 1);
        length += strlen(w);
    }
    for (const char *line = shown; *line != 0; line = strchr(line, '\n') + 1) {
        const char *list = strchr(line, ' ') + 1;
        const char *text = strstr(line, "m ") + 2; /* behind the prefix */
        const long number = strtol(text_starts(text, "own") ? strchr(text, ' ') : text, NULL, 10);

        for (char *end; *list != '|'; list = end + (*end == ',')) {
            const long first = strtol(list, &end, 10);
            const long last = *end == '-' ? strtol(end + 1, &end, 10) : first;

            for (long r = first; r <= last; r++)
                assert_int_equal(number, n_seen[r]++);
        }
    }
    assert_memory_equal(n_seen, n_fed, sizeof(n_fed));
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(line_of_all_ranks_is_written_once_and_at_once),
        cmocka_unit_test(line_waits_no_longer_than_the_limit),
        cmocka_unit_test(lines_of_a_rank_keep_their_order),
        cmocka_unit_test(same_line_twice_of_one_rank_is_written_twice),
        cmocka_unit_test(lines_of_one_rank_do_not_prevent_folding),
        cmocka_unit_test(two_streams_of_a_rank_keep_their_order_and_do_not_mix),
        cmocka_unit_test(many_ranges_are_cut),
        cmocka_unit_test(folded_line_replaces_its_shown_beginning),
        cmocka_unit_test(progress_bar_stays_below_folded_lines),
        cmocka_unit_test(queue_of_folded_lines_is_bounded),
        cmocka_unit_test(lines_are_written_at_once_without_memory),
        cmocka_unit_test(failure_of_several_ranks_is_written_once_to_a_file),
        cmocka_unit_test(other_lines_of_a_file_are_not_folded),
        cmocka_unit_test(random_lines_keep_each_ranks_order),
    };

    return cmocka_run_group_tests_name("launch output_fold", tests, NULL, NULL);
}
