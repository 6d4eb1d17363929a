/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_run_lost.c - ranks of a run without shards are killed in a step, in the recovery from
 * another loss, and at the end of an epoch: with --elastic each sample is trained on, and nothing
 * is saved or written twice, or not at all. The program is also the rank that it starts; the linker
 * puts the functions below in front of those of the library.
 */
#include "base/alloc.h"
#include "launch/job.h"
#include "tensor/suite_device.h"
#include "train/run/run.h"
#include "train/small_folder.h"
#include "train/small_set.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SAMPLES = 213, TEST_SAMPLES = 31, BATCH = 4, EPOCHS = 2, STEP_MOST = 16 };

/* How often each sample was in a completed step. */
typedef struct counts {
    unsigned char of[EPOCHS][SAMPLES];
} counts;

/* Where a rank is killed. */
typedef enum place {
    NOWHERE,
    IN_STEP,     /* in its last batch */
    IN_RECOVERY, /* from the loss of another rank */
    IN_SAVE,     /* rank 0, behind the evaluation, when rank 1 waits for the end of the save */
    AT_END,      /* rank 1, when rank 0 waits for the others behind its save */
} place;

typedef struct loss {
    const char *name;
    const char *ranks;
    place of[4]; /* each rank */
    int64_t step;
    int64_t accumulate;
    bool has_buckets;
    bool loses_folder; /* of metrics and events, as if its disk were not there any more */
    int64_t print_freq;
    int n_lines; /* of metrics */
} loss;

static const loss cases[] = {
    {.name = "a", .ranks = "3", .of = {[2] = IN_STEP}, .step = 1, .accumulate = 4},
    {.name = "b", .ranks = "3", .of = {[0] = IN_STEP}, .step = 2, .accumulate = 3},
    {.name = "c", .ranks = "3", .of = {[1] = IN_STEP}, .step = 3, .has_buckets = true},
    {.name = "d", .ranks = "4", .of = {[2] = IN_RECOVERY, [3] = IN_STEP}, .step = 2},
    {.name = "e", .ranks = "4", .of = {IN_STEP, IN_RECOVERY}, .step = 5, .accumulate = 2},
    {.name = "f", .ranks = "3", .of = {IN_STEP}, .step = 2, .loses_folder = true},
    // 27 steps, then 54 of one rank
    {.name = "g", .ranks = "2", .of = {IN_SAVE}, .print_freq = 9, .n_lines = 11},
    {.name = "h", .ranks = "2", .of = {IN_SAVE}, .print_freq = 10, .n_lines = 10},
    {.name = "i", .ranks = "2", .of = {[1] = AT_END}, .print_freq = 9, .n_lines = 11},
    {.name = "j", .ranks = "2", .of = {[1] = AT_END}, .print_freq = 100, .n_lines = 2},
};

static const char *path_of(const loss *l, const char *what)
{
    char name[32];

    text_format(name, sizeof(name), "%s.%s", l->name, what);
    return path_in(name);
}

/* --- a rank --- */

static const loss *planned;
static place where; /* this rank is killed */
static ls_run *training;
static bool has_stepped;

static void open_gate(void)
{
    FILE *f = fopen(path_of(planned, "gate"), "we");

    if (f != NULL)
        (void)fclose(f);
}

static void end_behind_gate(void)
{
    while (access(path_of(planned, "gate"), F_OK) != 0)
        (void)usleep(1000);
    raise(SIGKILL);
}

ls_status __real_ls_all_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_reduce_op op, ls_work **out);
ls_status __wrap_ls_all_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_reduce_op op, ls_work **out);
ls_status __real_ls_ddp_check_seat(ls_ddp *ddp);
ls_status __wrap_ls_ddp_check_seat(ls_ddp *ddp);
ls_status __real_ls_barrier(ls_comm *comm, ls_work **out);
ls_status __wrap_ls_barrier(ls_comm *comm, ls_work **out);

/* The ranks count the steps of an epoch. */
ls_status __wrap_ls_all_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_reduce_op op, ls_work **out)
{
    if (where == IN_RECOVERY && has_stepped && type == LS_I64 && op == LS_MAX)
        raise(SIGKILL);
    return __real_ls_all_reduce(comm, src, dst, count, type, op, out);
}

ls_status __wrap_ls_ddp_check_seat(ls_ddp *ddp)
{
    if (where == IN_SAVE)
        end_behind_gate();
    return __real_ls_ddp_check_seat(ddp);
}

ls_status __wrap_ls_barrier(ls_comm *comm, ls_work **out)
{
    const bool is_end = training != NULL && training->recovery.is_marked;

    if (is_end && where == AT_END)
        end_behind_gate();
    if (is_end)
        open_gate();
    return __real_ls_barrier(comm, out);
}

static ls_status tell_length(void *arg, size_t index, int64_t *lengths)
{
    LS_UNUSED(arg);
    lengths[0] = (int64_t)(index * 37 % 90);
    return LS_OK;
}

static ls_status read_sample(void *arg, const ls_sample_request *r, void *const *values)
{
    LS_UNUSED(arg);
    for (size_t i = 0; i < 4; i++)
        ((float *)values[0])[i] = (float)((r->index * 13 + i * 5) % 7) - 3;
    *(int64_t *)values[1] = (int64_t)(r->index * 13 % 7 % 3);
    memset(values[2], 0, (size_t)r->lengths[0] * sizeof(int32_t));
    return LS_OK;
}

static ls_status open_set(size_t count, ls_dataset **out)
{
    static const ls_field fields[] = {
        {.name = "point", .type = LS_F32, .n_dims = 1, .dims = {4}},
        {.name = "class", .type = LS_I64},
        {.name = "tokens", .type = LS_I32, .n_dims = 1, .dims = {-1}},
    };
    const ls_dataset_callbacks callbacks = {.size = sizeof(callbacks),
                                            .count = count,
                                            .fields = fields,
                                            .n_fields = LS_COUNT_OF(fields),
                                            .lengths = tell_length,
                                            .read = read_sample};

    return ls_dataset_create(&callbacks, out);
}

static ls_tensor *forward(void *arg, ls_tape *tape, ls_tensor *x)
{
    return ls_forward(tape, arg, x);
}

static ls_status start(ls_run *run, ls_comm *comm, ls_layer **fc)
{
    ls_dataset *set;

    *fc = ls_nn_linear(ls_run_model(run), "fc", 4, 3, 0);
    LS_TRY(open_set(SAMPLES, &set));
    LS_TRY(ls_run_train_on_take(run, set));
    LS_TRY(open_set(TEST_SAMPLES, &set));
    LS_TRY(ls_run_test_on_take(run, set));
    if (planned->has_buckets)
        LS_TRY(ls_run_bucket_by_length(run, NULL));
    LS_TRY(ls_run_distribute(run, comm, NULL));
    return ls_run_start(run, forward, *fc);
}

static void end_in_step(const ls_run *run)
{
    if (where != IN_STEP || run->at.step != planned->step || run->n_added + 1 < planned->accumulate)
        return;
    if (planned->loses_folder)
        (void)rename(path_of(planned, "folder"), path_of(planned, "moved"));
    raise(SIGKILL);
}

/* The batches of a step count when it is completed. */
static ls_status train(ls_run *run, ls_comm *comm, counts *seen)
{
    static unsigned char *of_step[STEP_MOST];
    ls_layer *fc;
    ls_batch batch;
    int n = 0;

    LS_TRY(start(run, comm, &fc));
    while (ls_run_next(run, &batch)) {
        const int64_t step = run->at.step;

        n = run->n_added == 0 ? 0 : n;
        for (int64_t i = 0; i < batch.rows; i++)
            of_step[n++] = &seen->of[run->at.epoch][batch.indices[i]];
        end_in_step(run);
        ls_run_step(run, ls_run_classify(run, forward(fc, ls_run_tape(run), batch.x), batch.y));
        if (run->at.step == step)
            continue;
        has_stepped = true;
        for (int i = 0; i < n; i++)
            (void)__atomic_add_fetch(of_step[i], 1, __ATOMIC_RELAXED);
    }
    return LS_OK;
}

static counts *map_counts(void)
{
    const int fd = open(path_of(planned, "seen"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    counts *seen = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, sizeof(*seen)) == 0)
        seen = mmap(NULL, sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        (void)close(fd);
    return seen == MAP_FAILED ? NULL : seen;
}

/* Nothing is learned: the first evaluation is the best. */
static ls_train_flags make_flags(void)
{
    static char save[128];
    static char metrics[128];
    static char events[128];

    text_format(save, sizeof(save), "%s", path_of(planned, "safetensors"));
    text_format(metrics, sizeof(metrics), "%s%s", path_of(planned, "folder"),
                planned->loses_folder ? "/metrics" : "");
    text_format(events, sizeof(events), "%s/events", path_of(planned, "folder"));
    return (ls_train_flags){.device = test_device_name(),
                            .epochs = EPOCHS,
                            .batch_size = BATCH,
                            .lr = 1e-30,
                            .seed = 5,
                            .accumulate = planned->accumulate,
                            .print_freq = planned->print_freq,
                            .metrics = metrics,
                            .tensorboard = planned->loses_folder ? events : NULL,
                            .save = save};
}

/* NUMBER DIR */
static ls_status run_as_rank(char **args)
{
    ls_train_flags flags;
    ls_comm *comm;
    counts *seen;
    ls_status st;

    planned = &cases[atoi(args[0])];
    text_format(small_dir, sizeof(small_dir), "%s", args[1]);
    flags = make_flags();
    seen = map_counts();
    LS_TRY(ls_init(NULL, &comm));
    where = planned->of[ls_comm_rank(comm)];
    st = seen != NULL ? ls_run_open(&flags, &training) : ls_fail(LS_EIO, "no memory for counts");
    if (st == LS_OK)
        st = train(training, comm, seen);
    st = ls_run_close(training, st);
    ls_comm_destroy(comm);
    return st;
}

/* --- the tests --- */

/* Runs the job; the caller cleans it up. */
static job *run_job(const loss *l)
{
    char number[8];
    job *j;

    planned = l;
    text_format(number, sizeof(number), "%d", (int)(l - cases));
    if (l->loses_folder)
        assert_int_equal(mkdir(path_of(l, "folder"), 0700), 0);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", l->ranks, "--elastic", "--max-restarts", "0",
                           small_program, "rank", number, small_dir),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 1, "was killed by signal 9 (SIGKILL)"));
    job_expect(j, job_printed(j, 0, "going on at step"));
    return j;
}

/* The last samples of an epoch are repeated, so that each rank has equally many. */
static void assert_each_sample_is_seen(void)
{
    const counts *seen = map_counts();

    assert_non_null(seen);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        int sum = 0;

        for (int i = 0; i < SAMPLES; i++) {
            if (seen->of[epoch][i] == 0)
                fail_msg("%s: no step of epoch %d had sample %d", planned->name, epoch, i);
            sum += seen->of[epoch][i];
        }
        assert_in_range(sum, SAMPLES, SAMPLES + atoi(planned->ranks) - 1);
    }
}

static void each_sample_is_in_a_completed_step(void **state)
{
    (void)state;
    for (const loss *l = cases; l->n_lines == 0; l++) {
        job *j = run_job(l);

        job_expect(j, !l->loses_folder ||
                          (job_printed(j, 1, "cannot save the lines of --metrics") &&
                           job_printed(j, 1, "cannot save the events of --tensorboard")));
        job_clean_up(NULL);
        assert_each_sample_is_seen();
        if (l->loses_folder) {
            char events[128];

            text_format(events, sizeof(events), "%s/events", path_of(l, "moved"));
            small_set_remove(events);
            small_set_remove(path_of(l, "moved"));
        }
    }
}

static void the_end_of_an_epoch_that_is_repeated_counts_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        char *lines;

        if (cases[i].n_lines == 0)
            continue;
        (void)run_job(&cases[i]);
        job_clean_up(NULL);
        assert_each_sample_is_seen();
        assert_true(size_of(path_of(planned, "best.safetensors")) > 0);
        lines = text_of(path_of(planned, "folder"));
        assert_int_equal(count_parts(lines, "\n"), planned->n_lines);
        assert_int_equal(count_parts(lines, "\"accuracy\":"), EPOCHS);
        assert_in_range(count_parts(lines, "\"run\":"), 1, 2);
        ls_free(lines);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(each_sample_is_in_a_completed_step, job_clean_up),
        cmocka_unit_test_teardown(the_end_of_an_epoch_that_is_repeated_counts_once, job_clean_up),
    };

    if (argc == 4)
        return ls_train_exit("rank", run_as_rank(argv + 2));
    return cmocka_run_group_tests(tests, small_dir_make, small_dir_remove);
}
