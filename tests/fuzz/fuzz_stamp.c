/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_stamp.c - operation stamps and causes from other processes: an accepted one is encoded to
 * the same bytes, and its text is printable.
 */
#include "fuzz/fuzz.h"

#include "hub/cause.h"
#include "hub/stamp.h"

#include <string.h>

static void check_stamp(const uint8_t *wire)
{
    uint8_t again[STAMP_BYTES];
    op_stamp stamp;
    op_stamp back;
    char text[160];

    if (stamp_decode(wire, &stamp) != LS_OK)
        return;
    fuzz_must_be_printable(stamp_text(text, sizeof(text), &stamp), "");
    if (strlen(text) == sizeof(text) - 1)
        __builtin_trap(); // cut
    stamp_encode(&stamp, again);
    if (stamp_decode(again, &back) != LS_OK || !stamp_equal(&stamp, &back) ||
        strcmp(stamp.site, back.site) != 0)
        __builtin_trap();
}

static void check_cause(const uint8_t *data, size_t size)
{
    wire_reader r = wire_reader_over(data, size);
    wire_writer w = {0};
    job_cause cause;
    job_cause back;

    cause_read(&r, &cause);
    fuzz_must_be_printable(cause.text, "");
    if (wire_reader_end(&r, "a cause") != LS_OK)
        return;
    cause_write(&w, &cause);
    r = wire_reader_over(w.data, w.bytes);
    cause_read(&r, &back);
    if (wire_reader_end(&r, "a cause") != LS_OK || memcmp(&cause, &back, sizeof(cause)) != 0)
        __builtin_trap();
    wire_writer_free(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= STAMP_BYTES)
        check_stamp(data);
    check_cause(data, size);
    return 0;
}
