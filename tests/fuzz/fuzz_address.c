/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_address.c - addresses, store urls and network filters as text. The text form of a parsed
 * address parses to the same address.
 */
#include "fuzz/fuzz.h"

#include <lockstep/store.h>

#include "net/address.h"
#include "net/interface.h"

#include <string.h>

static void check_address(const char *text)
{
    net_address a;
    net_address back;
    char shown[NET_ADDRESS_TEXT_MAX];

    if (net_address_decode(text, &a) != LS_OK)
        return;
    net_address_text(shown, sizeof(shown), &a);
    if (net_address_decode(shown, &back) != LS_OK || !net_address_equal(&a, &back))
        __builtin_trap();
}

static void check_filter(const char *text)
{
    net_interface face = {.name = "eth0", .prefix = 24};
    bool passes;

    if (net_address_decode("10.77.0.5:0", &face.address) != LS_OK)
        __builtin_trap();
    if (net_interface_passes(text, &face, &passes) != LS_OK && strlen(ls_last_error()) == 0)
        __builtin_trap();
}

/* Only schemes without another process or a name look-up. */
static void check_url(const char *text)
{
    ls_store *s = NULL;

    if (strncmp(text, "tcp://", 6) == 0 || strncmp(text, "unix:", 5) == 0 ||
        strncmp(text, "file://", 7) == 0)
        return;
    if (ls_store_open(text, NULL, &s) == LS_OK && strncmp(text, "mem:", 4) != 0)
        __builtin_trap();
    ls_store_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[512];

    if (size >= sizeof(text))
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    check_address(text);
    check_filter(text);
    check_url(text);
    return 0;
}
