/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rendezvous_sim.c - whole jobs of simulated nodes (rendezvous_nodes.h) around the rendezvous
 * machine, by thousands of seeded schedules. The head is ticked only when it asked for it.
 *
 * LS_TEST_ROUNDS multiplies the number of schedules, LS_TEST_SEED=N runs that one alone.
 */
#include "rendezvous_nodes.h"

#include "base/text.h"

#include <signal.h>
#include <stdlib.h>

enum { ROUNDS = 6000, STEPS_MAX = 2000000 };

static sim world;

/* What all schedules together have met: a simulator that meets nothing proves nothing. */
static struct {
    int rosters;
    int starts;
    int restarts;
    int free_restarts;
    int good_ends;
    int failed_ends;
    int stopped_ends;
    int late_ends; /* nodes did not come (back) */
    int rejects;
    int spares;
    int kills;
    int leaves;
    int needed; /* nodes that the job could not spare */
} met;

/* Of the roster, by node. */
static uint64_t status_conn[NODES_MAX];
static unsigned char is_ready[NODES_MAX];
static unsigned char has_ended[NODES_MAX];
static bool is_given_up; /* a node of it, before it started */

/* What the head has received from each connection and answered, as far as it counts for SIGTERM. */
typedef enum standing { UNKNOWN, STAYING, LEAVING } standing;
static unsigned char standing_of[CONNS_MAX];

/* --- what the head does, and what must hold about it --- */

static int count_staying(const sim *s)
{
    int n = 0;

    for (uint64_t i = 1; i <= s->n_conns; i++)
        n += standing_of[i] == STAYING;
    return n;
}

/* The job goes on without a node, or ends as at any other stop. A second signal changes nothing,
 * and nothing comes of one on a connection that the head has ended. */
static void judge_signal(sim *s, const rdzv_event *e, int node)
{
    unsigned char *own = &standing_of[e->conn];

    if (s->ended || *own == UNKNOWN || (e->kind == RDZV_STOP && *own == LEAVING))
        return;
    if (e->kind == RDZV_LEAVE && s->stop_signal == 0 && !s->opt.by_id && node != 0 &&
        count_staying(s) - (*own == STAYING) >= s->opt.min_nodes) {
        *own = LEAVING;
        return;
    }
    met.needed += e->kind == RDZV_LEAVE;
    s->stop_signal = s->stop_signal == 0 ? e->signal : s->stop_signal;
}

/* All that leave are dismissed before the others restart. */
static void check_leaving(sim *s, const rdzv_event *e, const rdzv_result *r)
{
    bool restarts = false;

    if (e->kind == RDZV_GONE)
        standing_of[e->conn] = UNKNOWN;
    if (e->kind == RDZV_ARRIVED)
        standing_of[e->conn] = STAYING;
    for (int i = 0; i < r->n_actions; i++) {
        const rdzv_action *a = &r->actions[i];

        restarts = restarts || a->kind == RDZV_DO_RESTART;
        if (a->kind != RDZV_DO_REJECT && a->kind != RDZV_DO_END)
            continue;
        if (text_starts(a->text, "stopped by SIGTERM: this node has left")) {
            CHECK(s, standing_of[a->conn] == LEAVING);
            s->n_rejected++;
            met.leaves++;
        }
        standing_of[a->conn] = UNKNOWN;
    }
    for (uint64_t i = 1; restarts && i <= s->n_conns; i++)
        CHECK(s, standing_of[i] != LEAVING);
}

static int node_of(uint64_t conn, const sim *s)
{
    for (int i = 0; i < s->n_nodes; i++)
        if (sim_nodes[i].conn == conn && conn != 0)
            return i;
    return -1;
}

/* The node number that a connection has in the roster, by its welcome. */
static int place_of(const sim *s, uint64_t conn)
{
    for (int i = 0; i < s->status_nodes; i++)
        if (status_conn[i] == conn)
            return i;
    return -1;
}

/* A whole roster in one step: each number once, ranks without a gap, one world for all. */
static void check_roster(sim *s, const rdzv_result *r)
{
    static unsigned char seen[NODES_MAX];
    const rdzv_place *first = NULL;
    int n = 0;
    int ranks = 0;
    int n_places;

    for (int i = 0; i < r->n_actions; i++) {
        const rdzv_place *p = r->actions[i].place;

        if (r->actions[i].kind != RDZV_DO_WELCOME)
            continue;
        if (first == NULL) {
            first = p;
            memset(seen, 0, sizeof(seen));
        }
        CHECK(s, p->conn == r->actions[i].conn);
        CHECK(s, p->generation == first->generation && p->world_size == first->world_size);
        CHECK(s, p->n_nodes == first->n_nodes && p->n_restarts == first->n_restarts);
        CHECK(s, p->node >= 0 && p->node < p->n_nodes && !seen[p->node]);
        CHECK(s, p->node == 0 || p->rank_base == p[-1].rank_base + p[-1].n_local);
        CHECK(s, p->node != 0 || p->rank_base == 0);
        seen[p->node] = 1;
        ranks += p->n_local;
        n++;
    }
    if (first == NULL)
        return;
    CHECK(s, n == first->n_nodes && ranks == first->world_size);
    CHECK(s, n >= s->opt.min_nodes && n <= s->opt.max_nodes);
    CHECK(s, first->generation > s->generation);
    for (int i = 0; s->started && i < s->status_nodes; i++)
        CHECK(s, has_ended[i]); // of the roster before
    CHECK(s, rdzv_places(s->m, &n_places)[0].generation == first->generation && n_places == n);
    met.rosters++;
    s->generation = first->generation;
    s->status_nodes = n;
    for (int i = 0; i < n; i++)
        status_conn[i] = rdzv_places(s->m, &n_places)[i].conn;
    s->started = false;
    is_given_up = false;
    memset(is_ready, 0, sizeof(is_ready));
    memset(has_ended, 0, sizeof(has_ended));
}

/* All start, and only when all have sent ready. No node is lost as far as the head knows. */
static void check_start(sim *s, const rdzv_result *r)
{
    int n = 0;

    for (int i = 0; i < r->n_actions; i++) {
        if (r->actions[i].kind != RDZV_DO_START)
            continue;
        CHECK(s, r->actions[i].place->generation == s->generation);
        CHECK(s, is_ready[r->actions[i].place->node]);
        n++;
    }
    if (n == 0)
        return;
    CHECK(s, n == s->status_nodes && !s->started);
    met.starts++;
    s->started = true;
    s->has_cause = false;
}

static void check_restart(sim *s, const rdzv_action *a)
{
    CHECK(s, !s->ended && a->text[0] != 0);
    s->n_restarts += text_starts(a->text, "restart ");
    met.restarts += text_starts(a->text, "restart ");
    met.free_restarts += !text_starts(a->text, "restart ");
    CHECK(s, s->n_restarts <= s->opt.max_restarts);
}

/* The first failure of the roster, as this test has seen it, is what the job ends with. */
static void check_finish(sim *s, const rdzv_action *a)
{
    CHECK(s, !s->ended);
    s->ended = true;
    s->exit_code = a->exit_code;
    text_format(s->end_text, sizeof(s->end_text), "%s", a->text);
    CHECK(s, (a->exit_code == 0) == (a->text[0] == 0));
    met.good_ends += a->exit_code == 0;
    met.stopped_ends += text_starts(a->text, "stopped by ");
    met.late_ends += strstr(a->text, "join") != NULL;
    met.failed_ends += a->exit_code != 0;
    if (text_starts(a->text, "stopped by "))
        CHECK(s, s->stop_signal != 0 && a->exit_code == 128 + s->stop_signal);
    else if (a->exit_code != 0 && s->has_cause && strstr(a->text, s->cause_text) == NULL)
        fail_msg("LS_TEST_SEED=%" PRIu64 ": the cause is \"%s\", and the job ends with \"%s\"",
                 s->seed, s->cause_text, a->text);
}

/* The oracle of the root cause, from the messages to the head only. */
static void judge(sim *s, const rdzv_event *e, int place, int64_t at_ms, bool is_strong)
{
    if (s->has_cause && (s->cause_crash || !is_strong || at_ms - s->cause_ms >= 100))
        return;
    s->has_cause = true;
    s->cause_crash = is_strong;
    s->cause_ms = at_ms;
    if (e->kind == RDZV_FAILED)
        text_format(s->cause_text, sizeof(s->cause_text), "%s", e->text);
    else
        text_format(s->cause_text, sizeof(s->cause_text), "node %d ", place);
}

/* A member that the head itself gives up: it came twice, or did not get ready. */
static void judge_reject(sim *s, const rdzv_action *a)
{
    const int place = place_of(s, a->conn);

    if (place < 0 || has_ended[place])
        return;
    has_ended[place] = 1;
    if (text_starts(a->text, "ranks cannot be killed"))
        return; // that follows from something else
    if (!s->started && !text_starts(a->text, "not ready within"))
        return; // nothing was lost yet
    if (!s->started && !is_given_up)
        s->has_cause = false;
    is_given_up = true;
    judge(s, &(rdzv_event){.kind = RDZV_GONE}, place, s->now, true);
}

static void carry_out(sim *s, const rdzv_result *r)
{
    const bool was_over = s->ended;

    for (int i = 0; i < r->n_actions; i++)
        if (r->actions[i].kind == RDZV_DO_REJECT)
            judge_reject(s, &r->actions[i]);
    check_roster(s, r);
    check_start(s, r);
    for (int i = 0; i < r->n_actions; i++) {
        const rdzv_action *a = &r->actions[i];
        const int node = node_of(a->conn, s);
        message *m;

        CHECK(s, !was_over || a->kind == RDZV_DO_REJECT || a->kind == RDZV_DO_NOTE);
        CHECK(s, !s->ended || was_over);
        met.rejects += a->kind == RDZV_DO_REJECT;
        met.spares += a->kind == RDZV_DO_WAIT;
        met.kills += a->kind == RDZV_DO_KILL;
        if (a->kind == RDZV_DO_RESTART)
            check_restart(s, a);
        else if (a->kind == RDZV_DO_FINISH)
            check_finish(s, a);
        if (a->conn == RDZV_HEAD || node < 0 || sim_nodes[node].is_cut)
            continue;
        m = sim_post(s, MSG_ACTION, node, sim_arrival(s, &sim_nodes[node].to_node_ms));
        m->action = a->kind;
        m->generation = a->place == NULL ? 0 : a->place->generation;
    }
}

/* What the head is about to receive. */
static void watch(sim *s, const rdzv_event *e)
{
    const rdzv_phase phase = rdzv_phase_now(s->m);
    const int place = place_of(s, e->conn);
    const bool is_now = place >= 0 && (e->kind == RDZV_GONE || e->generation == s->generation);

    if (!is_now)
        return;
    if (e->kind == RDZV_READY || e->kind == RDZV_GONE)
        is_ready[place] = e->kind == RDZV_READY;
    if (e->kind == RDZV_FINISHED && phase != RDZV_AGREE)
        has_ended[place] = 1;
    if (!s->started || has_ended[place])
        return;
    if (e->kind == RDZV_GONE && (phase == RDZV_RUN || phase == RDZV_DRAIN)) {
        has_ended[place] = 1;
        judge(s, e, place, e->last_seen_ms, true);
    }
    if (e->kind == RDZV_FAILED && (phase == RDZV_RUN || (phase == RDZV_DRAIN && s->has_cause)))
        judge(s, e, place, s->now, e->crashed);
}

void sim_step(sim *s, rdzv_event *e, int node)
{
    rdzv_result r;

    if (e->kind == RDZV_GONE && e->last_seen_ms == INT64_MAX)
        e->last_seen_ms = s->now;
    watch(s, e);
    if (e->kind == RDZV_LEAVE || (e->kind == RDZV_STOP && e->conn != RDZV_HEAD))
        judge_signal(s, e, node);
    r = rdzv_step(s->m, e, s->now);
    check_leaving(s, e, &r);
    CHECK(s, r.wake_at_ms > s->now);
    s->wake_at = r.wake_at_ms;
    carry_out(s, &r);
}

/* --- one schedule --- */

static void plan_faults(sim *s)
{
    for (int i = 0; i < s->n_nodes; i++) {
        const int n = 1 + sim_below(s, 3);

        sim_post(s, MSG_COME, i, sim_below(s, 3000));
        for (int k = 0; k < n; k++) {
            const int64_t at = sim_below(s, (int)s->calm_ms);

            if (sim_fault(s, 15))
                sim_post(s, MSG_CRASH, i, at);
            if (sim_fault(s, 8))
                sim_post(s, MSG_CUT, i, at);
            if (sim_fault(s, 5))
                sim_post(s, MSG_RECONNECT, i, at);
            if (sim_fault(s, 4))
                sim_post(s, MSG_LEAVE, i, at);
        }
        sim_nodes[i].unkillable = sim_fault(s, 1);
        sim_nodes[i].stays_away = sim_fault(s, 3);
    }
    if (sim_fault(s, 5))
        sim_post(s, MSG_STOP, 0, sim_below(s, (int)s->calm_ms));
}

static void open_world(sim *s, uint64_t seed, int size)
{
    int n_extra;

    memset(s, 0, offsetof(sim, box));
    memset(&s->generation, 0, sizeof(*s) - offsetof(sim, generation));
    s->n_box = 0;
    s->n_unused = 0;
    for (int i = 0; i < MESSAGES_MAX; i++)
        s->unused[s->n_unused++] = &s->store[i];
    memset(sim_nodes, 0, sizeof(sim_nodes));
    memset(standing_of, 0, sizeof(standing_of));
    s->seed = seed;
    ls_rng_seed(&s->rng, seed);
    s->opt.by_id = sim_chance(s, 40);
    s->opt.max_nodes = size > 0 ? size : 1 + sim_below(s, 8);
    s->opt.min_nodes =
        s->opt.by_id || sim_chance(s, 30) ? s->opt.max_nodes : 1 + sim_below(s, s->opt.max_nodes);
    s->opt.max_restarts = sim_chance(s, 30) ? 0 : sim_below(s, 6);
    s->opt.max_spares = 4;
    s->opt.version = "1";
    s->opt.host = "head";
    s->opt.join_ms = 60000;
    s->opt.last_call_ms = sim_chance(s, 30) ? -1 : 1 + sim_below(s, 5000);
    s->opt.ready_ms = 8000;
    s->opt.grace_ms = 3000;
    s->fault_percent = sim_chance(s, 20) ? 0 : 1 + sim_below(s, size > 0 ? 10 : 100);
    s->calm_ms = 1 + sim_below(s, 60000);
    n_extra = s->opt.by_id ? 0 : sim_below(s, 4);
    s->n_nodes = s->opt.max_nodes + n_extra;
    for (int i = 0; i < s->n_nodes; i++) {
        sim_nodes[i].id = s->opt.by_id ? i : sim_chance(s, 30) ? sim_below(s, 5) : -1;
        sim_nodes[i].n_local = 1 + sim_below(s, 8);
        sim_nodes[i].host = sim_chance(s, 90) ? i : sim_below(s, s->n_nodes);
    }
    assert_ok(rdzv_create(&s->opt, 0, &s->m));
    s->wake_at = s->opt.join_ms;
    plan_faults(s);
}

/* Enough nodes were up after the calm, and nothing kept them from finishing. */
static void check_outcome(sim *s)
{
    const bool was_late = strstr(s->end_text, "join") != NULL;

    CHECK(s, s->ended);
    CHECK(s, s->exit_code != 0 || s->started);
    CHECK(s, s->exit_code == 0 || s->fault_percent > 0);
    CHECK(s, !was_late || s->n_rejected > 0);
    CHECK(s, s->exit_code == 0 || was_late || s->stop_signal != 0 ||
                 s->n_restarts == s->opt.max_restarts);
}

static void run_schedule(uint64_t seed, int size)
{
    sim *s = &world;
    int n_steps = 0;

    open_world(s, seed, size);
    while (n_steps++ < STEPS_MAX) {
        const bool has_message = s->n_box > 0;

        if (s->ended && !has_message)
            break;
        if (has_message && s->box[0]->at_ms < s->wake_at) {
            const message m = sim_take(s);

            s->now = m.at_ms > s->now ? m.at_ms : s->now;
            sim_deliver(s, &m);
        } else {
            CHECK(s, s->wake_at != RDZV_NEVER); // no message will ever come again
            s->now = s->wake_at;
            sim_step(s, &(rdzv_event){.kind = RDZV_TICK}, 0);
        }
    }
    check_outcome(s);
    rdzv_destroy(s->m);
}

static int number_from(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text == NULL ? otherwise : (int)strtol(text, NULL, 10);
}

static void any_schedule_keeps_the_promises(void **state)
{
    const int only = number_from("LS_TEST_SEED", -1);
    const int rounds = ROUNDS * number_from("LS_TEST_ROUNDS", 1);

    (void)state;
    if (only >= 0) {
        run_schedule((uint64_t)only, 0);
        return;
    }
    print_message("seeds 0 to %d\n", rounds - 1);
    for (int seed = 0; seed < rounds; seed++)
        run_schedule((uint64_t)seed, 0);
    print_message("met: %d rosters, %d starts, %d restarts, %d free ones, %d good ends, %d failed, "
                  "%d stopped, "
                  "%d too late, %d rejected, %d spares, %d kills, %d left, %d needed\n",
                  met.rosters, met.starts, met.restarts, met.free_restarts, met.good_ends,
                  met.failed_ends, met.stopped_ends, met.late_ends, met.rejects, met.spares,
                  met.kills, met.leaves, met.needed);
    assert_true(met.restarts > 100 && met.free_restarts > 100 && met.late_ends > 10);
    assert_true(met.good_ends > 100 && met.failed_ends > 100 && met.stopped_ends > 10);
    assert_true(met.leaves > 100 && met.needed > 100);
    assert_true(met.rejects > 100 && met.spares > 100 && met.kills > 10);
}

static void a_thousand_nodes_keep_the_promises(void **state)
{
    const int rounds = number_from("LS_TEST_ROUNDS", 1);

    (void)state;
    for (int i = 0; i < 20 * rounds; i++)
        run_schedule((uint64_t)i, 20 + i % 20 * 5);
    for (int i = 0; i < rounds; i++)
        run_schedule((uint64_t)i, 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_schedule_keeps_the_promises),
        cmocka_unit_test(a_thousand_nodes_keep_the_promises),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
