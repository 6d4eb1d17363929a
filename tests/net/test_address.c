/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_address.c - socket addresses and network interfaces: text forms, name look-ups,
 * classification, and the filters of interfaces.
 */
#include "base/unit.h"

#include "base/text.h"
#include "net/address.h"
#include "net/interface.h"

#include <netdb.h>

static void text_forms_come_back_unchanged(void **state)
{
    static const char *const texts[] = {
        "tcp://10.0.0.1:80",         "tcp://127.0.0.1:0",  "tcp://[::1]:65535",
        "tcp://[2001:db8::5]:29500", "unix:@lockstep-hub", "unix:/tmp/a socket",
    };
    net_address a;
    char text[NET_ADDRESS_TEXT_MAX];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(texts); i++) {
        assert_ok(net_address_decode(texts[i], &a));
        assert_string_equal(net_address_text(text, sizeof(text), &a), texts[i]);
    }
    a = (net_address){0};
    assert_string_equal(net_address_text(text, sizeof(text), &a), "none");
}

static void longest_forms_fit_the_text(void **state)
{
    char path[200] = "unix:@";
    net_address a;
    char text[NET_ADDRESS_TEXT_MAX];

    LS_UNUSED(state);
    memset(path + 6, 'x', 106);
    assert_ok(net_address_decode(path, &a));
    assert_string_equal(net_address_text(text, sizeof(text), &a), path);
    path[6 + 106] = 'x';
    assert_status(net_address_decode(path, &a), LS_EINVAL);
    assert_last_error("107 bytes");
}

static void hosts_are_parsed_in_all_spellings(void **state)
{
    static const struct {
        const char *text;
        int default_port;
        const char *means;
    } cases[] = {
        {"10.0.0.1:80", NET_PORT_REQUIRED, "tcp://10.0.0.1:80"},
        {"10.0.0.1", 29500, "tcp://10.0.0.1:29500"},
        {"::1", 5, "tcp://[::1]:5"},
        {"[::1]", 5, "tcp://[::1]:5"},
        {"[::1]:6", 5, "tcp://[::1]:6"},
        {"tcp://:7", NET_PORT_REQUIRED, "tcp://[::]:7"},
        {"*:7", NET_PORT_REQUIRED, "tcp://[::]:7"},
        {"0.0.0.0:0", NET_PORT_REQUIRED, "tcp://0.0.0.0:0"},
    };
    net_address a;
    char text[NET_ADDRESS_TEXT_MAX];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        assert_ok(net_address_parse(cases[i].text, cases[i].default_port, &a));
        assert_string_equal(net_address_text(text, sizeof(text), &a), cases[i].means);
    }
}

static void bad_texts_are_refused_and_shown(void **state)
{
    static const struct {
        const char *text;
        const char *error;
    } cases[] = {
        {"", "empty"},
        {"tcp://", "empty"},
        {"10.0.0.1", "port is missing"},
        {"10.0.0.1:", "port must be"},
        {"10.0.0.1:65536", "port must be"},
        {"10.0.0.1:-1", "port must be"},
        {"10.0.0.1:+1", "port must be"},
        {"10.0.0.1: 1", "port must be"},
        {"10.0.0.1:1x", "port must be"},
        {"256.0.0.1:1", "not an IPv4"},
        {"10.0.1:1", "not an IPv4"},
        {"[10.0.0.1]:1", "brackets"},
        {"[::1", "[IPV6]:PORT"},
        {"[::1]x", "[IPV6]:PORT"},
        {"[::g]:1", "not an IPv6"},
        {"http://a:1", "expected tcp://"},
        {"tcp://a/b:1", "'/'"},
        {"unix:", "unix:@NAME"},
        {"unix:name", "unix:@NAME"},
        {"unix:@", "unix:@NAME"},
        {"host.name:1", "not a name"},
        {"bell\a:1", "bell?"},
    };
    net_address a;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        assert_status(net_address_decode(cases[i].text, &a), LS_EINVAL);
        assert_last_error(cases[i].error);
    }
}

static void names_are_looked_up_only_when_asked(void **state)
{
    net_address found[8];
    net_address one;
    int n = 0;

    LS_UNUSED(state);
    assert_ok(net_address_resolve("localhost:29500", NET_PORT_REQUIRED, found, 8, &n));
    assert_true(n >= 1 && n <= 8);
    for (int i = 0; i < n; i++) {
        assert_true(net_address_is_loopback(&found[i]));
        assert_int_equal(net_address_port(&found[i]), 29500);
    }
    assert_status(net_address_parse("no-such-host.invalid:1", NET_PORT_REQUIRED, &one),
                  LS_ENOTFOUND);
    assert_last_error("no-such-host.invalid");
}

static int flags_with_error; /* look-ups with these flags fail */

int __real_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);

int __wrap_getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    if ((hints->ai_flags & flags_with_error) != 0)
        return EAI_AGAIN;
    return __real_getaddrinfo(host, service, hints, found);
}

/* As the resolver of an IPv6-only machine, for a name that is 127.0.1.1 in /etc/hosts. */
static void name_of_a_family_without_address_is_resolved(void **state)
{
    net_address found[8];
    int n = 0;

    LS_UNUSED(state);
    flags_with_error = AI_ADDRCONFIG;
    assert_ok(net_address_resolve("localhost:29500", NET_PORT_REQUIRED, found, 8, &n));
    assert_true(n >= 1 && net_address_is_loopback(&found[0]));
    flags_with_error = 0;
}

static void name_that_is_not_resolved_has_no_address(void **state)
{
    net_address found[8];
    int n = 1;

    LS_UNUSED(state);
    assert_status(net_address_resolve("no-such-host.invalid:1", NET_PORT_REQUIRED, found, 8, &n),
                  LS_ENOTFOUND);
    assert_int_equal(n, 0);
    assert_last_error("cannot resolve no-such-host.invalid: ");
    assert_last_error("; check the name (getent hosts no-such-host.invalid), or use an IP address");
    n = 1;
    assert_status(net_address_resolve("host:no-port", NET_PORT_REQUIRED, found, 8, &n), LS_EINVAL);
    assert_int_equal(n, 0);
}

static net_address parsed(const char *text)
{
    net_address a;

    assert_ok(net_address_decode(text, &a));
    return a;
}

static void loopback_and_wildcard_addresses_differ(void **state)
{
    const net_address loopback[] = {parsed("127.0.0.1:1"), parsed("127.3.2.1:1"), parsed("[::1]:1"),
                                    parsed("[::ffff:127.0.0.1]:1"), parsed("unix:@x")};
    const net_address others[] = {parsed("128.0.0.1:1"), parsed("[::2]:1"), parsed("0.0.0.0:1"),
                                  parsed("[::]:1"), parsed("[::ffff:10.0.0.1]:1")};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(loopback); i++)
        assert_true(net_address_is_loopback(&loopback[i]));
    for (size_t i = 0; i < LS_COUNT_OF(others); i++)
        assert_false(net_address_is_loopback(&others[i]));
    assert_true(net_address_is_any(&others[2]));
    assert_true(net_address_is_any(&others[3]));
    assert_false(net_address_is_any(&loopback[0]));
}

static void equality_looks_at_family_host_and_port(void **state)
{
    const net_address a = parsed("10.0.0.1:1");
    net_address b = parsed("10.0.0.1:2");
    net_address c;
    net_address d;

    LS_UNUSED(state);
    assert_false(net_address_equal(&a, &b));
    net_address_set_port(&b, 1);
    assert_true(net_address_equal(&a, &b));
    b = parsed("[::ffff:10.0.0.1]:1");
    assert_false(net_address_equal(&a, &b));
    c = parsed("unix:@a");
    d = parsed("unix:@ab");
    assert_false(net_address_equal(&c, &d));
    assert_ok(net_address_fresh_unix("test", &c));
    assert_ok(net_address_fresh_unix("test", &d));
    assert_false(net_address_equal(&c, &d));
}

/* --- interfaces --- */

static net_interface face(const char *name, const char *ip)
{
    net_interface f = {.prefix = 24};
    char text[80];

    text_format(f.name, sizeof(f.name), "%s", name);
    f.address = parsed(text_format(text, sizeof(text), strchr(ip, ':') ? "[%s]:0" : "%s:0", ip));
    return f;
}

static bool passes(const char *filter, const net_interface *f)
{
    bool result = false;

    assert_ok(net_interface_passes(filter, f, &result));
    return result;
}

static void filters_take_names_networks_and_exclusions(void **state)
{
    const net_interface eth0 = face("eth0", "10.77.0.5");
    const net_interface ib0 = face("ib0", "192.168.1.9");
    const net_interface six = face("eth0", "2001:db8::7");

    LS_UNUSED(state);
    assert_true(passes(NULL, &eth0));
    assert_true(passes("", &eth0));
    assert_true(passes("eth0", &eth0));
    assert_false(passes("eth0", &ib0));
    assert_false(passes("eth", &eth0));
    assert_true(passes("eth0,ib0", &ib0));
    assert_false(passes("^eth0", &eth0));
    assert_true(passes("^eth0", &ib0));
    assert_true(passes("10.77.0.0/24", &eth0));
    assert_false(passes("10.77.1.0/24", &eth0));
    assert_true(passes("10.77.0.0/22", &eth0));
    assert_true(passes("0.0.0.0/0", &ib0));
    assert_false(passes("^10.0.0.0/8", &eth0));
    assert_false(passes("10.77.0.0/24", &six));
    assert_true(passes("2001:db8::/32", &six));
    assert_false(passes("eth0,^10.0.0.0/8", &eth0));
    assert_true(passes("eth0,^10.0.0.0/8", &six));
}

static void invalid_filters_are_refused(void **state)
{
    static const char *const filters[] = {"^",      ",eth0",       "eth0,",           "10.0.0.0/33",
                                          "/8",     "10.0.0.x/8",  "10.0.0.0/",       "10.0.0.0/-1",
                                          "eth0,,", "2001::/129x", "name-of-16-bytes"};
    const net_interface eth0 = face("eth0", "10.77.0.5");
    bool result;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(filters); i++)
        assert_status(net_interface_passes(filters[i], &eth0, &result), LS_EINVAL);
}

static void own_addresses_are_listed_best_first(void **state)
{
    net_interface found[64];
    int n = -1;
    bool bridges = false;
    char text[1024];

    LS_UNUSED(state);
    assert_ok(net_interfaces(NULL, found, 64, &n));
    print_message("%s\n", net_interfaces_text(text, sizeof(text)));
    for (int i = 0; i < n; i++) {
        assert_false(net_address_is_loopback(&found[i].address));
        assert_int_equal(net_address_port(&found[i].address), 0);
        assert_true(found[i].prefix >= 0 && found[i].prefix <= 128);
        assert_true(found[i].mtu >= 68);
        assert_true(found[i].speed_mbps >= 0);
        assert_false(bridges && !found[i].is_bridge);
        bridges = found[i].is_bridge;
    }
    assert_ok(net_interfaces("lo", found, 64, &n)); // the user has named it
    assert_true(n >= 1);
    assert_true(net_address_is_loopback(&found[0].address));
}

static void interface_has_a_network(void **state)
{
    net_interface face = {.prefix = 20};
    net_address other;
    char text[64];

    LS_UNUSED(state);
    assert_ok(net_address_decode("10.77.18.5:80", &face.address));
    assert_string_equal(net_interface_network(text, sizeof(text), &face), "10.77.16.0/20");
    assert_ok(net_address_decode("10.77.31.255:1", &other));
    assert_true(net_interface_reaches(&face, &other));
    assert_ok(net_address_decode("10.77.32.0:1", &other));
    assert_false(net_interface_reaches(&face, &other));
    assert_ok(net_address_decode("[fd77::1]:1", &other));
    assert_false(net_interface_reaches(&face, &other));
    face = (net_interface){.prefix = 64, .address = other};
    assert_string_equal(net_interface_network(text, sizeof(text), &face), "fd77::/64");
    face.prefix = 128;
    assert_string_equal(net_interface_network(text, sizeof(text), &face), "fd77::1/128");
    face.prefix = 0;
    assert_string_equal(net_interface_network(text, sizeof(text), &face), "::/0");
}

static void a_host_has_one_value(void **state)
{
    LS_UNUSED(state);
    assert_int_not_equal(net_host_value(), 0);
    assert_int_equal(net_host_value(), net_host_value());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_forms_come_back_unchanged),
        cmocka_unit_test(longest_forms_fit_the_text),
        cmocka_unit_test(hosts_are_parsed_in_all_spellings),
        cmocka_unit_test(bad_texts_are_refused_and_shown),
        cmocka_unit_test(names_are_looked_up_only_when_asked),
        cmocka_unit_test(name_of_a_family_without_address_is_resolved),
        cmocka_unit_test(name_that_is_not_resolved_has_no_address),
        cmocka_unit_test(loopback_and_wildcard_addresses_differ),
        cmocka_unit_test(equality_looks_at_family_host_and_port),
        cmocka_unit_test(filters_take_names_networks_and_exclusions),
        cmocka_unit_test(invalid_filters_are_refused),
        cmocka_unit_test(own_addresses_are_listed_best_first),
        cmocka_unit_test(interface_has_a_network),
        cmocka_unit_test(a_host_has_one_value),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
