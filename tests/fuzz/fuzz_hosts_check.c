/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_hosts_check.c - the messages of a check of several hosts: the first byte selects the
 * message. What a decoder accepts is encoded again and must read the same; reports are judged;
 * times and /proc/cpuinfo are passed on to the functions that use them.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "diagnose/hosts/hosts_check.h"
#include "diagnose/hosts/hosts_check_node.h"

static void must(bool condition)
{
    if (!condition)
        __builtin_trap();
}

static void check_request(const frame *f)
{
    static hosts_check_request o;
    wire_writer w = {0};

    if (hosts_check_request_read(f, &o) != LS_OK) {
        must(o.base.memory == NULL && ls_last_error()[0] != 0);
        return;
    }
    must(o.n_ranks >= 0 && o.master_port >= 0 && o.base.job.argv[0] != NULL);
    hosts_check_request_write(&w, &o);
    must(wire_writer_status(&w) == LS_OK);
    launch_request_free(&o.base);
    wire_writer_free(&w);
}

static void check_facts(const frame *f)
{
    hosts_check_facts facts;
    hosts_check_facts again;
    wire_writer w = {0};
    frame g = {.type = HOSTS_CHECK_FACTS};

    if (hosts_check_facts_read(f, &facts) != LS_OK)
        return;
    fuzz_must_be_printable(facts.kernel, "");
    fuzz_must_be_printable(facts.simd, "");
    hosts_check_facts_write(&w, &facts);
    g.body = w.data;
    g.bytes = w.bytes;
    must(hosts_check_facts_read(&g, &again) == LS_OK && strcmp(facts.torch, again.torch) == 0);
    wire_writer_free(&w);
}

static void check_finding(const frame *f)
{
    findings list = {0};
    text_buf text = {0};

    if (hosts_check_finding_read(f, &list) == LS_OK) {
        must(list.n <= 1);
        findings_to_json(&list, "host", &text);
        for (int i = 0; i < list.n; i++)
            fuzz_must_be_printable(list.items[i].what, "");
    }
    text_free(&text);
    findings_free(&list);
}

static void check_time(const frame *f)
{
    clock_offset c = {0};
    hosts_check_time t;

    if (hosts_check_time_read(f, &t) != LS_OK)
        return;
    if (clock_offset_add(&c, 1, t.received_ns, t.sent_ns, (int64_t)t.number + 2))
        must(c.n == 1 && c.round_trip_ns >= 0);
    (void)clock_offset_exceeds(&c, HOSTS_CHECK_CLOCK_LIMIT_NS);
}

static void check_peers(const frame *f)
{
    net_peers peers;

    if (wire_read_frame(f, &net_peers_table, &peers) == LS_OK)
        must(peers.n >= 0 && peers.n <= NET_PEERS_MAX);
    net_peers_free(&peers);
}

/* One host's report of three, and all that is made of it. */
static void check_report(const frame *f)
{
    static char name[] = "a\0b\0c";
    hosts_check s = {.n = 3, .has_start = true};
    text_buf text = {0};

    s.hosts = ls_calloc(3, sizeof(*s.hosts));
    must(s.hosts != NULL);
    for (int i = 0; i < 3; i++) {
        s.hosts[i].name = name + 2 * (ptrdiff_t)i;
        s.hosts[i].has_answered = true;
        s.hosts[i].offer.machine = (uint64_t)i + 1;
        s.hosts[i].offer.n = 2;
        for (int a = 0; a < 2; a++) {
            net_interface *iface = &s.hosts[i].offer.at[a];

            text_format(iface->name, sizeof(iface->name), "eth%d", a);
            iface->prefix = 24;
            must(net_address_decode(a == 0 ? "10.0.0.1:1" : "[fd00::1]:1", &iface->address) ==
                 LS_OK);
        }
    }
    s.start = s.hosts[2].offer;
    if (wire_read_frame(f, &net_report_table, &s.hosts[0].report) == LS_OK &&
        hosts_check_judge(&s) == LS_OK) {
        hosts_check_to_text(&s, FINDING_OK, &text);
        hosts_check_to_json(&s, &text);
        must(text_status(&text) == LS_OK);
    }
    text_free(&text);
    hosts_check_free(&s);
}

static void check_texts(const frame *f)
{
    char *copy = ls_calloc(f->bytes + 1, 1);
    char text[256];
    uint32_t number;
    net_offer offer;

    must(copy != NULL);
    memcpy(copy, f->body, f->bytes);
    hosts_check_simd_text(copy, text, sizeof(text));
    fuzz_must_be_printable(text, "");
    if (hosts_check_text_read(f, text, sizeof(text)) == LS_OK)
        fuzz_must_be_printable(text, "");
    if (wire_read_frame(f, &net_offer_table, &offer) == LS_OK)
        must(offer.n >= 0 && offer.n <= NET_ADDRESSES_MAX);
    (void)!hosts_check_number_read(f, &number);
    ls_free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const checks[])(const frame *f) = {check_request, check_facts, check_finding,
                                                     check_time,    check_peers, check_report,
                                                     check_texts};
    frame f = {.type = HOSTS_CHECK_REQUEST};

    if (size < 1 || size > 65536)
        return 0;
    f.body = data + 1;
    f.bytes = size - 1;
    checks[data[0] % LS_COUNT_OF(checks)](&f);
    return 0;
}
