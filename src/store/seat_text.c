/* SPDX-License-Identifier: Apache-2.0 */
/* seat_text.c - see seat_text.h. */
#include "store/seat_text.h"

#include "base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char refused[] = "refused ";

const char *seat_answer_key(char key[SEAT_KEY_BYTES], int member, uint64_t number)
{
    return text_format(key, SEAT_KEY_BYTES, "seat/%d/%" PRIu64, member, number);
}

const char *seat_call_key(char key[SEAT_KEY_BYTES], int64_t roster)
{
    return text_format(key, SEAT_KEY_BYTES, "call/%" PRId64, roster);
}

const char *seat_checked_key(char key[SEAT_KEY_BYTES], int member, uint64_t number)
{
    return text_format(key, SEAT_KEY_BYTES, "checked/%d/%" PRIu64, member, number);
}

void seat_write_report(const seat_report *r, char key[SEAT_KEY_BYTES], char text[SEAT_KEY_BYTES])
{
    text_format(key, SEAT_KEY_BYTES, "%s/%d",
                r->is_ready   ? "ready"
                : r->is_check ? "check"
                              : "ask",
                r->member);
    if (r->is_ready)
        text_format(text, SEAT_KEY_BYTES, "1");
    else if (r->is_check)
        text_format(text, SEAT_KEY_BYTES, "%" PRIu64, r->number);
    else
        text_format(text, SEAT_KEY_BYTES, "%" PRId64 " %" PRIu64 " %d", r->roster, r->number,
                    r->has_state);
}

const char *seat_write_answer(const seat_answer *a, char text[SEAT_TEXT_BYTES])
{
    return text_format(text, SEAT_TEXT_BYTES, "seat %" PRId64 " %d %d %" PRIu32 " %d %s", a->roster,
                       a->rank, a->size, a->generation, a->port, a->unix_url);
}

/* Reads the number at *at and the character `behind` it, 0: the end of the text, and moves *at past
 * both. */
static bool take_number(const char **at, char behind, int64_t least, int64_t most, int64_t *out)
{
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *out = strtoll(*at, &end, 10);
    if (errno != 0 || *out < least || *out > most || *end != behind)
        return false;
    *at = behind != 0 ? end + 1 : end;
    return true;
}

bool seat_read_report(const char *key, const char *text, seat_report *out)
{
    int64_t member;
    int64_t number;
    int64_t has_state;

    *out = (seat_report){.is_ready = text_starts(key, "ready/"),
                         .is_check = text_starts(key, "check/")};
    if (!out->is_ready && !out->is_check && !text_starts(key, "ask/"))
        return false;
    key = strchr(key, '/') + 1;
    if (!take_number(&key, 0, 0, INT32_MAX, &member))
        return false;
    out->member = (int)member;
    if (out->is_ready)
        return true;
    if (out->is_check && !take_number(&text, 0, 1, INT64_MAX, &number))
        return false;
    if (out->is_check) {
        out->number = (uint64_t)number;
        return true;
    }
    if (!take_number(&text, ' ', 0, INT64_MAX, &out->roster) ||
        !take_number(&text, ' ', 1, INT64_MAX, &number) || !take_number(&text, 0, 0, 1, &has_state))
        return false;
    out->number = (uint64_t)number;
    out->has_state = has_state != 0;
    return true;
}

static bool read_seat(const char *text, seat_answer *out)
{
    int64_t rank;
    int64_t size;
    int64_t generation;
    int64_t port;

    if (!text_starts(text, "seat "))
        return false;
    text += strlen("seat ");
    if (!take_number(&text, ' ', 0, INT64_MAX, &out->roster) ||
        !take_number(&text, ' ', 0, INT32_MAX, &rank) ||
        !take_number(&text, ' ', rank + 1, INT32_MAX, &size) ||
        !take_number(&text, ' ', 0, UINT32_MAX, &generation) ||
        !take_number(&text, ' ', 0, UINT16_MAX, &port) || text[0] == 0 ||
        strlen(text) >= sizeof(out->unix_url))
        return false;
    out->rank = (int)rank;
    out->size = (int)size;
    out->generation = (uint32_t)generation;
    out->port = (int)port;
    text_format(out->unix_url, sizeof(out->unix_url), "%s", text);
    return true;
}

ls_status seat_read_answer(const char *text, seat_answer *out)
{
    char why[SEAT_TEXT_BYTES];

    *out = (seat_answer){.roster = 0};
    if (text_starts(text, refused)) {
        text_printable(why, sizeof(why), text + strlen(refused));
        return ls_fail(LS_ECANCELED, "%s", why);
    }
    if (read_seat(text, out))
        return LS_OK;
    return ls_fail(LS_EPROTO, "the launcher's answer for a place in the job is malformed");
}
