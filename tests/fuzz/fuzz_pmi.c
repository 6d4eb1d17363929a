/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_pmi.c - what ranks may send to PMI_FD. A line that starts with 0, 1 or 2 is from that rank, and so are the lines behind it.
 * Sent in long pieces or byte by byte, the ranks are told the same.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "launch/pmi.h"

#include <string.h>

enum { RANKS = 3, INPUT_MAX = 32 * 1024 };

typedef struct session {
    pmi *p;
    text_buf told[RANKS];
} session;

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

/* All that has been said so far is sent to everybody. */
static void send_all(session *s)
{
    for (int i = 0; i < RANKS; i++)
        while (pmi_hear(s->p, i, NULL, 0)) {
            text_buf *reply = &s->p->ranks[i].reply;
            must(reply->length > 0 && reply->data[reply->length - 1] == '\n');
            text_append_bytes(&s->told[i], reply->data, reply->length);
            pmi_sent(s->p, i, reply->length);
        }
}

static void say(session *s, int rank, const char *bytes, size_t n, size_t piece)
{
    for (size_t at = 0; at < n; at += piece) {
        (void)pmi_hear(s->p, rank, bytes + at, n - at < piece ? n - at : piece);
        send_all(s);
        must(s->p->ranks[rank].heard.length < 2 * PMI_LINE_MOST);
        must(s->p->ranks[rank].kept_bytes <= PMI_KEPT_MOST);
    }
}

/* Up to the next line that another rank may be the sender of. */
static size_t lines_of_one(const char *data, size_t size)
{
    size_t n = 1;

    while (n < size && !(data[n - 1] == '\n' && data[n] >= '0' && data[n] < '0' + RANKS))
        n++;
    return n;
}

static void play(session *s, const char *data, size_t size, size_t piece)
{
    *s = (session){0};
    must(pmi_create("job", RANKS, &s->p) == LS_OK);
    for (int rank = 0; size > 0;) {
        const bool chooses = data[0] >= '0' && data[0] < '0' + RANKS;
        const size_t n = lines_of_one(data, size);
        rank = chooses ? data[0] - '0' : rank;
        say(s, rank, data + chooses, n - chooses, piece);
        data += n;
        size -= n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    session whole;
    session cut;

    if (size > INPUT_MAX)
        return 0;
    play(&whole, (const char *)data, size, PMI_LINE_MOST);
    play(&cut, (const char *)data, size, 1);
    for (int i = 0; i < RANKS; i++) {
        const pmi_rank *a = &whole.p->ranks[i];
        const pmi_rank *b = &cut.p->ranks[i];
        must(text_equal(text_str(&whole.told[i]), text_str(&cut.told[i])));
        must(a->stage == b->stage && a->fault == b->fault && a->has_aborted == b->has_aborted &&
             a->kept_bytes == b->kept_bytes && text_equal(a->text, b->text));
        text_free(&whole.told[i]);
        text_free(&cut.told[i]);
    }
    pmi_destroy(whole.p);
    pmi_destroy(cut.p);
    return 0;
}
