/* SPDX-License-Identifier: Apache-2.0 */
/* test_reach.c - whether other hosts reach this one at a configured address. */
#include "base/unit.h"

#include "base/text.h"
#include "net/interface.h"
#include "net/reach.h"

#include <string.h>
#include <unistd.h>

static void addresses_are_classified(void **state)
{
    LS_UNUSED(state);
    assert_int_equal(net_reach_of("127.0.0.1:29500"), NET_REACH_LOOPBACK);
    assert_int_equal(net_reach_of("127.1.2.3"), NET_REACH_LOOPBACK);
    assert_int_equal(net_reach_of("localhost:29500"), NET_REACH_LOOPBACK);
    assert_int_equal(net_reach_of("[::1]:29500"), NET_REACH_LOOPBACK);
    assert_int_equal(net_reach_of("0.0.0.0:29500"), NET_REACH_WILDCARD);
    assert_int_equal(net_reach_of("[::]:29500"), NET_REACH_WILDCARD);
    assert_int_equal(net_reach_of("192.0.2.1:29500"), NET_REACH_ELSEWHERE);
    assert_int_equal(net_reach_of("[2001:db8::1]:29500"), NET_REACH_ELSEWHERE);
    assert_int_equal(net_reach_of("name.invalid:29500"), NET_REACH_OK); /* unknown name */
}

static void addresses_of_all_interfaces_are_local(void **state)
{
    net_interface found[16];
    char text[NET_ADDRESS_TEXT_MAX];
    int n;

    LS_UNUSED(state);
    assert_ok(net_interfaces(NULL, found, LS_COUNT_OF(found), &n));
    for (int i = 0; i < n; i++)
        assert_int_equal(net_reach_of(net_address_text(text, sizeof(text), &found[i].address)),
                         NET_REACH_OK);
}

/* Debian resolves it to 127.0.1.1. */
static void host_name_is_local_with_and_without_its_domain(void **state)
{
    char host[256] = "";
    char place[512];

    LS_UNUSED(state);
    assert_int_equal(gethostname(host, sizeof(host) - 1), 0);
    if (text_starts(host, "localhost")) {
        print_message("this host has no name\n");
        skip();
    }
    host[strcspn(host, ".")] = 0;
    assert_true(net_reach_is_own_name(host));
    assert_true(net_reach_is_own_name(text_format(place, sizeof(place), "%s:29500", host)));
    assert_true(net_reach_is_own_name(text_format(place, sizeof(place), "%s.example.org", host)));
    assert_false(net_reach_is_own_name(text_format(place, sizeof(place), "%sx:29500", host)));
    assert_false(net_reach_is_own_name("localhost:29500"));
    assert_false(net_reach_is_own_name("[::1]:29500"));
}

static void warning_names_the_own_addresses_best_first(void **state)
{
    char warning[2 * NET_REACH_TEXT_MAX];
    char own[NET_REACH_TEXT_MAX];
    char host[NET_ADDRESS_TEXT_MAX];
    net_address best = {0};

    LS_UNUSED(state);
    net_reach_addresses(own, sizeof(own), &best);
    net_reach_warning(warning, sizeof(warning), "node 0", "127.0.0.1:29500");
    assert_true(text_starts(warning, "node 0 was given as 127.0.0.1:29500, a loopback address"));
    assert_non_null(strstr(warning, own[0] != 0 ? own : "no address for other machines"));
    if (own[0] != 0)
        assert_true(text_starts(own, net_address_host(host, sizeof(host), &best)));
    assert_null(strstr(own, "127.0.0.1"));
    net_reach_warning(warning, sizeof(warning), "rank 0", "192.0.2.1:29500");
    assert_non_null(strstr(warning, "192.0.2.1:29500, which is not an address of this machine"));
    assert_string_equal(net_reach_warning(warning, sizeof(warning), "node 0", "name.invalid:29500"),
                        "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_classified),
        cmocka_unit_test(addresses_of_all_interfaces_are_local),
        cmocka_unit_test(host_name_is_local_with_and_without_its_domain),
        cmocka_unit_test(warning_names_the_own_addresses_best_first),
    };

    return cmocka_run_group_tests_name("net reach", tests, NULL, NULL);
}
