/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_check.c - what lockstep check (of machines and files) and lockstep clean print and how
 * they exit; that docs/checking.md has a row for every finding.
 */
#include "launch/job.h"

#include <lockstep/checkpoint.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/alloc.h"
#include "base/report/json.h"
#include "diagnose/finding.h"
#include "net/socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define test(name) cmocka_unit_test_teardown(name, job_clean_up)
#define TOOL(...)  job_start(JOB_LIST(JOB_TOOL, __VA_ARGS__), NULL)

static void expect_error(job *j, const char *text)
{
    job_expect_code(j, 2);
    job_expect(j, j->out.length == 0 && job_printed(j, 1, text));
    job_clean_up(NULL);
}

static void wrong_flags_are_reported_in_one_line(void **state)
{
    LS_UNUSED(state);
    expect_error(TOOL("check", "--quik"), "did you mean --quick?");
    expect_error(TOOL("check", "-n", "0"), "--nproc-per-node");
    expect_error(TOOL("check", "-n", "many"), "\"many\"");
    expect_error(TOOL("check", "--master-port", "65536"), "--master-port");
    expect_error(TOOL("check", "--nnodes", "0"), "--nnodes");
    expect_error(TOOL("check", "--quick", "--gpu-check"), "exclude each other");
    expect_error(TOOL("check", "-H", "a", "--nnodes", "1"), "exclude each other");
    expect_error(TOOL("check", "-H", "a", "--hostfile", "b"), "exclude each other");
    expect_error(TOOL("check", "-H", "a:0"), "-H");
    expect_error(TOOL("check", "--nnodes", "3", "--net", "eth0"), "other machines");
    expect_error(TOOL("clean", "--jobs"), "did you mean --job?");
    expect_error(TOOL("clean", "all"), "all");
}

/* The findings depend on the machine that the test runs on; the exit code must match them. */
static void exit_code_is_that_of_the_worst_finding(void **state)
{
    job *j = TOOL("check");

    LS_UNUSED(state);
    job_await_end(j);
    job_expect_code(j, job_printed(j, 0, "\nerror ") ? 1 : 0);
    job_expect(j,
               job_printed(j, 0, "ok       version-ok: lockstep ") && job_printed(j, 0, " note"));
    job_expect(j, j->err.length == 0);
}

static void used_port_is_an_error_that_names_its_process(void **state)
{
    net_address any, bound;
    char port[16];
    char wanted[64];
    int fd;
    job *j;

    LS_UNUSED(state);
    assert_ok(net_address_parse("127.0.0.1:0", NET_PORT_REQUIRED, &any));
    assert_ok(net_listen(&any, NET_STREAM, 1, &fd, &bound));
    text_format(port, sizeof(port), "%d", net_address_port(&bound));
    text_format(wanted, sizeof(wanted), "port-held: port %s is in use by pid %d (", port,
                (int)getpid());
    j = TOOL("check", "--master-port", port);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 0, wanted) && job_printed(j, 0, "         fix: kill "));
    (void)close(fd);
}

/* --- ports that are held, at the start --- */

typedef struct held_port {
    int fd;
    char number[16];
    char endpoint[32];
    char holder[96];
} held_port;

static held_port hold_port(void)
{
    held_port h;
    net_address any, bound;

    assert_ok(net_address_parse("127.0.0.1:0", NET_PORT_REQUIRED, &any));
    assert_ok(net_listen(&any, NET_STREAM, 1, &h.fd, &bound));
    text_format(h.number, sizeof(h.number), "%d", net_address_port(&bound));
    text_format(h.endpoint, sizeof(h.endpoint), "127.0.0.1:%s", h.number);
    text_format(h.holder, sizeof(h.holder), "Address already in use. The port is held by pid %d (",
                (int)getpid());
    return h;
}

static void expect_holder(held_port *h, job *j, int code)
{
    job_expect_code(j, code);
    job_expect(j, job_printed(j, 1, h->holder) && job_printed(j, 1, "test_cli_check"));
    job_clean_up(NULL);
}

static void holder_of_the_master_port_is_named(void **state)
{
    held_port h = hold_port();

    LS_UNUSED(state);
    expect_holder(&h, TOOL("run", "--master-port", h.number, "true"), 1);
    expect_holder(&h,
                  TOOL("run", "--nnodes", "2", "--node-rank", "0", "--insecure", "--master-port",
                       h.number, "true"),
                  1);
    (void)close(h.fd);
}

static void holder_of_the_rendezvous_endpoint_is_named(void **state)
{
    held_port h = hold_port();

    LS_UNUSED(state);
    expect_holder(&h,
                  TOOL("run", "--nnodes", "2", "--rdzv-backend", "c10d", "--insecure",
                       "--rdzv-conf", "join_timeout=1", "--rdzv-endpoint", h.endpoint, "true"),
                  1);
    (void)close(h.fd);
}

static void native_rank_0_names_the_holder_of_its_port(void **state)
{
    held_port h = hold_port();
    char port[32];

    LS_UNUSED(state);
    text_format(port, sizeof(port), "MASTER_PORT=%s", h.number);
    expect_holder(
        &h,
        job_start(JOB_LIST(LOCKSTEP_BIN "/message_passing"),
                  JOB_LIST("LOCKSTEP_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK",
                           "LOCAL_RANK", "RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", port)),
        1);
    (void)close(h.fd);
}

static void missing_interface_of_a_variable_is_named_at_the_start(void **state)
{
    static const char *const variables[] = {"NCCL_SOCKET_IFNAME=nosuch0",
                                            "GLOO_SOCKET_IFNAME=lo,nosuch0"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(variables); i++) {
        job *j = job_start(JOB_LIST(JOB_TOOL, "run", "-n", "1", "true"), JOB_LIST(variables[i]));
        job_expect_code(j, 0);
        job_expect(j, job_printed(j, 1, "lockstep: error: ") && job_printed(j, 1, variables[i]));
        job_expect(j, job_printed(j, 1, "no interface") && job_printed(j, 1, "(interfaces: "));
        job_clean_up(NULL);
        j = job_start(JOB_LIST(JOB_TOOL, "check", "--quick"), JOB_LIST(variables[i]));
        job_expect_code(j, 1);
        job_expect(j,
                   job_printed(j, 0, "error    net-variable: ") && job_printed(j, 0, variables[i]));
        job_clean_up(NULL);
    }
}

/* Limits are compared with the slots of this machine. */
static void check_of_this_machine_alone_needs_no_ssh(void **state)
{
    job *j = TOOL("check", "--quick", "--ssh", "/nowhere", "-H", "localhost:4096");

    LS_UNUSED(state);
    job_await_end(j);
    job_expect(j, job_printed(j, 0, "4096 ranks") && !job_printed(j, 0, " of 1 hosts"));
}

static void json_is_an_array_of_objects(void **state)
{
    static const char *const names[] = {"host", "id", "severity", "what", "why", "fix"};
    job *j = TOOL("check", "--json");
    json_value *json = NULL;

    LS_UNUSED(state);
    job_await_end(j);
    assert_ok(json_parse(text_str(&j->out), j->out.length, "the output", &json));
    assert_true(json_size(json) > 10);
    for (size_t i = 0; i < json_size(json); i++)
        for (size_t k = 0; k < LS_COUNT_OF(names); k++)
            assert_non_null(json_as_string(json_get(json_at(json, i), names[k]), NULL));
    json_free(json);
}

static void output_that_is_lost_is_an_error(void **state)
{
    job *j = job_start(JOB_LIST("sh", "-c", "$0 check --json >/dev/full", JOB_TOOL), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 1, "lockstep: cannot write to stdout: No space left on device"));
}

static void what_follows_two_dashes_is_a_file(void **state)
{
    job *j = job_start(JOB_LIST(JOB_TOOL, "check", "--", "-a", "-b"), NULL);

    LS_UNUSED(state);
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 0, "-a") && job_printed(j, 0, "-b"));
}

/* Takes the best of several runs, as other programs use the machine, too. */
static void quick_check_takes_less_than_a_second(void **state)
{
    int64_t least_ms = INT64_MAX;

    LS_UNUSED(state);
    for (int i = 0; i < 5; i++) {
        const int64_t since_ms = ls_now_ms();
        job *j = TOOL("check", "--quick", "--nnodes=1");
        job_await_end(j);
        job_expect(j, job_printed(j, 0, "cores-") && !job_printed(j, 0, "gpu-"));
        least_ms = ls_now_ms() - since_ms < least_ms ? ls_now_ms() - since_ms : least_ms;
        job_clean_up(NULL);
    }
    assert_true(least_ms < 1000);
}

/* --- saved files --- */

/* Replaces the data's last byte, unless it is 0. */
static void write_file(const char *path, bool has_digests, unsigned char last)
{
    static const char plain[] = "{\"w\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}";
    unsigned char bytes[] = {1, 2, 3};
    FILE *f;

    if (has_digests)
        assert_ok(ls_checkpoint_save(
            path, &(ls_named){.name = "w", .bytes = bytes, .n_bytes = sizeof(bytes)}, 1, NULL, 0));
    f = fopen(path, has_digests ? "r+" : "w");
    assert_non_null(f);
    if (!has_digests)
        fprintf(f, "%c%c%c%c%c%c%c%c%s123", (int)strlen(plain), 0, 0, 0, 0, 0, 0, 0, plain);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    if (last != 0)
        assert_int_equal(fputc(last, f), last);
    assert_int_equal(fclose(f), 0);
}

static void files_are_verified_and_the_damaged_one_is_an_error(void **state)
{
    char folder[] = "/tmp/lockstep-test-XXXXXX";
    char good[64], bad[64], plain[64];
    job *j;

    LS_UNUSED(state);
    assert_non_null(mkdtemp(folder));
    write_file(text_format(good, sizeof(good), "%s/good", folder), true, 0);
    write_file(text_format(bad, sizeof(bad), "%s/bad", folder), true, 9);
    write_file(text_format(plain, sizeof(plain), "%s/plain", folder), false, 0);
    j = TOOL("check", good, plain);
    job_expect_code(j, 0);
    job_expect(j, job_printed(j, 0, "/good: 1 tensor, ") && job_printed(j, 0, "all match"));
    job_expect(j, job_printed(j, 0, "note     checkpoint-plain: ") &&
                      job_printed(j, 0, "the file has no digests"));
    job_expect(j, job_printed(j, 0, "\n0 errors, 0 warnings, 1 note\n") && j->err.length == 0);
    job_clean_up(NULL);
    j = TOOL("check", good, bad, "--problems");
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 0, "error    checkpoint-bad: ") &&
                      job_printed(j, 0, "/bad: 1 of 1 tensors do not match their digests") &&
                      job_printed(j, 0, ": w (3) uint8\n") && !job_printed(j, 0, "all match"));
    job_clean_up(NULL);
    j = TOOL("check", "/nowhere/w.safetensors", "--json");
    job_expect_code(j, 1);
    job_expect(j, job_printed(j, 0, "\"checkpoint-bad\"") &&
                      job_printed(j, 0, "No such file or directory"));
    job_clean_up(NULL);
    expect_error(TOOL("check", "-n", "2", good), "only --json and --problems");
    assert_int_equal(unlink(good) + unlink(bad) + unlink(plain) + rmdir(folder), 0);
}

/* --- the page --- */

static bool has_row(const char *page, const char *id)
{
    char row[64];

    text_format(row, sizeof(row), "\n| `%s` | ", id);
    return strstr(page, row) != NULL;
}

static bool is_id(const char *name, size_t n)
{
    for (int i = 0; i < FINDING_KIND_COUNT; i++)
        if (strlen(finding_id((finding_kind)i)) == n &&
            strncmp(finding_id((finding_kind)i), name, n) == 0)
            return true;
    return false;
}

static void documented_findings_are_those_of_the_code(void **state)
{
    char *page = NULL;
    size_t bytes;
    int n_rows = 0;

    LS_UNUSED(state);
    assert_ok(file_read(CHECKING_PAGE, 1 << 20, &page, &bytes));
    for (int i = 0; i < FINDING_KIND_COUNT; i++)
        if (!has_row(page, finding_id((finding_kind)i)))
            fail_msg("docs/checking.md has no row for %s", finding_id((finding_kind)i));
    for (const char *at = page; (at = strstr(at, "\n| `")) != NULL; n_rows++) {
        at += strlen("\n| `");
        if (!is_id(at, strcspn(at, "`")))
            fail_msg("docs/checking.md: %.*s is no finding", (int)strcspn(at, "`"), at);
    }
    assert_int_equal(n_rows, FINDING_KIND_COUNT);
    ls_free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(wrong_flags_are_reported_in_one_line),
        test(exit_code_is_that_of_the_worst_finding),
        test(used_port_is_an_error_that_names_its_process),
        test(holder_of_the_master_port_is_named),
        test(holder_of_the_rendezvous_endpoint_is_named),
        test(native_rank_0_names_the_holder_of_its_port),
        test(missing_interface_of_a_variable_is_named_at_the_start),
        test(check_of_this_machine_alone_needs_no_ssh),
        test(json_is_an_array_of_objects),
        test(output_that_is_lost_is_an_error),
        test(what_follows_two_dashes_is_a_file),
        test(quick_check_takes_less_than_a_second),
        test(files_are_verified_and_the_damaged_one_is_an_error),
        test(documented_findings_are_those_of_the_code),
    };

    return cmocka_run_group_tests_name("cli check", tests, NULL, NULL);
}
