/* SPDX-License-Identifier: Apache-2.0 */
/* What starts an agent on another host: the orders it gets, the command line, and what a failure
 * means. */
#include "base/unit.h"

#include "base/text.h"
#include "launch/spec/launch_request.h"
#include "launch/hosts/start_command.h"

#include <stdlib.h>
#include <sys/wait.h>

static char program[] = "./train";
static char argument[] = "two words";
static char variable[] = "NCCL_DEBUG=INFO";

static void make_request(launch_request *o, char **argv, char **env)
{
    *o = (launch_request){
        .n_heads = 2,
        .node = 3,
        .n_nodes = 5,
        .n_ranks = 2,
        .run_hash = 0x123456789abcdef0u,
        .host = "node3",
        .folder = "/home/me",
        .env = env,
        .job = {.argv = argv,
                .grace_ms = 30000,
                .stop_signals = 1u << 15,
                .run_id = "run7",
                .log_dir = "logs",
                .filters = {"a,b", NULL},
                .line_prefix = "${rank}:",
                .master_addr = "10.0.0.9",
                .net = "10.0.0.0/8",
                .ports = {4000, 4010},
                .pty = true,
                .isolate = true,
                .binding = BINDING_EXCLUSIVE,
                .shown = {.n = 1, .parts = {{.first = 1, .last = 4, .streams = RANK_STDERR}}}},
        .security = NET_ENCRYPT,
        .terminal = true,
        .input_terminal = true,
        .size = {.rows = 40, .columns = 113}};

    memset(o->key.bytes, 7, sizeof(o->key.bytes));
    assert_int_equal(net_address_parse("10.0.0.1:4711", NET_PORT_REQUIRED, &o->heads[0]), LS_OK);
    assert_int_equal(net_address_parse("[fd00::1]:4711", NET_PORT_REQUIRED, &o->heads[1]), LS_OK);
}

static void launch_request_arrives_unchanged(void **state)
{
    char *argv[] = {program, argument, NULL};
    char *env[] = {variable, NULL};
    static launch_request given;
    static launch_request o;
    wire_writer w = {0};
    frame f = {.type = REMOTE_LAUNCH_REQUEST};

    LS_UNUSED(state);
    make_request(&given, argv, env);
    launch_request_write(&w, &given);
    f.body = w.data;
    f.bytes = w.bytes;
    assert_int_equal(launch_request_read(&f, &o), LS_OK);
    assert_true(net_key_equal(&o.key, &given.key));
    assert_int_equal(o.n_heads, 2);
    assert_true(net_address_equal(&o.heads[1], &given.heads[1]));
    assert_int_equal(o.node, 3);
    assert_int_equal(o.n_nodes, 5);
    assert_int_equal(o.n_ranks, 2);
    assert_true(o.run_hash == given.run_hash);
    assert_string_equal(o.host, "node3");
    assert_string_equal(o.folder, "/home/me");
    assert_string_equal(o.job.argv[1], argument);
    assert_null(o.job.argv[2]);
    assert_string_equal(o.env[0], variable);
    assert_null(o.env[1]);
    assert_true(o.job.grace_ms == 30000 && o.job.stop_signals == 1u << 15 && o.terminal &&
                o.job.isolate && o.job.binding == BINDING_EXCLUSIVE);
    assert_true(o.input_terminal && o.job.pty && o.size.rows == 40 && o.size.columns == 113);
    assert_string_equal(o.job.run_id, "run7");
    assert_null(o.job.role);
    assert_string_equal(o.job.filters[0], "a,b");
    assert_null(o.job.filters[1]);
    assert_string_equal(o.job.line_prefix, "${rank}:");
    assert_string_equal(o.job.master_addr, "10.0.0.9");
    assert_string_equal(o.job.net, "10.0.0.0/8");
    assert_int_equal(o.job.ports.last, 4010);
    assert_int_equal(o.security, NET_ENCRYPT);
    assert_int_equal(rank_list_streams(&o.job.shown, 2), RANK_STDERR);
    assert_int_equal(rank_list_streams(&o.job.shown, 0), RANK_STREAMS_NONE);
    launch_request_free(&o);
    wire_writer_free(&w);
}

/* Whatever is missing, nothing of it is taken, and nothing is lost. */
static void a_launch_request_that_is_cut_is_refused(void **state)
{
    char *argv[] = {program, argument, NULL};
    char *env[] = {variable, NULL};
    static launch_request given;
    static launch_request o;
    wire_writer w = {0};
    frame f = {.type = REMOTE_LAUNCH_REQUEST};

    LS_UNUSED(state);
    make_request(&given, argv, env);
    launch_request_write(&w, &given);
    f.body = w.data;
    for (f.bytes = 0; f.bytes < w.bytes; f.bytes++)
        assert_int_equal(launch_request_read(&f, &o), LS_EPROTO);
    f.bytes = w.bytes;
    w.data[0] ^= 64; /* the version */
    assert_int_equal(launch_request_read(&f, &o), LS_EPROTO);
    assert_non_null(strstr(ls_last_error(), "of version 69"));
    f.type = REMOTE_NOTE;
    assert_int_equal(launch_request_read(&f, &o), LS_EPROTO);
    wire_writer_free(&w);
}

static void sizes_and_windows_are_bounded(void **state)
{
    wire_writer w = {0};
    frame f = {.type = REMOTE_SIZE};
    pty_size size;
    size_t wanted;
    uint64_t hash;
    int rank;

    LS_UNUSED(state);
    remote_write_size(&w, &(pty_size){.rows = 50, .columns = 200});
    f.body = w.data;
    f.bytes = w.bytes;
    assert_int_equal(remote_read_size(&f, &size), LS_OK);
    assert_true(size.rows == 50 && size.columns == 200);
    f.bytes--;
    assert_int_equal(remote_read_size(&f, &size), LS_EPROTO);
    f.bytes++;
    w.data[2] = 1; /* 65586 rows */
    assert_int_equal(remote_read_size(&f, &size), LS_EPROTO);
    wire_put_u32(w.data, (uint32_t)REMOTE_INPUT_WINDOW);
    f.bytes = 4;
    assert_int_equal(remote_read_window(&f, &wanted), LS_OK);
    assert_true(wanted == REMOTE_INPUT_WINDOW);
    wire_put_u32(w.data, (uint32_t)REMOTE_INPUT_WINDOW + 1);
    assert_int_equal(remote_read_window(&f, &wanted), LS_EPROTO);
    wire_put_u32(w.data, 0);
    assert_int_equal(remote_read_window(&f, &wanted), LS_EPROTO);
    assert_int_equal(remote_read_failure_line(&f, &rank, &hash), LS_EPROTO);
    wire_writer_free(&w);
}

static void greeting_has_version_and_cores(void **state)
{
    static const char *const others[] = {"",
                                         "LOCKSTEP-AGENT",
                                         "LOCKSTEP-AGENT 5 0.1.0",
                                         "LOCKSTEP-AGENT 5 0.1.0 0",
                                         "LOCKSTEP-AGENT 5 0.1.0 2 3",
                                         "LOCKSTEP-AGENT 9 0.1.0 2",
                                         "Welcome LOCKSTEP-AGENT 5 0.1.0 2"};
    char line[128];
    char version[64];
    int cores;

    LS_UNUSED(state);
    remote_greeting(line, sizeof(line), 12);
    line[strcspn(line, "\n")] = 0;
    assert_true(remote_read_greeting(line, version, sizeof(version), &cores));
    assert_string_equal(version, ls_version());
    assert_int_equal(cores, 12);
    for (size_t i = 0; i < LS_COUNT_OF(others); i++)
        assert_false(remote_read_greeting(others[i], version, sizeof(version), &cores));
}

static bool has_word(char *const *argv, const char *word)
{
    while (*argv != NULL && !text_equal(*argv, word))
        argv++;
    return *argv != NULL;
}

static void ssh_gets_a_fixed_command(void **state)
{
    const start_options opt = {.way = START_SSH,
                               .program = " ssh  -J jump ",
                               .port = 2222,
                               .tool = "/opt/lockstep/bin/lockstep"};
    char **argv;
    int n = 0;

    LS_UNUSED(state);
    assert_int_equal(start_command_make(&opt, "me@node1", &argv), LS_OK);
    while (argv[n] != NULL)
        n++;
    assert_string_equal(argv[0], "ssh");
    assert_string_equal(argv[1], "-J");
    assert_string_equal(argv[2], "jump");
    assert_true(has_word(argv, "BatchMode=yes") &&
                has_word(argv, "StrictHostKeyChecking=accept-new"));
    assert_true(has_word(argv, "2222") && !has_word(argv, "-tt"));
    assert_string_equal(argv[n - 2], "me@node1");
    assert_true(text_starts(argv[n - 1], "exec /bin/sh -c '") &&
                strpbrk(argv[n - 1], "\n!\\") == NULL);
    assert_non_null(strstr(argv[n - 1], "\"/opt/lockstep/bin/lockstep\""));
    start_command_free(argv);
}

/* A path that the quoting does not foresee is left out. */
static void an_odd_path_is_not_put_into_the_command(void **state)
{
    static const char *const paths[] = {"/opt/it's/lockstep", "/opt/$HOME/lockstep",
                                        "/a b/lockstep",      "lockstep",
                                        "/opt/\"/lockstep",   NULL};
    char **argv;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(paths); i++) {
        const start_options opt = {.way = START_SLURM, .tool = paths[i]};
        int n = 0;

        assert_int_equal(start_command_make(&opt, "n1", &argv), LS_OK);
        while (argv[n] != NULL)
            n++;
        assert_string_equal(argv[0], "srun");
        assert_true(has_word(argv, "--overlap") && has_word(argv, "--unbuffered"));
        assert_non_null(strstr(argv[n - 1], "for a in lockstep; do"));
        start_command_free(argv);
    }
}

static void the_script_is_one_that_a_shell_takes(void **state)
{
    const start_options opt = {.way = START_SSH, .tool = "/opt/lockstep"};
    char **argv;
    char command[8192];
    int n = 0;

    LS_UNUSED(state);
    assert_int_equal(start_command_make(&opt, "n1", &argv), LS_OK);
    while (argv[n] != NULL)
        n++;
    assert_true(text_starts(argv[n - 1], "exec /bin/sh -c '"));
    text_format(command, sizeof(command), "sh -n -c %s", argv[n - 1] + strlen("exec /bin/sh -c "));
    assert_int_equal(system(command), 0);
    start_command_free(argv);
}

static void too_many_words_are_refused(void **state)
{
    char many[512] = "";
    start_options opt = {.way = START_SSH, .program = many};
    char **argv;

    LS_UNUSED(state);
    for (int i = 0; i < 100; i++)
        text_format(many + strlen(many), sizeof(many) - strlen(many), "-v ");
    assert_int_equal(start_command_make(&opt, "n1", &argv), LS_EINVAL);
    assert_null(argv);
}

static void only_a_busy_sshd_is_retried(void **state)
{
    LS_UNUSED(state);
    assert_true(start_may_retry("kex_exchange_identification: Connection closed by remote host"));
    assert_true(start_may_retry("Connection closed by 10.0.0.1 port 22"));
    assert_false(start_may_retry("Permission denied (publickey)."));
}

static void each_error_of_ssh_and_srun_has_a_fix(void **state)
{
    static const struct {
        start_way way;
        const char *line;
        const char *fix;
    } cases[] = {
        {START_SSH, "me@b: Permission denied (publickey).", "ssh-copy-id b "},
        {START_SSH, "Too many authentication failures", "ssh-copy-id b "},
        {START_SSH, "Host key verification failed.", "ssh-keygen -R b"},
        {START_SSH, "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!", "ssh-keygen -R b"},
        {START_SSH, "ssh: Could not resolve hostname b: Name or service not known", "/etc/hosts"},
        {START_SSH, "ssh: connect to host b port 22: Connection refused", "--ssh-port"},
        {START_SSH, "ssh: connect to host b port 22: Connection timed out", "firewall"},
        {START_SSH, "ssh: connect to host b port 22: No route to host", "machine is up"},
        {START_SSH, "ssh: connect to host b port 22: Network is unreachable", "firewall"},
        {START_SSH, "kex_exchange_identification: read: reset", "MaxStartups"},
        {START_SSH, "cannot run ssh: No such file or directory", "openssh-client"},
        {START_SSH, "whatever", "ssh b true"},
        {START_SLURM, "whatever", "srun -N1 -n1 -w b "},
    };
    char fix[512];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        start_fix(cases[i].way, "b", cases[i].line, fix, sizeof(fix));
        if (strstr(fix, cases[i].fix) == NULL)
            fail_msg("\"%s\": the fix \"%s\" has no \"%s\"", cases[i].line, fix, cases[i].fix);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launch_request_arrives_unchanged),
        cmocka_unit_test(a_launch_request_that_is_cut_is_refused),
        cmocka_unit_test(sizes_and_windows_are_bounded),
        cmocka_unit_test(greeting_has_version_and_cores),
        cmocka_unit_test(ssh_gets_a_fixed_command),
        cmocka_unit_test(an_odd_path_is_not_put_into_the_command),
        cmocka_unit_test(the_script_is_one_that_a_shell_takes),
        cmocka_unit_test(too_many_words_are_refused),
        cmocka_unit_test(only_a_busy_sshd_is_retried),
        cmocka_unit_test(each_error_of_ssh_and_srun_has_a_fix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
