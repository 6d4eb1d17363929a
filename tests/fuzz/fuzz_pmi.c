/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_pmi.c - requests of ranks on PMI_FD. A line that starts with 0, 1 or 2 is from that rank,
 * and so are the lines behind it. In long pieces or byte by byte, the ranks receive the same
 * replies, and another node receives what they put.
 *
 * Behind a K: the keys that another node sends.
 */
#include "fuzz/fuzz.h"

#include "base/alloc.h"
#include "launch/pmi/pmi.h"

#include <string.h>

enum { RANKS = 3, INPUT_MAX = 32 * 1024 };

typedef struct session {
    pmi *p;
    text_buf received[RANKS];
} session;

static void must(bool is_true)
{
    if (!is_true)
        __builtin_trap();
}

/* Sends all pending replies. */
static void send_all(session *s)
{
    if (pmi_take_full_barrier(s->p))
        pmi_release_barrier(s->p);
    for (int i = 0; i < RANKS; i++)
        while (pmi_receive(s->p, i, NULL, 0)) {
            text_buf *reply = &s->p->ranks[i].reply;
            must(reply->length > 0 && reply->data[reply->length - 1] == '\n');
            text_append_bytes(&s->received[i], reply->data, reply->length);
            pmi_sent(s->p, i, reply->length);
        }
}

static void say(session *s, int rank, const char *bytes, size_t n, size_t piece)
{
    for (size_t at = 0; at < n; at += piece) {
        (void)pmi_receive(s->p, rank, bytes + at, n - at < piece ? n - at : piece);
        send_all(s);
        must(s->p->ranks[rank].request.length < 2 * PMI_LINE_MOST);
        must(s->p->ranks[rank].key_bytes <= PMI_RANK_MOST);
    }
}

/* Up to the next line that may be from another rank. */
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
    must(pmi_create("job", RANKS, RANKS + 1, "(vector,(0,1,3),(1,1,1))", &s->p) == LS_OK);
    for (int rank = 0; size > 0;) {
        const bool chooses = data[0] >= '0' && data[0] < '0' + RANKS;
        const size_t n = lines_of_one(data, size);
        rank = chooses ? data[0] - '0' : rank;
        say(s, rank, data + chooses, n - chooses, piece);
        data += n;
        size -= n;
    }
}

/* A node that has received all keys of `from`. */
static pmi *make_other(pmi *from)
{
    wire_writer w = {0};
    wire_reader r;
    pmi *p = NULL;

    must(pmi_create("job", 1, RANKS + 1, "", &p) == LS_OK);
    while (pmi_write_new_keys(from, &w, 1000)) {
        must(wire_writer_status(&w) == LS_OK);
        r = wire_reader_over(w.data, w.bytes);
        must(pmi_read_keys(p, &r) == LS_OK);
        wire_writer_reset(&w);
    }
    must(from->n_new == 0 && p->n_new == 0);
    wire_writer_free(&w);
    return p;
}

static size_t sum_stored(const pmi *p)
{
    size_t sum = p->remote_bytes;

    for (int i = 0; i < p->n_ranks; i++)
        sum += p->ranks[i].key_bytes;
    return sum;
}

/* Arbitrary keys can be sent to ranks as lines. */
static void learn(const uint8_t *data, size_t size)
{
    static const char get[] = "cmd=get key=k\n";
    wire_reader r = wire_reader_over(data, size);
    pmi *p = NULL;

    must(pmi_create("job", 1, 2, "(vector,(0,2,1))", &p) == LS_OK);
    must(pmi_read_keys(p, &r) == LS_OK || ls_last_error()[0] != 0);
    must(p->remote_bytes <= PMI_REMOTE_MOST && p->n_new == 0);
    must(pmi_receive(p, 0, get, strlen(get)));
    must(strcspn(p->ranks[0].reply.data, "\n") == p->ranks[0].reply.length - 1);
    pmi_destroy(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    session whole;
    session cut;
    pmi *other;

    if (size > INPUT_MAX)
        return 0;
    if (size > 0 && data[0] == 'K') {
        learn(data + 1, size - 1);
        return 0;
    }
    play(&whole, (const char *)data, size, PMI_LINE_MOST);
    play(&cut, (const char *)data, size, 1);
    for (int i = 0; i < RANKS; i++) {
        const pmi_rank *a = &whole.p->ranks[i];
        const pmi_rank *b = &cut.p->ranks[i];
        must(text_equal(text_str(&whole.received[i]), text_str(&cut.received[i])));
        must(a->state == b->state && a->fault == b->fault && a->has_aborted == b->has_aborted &&
             a->key_bytes == b->key_bytes && text_equal(a->text, b->text));
        text_free(&whole.received[i]);
        text_free(&cut.received[i]);
    }
    other = make_other(whole.p);
    must(other->remote_bytes == sum_stored(whole.p));
    pmi_destroy(other);
    pmi_destroy(whole.p);
    pmi_destroy(cut.p);
    return 0;
}
