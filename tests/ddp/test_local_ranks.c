/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_local_ranks.c - islands of several ranks in a program's own loop: the bits of a loop that is
 * written by hand with an ls_ddp for each island, operations, delays, failures, and hosts.
 */
#include <lockstep/local_sgd.h>

#include "base/alloc.h"
#include "base/text.h"
#include "comm/backends/reduce.h"
#include "comm/record/recorder.h"
#include "ddp/int_blocks.h"
#include "ddp/local_rules.h"
#include "harness/two_hosts.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Two parameters of PART numbers; the loss of a rank is the sum of their distances to targets of
 * its own, which change with the step. */
enum { PART = 3, PARTS = 2, NUMBERS = PART * PARTS, RANKS_MOST = 5, STEPS_MOST = 32 };

#define OUTER_LR       0.7F
#define OUTER_MOMENTUM 0.9F

typedef struct loop_case {
    int n;
    ls_local_sgd_options options;
    int of[RANKS_MOST]; /* the island of each rank */
    int steps;
    float spoil; /* added to a number of the last island before the last step; 0: nothing */
} loop_case;

typedef struct loop_result {
    float trace[STEPS_MOST][NUMBERS]; /* after each step */
    float shown[NUMBERS];
    int n_sent; /* means of which this rank has sent a difference */
    uint64_t sent_bytes;
    int n_shared; /* means that it has got from, or given to, its island */
    ls_status status;
    char error[LS_ERROR_BYTES];
} loop_result;

static loop_result *results; /* of each rank, in shared memory */

/* --- a rank --- */

typedef struct fitting {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_optimizer *sgd;
    ls_tensor *parts[PARTS];
    ls_tensor *goals[PARTS];
    ls_local_sgd *local;
    ls_ddp *ddp;
} fitting;

static ls_status fitting_open(fitting *f, int rank)
{
    const ls_device_options device = {.size = sizeof(device), .threads = 1, .name = "cpu_ref"};
    const ls_sgd_options inner = {.size = sizeof(inner), .lr = 0.375, .momentum = 0.5};
    const int64_t dims[] = {1, PART};
    const ls_named *parameters;
    int n;

    *f = (fitting){.device = NULL};
    LS_TRY(ls_device_open(&device, &f->device));
    LS_TRY(ls_model_create(f->device, (uint64_t)rank + 3, &f->model)); // rank 0's values count
    (void)ls_nn_linear(f->model, "a", PART, 1, 1);
    (void)ls_nn_linear(f->model, "b", PART, 1, 1);
    LS_TRY(ls_tape_create(f->device, &f->tape));
    parameters = ls_model_parameters(f->model, &n);
    for (int i = 0; i < PARTS; i++) {
        f->parts[i] = parameters[i].tensor;
        LS_TRY(ls_tensor_create(f->device, LS_F32, 2, dims, &f->goals[i]));
    }
    return ls_sgd_create(parameters, n, ls_grad, &inner, &f->sgd);
}

static void fitting_close(fitting *f)
{
    ls_ddp_destroy(f->ddp);
    ls_local_sgd_destroy(f->local);
    ls_optimizer_destroy(f->sgd);
    for (int i = 0; i < PARTS; i++)
        ls_tensor_destroy(f->goals[i]);
    ls_tape_destroy(f->tape);
    ls_model_destroy(f->model);
    ls_device_close(f->device);
}

static ls_status read_numbers(const fitting *f, float out[NUMBERS])
{
    for (int i = 0; i < PARTS; i++)
        LS_TRY(ls_tensor_read(f->parts[i], out + (size_t)i * PART, PART));
    return LS_OK;
}

static ls_status write_numbers(const fitting *f, const float from[NUMBERS])
{
    for (int i = 0; i < PARTS; i++)
        LS_TRY(ls_tensor_write(f->parts[i], from + (size_t)i * PART, PART));
    return LS_OK;
}

static ls_status train(const fitting *f, int rank, int step)
{
    ls_tensor *loss;
    ls_ddp_step taken;

    for (int k = 0; k < PARTS; k++) {
        float target[PART];

        for (int i = 0; i < PART; i++)
            target[i] = 0.37F * (float)((rank + 1) * (i - k)) + 0.11F * (float)(step % 3 * rank);
        LS_TRY(ls_tensor_write(f->goals[k], target, PART));
    }
    ls_tape_reset(f->tape);
    loss = ls_add(f->tape, ls_mse_loss(f->tape, f->parts[0], f->goals[0]),
                  ls_mse_loss(f->tape, f->parts[1], f->goals[1]));
    if (f->ddp != NULL)
        LS_TRY(ls_ddp_backward(f->ddp, f->tape, loss, 1, &taken));
    else
        ls_model_zero_grad(f->model);
    if (f->ddp == NULL)
        LS_TRY(ls_backward(f->tape, loss, 1));
    return ls_optimizer_step(f->sgd);
}

static ls_status join(fitting *f, ls_comm *comm, const ls_local_sgd_options *opt)
{
    ls_comm *group;

    LS_TRY(ls_local_sgd_create(comm, f->model, f->sgd, opt, &f->local));
    group = ls_local_sgd_group(f->local);
    return group == NULL ? LS_OK : ls_ddp_create(group, f->model, NULL, &f->ddp);
}

/* Counts this rank's operations of means. */
static ls_status count_operations(ls_comm *comm, loop_result *out)
{
    recorder_entry *entries;
    ls_status st;
    int n;

    LS_TRY(LS_NEW(&entries, RECORDER_ENTRIES, "for operations"));
    st = comm_operations(comm, entries, RECORDER_ENTRIES, &n);
    for (int i = 0; st == LS_OK && i < n; i++) {
        if (strcmp(entries[i].stamp.site, "parameter differences") == 0) {
            out->n_sent++;
            out->sent_bytes += entries[i].bytes;
        }
        out->n_shared += strcmp(entries[i].stamp.site, "mean of differences") == 0;
    }
    ls_free(entries);
    return st;
}

static bool is_in_last_island(const loop_case *c, int rank)
{
    return c->of[rank] == c->of[c->n - 1];
}

/* The parameters are those of the last mean, and again those of the island afterwards. */
static ls_status show(const fitting *f, const float own[NUMBERS], loop_result *out)
{
    const int island = ls_local_sgd_island(f->local);
    float again[NUMBERS];

    LS_TRY(ls_local_sgd_show(f->local));
    LS_TRY(read_numbers(f, out->shown));
    LS_CHECK(ls_local_sgd_enter(f->local, island + 1) == LS_EINVAL);
    LS_TRY(ls_local_sgd_enter(f->local, island));
    LS_TRY(read_numbers(f, again));
    LS_CHECK(memcmp(again, own, sizeof(again)) == 0);
    return LS_OK;
}

static ls_status loop(fitting *f, int rank, ls_comm *comm, const loop_case *c, loop_result *out)
{
    LS_TRY(join(f, comm, &c->options));
    LS_CHECK(ls_local_sgd_island(f->local) == c->of[rank]);
    for (int s = 1; s <= c->steps; s++) {
        LS_TRY(train(f, rank, s));
        if (s == c->steps && c->spoil != 0 && is_in_last_island(c, rank))
            LS_TRY(ls_tensor_fill(f->parts[1], c->spoil));
        LS_TRY(ls_local_sgd_step(f->local));
        LS_TRY(read_numbers(f, out->trace[s - 1]));
    }
    LS_TRY(count_operations(comm, out));
    return show(f, out->trace[c->steps - 1], out);
}

static ls_status loop_body(const ls_test_rank *self, void *arg)
{
    loop_result *out = &results[self->rank];
    ls_comm *comm;
    fitting f;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(fitting_open(&f, self->rank));
    out->status = loop(&f, self->rank, comm, arg, out);
    text_format(out->error, sizeof(out->error), "%s", out->status == LS_OK ? "" : ls_last_error());
    fitting_close(&f);
    ls_comm_destroy(comm);
    return LS_OK;
}

/* Each rank must succeed, unless the case spoils a number. */
static void run_loop(const loop_case *c)
{
    loop_case copy = *c;

    copy.options.size = sizeof(copy.options);
    memset(results, 0, RANKS_MOST * sizeof(*results));
    assert_true(ls_test_run(&(ls_test_job){.n = c->n, .body = loop_body, .arg = &copy}));
    for (int r = 0; r < c->n && c->spoil == 0; r++)
        if (results[r].status != LS_OK)
            fail_msg("rank %d: %s", r, results[r].error);
}

/* --- the same by hand --- */

typedef struct by_hand {
    float mean[NUMBERS];
    float momentum[NUMBERS];
    float sent[NUMBERS]; /* the mean difference */
    int due[PARTS];      /* of each fragment: the step that applies it; 0: none is under way */
} by_hand;

static void pack_and_unpack(float *values, size_t n, ls_ddp_hook hook)
{
    char packed[256];

    if (hook != LS_DDP_HOOK_INT4)
        return;
    int_blocks_pack(values, n, 4, packed);
    int_blocks_unpack(packed, n, 4, values);
}

/* sent = the mean over islands of (mean - own), of one rank each. */
static ls_status send_by_hand(by_hand *h, const fitting *f, ls_comm *comm, const loop_case *c,
                              size_t at, size_t n)
{
    float all[RANKS_MOST][NUMBERS];
    reduce_operand operands[RANKS_MOST];
    float own[NUMBERS];
    float d[NUMBERS];
    int islands = 0;

    LS_TRY(read_numbers(f, own));
    for (size_t i = 0; i < NUMBERS; i++)
        d[i] = h->mean[i] - own[i];
    LS_TRY(ls_all_gather(comm, d, all, NUMBERS, LS_F32, NULL));
    for (int r = 0; r < c->n; r++) {
        if (c->of[r] < islands)
            continue;
        pack_and_unpack(all[r] + at, n, c->options.hook);
        operands[islands] = (reduce_operand){all[r] + at, islands, 1, true};
        islands++;
    }
    reduce_tree(h->sent + at, operands, islands, n, LS_F32, LS_AVG, true, islands);
    pack_and_unpack(h->sent + at, n, c->options.hook);
    return LS_OK;
}

static ls_status apply_by_hand(by_hand *h, const fitting *f, const loop_case *c, size_t at,
                               size_t n)
{
    float own[NUMBERS];

    LS_TRY(read_numbers(f, own));
    local_outer_step(h->mean + at, h->momentum + at, h->sent + at, n, OUTER_LR, OUTER_MOMENTUM);
    if (c->options.delay == 0)
        memcpy(own + at, h->mean + at, n * sizeof(*own));
    else
        local_mix(own + at, h->mean + at, n, 0.5F);
    return write_numbers(f, own);
}

static ls_status step_by_hand(by_hand *h, const fitting *f, ls_comm *comm, const loop_case *c,
                              int step)
{
    const ls_local_sgd_options *o = &c->options;
    const int fragments = o->fragments > 1 ? o->fragments : 1;
    const size_t n = NUMBERS / (size_t)fragments;

    for (int k = 0; k < fragments; k++)
        if (h->due[k] == step)
            LS_TRY(apply_by_hand(h, f, c, n * (size_t)k, n));
    for (int k = 0; k < fragments; k++) {
        if (!local_is_due(step, o->every, k, fragments))
            continue;
        LS_TRY(send_by_hand(h, f, comm, c, n * (size_t)k, n));
        h->due[k] = step + o->delay;
        if (o->delay == 0)
            LS_TRY(apply_by_hand(h, f, c, n * (size_t)k, n));
    }
    return LS_OK;
}

static ls_status loop_by_hand(fitting *f, int rank, ls_comm *comm, ls_comm *group,
                              const loop_case *c, loop_result *out)
{
    by_hand h = {.due = {0}};

    LS_TRY(read_numbers(f, h.mean));
    LS_TRY(ls_broadcast(comm, h.mean, h.mean, NUMBERS, LS_F32, 0, NULL));
    LS_TRY(write_numbers(f, h.mean));
    LS_TRY(ls_ddp_create(group, f->model, NULL, &f->ddp));
    for (int s = 1; s <= c->steps; s++) {
        LS_TRY(train(f, rank, s));
        LS_TRY(step_by_hand(&h, f, comm, c, s));
        LS_TRY(read_numbers(f, out->trace[s - 1]));
    }
    memcpy(out->shown, h.mean, sizeof(h.mean));
    return LS_OK;
}

static ls_status body_by_hand(const ls_test_rank *self, void *arg)
{
    const loop_case *c = arg;
    ls_comm *comm;
    ls_comm *group;
    fitting f;
    ls_status st;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(ls_comm_split(comm, c->of[self->rank], self->rank, &group));
    LS_TRY(fitting_open(&f, self->rank));
    st = loop_by_hand(&f, self->rank, comm, group, c, &results[self->rank]);
    fitting_close(&f);
    ls_comm_destroy(group);
    ls_comm_destroy(comm);
    return st;
}

/* The traces that the loop must have. */
static void run_by_hand(const loop_case *c, loop_result want[RANKS_MOST])
{
    loop_case copy = *c;

    memset(results, 0, RANKS_MOST * sizeof(*results));
    assert_true(ls_test_run(&(ls_test_job){.n = c->n, .body = body_by_hand, .arg = &copy}));
    memcpy(want, results, RANKS_MOST * sizeof(*results));
}

static void assert_same_traces(const loop_case *c, const loop_result want[RANKS_MOST])
{
    for (int r = 0; r < c->n; r++) {
        for (int s = 0; s < c->steps; s++)
            assert_memory_equal(results[r].trace[s], want[r].trace[s], sizeof(want[r].trace[s]));
        assert_memory_equal(results[r].shown, want[r].shown, sizeof(want[r].shown));
    }
}

static const loop_case cases[] = {
    {4, {.islands = 2, .every = 3}, {0, 0, 1, 1}, 14, 0},
    {3, {.islands = 2, .every = 3}, {0, 0, 1}, 14, 0},
    {5, {.islands = 3, .every = 4}, {0, 0, 1, 1, 2}, 14, 0},
    {2, {.islands = 1, .every = 3}, {0, 0}, 10, 0},
    {3, {.islands = 2, .every = 4, .fragments = 2}, {0, 0, 1}, 14, 0},
    {4, {.islands = 2, .every = 4, .delay = 3}, {0, 0, 1, 1}, 14, 0},
    {5,
     {.islands = 2, .every = 6, .hook = LS_DDP_HOOK_INT4, .delay = 2, .fragments = 2},
     {0, 0, 0, 1, 1},
     22,
     0},
};

static void a_loop_has_the_bits_of_one_that_is_written_by_hand(void **state)
{
    static loop_result want[RANKS_MOST];

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        run_by_hand(&cases[i], want);
        run_loop(&cases[i]);
        assert_same_traces(&cases[i], want);
    }
}

static void ranks_of_an_island_are_equal_and_islands_differ_between_means(void **state)
{
    const loop_case *c = &cases[0];

    (void)state;
    run_loop(c);
    for (int s = 1; s <= c->steps; s++) {
        const bool is_mean = s % c->options.every == 0;
        float of[4][NUMBERS];

        for (int r = 0; r < 4; r++)
            memcpy(of[r], results[r].trace[s - 1], sizeof(of[r]));
        assert_memory_equal(of[1], of[0], sizeof(of[0]));
        assert_memory_equal(of[3], of[2], sizeof(of[0]));
        assert_int_equal(memcmp(of[2], of[0], sizeof(of[0])) == 0, is_mean);
    }
}

static void first_ranks_of_islands_are_the_only_ones_that_send_differences(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        const loop_case *c = &cases[i];
        const int means = c->steps / (int)c->options.every;

        run_loop(c);
        for (int r = 0; r < c->n; r++) {
            const bool is_first = r == 0 || c->of[r] != c->of[r - 1];

            assert_int_equal(results[r].n_sent, is_first ? means : 0);
            assert_int_equal(results[r].n_shared, means);
            if (!is_first)
                assert_int_equal(results[r].sent_bytes, 0);
        }
        assert_true(results[0].sent_bytes >= (uint64_t)means * NUMBERS * sizeof(float));
    }
}

static void a_difference_that_is_not_finite_fails_on_all_ranks(void **state)
{
    static const ls_ddp_hook hooks[] = {LS_DDP_HOOK_NONE, LS_DDP_HOOK_INT4};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(hooks); i++) {
        loop_case c = cases[0];

        c.steps = 3;
        c.spoil = NAN;
        c.options.hook = hooks[i];
        run_loop(&c);
        for (int r = 0; r < c.n; r++) {
            assert_int_equal(results[r].status, LS_EFORMAT);
            assert_non_null(strstr(results[r].error, "step 3: the mean difference of parameter "
                                                     "b.weight over 2 islands is NaN"));
        }
    }
}

/* --- the delay --- */

static int *passed; /* ranks of island 0, in shared memory */

/* Island 1 takes no step before island 0 has taken all but the one that applies the mean: a rank
 * that waits for another island earlier waits for ever. */
static ls_status delay_body(const ls_test_rank *self, void *arg)
{
    const ls_local_sgd_options opt = {.size = sizeof(opt),
                                      .every = 4,
                                      .delay = 4,
                                      .islands = 2,
                                      .hook = *(const ls_ddp_hook *)arg};
    const int alone = opt.hook == LS_DDP_HOOK_NONE ? 7 : 5; // integers are sent in two operations
    const bool is_ahead = self->rank < 2;
    ls_comm *comm;
    fitting f;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(fitting_open(&f, self->rank));
    LS_TRY(join(&f, comm, &opt));
    for (int s = 1; s <= 8; s++) {
        if (s == alone + 1 && is_ahead)
            (void)__atomic_add_fetch(passed, 1, __ATOMIC_ACQ_REL);
        while (!is_ahead && __atomic_load_n(passed, __ATOMIC_ACQUIRE) < 2)
            (void)usleep(1000);
        LS_TRY(train(&f, self->rank, s));
        LS_TRY(ls_local_sgd_step(f.local));
    }
    fitting_close(&f);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void islands_do_not_wait_while_a_mean_is_sent(void **state)
{
    ls_ddp_hook hooks[] = {LS_DDP_HOOK_NONE, LS_DDP_HOOK_INT4};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(hooks); i++) {
        *passed = 0;
        assert_true(ls_test_run(&(ls_test_job){.n = 4, .body = delay_body, .arg = &hooks[i]}));
    }
}

/* --- failures --- */

/* What a rank does before a step in which a mean is under way. */
enum { LEAVES, IS_KILLED, ABORTS };

typedef struct failure {
    int rank;
    int what;
    int step;
} failure;

static ls_status fail_at(const failure *what, const fitting *f)
{
    if (what->what == IS_KILLED)
        (void)raise(SIGKILL);
    if (what->what == ABORTS)
        ls_comm_abort(ls_local_sgd_group(f->local), "a test");
    return ls_set_error(LS_EIO, "this rank goes no further");
}

static ls_status failing_loop(fitting *f, int rank, ls_comm *comm, const failure *what)
{
    const ls_local_sgd_options opt = {
        .size = sizeof(opt), .every = 4, .delay = 3, .islands = 2, .hook = LS_DDP_HOOK_INT4};

    LS_TRY(join(f, comm, &opt));
    for (int s = 1; s <= STEPS_MOST; s++) {
        if (rank == what->rank && s == what->step)
            return fail_at(what, f);
        LS_TRY(train(f, rank, s));
        LS_TRY(ls_local_sgd_step(f->local));
    }
    return LS_OK;
}

static ls_status failing_body(const ls_test_rank *self, void *arg)
{
    loop_result *out = &results[self->rank];
    ls_comm *comm;
    fitting f;

    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(fitting_open(&f, self->rank));
    out->status = failing_loop(&f, self->rank, comm, arg);
    text_format(out->error, sizeof(out->error), "%s", out->status == LS_OK ? "" : ls_last_error());
    fitting_close(&f);
    ls_comm_destroy(comm);
    return LS_OK;
}

/* No rank hangs, and each error names the rank that has failed. */
static void a_failure_in_an_island_ends_all_ranks(void **state)
{
    static const failure failures[] = {{3, LEAVES, 6},    {2, LEAVES, 6},    {1, LEAVES, 5},
                                       {3, IS_KILLED, 6}, {2, IS_KILLED, 5}, {0, IS_KILLED, 7},
                                       {3, ABORTS, 6},    {2, ABORTS, 5}};

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(failures); i++) {
        failure what = failures[i];
        static ls_test_outcome outcomes[4];
        char name[16];

        memset(results, 0, RANKS_MOST * sizeof(*results));
        text_format(name, sizeof(name), "rank %d", what.rank);
        (void)ls_test_ranks(&(ls_test_job){.n = 4, .body = failing_body, .arg = &what}, outcomes);
        for (int r = 0; r < 4; r++) {
            assert_false(outcomes[r].was_killed);
            if (r == what.rank)
                continue;
            assert_int_not_equal(results[r].status, LS_OK);
            if (strstr(results[r].error, name) == NULL)
                fail_msg("rank %d: \"%s\" does not name %s", r, results[r].error, name);
        }
    }
}

/* --- hosts --- */

static ls_status host_body(const ls_test_rank *self, void *arg)
{
    LS_CHECK(self->rank != 1 || two_hosts_move());
    return loop_body(self, arg);
}

/* Rank 1 is on the second host. */
static void run_on_two_hosts(const loop_case *c)
{
    loop_case copy = *c;
    const ls_test_job job = two_hosts_job(c->n, host_body, &copy);

    copy.options.size = sizeof(copy.options);
    memset(results, 0, RANKS_MOST * sizeof(*results));
    assert_true(ls_test_ranks(&job, NULL));
    for (int r = 0; r < c->n; r++)
        if (results[r].status != LS_OK)
            fail_msg("rank %d: %s", r, results[r].error);
}

static void hosts_are_islands_and_do_not_change_bits_otherwise(void **state)
{
    const loop_case of_hosts = {3, {.islands = LS_ISLANDS_OF_HOSTS, .every = 3}, {0, 1, 0}, 14, 0};
    static loop_result want[RANKS_MOST];

    (void)state;
    if (!two_hosts_make()) {
        print_message("network namespaces are not to be had here\n");
        skip();
    }
    run_by_hand(&of_hosts, want);
    run_on_two_hosts(&of_hosts);
    assert_same_traces(&of_hosts, want);
    run_by_hand(&cases[1], want);
    run_on_two_hosts(&cases[1]);
    assert_same_traces(&cases[1], want);
    two_hosts_end();
}

/* All ranks of one host: one island, whose ranks differ from DDP by the outer optimizer only. */
static void one_host_is_one_island(void **state)
{
    const loop_case c = {3, {.islands = LS_ISLANDS_OF_HOSTS, .every = 3}, {0, 0, 0}, 10, 0};
    static loop_result want[RANKS_MOST];

    (void)state;
    run_by_hand(&c, want);
    run_loop(&c);
    assert_same_traces(&c, want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loop_has_the_bits_of_one_that_is_written_by_hand),
        cmocka_unit_test(ranks_of_an_island_are_equal_and_islands_differ_between_means),
        cmocka_unit_test(first_ranks_of_islands_are_the_only_ones_that_send_differences),
        cmocka_unit_test(a_difference_that_is_not_finite_fails_on_all_ranks),
        cmocka_unit_test(islands_do_not_wait_while_a_mean_is_sent),
        cmocka_unit_test(a_failure_in_an_island_ends_all_ranks),
        cmocka_unit_test(one_host_is_one_island),
        cmocka_unit_test(hosts_are_islands_and_do_not_change_bits_otherwise),
    };

    results = ls_test_shared(RANKS_MOST * sizeof(*results));
    passed = ls_test_shared(sizeof(*passed));
    if (results == NULL || passed == NULL)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
