/* SPDX-License-Identifier: Apache-2.0 */
/* test_check.c - the checks of arguments, sizes and overlaps, and the stamps of operations. */
#include "base/unit.h"
#include "comm/check.h"

static char buffer[4096];

static ls_status check(coll op)
{
    return check_coll(&op, 1, 4);
}

static void numbers_out_of_range_are_refused(void **state)
{
    const coll good = {.kind = COLL_REDUCE,
                       .dtype = LS_F32,
                       .redop = LS_SUM,
                       .src = buffer,
                       .dst = buffer,
                       .count = 8};
    coll op = good;

    LS_UNUSED(state);
    assert_ok(check(good));
    op.dtype = (ls_dtype)LS_DTYPE_COUNT;
    assert_status(check(op), LS_EINVAL);
    assert_last_error("reduce: 8 is not a type");
    op = good;
    op.redop = (ls_reduce_op)LS_REDUCE_OP_COUNT;
    assert_status(check(op), LS_EINVAL);
    op = good;
    op.root = 4;
    assert_status(check(op), LS_EINVAL);
    assert_last_error("root 4: must be 0 to 3");
    op.root = -1;
    assert_status(check(op), LS_EINVAL);
}

static ls_status check_reduction(int type, ls_reduce_op op)
{
    return check((coll){.kind = COLL_ALL_REDUCE,
                        .dtype = (ls_dtype)type,
                        .redop = op,
                        .root = -1,
                        .src = buffer,
                        .dst = buffer,
                        .count = 1});
}

static void only_floats_have_an_average_and_only_integers_have_bits(void **state)
{
    LS_UNUSED(state);
    for (int t = 0; t < LS_DTYPE_COUNT; t++) {
        assert_status(check_reduction(t, LS_AVG), t >= LS_F16 ? LS_OK : LS_EINVAL);
        for (int op = LS_BAND; op <= LS_BXOR; op++)
            assert_status(check_reduction(t, (ls_reduce_op)op), t < LS_F16 ? LS_OK : LS_EINVAL);
    }
    assert_status(check_reduction(LS_F32, LS_BXOR), LS_EINVAL);
    assert_last_error("bxor of float32: only integer types have it");
}

static void counts_that_overflow_are_refused(void **state)
{
    coll op = {.kind = COLL_ALL_REDUCE,
               .dtype = LS_F64,
               .root = -1,
               .src = buffer,
               .dst = buffer,
               .count = SIZE_MAX / 8 + 1};

    LS_UNUSED(state);
    assert_status(check(op), LS_EINVAL);
    op.count = (size_t)PTRDIFF_MAX / 8 + 1;
    assert_status(check(op), LS_EINVAL);
    op.kind = COLL_ALL_GATHER;
    op.count = SIZE_MAX / 16;
    assert_status(check(op), LS_EINVAL);
}

static void v_counts_that_overflow_are_refused(void **state)
{
    const size_t counts[4] = {SIZE_MAX / 2, SIZE_MAX / 2, 2, 0};
    const coll op = {.kind = COLL_ALL_GATHER,
                     .dtype = LS_I8,
                     .root = -1,
                     .src = buffer,
                     .dst = buffer,
                     .dst_counts = counts};

    LS_UNUSED(state);
    assert_status(check(op), LS_EINVAL);
}

static void null_buffers_are_refused_unless_they_hold_nothing(void **state)
{
    coll op = {.kind = COLL_ALL_REDUCE, .dtype = LS_F32, .root = -1, .dst = buffer, .count = 1};

    LS_UNUSED(state);
    assert_status(check(op), LS_EINVAL);
    assert_last_error("src is NULL");
    op.src = buffer;
    op.dst = NULL;
    assert_status(check(op), LS_EINVAL);
    assert_last_error("dst is NULL");
    op.src = NULL;
    op.count = 0;
    assert_ok(check(op));
}

static void buffers_of_other_ranks_are_not_looked_at(void **state)
{
    coll op = {.kind = COLL_BROADCAST,
               .dtype = LS_F32,
               .root = 0,
               .src = buffer,
               .dst = buffer + 4,
               .count = 8};

    LS_UNUSED(state);
    assert_ok(check_coll(&op, 1, 4));
    assert_null(op.src);
    assert_int_equal(check_src_side(&op, 1, 4).n_parts, 0);
    op = (coll){.kind = COLL_GATHER, .dtype = LS_F32, .root = 0, .src = buffer, .count = 8};
    assert_ok(check_coll(&op, 1, 4));
    op.root = 1;
    assert_status(check_coll(&op, 1, 4), LS_EINVAL);
}

static void overlaps_are_refused_unless_in_place(void **state)
{
    const size_t part = 8 * 4;
    coll op = {.dtype = LS_F32, .root = 1, .count = 8};

    LS_UNUSED(state);
    op.kind = COLL_ALL_REDUCE;
    op.src = buffer;
    op.dst = buffer;
    assert_ok(check(op));
    op.dst = buffer + 4;
    assert_status(check(op), LS_EINVAL);
    assert_last_error("overlap");
    op.dst = buffer + part;
    assert_ok(check(op));

    op.kind = COLL_ALL_GATHER; // this is rank 1
    op.dst = buffer;
    op.src = buffer + part;
    assert_ok(check(op));
    op.src = buffer;
    assert_status(check(op), LS_EINVAL);

    op.kind = COLL_SCATTER;
    op.src = buffer;
    op.dst = buffer + part;
    assert_ok(check(op));
    op.dst = buffer;
    assert_status(check(op), LS_EINVAL);

    op.kind = COLL_ALL_TO_ALL;
    assert_ok(check(op));
}

static void own_parts_of_different_sizes_are_refused(void **state)
{
    const size_t sent[] = {1, 2, 3, 4};
    size_t received[] = {4, 2, 2, 1};
    coll op = {.kind = COLL_ALL_TO_ALL,
               .dtype = LS_F32,
               .src = buffer,
               .src_counts = sent,
               .dst = buffer + 64,
               .dst_counts = received};

    LS_UNUSED(state);
    assert_ok(check(op));
    received[1] = 3; // this is rank 1
    assert_status(check(op), LS_EINVAL);
    assert_last_error("sends 2 elements to itself and receives 3");
}

static void peers_and_tags_are_checked(void **state)
{
    coll op = {.kind = COLL_SEND, .dtype = LS_F32, .root = 2, .src = buffer, .count = 1};

    LS_UNUSED(state);
    assert_ok(check(op));
    op.root = 1;
    assert_status(check(op), LS_EINVAL);
    assert_last_error("peer 1 is this rank itself");
    op.root = 4;
    assert_status(check(op), LS_EINVAL);
    op.root = LS_ANY_SOURCE;
    assert_status(check(op), LS_EINVAL);
    op = (coll){.kind = COLL_RECV, .dtype = LS_F32, .root = LS_ANY_SOURCE, .dst = buffer};
    assert_ok(check(op));
    op.tag = -1;
    assert_status(check(op), LS_EINVAL);
    assert_last_error("tag -1");
}

static void stamps_tell_operations_apart(void **state)
{
    const size_t some[4] = {1, 2, 3, 4}, other[4] = {2, 1, 3, 4};
    coll a = {.kind = COLL_ALL_GATHER,
              .dtype = LS_I8,
              .root = -1,
              .src = buffer,
              .dst = buffer + 64,
              .dst_counts = some};
    coll b = a;

    LS_UNUSED(state);
    b.dst_counts = other;
    assert_ok(check_coll(&a, 1, 4));
    assert_ok(check_coll(&b, 1, 4));
    assert_int_equal(a.stamp.form, STAMP_V);
    assert_false(stamp_equal(&a.stamp, &b.stamp));
    b = (coll){.kind = COLL_BARRIER, .root = -1};
    assert_ok(check_coll(&b, 1, 4));
    assert_int_equal(b.stamp.dtype, 255);
    assert_int_equal(b.stamp.redop, 255);
    assert_int_equal(b.stamp.root, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(only_floats_have_an_average_and_only_integers_have_bits),
        cmocka_unit_test(counts_that_overflow_are_refused),
        cmocka_unit_test(v_counts_that_overflow_are_refused),
        cmocka_unit_test(null_buffers_are_refused_unless_they_hold_nothing),
        cmocka_unit_test(buffers_of_other_ranks_are_not_looked_at),
        cmocka_unit_test(overlaps_are_refused_unless_in_place),
        cmocka_unit_test(own_parts_of_different_sizes_are_refused),
        cmocka_unit_test(peers_and_tags_are_checked),
        cmocka_unit_test(stamps_tell_operations_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
