/* SPDX-License-Identifier: Apache-2.0 */
/* test_log.c - log lines, levels and the settings table. */
#include "base/capture.h"
#include "base/unit.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static int clear_settings(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < CONFIG_COUNT; i++)
        (void)unsetenv(config_table()[i].name);
    log_set_rank(0, 0);
    return log_configure("warn") != LS_OK;
}

/* The text after the time, which must have the form HH:MM:SS.mmm. */
static const char *after_time(const char *line)
{
    static const char form[] = "00:00:00.000 ";

    for (size_t i = 0; form[i] != '\0'; i++) {
        if (form[i] == '0' ? line[i] < '0' || line[i] > '9' : line[i] != form[i])
            fail_msg("no time begins \"%s\"", line);
    }
    return line + strlen(form);
}

static void expect_line(capture *c, const char *want)
{
    static char line[4096];

    assert_true(capture_next(c, line, sizeof(line)) > 0);
    assert_string_equal(after_time(line), want);
}

static void expect_end(capture *c)
{
    static char line[4096];

    if (capture_next(c, line, sizeof(line)) != 0)
        fail_msg("one more line: %s", line);
    capture_close(c);
}

static void a_line_has_time_level_rank_and_component(void **state)
{
    capture c;

    LS_UNUSED(state);
    assert_ok(log_configure("trace"));
    capture_begin(&c);
    ls_log(LS_LOG_ERROR, "comm", "peer %d silent for %.1f s", 5, 10.25);
    log_set_rank(3, 8);
    ls_log(LS_LOG_WARN, "comm", "a");
    ls_log(LS_LOG_INFO, "net", "b");
    ls_log(LS_LOG_DEBUG, "net", "c");
    ls_log(LS_LOG_TRACE, "net", "d");
    log_set_rank(0, 0);
    ls_log(LS_LOG_TRACE, "net", "e");
    capture_end(&c);
    expect_line(&c, "E comm: peer 5 silent for 10.2 s\n");
    expect_line(&c, "W rank3/8 comm: a\n");
    expect_line(&c, "I rank3/8 net: b\n");
    expect_line(&c, "D rank3/8 net: c\n");
    expect_line(&c, "T rank3/8 net: d\n");
    expect_line(&c, "T net: e\n");
    expect_end(&c);
}

static void levels_below_the_limit_write_nothing(void **state)
{
    capture c;

    LS_UNUSED(state);
    capture_begin(&c);
    ls_log(LS_LOG_INFO, "comm", "no");
    ls_log(LS_LOG_WARN, "comm", "yes");
    ls_log((ls_log_level)99, "comm", "no such level");
    capture_end(&c);
    expect_line(&c, "W comm: yes\n");
    expect_end(&c);
    assert_true(ls_log_enabled(LS_LOG_WARN, "comm"));
    assert_false(ls_log_enabled(LS_LOG_INFO, "comm"));
}

static void a_component_may_have_its_own_level(void **state)
{
    LS_UNUSED(state);
    assert_ok(log_configure("info,comm=debug,net=error,comm.ring=trace"));
    assert_true(ls_log_enabled(LS_LOG_INFO, "store"));
    assert_false(ls_log_enabled(LS_LOG_DEBUG, "store"));
    assert_true(ls_log_enabled(LS_LOG_DEBUG, "comm"));
    assert_false(ls_log_enabled(LS_LOG_TRACE, "comm"));
    assert_true(ls_log_enabled(LS_LOG_ERROR, "net"));
    assert_false(ls_log_enabled(LS_LOG_WARN, "net"));
    assert_true(ls_log_enabled(LS_LOG_TRACE, "comm.ring"));
    assert_ok(log_configure("comm=debug"));
    assert_true(ls_log_enabled(LS_LOG_WARN, "store"));
    assert_false(ls_log_enabled(LS_LOG_INFO, "store"));
    assert_ok(log_configure("error"));
    assert_false(ls_log_enabled(LS_LOG_WARN, "comm"));
}

static void a_bad_log_setting_changes_nothing_and_is_named(void **state)
{
    static const char *const bad[] = {"",
                                      "loud",
                                      "info,",
                                      ",info",
                                      "comm=",
                                      "=debug",
                                      "comm=loud",
                                      "info;comm=debug",
                                      "INFO",
                                      " info",
                                      "comm=debug=x",
                                      "info,,comm=info",
                                      "a_component_name_that_is_much_too_long=info"};
    char many[1024] = "info";

    LS_UNUSED(state);
    assert_ok(log_configure("debug"));
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        if (log_configure(bad[i]) != LS_EINVAL)
            fail_msg("\"%s\" was taken", bad[i]);
        assert_last_error("LOCKSTEP_LOG: \"");
        assert_last_error("error, warn, info, debug, trace");
    }
    assert_status(log_configure("info,comm=loud"), LS_EINVAL);
    assert_last_error("\"comm=loud\"");
    for (size_t n = 4; n < 4 + 33 * 7; n += 7)
        memcpy(many + n, ",x=warn", 8);
    assert_status(log_configure(many), LS_EINVAL);
    assert_last_error("more than 32");
    assert_true(ls_log_enabled(LS_LOG_DEBUG, "comm"));
    assert_false(ls_log_enabled(LS_LOG_TRACE, "comm"));
}

static void control_bytes_do_not_reach_the_terminal(void **state)
{
    capture c;

    LS_UNUSED(state);
    capture_begin(&c);
    ls_log(LS_LOG_WARN, "x", "a\nb\tc\rd\x1b[31m\x07\x7f \xC3\xA9 \xC2\x9B");
    ls_log(LS_LOG_WARN, "x", "%s", "");
    capture_end(&c);
    expect_line(&c, "W x: a b c d?[31m?? \xC3\xA9 ??\n");
    expect_line(&c, "W x: \n");
    expect_end(&c);
}

static void a_long_line_is_cut_and_still_one_write(void **state)
{
    capture c;
    char text[6000];
    char line[8000];
    int n;

    LS_UNUSED(state);
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    capture_begin(&c);
    ls_log(LS_LOG_WARN, "x", "%s", text);
    capture_end(&c);
    n = capture_next(&c, line, sizeof(line));
    assert_in_range(n, 2000, 4096);
    assert_string_equal(line + n - 4, "...\n");
    expect_end(&c);
}

static void logging_keeps_errno_and_the_error_text(void **state)
{
    capture c;

    LS_UNUSED(state);
    (void)ls_fail(LS_EIO, "mine");
    capture_begin(&c);
    errno = EPIPE;
    ls_log(LS_LOG_WARN, "x", "y");
    assert_int_equal(errno, EPIPE);
    capture_end(&c);
    capture_close(&c);
    assert_string_equal(ls_last_error(), "mine");
}

#define LINES 100

static void log_lines(void *arg)
{
    for (int i = 0; i < LINES; i++)
        ls_log(LS_LOG_WARN, "thread", "number %d of %d", i, *(const int *)arg);
}

static void lines_of_threads_stay_whole_and_in_order(void **state)
{
    int numbers[4] = {0, 1, 2, 3};
    int next[4] = {0};
    ls_thread threads[4];
    capture c;
    char line[256];
    int total = 0;

    LS_UNUSED(state);
    capture_begin(&c);
    // 400 lines are more packets than a pipe holds: the reader must keep up.
    for (int i = 0; i < 4; i++)
        assert_ok(ls_thread_start(&threads[i], "logger", log_lines, &numbers[i]));
    for (; total < 4 * LINES; total++) {
        int i = -1;
        int thread = -1;

        assert_true(capture_next(&c, line, sizeof(line)) > 0);
        assert_int_equal(sscanf(after_time(line), "W thread: number %d of %d\n", &i, &thread), 2);
        assert_in_range(thread, 0, 3);
        assert_int_equal(next[thread]++, i);
    }
    for (int i = 0; i < 4; i++)
        ls_thread_join(&threads[i]);
    capture_end(&c);
    expect_end(&c);
}

static void repeated_lines_are_logged_once_per_interval(void **state)
{
    int64_t last = 0;
    int64_t other = 0;
    const int64_t long_ago = ls_now_ms() - 100000;

    LS_UNUSED(state);
    assert_true(log_every(&last, 3600000));
    assert_false(log_every(&last, 3600000));
    assert_true(log_every(&other, 3600000));
    last = long_ago;
    assert_false(log_every(&last, 3600000));
    assert_true(log_every(&last, 99000));
    assert_false(log_every(&last, 99000));
    assert_true(log_every(&last, 0));
}

static void set(config_id id, const char *value)
{
    assert_int_equal(setenv(config_table()[id].name, value, 1), 0);
}

static void the_table_is_whole_and_its_defaults_are_valid(void **state)
{
    LS_UNUSED(state);
    for (int i = 0; i < CONFIG_COUNT; i++) {
        const config_entry *e = &config_table()[i];

        assert_true(text_starts(e->name, "LOCKSTEP_"));
        assert_true(strlen(e->help) > 10);
        assert_non_null(e->default_text);
        assert_int_equal(e->type == CONFIG_TYPE_CHOICE, e->choices != NULL);
        assert_string_equal(config_origin((config_id)i), "default");
    }
    assert_ok(config_check());
}

static void defaults_are_as_designed(void **state)
{
    int64_t n = 0;
    const char *text = NULL;

    LS_UNUSED(state);
    assert_ok(config_int(CONFIG_JOIN_MS, &n));
    assert_int_equal(n, 600000);
    assert_ok(config_int(CONFIG_OP_MS, &n));
    assert_int_equal(n, 1800000);
    assert_ok(config_int(CONFIG_LATE_MS, &n));
    assert_int_equal(n, 10000);
    assert_ok(config_text(CONFIG_TRANSPORT, &text));
    assert_string_equal(text, "auto");
    assert_ok(config_text(CONFIG_IFACE, &text));
    assert_string_equal(text, "");
}

static void each_type_is_read_from_the_environment(void **state)
{
    int64_t n = 0;
    const char *text = NULL;

    LS_UNUSED(state);
    set(CONFIG_TRANSPORT, "tcp");
    assert_ok(config_text(CONFIG_TRANSPORT, &text));
    assert_string_equal(text, "tcp");
    assert_string_equal(config_origin(CONFIG_TRANSPORT), "environment");
    set(CONFIG_OP_MS, "2500");
    assert_ok(config_int(CONFIG_OP_MS, &n));
    assert_int_equal(n, 2500);
    set(CONFIG_SEGMENT_BYTES, "1M");
    assert_ok(config_int(CONFIG_SEGMENT_BYTES, &n));
    assert_int_equal(n, 1 << 20);
    set(CONFIG_IFACE, "10.0.0.0/8");
    assert_ok(config_text(CONFIG_IFACE, &text));
    assert_string_equal(text, "10.0.0.0/8");
    set(CONFIG_OP_MS, ""); // empty counts as unset
    assert_ok(config_int(CONFIG_OP_MS, &n));
    assert_int_equal(n, 1800000);
    assert_ok(config_check());
}

/* All readers refuse this value, and name it with its variable and the allowed values. */
static void refuse(config_id id, const char *value, const char *allowed)
{
    int64_t n = -7;
    const char *text = NULL;

    set(id, value);
    if (config_table()[id].type == CONFIG_TYPE_INT || config_table()[id].type == CONFIG_TYPE_BYTES)
        assert_status(config_int(id, &n), LS_EINVAL);
    else if (config_table()[id].type == CONFIG_TYPE_CHOICE)
        assert_status(config_text(id, &text), LS_EINVAL);
    assert_status(config_check(), LS_EINVAL);
    assert_last_error(config_table()[id].name);
    assert_last_error(value);
    assert_last_error(allowed);
    assert_int_equal(n, -7);
    assert_null(text);
    assert_int_equal(unsetenv(config_table()[id].name), 0);
}

static void a_bad_value_names_variable_value_and_what_is_allowed(void **state)
{
    LS_UNUSED(state);
    refuse(CONFIG_TRANSPORT, "udp", "auto|shm|tcp");
    refuse(CONFIG_TRANSPORT, "aut", "auto|shm|tcp");
    refuse(CONFIG_TRANSPORT, "shm|tcp", "auto|shm|tcp");
    refuse(CONFIG_TRANSPORT, "TCP", "auto|shm|tcp");
    refuse(CONFIG_OP_MS, "soon", "from 1 to");
    refuse(CONFIG_OP_MS, "0", "from 1 to");
    refuse(CONFIG_OP_MS, "-5", "from 1 to");
    refuse(CONFIG_OP_MS, "99999999999999999999", "from 1 to");
    refuse(CONFIG_THREADS, "2.5", "from 0 to 1024");
    refuse(CONFIG_SEGMENT_BYTES, "1X", "at most 64 MiB");
    refuse(CONFIG_SEGMENT_BYTES, "1G", "at most 64 MiB");
    refuse(CONFIG_SEGMENT_BYTES, "16", "4 KiB");
    refuse(CONFIG_CONNECTIONS, "0", "from 1 to 8");
    refuse(CONFIG_CONNECTIONS, "9", "from 1 to 8");
    refuse(CONFIG_LOG, "comm=loud", "error, warn, info, debug, trace");
}

static void unknown_setting_logs_a_warning(void **state)
{
    capture c;

    LS_UNUSED(state);
    (void)setenv("LOCKSTEP_TRANSPROT", "tcp", 1);
    (void)setenv("LOCKSTEP_SOMETHING_ELSE", "1", 1);
    (void)setenv("LOCKSTEPS", "1", 1);
    capture_begin(&c);
    assert_ok(config_check());
    capture_end(&c);
    (void)unsetenv("LOCKSTEP_TRANSPROT");
    (void)unsetenv("LOCKSTEP_SOMETHING_ELSE");
    (void)unsetenv("LOCKSTEPS");
    expect_line(&c, "W config: unknown setting LOCKSTEP_TRANSPROT: did you mean "
                    "LOCKSTEP_TRANSPORT?\n");
    expect_line(&c, "W config: unknown setting LOCKSTEP_SOMETHING_ELSE\n");
    expect_end(&c);
}

static void variables_that_are_no_settings_are_known(void **state)
{
    static const char *const names[] = {"LOCKSTEP_RANK",          "LOCKSTEP_WORLD_SIZE",
                                        "LOCKSTEP_LOCAL_RANK",    "LOCKSTEP_LOCAL_WORLD_SIZE",
                                        "LOCKSTEP_STORE",         "LOCKSTEP_KEY_FD",
                                        "LOCKSTEP_JOB",           "LOCKSTEP_GENERATION",
                                        "LOCKSTEP_AGENT",         "LOCKSTEP_RING_FD",
                                        "LOCKSTEP_LISTEN_FD",     "LOCKSTEP_TTY",
                                        "LOCKSTEP_LIFELINE_FD",   "LOCKSTEP_CRASH_AT",
                                        "LOCKSTEP_NODE_RANK",     "LOCKSTEP_NNODES",
                                        "LOCKSTEP_AGENT_PROCESS", "LOCKSTEP_ELASTIC",
                                        "LOCKSTEP_MEMBER",        "LOCKSTEP_NEW_MEMBER",
                                        "LOCKSTEP_LIBRARY",       "LOCKSTEP_TORCH_FORM",
                                        "LOCKSTEP_TORCH_KEY",     "LOCKSTEP_TORCH_REPLACE",
                                        "LOCKSTEP_STOP_SIGNALS",  "LOCKSTEP_CUDA",
                                        "LOCKSTEP_TEST_FLIP",     "LOCKSTEP_LOCAL_CORES"};
    capture c;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(names); i++)
        (void)setenv(names[i], "1", 1);
    capture_begin(&c);
    assert_ok(config_check());
    capture_end(&c);
    for (size_t i = 0; i < LS_COUNT_OF(names); i++)
        (void)unsetenv(names[i]);
    expect_end(&c);
}

static void checking_settings_applies_the_log_level(void **state)
{
    LS_UNUSED(state);
    set(CONFIG_LOG, "error,comm=trace");
    assert_ok(config_check());
    assert_true(ls_log_enabled(LS_LOG_TRACE, "comm"));
    assert_false(ls_log_enabled(LS_LOG_WARN, "net"));
}

/* Runs first, while LOCKSTEP_LOG has not been read in this process. */
static void the_first_line_reads_the_setting(void **state)
{
    LS_UNUSED(state);
    (void)ls_fail(LS_EIO, "mine");
    assert_int_equal(setenv("LOCKSTEP_LOG", "error,comm=info", 1), 0);
    assert_true(ls_log_enabled(LS_LOG_INFO, "comm"));
    assert_false(ls_log_enabled(LS_LOG_WARN, "net"));
    assert_string_equal(ls_last_error(), "mine");
    assert_int_equal(setenv("LOCKSTEP_LOG", "trace", 1), 0); // read only once
    assert_false(ls_log_enabled(LS_LOG_WARN, "net"));
}

int main(void)
{
#define CLEAN(test) cmocka_unit_test_setup_teardown(test, clear_settings, clear_settings)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_line_reads_the_setting),
        CLEAN(a_line_has_time_level_rank_and_component),
        CLEAN(levels_below_the_limit_write_nothing),
        CLEAN(a_component_may_have_its_own_level),
        CLEAN(a_bad_log_setting_changes_nothing_and_is_named),
        CLEAN(control_bytes_do_not_reach_the_terminal),
        CLEAN(a_long_line_is_cut_and_still_one_write),
        CLEAN(logging_keeps_errno_and_the_error_text),
        CLEAN(lines_of_threads_stay_whole_and_in_order),
        CLEAN(repeated_lines_are_logged_once_per_interval),
        CLEAN(the_table_is_whole_and_its_defaults_are_valid),
        CLEAN(defaults_are_as_designed),
        CLEAN(each_type_is_read_from_the_environment),
        CLEAN(a_bad_value_names_variable_value_and_what_is_allowed),
        CLEAN(unknown_setting_logs_a_warning),
        CLEAN(variables_that_are_no_settings_are_known),
        CLEAN(checking_settings_applies_the_log_level),
    };

    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
