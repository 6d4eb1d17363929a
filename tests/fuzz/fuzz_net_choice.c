/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_net_choice.c - network reports of nodes, from bytes to the selection. What is read is
 * written and read again with the same result; every selection ends with a network or with a text.
 */
#include "fuzz/fuzz.h"

#include "launch/network/net_choice.h"

#include <string.h>

#define NODES_MAX 6

static void check_same(const wire_writer *a, const wire_writer *b)
{
    if (a->bytes != b->bytes || memcmp(a->data, b->data, a->bytes) != 0)
        __builtin_trap();
}

static void check_offer(const net_offer *offer)
{
    wire_writer first = {0};
    wire_writer second = {0};
    wire_reader r;
    net_offer again;

    net_offer_write(&first, offer);
    r = wire_reader_over(first.data, first.bytes);
    net_offer_read(&r, &again);
    if (wire_reader_end(&r, "an offer") != LS_OK)
        __builtin_trap();
    net_offer_write(&second, &again);
    check_same(&first, &second);
    wire_writer_free(&first);
    wire_writer_free(&second);
}

static void check_pick(const net_pick *pick)
{
    static net_variable variables[NET_VARIABLES_MAX];
    wire_writer first = {0};
    wire_writer second = {0};
    wire_reader r;
    net_pick again;

    net_pick_write(&first, pick);
    r = wire_reader_over(first.data, first.bytes);
    net_pick_read(&r, &again);
    if (wire_reader_end(&r, "a pick") != LS_OK)
        __builtin_trap();
    net_pick_write(&second, &again);
    check_same(&first, &second);
    wire_writer_free(&first);
    wire_writer_free(&second);
    if (net_pick_variables(pick, NULL, false, variables) < 8)
        __builtin_trap();
}

static void check_choice(const net_offer *offers, const net_report *reports, int n)
{
    net_choice c;
    const ls_status st = net_choose(offers, reports, n, NULL, &c);

    if (st == LS_OK) {
        for (int i = 0; i < n; i++)
            check_pick(&c.picks[i]);
    } else if (c.picks != NULL || (st == LS_EPEER && c.text.length == 0)) {
        __builtin_trap();
    }
    net_choice_free(&c);
}

/*
 * Up to NODES_MAX nodes, each an offer and a report, or a single pick, as the first byte selects.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static net_offer offers[NODES_MAX];
    net_report reports[NODES_MAX] = {{0}};
    wire_reader r;
    int n = 0;

    if (size < 1 || size > 65536)
        return 0;
    r = wire_reader_over(data + 1, size - 1);
    if (data[0] % 2 == 1) {
        net_pick pick;

        net_pick_read(&r, &pick);
        if (!r.failed)
            check_pick(&pick);
        return 0;
    }
    while (n < NODES_MAX && r.at < r.bytes) {
        net_offer_read(&r, &offers[n]);
        if (r.failed)
            break;
        check_offer(&offers[n]);
        net_report_read(&r, &reports[n]);
        if (r.failed)
            break;
        n++;
    }
    if (n > 0)
        check_choice(offers, reports, n);
    for (int i = 0; i < n; i++)
        net_report_free(&reports[i]);
    return 0;
}
