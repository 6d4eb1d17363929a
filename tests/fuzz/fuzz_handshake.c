/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_handshake.c - both sides of the handshake against arbitrary bytes, whole and in pieces: the
 * cuts must not change the result, and no peer without the key may succeed.
 */
#include "fuzz/fuzz.h"

#include "net/auth/handshake.h"

#include <string.h>

static handshake_claim claim = {.purpose = NET_PURPOSE_CONTROL,
                                .job = "0123456789abcdef",
                                .from = 1,
                                .to = HANDSHAKE_ANY_RANK,
                                .generation = 2};

/* Feeds all bytes in pieces of at most `piece`, and consumes the output as a socket would. */
static ls_status feed_all(handshake *h, const uint8_t *data, size_t size, size_t piece)
{
    size_t at = 0;

    while (at < size && h->state == HANDSHAKE_RUNNING) {
        size_t n = size - at < piece ? size - at : piece;
        size_t used;
        size_t out;
        const ls_status st = handshake_feed(h, data + at, n, &used);

        if (st != LS_OK)
            return st;
        handshake_output(h, &out);
        if (used == 0 && out == 0)
            __builtin_trap(); // it neither reads nor writes, and is not done
        handshake_sent(h, out);
        at += used;
    }
    return LS_OK;
}

static void check_side(bool is_server, const uint8_t *data, size_t size, size_t piece)
{
    static const net_key key = {.bytes = {1, 2, 3, 4, 5, 6, 7, 8}};
    handshake h[2];
    ls_status st[2];

    for (int i = 0; i < 2; i++) {
        const ls_status begun = is_server ? handshake_server(&h[i], &key, &claim, "peer")
                                          : handshake_client(&h[i], &key, &claim, "peer");
        size_t out;

        if (begun != LS_OK)
            __builtin_trap();
        handshake_output(&h[i], &out);
        handshake_sent(&h[i], out);
        st[i] = feed_all(&h[i], data, size, i == 0 ? SIZE_MAX : piece);
        if (h[i].state == HANDSHAKE_DONE)
            __builtin_trap();
    }
    if (st[0] != st[1] || h[0].state != h[1].state || h[0].step != h[1].step)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    claim.security = (net_security)(data[0] % (NET_ENCRYPT + 1));
    check_side(true, data + 1, size - 1, 1 + data[0] % 70);
    check_side(false, data + 1, size - 1, 1 + data[0] % 70);
    return 0;
}
