/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shard_faults.c - steps with shards that are called wrongly, or in which a shard or a rank
 * fails.
 */
#include "ddp/shard_net.h"

#include "harness/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* --- misuse --- */

static ls_status refused(ls_comm *comm, small_net *n, ls_ddp_options options, ls_status expected,
                         const char *part)
{
    options.size = sizeof(options);
    LS_CHECK(ls_ddp_create(comm, n->model, &options, &n->ddp) == expected);
    LS_CHECK(strstr(ls_last_error(), part) != NULL);
    return LS_OK;
}

static ls_status body_options(const ls_test_rank *self, void *arg)
{
    ls_comm *comm;
    small_net n;
    int first;
    int count;

    (void)arg;
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(shard_net_open(&n));
    LS_TRY(refused(comm, &n, (ls_ddp_options){.shards = 1}, LS_EINVAL, "1 shards on 2 ranks"));
    if (is_stream_device())
        LS_TRY(refused(comm, &n, (ls_ddp_options){.shards = 4, .hook = LS_DDP_HOOK_BF16},
                       LS_EUNSUPPORTED, "--compress"));
    LS_TRY(refused(comm, &n,
                   (ls_ddp_options){.shards = 2, .sync_batch_norm = 1, .batch_norm_group = comm},
                   LS_EUNSUPPORTED, "batch_norm_group"));
    LS_TRY(refused(comm, &n, (ls_ddp_options){.shards = 4, .no_buffer_broadcast = 1},
                   LS_EUNSUPPORTED, "no_buffer_broadcast"));
    LS_CHECK(ls_shard_range(5, 2, 3, &first, &count) == LS_OK && first == 4 && count == 1);
    LS_CHECK(ls_shard_range(2, 0, 3, &first, &count) == LS_EINVAL);
    LS_CHECK(ls_shard_range(2, 2, 2, &first, &count) == LS_EINVAL);
    LS_CHECK(ls_shard_range(2, 0, 2, NULL, &count) == LS_EINVAL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void options_that_depend_on_the_ranks_are_refused(void **state)
{
    (void)state;
    assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_options}));
}

/* What rank 0 of 1 does wrong in a step of 3 shards. */
enum { NO_SYNC, TOO_FEW, TOO_MANY };

static ls_status misuse(small_net *n, int what)
{
    ls_ddp_step result;

    if (what != NO_SYNC)
        LS_TRY(ls_ddp_sync_buffers(n->ddp));
    LS_TRY(shard_through(n, 0, 0, false, NULL));
    if (what == TOO_MANY)
        LS_TRY(shard_through(n, 0, 1, false, NULL));
    return shard_through(n, 0, 2, what == TOO_FEW, &result);
}

static ls_status body_misuse(const ls_test_rank *self, void *arg)
{
    static const char *const parts[] = {
        "ls_ddp_sync_buffers", "has computed 1 of its shards 0 to 2", "shard 2 is the last one"};
    const ls_ddp_options options = {.size = sizeof(options), .shards = 3};
    const int what = *(const int *)arg;
    ls_comm *comm;
    small_net n;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(shard_net_open(&n));
    LS_TRY(small_net_join(&n, comm, &options, 0.1));
    LS_CHECK(misuse(&n, what) == LS_EINVAL);
    LS_CHECK(strstr(ls_last_error(), parts[what]) != NULL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void calls_out_of_turn_fail(void **state)
{
    (void)state;
    for (int what = NO_SYNC; what <= TOO_MANY; what++)
        assert_true(ls_test_run(&(ls_test_job){.n = 1, .body = body_misuse, .arg = &what}));
}

/* --- failures --- */

static ls_status body_loss(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options options = {.size = sizeof(options), .shards = 8};
    ls_ddp_step result;
    ls_comm *comm;
    small_net n;
    int first;
    int count;

    (void)arg;
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(shard_net_open(&n));
    LS_TRY(small_net_join(&n, comm, &options, 0.1));
    LS_TRY(ls_shard_range(8, self->rank, self->size, &first, &count));
    LS_TRY(ls_barrier(comm, NULL)); // all have joined
    LS_TRY(ls_ddp_sync_buffers(n.ddp));
    for (int s = first; s < first + count - 1; s++)
        LS_TRY(shard_through(&n, 0, s, false, NULL));
    if (self->rank == 1)
        ls_comm_abort(comm, "the test ends rank 1");
    else
        LS_CHECK(shard_through(&n, 0, first + count - 1, true, &result) != LS_OK);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void loss_of_a_rank_ends_the_exchange(void **state)
{
    (void)state;
    if (is_stream_device())
        skip();
    assert_true(ls_test_run(&(ls_test_job){.n = 3, .body = body_loss}));
}

/* What is wrong with a step of 4 shards on 2 ranks: of shard 1, which rank 0 has. */
enum { IN_TURN, WITHOUT_A_NORM, WITHOUT_DATA, WITH_A_WRONG_SHAPE, BELOW_0_ROWS, TWICE };

static ls_status compute_without_a_norm(void *arg, int shard, ls_tape *tape, ls_tensor **loss,
                                        int64_t *rows)
{
    shard_step *s = arg;

    if (shard != 1)
        return shard_compute(arg, shard, tape, loss, rows);
    LS_TRY(shard_rows_at(s->net, s->step, shard, &s->x[shard], &s->y[shard]));
    *loss =
        ls_cross_entropy(tape, ls_forward(tape, s->net->layers[FIRST], s->x[shard]), s->y[shard]);
    *rows = shard_rows_of(s->step, shard);
    return LS_OK;
}

static ls_status compute_without_data(void *arg, int shard, ls_tape *tape, ls_tensor **loss,
                                      int64_t *rows)
{
    if (shard == 1)
        return ls_set_error(LS_EIO, "the data of shard 1 are gone");
    return shard_compute(arg, shard, tape, loss, rows);
}

static ls_status compute_wrong_shape(void *arg, int shard, ls_tape *tape, ls_tensor **loss,
                                     int64_t *rows)
{
    shard_step *s = arg;

    LS_TRY(shard_compute(arg, shard, tape, loss, rows));
    if (shard == 1)
        *loss = ls_forward(tape, s->net->layers[SECOND], s->x[shard]);
    return LS_OK;
}

static ls_status compute_below_0_rows(void *arg, int shard, ls_tape *tape, ls_tensor **loss,
                                      int64_t *rows)
{
    LS_TRY(shard_compute(arg, shard, tape, loss, rows));
    *rows = shard == 1 ? -1 : *rows;
    return LS_OK;
}

static ls_status wrong_step(small_net *n, int first, int what, ls_ddp_step *result)
{
    static const ls_shard_fn fns[] = {
        [WITHOUT_A_NORM] = compute_without_a_norm,
        [WITHOUT_DATA] = compute_without_data,
        [WITH_A_WRONG_SHAPE] = compute_wrong_shape,
        [BELOW_0_ROWS] = compute_below_0_rows,
    };

    if (what == IN_TURN)
        return shard_through(n, 0, first, false, NULL);
    if (what != TWICE)
        return shard_step_run(n, 0, fns[what], result);
    LS_TRY(ls_ddp_begin(n->ddp, 1));
    return shard_step_run(n, 0, shard_compute, result);
}

static ls_status body_wrong_step(const ls_test_rank *self, void *arg)
{
    static const struct {
        ls_status of_rank_0;
        const char *part;
    } expected[] = {
        [IN_TURN] = {LS_EUNSUPPORTED, "ls_ddp_step_shards()"},
        [WITHOUT_A_NORM] = {LS_EINVAL, "have computed different batch norms"},
        [WITHOUT_DATA] = {LS_EIO, "the data of shard 1 are gone"},
        [WITH_A_WRONG_SHAPE] = {LS_EINVAL, "linear"},
        [BELOW_0_ROWS] = {LS_EINVAL, "rows is -1"},
        [TWICE] = {LS_EINVAL, "after ls_ddp_begin()"},
    };
    const ls_ddp_options options = {.size = sizeof(options), .shards = 4, .sync_batch_norm = 1};
    const int what = *(const int *)arg;
    ls_ddp_step result;
    ls_comm *comm;
    small_net n;
    ls_status st;
    int first;
    int count;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(shard_net_open(&n));
    LS_TRY(small_net_join(&n, comm, &options, 0.1));
    LS_TRY(ls_shard_range(4, self->rank, self->size, &first, &count));
    LS_TRY(ls_barrier(comm, NULL));  // all have joined
    st = ls_ddp_sync_buffers(n.ddp); // the other rank may be ahead, and have aborted
    if (st == LS_OK)
        st = wrong_step(&n, first, what, &result);
    if (what == IN_TURN || (what != TWICE && self->rank == 0)) // else the other's may come first
        LS_CHECK(st == expected[what].of_rank_0);
    LS_CHECK(st != LS_OK && strstr(ls_last_error(), expected[what].part) != NULL);
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void a_wrong_shard_ends_the_step_of_all(void **state)
{
    (void)state;
    for (int what = IN_TURN; what <= TWICE; what++)
        assert_true(ls_test_run(&(ls_test_job){.n = 2, .body = body_wrong_step, .arg = &what}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_depend_on_the_ranks_are_refused),
        cmocka_unit_test(calls_out_of_turn_fail),
        cmocka_unit_test(loss_of_a_rank_ends_the_exchange),
        cmocka_unit_test(a_wrong_shard_ends_the_step_of_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
