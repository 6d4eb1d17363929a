/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.c - the processes of a simulated job: `lockstep run` on each machine, which is the production
 * code; a shim, as launch/isolate/shim.c behaves; and ranks with a toy step.
 *
 * A rank has the real control connection, store of members and texts of seats. Its step adds up
 * hashes of the shards of all ranks through the hub, in the place of collectives; what comm/group/
 * seat.c, ddp/elastic.c and train/run/recover.c do around the engine is done here in short.
 */
#include "sim/sim.h"

#include "base/clock.h"
#include "base/text.h"
#include "hub/control.h"
#include "launch/agent/node/agent_spec.h"
#include "launch/isolate/shim.h"
#include "store/seat_text.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum {
    JOIN_MS = 60000,
    GRACE_MS = 3000,
    SAVE_STEPS = 10, /* from one save to the next */
    SHARDS_MAX = 64
};

#define OPERATION_MS 120000

/* --- lockstep run --- */

static void fill_key(net_key *key)
{
    *key = (net_key){.origin = "simulated"};
    memset(key->bytes, 0x5a, sizeof(key->bytes));
}

static ls_status run_agent(const scenario *s, int node, agent_result *result)
{
    net_key key;
    job_spec job = JOB_SPEC_DEFAULTS;
    agent_nodes nodes = {.is_head = node == 0, .head = "10.0.0.1:29500", .key = &key, .id = node};
    agent_spec spec = {.n_ranks = s->n_local,
                       .job = &job,
                       .fn = job_rank,
                       .capture = true,
                       .prefix = true,
                       .nodes = &nodes,
                       .rendezvous = {.by_id = true,
                                      .min_nodes = s->n_nodes,
                                      .max_nodes = s->n_nodes,
                                      .max_restarts = s->max_restarts,
                                      .min_ranks = s->is_elastic ? 1 : 0,
                                      .run_name = "sim",
                                      .join_ms = JOIN_MS}};

    fill_key(&key);
    job.grace_ms = GRACE_MS;
    LS_TRY(net_address_decode("10.0.0.1:29500", &nodes.listen));
    return agent_run(&spec, result);
}

static void check_leaks(const process *p)
{
    for (int i = 3; i < FDS_MAX; i++)
        if (p->fds[i] != NULL)
            world_fail("%s ends with descriptor %d (kind %d) open", p->name, i, p->fds[i]->kind);
    if (p->n_blocks > 0)
        world_fail("%s ends with %" PRIu64 " blocks of memory", p->name, p->n_blocks);
}

static void agent_main(void *arg)
{
    process *p = W->current;
    machine *h = &W->hosts[p->host];
    agent_result result = {0};
    ls_status st;

    (void)arg;
    st = run_agent(W->spec, p->host, &result);
    h->exit_code = st == LS_OK ? result.exit_code : st == LS_EINVAL ? 2 : 1;
    if (st != LS_OK)
        history_error(p, ls_last_error());
    else if (result.failed)
        history_error(p, text_str(&result.report));
    text_free(&result.report);
    h->has_ended = true;
    h->ended_at = W->now;
    world_log("%s ends with exit code %d", p->name, h->exit_code);
    check_leaks(p);
    process_die(p, h->exit_code << 8);
}

static void start_agent(void *arg, uint64_t node)
{
    process *p;

    (void)arg;
    if (W->hosts[node].is_off)
        return;
    p = process_new(ROLE_AGENT, (int)node, NULL, agent_main, NULL);
    (void)snprintf(p->name, sizeof(p->name), "agent %d", (int)node);
    p->env = environment_make(NULL, "LOCKSTEP_MEET_MS", "20000");
    if (getenv("SIM_LOG") != NULL) {
        environment *e = environment_make(p->env->list, "LOCKSTEP_LOG", "debug");

        e->previous = p->env;
        p->env = e;
    }
    for (int i = 0; i < 3; i++) {
        object *console = object_new(i == 0 ? OBJECT_NULL : OBJECT_CONSOLE);

        console->refs = 1;
        p->fds[i] = console;
    }
    W->hosts[node].agent = p;
}

void job_start(void)
{
    for (int i = 0; i < W->spec->n_nodes; i++)
        world_at(W->now + (int64_t)world_random(300 * MS), start_agent, NULL, (uint64_t)i);
}

/* --- what the launcher forks --- */

static void send_record(shim_status status, int value)
{
    const shim_record record = {.status = (int32_t)status, .value = value};

    (void)stream_send(W->current->fds[3], &record, sizeof(record));
}

static void wait_for_agent_or_rank(object *agent)
{
    watch w = {.target = agent, .waiter = W->current, .events = EPOLLIN};

    w.next_of_target = agent->watchers;
    agent->watchers = &w;
    W->current->waits = &w;
    process_wait(NEVER);
    for (watch **at = &agent->watchers; *at != NULL; at = &(*at)->next_of_target)
        if (*at == &w) {
            *at = w.next_of_target;
            break;
        }
    W->current->waits = NULL;
}

void job_shim(void *arg)
{
    process *p = W->current;
    object *agent = p->fds[3];
    unsigned char number;

    (void)arg;
    send_record(SHIM_STARTED, p->rank->pid);
    while (!p->rank->is_dead) {
        if ((object_ready(agent) & EPOLLIN) == 0) {
            wait_for_agent_or_rank(agent);
            continue;
        }
        if (stream_receive(agent, &number, 1, false) <= 0)
            break;
        process_signal(p->rank, number);
    }
    if (p->rank->is_dead)
        send_record(SHIM_ENDED, p->rank->wait_status);
    process_die(p->rank, SIGKILL);
}

/* What it finds by the marks of the job is what this launcher has started. */
void job_guardian(void *arg)
{
    process *p = W->current;

    (void)arg;
    while ((object_ready(p->fds[3]) & EPOLLIN) == 0)
        wait_for_agent_or_rank(p->fds[3]);
    for (process *other = W->processes; other != NULL; other = other->next)
        if (other->host == p->host && (other->role == ROLE_SHIM || other->role == ROLE_RANK) &&
            (other->parent == p->parent || other->parent->parent == p->parent))
            process_die(other, SIGKILL);
}

/* --- a rank --- */

typedef struct toy {
    net_key key;
    bool has_key;
    net_address members_at;
    ls_store *members; /* NULL: the job is not elastic */
    control *hub;      /* NULL: one rank */
    char job[JOB_ID_BYTES];
    int member;
    bool is_new;
    int rank;
    int size;
    uint32_t generation;
    int64_t roster;
    uint64_t n_asked;
    uint64_t n_checked;
    int step;
    uint64_t state;
    bool has_state;
} toy;

static int number_of(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? (int)strtol(text, NULL, 10) : 0;
}

static ls_status open_members(toy *t)
{
    return control_open_store(&t->members_at, t->has_key ? &t->key : NULL, NET_AUTH, JOIN_MS,
                              &t->members);
}

static ls_status join_hub(toy *t, const net_address *at)
{
    control_options options = {.hub = *at,
                               .key = t->has_key ? &t->key : NULL,
                               .security = NET_AUTH,
                               .rank = t->rank,
                               .world_size = t->size,
                               .generation = t->generation,
                               .timeout_ms = JOIN_MS};

    text_format(options.job, sizeof(options.job), "%s", t->job);
    LS_TRY(control_open(&options, &t->hub));
    control_set_answer_limit(t->hub, OPERATION_MS);
    return LS_OK;
}

/* --- exchanges --- */

/* What a rank sends to the others in a step, or when they have joined. */
typedef struct share {
    int step;
    bool has_state;
    bool is_called;
    int first_shard;
    int last_shard;
    uint64_t state;
    uint64_t sum;
} share;

typedef struct shares {
    share own;
    int n;
    share newest;
    uint64_t sum;
    int next_shard;
    bool differs;
    bool is_called;
} shares;

static ls_status take_share(void *arg, int i, const void *value, size_t bytes)
{
    shares *all = arg;
    share s;

    if (bytes != sizeof(s))
        return ls_fail(LS_EPROTO, "a share of %zu bytes", bytes);
    memcpy(&s, value, sizeof(s));
    all->differs |= s.step != all->own.step || s.state != all->own.state;
    all->is_called |= s.is_called;
    all->sum += s.sum;
    if (s.first_shard != all->next_shard)
        world_fail("step %d: rank %d begins with shard %d, not %d", s.step, i, s.first_shard,
                   all->next_shard);
    all->next_shard = s.last_shard;
    if (s.has_state && (!all->newest.has_state || s.step > all->newest.step))
        all->newest = s;
    else if (s.has_state && s.step == all->newest.step && s.state != all->newest.state)
        world_fail("ranks have two states of step %d", s.step);
    return LS_OK;
}

static ls_status exchange(toy *t, const char *what, int number, shares *all)
{
    char prefix[64];
    char key[80];

    *all = (shares){.own = all->own, .n = t->size};
    if (t->hub == NULL)
        return take_share(all, 0, &all->own, sizeof(all->own));
    text_format(prefix, sizeof(prefix), "%s/%d/", what, number);
    text_format(key, sizeof(key), "%s%d", prefix, t->rank);
    LS_TRY(ls_store_set(control_store(t->hub), key, &all->own, sizeof(all->own)));
    LS_TRY(control_gather(t->hub, prefix, t->size, OPERATION_MS, take_share, all));
    text_format(key, sizeof(key), "%s/%d/%d", what, number - 2, t->rank);
    return ls_store_delete(control_store(t->hub), key, NULL);
}

static int shard_from(const toy *t, int rank)
{
    return (rank * W->spec->n_shards + t->size - 1) / t->size;
}

/* A seat in the next group is to be asked for: a new process waits. */
static bool is_called(const toy *t)
{
    char key[SEAT_KEY_BYTES];
    const char *keys[1] = {key};
    int is_there = 0;

    if (t->rank != 0 || t->members == NULL)
        return false;
    seat_call_key(key, t->roster);
    return ls_store_check(t->members, keys, 1, &is_there) == LS_OK && is_there;
}

static ls_status train_step(toy *t, bool *called)
{
    shares all = {.own = {.step = t->step,
                          .has_state = true,
                          .is_called = is_called(t),
                          .first_shard = shard_from(t, t->rank),
                          .last_shard = shard_from(t, t->rank + 1),
                          .state = t->state}};

    (void)poll(NULL, 0, W->spec->step_ms);
    for (int i = all.own.first_shard; i < all.own.last_shard; i++)
        all.own.sum += ls_hash3(t->state, (uint64_t)t->step, (uint64_t)i);
    LS_TRY(exchange(t, "step", t->step, &all));
    if (all.differs)
        world_fail("step %d: the ranks of roster %" PRId64 " have different states", t->step,
                   t->roster);
    if (all.next_shard != W->spec->n_shards)
        world_fail("step %d: %d shards of %d", t->step, all.next_shard, W->spec->n_shards);
    t->state = ls_hash3(t->state, (uint64_t)t->step, all.sum);
    t->step++;
    history_step(t->member, t->roster, t->step, t->state);
    *called = all.is_called;
    return LS_OK;
}

/* All begin with the newest state that one of them has. */
static ls_status share_state(toy *t)
{
    shares all = {.own = {.step = t->step,
                          .has_state = t->has_state,
                          .first_shard = t->rank,
                          .last_shard = t->rank + 1,
                          .state = t->state}};

    LS_TRY(exchange(t, "state", (int)t->roster, &all));
    if (!all.newest.has_state)
        return ls_fail(LS_EPEER, "no rank has the state");
    if (t->has_state && all.newest.step > t->step + 1)
        world_fail("rank %d is %d steps behind", t->rank, all.newest.step - t->step);
    t->step = all.newest.step;
    t->state = all.newest.state;
    t->has_state = true;
    return LS_OK;
}

/* --- seats, as comm/group/seat.c asks for them --- */

static ls_status question(toy *t, const seat_report *r, const char *answer_key, char *answer,
                          size_t n)
{
    char key[SEAT_KEY_BYTES];
    char text[SEAT_KEY_BYTES];
    void *value;
    ls_status st;

    if (t->members == NULL)
        return ls_fail(LS_EPEER, "no connection to the launcher");
    seat_write_report(r, key, text);
    LS_TRY(ls_store_set(t->members, key, text, strlen(text)));
    if (answer_key == NULL)
        return LS_OK;
    st = ls_store_get(t->members, answer_key, OPERATION_MS, &value, NULL);
    if (st == LS_OK) {
        text_format(answer, n, "%s", (const char *)value);
        ls_store_free(value);
    }
    return st;
}

static bool reconnects(toy *t, ls_status st)
{
    if (st != LS_EPEER || net_address_family(&t->members_at) != NET_UNIX)
        return false;
    ls_store_close(t->members);
    t->members = NULL;
    return open_members(t) == LS_OK;
}

static ls_status report_ready(toy *t)
{
    const seat_report r = {.member = t->member, .is_ready = true};
    ls_status st;

    if (t->members == NULL)
        return LS_OK;
    do {
        st = question(t, &r, NULL, NULL, 0);
    } while (reconnects(t, st));
    return st;
}

static ls_status ask_for_seat(toy *t, seat_answer *out)
{
    char key[SEAT_KEY_BYTES];
    char text[SEAT_TEXT_BYTES];
    ls_status st;

    do {
        const seat_report r = {.member = t->member,
                               .roster = t->roster,
                               .number = ++t->n_asked,
                               .has_state = t->has_state};

        st = question(t, &r, seat_answer_key(key, t->member, r.number), text, sizeof(text));
    } while (reconnects(t, st));
    LS_TRY(st);
    return seat_read_answer(text, out);
}

static ls_status take_seat(toy *t, const seat_answer *answer)
{
    net_address at = t->members_at;

    t->roster = answer->roster;
    t->rank = answer->rank;
    t->size = answer->size;
    t->generation = answer->generation;
    t->is_new = false;
    history_seat(W->current->host, answer->roster, answer->rank, answer->size, answer->unix_url);
    if (t->size == 1)
        return LS_OK;
    if (strcmp(answer->unix_url, SEAT_SAME_HUB) == 0)
        LS_TRY(net_address_parse(getenv("LOCKSTEP_STORE"), NET_PORT_REQUIRED, &at));
    else if (net_address_family(&at) == NET_UNIX)
        LS_TRY(net_address_parse(answer->unix_url, NET_PORT_REQUIRED, &at));
    else
        net_address_set_port(&at, answer->port);
    return join_hub(t, &at);
}

static bool may_ask_again(ls_status st)
{
    return st == LS_EPEER || st == LS_ETIMEOUT || st == LS_ECANCELED;
}

static ls_status recover(toy *t)
{
    for (;;) {
        seat_answer answer;
        ls_status st;

        control_close(t->hub);
        t->hub = NULL;
        LS_TRY(ask_for_seat(t, &answer));
        st = take_seat(t, &answer);
        if (st == LS_OK)
            st = share_state(t);
        if (st == LS_OK)
            st = report_ready(t);
        if (!may_ask_again(st))
            return st;
    }
}

/* Only a rank of the present group may write files. */
static ls_status save(toy *t)
{
    char key[SEAT_KEY_BYTES];
    char text[SEAT_TEXT_BYTES];
    ls_status st = LS_OK;

    if (t->rank != 0)
        return LS_OK;
    while (t->members != NULL) {
        const seat_report r = {.member = t->member, .is_check = true, .number = ++t->n_checked};

        st = question(t, &r, seat_checked_key(key, t->member, r.number), text, sizeof(text));
        if (!reconnects(t, st))
            break;
    }
    LS_TRY(st);
    if (t->members != NULL && strtoll(text, NULL, 10) != t->roster)
        return ls_fail(LS_ECANCELED, "rank 0 is not a rank of the job any more");
    history_save(t->member, t->roster, t->step, t->state);
    return LS_OK;
}

/* --- life --- */

static ls_status begin(toy *t)
{
    net_address hub;

    LS_TRY(net_key_inherit(&t->key, &t->has_key));
    LS_TRY(net_address_parse(getenv("LOCKSTEP_STORE"), NET_PORT_REQUIRED, &hub));
    text_format(t->job, sizeof(t->job), "%s", getenv("LOCKSTEP_JOB"));
    t->rank = number_of("LOCKSTEP_RANK");
    t->size = number_of("LOCKSTEP_WORLD_SIZE");
    t->generation = (uint32_t)number_of("LOCKSTEP_GENERATION");
    t->member = getenv("LOCKSTEP_ELASTIC") != NULL ? number_of("LOCKSTEP_MEMBER") : t->rank;
    t->is_new = getenv("LOCKSTEP_NEW_MEMBER") != NULL;
    t->has_state = !t->is_new;
    t->state = W->spec->seed;
    if (getenv("LOCKSTEP_ELASTIC") != NULL) {
        LS_TRY(net_address_parse(getenv("LOCKSTEP_ELASTIC"), NET_PORT_REQUIRED, &t->members_at));
        LS_TRY(open_members(t));
    }
    if (t->is_new)
        return recover(t);
    if (t->size > 1)
        LS_TRY(join_hub(t, &hub));
    LS_TRY(share_state(t));
    return report_ready(t);
}

static ls_status train(toy *t)
{
    while (t->step < W->spec->n_steps) {
        bool called = false;
        ls_status st = train_step(t, &called);

        if (st == LS_OK && t->step % SAVE_STEPS == 0)
            st = save(t);
        if ((st == LS_OK && called) || (may_ask_again(st) && t->members != NULL))
            st = recover(t);
        LS_TRY(st);
    }
    return LS_OK;
}

int job_rank(int local_rank, void *arg)
{
    toy t = {0};
    ls_status st = begin(&t);

    (void)local_rank;
    (void)arg;
    if (st == LS_OK)
        st = train(&t);
    if (st == LS_OK)
        history_finish(t.member, t.step);
    else
        history_error(W->current, ls_last_error());
    control_close(t.hub);
    ls_store_close(t.members);
    return st;
}
