/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The output of whole jobs: log files, console, both, folded lines; and the error files of ranks.
 */
#include "launch/job.h"

#include "base/alloc.h"
#include "base/file.h"
#include "base/report/json.h"

#include <dirent.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char home[64]; /* of each test, empty at first */
static char tmpdir[96];

static int open_home(void **state)
{
    LS_UNUSED(state);
    text_format(home, sizeof(home), "/tmp/lockstep-test-XXXXXX");
    if (mkdtemp(home) == NULL)
        return 1;
    text_format(tmpdir, sizeof(tmpdir), "TMPDIR=%s", home);
    return 0;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *place)
{
    LS_UNUSED(info);
    LS_UNUSED(type);
    LS_UNUSED(place);
    return remove(path);
}

static int close_home(void **state)
{
    (void)job_clean_up(state);
    return nftw(home, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

#define test(name) cmocka_unit_test_setup_teardown(name, open_home, close_home)
#define RUN(...)   job_start(JOB_LIST(JOB_TOOL, "run", __VA_ARGS__), JOB_LIST(tmpdir))

/* The only entry of `home`, "" when it is empty. */
static const char *only_entry(void)
{
    static char name[300];
    DIR *folder = opendir(home);
    const struct dirent *e;
    int n = 0;

    name[0] = 0;
    assert_non_null(folder);
    while ((e = readdir(folder)) != NULL)
        if (!text_equal(e->d_name, ".") && !text_equal(e->d_name, "..")) {
            text_format(name, sizeof(name), "%s", e->d_name);
            n++;
        }
    closedir(folder);
    assert_true(n <= 1);
    return name;
}

static const char *path_of(int rank, const char *file)
{
    static char path[600];

    return text_format(path, sizeof(path), "%s/%s/attempt_0/%d/%s", home, only_entry(), rank, file);
}

/* The whole file, for the caller to free. */
static char *content(int rank, const char *file, size_t *n)
{
    char *bytes;

    assert_ok(file_read(path_of(rank, file), 1 << 26, &bytes, n));
    return bytes;
}

static void expect_file(int rank, const char *file, const char *wanted)
{
    size_t n;
    char *bytes = content(rank, file, &n);

    assert_string_equal(bytes, wanted);
    ls_free(bytes);
}

static bool has_file(int rank, const char *file)
{
    return access(path_of(rank, file), F_OK) == 0;
}

#define SPEAK "echo out $RANK; echo err $RANK >&2"

/* --- files --- */

static void log_folder_alone_keeps_lines_on_the_console(void **state)
{
    job *j = RUN("-n", "2", "--log-dir", home, "--rdzv-id", "run7", "sh", "-c", SPEAK);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| out 1\n") && job_printed(j, 1, "rank 0| err 0\n"));
    job_expect(j, text_starts(only_entry(), "run7_"));
    expect_file(0, "stdout.log", "out 0\n");
    expect_file(0, "stderr.log", "err 0\n");
    expect_file(1, "stdout.log", "out 1\n");
    expect_file(1, "stderr.log", "err 1\n");
}

static void files_and_folders_are_private(void **state)
{
    job *j = job_start(
        JOB_LIST("sh", "-c", "umask 0; exec \"$0\" run --log-dir \"$1\" true", JOB_TOOL, home),
        NULL);
    struct stat info;

    LS_UNUSED(state);
    job_expect_code(j, 0);
    assert_int_equal(stat(path_of(0, "stdout.log"), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(stat(path_of(0, ""), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
}

static void redirected_streams_are_not_shown(void **state)
{
    job *j = RUN("-n", "3", "--log-dir", home, "-r", "0:3,1:1", "sh", "-c", SPEAK);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, text_equal(text_str(&j->out), "rank 2| out 2\n"));
    job_expect(j, !job_printed(j, 1, "rank 0|") && job_printed(j, 1, "rank 1| err 1\n") &&
                      job_printed(j, 1, "rank 2| err 2\n"));
    expect_file(0, "stderr.log", "err 0\n");
    expect_file(1, "stdout.log", "out 1\n");
    assert_true(!has_file(1, "stderr.log") && !has_file(2, "stdout.log"));
}

static void tee_wins_over_redirects(void **state)
{
    job *j = RUN("-n", "2", "--log-dir", home, "--redirects=3", "--tee=1:1", "sh", "-c", SPEAK);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, text_equal(text_str(&j->out), "rank 1| out 1\n") && j->err.length == 0);
    expect_file(0, "stdout.log", "out 0\n");
    expect_file(1, "stdout.log", "out 1\n");
    expect_file(1, "stderr.log", "err 1\n");
}

static void without_a_log_folder_a_temporary_one_is_named(void **state)
{
    job *j = RUN("-n", "2", "-r", "3", "sh", "-c", SPEAK);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, text_starts(only_entry(), "lockstep_"));
    job_expect(j, j->out.length == 0 && job_printed(j, 1, "lockstep: log files of the ranks: /"));
    job_expect(j, job_printed(j, 1, home) && job_printed(j, 1, only_entry()));
    expect_file(1, "stderr.log", "err 1\n");
}

/* Bars, long lines, no end of line, zero bytes: all as the rank wrote it. */
static void log_files_have_the_same_bytes(void **state)
{
    job *j = RUN("-n", "2", "--log-dir", home, "sh", "-c",
                 "printf 'a\\r50%%\\r\\n\\033[31mx\\000y\\377'; head -c 300000 /dev/zero");
    static const char begin[] = "a\r50%\r\n\x1b[31mx\0y\xff";

    LS_UNUSED(state);
    job_expect_code(j, 0);
    for (int r = 0; r < 2; r++) {
        size_t n;
        char *bytes = content(r, "stdout.log", &n);

        assert_int_equal(n, sizeof(begin) - 1 + 300000);
        assert_memory_equal(bytes, begin, sizeof(begin) - 1);
        ls_free(bytes);
    }
}

static void hidden_lines_of_a_failed_rank_are_in_the_report(void **state)
{
    job *j = RUN("-n", "2", "--log-dir", home, "-r", "3", "sh", "-c",
                 "echo the last words of $RANK; [ $RANK = 0 ] || exit 7; sleep 100");

    LS_UNUSED(state);
    job_expect_code(j, 7);
    job_expect(j, j->out.length == 0);
    job_expect(j, job_printed(j, 1, "  its last lines:\n  | the last words of 1\n"));
    job_expect(j, job_printed(j, 1, "  its log files: ") && job_printed(j, 1, "/attempt_0/1\n"));
    job_expect(j, !job_printed(j, 1, "rank 1| "));
}

static void full_disk_is_one_warning_and_the_job_continues(void **state)
{
    job *j = job_start(JOB_LIST("sh", "-c",
                                "ulimit -f 4000; exec \"$0\" run -n 3 --log-dir \"$1\" -t 3 sh -c "
                                "'head -c 3000000 /dev/zero | tr \"\\0\" x; echo; echo end $RANK'",
                                JOB_TOOL, home),
                       NULL);
    const char *warning;

    LS_UNUSED(state);
    job_expect_code(j, 0);
    for (int r = 0; r < 3; r++) {
        char line[32];

        text_format(line, sizeof(line), "rank %d| end %d\n", r, r);
        job_expect(j, job_printed(j, 0, line));
    }
    job_expect(j, job_printed(j, 1, "File too large; the job continues without this log file"));
    warning = strstr(text_str(&j->err), "lockstep: cannot write ");
    job_expect(j, warning != NULL && strstr(warning + 1, "lockstep: ") == NULL);
}

static void a_folder_that_cannot_be_made_stops_the_job_before_it_starts(void **state)
{
    job *j = RUN("-n", "2", "--log-dir", "/dev/null/logs", "echo", "hello");

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, j->out.length == 0 &&
                      job_printed(j, 1,
                                  "--log-dir: cannot make the folder /dev/null/logs: "
                                  "Not a directory"));
    job_expect_gone(j);
}

static void redirected_ranks_do_not_wait_for_the_console(void **state)
{
    job *j = RUN("-n", "2", "--log-dir", home, "-r", "1:1", "sh", "-c",
                 "if [ $RANK = 0 ]; then head -c 4000000 /dev/zero | tr '\\0' '\\n'; else sleep "
                 "0.2; head -c 3000000 /dev/zero; echo done >&2; fi");
    const int out = j->out_fd;

    LS_UNUSED(state);
    j->out_fd = -1; /* the output of rank 0 is not read */
    job_await_text(j, 1, "rank 1| done");
    j->out_fd = out;
    job_expect_code(j, 0);
}

/* --- which ranks are shown --- */

static void only_the_chosen_ranks_are_shown(void **state)
{
    job *j = RUN("-n", "4", "--local-ranks-filter", "0,3", "sh", "-c", SPEAK);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0| out 0\n") && job_printed(j, 0, "rank 3| out 3\n"));
    job_expect(j, !job_printed(j, 0, "rank 1|") && !job_printed(j, 0, "rank 2|"));
    job_expect(j, job_printed(j, 1, "rank 3| err 3\n") && !job_printed(j, 1, "rank 1|"));
    j = RUN("-n", "4", "--ranks", "1-2", "sh", "-c", SPEAK);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| out 1\n") && job_printed(j, 0, "rank 2| out 2\n"));
    job_expect(j, !job_printed(j, 0, "rank 0|") && !job_printed(j, 0, "rank 3|"));
    assert_string_equal(only_entry(), "");
}

static void a_rank_that_is_not_shown_is_still_reported(void **state)
{
    job *j = RUN("-n", "2", "--ranks", "0", "sh", "-c",
                 "[ $RANK = 0 ] && sleep 100; echo why >&2; exit 3");

    LS_UNUSED(state);
    job_expect_code(j, 3);
    job_expect(j, text_starts(text_str(&j->err), "lockstep: rank 1 (pid "));
    job_expect(j, job_printed(j, 1, "  | why\n"));
}

/* --- terminals --- */

static void a_terminal_shows_the_same_line_of_all_ranks_once(void **state)
{
    job *j = job_start_on_terminal(
        JOB_LIST(JOB_TOOL, "run", "-n", "4", "sh", "-c", "echo hello; sleep 0.3; echo own $RANK"),
        NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "| hello\r\n") || job_printed(j, 0, "|\x1b[0m hello\r\n"));
    for (int r = 0; r < 4; r++) {
        char line[64];

        text_format(line, sizeof(line), "rank %d|\x1b[0m own %d\r\n", r, r);
        job_expect(j, job_printed(j, 0, line));
    }
}

static void folding_can_be_left_out(void **state)
{
    job *j = job_start_on_terminal(
        JOB_LIST(JOB_TOOL, "run", "-n", "2", "--no-fold", "echo", "hello"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 0|\x1b[0m hello\r\n"));
    job_expect(j, job_printed(j, 0, "rank 1|\x1b[0m hello\r\n"));
}

/* Lines printed at the same moment are folded; how many depends on the machine's load. */
static void lines_after_a_barrier_are_folded(void **state)
{
    static const char script[] = "for i in 1 2 3 4 5 6 7 8 9 10; do echo line $i; done; sleep 0.1; "
                                 "echo the end";
    bool folded = false;

    LS_UNUSED(state);
    for (int round = 0; round < 20 && !folded; round++) {
        job *j =
            job_start_on_terminal(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c", script), NULL);

        job_expect_code(j, 0);
        folded = job_printed(j, 0, "ranks 0-1|\x1b[0m the end\r\n");
        job_clean_up(NULL);
    }
    assert_true(folded);
}

/* --- lines with certain texts --- */

static char *filtered(const char *stream, size_t *n)
{
    char path[600];
    char *bytes;

    text_format(path, sizeof(path), "%s/%s/attempt_0/filtered_%s.log", home, only_entry(), stream);
    assert_ok(file_read(path, 1 << 20, &bytes, n));
    return bytes;
}

static void lines_with_given_texts_are_duplicated(void **state)
{
    job *j = RUN("-n", "3", "--log-dir", home, "--tee", "3", "--local-ranks-filter", "0-1",
                 "--duplicate_stdout_filters", "apple,x,,y", "--duplicate-stderr-filters", "oops",
                 "sh", "-c",
                 "echo an apple of $RANK; echo a pear; echo x,y; echo x; "
                 "[ $RANK = 0 ] || echo oops >&2; printf 'last apple'");
    static const char *const wanted[] = {"[default0]:an apple of 0\n", "[default1]:an apple of 1\n",
                                         "[default0]:x,y\n", "[default1]:last apple\n"};
    char *text;
    size_t n;

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "rank 1| a pear\n"));
    text = filtered("stdout", &n);
    for (size_t i = 0; i < LS_COUNT_OF(wanted); i++)
        assert_non_null(strstr(text, wanted[i]));
    assert_null(strstr(text, "pear"));
    assert_null(strstr(text, ":x\n"));
    assert_null(strstr(text, "default2")); // its lines are not shown
    ls_free(text);
    text = filtered("stderr", &n);
    assert_string_equal(text, "[default1]:oops\n");
    ls_free(text);
}

static void each_restart_has_its_filtered_lines(void **state)
{
    job *j = RUN("--log-dir", home, "--max-restarts", "1", "--duplicate-stdout-filters", "of", "sh",
                 "-c", "echo attempt of $TORCHELASTIC_RESTART_COUNT; exit 3");
    char path[600];
    char *text;
    size_t n;

    LS_UNUSED(state);
    job_expect_code(j, 3);
    text = filtered("stdout", &n);
    assert_string_equal(text, "[default0]:attempt of 0\n");
    ls_free(text);
    text_format(path, sizeof(path), "%s/%s/attempt_1/filtered_stdout.log", home, only_entry());
    assert_ok(file_read(path, 1 << 20, &text, &n));
    assert_string_equal(text, "[default0]:attempt of 1\n");
    ls_free(text);
}

static void filters_without_a_teed_stream_are_reported(void **state)
{
    job *j = RUN("--duplicate-stdout-filters", "x", "--tee", "2", "true");

    LS_UNUSED(state);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 1, "--duplicate-stdout-filters has no effect without --tee 1"));
}

static void template_is_the_prefix_of_each_line(void **state)
{
    char host[256] = "";
    char line[300];
    job *j = RUN("-n", "2", "--role", "worker", "--log-line-prefix-template",
                 "${hostname} ${role_name}${local_rank}> ", "echo", "hello");

    LS_UNUSED(state);
    (void)gethostname(host, sizeof(host) - 1);
    text_format(line, sizeof(line), "%s worker1> hello\n", host);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, line));
    j = job_start(JOB_LIST(JOB_TOOL, "run", "echo", "hello"),
                  JOB_LIST(tmpdir, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=[$rank] "));
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "[0] hello\n"));
}

/* --- error files --- */

/* A shell function: leave MESSAGE SECONDS. */
static const char leave[] =
    "LEAVE=leave() { printf '{\"message\":{\"message\":\"%s\",\"extraInfo\":{\"py_callstack\":"
    "\"frame 1\\\\nframe 2\",\"timestamp\":\"%s\"}}}' \"$1\" $2 >$TORCHELASTIC_ERROR_FILE; }";

static job *run_leaving(const char *n, const char *script)
{
    return job_start(JOB_LIST(JOB_TOOL, "run", "-n", n, "sh", "-c", script),
                     JOB_LIST(tmpdir, leave));
}

static void error_file_of_a_rank_is_in_the_report(void **state)
{
    job *j = run_leaving("2", "eval \"$LEAVE\"; [ $RANK = 0 ] && sleep 100; "
                              "leave 'ValueError: \\u001b[31mboom' $(date +%s); exit 3");

    LS_UNUSED(state);
    job_expect_code(j, 3);
    job_expect(j, job_printed(j, 1, "exited with code 3\n  its error: ValueError: ?[31mboom\n"));
    job_expect(j, job_printed(j, 1, "  its call stack:\n  | frame 1\n  | frame 2\n"));
    assert_string_equal(only_entry(), "");
    job_expect_gone(j);
}

static void with_a_log_folder_the_error_file_is_there(void **state)
{
    job *j =
        RUN("-n", "2", "--log-dir", home, "sh", "-c",
            "[ $RANK = 0 ] && sleep 100; echo some output; cd /; echo '{\"message\":\"bare\"}' "
            "> $TORCHELASTIC_ERROR_FILE; exit 3");

    LS_UNUSED(state);
    job_expect_code(j, 3);
    job_expect(j, job_printed(j, 1, "  its error: bare\n  its last lines:\n  | some output\n"));
    expect_file(1, "error.json", "{\"message\":\"bare\"}\n");
}

static void unreadable_error_file_is_reported(void **state)
{
    job *j = RUN("sh", "-c", "echo nonsense > $TORCHELASTIC_ERROR_FILE; exit 3");

    LS_UNUSED(state);
    job_expect_code(j, 3);
    job_expect(j, job_printed(j, 1, "its error file cannot be read: the error file: line 1"));
    j = RUN("sh", "-c", "head -c 2000000 /dev/zero > $TORCHELASTIC_ERROR_FILE; exit 3");
    job_expect_code(j, 3);
    job_expect(j, job_printed(j, 1, "more than the 1048576 bytes that are read"));
    j = RUN("--log-dir", home, "sh", "-c", "ln -s /etc/passwd $TORCHELASTIC_ERROR_FILE; exit 3");
    job_expect_code(j, 3);
    job_expect(j, job_printed(j, 1, "its error file cannot be read: cannot open ") &&
                      !job_printed(j, 1, "root"));
}

/* Rank 1 fails first by its own clock, but does not come to its end before rank 0 has. */
static void the_earliest_error_is_the_root(void **state)
{
    job *j = run_leaving("3", "eval \"$LEAVE\"; trap '' TERM; case $RANK in "
                              "0) sleep 2.5; leave 'a consequence' $(date +%s); exit 4;; "
                              "1) leave 'the cause' $(date +%s); sleep 100;; "
                              "2) sleep 100;; esac");

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, text_starts(text_str(&j->err), "lockstep: rank 1 (pid "));
    job_expect(
        j, job_printed(j, 1, "): failed, and did not exit by itself\n  its error: the cause\n"));
    job_expect(j, job_counts_others(j, 2));
}

/* What the launcher left in `path`; removed. */
static json_value *take_error(const char *path)
{
    json_value *json = NULL;
    char *text = NULL;
    size_t bytes = 0;

    assert_int_equal(file_read(path, 1 << 20, &text, &bytes), LS_OK);
    assert_int_equal(json_parse(text, bytes, "the launcher's error file", &json), LS_OK);
    ls_free(text);
    (void)unlink(path);
    return json;
}

static void expect_error_of_launcher(const char *path, const char *message, int code)
{
    json_value *json = take_error(path);
    const json_value *inner = json_get(json, "message");
    const json_value *extra = json_get(inner, "extraInfo");

    assert_non_null(strstr(json_as_string(json_get(inner, "message"), ""), message));
    assert_int_equal(json_as_int(json_get(inner, "errorCode"), 0), code);
    assert_true(strtoll(json_as_string(json_get(extra, "timestamp"), "0"), NULL, 10) > 0);
    assert_non_null(json_as_string(json_get(extra, "py_callstack"), NULL));
    json_free(json);
}

/* As torchrun under @record: for a launcher that was started by another one. */
static void launcher_writes_the_error_of_the_first_failed_rank(void **state)
{
    char path[sizeof(home) + 16];
    char variable[sizeof(path) + 32];
    job *j;

    LS_UNUSED(state);
    text_format(path, sizeof(path), "%s/outer.json", home);
    text_format(variable, sizeof(variable), "TORCHELASTIC_ERROR_FILE=%s", path);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "2", "sh", "-c",
                           "eval \"$LEAVE\"; [ $RANK = 0 ] && sleep 100; "
                           "leave 'ValueError: boom' $(date +%s); exit 3"),
                  JOB_LIST(tmpdir, leave, variable));
    job_expect_code(j, 3);
    expect_error_of_launcher(path, "ValueError: boom", 3);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "sh", "-c", "kill -9 $$"), JOB_LIST(tmpdir, variable));
    job_expect_code(j, 137);
    expect_error_of_launcher(path, "was killed by signal 9 (SIGKILL)", -9);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "--log-dir", "/dev/null/x", "true"),
                  JOB_LIST(tmpdir, variable));
    job_expect_code(j, 1);
    expect_error_of_launcher(path, "/dev/null", 1);
    j = job_start(JOB_LIST(JOB_TOOL, "run", "true"), JOB_LIST(tmpdir, variable));
    job_expect_code(j, 0);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* A time before the job began proves nothing. */
static void false_timestamp_does_not_change_the_root(void **state)
{
    job *j = run_leaving("2", "eval \"$LEAVE\"; trap '' TERM; case $RANK in "
                              "0) sleep 0.5; leave 'the truth' $(date +%s); exit 4;; "
                              "1) leave 'a lie' 1; sleep 100;; esac");

    LS_UNUSED(state);
    job_expect_code(j, 4);
    job_expect(j, job_printed(j, 1, "its error: the truth"));
}

static void no_error_file_remains_when_the_agent_is_killed(void **state)
{
    job *j =
        RUN("-n", "2", "sh", "-c", "echo '{}' > $TORCHELASTIC_ERROR_FILE; echo ready; sleep 1000");

    LS_UNUSED(state);
    job_await_text(j, 0, "rank 0| ready");
    job_await_text(j, 0, "rank 1| ready");
    assert_int_equal(kill(j->pid, SIGKILL), 0);
    job_expect_gone(j);
    assert_string_equal(only_entry(), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(log_folder_alone_keeps_lines_on_the_console),
        test(files_and_folders_are_private),
        test(redirected_streams_are_not_shown),
        test(tee_wins_over_redirects),
        test(without_a_log_folder_a_temporary_one_is_named),
        test(log_files_have_the_same_bytes),
        test(hidden_lines_of_a_failed_rank_are_in_the_report),
        test(full_disk_is_one_warning_and_the_job_continues),
        test(a_folder_that_cannot_be_made_stops_the_job_before_it_starts),
        test(redirected_ranks_do_not_wait_for_the_console),
        test(only_the_chosen_ranks_are_shown),
        test(a_rank_that_is_not_shown_is_still_reported),
        test(a_terminal_shows_the_same_line_of_all_ranks_once),
        test(folding_can_be_left_out),
        test(lines_after_a_barrier_are_folded),
        test(error_file_of_a_rank_is_in_the_report),
        test(with_a_log_folder_the_error_file_is_there),
        test(unreadable_error_file_is_reported),
        test(the_earliest_error_is_the_root),
        test(launcher_writes_the_error_of_the_first_failed_rank),
        test(false_timestamp_does_not_change_the_root),
        test(lines_with_given_texts_are_duplicated),
        test(each_restart_has_its_filtered_lines),
        test(filters_without_a_teed_stream_are_reported),
        test(template_is_the_prefix_of_each_line),
        test(no_error_file_remains_when_the_agent_is_killed),
    };

    return cmocka_run_group_tests_name("launch logs", tests, NULL, NULL);
}
