/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join_hub.c - finds the hub from the identity's location, derives its key, serves it on rank 0 and
 * connects to it; join.c calls it. All ranks derive the same job id, key and address.
 */
#include "comm/join/join_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "net/interface.h"
#include "net/reach.h"
#include "net/socket.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define RETRY_MS     5
#define MASTER_PORT  29500 /* the usual default of tcp:// */
#define HOST_KEY     "%shost/%d"
#define FAILED_KEY   "%sfailed"
#define KEY_BYTES    64
#define ABSENT_SHOWN 16 /* ranks that a line lists */

/* --- names, numbers, keys --- */

void join_derive_job(const char *what, char job[JOB_ID_BYTES])
{
    text_format(job, JOB_ID_BYTES, "%016" PRIx64, ls_hash_bytes(what, strlen(what), 0x10c5));
}

/* The process at the other end of PMI's socket: one for all ranks of a job on this host. */
static pid_t pmi_server(int fd)
{
    char kept[LS_ERROR_BYTES];
    pid_t pid = 0;

    ls_error_save(kept);
    if (net_peer_user(fd, NULL, &pid) != LS_OK || pid == 0)
        pid = getppid();
    ls_error_restore(kept);
    return pid;
}

/* The abstract socket of this host and job. */
static ls_status derive_name(const identity *id, char job[JOB_ID_BYTES], net_address *out)
{
    char what[IDENTITY_LOCATION_BYTES + 64];
    char text[96];

    text_format(what, sizeof(what), "%s|%d|%u", id->location,
                id->pmi_fd >= 0 ? (int)pmi_server(id->pmi_fd) : 0, (unsigned)getuid());
    join_derive_job(what, job);
    text_format(text, sizeof(text), "unix:@lockstep-hub-%u-%s", (unsigned)getuid(), job);
    return net_address_decode(text, out);
}

/* The agent protects the store of its ranks, so its key is in their environment. */
static ls_status find_base_key(const join *j, const join_settings *s, net_key *out)
{
    bool is_inherited = false;

    if (s->secret != NULL)
        return net_key_of_secret(s->secret, s->secret_bytes, out);
    if (j->id.hub_at == HUB_AT_STORE)
        LS_TRY(net_key_inherit(out, &is_inherited));
    return is_inherited ? LS_OK : net_key_of_user(s->key_file, out);
}

ls_status join_derive_key(join *j, const join_settings *s, const char *what)
{
    net_key base;
    ls_status st;

    if (s->insecure)
        return LS_OK;
    LS_TRY(find_base_key(j, s, &base));
    st = net_key_derive(&base, "hub", what, &j->key);
    if (st == LS_OK)
        text_format(j->key.origin, sizeof(j->key.origin), "%s", base.origin);
    net_key_wipe(&base);
    j->has_key = st == LS_OK;
    return st;
}

/* --- connecting --- */

static ls_status connect_once(join *j, const join_settings *s)
{
    control_options opt = {.hub = j->hub_address,
                           .key = j->has_key ? &j->key : NULL,
                           .insecure = s->insecure,
                           .security = s->security,
                           .rank = j->id.rank,
                           .world_size = j->id.size,
                           .generation = j->id.generation,
                           .refused_is_final = j->hub_has_listened,
                           .server = j->hub_at_rank_0 ? "rank 0" : NULL,
                           .timeout_ms = ls_deadline_left(s->deadline_ms)};

    memcpy(opt.job, j->id.job, sizeof(opt.job));
    return control_open(&opt, &j->control);
}

/* Counts the joins of this rank at this hub: a process may leave a job and join again. */
static ls_status count_join(join *j, int64_t *n)
{
    char key[KEY_BYTES];

    text_format(key, sizeof(key), "joins/%d", j->id.rank);
    return ls_store_add(control_store(j->control), key, 1, n);
}

static bool may_try_again(const join *j, ls_status st, int64_t deadline_ms)
{
    return j->hub_at_rank_0 && !j->hub_has_listened && j->hub == NULL &&
           (st == LS_OK || st == LS_EPEER) && ls_deadline_left(deadline_ms) != 0;
}

/* When rank 0 serves a hub for each join at the same address, a fast rank may reach the hub of the
 * previous join, which is about to end. Its count there is above 1, so it tries again. */
ls_status join_connect_to_hub(join *j, const join_settings *s)
{
    for (;;) {
        int64_t n = 0;
        ls_status st = connect_once(j, s);

        if (st == LS_OK)
            st = count_join(j, &n);
        if (st == LS_OK && (n == 1 || !j->hub_at_rank_0)) {
            text_format(j->scope, sizeof(j->scope), "j%" PRId64 "/", n);
            return LS_OK;
        }
        if (!may_try_again(j, st, s->deadline_ms))
            return st != LS_OK ? st : ls_fail(LS_ETIMEOUT, "rank 0 serves no new hub");
        control_close(j->control);
        j->control = NULL;
        (void)poll(NULL, 0, RETRY_MS);
    }
}

ls_status join_serve_hub(join *j, const join_settings *s, const net_address *at)
{
    hub_options opt = {.world_size = j->id.size,
                       .generation = j->id.generation,
                       .key = j->has_key ? &j->key : NULL,
                       .insecure = s->insecure,
                       .security = s->security};

    memcpy(opt.job, j->id.job, sizeof(opt.job));
    text_format(opt.join_advice, sizeof(opt.join_advice), "%s", j->advice);
    LS_TRY(hub_thread_start(&opt, at, &j->hub));
    j->hub_address = *hub_thread_address(j->hub);
    return LS_OK;
}

/* --- the locations --- */

static ls_status reach_url(join *j, const join_settings *s)
{
    LS_TRY(net_key_inherit(&j->key, &j->has_key));
    LS_TRY(net_address_parse(j->id.location, NET_PORT_REQUIRED, &j->hub_address));
    if (!j->has_key && net_address_family(&j->hub_address) != NET_UNIX)
        LS_TRY(join_derive_key(j, s, j->id.location));
    if (j->id.job[0] == '\0')
        join_derive_job(j->id.location, j->id.job);
    return join_connect_to_hub(j, s);
}

/* "localhost" or a number. Other names may resolve to loopback on rank 0's host only. */
static bool is_loopback_text(const char *location, const net_address *a)
{
    net_address number;
    char kept[LS_ERROR_BYTES];
    char url[IDENTITY_LOCATION_BYTES + 8];
    bool is_number;

    ls_error_save(kept);
    is_number =
        net_address_decode(text_format(url, sizeof(url), "tcp://%s", location), &number) == LS_OK;
    ls_error_restore(kept);
    return net_address_is_loopback(a) && (is_number || text_starts(location, "localhost"));
}

/* Many hosts resolve their own name to a loopback address, and the address that other hosts use may
 * belong to a NAT: then rank 0 serves on every interface. */
static ls_status serve_master(join *j, const join_settings *s)
{
    net_address at = j->hub_address;
    net_address any;
    char text[32];

    if (j->is_one_host)
        return join_serve_hub(j, s, &at);
    if (!net_address_is_loopback(&at) && join_serve_hub(j, s, &at) == LS_OK)
        return LS_OK;
    text_format(text, sizeof(text), "tcp://0.0.0.0:%d", net_address_port(&at));
    LS_TRY(net_address_decode(text, &any));
    LS_TRY(join_serve_hub(j, s, &any));
    return net_address_decode(text_format(text, sizeof(text), "tcp://127.0.0.1:%d",
                                          net_address_port(hub_thread_address(j->hub))),
                              &j->hub_address);
}

/* Warns of an address at which other hosts may not reach rank 0. If all ranks may run on one host,
 * a loopback address may be right: then only wait reports mention it. */
static void check_master(join *j)
{
    const net_reach reach = net_reach_of(j->id.location);

    net_reach_warning(j->advice, sizeof(j->advice), "rank 0", j->id.location);
    if (j->advice[0] == 0 || (reach == NET_REACH_LOOPBACK && j->id.n_nodes == 0))
        return;
    ls_log(LS_LOG_WARN, "comm", "%s", j->advice);
    j->advice[0] = 0;
}

static ls_status reach_master(join *j, const join_settings *s)
{
    LS_TRY(net_address_parse(j->id.location, MASTER_PORT, &j->hub_address));
    LS_TRY(join_derive_key(j, s, j->id.location));
    join_derive_job(j->id.location, j->id.job);
    j->hub_at_rank_0 = true;
    if (j->id.rank == 0 && !j->is_one_host)
        check_master(j);
    j->is_one_host = j->is_one_host || is_loopback_text(j->id.location, &j->hub_address);
    if (j->id.rank == 0)
        LS_TRY(serve_master(j, s));
    return join_connect_to_hub(j, s);
}

static ls_status reach_name(join *j, const join_settings *s)
{
    LS_TRY(derive_name(&j->id, j->id.job, &j->hub_address));
    j->hub_at_rank_0 = true;
    if (j->id.rank == 0) {
        const net_address at = j->hub_address;

        LS_TRY(join_serve_hub(j, s, &at));
    }
    return join_connect_to_hub(j, s);
}

static bool has_joined(ls_store *store, const char *scope, int rank)
{
    char key[KEY_BYTES];
    const char *keys[1] = {text_format(key, sizeof(key), HOST_KEY, scope, rank)};
    int is_there = 0;

    return ls_store_check(store, keys, 1, &is_there) == LS_OK && is_there;
}

/* Rank 0 waits for a key of every rank, the other ranks for the key of rank 0. */
static void log_absent(const join *j, ls_store *store, const char *scope)
{
    text_buf ranks = {0};
    int n = 0;

    for (int r = 0; r < (j->id.rank == 0 ? j->id.size : 1); r++) {
        if (!has_joined(store, scope, r) && ++n <= ABSENT_SHOWN)
            text_append(&ranks, n == 1 ? "%d" : ", %d", r);
    }
    if (n > ABSENT_SHOWN)
        text_append(&ranks, " and %d more", n - ABSENT_SHOWN);
    if (n == 0)
        ls_log(LS_LOG_WARN, "comm",
               "joining at %s has waited for %.1f s: rank 0 waits for other ranks",
               ls_store_url(store), wait_report_seconds(&j->report));
    else
        ls_log(LS_LOG_WARN, "comm",
               "joining at %s has waited for %.1f s: rank%s %s of %d ha%s not joined",
               ls_store_url(store), wait_report_seconds(&j->report), n == 1 ? "" : "s",
               text_str(&ranks), j->id.size, n == 1 ? "s" : "ve");
    text_free(&ranks);
}

/* A value of another rank. Short waits, so that this function reports them and not the store. */
static ls_status await_value(join *j, const join_settings *s, ls_store *store, const char *scope,
                             const char *key, void **value, size_t *bytes)
{
    for (;;) {
        const int64_t late_ms = wait_report_deadline_ms(&j->report, s->deadline_ms);
        const int64_t piece_ms = ls_deadline_ms(wait_report_setting_ms());
        const ls_status st = ls_store_get(
            store, key, ls_deadline_left(late_ms < piece_ms ? late_ms : piece_ms), value, bytes);
        char kept[LS_ERROR_BYTES];

        if (st != LS_ETIMEOUT || ls_deadline_left(s->deadline_ms) == 0)
            return st;
        ls_error_save(kept);
        if (wait_report_is_due(&j->report))
            log_absent(j, store, scope);
        ls_error_restore(kept);
    }
}

/* Rank 0 finds whether all ranks run on its host, which decides between a unix socket and TCP. */
static ls_status all_on_one_host(join *j, const join_settings *s, ls_store *store,
                                 const char *scope, bool *all)
{
    const uint64_t own = net_host_value();
    char key[KEY_BYTES];
    char text[24];

    text_format(key, sizeof(key), HOST_KEY, scope, j->id.rank);
    text_format(text, sizeof(text), "%016" PRIx64, own);
    LS_TRY(ls_store_set(store, key, text, strlen(text)));
    *all = true;
    for (int r = 1; j->id.rank == 0 && r < j->id.size; r++) {
        size_t bytes;
        void *value;

        text_format(key, sizeof(key), HOST_KEY, scope, r);
        LS_TRY(await_value(j, s, store, scope, key, &value, &bytes));
        *all = *all && text_equal(value, text);
        ls_store_free(value);
    }
    return LS_OK;
}

/* On rank 0: serves the hub and puts the job's id and the hub's address into the store. The id is
 * random, because other jobs and groups join in the same scopes of other stores. */
static ls_status publish_hub(join *j, const join_settings *s, ls_store *store, const char *key,
                             bool one_host)
{
    char text[JOB_ID_BYTES + NET_ADDRESS_TEXT_MAX];
    net_address at;
    uint64_t random;

    if (getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random))
        return ls_fail_errno("random bytes for the job's id");
    text_format(j->id.job, JOB_ID_BYTES, "%016" PRIx64, random);

    if (one_host)
        LS_TRY(net_address_fresh_unix("hub", &at));
    else
        LS_TRY(join_interface_address(s->iface, &at));
    if (!one_host || s->secret != NULL)
        LS_TRY(join_derive_key(j, s, j->id.job));
    LS_TRY(join_serve_hub(j, s, &at));
    text_format(text, sizeof(text), "%s ", j->id.job);
    (void)net_address_text(text + JOB_ID_BYTES, NET_ADDRESS_TEXT_MAX, &j->hub_address);
    return ls_store_set(store, key, text, strlen(text));
}

/* "ID ADDRESS", as publish_hub() writes it. */
static ls_status take_hub(join *j, const char *text)
{
    if (strspn(text, "0123456789abcdef") != JOB_ID_BYTES - 1 || text[JOB_ID_BYTES - 1] != ' ')
        return ls_fail(LS_EPROTO, "'%.80s' does not begin with the id of a job", text);
    text_format(j->id.job, JOB_ID_BYTES, "%s", text);
    return net_address_decode(text + JOB_ID_BYTES, &j->hub_address);
}

static ls_status find_hub(join *j, const join_settings *s, ls_store *store, const char *scope,
                          const char *key)
{
    size_t bytes;
    void *value;
    ls_status st;

    LS_TRY(await_value(j, s, store, scope, key, &value, &bytes));
    st = take_hub(j, value);
    ls_store_free(value);
    if (st != LS_OK)
        return ls_context(st, "key '%s' of store %s", key, ls_store_url(store));
    if (net_address_family(&j->hub_address) != NET_UNIX || s->secret != NULL)
        st = join_derive_key(j, s, j->id.job);
    return st;
}

/* Rank 0, which serves the hub, waits for this rank and reads the reason in join_read_failure(). */
static void publish_failure(const join *j, ls_store *store, const char *scope)
{
    char kept[LS_ERROR_BYTES];
    char key[KEY_BYTES];
    char text[LS_ERROR_BYTES + 32];

    ls_error_save(kept);
    text_format(key, sizeof(key), FAILED_KEY, scope);
    text_format(text, sizeof(text), "rank %d could not join: %.400s", j->id.rank, kept);
    if (ls_store_set(store, key, text, strlen(text)) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "the failure is not in the store: %s", ls_last_error());
    ls_error_restore(kept);
}

ls_status join_read_failure(const join *j, ls_store *store)
{
    char text[LS_ERROR_BYTES];
    char key[KEY_BYTES];
    void *value;
    ls_status st;

    text_format(key, sizeof(key), FAILED_KEY, j->store_scope);
    st = ls_store_get(store, key, 0, &value, NULL);
    if (st != LS_OK)
        return st == LS_ETIMEOUT ? LS_OK : st;
    text_format(text, sizeof(text), "%s", (const char *)value);
    ls_store_free(value);
    text_printable(text, sizeof(text), text);
    return ls_fail(LS_EAUTH, "%s", text);
}

static ls_status reach_hub_of_store(join *j, const join_settings *s, ls_store *store,
                                    const char *scope)
{
    char key[KEY_BYTES];
    bool one_host;

    text_format(key, sizeof(key), "%shub", scope);
    LS_TRY(all_on_one_host(j, s, store, scope, &one_host));
    if (j->id.rank == 0)
        LS_TRY(publish_hub(j, s, store, key, one_host));
    else
        LS_TRY(find_hub(j, s, store, scope, key));
    return join_connect_to_hub(j, s);
}

static ls_status reach_through_store(join *j, const join_settings *s, ls_store *store)
{
    char scope[JOIN_SCOPE_BYTES];
    char key[KEY_BYTES];
    ls_status st;
    int64_t n;

    text_format(key, sizeof(key), "lockstep/joins/%d", j->id.rank);
    LS_TRY(ls_store_add(store, key, 1, &n));
    text_format(scope, sizeof(scope), "ls%" PRId64 "/", n);
    j->hub_at_rank_0 = true;
    st = reach_hub_of_store(j, s, store, scope);
    if (st == LS_EAUTH && j->id.rank != 0)
        publish_failure(j, store, scope);
    if (st == LS_OK && store == s->store)
        text_format(j->store_scope, sizeof(j->store_scope), "%s", scope);
    return st;
}

static ls_status reach_file(join *j, const join_settings *s)
{
    ls_store *store;
    ls_status st;

    LS_TRY(ls_store_open(j->id.location, NULL, &store));
    st = reach_through_store(j, s, store);
    ls_store_close(store);
    return st;
}

static ls_status reach(join *j, const join_settings *s)
{
    switch (j->id.hub_at) {
    case HUB_AT_URL:
        return reach_url(j, s);
    case HUB_AT_MASTER:
        return reach_master(j, s);
    case HUB_AT_UNIX_NAME:
        return reach_name(j, s);
    case HUB_AT_FILE:
        return reach_file(j, s);
    case HUB_AT_PMI:
    case HUB_AT_PMIX:
        return join_reach_by_pmi(j, s);
    case HUB_AT_STORE:
        return reach_through_store(j, s, s->store);
    case HUB_AT_NONE:
        break;
    }
    return ls_fail(LS_EINTERNAL, "a job of one rank has no hub");
}

ls_status join_reach_hub(join *j, const join_settings *s)
{
    j->is_one_host = j->id.n_nodes == 1;
    LS_TRY(reach(j, s));
    // An abstract unix socket is reachable on one host, unless agents of several nodes forward it.
    if (net_address_family(&j->hub_address) == NET_UNIX && j->id.n_nodes <= 1)
        j->is_one_host = true;
    return LS_OK;
}
