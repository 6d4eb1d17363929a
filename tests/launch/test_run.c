/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs without interference: exit codes, whole lines, stdin, environment, concurrent and nested
 * jobs.
 */
#include "launch/job.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of setpriv. No file has to name the user. */
#define ORDINARY_USER "--reuid=61234", "--regid=61234", "--clear-groups", "--inh-caps=-all"

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)

static job *run(const char *n, const char *role, const char *a, const char *b)
{
    return job_start(JOB_LIST(JOB_TOOL, "run", "--nproc-per-node", n, JOB_ACTOR, role, a, b), NULL);
}

static void successful_job_exits_with_0_and_prints_nothing(void **state)
{
    job *j = run("3", "exit", "0", NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, j->err.length == 0 && j->out.length == 0);
    job_expect_gone(j);
}

static void the_first_failures_code_is_the_jobs(void **state)
{
    LS_UNUSED(state);
    job_expect_code(run("2", "exit", "7", "1"), 7);
    job_expect_code(run("2", "signal", "11", "0"), 139);
    job_expect_code(run("2", "signal", "9", "1"), 137);
    job_expect_code(run("1", "signal", "15", "0"), 143);
}

static void a_failure_is_reported_with_rank_pid_and_reason(void **state)
{
    job *j = run("3", "exit", "7", "2");
    int pid = 0, code = 0;

    LS_UNUSED(state);
    job_expect_code(j, 7);
    job_expect(j, sscanf(text_str(&j->err), "lockstep: rank 2 (pid %d) exited with code %d", &pid,
                         &code) == 2);
    job_expect(j, pid > 1 && code == 7);
    job_expect(j, job_printed(j, 1, "2 other ranks were stopped because of it\n"));
    job_expect(j, !job_printed(j, 1, "failed after it"));
    job_expect_gone(j);
}

static void a_program_that_cannot_be_run_is_named(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "no-such-program-of-ours"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 127);
    job_expect(j,
               job_printed(j, 1, "cannot run no-such-program-of-ours: No such file or directory"));
    j = job_start(JOB_LIST(JOB_TOOL, "run", "/"), NULL);
    job_expect_code(j, 127);
    job_expect(j, job_printed(j, 1, "cannot run /: Permission denied; / is a folder"));
}

static void expect_refused_with(const char *variable, const char *program, const char *text)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", program), JOB_LIST(variable));

    job_await_end(j);
    job_expect(j, job_printed(j, 1, text));
    job_clean_up(NULL);
}

static void expect_refused(const char *program, const char *text)
{
    expect_refused_with(NULL, program, text);
}

static void file_that_is_not_executable_is_named_with_the_fix(void **state)
{
    static const char fix[] = "; ./program is not executable: run chmod +x ./program, or put its "
                              "interpreter before it (sh ./program)";
    char folder[] = "/tmp/lockstep-test-XXXXXX";
    char path[64];
    FILE *f;

    LS_UNUSED(state);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    f = fopen("program", "we");
    assert_non_null(f);
    (void)fputs("#!/no/such/interpreter\n", f);
    assert_int_equal(fclose(f), 0);
    expect_refused("./program", fix);
    expect_refused("program", fix);
    assert_int_equal(chmod("program", 0700), 0);
    expect_refused("./program", "; ./program is there, but the interpreter in its first line");
    text_format(path, sizeof(path), "PATH=%s:/usr/bin:/bin", folder);
    expect_refused_with(path, "program",
                        "/program is there, but the interpreter in its first line");
    assert_int_equal(unlink("program"), 0);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void a_program_of_this_folder_is_suggested(void **state)
{
    char folder[] = "/tmp/lockstep-test-XXXXXX";
    char path[64];

    LS_UNUSED(state);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    text_format(path, sizeof(path), "%s/program_here", folder);
    assert_int_equal(symlink("/bin/true", path), 0);
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "program_here"), NULL);
    job_await_end(j);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(rmdir(folder), 0);
    job_expect_code(j, 127);
    job_expect(j, job_printed(j, 1, "it is in this folder: ./program_here"));
}

static void ranks_can_encrypt_their_traffic(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        static const char *const modes[] = {"mac", "encrypt"};
        char setting[64];
        char line[64];
        job *j;

        text_format(setting, sizeof(setting), "LOCKSTEP_SECURITY=%s", modes[i]);
        text_format(line, sizeof(line), "with rank 0 over tcp, security %s", modes[i]);
        j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", JOB_ACTOR, "steps", "3"),
                      JOB_LIST("LOCKSTEP_TRANSPORT=tcp", "LOCKSTEP_LOG=native=debug", setting));
        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 1, line));
        job_expect_gone(j);
        job_clean_up(NULL);
    }
    job_expect_code(job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_ACTOR, "steps", "3"),
                              JOB_LIST("LOCKSTEP_SECURITY=tls")),
                    1);
}

/* --- lines --- */

/* Each line must be a whole line of its rank, and the lines of one pipe in their order. */
static int check_lines(job *j, const text_buf *printed, int n_ranks, int parity)
{
    const char *line = text_str(printed);
    int next[16];
    int n = 0;

    for (int r = 0; r < n_ranks; r++)
        next[r] = parity;
    while (*line != 0) {
        const char *end = strchr(line, '\n');
        int in_front, rank, i, fill, at = 0;

        job_expect(j, end != NULL);
        job_expect(j, sscanf(line, "rank %d| LINE %d %d %d %n", &in_front, &rank, &i, &fill, &at) ==
                          4);
        job_expect(j, in_front == rank && rank >= 0 && rank < n_ranks);
        job_expect(j, i == next[rank] && end - line == at + fill);
        for (int k = 0; k < fill; k++)
            job_expect(j, line[at + k] == 'a' + rank);
        next[rank] += 2;
        n++;
        line = end + 1;
    }
    return n;
}

static void eight_writers_of_random_pieces_give_whole_lines(void **state)
{
    LS_UNUSED(state);
    for (int round = 0; round < job_rounds(); round++) {
        char seed[16];
        job *j;

        text_format(seed, sizeof(seed), "%d", round + 1);
        print_message("seed %s\n", seed);
        j = run("8", "lines", seed, "100");
        job_expect_code(j, 0);
        job_expect(j, check_lines(j, &j->out, 8, 0) == 8 * 50);
        job_expect(j, check_lines(j, &j->err, 8, 1) == 8 * 50);
        job_clean_up(NULL);
    }
}

static void prefixes_can_be_left_out_and_one_rank_has_none(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--no-prefix", "echo", "hello"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, text_equal(text_str(&j->out), "hello\nhello\n"));
    j = job_start(JOB_LIST(JOB_TOOL, "run", "echo", "hello"), NULL);
    job_expect_code(j, 0);
    job_expect(j, text_equal(text_str(&j->out), "hello\n"));
}

/* A megabyte stays in the queue, more in the pipes; the reader gets all of it in the end. */
static void slow_reader_gets_everything(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c",
                                "head -c 3000000 /dev/zero | tr '\\0' 'x' | fold -w 99; echo; "
                                "echo end of $RANK >&2"),
                       NULL);
    const int out = j->out_fd;

    LS_UNUSED(state);
    j->out_fd = -1; /* it is not read */
    job_read_output(j, 300);
    job_expect(j, !j->has_ended);
    j->out_fd = out;
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 1, "end of 0") && job_printed(j, 1, "end of 1"));
    job_expect(j, j->out.length >= 2 * 3000000);
}

/* ... and meanwhile the job is watched over. */
static void rank_failure_is_handled_while_output_is_not_read(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c",
                                "if [ $RANK = 0 ]; then yes; else sleep 0.3; exit 5; fi"),
                       NULL);
    const int out = j->out_fd;
    const pid_t rank = job_find(j, JOB_RANK, 0);

    LS_UNUSED(state);
    j->out_fd = -1;
    for (int i = 0; i < 1000 && kill(rank, 0) == 0; i++)
        job_read_output(j, 20);
    job_expect(j, kill(rank, 0) != 0);
    j->out_fd = out;
    job_expect_code(j, 5);
}

static void closed_reader_ends_the_job(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "yes"), NULL);

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 1| y\n");
    (void)close(j->out_fd);
    j->out_fd = -1;
    job_expect_code(j, 141);
    job_expect_gone(j);
}

static void a_full_disk_behind_stdout_is_an_error_that_is_named(void **state)
{
    static const char *const commands[] = {"yes", "echo hi"};
    char line[256];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(commands); i++) {
        text_format(line, sizeof(line), "exec %s run -n 2 %s >/dev/full", JOB_TOOL, commands[i]);
        job *j = job_start(JOB_LIST("sh", "-c", line), NULL);

        job_expect_code(j, 1);
        job_expect(j,
                   job_printed(j, 1, "cannot write what the ranks print to stdout: No space left"));
        job_expect_gone(j);
        job_clean_up(NULL);
    }
    text_format(line, sizeof(line), "exec %s run -n 2 sh -c 'echo hi >&2' 2>/dev/full", JOB_TOOL);
    job_expect_code(job_start(JOB_LIST("sh", "-c", line), NULL), 1);
}

/* As with a checkpoint that takes its time. */
static void ranks_end_in_good_order_where_stdout_takes_no_more(void **state)
{
    static const struct {
        const char *reader;
        int code;
    } cases[] = {{">/dev/full", 1}, {"| head -1; exit ${PIPESTATUS[0]}", 141}};
    char line[320];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        job *j;

        text_format(line, sizeof(line),
                    "%s run -n 2 sh -c 'trap \"sleep 1; echo saved >&2; exit\" TERM; "
                    "while :; do echo y; done' %s",
                    JOB_TOOL, cases[i].reader);
        j = job_start(JOB_LIST("bash", "-c", line), NULL);
        job_expect_code(j, cases[i].code);
        job_expect(j, job_printed(j, 1, "saved\n"));
    }
}

/* --- terminals --- */

static void terminal_gets_colours_and_only_rank_0_has_its_width(void **state)
{
    job *j = job_start_on_terminal(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--no-fold", "sh", "-c",
                                            "echo \"[$LOCKSTEP_TTY]\"; printf '\\r50%%'"),
                                   NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "\x1b[36mrank 0|\x1b[0m [72]\r\n"));
    job_expect(j, job_printed(j, 0, "\x1b[33mrank 1|\x1b[0m []\r\n"));
    job_expect(j, job_printed(j, 0, "\x1b[33mrank 1|\x1b[0m 50%\r\n"));
}

/* Ctrl-S stops the output only: a failure is handled, and all is printed after Ctrl-Q. */
static void a_stopped_terminal_does_not_stop_the_launcher(void **state)
{
    job *j = job_start_on_terminal(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c",
                                            "if [ $RANK = 0 ]; then echo ready; yes; fi; read x; "
                                            "sleep 0.3; exit 5"),
                                   NULL);
    const pid_t rank = job_find(j, JOB_RANK, 0);

    LS_UNUSED(state);
    job_await_text(j, 0, "ready");
    job_write(j, "\x13");
    for (int i = 0; i < 1000 && kill(rank, 0) == 0; i++)
        job_read_output(j, 20);
    job_expect(j, kill(rank, 0) != 0);
    job_expect(j, !j->has_ended);
    job_write(j, "\x11");
    job_expect_code(j, 5);
    job_expect(j, job_printed(j, 0, "exited with code 5"));
}

/* --- what a rank is given --- */

static void stdin_reaches_rank_0_only(void **state)
{
    job *j = run("3", "stdin", NULL, NULL);

    LS_UNUSED(state);
    job_write(j, "one\ntwo\n");
    job_await_text(j, 0, "rank 1| rank 1 has read 0 lines");
    job_await_text(j, 0, "rank 2| rank 2 has read 0 lines");
    job_close_stdin(j);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| rank 0 read two\n"));
    job_expect(j, job_printed(j, 0, "rank 0| rank 0 has read 2 lines\n"));
}

static void ranks_have_their_own_identity_only(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "--store=none", "--master-port", "4567",
                                "--role", "trainer", "--rdzv_id=run7", JOB_ACTOR, "environment"),
                       JOB_LIST("PMI_RANK=7", "PMIX_RANK=7", "OMPI_COMM_WORLD_NODE_RANK=7",
                                "SLURM_PROCID=7", "HOROVOD_RANK=7", "SLURM_STEP_ID=1",
                                "OMP_NUM_THREADS=5", "RANK=7", "MINE=kept"));

    LS_UNUSED(state);
    job_expect_code(j, 0);
    for (int r = 0; r < 2; r++) {
        static const char *const same[] = {"LOCKSTEP_WORLD_SIZE=2", "WORLD_SIZE=2",
                                           "MASTER_ADDR=127.0.0.1", "MASTER_PORT=4567",
                                           "ROLE_NAME=trainer",     "TORCHELASTIC_RUN_ID=run7",
                                           "OMP_NUM_THREADS=5",     "MINE=kept",
                                           "PYTHONUNBUFFERED=1",    "OMPI_COMM_WORLD_SIZE=2"};
        static const char *const own[] = {"LOCKSTEP_RANK", "RANK", "LOCAL_RANK",
                                          "OMPI_COMM_WORLD_RANK"};
        char line[128];

        for (size_t i = 0; i < LS_COUNT_OF(same); i++) {
            text_format(line, sizeof(line), "rank %d| %s\n", r, same[i]);
            job_expect(j, job_printed(j, 0, line));
        }
        for (size_t i = 0; i < LS_COUNT_OF(own); i++) {
            text_format(line, sizeof(line), "rank %d| %s=%d\n", r, own[i], r);
            job_expect(j, job_printed(j, 0, line));
        }
    }
    job_expect(j, !job_printed(j, 0, "=7\n"));
    job_expect(j, !job_printed(j, 0, "SLURM_STEP_ID"));
    job_expect(j, !job_printed(j, 0, "LOCKSTEP_TTY"));
}

/* Binds 127.0.0.1 at this port, with the option that servers use; -1 when it is taken. */
static int bind_port(long port)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};

    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), 0);
    if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) == 0)
        return fd;
    close(fd);
    return -1;
}

/* A client that sets a value and reads it back, in the dialect of PyTorch 1.13. */
static void expect_store(long port)
{
    static const char request[] = "\0\2\0\0\0\0\0\0\0/k\1\0\0\0\0\0\0\0v\2\2\0\0\0\0\0\0\0/k";
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char answer[9];

    assert_int_equal(connect(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(write(fd, request, sizeof(request) - 1), sizeof(request) - 1);
    assert_int_equal(recv(fd, answer, sizeof(answer), MSG_WAITALL), sizeof(answer));
    assert_memory_equal(answer, "\1\0\0\0\0\0\0\0v", sizeof(answer));
    close(fd);
}

/*
 * From before the first rank starts until the agent's end, and no longer, even when that is a
 * SIGKILL.
 */
static void the_agent_holds_the_stores_port(void **state)
{
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c", "echo at port $MASTER_PORT; exec cat"),
        NULL);
    const long port = job_await_number(j, 0, "at port ");
    int fd = bind_port(port);

    LS_UNUSED(state);
    assert_int_equal(fd, -1);
    expect_store(port);
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    job_await_end(j);
    job_expect_gone(j);
    fd = bind_port(port);
    assert_true(fd >= 0);
    close(fd);
}

static void missing_streams_do_no_harm(void **state)
{
    job *j = job_start(
        JOB_LIST("sh", "-c", "exec " JOB_TOOL " run -n 2 " JOB_ACTOR " steps 20 <&- >&-"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, j->err.length == 0);
    j = job_start(JOB_LIST("sh", "-c", "exec " JOB_TOOL " run -n 2 cat <&- 2>&-"), NULL);
    job_expect_code(j, 0);
}

static void many_ranks_need_more_descriptors_than_users_have(void **state)
{
    static const char *const more[] = {"--elastic", "--log-dir /nowhere"};
    job *j =
        job_start(JOB_LIST("sh", "-c", "ulimit -S -n 40; exec " JOB_TOOL " run -n 24 true"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    j = job_start(JOB_LIST("sh", "-c", "ulimit -n 40; exec " JOB_TOOL " run -n 24 true"), NULL);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "lockstep run: 24 ranks on this host need ") &&
                      job_printed(j, 1,
                                  "open files, but at most 40 are allowed: raise the hard "
                                  "limit (ulimit -Hn"));
    job_expect_gone(j);
    for (size_t i = 0; i < LS_COUNT_OF(more); i++) {
        char line[512];

        text_format(line, sizeof(line), "ulimit -n 192; exec %s run %s -n 24 true", JOB_TOOL,
                    more[i]);
        j = job_start(JOB_LIST("sh", "-c", line), NULL);
        job_expect_code(j, 1);
        job_expect(j, job_printed(j, 1, "24 ranks on this host need 216 open files"));
    }
    // The number that it names is enough.
    j = job_start(
        JOB_LIST("sh", "-c", "ulimit -n 192; exec " JOB_TOOL " run -n 24 " JOB_ACTOR " steps 3"),
        NULL);
    job_expect_code(j, 0);
}

/* As an ordinary user without capabilities and with the limits of a login. */
static void many_ranks_of_an_ordinary_user_start(void **state)
{
    static const char *const numbers[] = {"16", "33", "64", "128"};
    job *j;

    LS_UNUSED(state);
    if (geteuid() != 0) {
        print_message("only root can become another user\n");
        skip();
    }
    j = job_start(JOB_LIST("setpriv", ORDINARY_USER, JOB_TOOL, "--version"), NULL);
    job_await_end(j);
    if (j->status != 0) {
        print_message("another user cannot run %s, or there is no setpriv\n", JOB_TOOL);
        skip();
    }
    for (size_t i = 0; i < LS_COUNT_OF(numbers); i++) {
        j = job_start(JOB_LIST("setpriv", ORDINARY_USER, "sh", "-c",
                               "ulimit -n 1024; ulimit -l 64; unset HOME; cd /; exec " JOB_TOOL
                               " run -n $0 " JOB_ACTOR " steps 3",
                               numbers[i]),
                      NULL);
        job_expect_code(j, 0);
        job_expect_gone(j);
    }
}

/* Runs the actor where the kernel refuses these calls to the ranks, and to the launcher or not. */
static job *run_without(const char *calls, const char *error, bool only_ranks)
{
    if (only_ranks)
        return job_start(JOB_LIST(JOB_TOOL, "run", "-n", "3", REFUSE_CALLS, error, calls, JOB_ACTOR,
                                  "steps", "3"),
                         NULL);
    return job_start(
        JOB_LIST(REFUSE_CALLS, error, calls, JOB_TOOL, "run", "-n", "3", JOB_ACTOR, "steps", "3"),
        NULL);
}

/* As containers refuse them: EPERM, and ENOSYS. */
static void refused_system_calls_cost_speed_or_are_named(void **state)
{
    static const char *const errors[] = {"1", "38"};
    static const char others[] = "pidfd_open,pidfd_send_signal,process_vm_readv,process_vm_writev,"
                                 "ioprio_set,close_range,clone3,setpriority,sched_setaffinity,"
                                 "unshare,mbind,io_uring_setup";

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(errors); i++) {
        job *j = run_without(others, errors[i], i == 1);

        job_await_end(j);
        if (WIFEXITED(j->status) && WEXITSTATUS(j->status) == 77) {
            print_message("this process cannot set filters of system calls\n");
            skip();
        }
        job_expect_code(j, 0);
        j = run_without("memfd_create", errors[i], i == 1);
        job_expect_code(j, 0); // its memory is in /dev/shm
        job_expect_gone(j);
    }
}

/* A rank has one socket, for PMI-1. */
static void a_rank_holds_no_descriptors_of_the_agent(void **state)
{
    job *j =
        job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c", "ls -l /proc/self/fd"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, !job_printed(j, 0, "anon_inode"));
    j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c", "ls -l /proc/self/fd | grep -c socket:"),
        NULL);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| 1\n") && job_printed(j, 0, "rank 1| 1\n"));
}

/* --- jobs beside and inside each other --- */

static void two_jobs_are_independent(void **state)
{
    job *a = run("2", "steps", "300", NULL);
    job *b = run("3", "steps", "300", NULL);

    LS_UNUSED(state);
    job_expect_code(a, 0);
    job_expect_code(b, 0);
    job_expect(a, job_printed(a, 0, "rank 1| sum "));
    job_expect(b, job_printed(b, 0, "rank 2| sum "));
}

static void nested_job_is_independent(void **state)
{
    job *j = job_start(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", JOB_TOOL, "run", "-n", "2", JOB_ACTOR, "steps", "50"),
        NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    for (int r = 0; r < 4; r++) {
        char line[64];
        text_format(line, sizeof(line), "rank %d| rank %d| sum ", r / 2, r % 2);
        job_expect(j, job_printed(j, 0, line));
    }
    job_expect_gone(j);
}

/* --- PyTorch programs that wait elsewhere --- */

static const char waits_elsewhere[] = "rank 0 (pid %d) has loaded PyTorch and has been idle for ";

static void rank_that_waits_at_an_address_of_its_own_is_named(void **state)
{
    job *j =
        job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", STORE_CLIENT, "idle", "libtorch_cpu.so"),
                  JOB_LIST("LOCKSTEP_LATE_MS=300"));
    char text[128];

    LS_UNUSED(state);
    job_await_text(j, 1, "has loaded PyTorch and has been idle for ");
    text_format(text, sizeof(text), waits_elsewhere, (int)job_find(j, JOB_RANK, 0));
    job_expect(j, job_printed(j, 1, text));
    job_expect(j,
               job_printed(j, 1, "no rank has connected to PyTorch's store at 127.0.0.1 port ") &&
                   job_printed(j, 1, "needs --store none"));
    text_free(&j->err);
    job_read_output(j, 1000);
    job_expect(j, !job_printed(j, 1, "has loaded PyTorch")); /* once */
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    job_await_end(j);
    job_expect_gone(j);
}

/*
 * Of a script that starts its ranks itself, as torch.multiprocessing.spawn() does, which then
 * wait.
 */
static void child_of_rank_0_that_waits_elsewhere_is_seen(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "run", "sh", "-c",
                                STORE_CLIENT " idle libtorch_cpu.so & " STORE_CLIENT
                                             " idle libtorch_cpu.so & wait"),
                       JOB_LIST("LOCKSTEP_LATE_MS=300"));

    LS_UNUSED(state);
    job_await_text(j, 1, "has loaded PyTorch and has been idle for ");
    assert_int_equal(kill(j->pid, SIGTERM), 0);
    job_await_end(j);
}

/*
 * Ranks that met at the store, that use no PyTorch, or of which there is one; and without the
 * store.
 */
static void idle_ranks_that_do_not_wait_elsewhere_are_left_alone(void **state)
{
    static const struct {
        const char *ranks, *store, *role, *file, *ready;
    } cases[] = {
        {"2", "agent", "wait", NULL, "rank 0| met at "},
        {"2", "agent", "idle", "libother.so", "rank 0| idle"},
        {"1", "agent", "idle", "libtorch_cpu.so", "idle"},
        {"2", "none", "idle", "libtorch_cpu.so", "rank 0| idle"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", cases[i].ranks, "--store",
                                    cases[i].store, STORE_CLIENT, cases[i].role, cases[i].file),
                           JOB_LIST("LOCKSTEP_LATE_MS=200"));

        job_await_text(j, 0, cases[i].ready);
        job_read_output(j, 1000);
        job_expect(j, !job_printed(j, 1, "has loaded PyTorch"));
        assert_int_equal(kill(j->pid, SIGTERM), 0);
        job_await_end(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(successful_job_exits_with_0_and_prints_nothing),
        test(the_first_failures_code_is_the_jobs),
        test(a_failure_is_reported_with_rank_pid_and_reason),
        test(a_program_that_cannot_be_run_is_named),
        test(ranks_can_encrypt_their_traffic),
        test(a_program_of_this_folder_is_suggested),
        test(file_that_is_not_executable_is_named_with_the_fix),
        test(eight_writers_of_random_pieces_give_whole_lines),
        test(prefixes_can_be_left_out_and_one_rank_has_none),
        test(slow_reader_gets_everything),
        test(rank_failure_is_handled_while_output_is_not_read),
        test(closed_reader_ends_the_job),
        test(a_full_disk_behind_stdout_is_an_error_that_is_named),
        test(ranks_end_in_good_order_where_stdout_takes_no_more),
        test(terminal_gets_colours_and_only_rank_0_has_its_width),
        test(a_stopped_terminal_does_not_stop_the_launcher),
        test(stdin_reaches_rank_0_only),
        test(ranks_have_their_own_identity_only),
        test(the_agent_holds_the_stores_port),
        test(missing_streams_do_no_harm),
        test(many_ranks_need_more_descriptors_than_users_have),
        test(many_ranks_of_an_ordinary_user_start),
        test(refused_system_calls_cost_speed_or_are_named),
        test(a_rank_holds_no_descriptors_of_the_agent),
        test(two_jobs_are_independent),
        test(nested_job_is_independent),
        test(rank_that_waits_at_an_address_of_its_own_is_named),
        test(child_of_rank_0_that_waits_elsewhere_is_seen),
        test(idle_ranks_that_do_not_wait_elsewhere_are_left_alone),
    };

    return cmocka_run_group_tests_name("launch run", tests, NULL, NULL);
}
