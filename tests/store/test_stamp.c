/* SPDX-License-Identifier: Apache-2.0 */
/* test_stamp.c - stamps and causes on the wire and as text. */
#include "base/unit.h"

#include "base/text.h"
#include "hub/cause.h"
#include "hub/stamp.h"

#include <lockstep/comm.h>

static op_stamp sample(void)
{
    op_stamp s = {.group = 3,
                  .sequence = 17,
                  .kind = COLL_ALL_REDUCE,
                  .dtype = LS_F32,
                  .redop = 0,
                  .root = -1,
                  .count = 262144};

    text_format(s.site, sizeof(s.site), "train_step+0x1c");
    return s;
}

static void a_stamp_comes_back_as_it_was(void **state)
{
    op_stamp s = sample();
    op_stamp got;
    uint8_t wire[STAMP_BYTES];

    LS_UNUSED(state);
    memset(s.site, 'x', sizeof(s.site) - 1);
    s.count = UINT64_MAX;
    s.sequence = UINT64_MAX;
    s.group = UINT32_MAX;
    stamp_encode(&s, wire);
    assert_ok(stamp_decode(wire, &got));
    assert_true(stamp_equal(&s, &got));
    assert_string_equal(s.site, got.site);
}

static void each_compared_field_makes_a_difference_and_the_site_none(void **state)
{
    const op_stamp s = sample();
    op_stamp t;

    LS_UNUSED(state);
    for (int i = 0; i < 8; i++) {
        t = s;
        t.group += i == 0;
        t.sequence += i == 1;
        t.kind = (uint8_t)(t.kind + (i == 2));
        t.dtype = (uint8_t)(t.dtype + (i == 3));
        t.redop = (uint8_t)(t.redop + (i == 4));
        t.form = (uint8_t)(t.form + (i == 5));
        t.root += i == 6;
        t.count += i == 7;
        assert_false(stamp_equal(&s, &t));
    }
    t = s;
    text_format(t.site, sizeof(t.site), "elsewhere");
    assert_true(stamp_equal(&s, &t));
}

static void impossible_values_are_refused(void **state)
{
    static const struct {
        size_t at;
        uint8_t value;
    } bad[] = {{24, COLL_KIND_COUNT},
               {25, LS_DTYPE_COUNT},
               {26, LS_REDUCE_OP_COUNT},
               {27, 4},
               {23, 0x80},
               {28, 1},
               {39, 1},
               {79, 'x'}};
    op_stamp s = sample();
    uint8_t wire[STAMP_BYTES];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        stamp_encode(&s, wire);
        wire[bad[i].at] = bad[i].value;
        assert_status(stamp_decode(wire, &s), LS_EPROTO);
        s = sample();
    }
    s.sequence = 0;
    stamp_encode(&s, wire);
    assert_status(stamp_decode(wire, &s), LS_EPROTO);
}

static void texts_say_what_the_operation_is(void **state)
{
    static const struct {
        op_stamp stamp;
        const char *text;
    } cases[] = {
        {{0, 17, COLL_ALL_REDUCE, LS_F32, 0, 0, -1, 262144, "train_step+0x1c"},
         "all_reduce #17 (sum, 262144 float32) at train_step+0x1c"},
        {{0, 4, COLL_BROADCAST, LS_F32, 255, 0, 2, 100, "g+0x40"},
         "broadcast #4 (root 2, 100 float32) at g+0x40"},
        {{5, 1, COLL_BARRIER, 255, 255, 0, -1, 0, ""}, "barrier #1 of group 5"},
        {{0, 2, COLL_SEND, LS_I64, 255, 0, 3, 1, ""}, "send #2 (to 3, 1 int64)"},
        {{0, 2, COLL_RECV, LS_I64, 255, 0, -1, 1, ""}, "recv #2 (from any, 1 int64)"},
        {{0, 9, COLL_ALL_GATHER, LS_F16, 255, 1, -1, 0x123456789abcdef0, ""},
         "all_gather_v #9 (float16, counts ~12345678)"},
        {{0, 9, COLL_ALL_REDUCE, LS_U8, LS_BXOR, 0, -1, 4, ""}, "all_reduce #9 (bxor, 4 uint8)"},
        {{0, 9, COLL_ALL_REDUCE, LS_F16, 0, STAMP_ON_DEVICE, -1, 4, ""},
         "all_reduce #9 (sum, 4 float16 on device)"},
        {{0, 9, COLL_ALL_GATHER, LS_F16, 255, STAMP_V | STAMP_ON_DEVICE, -1, 1, ""},
         "all_gather_v #9 (float16, counts ~00000000 on device)"},
    };
    op_stamp longest = {UINT32_MAX,      UINT64_MAX, COLL_REDUCE, LS_BF16, 2,
                        STAMP_ON_DEVICE, INT32_MAX,  UINT64_MAX,  ""};
    char text[160];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++)
        assert_string_equal(stamp_text(text, sizeof(text), &cases[i].stamp), cases[i].text);
    memset(longest.site, 's', sizeof(longest.site) - 1);
    assert_true(strlen(stamp_text(text, sizeof(text), &longest)) < sizeof(text) - 1);
    assert_string_equal(stamp_text(text, 8, &cases[0].stamp), "all_red");
    assert_string_equal(coll_name(COLL_KIND_COUNT), "?");
}

static void sites_from_outside_are_made_printable(void **state)
{
    op_stamp s = sample();
    uint8_t wire[STAMP_BYTES];

    LS_UNUSED(state);
    text_format(s.site, sizeof(s.site), "a\033[31mred\n");
    stamp_encode(&s, wire);
    assert_ok(stamp_decode(wire, &s));
    assert_null(strchr(s.site, '\033'));
    assert_null(strchr(s.site, '\n'));
}

static void causes_come_back_and_bad_ones_fail(void **state)
{
    job_cause cause = {.kind = CAUSE_DIED, .group = GROUP_ALL, .rank = 1};
    job_cause got;
    wire_writer w = {0};
    wire_reader r;

    LS_UNUSED(state);
    memset(cause.text, 'c', sizeof(cause.text) - 1);
    cause_write(&w, &cause);
    assert_ok(wire_writer_status(&w));
    r = wire_reader_over(w.data, w.bytes);
    cause_read(&r, &got);
    assert_ok(wire_reader_end(&r, "cause"));
    assert_int_equal(got.kind, CAUSE_DIED);
    assert_int_equal(got.group, GROUP_ALL);
    assert_int_equal(got.rank, 1);
    assert_string_equal(got.text, cause.text);
    for (size_t n = 0; n < w.bytes; n++) {
        r = wire_reader_over(w.data, n);
        cause_read(&r, &got);
        assert_true(r.failed);
        assert_int_equal(got.kind, CAUSE_NONE);
    }
    w.data[0] = 99;
    r = wire_reader_over(w.data, w.bytes);
    cause_read(&r, &got);
    assert_true(r.failed);
    w.data[0] = CAUSE_DIED;
    memset(w.data + 8, 0xfe, 4); // rank -16843010
    r = wire_reader_over(w.data, w.bytes);
    cause_read(&r, &got);
    assert_true(r.failed);
    wire_writer_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stamp_comes_back_as_it_was),
        cmocka_unit_test(each_compared_field_makes_a_difference_and_the_site_none),
        cmocka_unit_test(impossible_values_are_refused),
        cmocka_unit_test(texts_say_what_the_operation_is),
        cmocka_unit_test(sites_from_outside_are_made_printable),
        cmocka_unit_test(causes_come_back_and_bad_ones_fail),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
