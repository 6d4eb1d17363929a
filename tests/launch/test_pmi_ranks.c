/* SPDX-License-Identifier: Apache-2.0 */
/* PMI-1 of whole jobs: with a shell as the client, and with programs that do not use it. */
#include "launch/job.h"

#include "host/program.h"

#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

static job *start_shell(const char *n, const char *script)
{
    return job_start(JOB_LIST(JOB_TOOL, "run", "-n", n, "bash", "-c", script), NULL);
}

/* The end of the process may be known before its last words are read. */
static void abort_before_the_exit_of_the_rank_counts(void **state)
{
    job *j = start_shell("2", "[ $RANK = 1 ] || exec sleep 100; "
                              "echo 'cmd=abort exitcode=9 message=no more cheese' >&$PMI_FD");

    LS_UNUSED(state);
    job_expect_code(j, 9);
    job_expect_failed_rank(j, 1, "ended the job with MPI_Abort, code 9: no more cheese\n");
}

static void other_bytes_close_only_the_pmi_socket(void **state)
{
    job *j = start_shell("2", "[ $RANK = 1 ] || head -c 1000000 /dev/zero >&$PMI_FD; echo done");

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 1, "rank 0 sent to PMI_FD what is not PMI-1"));
    job_expect(j, job_printed(j, 1, "; its PMI socket is closed\n"));
    job_expect(j, job_printed(j, 0, "rank 1| done\n"));
}

static void other_bytes_after_init_fail_the_rank(void **state)
{
    job *j = start_shell("2", "[ $RANK = 1 ] || exec sleep 100; echo cmd=get_maxes >&$PMI_FD; "
                              "echo nonsense >&$PMI_FD; exec sleep 100");

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect_failed_rank(j, 1, "what is not PMI-1 (a line without a command)\n");
}

/* Requests before the replies to the earlier ones are read: all are answered. */
static void client_that_sends_ahead_gets_every_reply(void **state)
{
    job *j = start_shell("1", "(yes cmd=get_appnum | head -n 50000 >&$PMI_FD) & "
                              "head -n 50000 <&$PMI_FD | grep -c 'cmd=appnum rc=0 appnum=0'; wait");

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "50000\n"));
}

/* It cannot send more than the socket takes, and the others are served meanwhile. */
static void rank_that_reads_no_replies_is_not_served(void **state)
{
    job *j = start_shell("2", "if [ $RANK = 0 ]; then timeout 1 yes cmd=get_maxes >&$PMI_FD; "
                              "else echo cmd=get_appnum >&$PMI_FD; read -r line <&$PMI_FD; "
                              "echo \"got $line\"; echo cmd=finalize >&$PMI_FD; fi; true");

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "got cmd=appnum rc=0 appnum=0\n"));
    job_expect(j, !job_printed(j, 1, "lockstep"));
}

static void only_the_rank_has_its_socket(void **state)
{
    static const char script[] =
        "for fd in /proc/self/fd/*; do case $(readlink $fd) in socket:*) "
        "[ ${fd##*/} = $PMI_FD ] || echo \"also ${fd##*/}\";; esac; done; "
        "n=0; for fd in /proc/$PPID/fd/*; do case $(readlink $fd) in socket:*) n=$((n + 1));; "
        "esac; done; [ $n = 1 ] || echo shim; " // the shim's own socket, to the agent
        "echo looked";
    job *j = start_shell("3", script);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "looked\n"));
    job_expect(j, !job_printed(j, 0, "also") && !job_printed(j, 0, "shim"));
}

/* --- several nodes --- */

/* Sends its arguments to the agent; the reply is in $line. */
#define ASK "ask() { echo \"$*\" >&$PMI_FD; read -r line <&$PMI_FD; }; "

/* Two ranks on this node, one on another one. */
static job *start_nodes(const char *script)
{
    return job_start(
        JOB_LIST(JOB_TOOL, "run", "--ssh", FAKE_SSH, "-H", "localhost:2,b:1", "bash", "-c", script),
        NULL);
}

/* Three times: the second and third keys are other ranks' than the first. */
static void ranks_of_several_nodes_read_each_others_keys(void **state)
{
    static const char script[] =
        ASK "ask cmd=get key=PMI_process_mapping; echo \"layout ${line##*=}\"; "
            "for round in 1 2 3; do ask cmd=put key=card$RANK value=$((RANK + 10 * round)); "
            "ask cmd=barrier_in; sum=0; for r in 0 1 2; do ask cmd=get key=card$r; "
            "sum=$((sum + ${line##*=})); done; echo \"sum $sum\"; ask cmd=barrier_in; done; "
            "ask cmd=finalize; [ \"$line\" = 'cmd=finalize_ack rc=0' ]";
    job *j = start_nodes(script);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    for (int r = 0; r < 3; r++) {
        char line[64];

        text_format(line, sizeof(line), "rank %d| layout (vector,(0,1,2),(1,1,1))\n", r);
        job_expect(j, job_printed(j, 0, line));
        for (int round = 1; round <= 3; round++) {
            text_format(line, sizeof(line), "rank %d| sum %d\n", r, 3 + 30 * round);
            job_expect(j, job_printed(j, 0, line));
        }
    }
    job_expect(j, j->err.length == 0);
    job_expect_gone(j);
}

static void an_abort_on_one_node_ends_all(void **state)
{
    job *j = start_nodes("[ $RANK = 2 ] || exec sleep 100; "
                         "echo 'cmd=abort exitcode=9 message=no more cheese' >&$PMI_FD");

    LS_UNUSED(state);
    job_expect_code(j, 9);
    job_expect(j, job_printed(j, 1, "node 1 (b): rank 2 (pid "));
    job_expect(j, job_printed(j, 1, "ended the job with MPI_Abort, code 9: no more cheese\n"));
    job_expect_gone(j);
}

/* The only rank of its node: its agent has no rank left when the others begin to wait. */
static void node_without_mpi_does_not_block_barriers(void **state)
{
    job *j =
        start_nodes(ASK "[ $RANK = 2 ] && exit 0; ask cmd=init; sleep 0.3; ask cmd=barrier_in");

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "node 1 (b): rank 2 (pid "));
    job_expect(j, job_printed(j, 1, "exited with code 0 without MPI_Init, where other ranks wait"));
    job_expect_gone(j);
}

static void a_rank_that_leaves_mpi_on_one_node_is_not_waited_for_on_the_other(void **state)
{
    job *j = start_nodes(ASK "ask cmd=init; [ $RANK = 0 ] && exit 0; [ $RANK = 1 ] && "
                             "exec sleep 100; ask cmd=barrier_in");

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "rank 0 (pid "));
    job_expect(j, job_printed(j, 1, "exited with code 0 without MPI_Finalize"));
    job_expect_gone(j);
}

/* Ours has a better family to believe. */
static void lockstep_programs_ignore_pmi(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", LOCKSTEP_BIN "/message_passing"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, j->err.length == 0);
}

/* --- Open MPI, whose programs do not speak it --- */

static void open_mpi_program_is_recognized_by_its_libraries(void **state)
{
    LS_UNUSED(state);
    assert_true(program_needs(OPEN_MPI_PROGRAM, "libmpi.so."));
    assert_false(program_needs(OPEN_MPI_PROGRAM, "libmpi_cxx.so."));
    assert_false(program_needs(JOB_TOOL, "libmpi.so."));
    assert_true(program_needs("ls", "libc.so."));
    assert_false(program_needs("no such program", "libc.so."));
    assert_false(program_needs("/", "libc.so."));
    assert_false(program_needs("", "libc.so."));
    assert_false(program_needs(__FILE__, "libc.so."));
}

static void open_mpi_program_causes_a_warning(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", OPEN_MPI_PROGRAM), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 1,
                              "is linked to Open MPI, which does not support this launcher: "
                              "each of the 2 ranks will be a job of its own; to make them one job: "
                              "lockstep run mpirun -np 2 "));
    job_clean_up(NULL);
    j = job_start(JOB_LIST(JOB_TOOL, "run", OPEN_MPI_PROGRAM), NULL);
    job_expect_code(j, 0);
    job_expect(j, j->err.length == 0);
    job_clean_up(NULL);
    j = job_start(
        JOB_LIST(JOB_TOOL, "run", "--ssh", FAKE_SSH, "-H", "localhost:1,b:1", OPEN_MPI_PROGRAM),
        NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 1, "to make them one job: mpirun -np 2 -H HOST:SLOTS,... "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(abort_before_the_exit_of_the_rank_counts),
        test(other_bytes_close_only_the_pmi_socket),
        test(other_bytes_after_init_fail_the_rank),
        test(client_that_sends_ahead_gets_every_reply),
        test(rank_that_reads_no_replies_is_not_served),
        test(only_the_rank_has_its_socket),
        test(ranks_of_several_nodes_read_each_others_keys),
        test(an_abort_on_one_node_ends_all),
        test(node_without_mpi_does_not_block_barriers),
        test(a_rank_that_leaves_mpi_on_one_node_is_not_waited_for_on_the_other),
        test(lockstep_programs_ignore_pmi),
        test(open_mpi_program_is_recognized_by_its_libraries),
        test(open_mpi_program_causes_a_warning),
    };

    return cmocka_run_group_tests_name("launch pmi ranks", tests, NULL, NULL);
}
