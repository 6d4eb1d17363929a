/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_waits.c - removes the waits of trainings on the simulated card one by one, by their names,
 * and demands that each removal is noticed: a wrong result, a failure or a crash. A training has
 * the loader, forward, backward, optimizer, evaluation, a checkpoint and a resume from it. Counts
 * what a step costs.
 */
#include "train/small_folder.h"
#include "train/small_run.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/text.h"
#include "harness/ranks.h"
#include "devices/cudahost.h"
#include "tensor/testing.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_NAMES  64
#define NAME_BYTES 96
#define MAX_SEEDS  16
#define DELAY_US   300
#define DEADLINE_S 120 /* of one run */
#define GOOD_SEEDS 3
#define AT_ONCE    0 /* instead of a seed: work is done when it is queued */

/* What a run in a child process leaves: its results, and the names of its waits. */
typedef struct outcome {
    bool is_complete; /* the child came to its end without a failure */
    uint64_t hash;    /* of weights, losses and files */
    size_t n_names;
    char names[MAX_NAMES][NAME_BYTES];
} outcome;

typedef struct scenario {
    const char *name;
    const char *precision;
    int batch_size; /* of a rank */
    int n_ranks;    /* 1: one process without a group */
} scenario;

/* The gradients of two rows overflow float16 at the first scale, so that steps are skipped. */
static const scenario scenarios[] = {{"float32", "fp32", 16, 1},
                                     {"float16 with scaling", "fp16", 2, 1},
                                     {"two ranks", "fp32", 16, 2}};

static outcome *shared; /* with the child */
static gpu_host *costs; /* of each rank, likewise */
static gpu_host *card;

/* --- one run, in a child --- */

static bool hash_file(const char *path, uint64_t *hash)
{
    char *text;
    size_t bytes;

    if (file_read(path, 1 << 22, &text, &bytes) != LS_OK)
        return false;
    *hash = ls_hash_bytes(text, bytes, *hash);
    ls_free(text);
    return true;
}

static uint64_t hash_result(const small_result *r, uint64_t hash)
{
    const double numbers[] = {r->state.loss,      r->state.accuracy, r->state.accuracy5,
                              r->state.test_loss, r->state.top1,     (double)r->state.step};

    hash = ls_hash_bytes(r->weights, sizeof(r->weights), hash);
    return ls_hash_bytes(numbers, sizeof(numbers), hash);
}

/* Trains and saves, resumes for one more epoch, and leaves a third run in its middle. */
static bool train(const scenario *s, ls_comm *comm, uint64_t *hash)
{
    const char *save = path_in("weights.safetensors");
    small_job job = {
        .flags = small_flags(small_dir), .comm = comm, .batch_norm = 1, .dropout = 0.2};

    job.flags.device = "cudahost";
    job.flags.precision = s->precision;
    job.flags.batch_size = s->batch_size;
    job.flags.clip_grad_norm = 0.5;
    job.flags.epochs = 1;
    job.flags.save = save;
    for (int part = 0; part < 3; part++) {
        const small_result r = small_run(&job);

        if (r.status != LS_OK)
            return false;
        *hash = hash_result(&r, *hash);
        if ((comm == NULL || ls_comm_rank(comm) == 0) && !hash_file(save, hash))
            return false;
        job.flags.epochs = 2 + part;
        job.flags.resume = "";
        job.leave_at = part == 1 ? r.state.step + 5 : 0;
    }
    return true;
}

/* What one process does with the simulated device. */
typedef struct run_plan {
    const scenario *scenario;
    uint64_t seed;
    const char *dropped;
} run_plan;

static void run_process(const run_plan *p, ls_comm *comm, outcome *out)
{
    (void)cudahost_reset();
    card->seed = p->seed;
    card->delay_us = p->seed == AT_ONCE ? 0 : DELAY_US;
    card->dropped = p->dropped;
    out->is_complete = train(p->scenario, comm, &out->hash) && card->n_lost_failures == 0;
    out->n_names = card->n_waits;
    for (size_t i = 0; i < out->n_names && i < MAX_NAMES; i++)
        (void)text_format(out->names[i], NAME_BYTES, "%s", card->waits[i].name);
}

/* One rank of a job; the outcome is that of rank 0. */
static ls_status rank_body(const ls_test_rank *self, void *arg)
{
    static outcome own;
    ls_comm *comm = NULL;

    LS_TRY(ls_test_init(self, &comm));
    run_process(arg, comm, &own);
    if (self->rank == 0)
        *shared = own;
    ls_comm_destroy(comm);
    return own.is_complete ? LS_OK : ls_fail(LS_EINTERNAL, "the run has failed");
}

/* A failure ends the child: neither its signals nor an assertion may return to the test library,
 * which would run the tests that are left, and remove the folder, in the child too. */
static void child(const run_plan *p)
{
    static const int caught[] = {SIGFPE, SIGILL, SIGSEGV, SIGBUS, SIGSYS};
    run_plan copy = *p;
    const ls_test_job job = {.n = p->scenario->n_ranks,
                             .body = rank_body,
                             .arg = &copy,
                             .deadline_ms = (int64_t)DEADLINE_S * 1000};

    for (size_t i = 0; i < LS_COUNT_OF(caught); i++)
        (void)signal(caught[i], SIG_DFL);
    (void)alarm(DEADLINE_S);
    if (p->scenario->n_ranks == 1)
        run_process(p, NULL, shared);
    else if (!ls_test_ranks(&job, NULL))
        shared->is_complete = false;
}

/* Runs the scenario in a child without output. What it returns is valid until the next run. */
static const outcome *run(const scenario *s, uint64_t seed, const char *dropped)
{
    pid_t pid;
    int status;

    memset(shared, 0, sizeof(*shared));
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (freopen("/dev/null", "we", stdout) == NULL ||
            freopen("/dev/null", "we", stderr) == NULL)
            _exit(1);
        child(&(run_plan){s, seed, dropped});
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        shared->is_complete = false;
    return shared;
}

/* --- the test --- */

/* How many runs without the wait it takes until one differs; 0: none of MAX_SEEDS does. */
static int runs_until_noticed(const scenario *s, uint64_t want, const char *dropped)
{
    for (int seed = 1; seed <= MAX_SEEDS; seed++) {
        const outcome *got = run(s, (uint64_t)seed, dropped);

        if (!got->is_complete || got->hash != want)
            return seed;
    }
    return 0;
}

/* The waits of all scenarios. */
typedef struct known_wait {
    char name[NAME_BYTES];
    bool is_noticed; /* its removal, in a scenario */
} known_wait;

static known_wait waits[MAX_NAMES];
static size_t n_waits;

static known_wait *find_wait(const char *name)
{
    size_t i = 0;

    while (i < n_waits && strcmp(waits[i].name, name) != 0)
        i++;
    if (i == n_waits) {
        assert_true(n_waits < MAX_NAMES);
        (void)text_format(waits[n_waits++].name, NAME_BYTES, "%s", name);
    }
    return &waits[i];
}

/* Removes those of its waits whose removal no earlier scenario has shown. */
static void check_scenario(const scenario *s)
{
    static outcome want;

    want = *run(s, AT_ONCE, NULL);
    assert_true(want.is_complete);

    for (uint64_t seed = 1; seed <= GOOD_SEEDS; seed++) {
        const outcome *got = run(s, seed, NULL);

        assert_true(got->is_complete && got->hash == want.hash);
        want = *got;
    }
    assert_in_range(want.n_names, 1, MAX_NAMES);
    for (size_t i = 0; i < want.n_names; i++) {
        known_wait *w = find_wait(want.names[i]);
        const int n = w->is_noticed ? 0 : runs_until_noticed(s, want.hash, w->name);

        if (n > 0)
            print_message("%s: run %d without \"%s\" is wrong\n", s->name, n, w->name);
        w->is_noticed = w->is_noticed || n > 0;
    }
}

static void every_removed_wait_is_noticed(void **state)
{
    size_t n_unnoticed = 0;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(scenarios); i++)
        check_scenario(&scenarios[i]);
    for (size_t i = 0; i < n_waits; i++) {
        if (!waits[i].is_noticed)
            print_error("%d runs without \"%s\" are right\n", MAX_SEEDS, waits[i].name);
        n_unnoticed += !waits[i].is_noticed;
    }
    assert_int_equal(n_unnoticed, 0);
}

/* What a run of this many steps of its first epoch costs; all 0 after a failure. Left out are the
 * two waits of a report (losses; sums of the metrics), and that of the loader, whose copy was
 * queued before the batches in between. */
static gpu_host cost_in(ls_comm *comm, int64_t steps, const char *precision)
{
    small_job job = {.flags = small_flags(small_dir), .comm = comm, .batch_norm = 1};
    gpu_host cost;

    job.flags.device = "cudahost";
    job.flags.precision = precision;
    job.flags.clip_grad_norm = 0.5;
    job.flags.steps = steps;
    if (comm != NULL) // as many steps in an epoch
        job.flags.batch_size /= ls_comm_size(comm);
    if (small_run(&job).status != LS_OK) // stores the plans that it has chosen for the next run
        return (gpu_host){0};
    (void)cudahost_reset();
    if (small_run(&job).status != LS_OK)
        return (gpu_host){0};
    cost = *card;
    cost.n_host_waits -= cudahost_waits_of("loader: memory of the slot");
    cost.n_host_waits -= 2 * cudahost_waits_of("train: losses since the last report");
    return cost;
}

static gpu_host cost_of(int64_t steps, const char *precision)
{
    const gpu_host cost = cost_in(NULL, steps, precision);

    assert_true(cost.n_launches > 0);
    assert_false(cost.expects_collectives); // kernels use the whole card
    return cost;
}

static void a_step_waits_at_most_once_and_allocates_nothing(void **state)
{
    // fp16: whether the gradients are finite decides the next scale
    static const struct {
        const char *name;
        uint64_t waits; /* in 10 steps */
    } precisions[] = {{"fp32", 0}, {"bf16", 0}, {"fp16", 10}};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(precisions); i++) {
        const gpu_host few = cost_of(4, precisions[i].name);
        const gpu_host many = cost_of(14, precisions[i].name);

        print_message("%s: %.1f kernels, %.1f copies, %.1f host waits a step\n", precisions[i].name,
                      (double)(many.n_launches - few.n_launches) / 10,
                      (double)(many.n_copies - few.n_copies) / 10,
                      (double)(many.n_host_waits - few.n_host_waits) / 10);
        assert_int_equal(many.n_allocations, few.n_allocations);
        assert_int_equal(many.n_host_waits - few.n_host_waits, precisions[i].waits);
    }
}

/* Writes the cost of each rank of a job to the memory that the processes share. */
static ls_status cost_body(const ls_test_rank *self, void *arg)
{
    const int64_t *steps = arg;
    ls_comm *comm = NULL;
    gpu_host cost;

    LS_TRY(ls_test_init(self, &comm));
    cost = cost_in(comm, *steps, "fp32");
    LS_CHECK(cost.n_launches > 0);
    LS_CHECK(!cost.expects_collectives); // they are in host memory
    costs[self->rank] = cost;
    ls_comm_destroy(comm);
    return LS_OK;
}

static void cost_of_ranks(int64_t steps, gpu_host cost[2])
{
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = cost_body, .arg = &steps}, NULL));
    memcpy(cost, costs, 2 * sizeof(*cost));
}

/* The sum of the rows, the buckets and the statistics of batch norms included. */
static void a_step_of_two_ranks_waits_for_no_event_and_allocates_nothing(void **state)
{
    gpu_host few[2];
    gpu_host many[2];

    LS_UNUSED(state);
    cost_of_ranks(4, few);
    cost_of_ranks(14, many);
    for (int r = 0; r < 2; r++) {
        print_message("rank %d of 2: %.1f kernels, %.1f copies, %.1f host waits a step\n", r,
                      (double)(many[r].n_launches - few[r].n_launches) / 10,
                      (double)(many[r].n_copies - few[r].n_copies) / 10,
                      (double)(many[r].n_host_waits - few[r].n_host_waits) / 10);
        assert_int_equal(many[r].n_allocations, few[r].n_allocations);
        assert_int_equal(many[r].n_host_waits, few[r].n_host_waits);
    }
}

/* With plans of its own, not those of the user's earlier runs. */
static int make_folder(void **state)
{
    return small_dir_make(state) != 0 || setenv("XDG_CACHE_HOME", small_dir, 1) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_removed_wait_is_noticed),
        cmocka_unit_test(a_step_waits_at_most_once_and_allocates_nothing),
        cmocka_unit_test(a_step_of_two_ranks_waits_for_no_event_and_allocates_nothing),
    };

    card = cudahost();
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    costs =
        mmap(NULL, 2 * sizeof(*costs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (card == NULL || shared == MAP_FAILED || costs == MAP_FAILED) {
        print_error("cannot begin: %s\n", ls_last_error());
        return 1;
    }
    return cmocka_run_group_tests(tests, make_folder, small_dir_remove);
}
