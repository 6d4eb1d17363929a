/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_node_messages.c - the messages between head and agents arrive unchanged, and malformed ones
 * are refused.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "launch/head/node_messages.h"

#include <stdlib.h>

static const char job[] = "0123456789abcdef";

/* What a writer has written, as a frame. */
static frame frame_of(const wire_writer *w)
{
    assert_ok(wire_writer_status(w));
    assert_true(w->bytes <= NODE_BODY_MAX);
    return (frame){.type = 0, .body = w->data, .bytes = w->bytes};
}

/* One kind of message for checks that go for all: reads a frame and forgets it. */
typedef ls_status read_fn(const frame *f);

static ls_status read_hello(const frame *f)
{
    node_hello out;
    const ls_status st = node_read_hello(f, &out);

    if (st == LS_OK)
        node_hello_free(&out);
    return st;
}

static ls_status read_failure(const frame *f)
{
    node_failure out;

    return node_read_failure(f, &out);
}

static ls_status read_end(const frame *f)
{
    text_buf text = {0};
    text_buf details = {0};
    node_end out;
    const ls_status st = node_read_end(f, &out, &text, &details);

    text_free(&text);
    text_free(&details);
    return st;
}

static ls_status read_welcome(const frame *f)
{
    node_welcome out;

    return node_read_welcome(f, &out);
}

static ls_status read_stop(const frame *f)
{
    node_stop out;

    return node_read_stop(f, &out);
}

static ls_status read_over(const frame *f)
{
    text_buf report = {0};
    node_over out;
    const ls_status st = node_read_over(f, &out, &report);

    text_free(&report);
    return st;
}

static ls_status read_left(const frame *f)
{
    node_exit out;

    return node_read_exit(f, &out);
}

static ls_status read_number(const frame *f)
{
    uint32_t out;

    return node_read_number(f, &out);
}

static ls_status read_text(const frame *f)
{
    text_buf out = {0};
    const ls_status st = node_read_text(f, &out);

    text_free(&out);
    return st;
}

/* Whole it is read, cut anywhere or longer by a byte it is not. */
static void expect_exact(const wire_writer *w, read_fn *read)
{
    const frame whole = frame_of(w);
    uint8_t *longer = malloc(whole.bytes + 1);
    const size_t step = whole.bytes > 4096 ? 97 : 1;

    assert_non_null(longer);
    memcpy(longer, whole.body, whole.bytes);
    longer[whole.bytes] = 0;
    assert_ok(read(&whole));
    assert_status(read(&(frame){.body = longer, .bytes = whole.bytes + 1}), LS_EPROTO);
    for (size_t n = 0; n < whole.bytes; n += step) {
        uint8_t *cut = malloc(n + 1); /* so that a sanitizer sees a read past its end */

        memcpy(cut, whole.body, n);
        assert_status(read(&(frame){.body = cut, .bytes = n}), LS_EPROTO);
        free(cut);
    }
    free(longer);
}

static char *long_text(size_t n)
{
    char *text = malloc(n + 1);

    assert_non_null(text);
    memset(text, 'x', n);
    text[n] = 0;
    return text;
}

/* --- hello --- */

static rdzv_hello small_hello(void)
{
    return (rdzv_hello){
        .uid = 5, .id = -1, .n_local = 2, .run_id = 7, .version = "1.2.3", .host = "a"};
}

static void a_hello_comes_as_it_was(void **state)
{
    static int sizes[RDZV_NODES_MAX];
    char *host = long_text(RDZV_HOST_BYTES * 2);
    rdzv_hello h = {.uid = UINT64_MAX,
                    .is_head = true,
                    .id = RDZV_NODES_MAX - 1,
                    .n_local = RDZV_LOCAL_MAX,
                    .min_nodes = RDZV_NODES_MAX,
                    .max_nodes = RDZV_NODES_MAX,
                    .per_node = sizes,
                    .n_per_node = RDZV_NODES_MAX,
                    .run_id = UINT64_MAX,
                    .run_name = host,
                    .version = "1.2.3",
                    .host = host};
    wire_writer w = {0};
    node_hello got;
    frame f;

    LS_UNUSED(state);
    for (int i = 0; i < RDZV_NODES_MAX; i++)
        sizes[i] = i;
    node_write_hello(&w, &h);
    expect_exact(&w, read_hello);
    f = frame_of(&w);
    assert_ok(node_read_hello(&f, &got));
    assert_true(got.hello.uid == h.uid && got.hello.run_id == h.run_id);
    assert_false(got.hello.is_head); /* no message sets it */
    assert_int_equal(got.hello.id, h.id);
    assert_int_equal(got.hello.n_local, h.n_local);
    assert_int_equal(got.hello.min_nodes, h.min_nodes);
    assert_int_equal(got.hello.max_nodes, h.max_nodes);
    assert_int_equal(got.hello.n_per_node, h.n_per_node);
    assert_memory_equal(got.hello.per_node, sizes, sizeof(sizes));
    assert_string_equal(got.hello.version, "1.2.3");
    assert_int_equal(strlen(got.hello.host), RDZV_HOST_BYTES - 1); /* cut */
    assert_int_equal(strlen(got.hello.run_name), RDZV_NAME_BYTES - 1);
    node_hello_free(&got);
    wire_writer_free(&w);
    free(host);
}

static void a_node_without_a_number_and_a_list_says_so(void **state)
{
    const rdzv_hello h = small_hello();
    wire_writer w = {0};
    node_hello got;
    frame f;

    LS_UNUSED(state);
    node_write_hello(&w, &h);
    expect_exact(&w, read_hello);
    f = frame_of(&w);
    assert_ok(node_read_hello(&f, &got));
    assert_int_equal(got.hello.id, -1);
    assert_int_equal(got.hello.n_per_node, 0);
    assert_null(got.hello.per_node);
    node_hello_free(&got);
    wire_writer_free(&w);
}

static void expect_no_hello(rdzv_hello h)
{
    wire_writer w = {0};
    frame f;

    node_write_hello(&w, &h);
    f = frame_of(&w);
    assert_status(read_hello(&f), LS_EPROTO);
    wire_writer_free(&w);
}

static void a_hello_with_impossible_numbers_is_refused(void **state)
{
    static const int bad[] = {-2, INT32_MIN, INT32_MAX, 4097};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        rdzv_hello h = small_hello();

        h.id = bad[i];
        expect_no_hello(h);
        h = small_hello();
        h.n_local = bad[i];
        expect_no_hello(h);
        h = small_hello();
        h.min_nodes = bad[i];
        expect_no_hello(h);
        h = small_hello();
        h.max_nodes = bad[i];
        expect_no_hello(h);
    }
}

/* The list is announced, and something else comes. */
static void a_list_of_another_length_than_announced_is_refused(void **state)
{
    static const uint32_t announced[] = {1, 2, 4, 4096, 4097, 0x40000003, UINT32_MAX};
    const rdzv_hello h = small_hello();

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(announced); i++) {
        for (int n = 0; n < 4; n++) {
            wire_writer w = {0};
            frame f;

            node_write_hello(&w, &h);
            wire_put_u32(w.data + w.bytes - 4, announced[i]);
            for (int k = 0; k < n; k++)
                wire_write_u32(&w, 1);
            f = frame_of(&w);
            assert_status(read_hello(&f), (uint32_t)n == announced[i] ? LS_OK : LS_EPROTO);
            wire_writer_free(&w);
        }
    }
}

/* --- what comes from another node may be printed --- */

static void words_of_another_node_cannot_control_a_terminal(void **state)
{
    static const char hostile[] = "\x1b]0;title\x07 caf\xc3\xa9 \xc2\x9b"
                                  "31m \x9b \r\n\xe2\x80\xae";
    static const char tame[] = "?]0;title? caf\xc3\xa9 ??31m ? ?????";
    rdzv_hello h = small_hello();
    node_failure failure = {.local_rank = 0, .exit_code = 1};
    node_stop stop = {.signal = 15};
    wire_writer w = {0};
    node_hello got;
    frame f;

    LS_UNUSED(state);
    h.host = h.version = hostile;
    node_write_hello(&w, &h);
    f = frame_of(&w);
    assert_ok(node_read_hello(&f, &got));
    assert_string_equal(got.hello.host, tame);
    assert_string_equal(got.hello.version, tame);
    node_hello_free(&got);

    wire_writer_reset(&w);
    text_format(failure.text, sizeof(failure.text), "%s", hostile);
    node_write_failure(&w, &failure);
    f = frame_of(&w);
    assert_ok(node_read_failure(&f, &failure));
    assert_string_equal(failure.text, tame);

    wire_writer_reset(&w);
    text_format(stop.text, sizeof(stop.text), "%s", hostile);
    node_write_stop(&w, &stop);
    f = frame_of(&w);
    assert_ok(node_read_stop(&f, &stop));
    assert_string_equal(stop.text, tame);
    wire_writer_free(&w);
}

static void several_lines_keep_their_ends_and_nothing_else_of_the_kind(void **state)
{
    static const char lines[] = "one\ttab\ntwo \x1b[31mred\x1b[0m\r\n\xe2\x82\xac\n\xe2\x82";
    static const char tame[] = "one\ttab\ntwo ?[31mred?[0m?\n\xe2\x82\xac\n??";
    text_buf text = {0};
    wire_writer w = {0};
    frame f;

    LS_UNUSED(state);
    wire_write_text(&w, lines);
    expect_exact(&w, read_text);
    f = frame_of(&w);
    assert_ok(node_read_text(&f, &text));
    assert_string_equal(text_str(&text), tame);
    wire_writer_reset(&w);
    wire_write_bytes(&w, "a\0b", 3);
    f = frame_of(&w);
    assert_ok(node_read_text(&f, &text));
    assert_string_equal(text_str(&text), "a?b");
    text_free(&text);
    wire_writer_free(&w);
}

static void a_text_that_is_too_long_is_refused(void **state)
{
    char *text = long_text(NODE_DETAILS_MAX + 1);
    wire_writer w = {0};
    frame f;

    LS_UNUSED(state);
    wire_write_text(&w, text);
    f = frame_of(&w);
    assert_status(read_text(&f), LS_EPROTO);
    free(text);
    wire_writer_free(&w);
}

/* --- failures and ends --- */

static void a_failure_comes_as_it_was(void **state)
{
    node_failure failure = {.generation = UINT32_MAX,
                            .local_rank = RDZV_LOCAL_MAX - 1,
                            .exit_code = 255,
                            .crashed = true};
    char *text = long_text(sizeof(failure.text) - 1);
    wire_writer w = {0};
    node_failure got;
    frame f;

    LS_UNUSED(state);
    memcpy(failure.text, text, sizeof(failure.text));
    node_write_failure(&w, &failure);
    expect_exact(&w, read_failure);
    f = frame_of(&w);
    assert_ok(node_read_failure(&f, &got));
    assert_int_equal(got.generation, failure.generation);
    assert_int_equal(got.local_rank, failure.local_rank);
    assert_int_equal(got.exit_code, 255);
    assert_true(got.crashed);
    assert_string_equal(got.text, text);
    wire_writer_free(&w);
    free(text);
}

static void a_failure_with_impossible_numbers_is_refused(void **state)
{
    static const struct {
        int local_rank;
        int exit_code;
    } bad[] = {{-2, 1}, {RDZV_LOCAL_MAX, 1}, {INT32_MAX, 1}, {0, 256}, {0, -1}, {0, INT32_MIN}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        const node_failure failure = {.local_rank = bad[i].local_rank,
                                      .exit_code = bad[i].exit_code};
        wire_writer w = {0};
        frame f;

        node_write_failure(&w, &failure);
        f = frame_of(&w);
        assert_status(read_failure(&f), LS_EPROTO);
        wire_writer_free(&w);
    }
}

static void an_end_comes_as_it_was_and_its_details_are_bounded(void **state)
{
    char *much = long_text(NODE_DETAILS_MAX * 4);
    const node_end end = {.generation = 3,
                          .stopped = true,
                          .n_well = 2,
                          .n_failed = RDZV_LOCAL_MAX,
                          .n_stopped = RDZV_LOCAL_MAX - 1,
                          .local_rank = RDZV_LOCAL_MAX - 1,
                          .exit_code = 255,
                          .crashed = true,
                          .error_s = INT64_MIN,
                          .text = much,
                          .details = much};
    text_buf text = {0};
    text_buf details = {0};
    wire_writer w = {0};
    node_end got;
    frame f;

    LS_UNUSED(state);
    node_write_end(&w, &end);
    expect_exact(&w, read_end);
    f = frame_of(&w);
    assert_ok(node_read_end(&f, &got, &text, &details));
    assert_int_equal(got.generation, 3);
    assert_true(got.stopped && got.crashed);
    assert_int_equal(got.n_well, 2);
    assert_int_equal(got.n_failed, end.n_failed);
    assert_int_equal(got.n_stopped, end.n_stopped);
    assert_int_equal(got.local_rank, end.local_rank);
    assert_int_equal(got.exit_code, 255);
    assert_true(got.error_s == INT64_MIN);
    assert_int_equal(strlen(got.text), NODE_DETAILS_MAX);
    assert_int_equal(strlen(got.details), NODE_DETAILS_MAX);
    assert_ok(node_read_end(&f, &got, &text, &details)); /* into buffers that hold something */
    assert_int_equal(text.length, NODE_DETAILS_MAX);
    text_free(&text);
    text_free(&details);
    wire_writer_free(&w);
    free(much);
}

static void a_failed_rank_has_a_code_that_says_so(void **state)
{
    node_end end = {.generation = 1, .local_rank = 0, .text = "", .details = ""};
    wire_writer w = {0};
    frame f;

    LS_UNUSED(state);
    node_write_end(&w, &end);
    f = frame_of(&w);
    assert_status(read_end(&f), LS_EPROTO);
    end.local_rank = -1;
    wire_writer_reset(&w);
    node_write_end(&w, &end);
    expect_exact(&w, read_end);
    wire_writer_free(&w);
}

/* --- welcome --- */

static node_welcome small_welcome(void)
{
    node_welcome v = {.place = {.generation = 1,
                                .node = 1,
                                .n_nodes = 2,
                                .rank_base = 3,
                                .n_local = 2,
                                .world_size = 5},
                      .silence_ms = 5000,
                      .hub_port = 4711};

    memcpy(v.job, job, sizeof(job));
    return v;
}

static ls_status pass_welcome(const node_welcome *v, node_welcome *got)
{
    wire_writer w = {0};
    ls_status st;
    frame f;

    node_write_welcome(&w, v);
    f = frame_of(&w);
    st = node_read_welcome(&f, got);
    wire_writer_free(&w);
    return st;
}

static void a_welcome_comes_as_it_was(void **state)
{
    node_welcome v = {.place = {.generation = UINT32_MAX,
                                .n_restarts = INT32_MAX,
                                .node = RDZV_NODES_MAX - 1,
                                .n_nodes = RDZV_NODES_MAX,
                                .rank_base = INT32_MAX - RDZV_LOCAL_MAX,
                                .n_local = RDZV_LOCAL_MAX,
                                .world_size = INT32_MAX,
                                .is_late = true},
                      .has_store = true,
                      .collects_rings = true,
                      .silence_ms = 5000,
                      .max_restarts = INT32_MAX,
                      .mpi_layout = "(vector,(0,1,65536))"};
    char *path = long_text(sizeof(v.hub_unix) - 1);
    wire_writer w = {0};
    node_welcome got;

    LS_UNUSED(state);
    memcpy(v.job, job, sizeof(job));
    memcpy(v.hub_unix, path, sizeof(v.hub_unix));
    node_write_welcome(&w, &v);
    expect_exact(&w, read_welcome);
    assert_ok(pass_welcome(&v, &got));
    assert_int_equal(got.place.generation, v.place.generation);
    assert_int_equal(got.place.n_restarts, v.place.n_restarts);
    assert_int_equal(got.place.node, v.place.node);
    assert_int_equal(got.place.n_nodes, v.place.n_nodes);
    assert_int_equal(got.place.rank_base, v.place.rank_base);
    assert_int_equal(got.place.n_local, v.place.n_local);
    assert_int_equal(got.place.world_size, v.place.world_size);
    assert_true(got.place.is_late);
    assert_string_equal(got.job, job);
    assert_string_equal(got.hub_unix, path);
    assert_int_equal(got.hub_port, 0);
    assert_true(got.has_store && got.collects_rings);
    assert_int_equal(got.max_restarts, INT32_MAX);
    assert_int_equal(got.silence_ms, 5000);
    assert_string_equal(got.mpi_layout, v.mpi_layout);
    wire_writer_free(&w);
    free(path);
}

static void a_welcome_may_be_without_a_hub_when_the_head_has_none(void **state)
{
    node_welcome v = small_welcome();
    node_welcome got;

    LS_UNUSED(state);
    v.hub_port = 0;
    assert_ok(pass_welcome(&v, &got));
    assert_int_equal(got.hub_port, 0);
    assert_string_equal(got.hub_unix, "");
}

#define expect_no_welcome(change)                                                                  \
    do {                                                                                           \
        node_welcome v = small_welcome();                                                          \
        node_welcome got;                                                                          \
                                                                                                   \
        assert_ok(pass_welcome(&v, &got));                                                         \
        change;                                                                                    \
        assert_status(pass_welcome(&v, &got), LS_EPROTO);                                          \
    } while (0)

static void a_welcome_that_makes_no_sense_is_refused(void **state)
{
    LS_UNUSED(state);
    expect_no_welcome(v.place.generation = 0);
    expect_no_welcome(v.place.n_restarts = -1);
    expect_no_welcome(v.place.node = 2);
    expect_no_welcome(v.place.node = -1);
    expect_no_welcome(v.place.n_nodes = 0);
    expect_no_welcome(v.place.n_nodes = RDZV_NODES_MAX + 1);
    expect_no_welcome(v.place.rank_base = 4);
    expect_no_welcome(v.place.rank_base = -1);
    expect_no_welcome(v.place.rank_base = INT32_MAX);
    expect_no_welcome(v.place.n_local = 0);
    expect_no_welcome(v.place.n_local = 6);
    expect_no_welcome(v.place.n_local = INT32_MIN);
    expect_no_welcome(v.place.world_size = 4);
    expect_no_welcome(v.place.world_size = 0);
    expect_no_welcome(v.hub_port = 65536);
    expect_no_welcome(v.hub_port = -1);
    expect_no_welcome(memcpy(v.hub_unix, "unix:@x", 8));
    expect_no_welcome(v.max_restarts = -1);
    expect_no_welcome(v.silence_ms = 0);
    expect_no_welcome(memcpy(v.mpi_layout, "(vector)\ncmd=abort", 18));
    expect_no_welcome(memcpy(v.mpi_layout, "(0,1,2)", 8));
    expect_no_welcome(memcpy(v.job, "", 1));
    expect_no_welcome(memcpy(v.job, "0123456789abcde", 16));
    expect_no_welcome(memcpy(v.job, "../../../../../x", 16));
    expect_no_welcome(memcpy(v.job, "0123456789ABCDEF", 16));
}

static void a_name_with_a_zero_in_it_is_no_name(void **state)
{
    const node_welcome v = small_welcome();
    wire_writer w = {0};
    frame f;

    LS_UNUSED(state);
    node_write_welcome(&w, &v);
    f = frame_of(&w);
    for (size_t i = 0; i + sizeof(job) <= w.bytes; i++)
        if (memcmp(w.data + i, job, sizeof(job) - 1) == 0)
            w.data[i + 8] = 0;
    assert_status(read_welcome(&f), LS_EPROTO);
    wire_writer_free(&w);
}

/* --- orders to end, and small ones --- */

static void an_order_to_end_comes_as_it_was(void **state)
{
    static const int64_t bad_grace[] = {-1, INT64_MIN, INT64_MAX, NODE_GRACE_MAX_MS + 1};
    static const int bad_signals[] = {0, -1, 65, INT32_MAX};
    node_stop stop = {.signal = 64, .grace_ms = NODE_GRACE_MAX_MS};
    char *text = long_text(sizeof(stop.text) - 1);
    wire_writer w = {0};
    node_stop got;
    frame f;

    LS_UNUSED(state);
    memcpy(stop.text, text, sizeof(stop.text));
    node_write_stop(&w, &stop);
    expect_exact(&w, read_stop);
    f = frame_of(&w);
    assert_ok(node_read_stop(&f, &got));
    assert_int_equal(got.signal, 64);
    assert_int_equal(got.grace_ms, NODE_GRACE_MAX_MS);
    assert_string_equal(got.text, text);
    for (size_t i = 0; i < 4; i++) {
        wire_writer_reset(&w);
        node_write_stop(&w, &(node_stop){.signal = 15, .grace_ms = bad_grace[i]});
        f = frame_of(&w);
        assert_status(read_stop(&f), LS_EPROTO);
        wire_writer_reset(&w);
        node_write_stop(&w, &(node_stop){.signal = bad_signals[i]});
        f = frame_of(&w);
        assert_status(read_stop(&f), LS_EPROTO);
    }
    wire_writer_free(&w);
    free(text);
}

static void the_word_about_the_end_is_bounded(void **state)
{
    char *much = long_text(NODE_BODY_MAX * 2);
    text_buf report = {0};
    wire_writer w = {0};
    node_over got;
    frame f;

    LS_UNUSED(state);
    node_write_over(&w, &(node_over){.exit_code = 255, .failed = true, .report = much});
    expect_exact(&w, read_over);
    f = frame_of(&w);
    assert_ok(node_read_over(&f, &got, &report));
    assert_int_equal(got.exit_code, 255);
    assert_true(got.failed);
    assert_int_equal(strlen(got.report), NODE_REPORT_MAX);
    wire_writer_reset(&w);
    node_write_over(&w, &(node_over){.exit_code = 256, .report = ""});
    f = frame_of(&w);
    assert_status(read_over(&f), LS_EPROTO);
    text_free(&report);
    wire_writer_free(&w);
    free(much);
}

static void exit_of_a_rank_arrives_unchanged(void **state)
{
    const node_exit left = {.generation = UINT32_MAX,
                            .local_rank = RDZV_LOCAL_MAX - 1,
                            .pid = INT32_MAX,
                            .state = PMI_LEFT};
    wire_writer w = {0};
    node_exit got;
    frame f;

    LS_UNUSED(state);
    node_write_exit(&w, &left);
    expect_exact(&w, read_left);
    f = frame_of(&w);
    assert_ok(node_read_exit(&f, &got));
    assert_memory_equal(&got, &left, sizeof(left));
    wire_writer_reset(&w);
    node_write_exit(&w, &(node_exit){.local_rank = RDZV_LOCAL_MAX});
    f = frame_of(&w);
    assert_status(read_left(&f), LS_EPROTO);
    wire_writer_reset(&w);
    node_write_exit(&w, &(node_exit){.pid = -1});
    f = frame_of(&w);
    assert_status(read_left(&f), LS_EPROTO);
    wire_writer_reset(&w);
    node_write_exit(&w, &(node_exit){.state = (pmi_state)(PMI_LEFT + 1)});
    f = frame_of(&w);
    assert_status(read_left(&f), LS_EPROTO);
    wire_writer_free(&w);
}

static ls_status read_ring(const frame *f)
{
    node_ring out;

    return node_read_ring(f, &out);
}

static void expect_no_ring(uint32_t total, uint32_t offset, size_t n, int local_rank)
{
    static const uint8_t bytes[16];
    wire_writer w = {0};
    frame f;

    node_write_ring(
        &w,
        &(node_ring){
            .local_rank = local_rank, .total = total, .offset = offset, .bytes = bytes, .n = n});
    f = frame_of(&w);
    assert_status(read_ring(&f), LS_EPROTO);
    wire_writer_free(&w);
}

static void a_piece_of_a_recorder_lies_within_it(void **state)
{
    const uint8_t bytes[3] = {1, 2, 3};
    const node_ring ring = {.generation = 7,
                            .local_rank = RDZV_LOCAL_MAX - 1,
                            .total = NODE_RING_MAX,
                            .offset = NODE_RING_MAX - 3,
                            .bytes = bytes,
                            .n = 3};
    wire_writer w = {0};
    node_ring got;
    frame f;

    LS_UNUSED(state);
    node_write_ring(&w, &ring);
    expect_exact(&w, read_ring);
    f = frame_of(&w);
    assert_ok(node_read_ring(&f, &got));
    assert_true(got.generation == 7 && got.local_rank == ring.local_rank && got.n == 3);
    assert_true(got.total == ring.total && got.offset == ring.offset);
    assert_memory_equal(got.bytes, bytes, 3);
    wire_writer_free(&w);
    expect_no_ring(NODE_RING_MAX + 1, 0, 1, 0);
    expect_no_ring(16, 16, 1, 0);
    expect_no_ring(16, 1, 16, 0);
    expect_no_ring(16, 17, 0, 0);
    expect_no_ring(16, UINT32_MAX, 2, 0);
    expect_no_ring(16, 0, 16, RDZV_LOCAL_MAX);
    expect_no_ring(16, 0, 16, -1);
}

static ls_status read_mpi(const frame *f)
{
    node_mpi out;

    return node_read_mpi(f, &out);
}

static ls_status read_master(const frame *f)
{
    node_master out;

    return node_read_master(f, &out);
}

static ls_status read_owner(const frame *f)
{
    node_owner_query out;

    return node_read_owner_query(f, &out);
}

static ls_status read_owned(const frame *f)
{
    node_owner_answer out;

    return node_read_owner_answer(f, &out);
}

static void messages_about_the_store_come_as_they_were(void **state)
{
    node_master master = {.generation = 7, .port = 65535};
    node_owner_query owner = {.generation = UINT32_MAX, .question = 3};
    node_owner_answer owned = {.generation = 1, .question = UINT32_MAX, .is_users = true};
    wire_writer w = {0};
    frame f;

    LS_UNUSED(state);
    assert_ok(net_address_decode("tcp://10.77.0.11:40000", &owner.client));
    assert_ok(net_address_decode("tcp://[fd77::10]:29500", &owner.server));
    node_write_master(&w, &master);
    expect_exact(&w, read_master);
    f = frame_of(&w);
    master = (node_master){0};
    assert_ok(node_read_master(&f, &master));
    assert_true(master.generation == 7 && master.port == 65535);
    wire_writer_free(&w);
    w = (wire_writer){0};
    node_write_master(&w, &(node_master){.generation = 1, .port = 65536});
    f = frame_of(&w);
    assert_status(read_master(&f), LS_EPROTO);
    wire_writer_free(&w);
    w = (wire_writer){0};
    node_write_owner_query(&w, &owner);
    expect_exact(&w, read_owner);
    f = frame_of(&w);
    owner = (node_owner_query){0};
    assert_ok(node_read_owner_query(&f, &owner));
    assert_true(owner.generation == UINT32_MAX && owner.question == 3);
    assert_true(net_address_port(&owner.client) == 40000 &&
                net_address_family(&owner.server) == NET_IPV6);
    wire_writer_free(&w);
    w = (wire_writer){0};
    wire_write_u32(&w, 1);
    wire_write_u32(&w, 1);
    wire_write_text(&w, "a name:80"); /* is not looked up */
    wire_write_text(&w, "tcp://10.0.0.1:80");
    f = frame_of(&w);
    assert_status(read_owner(&f), LS_EPROTO);
    wire_writer_free(&w);
    w = (wire_writer){0};
    node_write_owner_answer(&w, &owned);
    expect_exact(&w, read_owned);
    f = frame_of(&w);
    owned = (node_owner_answer){0};
    assert_ok(node_read_owner_answer(&f, &owned));
    assert_true(owned.generation == 1 && owned.question == UINT32_MAX && owned.is_users);
    wire_writer_free(&w);
}

static ls_status read_barrier(const frame *f)
{
    node_barrier out;

    return node_read_barrier(f, &out);
}

static void mpi_state_arrives_unchanged(void **state)
{
    wire_writer w = {0};
    node_barrier barrier;
    node_mpi mpi;
    frame f;

    LS_UNUSED(state);
    node_write_mpi(&w, &(node_mpi){.generation = 7, .barrier = UINT32_MAX, .has_members = true});
    expect_exact(&w, read_mpi);
    f = frame_of(&w);
    assert_ok(node_read_mpi(&f, &mpi));
    assert_int_equal(mpi.generation, 7);
    assert_int_equal(mpi.barrier, UINT32_MAX);
    assert_true(mpi.has_members);
    wire_writer_reset(&w);
    node_write_barrier(&w, &(node_barrier){.generation = UINT32_MAX, .number = 3});
    expect_exact(&w, read_barrier);
    f = frame_of(&w);
    assert_ok(node_read_barrier(&f, &barrier));
    assert_int_equal(barrier.generation, UINT32_MAX);
    assert_int_equal(barrier.number, 3);
    wire_writer_free(&w);
}

static void a_number_is_four_bytes(void **state)
{
    wire_writer w = {0};
    uint32_t got = 0;
    frame f;

    LS_UNUSED(state);
    wire_write_u32(&w, UINT32_MAX);
    expect_exact(&w, read_number);
    f = frame_of(&w);
    assert_ok(node_read_number(&f, &got));
    assert_int_equal(got, UINT32_MAX);
    wire_writer_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hello_comes_as_it_was),
        cmocka_unit_test(a_node_without_a_number_and_a_list_says_so),
        cmocka_unit_test(a_hello_with_impossible_numbers_is_refused),
        cmocka_unit_test(a_list_of_another_length_than_announced_is_refused),
        cmocka_unit_test(words_of_another_node_cannot_control_a_terminal),
        cmocka_unit_test(several_lines_keep_their_ends_and_nothing_else_of_the_kind),
        cmocka_unit_test(a_text_that_is_too_long_is_refused),
        cmocka_unit_test(a_failure_comes_as_it_was),
        cmocka_unit_test(a_failure_with_impossible_numbers_is_refused),
        cmocka_unit_test(an_end_comes_as_it_was_and_its_details_are_bounded),
        cmocka_unit_test(a_failed_rank_has_a_code_that_says_so),
        cmocka_unit_test(a_welcome_comes_as_it_was),
        cmocka_unit_test(a_welcome_may_be_without_a_hub_when_the_head_has_none),
        cmocka_unit_test(a_welcome_that_makes_no_sense_is_refused),
        cmocka_unit_test(a_name_with_a_zero_in_it_is_no_name),
        cmocka_unit_test(an_order_to_end_comes_as_it_was),
        cmocka_unit_test(the_word_about_the_end_is_bounded),
        cmocka_unit_test(exit_of_a_rank_arrives_unchanged),
        cmocka_unit_test(a_piece_of_a_recorder_lies_within_it),
        cmocka_unit_test(mpi_state_arrives_unchanged),
        cmocka_unit_test(a_number_is_four_bytes),
        cmocka_unit_test(messages_about_the_store_come_as_they_were),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
