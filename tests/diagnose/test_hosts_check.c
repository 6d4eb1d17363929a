/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_hosts_check.c - judging and printing the check of several hosts: clocks, differences of
 * software, paths, networks, and the messages between hosts. Hosts and networks are synthetic.
 */
#include "launch/net_world.h"

#include "base/alloc.h"
#include "base/report/json.h"
#include "diagnose/hosts/hosts_check.h"
#include "diagnose/hosts/hosts_check_run.h"

#define MS INT64_C(1000000)

/* --- clocks --- */

static void answer_with_the_shortest_round_trip_gives_the_offset(void **state)
{
    clock_offset c = {0};

    LS_UNUSED(state);
    /* The other clock is 2000 ms ahead. The first request takes 100 ms, its answer 2 ms. */
    assert_true(clock_offset_add(&c, 10000 * MS, 12100 * MS, 12101 * MS, 10103 * MS));
    assert_int_equal(c.offset_ns, 2049 * MS);
    assert_int_equal(c.round_trip_ns, 102 * MS);
    assert_true(clock_offset_add(&c, 11000 * MS, 13001 * MS, 13005 * MS, 11006 * MS));
    assert_int_equal(c.offset_ns, 2000 * MS);
    assert_int_equal(c.round_trip_ns, 2 * MS);
    assert_true(clock_offset_add(&c, 12000 * MS, 14050 * MS, 14050 * MS, 12051 * MS));
    assert_int_equal(c.offset_ns, 2000 * MS);
    assert_int_equal(c.n, 3);
    assert_true(clock_offset_exceeds(&c, 1998 * MS));
    assert_false(clock_offset_exceeds(&c, 1999 * MS)); /* the error is up to 1 ms */
}

static void clock_behind_is_apart_too(void **state)
{
    clock_offset c = {0};

    LS_UNUSED(state);
    assert_false(clock_offset_exceeds(&c, 0));
    assert_true(clock_offset_add(&c, 10000 * MS, 9000 * MS, 9000 * MS, 10002 * MS));
    assert_int_equal(c.offset_ns, -1001 * MS);
    assert_true(clock_offset_exceeds(&c, 999 * MS));
    assert_false(clock_offset_exceeds(&c, 1000 * MS));
}

static void malformed_times_are_ignored(void **state)
{
    static const int64_t bad[][4] = {{-1, 1, 1, 1}, {1, INT64_MIN, 1, 2}, {1, 1, INT64_MAX, 2},
                                     {5, 1, 2, 4},  {1, 5, 4, 9},         {1, 100, 200, 2}};
    clock_offset c = {0};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(bad); i++)
        assert_false(clock_offset_add(&c, bad[i][0], bad[i][1], bad[i][2], bad[i][3]));
    assert_int_equal(c.n, 0);
    assert_true(clock_offset_add(&c, 0, INT64_MAX / 2, INT64_MAX / 2, 0));
    assert_int_equal(c.offset_ns, INT64_MAX / 2);
}

/* --- processors --- */

static void expect_simd(const char *cpuinfo, const char *wanted)
{
    char text[256];

    hosts_check_simd_text(cpuinfo, text, sizeof(text));
    assert_string_equal(text, wanted);
}

static void features_are_whole_words_in_a_fixed_order(void **state)
{
    LS_UNUSED(state);
    expect_simd("processor\t: 0\nflags\t\t: fpu avx512f avx2 avx_vnni fma avx\nbugs\t: avx512bw\n",
                "avx fma avx2 avx_vnni avx512f");
    expect_simd("Features\t: fp asimd sve2 i8mm\n", "asimd i8mm sve2");
    expect_simd("flags\t\t: avx2x xavx fma", "fma");
    expect_simd("flags\t\n", "");
    expect_simd("", "");
}

/* --- a check of several hosts --- */

enum { FAST, SLOW, DOCKER };

static net_world world;
static hosts_check s;
static bool seen[FINDING_KIND_COUNT];

static void world_to_hosts_check(int n)
{
    static const char *const names[] = {"alpha", "beta", "gamma"};

    world_report(&world);
    for (int i = 0; i < n; i++) {
        hosts_check_host *h = &s.hosts[i];

        h->name = names[i];
        h->has_answered = h->has_facts = true;
        h->offer = world.offers[i];
        h->report.n = world.reports[i].n;
        h->report.tries = ls_calloc((size_t)h->report.n + 1, sizeof(net_try));
        assert_non_null(h->report.tries);
        memcpy(h->report.tries, world.reports[i].tries, (size_t)h->report.n * sizeof(net_try));
        h->facts = (hosts_check_facts){.version = "1.2",
                                       .build = "abcd",
                                       .kernel = "Linux 6.1",
                                       .libc = "glibc 2.36",
                                       .simd = "avx2 fma",
                                       .python = "3.11.2",
                                       .torch = "1.13.1"};
    }
}

/* Three hosts with a fast and a slow network, and docker0. */
static int begin(void **state)
{
    char text[32];

    LS_UNUSED(state);
    memset(&world, 0, sizeof(world));
    s = (hosts_check){.n = 3};
    s.hosts = ls_calloc(3, sizeof(*s.hosts));
    assert_non_null(s.hosts);
    for (int i = 0; i < 3; i++) {
        world_node(&world, "x");
        world_address(&world, i, i == 2 ? "ens3" : "eth0",
                      text_format(text, sizeof(text), "10.77.0.%d/24", 10 + i));
        world_address(&world, i, "eth1", text_format(text, sizeof(text), "10.78.0.%d/24", 10 + i));
        world_address(&world, i, "docker0", "172.17.0.1/16");
    }
    world_set_all(&world, FAST, NET_OK, 90, 8 * GBPS);
    world_set_all(&world, SLOW, NET_OK, 95, GBPS / 5);
    world_set_all(&world, DOCKER, NET_WRONG_NODE, 0, 0);
    return 0;
}

static int end(void **state)
{
    LS_UNUSED(state);
    hosts_check_free(&s);
    return 0;
}

static void mark_seen(const findings *list)
{
    for (int i = 0; i < list->n; i++)
        seen[list->items[i].kind] = true;
}

static void judge(void)
{
    assert_ok(hosts_check_judge(&s));
    mark_seen(&s.common);
    for (int i = 0; i < s.n; i++)
        mark_seen(&s.hosts[i].found);
}

/* The first of the kind on a host (-1: of all together); NULL: none. */
static const finding *get(int host, finding_kind kind)
{
    const findings *list = host < 0 ? &s.common : &s.hosts[host].found;

    for (int i = 0; i < list->n; i++)
        if (list->items[i].kind == kind)
            return &list->items[i];
    return NULL;
}

static void expect(int host, finding_kind kind, finding_severity severity, const char *what,
                   const char *fix)
{
    const finding *f = get(host, kind);

    if (f == NULL)
        fail_msg("no %s", finding_id(kind));
    else if (f->severity != severity || strstr(f->what, what) == NULL ||
             strstr(f->fix, fix) == NULL)
        fail_msg("%s %s: %s; %s", finding_severity_text(f->severity), finding_id(kind), f->what,
                 f->fix);
}

static void good_hosts_have_a_network_and_equal_software(void **state)
{
    LS_UNUSED(state);
    world_to_hosts_check(3);
    judge();
    expect(-1, FINDING_SAME_OK_KIND, FINDING_OK, "lockstep versions match on 3 hosts (1.2)", "");
    expect(-1, FINDING_NETWORK_OK_KIND, FINDING_OK,
           "selected network 10.77.0.0/24: eth0 on alpha, beta; ens3 on gamma", "");
    for (int i = 0; i < 3; i++) {
        expect(i, FINDING_PATH_OK_KIND, FINDING_OK, "reaches all other hosts", "");
        expect(i, FINDING_PATH_WRONG_KIND, FINDING_NOTE,
               "docker0 (172.17.0.0/16) cannot be used: wrong node from all other hosts",
               "^docker0");
    }
    assert_int_equal(hosts_check_worst(&s), FINDING_NOTE);
    assert_true(s.paths[1].is_chosen && s.paths[1].bytes_per_s == 8 * GBPS);
    assert_int_equal(s.paths[1].round_trip_us, 90);
}

static void differences_are_reported_with_their_hosts(void **state)
{
    LS_UNUSED(state);
    world_to_hosts_check(3);
    text_format(s.hosts[1].facts.build, sizeof(s.hosts[1].facts.build), "ffff");
    text_format(s.hosts[2].facts.kernel, sizeof(s.hosts[2].facts.kernel), "Linux 5.10");
    text_format(s.hosts[2].facts.libc, sizeof(s.hosts[2].facts.libc), "glibc 2.31");
    text_format(s.hosts[0].facts.simd, sizeof(s.hosts[0].facts.simd), "avx2 fma avx512f");
    s.hosts[1].facts.torch[0] = 0;
    judge();
    expect(-1, FINDING_BUILD_DIFFERS_KIND, FINDING_WARNING, "abcd on alpha, gamma; ffff on beta",
           "install");
    expect(-1, FINDING_KERNEL_DIFFERS_KIND, FINDING_NOTE,
           "Linux 6.1 on alpha, beta; Linux 5.10 on gamma", "uname");
    expect(-1, FINDING_LIBC_DIFFERS_KIND, FINDING_NOTE, "glibc 2.31 on gamma", "container");
    expect(-1, FINDING_SIMD_DIFFERS_KIND, FINDING_WARNING,
           "avx2 fma avx512f on alpha; avx2 fma on beta, gamma", "lscpu");
    expect(-1, FINDING_PYTHON_DIFFERS_KIND, FINDING_WARNING,
           "PyTorch versions differ: 1.13.1 on alpha, gamma; none on beta", "pip");
    assert_null(get(-1, FINDING_SAME_OK_KIND));
}

static void different_pythons_are_reported(void **state)
{
    LS_UNUSED(state);
    world_to_hosts_check(3);
    text_format(s.hosts[2].facts.python, sizeof(s.hosts[2].facts.python), "3.13.0");
    judge();
    expect(-1, FINDING_PYTHON_DIFFERS_KIND, FINDING_WARNING,
           "Python versions differ: 3.11.2 on alpha, beta; 3.13.0 on gamma", "export PYTHON_EXEC=");
}

static void build_of_a_copied_agent_is_not_compared(void **state)
{
    LS_UNUSED(state);
    world_to_hosts_check(3);
    s.hosts[1].facts.is_uninstalled = true;
    text_format(s.hosts[1].facts.build, sizeof(s.hosts[1].facts.build), "ffff");
    judge();
    assert_null(get(-1, FINDING_BUILD_DIFFERS_KIND));
    expect(1, FINDING_HOST_BARE_KIND, FINDING_NOTE, "is not installed", "install");
}

static void wrong_clock_is_reported_with_its_consequences(void **state)
{
    LS_UNUSED(state);
    world_to_hosts_check(3);
    s.hosts[1].clock = (clock_offset){.n = 8, .offset_ns = 2500 * MS, .round_trip_ns = 1 * MS};
    s.hosts[2].clock = (clock_offset){.n = 8, .offset_ns = -3 * MS, .round_trip_ns = 1 * MS};
    judge();
    expect(1, FINDING_TIME_APART_KIND, FINDING_WARNING,
           "clock is 2.500 s ahead of this machine's (uncertainty 0.5 ms)",
           "ssh beta sudo timedatectl set-ntp true");
    assert_non_null(strstr(finding_why(FINDING_TIME_APART_KIND), "TORCHELASTIC_ERROR_FILE"));
    expect(2, FINDING_TIME_OK_KIND, FINDING_OK, "within 10 ms", "");
    assert_null(get(0, FINDING_TIME_OK_KIND)); /* it has no answers */
}

static void wrong_clock_is_fixed_through_srun_in_an_allocation(void **state)
{
    LS_UNUSED(state);
    world_to_hosts_check(3);
    s.way = START_SLURM;
    s.hosts[2].clock = (clock_offset){.n = 8, .offset_ns = -2500 * MS, .round_trip_ns = 1 * MS};
    judge();
    expect(2, FINDING_TIME_APART_KIND, FINDING_WARNING, "clock is 2.500 s behind",
           "srun -w gamma sudo timedatectl set-ntp true");
}

static void unreachable_address_is_fixed_by_its_route(void **state)
{
    LS_UNUSED(state);
    world_set(&world, 0, 2, FAST, NET_UNREACHABLE, 0, 0);
    world_set(&world, 1, 2, SLOW, NET_REFUSED, 0, 0);
    world_to_hosts_check(3);
    judge();
    expect(2, FINDING_PATH_BLOCKED_KIND, FINDING_WARNING, "ens3 (10.77.0.0/24) cannot be used",
           "ip route get 10.77.0.12");
    assert_non_null(get(2, FINDING_PATH_OK_KIND));
}

static void unreachable_host_leaves_no_network(void **state)
{
    LS_UNUSED(state);
    for (int a = FAST; a <= SLOW; a++)
        world_set(&world, 0, 2, a, a == FAST ? NET_TIMED_OUT : NET_REFUSED, 0, 0);
    world_to_hosts_check(3);
    judge();
    expect(0, FINDING_PATH_NONE_KIND, FINDING_ERROR,
           "cannot connect to gamma: ens3 10.77.0.12 timed out, eth1 10.78.0.12 refused, docker0",
           "iptables -I INPUT -p tcp -s 10.77.0.0/24 -j ACCEPT   # on gamma");
    expect(2, FINDING_PATH_BLOCKED_KIND, FINDING_WARNING,
           "ens3 (10.77.0.0/24) cannot be used: timed out from alpha", "iptables");
    expect(-1, FINDING_NETWORK_NONE_KIND, FINDING_ERROR, "no network connects all 3 hosts",
           "see the findings and the table below");
    assert_non_null(strstr(text_str(&s.matrix), "node 2 (gamma)"));
    assert_null(s.picks);
    assert_null(get(0, FINDING_PATH_OK_KIND));
    expect(1, FINDING_PATH_OK_KIND, FINDING_OK, "reaches all", "");
    assert_int_equal(hosts_check_worst(&s), FINDING_ERROR);
}

static void failures_of_one_network_do_not_hide_the_other(void **state)
{
    LS_UNUSED(state);
    world_set_all(&world, FAST, NET_BLACK_HOLE, 0, 0);
    world_to_hosts_check(3);
    judge();
    expect(0, FINDING_PATH_MTU_KIND, FINDING_WARNING, "MTU black hole from all other hosts",
           "ip link set dev eth0 mtu 1500");
    expect(-1, FINDING_NETWORK_OK_KIND, FINDING_OK, "selected network 10.78.0.0/24: eth1 on", "");
    assert_null(get(-1, FINDING_NETWORK_NONE_KIND));
}

static void slow_path_is_reported(void **state)
{
    LS_UNUSED(state);
    world_set(&world, 1, 0, FAST, NET_OK, 90, GBPS / 2);
    world_to_hosts_check(3);
    judge();
    expect(1, FINDING_PATH_SLOW_KIND, FINDING_NOTE, "bandwidth to alpha is 0.062 GB/s",
           "ethtool eth0");
    assert_null(get(0, FINDING_PATH_SLOW_KIND));
}

static void hosts_without_an_answer_are_left_out(void **state)
{
    LS_UNUSED(state);
    world_to_hosts_check(3);
    s.hosts[1].has_answered = s.hosts[1].has_facts = false;
    judge();
    expect(-1, FINDING_NETWORK_OK_KIND, FINDING_OK, "eth0 on alpha; ens3 on gamma", "");
    expect(-1, FINDING_SAME_OK_KIND, FINDING_OK, "2 hosts", "");
    assert_null(get(0, FINDING_PATH_NONE_KIND));
    assert_int_equal(s.paths[1].address, -1);
}

/* --- a starting machine that is no host --- */

static void unreachable_starting_machine_is_reported(void **state)
{
    net_report *report = &s.hosts[1].report;

    LS_UNUSED(state);
    world_to_hosts_check(3);
    s.has_start = true;
    s.start = world.offers[0];
    s.start.machine = 77;
    text_format(s.start.host, sizeof(s.start.host), "login");
    for (int i = 0; i < 3; i++) {
        report = &s.hosts[i].report;
        report->tries = ls_realloc(report->tries, (size_t)report->n + 1, sizeof(net_try));
        assert_non_null(report->tries);
        report->tries[report->n++] = (net_try){
            .peer = 3, .local = -1, .outcome = (uint8_t)(i == 1 ? NET_TIMED_OUT : NET_OK)};
    }
    judge();
    expect(1, FINDING_PATH_HERE_KIND, FINDING_ERROR,
           "cannot connect to this machine (login): eth0 10.77.0.10 timed out", "on this machine");
    assert_null(get(0, FINDING_PATH_HERE_KIND));
    expect(-1, FINDING_NETWORK_OK_KIND, FINDING_OK, "10.77.0.0/24", "");
}

/* --- hostile reports --- */

static void reports_that_match_no_offer_do_no_harm(void **state)
{
    LS_UNUSED(state);
    world_to_hosts_check(3);
    for (int i = 0; i < s.hosts[0].report.n; i++)
        s.hosts[0].report.tries[i].local = 9;
    for (int i = 0; i < s.hosts[1].report.n; i++) {
        s.hosts[1].report.tries[i].peer = (uint16_t)(4000 + i);
        s.hosts[1].report.tries[i].address = 15;
    }
    judge();
    expect(1, FINDING_PATH_NONE_KIND, FINDING_ERROR, "cannot connect to alpha", "ip address");
}

/* --- output --- */

static void findings_of_several_hosts_are_printed_once(void **state)
{
    text_buf text = {0};

    LS_UNUSED(state);
    world_to_hosts_check(3);
    for (int i = 0; i < 3; i++)
        finding_add(&s.hosts[i].found, FINDING_SHM_SMALL_KIND, FINDING_WARNING, "fix it",
                    i == 2 ? "64 KiB" : "64 MiB");
    finding_add(&s.hosts[0].found, FINDING_SHM_SMALL_KIND, FINDING_WARNING, "fix it", "64 MiB");
    judge();
    hosts_check_to_text(&s, FINDING_NOTE, &text);
    assert_ok(text_status(&text));
    assert_non_null(strstr(text_str(&text), "alpha, beta, gamma:\n  note     path-wrong: "));
    assert_non_null(
        strstr(text_str(&text), "alpha, beta:\n  warning  shm-small: 64 MiB\n           why: "));
    assert_non_null(strstr(text_str(&text), "gamma:\n  warning  shm-small: 64 KiB\n"));
    assert_non_null(strstr(text_str(&text), "3 of 3 hosts: 0 errors, 2 warnings, 1 note\n"));
    assert_null(strstr(text_str(&text), "network-ok"));
    assert_non_null(strstr(text_str(&text), "1.00  0.090"));
    text_free(&text);
    hosts_check_to_text(&s, FINDING_OK, &text);
    assert_non_null(strstr(text_str(&text), "all hosts together:\n  ok       same-ok: "));
    text_free(&text);
}

static void table_shows_the_failure_of_a_path(void **state)
{
    text_buf text = {0};

    LS_UNUSED(state);
    for (int a = FAST; a <= DOCKER; a++)
        world_set(&world, 1, 0, a, NET_TIMED_OUT, 0, 0);
    world_set(&world, 2, 1, FAST, NET_OK, 123, 0);
    world_to_hosts_check(3);
    s.hosts[2].offer.machine = s.hosts[0].offer.machine;
    judge();
    hosts_check_to_text(&s, FINDING_WARNING, &text);
    assert_non_null(strstr(text_str(&text), "\n  beta                      timed out       -"));
    assert_non_null(strstr(text_str(&text), "same machine"));
    text_free(&text);
}

static void json_has_hosts_findings_paths_and_network(void **state)
{
    text_buf text = {0};
    json_value *json = NULL;

    LS_UNUSED(state);
    world_to_hosts_check(3);
    s.hosts[1].clock = (clock_offset){.n = 8, .offset_ns = 2500 * MS, .round_trip_ns = 1 * MS};
    judge();
    hosts_check_to_json(&s, &text);
    assert_ok(json_parse(text_str(&text), text.length, "json", &json));
    assert_int_equal(json_size(json_get(json, "hosts")), 3);
    assert_string_equal(json_as_string(json_get(json_at(json_get(json, "hosts"), 2), "simd"), NULL),
                        "avx2 fma");
    assert_true(json_as_real(json_get(json_at(json_get(json, "hosts"), 1), "clock_ahead_s"), 0) ==
                2.5);
    assert_int_equal(json_size(json_get(json, "paths")), 6);
    assert_int_equal(json_as_int(json_get(json_at(json_get(json, "paths"), 0), "bytes_per_s"), 0),
                     8 * GBPS);
    assert_int_equal(json_size(json_get(json, "network")), 3);
    assert_string_equal(
        json_as_string(json_get(json_at(json_get(json, "network"), 2), "interface"), NULL), "ens3");
    assert_string_equal(
        json_as_string(json_get(json_at(json_get(json, "findings"), 0), "host"), NULL), "alpha");
    json_free(json);
    text_free(&text);
}

static void slowest_paths_of_many_hosts_are_listed(void **state)
{
    enum { MANY = 20 };
    char names[MANY][16];
    hosts_check many = {.n = MANY};
    text_buf text = {0};

    LS_UNUSED(state);
    many.hosts = ls_calloc(MANY, sizeof(*many.hosts));
    many.paths = ls_calloc((size_t)MANY * MANY, sizeof(*many.paths));
    assert_true(many.hosts != NULL && many.paths != NULL);
    for (int i = 0; i < MANY; i++) {
        many.hosts[i].name = text_format(names[i], sizeof(names[i]), "h%d", i);
        many.hosts[i].has_answered = true;
        finding_add(&many.hosts[i].found, FINDING_SHM_SMALL_KIND, FINDING_WARNING, "", "small");
        for (int k = 0; k < MANY; k++)
            many.paths[i * MANY + k] = (hosts_check_path){
                .outcome = NET_OK,
                .bytes_per_s = i == k ? 0 : (uint64_t)(1000000 * (1 + i + k * 30))};
    }
    hosts_check_to_text(&many, FINDING_NOTE, &text);
    assert_non_null(strstr(text_str(&text), "h0, h1, h2, h3, h4, h5, h6, h7 and 12 more:\n"));
    assert_non_null(strstr(text_str(&text), "slowest paths (--json lists all), bandwidth and "
                                            "round-trip latency:\n  h1 -> h0: 0.00 GB/s"));
    assert_non_null(strstr(text_str(&text), "\n  h5 -> h0: 0.01 GB/s"));
    assert_null(strstr(text_str(&text), "h6 -> h0"));
    hosts_check_free(&many);
    text_free(&text);
}

static void every_kind_of_several_hosts_is_provoked_by_a_test(void **state)
{
    static const finding_kind elsewhere[] = {FINDING_HOST_UNSTARTED_KIND, FINDING_HOST_LOST_KIND,
                                             FINDING_HOST_FOLDER_KIND};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(elsewhere); i++)
        seen[elsewhere[i]] = true; /* in test_hosts_check_run.c */
    for (int i = FINDING_HOSTS_FIRST; i < FINDING_FILES_FIRST; i++)
        if (!seen[i])
            fail_msg("no test provokes %s", finding_id((finding_kind)i));
}

/* --- messages --- */

static frame frame_of(uint32_t type, const wire_writer *w)
{
    return (frame){.type = type, .body = w->data, .bytes = w->bytes};
}

static void messages_arrive_as_they_were_sent(void **state)
{
    const hosts_check_facts facts = {
        .is_uninstalled = true, .version = "1", .simd = "avx2", .torch = "2"};
    const hosts_check_time when = {.number = 7, .received_ns = 8, .sent_ns = 9};
    const finding one = {.kind = FINDING_SHM_SMALL_KIND,
                         .severity = FINDING_WARNING,
                         .what = (char *)(uintptr_t) "it is\033 small",
                         .fix = (char *)(uintptr_t) "fix it"};
    hosts_check_facts facts_read;
    hosts_check_time when_read;
    findings list = {0};
    wire_writer w = {0};
    frame f;

    LS_UNUSED(state);
    hosts_check_facts_write(&w, &facts);
    f = frame_of(HOSTS_CHECK_FACTS, &w);
    assert_ok(hosts_check_facts_read(&f, &facts_read));
    assert_memory_equal(&facts, &facts_read, sizeof(facts));
    wire_writer_reset(&w);
    hosts_check_time_write(&w, &when);
    f = frame_of(HOSTS_CHECK_TIME, &w);
    assert_ok(hosts_check_time_read(&f, &when_read));
    assert_true(when_read.number == 7 && when_read.received_ns == 8 && when_read.sent_ns == 9);
    wire_writer_reset(&w);
    hosts_check_finding_write(&w, &one);
    f = frame_of(HOSTS_CHECK_FINDING, &w);
    assert_ok(hosts_check_finding_read(&f, &list));
    assert_int_equal(list.n, 1);
    assert_int_equal(list.items[0].kind, FINDING_SHM_SMALL_KIND);
    assert_string_equal(list.items[0].what, "it is? small");
    f.bytes--;
    assert_status(hosts_check_finding_read(&f, &list), LS_EPROTO);
    findings_free(&list);
    wire_writer_free(&w);
}

/* Others may take longer: it waits for its network tests until they have. */
static void a_host_that_has_checked_itself_may_be_silent(void **state)
{
    const agent_hosts_spec hosts = {.own = 0};
    const hosts_check_options opt = {.hosts = &hosts};
    const hosts_check_facts facts = {.version = "1"};
    hosts_check_host result = {0};
    hosts_check out = {.hosts = &result};
    struct hosts_check_run run = {.opt = &opt, .out = &out, .n = 1};
    run_host host = {.run = &run, .has_offer = true};
    wire_writer w = {0};
    frame f;

    LS_UNUSED(state);
    run.list = &host;
    assert_ok(poller_create(&run.loop));
    hosts_check_facts_write(&w, &facts);
    f = frame_of(HOSTS_CHECK_FACTS, &w);
    assert_ok(hosts_check_take_message(&run, 0, &f));
    assert_true(host.limit.is_set);
    wire_writer_reset(&w);
    wire_write_text(&w, "");
    f = frame_of(HOSTS_CHECK_LOCAL_DONE, &w);
    assert_ok(hosts_check_take_message(&run, 0, &f));
    assert_false(host.limit.is_set);
    poller_timer_cancel(&run.turn);
    poller_destroy(run.loop);
    wire_writer_free(&w);
}

static void findings_of_unknown_kind_are_dropped(void **state)
{
    findings list = {0};
    wire_writer w = {0};
    frame f;

    LS_UNUSED(state);
    wire_write_text(&w, "warp-core");
    wire_write_u8(&w, FINDING_ERROR);
    wire_write_text(&w, "breach");
    wire_write_text(&w, "");
    f = frame_of(HOSTS_CHECK_FINDING, &w);
    assert_ok(hosts_check_finding_read(&f, &list));
    assert_int_equal(list.n, 0);
    wire_writer_free(&w);
}

static void orders_carry_their_options(void **state)
{
    char *words[] = {(char *)(uintptr_t) "lockstep", NULL};
    hosts_check_request given = {.n_ranks = 8,
                                 .master_port = 29500,
                                 .tries_gpus = true,
                                 .base = {.node = 3,
                                          .n_nodes = 5,
                                          .n_ranks = 8,
                                          .host = "h",
                                          .folder = "/f",
                                          .job = {.argv = words, .net = "eth0"}}};
    static hosts_check_request got; /* large */
    wire_writer w = {0};
    frame f;

    LS_UNUSED(state);
    hosts_check_request_write(&w, &given);
    f = frame_of(HOSTS_CHECK_REQUEST, &w);
    assert_ok(hosts_check_request_read(&f, &got));
    assert_true(got.n_ranks == 8 && got.master_port == 29500 && got.tries_gpus && !got.is_quick);
    assert_string_equal(got.base.job.net, "eth0");
    assert_int_equal(got.base.node, 3);
    launch_request_free(&got.base);
    f.type = REMOTE_LAUNCH_REQUEST;
    assert_status(hosts_check_request_read(&f, &got), LS_EPROTO);
    f.type = HOSTS_CHECK_REQUEST;
    w.data[0]++;
    assert_status(hosts_check_request_read(&f, &got), LS_EPROTO);
    assert_last_error("version");
    wire_writer_free(&w);
}

#define test(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answer_with_the_shortest_round_trip_gives_the_offset),
        cmocka_unit_test(clock_behind_is_apart_too),
        cmocka_unit_test(malformed_times_are_ignored),
        cmocka_unit_test(features_are_whole_words_in_a_fixed_order),
        test(good_hosts_have_a_network_and_equal_software),
        test(differences_are_reported_with_their_hosts),
        test(different_pythons_are_reported),
        test(build_of_a_copied_agent_is_not_compared),
        test(wrong_clock_is_reported_with_its_consequences),
        test(wrong_clock_is_fixed_through_srun_in_an_allocation),
        test(unreachable_address_is_fixed_by_its_route),
        test(unreachable_host_leaves_no_network),
        test(failures_of_one_network_do_not_hide_the_other),
        test(slow_path_is_reported),
        test(hosts_without_an_answer_are_left_out),
        test(unreachable_starting_machine_is_reported),
        test(reports_that_match_no_offer_do_no_harm),
        test(findings_of_several_hosts_are_printed_once),
        test(table_shows_the_failure_of_a_path),
        test(json_has_hosts_findings_paths_and_network),
        cmocka_unit_test(slowest_paths_of_many_hosts_are_listed),
        cmocka_unit_test(every_kind_of_several_hosts_is_provoked_by_a_test),
        cmocka_unit_test(messages_arrive_as_they_were_sent),
        cmocka_unit_test(a_host_that_has_checked_itself_may_be_silent),
        cmocka_unit_test(findings_of_unknown_kind_are_dropped),
        cmocka_unit_test(orders_carry_their_options),
    };

    return cmocka_run_group_tests_name("hosts_check", tests, NULL, NULL);
}
