/* SPDX-License-Identifier: Apache-2.0 */
/*
 * init.c - ls_init(): reads options and settings, joins the job (join.c), opens the backend and
 * creates the group of all ranks. A rank that fails reports its reason to the others.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/options.h"
#include "base/text.h"
#include "comm/comm.h"
#include "comm/group/group.h"
#include "comm/group/seat.h"
#include "comm/join/identity.h"
#include "comm/join/identity_location.h"
#include "comm/join/join.h"
#include "host/process_id.h"

#include <fcntl.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

static ls_status take_key(const ls_init_options *opt, join_settings *s)
{
    s->key_file = opt->key_file;
    s->secret = opt->key;
    s->secret_bytes = opt->key_bytes;
    s->insecure = opt->insecure != 0;
    if ((opt->key == NULL) != (opt->key_bytes == 0))
        return ls_fail(LS_EINVAL, "key without key_bytes, or key_bytes without key");
    if (opt->key != NULL && opt->key_bytes < NET_KEY_SECRET_MIN)
        return ls_fail(LS_EINVAL, "a key of %zu bytes: it must have at least %d", opt->key_bytes,
                       NET_KEY_SECRET_MIN);
    return LS_OK;
}

static ls_status check_transport(const char *name)
{
    return text_equal(name, "auto") || text_equal(name, "shm") || text_equal(name, "tcp")
               ? LS_OK
               : ls_fail(LS_EINVAL, "transport \"%.40s\": must be auto, shm or tcp", name);
}

static ls_status read_settings(const ls_init_options *opt, join_settings *s, int64_t *operation_ms,
                               int64_t *late_ms)
{
    int64_t segment;
    int64_t piece;
    int64_t connections;

    LS_TRY(take_key(opt, s));
    s->store = opt->store;
    s->join_ms = ls_duration_ms(opt->join_timeout_ms);
    *operation_ms = ls_duration_ms(opt->timeout_ms);
    LS_TRY(config_text(CONFIG_BACKEND, &s->backend));
    LS_TRY(config_text(CONFIG_TRANSPORT, &s->transport));
    LS_TRY(config_text(CONFIG_IFACE, &s->iface));
    LS_TRY(net_security_setting(&s->security));
    LS_TRY(config_int(CONFIG_SEGMENT_BYTES, &segment));
    LS_TRY(config_int(CONFIG_PIECE_ELEMENTS, &piece));
    LS_TRY(config_int(CONFIG_CONNECTIONS, &connections));
    LS_TRY(config_text(CONFIG_ALGORITHMS, &s->algorithms));
    LS_TRY(config_int(CONFIG_LATE_MS, late_ms));
    if (s->join_ms == 0)
        LS_TRY(config_int(CONFIG_JOIN_MS, &s->join_ms));
    if (*operation_ms == 0)
        LS_TRY(config_int(CONFIG_OP_MS, operation_ms));
    if (opt->backend != NULL)
        s->backend = opt->backend;
    if (opt->transport != NULL)
        s->transport = opt->transport;
    s->segment_bytes = (size_t)segment;
    s->piece_elements = (size_t)piece;
    s->connections = (int)connections;
    s->deadline_ms = ls_deadline_ms(s->join_ms);
    return check_transport(s->transport);
}

/* The engine's arrays about all ranks. */
static ls_status describe_ranks(engine_parts *p, const join *j)
{
    const size_t n = (size_t)p->size;

    p->hosts = ls_calloc(n, sizeof(*p->hosts));
    p->pids = ls_calloc(n, sizeof(*p->pids));
    if (p->hosts == NULL || p->pids == NULL)
        return ls_fail(LS_ENOMEM, "no memory for %d ranks", p->size);
    p->has_own_core = j == NULL || j->core_sharers <= j->cores;
    for (int r = 0; r < p->size; r++) {
        p->hosts[r] = j == NULL ? 0 : j->hosts[r];
        p->pids[r] = j == NULL ? process_outer_pid() : j->records[r].pid;
    }
    return LS_OK;
}

/* The backend polls a duplicate of the hub's descriptor, which outlives the connection. */
static ls_status take_join(engine_parts *p, join *j)
{
    p->join = j;
    p->control = j->control;
    p->hub = j->hub;
    p->hub_at_rank_0 = j->hub_at_rank_0;
    j->control = NULL;
    j->hub = NULL;
    text_format(p->scope, sizeof(p->scope), "%s", j->scope);
    control_set_answer_limit(p->control, p->operation_ms);
    p->control_fd = fcntl(control_fd(p->control), F_DUPFD_CLOEXEC, 0);
    j->boot.control_fd = p->control_fd;
    return p->control_fd >= 0 ? LS_OK : ls_fail_errno("cannot duplicate the hub's connection");
}

static ls_status open_backend(engine *e)
{
    join *j = e->parts.join;
    ls_status st;

    if (j == NULL)
        return LS_OK;
    control_begin_stage(e->parts.control,
                        &(control_stage){.group = GROUP_CONNECT,
                                         .n_members = e->parts.size,
                                         .what = "connecting to the other ranks",
                                         .is_blind = e->parts.ops != &native_backend_ops});
    st = watch_explain(e, e->parts.ops->open(&j->boot, &e->host, &e->parts.backend));
    control_end_stage(e->parts.control);
    // The backend owns the listeners, also after a failure.
    j->boot.local_fd = -1;
    j->boot.listen_fd = -1;
    return st;
}

/* into: a closed group that is created again; NULL: a new one. */
static ls_status make_world(engine *e, uint32_t id, ls_comm *into, ls_comm **out)
{
    const int n = e->parts.size;
    int *members;

    LS_TRY(LS_NEW(&members, (size_t)n, "for a group of %d ranks", n));
    for (int r = 0; r < n; r++)
        members[r] = r;
    *out = into;
    return into != NULL ? group_create_in(e, id, e->parts.rank, n, members, into)
                        : group_create(e, NULL, id, e->parts.rank, n, members, out);
}

/* Ends the other ranks' wait for this one. */
static void report_failure(control *c, int rank, ls_status st)
{
    job_cause cause = {.kind = CAUSE_FAULT, .group = GROUP_ALL, .rank = rank};
    char kept[LS_ERROR_BYTES];

    if (c == NULL || st == LS_ETIMEOUT || st == LS_EMISMATCH)
        return;
    ls_error_save(kept);
    text_format(cause.text, sizeof(cause.text), "rank %d could not join: %.400s", rank, kept);
    if (control_fail(c, &cause) != LS_OK)
        ls_log(LS_LOG_DEBUG, "comm", "the failure is not reported to the hub: %s", ls_last_error());
    ls_error_restore(kept);
}

static ls_status make_engine(const identity *id, engine_parts *parts, join *j, engine **out)
{
    ls_status st = j == NULL ? LS_OK : take_join(parts, j);

    if (st == LS_OK)
        st = describe_ranks(parts, j);
    if (st == LS_OK)
        st = recorder_open(id->ring_fd, id->rank, &parts->recorder);
    if (st == LS_OK)
        st = engine_create(parts, out);
    if (st != LS_OK) {
        report_failure(parts->control, id->rank, st);
        engine_free_parts(parts);
    }
    return st;
}

static ls_status start_engine(const identity *id, engine_parts *parts, join *j, ls_comm *into,
                              ls_comm **out)
{
    char kept[LS_ERROR_BYTES];
    engine *e;
    ls_status st;

    LS_TRY(make_engine(id, parts, j, &e));
    st = open_backend(e);
    if (st == LS_OK)
        st = ls_context(make_world(e, j == NULL ? 0 : j->world_group, into, out),
                        "rank %d of %d could not join", id->rank, id->size);
    if (st == LS_OK)
        return LS_OK;
    ls_error_save(kept);
    if (e->end.kind == CAUSE_NONE) // else another rank has reported the cause
        report_failure(e->parts.control, id->rank, st);
    engine_destroy(e);
    ls_error_restore(kept);
    return st;
}

static ls_status find_identity(const comm_env *env, const ls_init_options *opt, identity *id)
{
    LS_TRY(identity_find(env, opt, id));
    if (id->size > 1)
        log_set_rank(id->rank, id->size);
    if (id->rank == 0)
        LS_TRY(config_check());
    if (id->warning[0] != '\0' && id->rank == 0)
        ls_log(LS_LOG_WARN, "comm", "%s", id->warning);
    return LS_OK;
}

/* Users of NCCL expect a log from NCCL_DEBUG; the native backend has LOCKSTEP_LOG. */
static void hint_at_log(const comm_env *env, const identity *id, const engine_parts *parts)
{
    static int64_t last_ms; // of rank 0, once a process
    const char *level = identity_get(env, "NCCL_DEBUG");

    if (level == NULL || id->rank != 0 || id->size < 2 || parts->ops != &native_backend_ops ||
        strcasecmp(level, "warn") == 0 || !text_equal(config_origin(CONFIG_LOG), "default") ||
        !log_every(&last_ms, INT64_MAX))
        return;
    ls_log(LS_LOG_WARN, "comm",
           "NCCL_DEBUG=%.16s has no effect on the native backend: LOCKSTEP_LOG=debug logs how "
           "ranks join and connect, lockstep run --trace FILE writes each operation",
           level);
}

ls_status init_join(const identity *id, const join_settings *s, engine_parts *parts, ls_comm *into,
                    ls_comm **out)
{
    join *j = NULL;

    if (id->size > 1)
        LS_TRY(join_job(id, s, &j));
    return start_engine(id, parts, j, into, out);
}

ls_status init_engine_alone(const identity *id, engine_parts *parts, engine **out)
{
    return make_engine(id, parts, NULL, out);
}

/* A process that was started in the place of a dead one prepares itself alone: ls_comm_rejoin(). */
static ls_status join_elastic(const comm_env *env, identity *id, const join_settings *s,
                              engine_parts *parts, ls_comm **out)
{
    seat *place;
    ls_status st;

    LS_TRY(seat_open(env, id, s, parts, &place));
    st = init_join(id, s, parts, NULL, out);
    if (st == LS_OK)
        (*out)->seat = place;
    else
        seat_close(place);
    return st;
}

ls_status comm_init_in(const comm_env *env, const ls_init_options *options, ls_comm **out)
{
    engine_parts parts = {.control_fd = -1};
    ls_init_options opt;
    join_settings s = {0};
    identity id;

    *out = NULL;
    LS_TRY(OPTIONS_COPY(ls_init_options, options, &opt));
    LS_TRY(find_identity(env, &opt, &id));
    LS_TRY(read_settings(&opt, &s, &parts.operation_ms, &parts.late_ms));
    LS_TRY(backend_find(
        &(backend_need){.name = s.backend, .transport = s.transport, .world_size = id.size},
        &parts.ops));
    s.backend = parts.ops->name;
    hint_at_log(env, &id, &parts);
    parts.is_traced = id.is_traced != 0;
    parts.rank = id.rank;
    parts.size = id.size;
    if (seat_is_given(env, &id))
        return join_elastic(env, &id, &s, &parts, out);
    return init_join(&id, &s, &parts, NULL, out);
}

static const char *from_process(void *self, const char *name)
{
    LS_UNUSED(self);
    return getenv(name); // NOLINT(concurrency-mt-unsafe): no thread sets it
}

int comm_job_size(void)
{
    const comm_env env = {.get = from_process};
    const ls_init_options none = {.size = sizeof(none)};
    identity id = {.size = 1};
    char kept[LS_ERROR_BYTES];
    ls_status st;

    ls_error_save(kept);
    st = identity_find(&env, &none, &id);
    ls_error_restore(kept);
    return st == LS_OK ? id.size : 1;
}

ls_status ls_init(const ls_init_options *opt, ls_comm **out)
{
    const comm_env env = {.get = from_process};

    if (out == NULL)
        return ls_fail(LS_EINVAL, "ls_init: out is NULL");
    return comm_init_in(&env, opt, out);
}
