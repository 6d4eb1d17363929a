/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join_pmi.c - the hub's address by way of a starter that keeps words for its ranks: PMI-1 or PMIx.
 * Rank 0 serves the hub and puts up where, with a random name for this meeting; all wait for each
 * other; the others read it. The key is the user's, derived for that name.
 */
#include "comm/join_internal.h"

#include "base/log.h"
#include "base/text.h"
#include "comm/pmi_client.h"
#include "comm/pmix_client.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#define KEY_BYTES   64
#define NONCE_BYTES 33
#define VALUE_BYTES PMI_CLIENT_VALUE_BYTES
#define REASON_MOST 400

/* What the two have in common. */
typedef struct board {
    void *self;
    const char *space; /* the job's name there */
    char key[KEY_BYTES];
    ls_status (*put)(void *self, const char *key, const char *value);
    ls_status (*wait_for_all)(void *self); /* then all can be read that was put */
    ls_status (*get)(void *self, const char *key, char *value, size_t n);
} board;

static ls_status derive(join *j, const join_settings *s, const board *b, const char *nonce)
{
    char what[PMI_CLIENT_SPACE_BYTES + NONCE_BYTES + 8];

    text_format(what, sizeof(what), "pmi|%s|%s", b->space, nonce);
    join_derive_job(what, j->id.job);
    return join_derive_key(j, s, what);
}

static ls_status serve(join *j, const join_settings *s, const board *b, char value[VALUE_BYTES])
{
    char text[NET_ADDRESS_TEXT_MAX];
    char nonce[NONCE_BYTES];
    uint64_t random[2];
    net_address at;

    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return ls_fail_errno("random bytes for a meeting");
    text_format(nonce, sizeof(nonce), "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    LS_TRY(join_interface_address(s->iface, &at));
    LS_TRY(derive(j, s, b, nonce));
    LS_TRY(join_serve_hub(j, s, &at));
    text_format(value, VALUE_BYTES, "%s,%s", nonce,
                net_address_text(text, sizeof(text), &j->hub_address));
    return LS_OK;
}

/* Also where there is no hub, so that nobody waits for one: then the value is why. */
static ls_status publish(join *j, const join_settings *s, const board *b)
{
    char kept[LS_ERROR_BYTES] = "!";
    char value[VALUE_BYTES];
    ls_status told;
    const ls_status st = serve(j, s, b, value);

    if (st == LS_OK)
        return b->put(b->self, b->key, value);
    ls_error_save(kept);
    text_format(value, sizeof(value), "!%.*s", REASON_MOST, kept);
    text_printable(value, sizeof(value), value);
    told = b->put(b->self, b->key, value);
    if (told == LS_OK)
        told = b->wait_for_all(b->self);
    if (told != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "the other ranks are not told: %s", ls_last_error());
    ls_error_restore(kept);
    return st;
}

static ls_status find(join *j, const join_settings *s, const board *b)
{
    char value[VALUE_BYTES];
    char *comma;

    LS_TRY(b->get(b->self, b->key, value, sizeof(value)));
    if (value[0] == '!')
        return ls_fail(LS_EPEER, "rank 0 could not join: %s", value + 1);
    comma = strchr(value, ',');
    if (comma == NULL || comma - value != NONCE_BYTES - 1)
        return ls_fail(LS_EPROTO, "rank 0 has put up \"%.80s\"", value);
    *comma = '\0';
    LS_TRY(ls_context(net_address_decode(comma + 1, &j->hub_address), "rank 0's address"));
    return derive(j, s, b, value);
}

/* The goodbye to the board is only for those who have met: a starter ends the job when a process
 * goes without it, which is what the others need when this one could not join. */
static ls_status meet_at(join *j, const join_settings *s, const board *b)
{
    ls_status st = j->id.rank == 0 ? publish(j, s, b) : LS_OK;

    if (st == LS_OK)
        st = b->wait_for_all(b->self);
    if (st == LS_OK && j->id.rank != 0)
        st = find(j, s, b);
    if (st != LS_OK)
        return ls_context(st, "rank %d of %d", j->id.rank, j->id.size);
    j->hub_has_listened = true;
    return join_connect_to_hub(j, s);
}

/* With an MPI that will be the backend: it comes to the board after us. PMI hears one goodbye a
 * process, MPI's; PMIx counts them, but must not hear the last before MPI has come, so ours waits
 * for the end of the join. */
static bool is_shared(const join_settings *s)
{
    return text_starts(s->backend, "mpi:");
}

/* --- PMI-1 --- */

static ls_status put_pmi(void *self, const char *key, const char *value)
{
    return pmi_client_put(self, key, value);
}

static ls_status get_pmi(void *self, const char *key, char *value, size_t n)
{
    return pmi_client_get(self, key, value, n);
}

static ls_status wait_pmi(void *self)
{
    return pmi_client_barrier(self);
}

/* The first key that nobody has used yet: joins of this job before this one have left theirs. */
static ls_status find_key(pmi_client *c, char key[KEY_BYTES])
{
    char value[VALUE_BYTES];
    ls_status st = LS_OK;

    for (int n = 1; st == LS_OK; n++) {
        text_format(key, KEY_BYTES, "lockstep-hub-%d", n);
        st = pmi_client_get(c, key, value, sizeof(value));
    }
    return st == LS_ENOTFOUND ? pmi_client_barrier(c) : st; // all have looked
}

static ls_status meet_by_pmi(join *j, const join_settings *s)
{
    pmi_client c;
    board b = {
        .self = &c, .space = c.space, .put = put_pmi, .get = get_pmi, .wait_for_all = wait_pmi};

    LS_TRY(pmi_client_open(j->id.pmi_fd, s->deadline_ms, &c));
    LS_TRY(find_key(&c, b.key));
    LS_TRY(meet_at(j, s, &b));
    if (!is_shared(s))
        pmi_client_close(&c);
    return LS_OK;
}

/* --- PMIx --- */

static ls_status put_pmix(void *self, const char *key, const char *value)
{
    return pmix_client_put(self, key, value);
}

static ls_status get_pmix(void *self, const char *key, char *value, size_t n)
{
    return pmix_client_get(self, 0, key, value, n);
}

static ls_status wait_pmix(void *self)
{
    return pmix_client_fence(self);
}

static ls_status meet_by_pmix(join *j, const join_settings *s)
{
    pmix_client c;
    board b = {
        .self = &c, .space = c.space, .put = put_pmix, .get = get_pmix, .wait_for_all = wait_pmix};
    ls_status st = pmix_client_open(s->deadline_ms, &c);

    if (st == LS_ENOTFOUND)
        return ls_fail(LS_EINVAL, "%s; %s", ls_last_error(), j->id.place);
    if (st != LS_OK)
        return st;
    text_format(b.key, sizeof(b.key), "lockstep-hub-%d", c.n_opened);
    LS_TRY(meet_at(j, s, &b));
    j->has_pmix = is_shared(s);
    j->pmix = c;
    if (!j->has_pmix)
        pmix_client_close(&c);
    return LS_OK;
}

ls_status join_reach_by_pmi(join *j, const join_settings *s)
{
    j->hub_at_rank_0 = true;
    return j->id.hub_at == HUB_AT_PMI ? meet_by_pmi(j, s) : meet_by_pmix(j, s);
}
