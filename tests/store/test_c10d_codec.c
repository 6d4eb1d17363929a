/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_c10d_codec.c - requests of the three dialects of PyTorch's TCPStore: whole, cut, and
 * malformed.
 */
#include "store/c10d_client.h"

#include "net/wire.h"

/* Parses one request that has come whole. */
static c10d_request parse_whole(c10d_parser *p, const message *m)
{
    c10d_request r;
    size_t used;

    assert_ok(c10d_parse(p, MSG_DATA(m), MSG_SIZE(m), &r, &used));
    assert_int_equal(used, MSG_SIZE(m));
    return r;
}

static void expect_bytes(c10d_request *r, const char *text)
{
    const kv_bytes v = c10d_read_bytes(r);

    assert_int_equal(v.bytes, strlen(text));
    assert_memory_equal(v.data, text, v.bytes);
}

static void the_first_bytes_tell_the_dialect(void **state)
{
    LS_UNUSED(state);
    for (client_version t = 0; t < N_CLIENT_VERSIONS; t++) {
        c10d_parser p = {0};
        message m = {0};
        c10d_request r;
        size_t used;
        size_t all = 0;

        msg_hello(&m, t);
        msg_command(&m, t, C10D_SET);
        msg_text(&m, "/key");
        msg_text(&m, "");
        do {
            assert_ok(c10d_parse(&p, MSG_DATA(&m) + all, MSG_SIZE(&m) - all, &r, &used));
            all += used;
        } while (r.op == C10D_VALIDATE);
        assert_int_equal(all, MSG_SIZE(&m));
        assert_int_equal(p.dialect, dialect_of(t));
        assert_int_equal(r.op, C10D_SET);
        expect_bytes(&r, "/key");
        expect_bytes(&r, "");
        byte_queue_free(&m);
    }
}

/* A raw SET begins with the 0 that a validation begins with too. */
static void a_raw_set_is_no_validation(void **state)
{
    c10d_parser p = {0};
    message m = {0};
    c10d_request r;
    size_t used;

    LS_UNUSED(state);
    msg_command(&m, OF_2_1, C10D_SET);
    msg_text(&m, "/k");
    msg_text(&m, "v");
    for (size_t n = 0; n < 5; n++) {
        assert_ok(c10d_parse(&p, MSG_DATA(&m), n, &r, &used));
        assert_int_equal(used, 0);
        assert_int_equal(p.dialect, C10D_UNKNOWN);
    }
    assert_ok(c10d_parse(&p, MSG_DATA(&m), 5, &r, &used));
    assert_int_equal(p.dialect, C10D_RAW);
    r = parse_whole(&p, &m);
    expect_bytes(&r, "/k");
    expect_bytes(&r, "v");
    byte_queue_free(&m);
}

static void every_command_has_its_number_and_fields(void **state)
{
    LS_UNUSED(state);
    for (client_version t = 0; t < N_CLIENT_VERSIONS; t++) {
        for (int op = C10D_SET; op < C10D_OP_COUNT; op++) {
            static const char *const shapes[C10D_OP_COUNT] = {
                [C10D_SET] = "ss",        [C10D_COMPARE_SET] = "sss", [C10D_GET] = "s",
                [C10D_ADD] = "si",        [C10D_CHECK] = "2ss",       [C10D_WAIT] = "2ss",
                [C10D_COUNT] = "",        [C10D_DELETE] = "s",        [C10D_APPEND] = "ss",
                [C10D_MULTI_GET] = "2ss", [C10D_MULTI_SET] = "2ssss", [C10D_CANCEL_WAIT] = "",
                [C10D_PING] = "u",        [C10D_QUEUE_PUSH] = "ss",   [C10D_QUEUE_POP] = "s",
                [C10D_QUEUE_LEN] = "s",   [C10D_LIST_KEYS] = "",      [C10D_BARRIER] = "si",
            };
            c10d_parser p = {.dialect = dialect_of(t),
                             .age = t == UP_TO_2_0 ? C10D_UP_TO_2_0 : C10D_ANY_AGE};
            message m = {0};
            c10d_request r;

            if (!msg_has(t, (c10d_op)op))
                continue;
            msg_command(&m, t, (c10d_op)op);
            for (const char *s = shapes[op]; *s != 0; s++) {
                if (*s == 's')
                    msg_text(&m, s);
                else if (*s == 'u')
                    msg_u32(&m, 0xfffffff0U);
                else
                    msg_i64(&m, *s == 'i' ? INT64_MIN : 2);
            }
            r = parse_whole(&p, &m);
            assert_int_equal(r.op, op);
            assert_int_equal(r.n, shapes[op][0] == '2' ? 2 : 0);
            for (const char *s = shapes[op]; *s != 0; s++) {
                if (*s == 's')
                    expect_bytes(&r, s);
                else if (*s == 'i')
                    assert_true(c10d_read_i64(&r) == INT64_MIN);
                if (*s != 'u')
                    continue;
                assert_int_equal(wire_get_u32(r.at), 0xfffffff0U);
                r.bytes -= 4;
            }
            assert_int_equal(r.bytes, 0);
            byte_queue_free(&m);
        }
    }
}

/* Hands a stream over in pieces that end at every multiple of `piece` and counts the requests;
 * checks that it is read no further. */
static size_t parse_in_pieces(const message *m, size_t piece, c10d_op *ops)
{
    c10d_parser p = {0};
    size_t n = 0;
    size_t start = 0;

    for (size_t end = 0; end < MSG_SIZE(m);) {
        size_t used = 1;

        end = MSG_SIZE(m) - end < piece ? MSG_SIZE(m) : end + piece;
        while (used > 0) {
            c10d_request r;

            assert_ok(c10d_parse(&p, MSG_DATA(m) + start, end - start, &r, &used));
            start += used;
            if (used > 0)
                ops[n++] = r.op;
        }
    }
    assert_int_equal(start, MSG_SIZE(m));
    return n;
}

static void any_cut_gives_the_same_requests(void **state)
{
    LS_UNUSED(state);
    for (client_version t = 0; t < N_CLIENT_VERSIONS; t++) {
        message m = {0};
        c10d_op whole[64];
        c10d_op cut[64];
        size_t n;

        msg_tour(&m, t);
        n = parse_in_pieces(&m, MSG_SIZE(&m), whole);
        assert_true(n >= 8);
        for (size_t piece = 1; piece < MSG_SIZE(&m); piece++) {
            assert_int_equal(parse_in_pieces(&m, piece, cut), n);
            assert_memory_equal(cut, whole, n * sizeof(*cut));
        }
        byte_queue_free(&m);
    }
}

/* A long list costs one look at each item, however it is cut. */
static void what_has_been_seen_is_not_looked_at_again(void **state)
{
    enum { N = 20000 };
    c10d_parser p = {0};
    message m = {0};
    c10d_request r;
    size_t used = 0;
    size_t before = 0;

    LS_UNUSED(state);
    msg_command(&m, OF_2_1, C10D_CHECK);
    msg_i64(&m, N);
    for (int i = 0; i < N; i++)
        msg_text(&m, "/k");
    for (size_t n = 0; n <= MSG_SIZE(&m); n++) {
        assert_int_equal(used, 0);
        assert_ok(c10d_parse(&p, MSG_DATA(&m), n, &r, &used));
        assert_true(used > 0 || p.at >= before);
        before = p.at;
    }
    assert_int_equal(used, MSG_SIZE(&m));
    assert_int_equal(r.n, N);
    byte_queue_free(&m);
}

/* Expects the failure as soon as the last byte of what was written is there, and not before. */
static void expect_refused(message *m, const char *why)
{
    c10d_parser p = {0};
    c10d_request r;
    size_t used;

    for (size_t n = 0; n < MSG_SIZE(m); n++)
        assert_ok(c10d_parse(&p, MSG_DATA(m), n, &r, &used));
    assert_status(c10d_parse(&p, MSG_DATA(m), MSG_SIZE(m), &r, &used), LS_EPROTO);
    assert_last_error(why);
    byte_queue_free(m);
}

static void hostile_lengths_are_refused_at_once(void **state)
{
    message m = {0};

    LS_UNUSED(state);
    msg_command(&m, OF_2_1, C10D_GET);
    msg_i64(&m, LS_STORE_KEY_MAX + 1);
    expect_refused(&m, "GET with a key of 8193 bytes");
    msg_command(&m, OF_2_1, C10D_GET);
    msg_i64(&m, 0);
    expect_refused(&m, "GET with a key of 0 bytes");
    msg_command(&m, OF_2_1, C10D_GET);
    msg_i64(&m, -1);
    expect_refused(&m, "18446744073709551615");
    msg_command(&m, OF_2_1, C10D_APPEND);
    msg_text(&m, "/k");
    msg_i64(&m, (int64_t)LS_STORE_VALUE_MAX + 1);
    expect_refused(&m, "APPEND with a value of 8388609 bytes");
    msg_command(&m, OF_2_1, C10D_WAIT);
    msg_i64(&m, C10D_LIST_MAX + 1);
    expect_refused(&m, "WAIT of 131073 keys");
    msg_command(&m, OF_2_1, C10D_MULTI_SET);
    msg_i64(&m, INT64_MIN);
    expect_refused(&m, "MULTI_SET of 9223372036854775808 keys");
}

static void the_sum_of_a_list_is_bounded(void **state)
{
    static uint8_t value[1024 * 1024];
    message m = {0};
    c10d_parser p = {0};
    c10d_request r;
    size_t used;
    ls_status st;

    LS_UNUSED(state);
    msg_command(&m, OF_2_1, C10D_MULTI_SET);
    msg_i64(&m, 100);
    for (int i = 0; i < 17; i++) {
        msg_text(&m, "/k");
        msg_bytes(&m, value, sizeof(value));
    }
    st = c10d_parse(&p, MSG_DATA(&m), MSG_SIZE(&m), &r, &used);
    assert_status(st, LS_EPROTO);
    assert_last_error("MULTI_SET of more than");
    byte_queue_free(&m);
}

static void what_is_no_request_is_refused(void **state)
{
    message m = {0};

    LS_UNUSED(state);
    msg_raw(&m, "G", 1); // of GET / HTTP/1.1
    expect_refused(&m, "command 71");
    msg_u8(&m, 13); // a ping without validation
    expect_refused(&m, "command 13");
    msg_raw(&m, "\xce\xf7\x85\x3d\x00", 5);
    expect_refused(&m, "magic");
    msg_raw(&m, "\xce\xf7\x85\x3c\x0c", 5);
    expect_refused(&m, "command 12");
}

static void byte_after_the_key_means_append(void **state)
{
    c10d_parser p = {0};
    message m = {0};
    c10d_request r;
    size_t used;

    LS_UNUSED(state);
    msg_command(&m, UP_TO_2_0, C10D_DELETE);
    msg_text(&m, "/k");
    assert_ok(c10d_parse(&p, MSG_DATA(&m), MSG_SIZE(&m) - 1, &r, &used));
    assert_false(c10d_is_undecided(&p));
    assert_ok(c10d_parse(&p, MSG_DATA(&m), MSG_SIZE(&m), &r, &used));
    assert_int_equal(used, 0);
    assert_true(c10d_is_undecided(&p));
    c10d_decide(&p);
    r = parse_whole(&p, &m);
    assert_int_equal(r.op, C10D_DELETE);
    r = parse_whole(&p, &m); // known by now
    assert_int_equal(r.op, C10D_DELETE);
    byte_queue_free(&m);

    p = (c10d_parser){0};
    msg_command(&m, OF_2_1, C10D_APPEND);
    msg_text(&m, "/k");
    msg_text(&m, "");
    assert_ok(c10d_parse(&p, MSG_DATA(&m), MSG_SIZE(&m) - 7, &r, &used));
    assert_false(c10d_is_undecided(&p));
    r = parse_whole(&p, &m);
    assert_int_equal(r.op, C10D_APPEND);
    for (size_t n = 0; n < MSG_SIZE(&m); n++) {
        assert_ok(c10d_parse(&p, MSG_DATA(&m), n, &r, &used));
        assert_false(c10d_is_undecided(&p));
    }
    byte_queue_free(&m);
}

static void a_second_validation_is_refused(void **state)
{
    c10d_parser p = {.dialect = C10D_VALIDATED};
    message m = {0};
    c10d_request r;
    size_t used;

    LS_UNUSED(state);
    msg_hello(&m, VALIDATED);
    assert_status(c10d_parse(&p, MSG_DATA(&m), MSG_SIZE(&m), &r, &used), LS_EPROTO);
    byte_queue_free(&m);
}

static void the_largest_request_passes(void **state)
{
    static uint8_t value[LS_STORE_VALUE_MAX];
    static char key[LS_STORE_KEY_MAX];
    c10d_parser p = {0};
    message m = {0};
    c10d_request r;

    LS_UNUSED(state);
    msg_command(&m, OF_2_1, C10D_COMPARE_SET);
    msg_bytes(&m, key, sizeof(key));
    msg_bytes(&m, value, sizeof(value));
    msg_bytes(&m, value, sizeof(value));
    r = parse_whole(&p, &m);
    assert_int_equal(c10d_read_bytes(&r).bytes, sizeof(key));
    assert_int_equal(c10d_read_bytes(&r).bytes, sizeof(value));
    byte_queue_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_bytes_tell_the_dialect),
        cmocka_unit_test(a_raw_set_is_no_validation),
        cmocka_unit_test(every_command_has_its_number_and_fields),
        cmocka_unit_test(any_cut_gives_the_same_requests),
        cmocka_unit_test(what_has_been_seen_is_not_looked_at_again),
        cmocka_unit_test(hostile_lengths_are_refused_at_once),
        cmocka_unit_test(the_sum_of_a_list_is_bounded),
        cmocka_unit_test(what_is_no_request_is_refused),
        cmocka_unit_test(byte_after_the_key_means_append),
        cmocka_unit_test(a_second_validation_is_refused),
        cmocka_unit_test(the_largest_request_passes),
    };

    return cmocka_run_group_tests_name("store c10d codec", tests, NULL, NULL);
}
