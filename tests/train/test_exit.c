/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_exit.c - tests what the launcher reports when rank 0 fails or a rank exits with code 0
 * during training, and that a restarted run loses no saved state. The program is also the rank that
 * it starts: it defines fsync(), which a save calls, and exits there.
 */
#include "launch/job.h"
#include "net/key.h"
#include "net/socket.h"
#include "train/small_folder.h"
#include "train/small_run.h"

#include <lockstep/checkpoint.h>
#include <lockstep/launch.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

/* --- a rank --- */

static bool exits_in_fsync;

int fsync(int fd)
{
    if (exits_in_fsync)
        exit(0);
    return fdatasync(fd);
}

typedef struct rank_job {
    /* save: exits during its save; step: exits in training; resume: resumes; late: the same, and
     * rank 0 waits to be ended when that fails; abort: rank 1 aborts without a run; well: trains;
     * refuse: all ranks fail at once; whole: three epochs; rest: the same, resumes; kill, lose,
     * grow: three epochs, but in the first generation rank 1 kills itself or loses its card, or all
     * wait for a stop signal */
    const char *how;
    const char *dir;
    const char *save;
} rank_job;

/* What happens in the first generation only. */
static void set_failure(const rank_job *r, small_job *small)
{
    const char *generation = getenv("LOCKSTEP_GENERATION");

    if (generation == NULL || !text_equal(generation, "1"))
        return;
    if (text_equal(r->how, "kill") && ls_comm_rank(small->comm) == 1)
        small->kill_at = 20;
    if (text_equal(r->how, "lose") && ls_comm_rank(small->comm) == 1)
        small->lose_at = 20;
    if (text_equal(r->how, "grow"))
        small->wait_at = 12;
}

static bool is_long(const char *how)
{
    return text_equal(how, "whole") || text_equal(how, "kill") || text_equal(how, "lose") ||
           text_equal(how, "grow") || text_equal(how, "rest");
}

static bool resumes(const char *how)
{
    return text_equal(how, "resume") || text_equal(how, "late") || text_equal(how, "rest");
}

static void await_end(void)
{
    for (;;)
        pause();
}

static ls_status abort_or_fail(ls_comm *comm)
{
    int64_t one = 1;

    LS_TRY(ls_all_reduce(comm, &one, &one, 1, LS_I64, LS_SUM, NULL));
    if (ls_comm_rank(comm) != 1)
        return ls_all_reduce(comm, &one, &one, 1, LS_I64, LS_SUM, NULL);
    ls_comm_abort(comm, "the disk is full");
    await_end();
    return LS_OK;
}

static ls_status run_rank(int local_rank, void *arg)
{
    const rank_job *r = arg;
    small_job small = {.flags = small_flags(r->dir)};
    ls_status st;

    LS_TRY(ls_init(NULL, &small.comm));
    if (text_equal(r->how, "abort"))
        return abort_or_fail(small.comm);
    exits_in_fsync = text_equal(r->how, "save") && ls_comm_rank(small.comm) == 0;
    small.exit_at = text_equal(r->how, "step") && ls_comm_rank(small.comm) == 0 ? 5 : 0;
    small.flags.save = r->save;
    small.flags.epochs = is_long(r->how) ? 3 : 1;
    set_failure(r, &small);
    small.flags.resume = resumes(r->how) ? "" : NULL;
    LS_UNUSED(local_rank);
    st = small_run(&small).status;
    if (text_equal(r->how, "late") && ls_comm_rank(small.comm) == 0)
        await_end();
    ls_comm_destroy(small.comm);
    return st;
}

/* HOW DIR SAVE [RANKS]: with a number, the ranks are started by ls_spawn(). */
static int rank_main(char **args)
{
    rank_job r = {.how = args[0], .dir = args[1], .save = args[2]};
    const int n = args[3] != NULL ? atoi(args[3]) : 0;

    if (text_equal(r.how, "refuse")) {
        fprintf(stderr, "text of the program\n");
        return ls_train_exit("rank", ls_train_refuse("no data in %s", r.dir));
    }
    return ls_train_exit("rank", n > 0 ? ls_spawn(run_rank, n, &r, NULL) : run_rank(0, &r));
}

/* --- the tests --- */

static char save[128];

static void every_run_that_ends_well_has_code_0(void **state)
{
    static const char *const counts[] = {"1", "2"};

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        job_expect_code(job_start(JOB_LIST(JOB_TOOL, "run", "-n", counts[i], small_program, "rank",
                                           "well", small_dir, save),
                                  NULL),
                        0);
        job_clean_up(NULL);
    }
}

/* A rank alone, and one with another that has ended well before. */
static void an_exit_during_a_save_is_a_failure(void **state)
{
    static const char *const counts[] = {"1", "2"};

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        char message[256];
        job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", counts[i], small_program, "rank", "save",
                                    small_dir, save),
                           NULL);

        job_expect_code(j, 1);
        text_format(message, sizeof(message),
                    "exited with code 0 before it finalized, while saving step "
                    "%s to %s",
                    i == 0 ? "15" : "8", save);
        job_expect(j, job_printed(j, 1, "lockstep: rank 0 (pid ") && job_printed(j, 1, message));
        job_clean_up(NULL);
    }
}

static void an_exit_of_a_spawned_rank_during_a_save_is_a_failure(void **state)
{
    char message[256];
    job *j = job_start(JOB_LIST(small_program, "rank", "well", small_dir, save, "2"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_clean_up(NULL);
    j = job_start(JOB_LIST(small_program, "rank", "save", small_dir, save, "1"), NULL);
    job_expect_code(j, 1);
    text_format(message, sizeof(message), "finalized, while saving step 15 to %s", save);
    job_expect(j, job_printed(j, 1, "rank: rank 0 (pid ") && job_printed(j, 1, message));
}

static void an_exit_during_training_is_a_failure(void **state)
{
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "1", small_program, "rank", "step", small_dir, save), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "exited with code 0 before it finalized, while training"));
}

static void a_checkpoint_that_rank_0_cannot_load_is_reported_as_cause(void **state)
{
    char absent[128];
    char line[256];
    job *j;

    LS_UNUSED(state);
    text_format(absent, sizeof(absent), "%s/absent", small_dir);
    j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "3", small_program, "rank", "resume", small_dir, absent),
        NULL);
    job_expect_code(j, 1);
    text_format(line, sizeof(line), "--resume %s: no such file", absent);
    job_expect(j, job_printed(j, 1, "lockstep: rank 0 ") && job_printed(j, 1, line));
}

/* The others end before it, as they receive its abort. */
static void a_failed_resume_is_reported_of_its_rank(void **state)
{
    char absent[128];
    char line[256];
    job *j;

    LS_UNUSED(state);
    text_format(absent, sizeof(absent), "%s/absent", small_dir);
    j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "3", small_program, "rank", "late", small_dir, absent),
        NULL);
    job_expect_code(j, 1);
    text_format(line, sizeof(line), "lockstep: rank 0 aborted: --resume %s: no such file", absent);
    job_expect(j, job_printed(j, 1, line) && job_printed(j, 1, "\n  then rank 0 (pid "));
}

static void a_file_that_rank_0_cannot_write_is_reported_as_cause(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", small_program, "rank", "well",
                                small_dir, "/absent/w.safetensors"),
                       NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "lockstep: rank 0 (pid "));
    job_expect(j, job_printed(j, 1,
                              "rank: --save: cannot create /absent/w.safetensors.tmp: No "
                              "such file or directory"));
}

static int count_lines(const job *j, const char *text)
{
    int n = 0;

    for (const char *at = strstr(text_str(&j->err), text); at != NULL; at = strstr(at + 1, text))
        n++;
    return n;
}

/* As on a terminal; a rank that is slow may be ended before it prints. */
static void failure_of_all_ranks_is_printed_once(void **state)
{
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "3", small_program, "rank", "refuse", "/absent", save),
        NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, count_lines(j, "rank: no data in /absent\n") == 1);
    job_expect(j, count_lines(j, "| text of the program\n") >= 1);
    job_expect(j, count_lines(j, "ranks 0-2| text of the program\n") == 0);
}

/* --- restarts --- */

/* Rank 1 dies in the last of three epochs; two of them are saved. */
static void a_restarted_run_gives_the_bits_of_an_uninterrupted_run(void **state)
{
    char whole[128];
    char line[256];
    job *j;

    LS_UNUSED(state);
    text_format(whole, sizeof(whole), "%s/whole.safetensors", small_dir);
    text_format(save, sizeof(save), "%s/killed.safetensors", small_dir);
    job_expect_code(job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", small_program, "rank", "whole",
                                       small_dir, whole),
                              NULL),
                    0);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--max-restarts", "1", small_program, "rank",
                           "kill", small_dir, save),
                  NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 1, "was killed by signal 9"));
    text_format(line, sizeof(line), "resuming from %s/killed.resume.safetensors: epoch 3, step 16",
                small_dir);
    job_expect(j, job_printed(j, 0, line));
    small_assert_same_file(whole, save);
}

/* As above. Without a restart nothing is left but the saved state. */
static void check_lost_card(const char *device, const char *text)
{
    const char *const env[] = {device, NULL};
    char whole[128];
    char line[256];
    job *j;

    text_format(whole, sizeof(whole), "%s/card.safetensors", small_dir);
    job_expect_code(job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", small_program, "rank", "whole",
                                       small_dir, whole),
                              env),
                    0);
    text_format(save, sizeof(save), "%s/lost.safetensors", small_dir);
    j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", small_program, "rank", "lose", small_dir, save), env);
    job_expect_code(j, 1);
    // An abort with the text, or an operation that failed with it: whichever came first.
    job_expect(j, job_printed(j, 1, "lockstep: rank 1") && job_printed(j, 1, text));
    job_expect_gone(j);
    j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", small_program, "rank", "rest", small_dir, save), env);
    job_expect_code(j, 0);
    text_format(line, sizeof(line), "resuming from %s/lost.resume.safetensors: epoch 3, step 16",
                small_dir);
    job_expect(j, job_printed(j, 0, line));
    small_assert_same_file(whole, save);
    text_format(save, sizeof(save), "%s/restarted.safetensors", small_dir);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--max-restarts", "1", small_program, "rank",
                           "lose", small_dir, save),
                  env);
    job_expect_code(j, 0);
    small_assert_same_file(whole, save);
    (void)job_clean_up(NULL);
}

static void a_run_that_lost_a_card_continues_from_the_last_checkpoint(void **state)
{
    LS_UNUSED(state);
    check_lost_card("LS_TEST_DEVICE=cudahost",
                    "cudahost:1 (host memory, PCI 10000000:01:00.0) can no longer be used");
}

static char endpoint[32];
static char key[256];

static job *start_node(const char *nodes, const char *how)
{
    return job_start(JOB_LIST(JOB_TOOL, "run", "--nnodes", nodes, "--rdzv-backend", "c10d",
                              "--rdzv-endpoint", endpoint, "--rdzv-conf", "last_call_timeout=0",
                              "-n", "1", small_program, "rank", how, small_dir, save),
                     JOB_LIST(key));
}

/* Where two nodes meet, with which key. */
static void make_place(void)
{
    net_address any;
    net_address bound;
    net_key secret;
    int fd;

    assert_int_equal(net_address_parse("127.0.0.1:0", NET_PORT_REQUIRED, &any), LS_OK);
    assert_int_equal(net_listen(&any, NET_STREAM, 1, &fd, &bound), LS_OK);
    close(fd);
    text_format(endpoint, sizeof(endpoint), "127.0.0.1:%d", net_address_port(&bound));
    text_format(key, sizeof(key), NET_KEY_FILE_ENV "=%s/key", small_dir);
    unlink(strchr(key, '=') + 1);
    assert_int_equal(net_key_random(&secret), LS_OK);
    assert_int_equal(net_key_write_file(strchr(key, '=') + 1, &secret), LS_OK);
}

/* Rank 1 is on the node that is not the head's. */
static void an_abort_on_another_node_is_reported_of_its_rank(void **state)
{
    job *a;
    job *b;

    LS_UNUSED(state);
    make_place();
    a = start_node("2", "abort");
    job_await_text(a, 1, "1/2 nodes joined"); // the first has rank 0
    b = start_node("2", "abort");
    job_expect_code(b, 1);
    job_expect_code(a, 1);
    job_expect(a, job_printed(a, 1, "lockstep: rank 1 aborted: the disk is full\n  then node 1 ("));
    job_expect(a, job_printed(a, 1, "): rank 1 (pid "));
}

/* 12 of 15 steps of the first epoch on 1 rank, the other 38 samples in 2 steps on 2 ranks. */
static void a_run_that_a_node_joins_continues_within_its_epoch(void **state)
{
    char line[256];
    ls_checkpoint *file;
    job *a;
    job *b;

    LS_UNUSED(state);
    make_place();
    text_format(save, sizeof(save), "%s/grown.safetensors", small_dir);
    a = start_node("1:2", "grow");
    job_await_text(a, 0, "waiting before step 12");
    b = start_node("1:2", "grow");
    job_expect_code(a, 0);
    job_expect_code(b, 0);
    text_format(line, sizeof(line), "resuming from %s/grown.resume.safetensors: epoch 1, step 12",
                small_dir);
    job_expect(a, job_printed(a, 0, "stopped by SIGTERM at step 12") && job_printed(a, 0, line));
    text_format(line, sizeof(line), "%s/grown.resume.safetensors", small_dir);
    assert_int_equal(ls_checkpoint_open(line, &file), LS_OK);
    assert_string_equal(ls_checkpoint_meta(file, "step"), "30"); // 12 + 2 + 2 * 8
    assert_string_equal(ls_checkpoint_meta(file, "epoch"), "3");
    assert_string_equal(ls_checkpoint_meta(file, "world_size"), "2");
    ls_checkpoint_close(file);
}

static int make_set(void **state)
{
    if (small_dir_make(state) != 0)
        return -1;
    text_format(save, sizeof(save), "%s/w.safetensors", small_dir);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        test(every_run_that_ends_well_has_code_0),
        test(an_exit_during_a_save_is_a_failure),
        test(an_exit_of_a_spawned_rank_during_a_save_is_a_failure),
        test(an_exit_during_training_is_a_failure),
        test(a_checkpoint_that_rank_0_cannot_load_is_reported_as_cause),
        test(a_failed_resume_is_reported_of_its_rank),
        test(a_file_that_rank_0_cannot_write_is_reported_as_cause),
        test(failure_of_all_ranks_is_printed_once),
        test(a_restarted_run_gives_the_bits_of_an_uninterrupted_run),
        test(a_run_that_lost_a_card_continues_from_the_last_checkpoint),
        test(an_abort_on_another_node_is_reported_of_its_rank),
        test(a_run_that_a_node_joins_continues_within_its_epoch),
    };

    if (argc > 4 && text_equal(argv[1], "rank"))
        return rank_main(argv + 2);
    return cmocka_run_group_tests(tests, make_set, small_dir_remove);
}
