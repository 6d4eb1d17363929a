/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seat_text.h - what the processes of an elastic job and the launcher write into the store of
 * members (comm/group/seat.c, launch/head/head_elastic.c). Pure.
 *
 *     key                 value                                              set by
 *     ask/MEMBER          "ROSTER NUMBER HAS_STATE"                          that process
 *     ready/MEMBER        any: it has the state of the training              that process
 *     check/MEMBER        "NUMBER": whether it is in the present roster      that process
 *     seat/MEMBER/NUMBER  "seat ROSTER RANK SIZE GENERATION PORT UNIX-URL",  the launcher
 *                         or "refused TEXT"
 *     checked/MEMBER/NUMBER  "ROSTER": the present one                       the launcher
 *     call/ROSTER         "1": its processes are to ask                      the launcher
 */
#ifndef LS_STORE_SEAT_TEXT_H
#define LS_STORE_SEAT_TEXT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEAT_KEY_BYTES  64
#define SEAT_TEXT_BYTES 256
#define SEAT_SAME_HUB   "-" /* seat_answer.unix_url: where the first hub was */

/* What a process reports to the launcher. */
typedef struct seat_report {
    int member;
    bool is_ready; /* ready/MEMBER */
    bool is_check; /* check/MEMBER; otherwise of ask/MEMBER */
    int64_t roster;
    uint64_t number; /* of the question, from 1; also of a check */
    bool has_state;
} seat_report;

/* A place in the group of a roster, and its hub: a unix socket, and a port where ranks run on other
 * nodes. */
typedef struct seat_answer {
    int64_t roster;
    int rank;
    int size;
    uint32_t generation;
    int port;
    char unix_url[128];
} seat_answer;

/* Each returns its buffer. */
const char *seat_answer_key(char key[SEAT_KEY_BYTES], int member, uint64_t number);
const char *seat_call_key(char key[SEAT_KEY_BYTES], int64_t roster);
const char *seat_checked_key(char key[SEAT_KEY_BYTES], int member, uint64_t number);

void seat_write_report(const seat_report *r, char key[SEAT_KEY_BYTES], char text[SEAT_KEY_BYTES]);
const char *seat_write_answer(const seat_answer *a, char text[SEAT_TEXT_BYTES]);

/* false: it is no report of a process. */
bool seat_read_report(const char *key, const char *text, seat_report *out);
/* LS_EPROTO: malformed; LS_ECANCELED: a refusal, whose text is that of the error. */
LS_MUST_USE ls_status seat_read_answer(const char *text, seat_answer *out);

#endif
