/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_seat_text.c - what an elastic job's processes and its launcher read from the store of
 * members: a report, whose key ends at the first 0 byte, and an answer. An accepted one is bounded,
 * and written and read again it is the same.
 */
#include "fuzz/fuzz.h"

#include "base/status.h"
#include "store/seat_text.h"

#define INPUT_MAX 1024

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

static void check_report(const char *key, const char *text)
{
    char key_again[SEAT_KEY_BYTES];
    char text_again[SEAT_KEY_BYTES];
    seat_report first;
    seat_report second;

    if (!seat_read_report(key, text, &first))
        return;
    must(first.member >= 0 && first.roster >= 0 && (first.is_ready || first.number > 0));
    seat_write_report(&first, key_again, text_again);
    must(seat_read_report(key_again, text_again, &second));
    must(first.member == second.member && first.is_ready == second.is_ready &&
         first.is_check == second.is_check && first.roster == second.roster &&
         first.number == second.number && first.has_state == second.has_state);
}

static void check_answer(const char *text)
{
    char again[SEAT_TEXT_BYTES];
    seat_answer first;
    seat_answer second;
    const ls_status st = seat_read_answer(text, &first);

    if (st != LS_OK) {
        must(st == LS_ECANCELED || st == LS_EPROTO);
        fuzz_must_be_printable(ls_last_error(), "");
        return;
    }
    must(first.rank >= 0 && first.rank < first.size && first.port >= 0 && first.port <= 65535);
    must(seat_read_answer(seat_write_answer(&first, again), &second) == LS_OK);
    must(first.roster == second.roster && first.rank == second.rank && first.size == second.size &&
         first.generation == second.generation && first.port == second.port &&
         strcmp(first.unix_url, second.unix_url) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char input[INPUT_MAX + 1];

    if (size == 0 || size > INPUT_MAX)
        return 0;
    memcpy(input, data, size);
    input[size] = 0;
    check_answer(input);
    check_report(input, strlen(input) < size ? input + strlen(input) + 1 : "");
    return 0;
}
