/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join_pmi.c - finds the hub through the key-value space of a launcher, PMI-1 or PMIx; join_hub.c
 * calls it. Rank 0 serves the hub and puts its address there with a nonce; after a barrier the
 * other ranks read them. The hub's key is derived from the user's key and the nonce.
 */
#include "comm/join/join_internal.h"

#include "base/log.h"
#include "base/text.h"
#include "comm/join/pmi_client.h"
#include "comm/join/pmix_client.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

#define KEY_BYTES   64
#define NONCE_BYTES 33
#define VALUE_BYTES PMI_CLIENT_VALUE_BYTES
#define REASON_MOST 400

/* The key-value space of PMI-1 or of PMIx; the other pointer is NULL. */
typedef struct key_space {
    pmi_client *pmi;
    pmix_client *pmix;
    const char *job; /* its name there */
    char key[KEY_BYTES];
} key_space;

static ls_status put(const key_space *k, const char *value)
{
    return k->pmi != NULL ? pmi_client_put(k->pmi, k->key, value)
                          : pmix_client_put(k->pmix, k->key, value);
}

static ls_status get(const key_space *k, char value[VALUE_BYTES])
{
    return k->pmi != NULL ? pmi_client_get(k->pmi, k->key, value, VALUE_BYTES)
                          : pmix_client_get(k->pmix, 0, k->key, value, VALUE_BYTES);
}

/* Then the values of all ranks can be read. */
static ls_status barrier(const key_space *k)
{
    return k->pmi != NULL ? pmi_client_barrier(k->pmi) : pmix_client_fence(k->pmix);
}

static ls_status derive(join *j, const join_settings *s, const key_space *k, const char *nonce)
{
    char what[PMI_CLIENT_SPACE_BYTES + NONCE_BYTES + 8];

    text_format(what, sizeof(what), "pmi|%s|%s", k->job, nonce);
    join_derive_job(what, j->id.job);
    return join_derive_key(j, s, what);
}

static ls_status serve(join *j, const join_settings *s, const key_space *k, char value[VALUE_BYTES])
{
    char text[NET_ADDRESS_TEXT_MAX];
    char nonce[NONCE_BYTES];
    uint64_t random[2];
    net_address at;

    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return ls_fail_errno("random bytes for the hub's key");
    text_format(nonce, sizeof(nonce), "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    LS_TRY(join_interface_address(s->iface, &at));
    LS_TRY(derive(j, s, k, nonce));
    LS_TRY(join_serve_hub(j, s, &at));
    text_format(value, VALUE_BYTES, "%s,%s", nonce,
                net_address_text(text, sizeof(text), &j->hub_address));
    return LS_OK;
}

/* Without a hub the value is the reason, which ends the other ranks' wait. */
static ls_status publish(join *j, const join_settings *s, const key_space *k)
{
    char kept[LS_ERROR_BYTES] = "!";
    char value[VALUE_BYTES];
    ls_status sent;
    const ls_status st = serve(j, s, k, value);

    if (st == LS_OK)
        return put(k, value);
    ls_error_save(kept);
    text_format(value, sizeof(value), "!%.*s", REASON_MOST, kept);
    text_printable(value, sizeof(value), value);
    sent = put(k, value);
    if (sent == LS_OK)
        sent = barrier(k);
    if (sent != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "the failure is not reported to the other ranks: %s",
               ls_last_error());
    ls_error_restore(kept);
    return st;
}

static ls_status find(join *j, const join_settings *s, const key_space *k)
{
    char value[VALUE_BYTES];
    char *comma;

    LS_TRY(get(k, value));
    if (value[0] == '!')
        return ls_fail(LS_EPEER, "rank 0 could not join: %s", value + 1);
    comma = strchr(value, ',');
    if (comma == NULL || comma - value != NONCE_BYTES - 1)
        return ls_fail(LS_EPROTO, "malformed hub address from rank 0: \"%.80s\"", value);
    *comma = '\0';
    LS_TRY(ls_context(net_address_decode(comma + 1, &j->hub_address), "rank 0's address"));
    return derive(j, s, k, value);
}

/* Only ranks that have joined finalize the client: the launcher ends the job when a process exits
 * without it, which ends the other ranks' wait for a rank that failed here. */
static ls_status join_through(join *j, const join_settings *s, const key_space *k)
{
    ls_status st = j->id.rank == 0 ? publish(j, s, k) : LS_OK;

    if (st == LS_OK)
        st = barrier(k);
    if (st == LS_OK && j->id.rank != 0)
        st = find(j, s, k);
    if (st != LS_OK)
        return ls_context(st, "rank %d of %d", j->id.rank, j->id.size);
    j->hub_has_listened = true;
    return join_connect_to_hub(j, s);
}

/* Whether an MPI library in this process uses the client after us. PMI allows one finalize per
 * process, MPI's. PMIx counts them, but the last must not come before MPI's init, so ours ends the
 * join. */
static bool is_shared(const join_settings *s)
{
    return text_starts(s->backend, "mpi:");
}

/* The first unused key: earlier joins of this job have left theirs. */
static ls_status find_key(pmi_client *c, char key[KEY_BYTES])
{
    char value[VALUE_BYTES];
    ls_status st = LS_OK;

    for (int n = 1; st == LS_OK; n++) {
        text_format(key, KEY_BYTES, "lockstep-hub-%d", n);
        st = pmi_client_get(c, key, value, sizeof(value));
    }
    return st == LS_ENOTFOUND ? pmi_client_barrier(c) : st; // every rank has read the keys
}

static ls_status join_by_pmi(join *j, const join_settings *s)
{
    pmi_client c;
    key_space k = {.pmi = &c, .job = c.space};

    LS_TRY(pmi_client_open(j->id.pmi_fd, s->deadline_ms, &c));
    LS_TRY(find_key(&c, k.key));
    LS_TRY(join_through(j, s, &k));
    if (!is_shared(s))
        pmi_client_close(&c);
    return LS_OK;
}

static ls_status join_by_pmix(join *j, const join_settings *s)
{
    pmix_client c;
    key_space k = {.pmix = &c, .job = c.space};
    ls_status st = pmix_client_open(s->deadline_ms, &c);

    if (st == LS_ENOTFOUND)
        return ls_fail(LS_EINVAL, "%s; %s", ls_last_error(), j->id.location);
    if (st != LS_OK)
        return st;
    text_format(k.key, sizeof(k.key), "lockstep-hub-%d", c.n_opened);
    LS_TRY(join_through(j, s, &k));
    j->has_pmix = is_shared(s);
    j->pmix = c;
    if (!j->has_pmix)
        pmix_client_close(&c);
    return LS_OK;
}

ls_status join_reach_by_pmi(join *j, const join_settings *s)
{
    j->hub_at_rank_0 = true;
    return j->id.hub_at == HUB_AT_PMI ? join_by_pmi(j, s) : join_by_pmix(j, s);
}
