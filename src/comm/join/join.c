/* SPDX-License-Identifier: Apache-2.0 */
/*
 * join.c - joins a job of several ranks, for init.c: reaches the hub, publishes this rank's boot
 * record and reads the records of all ranks. The order of steps is the same on every rank.
 */
#include "comm/join/join.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/join/join_internal.h"
#include "host/cores.h"
#include "host/process_id.h"
#include "net/interface.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define KEY_BYTES     64
#define LOOK_EVERY_MS 200

/* TCP needs a key. Ranks that have joined over unix sockets have none, so rank 0 creates one. */
static ls_status share_key(join *j, const join_settings *s)
{
    char name[KEY_BYTES];
    size_t bytes;
    void *value;

    if (j->has_key || s->insecure || !join_needs_tcp(j, s) ||
        net_address_family(&j->hub_address) != NET_UNIX)
        return LS_OK;
    text_format(name, sizeof(name), "%skey", j->scope);
    if (j->id.rank == 0) {
        LS_TRY(net_key_random(&j->key));
        j->has_key = true;
        return ls_store_set(control_store(j->control), name, j->key.bytes, NET_KEY_BYTES);
    }
    LS_TRY(ls_store_get(control_store(j->control), name, ls_deadline_left(s->deadline_ms), &value,
                        &bytes));
    j->has_key = bytes == NET_KEY_BYTES;
    if (j->has_key)
        memcpy(j->key.bytes, value, NET_KEY_BYTES);
    ls_store_free(value);
    return j->has_key ? LS_OK : ls_fail(LS_EPROTO, "rank 0's key has %zu bytes", bytes);
}

static void describe_self(join *j, const join_settings *s)
{
    boot_record *r = &j->own.record;

    r->rank = j->id.rank;
    r->pid = process_outer_pid();
    r->instance = join_process_value();
    r->generation = j->id.generation;
    if (gethostname(j->own.host_name, sizeof(j->own.host_name)) != 0)
        j->own.host_name[0] = '\0';
    j->own.host_name[sizeof(j->own.host_name) - 1] = '\0';
    j->own.host = net_host_value();
    j->cores = ls_usable_cores(&j->own.core_share);
    text_format(j->own.backend, sizeof(j->own.backend), "%s", s->backend);
    text_format(j->own.transport, sizeof(j->own.transport), "%s", s->transport);
    j->own.segment_bytes = s->segment_bytes;
    (void)text_format(j->own.algorithms, sizeof(j->own.algorithms), "%s", s->algorithms);
    j->own.security = s->security;
    j->own.connections = s->connections;
}

static ls_status publish(join *j)
{
    wire_writer w = {0};
    char key[KEY_BYTES];
    ls_status st = LS_OK;

    if (j->id.rank == 0)
        st = control_reserve_groups(j->control, 1, &j->own.world_group);
    if (st == LS_OK)
        st = boot_record_encode(&j->own, &w);
    if (st == LS_OK)
        st = ls_store_set(control_store(j->control),
                          text_format(key, sizeof(key), "%sboot/%d", j->scope, j->id.rank), w.data,
                          w.bytes);
    wire_writer_free(&w);
    return st;
}

/* Whether the rank shares its host's text with the rank before. */
static bool shares_host(const join *j, int rank)
{
    return rank > 0 && j->records[rank].host == j->records[rank - 1].host;
}

static void free_records(join *j)
{
    for (int r = 0; j->records != NULL && r < j->id.size; r++) {
        if (!shares_host(j, r))
            ls_free((void *)(uintptr_t)j->records[r].host);
        ls_free((void *)(uintptr_t)j->records[r].addresses);
    }
    ls_free(j->records);
}

static ls_status keep_record(join *j, const boot_publication *p)
{
    const int rank = p->record.rank;
    const char *before = rank == 0 ? NULL : j->records[rank - 1].host;
    const size_t n = (size_t)p->record.n_addresses;
    boot_record *r = &j->records[rank];
    net_address *addresses = n == 0 ? NULL : ls_calloc(n, sizeof(*addresses));

    *r = p->record;
    r->host = before != NULL && text_equal(before, p->host_name) ? before : ls_strdup(p->host_name);
    r->addresses = addresses;
    if (r->host == NULL || (n > 0 && addresses == NULL))
        return ls_fail(LS_ENOMEM, "no memory for the record of rank %d", rank);
    for (size_t i = 0; i < n; i++)
        addresses[i] = p->addresses[i];
    return LS_OK;
}

static ls_status take_record(void *arg, int rank, const void *value, size_t bytes)
{
    join *j = arg;
    boot_publication p = {0};

    LS_TRY(boot_record_decode(value, bytes, rank, &p));
    LS_TRY(boot_record_compare(&j->own, &p));
    LS_TRY(keep_record(j, &p));
    j->hosts[rank] = p.host;
    j->core_sharers += p.host == j->own.host && p.core_share == j->own.core_share;
    if (rank == 0)
        j->world_group = p.world_group;
    return LS_OK;
}

/* Rank 0 of a join through a store also looks for the failure of a rank that cannot reach it. */
static ls_status gather_records(join *j, const join_settings *s, const char *prefix)
{
    const bool looks = j->id.rank == 0 && j->store_scope[0] != '\0';

    for (;;) {
        const int left_ms = ls_deadline_left(s->deadline_ms);
        const bool is_last = !looks || (left_ms >= 0 && left_ms <= LOOK_EVERY_MS);
        const ls_status st = control_gather(j->control, prefix, j->id.size,
                                            is_last ? left_ms : LOOK_EVERY_MS, take_record, j);

        if (st != LS_ETIMEOUT || is_last)
            return st;
        LS_TRY(join_read_failure(j, s->store));
    }
}

static ls_status fetch_all(join *j, const join_settings *s)
{
    const size_t n = (size_t)j->id.size;
    char kept[LS_ERROR_BYTES];
    char prefix[KEY_BYTES];
    ls_status st;
    int rank;

    j->records = ls_calloc(n, sizeof(*j->records));
    j->hosts = ls_calloc(n, sizeof(*j->hosts));
    if (j->records == NULL || j->hosts == NULL)
        return ls_fail(LS_ENOMEM, "no memory for the records of %d ranks", j->id.size);
    st = gather_records(j, s, text_format(prefix, sizeof(prefix), "%sboot/", j->scope));
    if (st == LS_ETIMEOUT) {
        ls_error_save(kept);
        return ls_fail(st, "%s within %.1f s", kept, (double)s->join_ms / 1000);
    }
    LS_TRY(st);
    // These ranks left an earlier join: their records of this join have arrived.
    while (control_next_left(j->control, &rank))
        continue;
    return LS_OK;
}

static void describe_boot(join *j, const join_settings *s)
{
    comm_boot *b = &j->boot;
    cpu_mask cores;

    cpu_mask_of_process(&cores);
    b->place = topology_find_place("", &cores);
    b->rank = j->id.rank;
    b->size = j->id.size;
    memcpy(b->job, j->id.job, sizeof(b->job));
    b->generation = j->id.generation;
    b->key = j->has_key ? &j->key : NULL;
    b->security = s->security;
    b->records = j->records;
    b->transport = s->transport;
    b->deadline_ms = s->deadline_ms;
    b->ranks_per_core = (j->core_sharers + j->cores - 1) / j->cores;
    b->segment_bytes = s->segment_bytes;
    b->piece_elements = s->piece_elements;
    b->connections = s->connections;
    b->algorithms = s->algorithms;
}

/* Ends the other ranks' wait for this one. Every rank detects timeouts and mismatches itself. */
static void report_failure(join *j, ls_status st)
{
    job_cause cause = {.kind = CAUSE_FAULT, .group = GROUP_ALL, .rank = j->id.rank};
    char kept[LS_ERROR_BYTES];
    job_cause received;

    if (j->control == NULL || st == LS_ETIMEOUT || st == LS_EMISMATCH ||
        control_next_cause(j->control, &received))
        return;
    ls_error_save(kept);
    text_format(cause.text, sizeof(cause.text), "%.400s", kept);
    if (control_fail(j->control, &cause) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "the failure is not reported to the hub: %s", ls_last_error());
    ls_error_restore(kept);
}

static ls_status exchange_records(join *j, const join_settings *s)
{
    describe_self(j, s);
    control_begin_stage(
        j->control,
        &(control_stage){.group = GROUP_JOIN, .n_members = j->id.size, .what = "joining the job"});
    LS_TRY(share_key(j, s));
    LS_TRY(join_listen(j, s));
    LS_TRY(publish(j));
    LS_TRY(fetch_all(j, s));
    control_end_stage(j->control);
    return LS_OK;
}

ls_status join_job(const identity *id, const join_settings *s, join **out)
{
    join *j;
    ls_status st;

    LS_TRY(LS_NEW(&j, 1, "to join a job of %d ranks", id->size));
    j->id = *id;
    j->boot.local_fd = -1;
    j->boot.listen_fd = -1;
    j->boot.control_fd = -1;
    j->report = wait_report_begin(wait_report_setting_ms());
    st = join_reach_hub(j, s);
    if (st == LS_OK)
        st = ls_context(exchange_records(j, s), "rank %d of %d could not join", id->rank, id->size);
    if (st != LS_OK) {
        report_failure(j, st);
        join_release(j);
        return st;
    }
    describe_boot(j, s);
    *out = j;
    return LS_OK;
}

void join_release(join *j)
{
    char kept[LS_ERROR_BYTES];

    if (j == NULL)
        return;
    ls_error_save(kept);
    file_close(&j->boot.local_fd);
    file_close(&j->boot.listen_fd);
    join_release_listener(j);
    control_close(j->control);
    hub_thread_stop(j->hub, 0);
    if (j->has_pmix)
        pmix_client_close(&j->pmix);
    net_key_wipe(&j->key);
    free_records(j);
    ls_free(j->hosts);
    ls_free(j);
    ls_error_restore(kept);
}
