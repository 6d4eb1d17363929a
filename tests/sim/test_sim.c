/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sim.c - whole jobs of several machines in one process, by seeds: see sim.h.
 *
 *     test_sim                     faults that were found once, and then 2,000 seeds
 *     test_sim 0                   only the first of these
 *     test_sim SEEDS [FIRST]       runs so many seeds; each hundredth one twice, and compares
 *     test_sim -v SEED [FAULT...]  one seed, with only these faults of it; prints what happens
 *
 * A seed that fails is run again with fewer faults, until none can be left out, and the command
 * that repeats it is printed.
 *
 * Faults that were planted one at a time, and the first seed from 1 that found each:
 *
 *     no pre-votes, and a refusal ends a head (succession.c, as before commit 51bd29e4)       16
 *     a node votes twice in a term (succession.c: on_ask)                                     28
 *     a head acts before its state is committed (head_elastic.c: take)                        15
 *     events that wait for a commit are left out (head_elastic.c: head_committed)             22
 *     only the first action of a commit is carried out (head_elastic.c: head_committed)        2
 *     two ranks of a group get one number (head_elastic.c: give_seats)                         1
 *     ranks are not called for a new group (head_elastic.c: call_members)                     40
 *     the machine of a next head does not learn that the head has moved (head_move_members)    8
 *     nodes that do not come to the next head are waited for (head_begin_again)              156
 *     a next head does not announce its address (agent_link.c: take_over)                      8
 *     connections of ranks stay when the head is lost (agent_link.c: agent_link_leave)         8
 *     an agent sends one heartbeat (agent_link.c: on_beat)                                     8
 *     an agent never leaves a head that leads on without it (agent_link.c: on_still_led)      13
 *     a listener does not accept again after it had no descriptors (net/auth/listener.c)     519
 *     buffers of a standby connection that has ended stay (standby.c, as before a071b208)     13
 *     a lost rank is not replaced (recovery.c: on_died)                                        1
 *     a question counts for two groups (recovery.c: make_roster)                               1
 *     a rank keeps the number of its first roster (seat.c: join_roster)                       11
 *     all questions have one number, so that an old answer is taken (seat.c: ask)              2
 *     a rank does not connect to the store of the next head (seat.c: reconnects)               8
 *     a rank joins with the generation of its first group (seat.c: join_roster)                8
 *     operations that have ended count as failed (native.c, as before commit fccdf933)       492
 *     the end of a peer's connection is not reported (native.c: native_on_link_end)           35
 *     half of a newer state is put in its place (ddp/elastic.c: receive_beside)               67
 *     the lowest step wins (newest_state.c: find_source)                                      67
 *     a state is sent to new processes only (newest_state.c: is_sent)                         67
 *     shards stay as they were divided (ddp/elastic.c: regroup)                                8
 *     ranks have different orders of parameters (ddp/elastic.c: take_order)                  194
 *     buffers stay those of the step that failed (ddp/elastic.c: regroup)                     11
 *     gradients of a step that failed stay (ddp/elastic.c: ddp_drop_step)                      1
 *
 * Found within 125 seeds while each fault of a rank was a FAULT_RANK, and not in 200 since: a lost
 * connection to the hub breaks no group (watch.c), a state is not reported after a recovery, and a
 * loss during one ends the rank (ddp/elastic.c). Not tried again: a call stays in the next group
 * (seat.c).
 *
 * Not found in 200 seeds, the first two in 1,000. Most have an effect that another way has, too,
 * only later, or need a fault that is not made here: causes of the hub break no group (watch.c), a
 * key wakes the first wait only (hub_store.c); ranks are not notified of a failed group, a refused
 * seat is not answered, all rosters have one generation (head_elastic.c); a lost rank is not
 * reported, nor causes to a rank that joins (hub_ranks.c); leaves are ignored (watch.c,
 * hub_ranks.c); a failed write is not noted (link.c); refusals are not sent, and a state is not
 * sent again to a standby that has connected again (succession.c); absent members are not killed,
 * or awaited without an end, questions are taken twice or from an earlier roster, their numbers
 * are not in the state (recovery.c); a process stays new, or asks as one that has a state, seats
 * are not checked (seat.c); a process never has a state, or receives a newer one in place
 * (ddp/elastic.c).
 */
#include "sim/sim.h"

#include <inttypes.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    SEEDS = 2000,
    TWICE = 100,
    SCENE_SEEDS = 25,
    ALLOCATIONS_STEP = 2,
    LEARN_SEEDS = 3,
    SEED_S = 15 /* of CPU time: it loops */,
    CRASH_STACK = 256 * 1024
};

typedef struct outcome {
    uint64_t trace;
    uint64_t n_events;
    int64_t ns;
    int n_groups;
    int n_takeovers;
    char failure[FAILURE_TEXT];
} outcome;

static uint32_t random_word(void)
{
    return W == NULL ? 4 : (uint32_t)ls_hash3(W->spec->seed, ++W->last_random, 8);
}

static void random_bytes(void *buf, size_t n)
{
    unsigned char *at = buf;

    for (size_t i = 0; i < n; i++)
        at[i] = (unsigned char)(random_word() >> 8);
}

static const char *random_name(void)
{
    return "seed";
}

static void run_scenario(const scenario *s, bool is_verbose, outcome *out)
{
    const struct itimerval limit = {.it_value = {.tv_sec = SEED_S}};

    do {
        (void)setitimer(ITIMER_VIRTUAL, &limit, NULL);
        world_begin(s);
        W->is_verbose = is_verbose;
        faults_begin();
        job_start();
        faults_end();
        *out = (outcome){.trace = W->trace,
                         .n_events = W->n_events,
                         .ns = W->now,
                         .n_groups = W->n_groups,
                         .n_takeovers = W->n_takeovers};
        memcpy(out->failure, W->failure, sizeof(out->failure));
    } while (!world_end());
}

/* In a child, because the launcher may crash. */
static bool fails(const scenario *s)
{
    const pid_t pid = fork();
    outcome o;
    int status = 0;

    if (pid == 0) {
        (void)freopen("/dev/null", "w", stderr);
        run_scenario(s, false, &o);
        _exit(o.failure[0] != 0);
    }
    while (waitpid(pid, &status, 0) < 0)
        continue;
    return status != 0;
}

/* Leaves out each fault without which the seed still fails. */
static void shorten(scenario *s)
{
    for (int i = 0; i < s->n_faults; i++) {
        const fault_kind kind = s->faults[i].kind;

        if (kind == FAULT_KINDS)
            continue;
        s->faults[i].kind = FAULT_KINDS;
        if (!fails(s))
            s->faults[i].kind = kind;
        else
            i = -1;
    }
}

static void print_commit(void)
{
    FILE *git = popen("git -C " LS_SOURCE_DIR " describe --always --dirty 2>/dev/null", "r");
    char text[64] = "unknown";

    if (git != NULL && fgets(text, sizeof(text), git) != NULL)
        text[strcspn(text, "\n")] = 0;
    if (git != NULL)
        (void)pclose(git);
    (void)printf("commit %s\n", text);
}

static void report(uint64_t seed, const char *failure)
{
    scenario s;
    char text[160];

    scenario_make(seed, &s);
    (void)printf("seed %" PRIu64 " fails: %s\n", seed, failure);
    print_commit();
    (void)fflush(stdout);
    shorten(&s);
    (void)printf("repeat with: test_sim -v %" PRIu64, seed);
    for (int i = 0; i < s.n_faults; i++)
        if (s.faults[i].kind != FAULT_KINDS)
            (void)printf(" %d", i);
    (void)printf("\nthe faults that it needs:\n");
    for (int i = 0; i < s.n_faults; i++)
        if (s.faults[i].kind != FAULT_KINDS) {
            fault_text(&s.faults[i], text, sizeof(text));
            (void)printf("  fault %d %s\n", i, text);
        }
    (void)fflush(stdout);
}

/* --- crashes --- */

static void on_crash(int number)
{
    const uint64_t seed = W != NULL ? W->spec->seed : 0;
    const char *process_name = W != NULL && W->current != NULL ? W->current->name : "?";
    char text[96];

    (void)signal(number, SIG_DFL);
    (void)snprintf(text, sizeof(text), "%s crashes with signal %d", process_name, number);
    W->current = NULL;
    report(seed, text);
    raise(number);
}

static void catch_crashes(void)
{
    const stack_t alternate = {.ss_sp = sim_alloc(CRASH_STACK), .ss_size = CRASH_STACK};
    const int numbers[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGVTALRM};

    (void)sigaltstack(&alternate, NULL);
    for (size_t i = 0; i < LS_COUNT_OF(numbers); i++)
        (void)signal(numbers[i], on_crash);
}

static int run_seeds(uint64_t n, uint64_t first)
{
    outcome sum = {0};

    for (uint64_t seed = first; seed < first + n; seed++) {
        scenario s;
        outcome o;
        outcome again;

        scenario_make(seed, &s);
        run_scenario(&s, false, &o);
        if (o.failure[0] != 0) {
            report(seed, o.failure);
            return 1;
        }
        sum.n_events += o.n_events;
        sum.ns += o.ns;
        sum.n_groups += o.n_groups;
        sum.n_takeovers += o.n_takeovers;
        if (seed % TWICE != 0)
            continue;
        run_scenario(&s, false, &again);
        if (again.trace != o.trace) {
            (void)printf("seed %" PRIu64 " has two traces\n", seed);
            return 1;
        }
    }
    (void)printf("%" PRIu64 " seeds from %" PRIu64 ": %.1f simulated hours, %" PRIu64
                 " events, %d new groups, %d takeovers, %.1f s of CPU time\n",
                 n, first, (double)sum.ns / 3600e9, sum.n_events, sum.n_groups, sum.n_takeovers,
                 (double)clock() / CLOCKS_PER_SEC);
    return 0;
}

/* --- faults that were found, each with the seeds of some runs --- */

static const struct {
    const char *what;
    scenario s;
} scenes[] = {
    {"a machine that was cut off comes back",
     {.n_steps = 120,
      .n_faults = 1,
      .faults = {{.kind = FAULT_ISOLATE, .at_ms = 6000, .length_ms = 7000, .a = 2}}}},
    {"a machine that was cut off in one direction comes back",
     {.n_steps = 120,
      .n_faults = 1,
      .faults = {{.kind = FAULT_CUT_ONE, .at_ms = 6000, .length_ms = 6900, .a = 2, .b = 0}}}},
    {"SIGTERM while the job has no head",
     {.n_steps = 120,
      .n_faults = 3,
      .faults = {{.kind = FAULT_KILL, .at_ms = 4000},
                 {.kind = FAULT_ISOLATE, .at_ms = 6400, .length_ms = 6500, .a = 1},
                 {.kind = FAULT_TERM, .at_ms = 14100, .a = 2}}}},
    {"the next head has a state in which its own node is lost",
     {.n_steps = 80,
      .n_faults = 2,
      .faults = {{.kind = FAULT_CUT_ONE, .at_ms = 2566, .length_ms = 6488, .a = 1},
                 {.kind = FAULT_ISOLATE, .at_ms = 4373, .length_ms = 9158, .a = 2}}}},
    {"the next head, or a node that comes to it, was lost for the head before",
     {.n_steps = 120,
      .n_faults = 2,
      .faults = {{.kind = FAULT_ISOLATE, .at_ms = 6300, .length_ms = 4400},
                 {.kind = FAULT_KILL, .at_ms = 13300}}}},
    {"a machine comes back when the ranks of another one are lost",
     {.n_steps = 170,
      .n_faults = 3,
      .faults = {{.kind = FAULT_RANK, .at_ms = 6000, .a = 1},
                 {.kind = FAULT_RANK, .at_ms = 6000, .a = 1, .b = 1},
                 {.kind = FAULT_ISOLATE, .at_ms = 8000, .length_ms = 9000, .a = 2}}}},
    {"SIGTERM to the head, whose ranks are lost",
     {.n_steps = 120,
      .n_faults = 3,
      .faults = {{.kind = FAULT_RANK, .at_ms = 6000},
                 {.kind = FAULT_RANK, .at_ms = 6000, .b = 1},
                 {.kind = FAULT_TERM, .at_ms = 12000}}}},
    {"SIGTERM to another launcher, whose ranks are lost",
     {.n_steps = 120,
      .n_faults = 3,
      .faults = {{.kind = FAULT_RANK, .at_ms = 6000, .a = 1},
                 {.kind = FAULT_RANK, .at_ms = 6000, .a = 1, .b = 1},
                 {.kind = FAULT_TERM, .at_ms = 12000, .a = 1}}}},
    {"the head is lost, and another machine has no ranks any more",
     {.n_steps = 120,
      .n_faults = 3,
      .faults = {{.kind = FAULT_RANK, .at_ms = 6000, .a = 1},
                 {.kind = FAULT_RANK, .at_ms = 6000, .a = 1, .b = 1},
                 {.kind = FAULT_KILL, .at_ms = 12000}}}},
    {"a head without ranks is left alone, and does not end with code 0",
     {.n_steps = 120,
      .n_faults = 4,
      .faults = {{.kind = FAULT_RANK, .at_ms = 6000, .a = 1},
                 {.kind = FAULT_RANK, .at_ms = 6000, .a = 1, .b = 1},
                 {.kind = FAULT_KILL, .at_ms = 8000},
                 {.kind = FAULT_KILL, .at_ms = 12000, .a = 2}}}},
    {"SIGTERM to the head after a machine that it had lost is back",
     {.n_steps = 230,
      .n_faults = 2,
      .faults = {{.kind = FAULT_ISOLATE, .at_ms = 6000, .length_ms = 7000, .a = 2},
                 {.kind = FAULT_TERM, .at_ms = 36000}}}},
    {"the head is killed after machines without node ranks have come back in other places",
     {.n_steps = 130,
      .by_arrival = true,
      .n_faults = 2,
      .faults = {{.kind = FAULT_ISOLATE, .at_ms = 6000, .length_ms = 4400},
                 {.kind = FAULT_KILL, .at_ms = 22000}}}},
    {"the last rank, on another machine, goes on when the head is lost",
     {.n_steps = 320,
      .n_local = 1,
      .n_faults = 3,
      .faults = {{.kind = FAULT_RANK, .at_ms = 6000, .a = 2},
                 {.kind = FAULT_RANK, .at_ms = 8000},
                 {.kind = FAULT_POWER, .at_ms = 21000}}}},
    {"packets of the next head take long",
     {.n_steps = 120,
      .n_faults = 2,
      .faults = {{.kind = FAULT_POWER, .at_ms = 8000},
                 {.kind = FAULT_DELAY, .at_ms = 9900, .length_ms = 20000, .a = 1, .number = 300}}}},
    {"the head is stopped while others answer that they have its state",
     {.n_steps = 120,
      .n_faults = 3,
      .faults = {{.kind = FAULT_RANK, .at_ms = 6000, .a = 2},
                 {.kind = FAULT_DELAY, .at_ms = 6000, .length_ms = 9000, .number = 300},
                 {.kind = FAULT_STOP, .at_ms = 6800, .length_ms = 9000}}}},
    {"a machine that was stopped is cut off before it knows whether its head leads on",
     {.n_steps = 280,
      .n_faults = 2,
      .faults = {{.kind = FAULT_STOP, .at_ms = 6000, .length_ms = 7200, .a = 1},
                 {.kind = FAULT_ISOLATE, .at_ms = 14100, .length_ms = 20800, .a = 1}}}},
    {"a machine that was cut off for long, and came back, is cut off again",
     {.n_steps = 320,
      .n_faults = 2,
      .faults = {{.kind = FAULT_ISOLATE, .at_ms = 6000, .length_ms = 20000, .a = 1},
                 {.kind = FAULT_ISOLATE, .at_ms = 36000, .length_ms = 6000, .a = 1}}}},
    {"a machine that was cut off for long counts for the majority when it is back",
     {.n_steps = 280,
      .n_faults = 2,
      .faults = {{.kind = FAULT_ISOLATE, .at_ms = 6000, .length_ms = 12000, .a = 1},
                 {.kind = FAULT_POWER, .at_ms = 40000, .a = 2}}}},
    {"a machine is cut off again while it joins",
     {.n_steps = 300,
      .n_faults = 3,
      .faults = {{.kind = FAULT_ISOLATE, .at_ms = 6000, .length_ms = 7000, .a = 1},
                 {.kind = FAULT_DELAY, .at_ms = 15000, .length_ms = 9000, .a = 1, .number = 400},
                 {.kind = FAULT_ISOLATE, .at_ms = 18500, .length_ms = 20000, .a = 1}}}},
    {"a head that has taken over loses its majority, beside a machine whose ranks are lost",
     {.n_nodes = 4,
      .n_steps = 200,
      .n_faults = 4,
      .faults = {{.kind = FAULT_RANK, .at_ms = 5000, .a = 2},
                 {.kind = FAULT_RANK, .at_ms = 5000, .a = 2, .b = 1},
                 {.kind = FAULT_ISOLATE, .at_ms = 8000, .length_ms = 7000},
                 {.kind = FAULT_TERM, .at_ms = 18000, .a = 3}}}},
    {"a rank is killed at the time of SIGTERM to the job",
     {.n_nodes = 1,
      .n_steps = 60,
      .n_faults = 2,
      .faults = {{.kind = FAULT_RANK, .at_ms = 6000}, {.kind = FAULT_TERM, .at_ms = 6000}}}},
    {"a rank cannot be replaced, and the head is lost before it knows that",
     {.n_steps = 120,
      .max_restarts = 1,
      .n_faults = 3,
      .faults = {{.kind = FAULT_CALL, .at_ms = 5999, .a = 1, .b = CALL_MEMFD},
                 {.kind = FAULT_RANK, .at_ms = 6000, .a = 1},
                 {.kind = FAULT_KILL, .at_ms = 6012}}}},
    {"a machine that was cut off for long has no memory, and comes back again",
     {.n_steps = 300,
      .n_faults = 2,
      .faults = {{.kind = FAULT_CALL, .at_ms = 30000, .a = 1, .b = CALL_MEMORY, .number = 2},
                 {.kind = FAULT_ISOLATE, .at_ms = 6000, .length_ms = 12000, .a = 1}}}},
    {"the head has no memory",
     {.n_steps = 150,
      .n_faults = 1,
      .faults = {{.kind = FAULT_CALL, .at_ms = 8000, .b = CALL_MEMORY, .number = 2}}}},
};

/* One allocation of a launcher fails after n others, for n from 0 on: no rank may wait for ever. */
static const struct {
    const char *what;
    int n; /* at most */
    scenario s;
} no_memory[] = {
    {"the head forms the job",
     160,
     {.n_steps = 60, .n_faults = 1, .faults = {{.kind = FAULT_CALL, .b = CALL_MEMORY}}}},
    {"a machine joins the job",
     60,
     {.n_steps = 60,
      .max_restarts = 1,
      .n_faults = 1,
      .faults = {{.kind = FAULT_CALL, .b = CALL_MEMORY, .a = 1}}}},
    {"the head forms the next group",
     240,
     {.n_steps = 140,
      .n_faults = 2,
      .faults = {{.kind = FAULT_CALL, .b = CALL_MEMORY, .at_ms = 7990},
                 {.kind = FAULT_RANK, .at_ms = 8000, .a = 1}}}},
    {"a machine takes over the head",
     240,
     {.n_steps = 140,
      .n_faults = 2,
      .faults = {{.kind = FAULT_CALL, .b = CALL_MEMORY, .at_ms = 7990, .a = 1},
                 {.kind = FAULT_KILL, .at_ms = 8000}}}},
};

static int run_scene(const char *what, scenario s, uint64_t seed)
{
    outcome o;

    s.seed = seed;
    s.n_nodes = s.n_nodes > 0 ? s.n_nodes : 3;
    s.n_local = s.n_local > 0 ? s.n_local : 1 + (int)(seed % 2);
    s.step_ms = 200;
    s.n_shards = 2 * s.n_nodes + 1; // at least one for each rank
    s.is_elastic = s.n_nodes > 1;
    s.latency = 100000;
    s.jitter = seed % 3 == 0 ? 5000000 : 200000;
    run_scenario(&s, false, &o);
    if (o.failure[0] == 0)
        return 0;
    (void)printf("%s, seed %" PRIu64, what, seed);
    if (s.faults[0].skipped > 0)
        (void)printf(", after %d calls", s.faults[0].skipped);
    (void)printf(": %s\n", o.failure);
    print_commit();
    return 1;
}

static int run_scenes(void)
{
    for (size_t i = 0; i < LS_COUNT_OF(scenes); i++)
        for (uint64_t seed = 1; seed <= SCENE_SEEDS; seed++)
            if (run_scene(scenes[i].what, scenes[i].s, seed) != 0)
                return 1;
    for (size_t i = 0; i < LS_COUNT_OF(no_memory); i++)
        for (int n = 0; n < no_memory[i].n; n += ALLOCATIONS_STEP) {
            scenario s = no_memory[i].s;

            s.faults[0].skipped = n;
            if (run_scene(no_memory[i].what, s, 1) != 0)
                return 1;
        }
    return 0;
}

static int run_one(int argc, char **argv)
{
    const uint64_t seed = strtoull(argv[0], NULL, 10);
    scenario s;
    outcome o;

    scenario_make(seed, &s);
    for (int i = 0; argc > 1 && i < s.n_faults; i++) {
        bool is_given = false;

        for (int k = 1; k < argc; k++)
            is_given |= strtol(argv[k], NULL, 10) == i;
        if (!is_given)
            s.faults[i].kind = FAULT_KINDS;
    }
    run_scenario(&s, true, &o);
    scenario_make(seed, &s);
    scenario_print(&s);
    (void)printf("trace %016" PRIx64 ", %" PRIu64 " events, %.3f s: %s\n", o.trace, o.n_events,
                 (double)o.ns / 1e9, o.failure[0] != 0 ? o.failure : "no failure");
    return o.failure[0] != 0;
}

int main(int argc, char **argv)
{
    static randombytes_implementation deterministic;
    scenario s;
    outcome o;

    deterministic.implementation_name = random_name;
    deterministic.random = random_word;
    deterministic.buf = random_bytes;
    (void)randombytes_set_implementation(&deterministic);
    if (sodium_init() < 0)
        return 1;
    world_init();
    catch_crashes();
    for (uint64_t seed = 0; seed < LEARN_SEEDS; seed++) {
        scenario_make(seed, &s);
        run_scenario(&s, false, &o);
    }
    world_learned();
    if (argc > 2 && strcmp(argv[1], "-v") == 0)
        return run_one(argc - 2, argv + 2);
    if ((argc == 1 || strcmp(argv[1], "0") == 0) && run_scenes() != 0)
        return 1;
    return run_seeds(argc > 1 ? strtoull(argv[1], NULL, 10) : SEEDS,
                     argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
}
