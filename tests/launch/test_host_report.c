/* SPDX-License-Identifier: Apache-2.0 */
/* The errors of several hosts in few lines. */
#include "base/unit.h"

#include "launch/head/host_report.h"

static text_buf lines;

static void save_line(void *self, const char *text)
{
    LS_UNUSED(self);
    text_append(&lines, "%s\n", text);
}

/* Pairs of host and reason give these lines. */
static void expect_lines(const char *const *pairs, const char *wanted)
{
    host_report r = {0};

    for (; *pairs != NULL; pairs += 2)
        assert_ok(host_report_add(&r, pairs[0], pairs[1]));
    text_free(&lines);
    host_report_write(&r, save_line, NULL);
    assert_string_equal(text_str(&lines), wanted);
    host_report_free(&r);
    text_free(&lines);
}

#define PAIRS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void one_host_has_its_own_text(void **state)
{
    LS_UNUSED(state);
    expect_lines(PAIRS("b2", "me@b2: Permission denied by 10.0.0.2."),
                 "host b2: me@b2: Permission denied by 10.0.0.2.\n");
    expect_lines(PAIRS("b2", ""), "host b2: \n");
    expect_lines(PAIRS("b\x1b[2", "no\nend\x07"), "host b?[2: no?end?\n");
}

static void the_same_of_several_hosts_is_one_line(void **state)
{
    LS_UNUSED(state);
    expect_lines(PAIRS("b4", "ssh: connect to host b4 port 22: Connection refused", "me@c",
                       "me@c: Permission denied. (ssh-copy-id me@c)", "b2",
                       "ssh: connect to host b2 port 22: Connection refused", "b3",
                       "ssh: connect to host b3 port 22: Connection refused", "me@d",
                       "me@d: Permission denied. (ssh-copy-id me@d)", "b5", "no route"),
                 "hosts b[2-4]: ssh: connect to host HOST port 22: Connection refused\n"
                 "hosts me@c,me@d: me@HOST: Permission denied. (ssh-copy-id me@HOST)\n"
                 "host b5: no route\n");
}

static void addresses_and_domains_do_not_make_a_difference(void **state)
{
    LS_UNUSED(state);
    expect_lines(PAIRS("b1", "closed by 10.0.0.1 port 22", "b2", "closed by 10.0.0.2 port 22"),
                 "hosts b[1-2]: closed by ADDRESS port 22\n");
    expect_lines(PAIRS("b1", "closed by fe80::1.", "b2", "closed by fe80::2."),
                 "hosts b[1-2]: closed by ADDRESS.\n");
    expect_lines(
        PAIRS("b1", "b1.cluster: down", "b2.org", "b2: down", "127.0.0.3", "127.0.0.3: down"),
        "hosts 127.0.0.3,b1,b2.org: HOST: down\n");
}

/* Numbers that mean something keep two texts apart. */
static void different_reasons_stay_apart(void **state)
{
    LS_UNUSED(state);
    expect_lines(PAIRS("b1", "exited with code 1", "b2", "exited with code 255"),
                 "host b1: exited with code 1\nhost b2: exited with code 255\n");
    expect_lines(PAIRS("b1", "b10: down", "b2", "b2: down"),
                 "host b1: b10: down\nhost b2: b2: down\n");
    expect_lines(PAIRS("127.0.0.3", "127: down", "127.0.0.4", "127.0.0.4: down"),
                 "host 127.0.0.3: 127: down\nhost 127.0.0.4: 127.0.0.4: down\n");
}

static void a_list_that_is_too_long_is_cut_and_counted(void **state)
{
    host_report r = {0};
    char name[32];

    LS_UNUSED(state);
    for (int i = 0; i < 3000; i++)
        assert_ok(host_report_add(&r, text_format(name, sizeof(name), "b%d", 2 * i), "down"));
    text_free(&lines);
    host_report_write(&r, save_line, NULL);
    assert_true(lines.length < 4300);
    assert_non_null(strstr(text_str(&lines), "... (3000 hosts): down\n"));
    host_report_free(&r);
    text_free(&lines);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_host_has_its_own_text),
        cmocka_unit_test(the_same_of_several_hosts_is_one_line),
        cmocka_unit_test(addresses_and_domains_do_not_make_a_difference),
        cmocka_unit_test(different_reasons_stay_apart),
        cmocka_unit_test(a_list_that_is_too_long_is_cut_and_counted),
    };

    return cmocka_run_group_tests_name("launch host report", tests, NULL, NULL);
}
