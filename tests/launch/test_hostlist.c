/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hostlist.c - -H, host files, Slurm's node lists and counts; node lists beside scontrol where
 * it is installed.
 */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "base/text.h"
#include "launch/hosts/hostlist.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* "a:8 b": slots only where they are given. */
static const char *shown(const hostlist *list, text_buf *t)
{
    text_free(t);
    for (int i = 0; i < list->n; i++) {
        text_append(t, "%s%s", i == 0 ? "" : " ", list->hosts[i].name);
        if (list->hosts[i].slots != 0)
            text_append(t, ":%d", list->hosts[i].slots);
    }
    return text_str(t);
}

static void assert_hosts(const char *text, const char *wanted)
{
    hostlist list;
    text_buf t = {0};

    assert_ok(hostlist_parse(text, &list));
    assert_string_equal(shown(&list, &t), wanted);
    hostlist_free(&list);
    text_free(&t);
}

static void assert_file(const char *text, const char *wanted)
{
    hostlist list;
    text_buf t = {0};

    assert_ok(hostlist_parse_file(text, strlen(text), "hosts", &list));
    assert_string_equal(shown(&list, &t), wanted);
    hostlist_free(&list);
    text_free(&t);
}

static void assert_slurm(const char *nodes, const char *counts, const char *wanted)
{
    hostlist list;
    text_buf t = {0};

    assert_ok(hostlist_parse_slurm(nodes, counts, &list));
    assert_string_equal(shown(&list, &t), wanted);
    hostlist_free(&list);
    text_free(&t);
}

static void assert_bad_hosts(const char *text, const char *error)
{
    hostlist list = {.n = 5};

    assert_status(hostlist_parse(text, &list), LS_EINVAL);
    assert_last_error(error);
    assert_int_equal(list.n, 0);
}

static void assert_bad_file(const char *text, const char *error)
{
    hostlist list;

    assert_status(hostlist_parse_file(text, strlen(text), "hosts", &list), LS_EINVAL);
    assert_last_error(error);
    assert_int_equal(list.n, 0);
}

static void assert_bad_slurm(const char *nodes, const char *counts, const char *error)
{
    hostlist list;

    assert_status(hostlist_parse_slurm(nodes, counts, &list), LS_EINVAL);
    assert_last_error(error);
    assert_int_equal(list.n, 0);
}

/* --- -H --- */

static void hosts_and_slots_are_read_in_their_order(void **state)
{
    (void)state;
    assert_hosts("a:8,b:2", "a:8 b:2");
    assert_hosts("a", "a");
    assert_hosts("gpu-a01.cluster_x:1,10.0.0.2:65536,me@b:3",
                 "gpu-a01.cluster_x:1 10.0.0.2:65536 me@b:3");
    assert_hosts("[fe80::1%eth0]:4,[::1]", "fe80::1%eth0:4 ::1");
}

static void a_host_that_comes_again_adds_its_slots(void **state)
{
    (void)state;
    assert_hosts("a,b,a", "a:2 b");
    assert_hosts("a:4,b,a,a:2", "a:7 b");
}

static void a_wrong_host_is_named_with_its_place(void **state)
{
    (void)state;
    assert_bad_hosts("", "-H, position 1: empty host name; write host:slots,host:slots");
    assert_bad_hosts("a:8,,b", "-H, position 5: empty host name");
    assert_bad_hosts("a,", "-H, position 3: empty host name");
    assert_bad_hosts("a:8,b:", "-H, position 5: \"b:\": after the colon write a number");
    assert_bad_hosts("a:0", "a number of slots from 1 to 65536");
    assert_bad_hosts("a:65537", "a number of slots from 1 to 65536");
    assert_bad_hosts("a:99999999999999999999", "a number of slots from 1 to 65536");
    assert_bad_hosts("a:8x", "a number of slots from 1 to 65536");
    assert_bad_hosts("a:65536,a", "65537 slots on \"a\", more than the maximum of 65536");
    assert_bad_hosts("2001:db8::1", "is an IPv6 address; write it in brackets");
    assert_bad_hosts("[::1", "is not a host");
    assert_bad_hosts("[a]:2", "is not a host");
    assert_bad_hosts("[::1]2", "is not a host");
}

static void nothing_but_a_name_reaches_ssh(void **state)
{
    static const char *const bad[] = {"-oProxyCommand=x",
                                      "a b",
                                      "a;b",
                                      "a$(b)",
                                      "a`b`",
                                      "a|b",
                                      "a&b",
                                      "a\nb",
                                      "a\x1b[2J",
                                      "a/b",
                                      "a'b",
                                      "a\"b",
                                      "a\\b",
                                      "a*",
                                      "a>b",
                                      "~a",
                                      "a!b",
                                      ".a",
                                      "me@-a",
                                      "-me@a",
                                      "@a",
                                      "me@",
                                      "a@b@c",
                                      "\xc3\xa4",
                                      "a#b",
                                      "a=b",
                                      "a%b",
                                      "[::1%-o]",
                                      "[::1%]",
                                      "[:]",
                                      "{a}",
                                      "a?",
                                      "$HOME",
                                      "a\rb",
                                      "^a",
                                      "+n0"};
    char longest[HOSTLIST_NAME_MAX + 2];

    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++)
        assert_bad_hosts(bad[i], "-H, position 1: ");
    memset(longest, 'a', sizeof(longest));
    longest[HOSTLIST_NAME_MAX + 1] = 0;
    assert_bad_hosts(longest, "is not a host");
    longest[HOSTLIST_NAME_MAX] = 0;
    assert_hosts(longest, longest);
}

/* --- host files --- */

static void files_of_mpirun_horovod_and_mpich_are_read(void **state)
{
    (void)state;
    assert_file("a slots=8\nb slots=2 max_slots=4\n", "a:8 b:2");
    assert_file("a:8\nb:2", "a:8 b:2");
    assert_file("# the cluster\n\n  a\tslots = 4 # fast\r\nb\r\n#c\n", "a:4 b");
    assert_file("a max-slots=4 slots=4\n[::1]:2\n", "a:4 ::1:2");
    assert_file("a#\n", "a");
}

static void lines_of_one_host_add_up_to_max_slots(void **state)
{
    (void)state;
    assert_file("a\nb\na\na\n", "a:3 b");
    assert_file("a slots=2\na slots=2 max_slots=4\n", "a:4");
    assert_bad_file("a slots=3\na slots=2 max_slots=4\n",
                    "hosts, line 2: 5 slots on \"a\", more than the maximum of 4");
}

static void a_wrong_line_is_named(void **state)
{
    static const char with_zero[] = "a\0b\n";
    hostlist list;

    (void)state;
    assert_bad_file("", "hosts: no hosts; write one per line, as \"host slots=8\"");
    assert_bad_file("# nothing\n", "no hosts; write");
    assert_bad_file("a\nb slots=x\n",
                    "hosts, line 2: after slots write = and a number from 1 to 65536");
    assert_bad_file("a slots\n", "after slots write =");
    assert_bad_file("a slots=\n", "after slots write =");
    assert_bad_file("a slots=0\n", "after slots write =");
    assert_bad_file("a slots=4x\n", "after slots write =");
    assert_bad_file("a slots==4\n", "after slots write =");
    assert_bad_file("a max_slots=-1\n", "after max_slots write =");
    assert_bad_file("a sockets=2\n",
                    "unknown setting \"sockets\"; after a host write slots=N or max_slots=N");
    assert_bad_file("a b\n", "unknown setting \"b\"");
    assert_bad_file("-oX\n", "\"-oX\" is not a host");
    assert_bad_file("=4\n", "\"=\" is not a host");
    assert_status(hostlist_parse_file(with_zero, sizeof(with_zero) - 1, "hosts", &list), LS_EINVAL);
    assert_last_error("hosts, line 1: \"a?b\" is not a host");
}

static void a_file_is_read_from_the_disk(void **state)
{
    char path[] = "/tmp/lockstep-hosts-XXXXXX";
    const int fd = mkstemp(path);
    hostlist list;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd,
                           "\xEF\xBB\xBF"
                           "a slots=2\r\n",
                           14),
                     14);
    assert_ok(hostlist_load(path, &list));
    assert_int_equal(list.n, 1);
    assert_string_equal(list.hosts[0].name, "a"); // without the byte order mark
    assert_int_equal(list.hosts[0].slots, 2);
    hostlist_free(&list);
    assert_int_equal(ftruncate(fd, HOSTLIST_FILE_BYTES_MAX + 1), 0);
    assert_int_not_equal(hostlist_load(path, &list), LS_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_not_equal(hostlist_load(path, &list), LS_OK);
    assert_last_error(path);
    assert_int_equal(list.n, 0);
    (void)close(fd);
}

/* --- Slurm --- */

/* Each as scontrol 22.05 has it. */
static const struct {
    const char *list;
    const char *names;
} lists[] = {
    {"a", "a"},
    {"a[01-03,7],b2", "a01 a02 a03 a7 b2"},
    {"gpu-a[01-02],gpu-b7", "gpu-a01 gpu-a02 gpu-b7"},
    {"r[0-1]n[08-10]", "r0n08 r0n09 r0n10 r1n08 r1n09 r1n10"},
    {"x[1-2][3-4]", "x13 x14 x23 x24"},
    {"a[1-2]b[1-2]c[1-2]", "a1b1c1 a1b1c2 a2b1c1 a2b1c2 a1b2c1 a1b2c2 a2b2c1 a2b2c2"},
    {"r[01-02,5]n[1,02]m[9-10]", "r01n1m9 r01n1m10 r02n1m9 r02n1m10 r5n1m9 r5n1m10 "
                                 "r01n02m9 r01n02m10 r02n02m9 r02n02m10 r5n02m9 r5n02m10"},
    {"n[007-011]", "n007 n008 n009 n010 n011"},
    {"a[1-010]", "a1 a2 a3 a4 a5 a6 a7 a8 a9 a10"},
    {"a[1-3,2],c,a1", "a1 a2 a3 a2 c a1"},
    {"a-[1-2]", "a-1 a-2"},
    {"smc-r07-[07-08]", "smc-r07-07 smc-r07-08"},
};

static void node_lists_expand_as_scontrol_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < LS_COUNT_OF(lists); i++)
        assert_slurm(lists[i].list, NULL, lists[i].names);
}

static void counts_are_given_to_the_nodes(void **state)
{
    (void)state;
    assert_slurm("a[1-3]", "2(x2),1", "a1:2 a2:2 a3:1");
    assert_bad_slurm("a[1-3]", "2(x2)", "tasks per node: 2 numbers for 3 nodes");
    assert_bad_slurm("a[1-3]", "2(x4)", "tasks per node: 4 numbers for 3 nodes");
    assert_bad_slurm("a[1-3]", "", "tasks per node, position 1");
}

static void a_wrong_node_list_is_named_with_its_place(void **state)
{
    (void)state;
    assert_bad_slurm("", NULL, "node list, position 1: not a host name");
    assert_bad_slurm("a,,b", NULL, "node list, position 3: not a host name");
    assert_bad_slurm("a[1-2]-ib", NULL, "position 7: text after the last bracket");
    assert_bad_slurm("a[1-2", NULL, "position 6: this bracket is not closed");
    assert_bad_slurm("a[]", NULL, "position 3: brackets hold numbers and ranges, as [01-03,7]");
    assert_bad_slurm("a[x]", NULL, "position 3: brackets hold");
    assert_bad_slurm("a[1,]", NULL, "position 5: brackets hold");
    assert_bad_slurm("a[1-]", NULL, "position 5: a range needs a number after the \"-\"");
    assert_bad_slurm("a[2-1]", NULL, "position 3: the range ends before its start");
    assert_bad_slurm("a[1-2x]", NULL, "position 6: this bracket is not closed");
    assert_bad_slurm("a]", NULL, "position 2: a \"]\" without a \"[\"");
    assert_bad_slurm("a[1[2]]", NULL, "position 4: this bracket is not closed");
    assert_bad_slurm("b,-a[1-2]", NULL, "position 3: not a host name");
    assert_bad_slurm("a b", NULL, "not a host name");
    assert_bad_slurm("a[1][1][1][1][1][1][1][1][1]", NULL, "more than 8 brackets");
    assert_bad_slurm("a[1234567890123456789]", NULL, "brackets hold numbers");
    assert_bad_slurm("a[1-9999999999999999999]", NULL, "a range needs a number");
}

static void a_list_has_at_most_65536_hosts(void **state)
{
    hostlist list;
    text_buf t = {0};

    (void)state;
    assert_ok(hostlist_parse_slurm("a[0-65535]", "1(x65536)", &list));
    assert_int_equal(list.n, 65536);
    assert_string_equal(list.hosts[65535].name, "a65535");
    hostlist_free(&list);
    assert_bad_slurm("a[0-65536]", NULL, "more than 65536 hosts");
    assert_bad_slurm("a[0-65535],b", NULL, "position 12: more than 65536 hosts");
    assert_bad_slurm("a[0-255][0-255][0-1]", NULL, "more than 65536 hosts");
    assert_bad_slurm("a[0-65535,0-65535]", NULL, "more than 65536 hosts");
    assert_bad_slurm("a[0-999999999999999999]", NULL, "more than 65536 hosts");
    assert_bad_slurm("a[1-2]", "1(x65537)", "for at most 65536 nodes");
    for (int i = 0; i <= HOSTLIST_HOSTS_MAX; i++)
        text_append(&t, "%sh%d", i == 0 ? "" : ",", i);
    assert_bad_hosts(text_str(&t), "more than 65536 hosts");
    text_free(&t);
}

static void a_name_that_grows_too_long_is_refused(void **state)
{
    char list[400];

    (void)state;
    memset(list, 'a', sizeof(list));
    memcpy(list + 250, "[1-2]", 6);
    assert_bad_slurm(list, NULL, "a name of more than 253 characters");
    memset(list, 'a', sizeof(list));
    list[300] = 0;
    assert_bad_slurm(list, NULL, "a name of more than 253 characters");
}

/* --- counts --- */

static void lists_of_numbers_are_read_and_bounded(void **state)
{
    static const char *const bad[] = {
        "",       ",",     "8,",   "8,,2",      "0",           "-1",
        "8 ,2",   "65537", "2(x)", "2(x0)",     "2(3)",        "2(x2",
        "2x2",    "a",     "8;2",  "2(x2)(x2)", "2(x65536),1", "99999999999999999999",
        "2(x2)3", "(x2)"};
    static const int wanted[] = {8, 2, 2, 2, 1};
    int *list = NULL;
    int n;

    (void)state;
    assert_ok(hostlist_parse_counts("8,2(x3),1", "-g", &list, &n));
    assert_int_equal(n, 5);
    assert_memory_equal(list, wanted, sizeof(wanted));
    ls_free(list);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++) {
        assert_status(hostlist_parse_counts(bad[i], "-g", &list, &n), LS_EINVAL);
        assert_last_error("-g, position ");
    }
    assert_last_error("position 1: a list of numbers from 1 to 65536, as 8,2 or 2(x2),1");
}

/* --- memory --- */

static void no_memory_is_an_error_and_leaves_nothing(void **state)
{
    static const char text[] = "a slots=2\nb\nc\na\n";
    int *list = NULL;
    int n;

    (void)state;
    for (uint64_t at = 1;; at++) {
        hostlist hosts;
        ls_status st;

        ls_alloc_fail_at(at);
        st = hostlist_parse_file(text, strlen(text), "hosts", &hosts);
        if (st == LS_OK)
            hostlist_free(&hosts);
        if (st == LS_OK)
            st = hostlist_parse_slurm("a[1-20]", "1(x20)", &hosts);
        if (st == LS_OK)
            hostlist_free(&hosts);
        if (st == LS_OK)
            st = hostlist_parse_counts("1,2", "-g", &list, &n);
        if (st == LS_OK)
            ls_free(list);
        if (st == LS_OK)
            break;
        assert_status(st, LS_ENOMEM);
        assert_int_equal(hosts.n, 0);
    }
    ls_alloc_fail_at(0);
}

/* --- beside scontrol --- */

/* What `scontrol show hostnames LIST` prints, names in a row; false when it fails. */
static bool ask_scontrol(const char *list, text_buf *out)
{
    char *const argv[] = {(char *)(uintptr_t) "scontrol", (char *)(uintptr_t) "show",
                          (char *)(uintptr_t) "hostnames", (char *)(uintptr_t)list, NULL};
    char buf[4096];
    int fds[2];
    int status;
    ssize_t n;
    pid_t pid;

    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

        (void)dup2(fds[1], 1);
        (void)dup2(null, 2);
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    (void)close(fds[1]);
    text_free(out);
    while ((n = read(fds[0], buf, sizeof(buf))) > 0)
        for (ssize_t i = 0; i < n; i++)
            text_append_bytes(out, buf[i] == '\n' ? " " : &buf[i], 1);
    (void)close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (out->length > 0)
        out->data[--out->length] = 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 && out->length > 0;
}

/* A file with what scontrol wants to know before it expands anything. */
static void give_scontrol_a_cluster(char *path)
{
    static const char conf[] = "ClusterName=test\nSlurmctldHost=localhost\nAuthType=auth/none\n";
    const int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, conf, sizeof(conf) - 1), (ssize_t)sizeof(conf) - 1);
    (void)close(fd);
    (void)setenv("SLURM_CONF", path, 0);
}

static void append_bracket(text_buf *t, ls_rng *rng)
{
    const int n = 1 + (int)ls_rng_below(rng, 3);

    text_append(t, "[");
    for (int i = 0; i < n; i++) {
        const int low = (int)ls_rng_below(rng, 120);

        text_append(t, "%s%0*d", i == 0 ? "" : ",", (int)ls_rng_below(rng, 5), low);
        if (ls_rng_below(rng, 2) == 0)
            text_append(t, "-%0*d", (int)ls_rng_below(rng, 5), low + (int)ls_rng_below(rng, 12));
    }
    text_append(t, "]");
}

static void append_node(text_buf *t, ls_rng *rng)
{
    static const char *const names[] = {"a", "gpu-", "r07-", "node.x", "n1"};
    const int n_brackets = (int)ls_rng_below(rng, 4);

    text_append(t, "%s", names[ls_rng_below(rng, LS_COUNT_OF(names))]);
    for (int i = 0; i < n_brackets; i++) {
        if (i > 0 && ls_rng_below(rng, 2) == 0)
            text_append(t, "%s", names[ls_rng_below(rng, LS_COUNT_OF(names))]);
        append_bracket(t, rng);
    }
}

static void random_node_lists_are_scontrols(void **state)
{
    char path[] = "/tmp/lockstep-slurm-XXXXXX";
    text_buf theirs = {0};
    ls_rng rng;

    (void)state;
    give_scontrol_a_cluster(path);
    if (!ask_scontrol("a[1-2]", &theirs) || !text_equal(text_str(&theirs), "a1 a2")) {
        print_message("there is no scontrol that works (package slurm-client)\n");
        assert_int_equal(unlink(path), 0);
        text_free(&theirs);
        skip();
    }
    ls_rng_seed(&rng, 7);
    for (int i = 0; i < 60; i++) {
        text_buf list = {0};
        const int n = 1 + (int)ls_rng_below(&rng, 3);

        for (int k = 0; k < n; k++) {
            text_append(&list, "%s", k == 0 ? "" : ",");
            append_node(&list, &rng);
        }
        if (!ask_scontrol(text_str(&list), &theirs))
            fail_msg("scontrol does not take \"%s\"", text_str(&list));
        assert_slurm(text_str(&list), NULL, text_str(&theirs));
        text_free(&list);
    }
    for (size_t i = 0; i < LS_COUNT_OF(lists); i++) {
        assert_true(ask_scontrol(lists[i].list, &theirs));
        assert_string_equal(text_str(&theirs), lists[i].names);
    }
    assert_int_equal(unlink(path), 0);
    text_free(&theirs);
}

static void expect_places(const char *hosts, int n_ranks, const char *slots)
{
    hostlist list;
    text_buf got = {0};

    assert_int_equal(hostlist_parse(hosts, &list), LS_OK);
    assert_int_equal(hostlist_place(&list, n_ranks), LS_OK);
    for (int i = 0; i < list.n; i++)
        text_append(&got, "%s%d", i > 0 ? "," : "", list.hosts[i].slots);
    assert_string_equal(text_str(&got), slots);
    text_free(&got);
    hostlist_free(&list);
}

static void ranks_fill_the_slots_in_their_order(void **state)
{
    hostlist list;

    (void)state;
    expect_places("a:8,b:2", 0, "8,2");
    expect_places("a:8,b:2", 10, "8,2");
    expect_places("a:8,b:2", 9, "8,1");
    expect_places("a:8,b:2,c:4", 3, "3,0,0");
    assert_int_equal(hostlist_parse("a:8,b:2", &list), LS_OK);
    assert_int_equal(hostlist_place(&list, 11), LS_EINVAL);
    assert_non_null(strstr(ls_last_error(), "11 ranks (-n), but the 2 hosts have 10 slots"));
    hostlist_free(&list);
    assert_int_equal(hostlist_parse("a:65536,b:65536", &list), LS_OK);
    assert_int_equal(hostlist_place(&list, 0), LS_EINVAL);
    hostlist_free(&list);
}

/* --- folding --- */

static void assert_folded(const char *const *names, const char *wanted)
{
    text_buf t = {0};
    size_t n = 0;

    while (names[n] != NULL)
        n++;
    hostlist_fold(names, n, &t);
    assert_string_equal(text_str(&t), wanted);
    text_free(&t);
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

static void names_that_differ_in_a_number_are_folded(void **state)
{
    LS_UNUSED(state);
    assert_folded(NAMES("a"), "a");
    assert_folded(NAMES("node1"), "node1");
    assert_folded(NAMES("node10", "node2", "node9", "node5", "node7", "node8"), "node[2,5,7-10]");
    assert_folded(NAMES("n08", "n09", "n10", "n1", "n2"), "n[1-2,08-10]");
    assert_folded(NAMES("n1", "n01", "n001"), "n[1,01,001]");
    assert_folded(NAMES("n2", "n1", "n2", "n1"), "n[1-2]");
    assert_folded(NAMES("b1", "head", "a1", "b2", "b"), "a1,b,b[1-2],head");
    assert_folded(NAMES("b1.rack7.org", "b2.rack7.org", "b3.rack8.org"),
                  "b[1-2].rack7.org,b3.rack8.org");
    assert_folded(NAMES("127.0.0.2", "127.0.0.3", "127.0.1.3"), "127.0.0.[2-3],127.0.1.3");
    assert_folded(NAMES("me@n1", "me@n2", "you@n3"), "me@n[1-2],you@n3");
    assert_folded(NAMES("fe80::1", "fe80::2"), "fe80::1,fe80::2");
    assert_folded(NAMES("n12345678901234", "n12345678901235"), "n12345[678901234-678901235]");
    assert_folded(NAMES("gpu-a1x2", "gpu-a1x3"), "gpu-a1x[2-3]");
}

/* Of names without a domain: what is folded is read as the same names. */
static void folded_names_are_read_back(void **state)
{
    ls_rng rng;

    LS_UNUSED(state);
    ls_rng_seed(&rng, 7);
    for (int round = 0; round < 200; round++) {
        static char texts[300][24];
        const char *names[300];
        bool seen[300] = {false};
        hostlist list = {0};
        text_buf t = {0};

        for (int i = 0; i < 300; i++)
            names[i] = text_format(texts[i], sizeof(texts[i]),
                                   ls_rng_next(&rng) % 2 ? "n%03u" : "rack-b%u",
                                   (unsigned)(ls_rng_next(&rng) % (unsigned)(2 + 10 * round)));
        hostlist_fold(names, 300, &t);
        assert_ok(hostlist_parse_slurm(text_str(&t), NULL, &list));
        for (int k = 0; k < list.n; k++) {
            bool found = false;

            for (int i = 0; i < 300; i++)
                if (text_equal(names[i], list.hosts[k].name))
                    found = seen[i] = true;
            assert_true(found);
            assert_false(k > 0 && text_equal(list.hosts[k].name, list.hosts[k - 1].name));
        }
        for (int i = 0; i < 300; i++)
            assert_true(seen[i]);
        hostlist_free(&list);
        text_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_and_slots_are_read_in_their_order),
        cmocka_unit_test(a_host_that_comes_again_adds_its_slots),
        cmocka_unit_test(a_wrong_host_is_named_with_its_place),
        cmocka_unit_test(nothing_but_a_name_reaches_ssh),
        cmocka_unit_test(files_of_mpirun_horovod_and_mpich_are_read),
        cmocka_unit_test(lines_of_one_host_add_up_to_max_slots),
        cmocka_unit_test(a_wrong_line_is_named),
        cmocka_unit_test(a_file_is_read_from_the_disk),
        cmocka_unit_test(node_lists_expand_as_scontrol_does),
        cmocka_unit_test(counts_are_given_to_the_nodes),
        cmocka_unit_test(a_wrong_node_list_is_named_with_its_place),
        cmocka_unit_test(a_list_has_at_most_65536_hosts),
        cmocka_unit_test(a_name_that_grows_too_long_is_refused),
        cmocka_unit_test(lists_of_numbers_are_read_and_bounded),
        cmocka_unit_test(no_memory_is_an_error_and_leaves_nothing),
        cmocka_unit_test(random_node_lists_are_scontrols),
        cmocka_unit_test(names_that_differ_in_a_number_are_folded),
        cmocka_unit_test(folded_names_are_read_back),
        cmocka_unit_test(ranks_fill_the_slots_in_their_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
