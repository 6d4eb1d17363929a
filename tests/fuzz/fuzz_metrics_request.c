/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_metrics_request.c - arbitrary bytes as a request at --metrics-port. It ends at the latest
 * when the buffer is full, gets one of four answers, and the same one whole or byte by byte.
 */
#include "fuzz/fuzz.h"

#include "launch/agent/agent_status.h"

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

/* "": it has not ended. */
static const char *answer_to(const char *request, size_t n)
{
    static const char *const refusals[] = {"400 Bad Request", "403 Forbidden", "404 Not Found",
                                           "405 Method Not Allowed"};
    const char *refusal;

    if (!metrics_request_ends(request, n, &refusal))
        return "";
    if (refusal == NULL) {
        must(text_starts(request, "GET /metrics ") || text_starts(request, "GET /metrics?"));
        return "200 OK";
    }
    for (size_t i = 0; i < LS_COUNT_OF(refusals); i++)
        if (text_equal(refusal, refusals[i]))
            return refusal;
    must(false);
    return "";
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char request[METRICS_REQUEST_MAX + 1];
    const size_t n = size < METRICS_REQUEST_MAX ? size : METRICS_REQUEST_MAX;
    const char *whole;
    const char *in_pieces = "";

    if (n > 0)
        memcpy(request, data, n);
    request[n] = '\0';
    whole = answer_to(request, n);
    must(n < METRICS_REQUEST_MAX || whole[0] != '\0');
    for (size_t i = 0; i < n && in_pieces[0] == '\0'; i++) {
        request[i] = (char)data[i];
        request[i + 1] = '\0';
        in_pieces = answer_to(request, i + 1);
    }
    must(text_equal(whole, in_pieces));
    return 0;
}
