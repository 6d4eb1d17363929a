/* SPDX-License-Identifier: Apache-2.0 */
/* test_thread.c - threads, locks, conditions, and the number of usable cores. */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "host/contention.h"
#include "host/cores.h"
#include "base/file.h"
#include "base/text.h"
#include "base/thread.h"
#include "harness/root_folder.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct facts {
    char name[16];
    sigset_t blocked;
    int n_runs;
} facts;

static void note_facts(void *arg)
{
    facts *f = arg;

    (void)pthread_getname_np(pthread_self(), f->name, sizeof(f->name));
    (void)pthread_sigmask(SIG_SETMASK, NULL, &f->blocked);
    f->n_runs++;
}

static void a_thread_has_its_name_and_takes_no_signals(void **state)
{
    static const int usual[] = {SIGTERM, SIGINT, SIGCHLD, SIGUSR1, SIGPIPE, SIGALRM, SIGHUP};
    facts f = {0};
    ls_thread t = {0};
    sigset_t mine;

    LS_UNUSED(state);
    assert_ok(ls_thread_start(&t, "progress", note_facts, &f));
    ls_thread_join(&t);
    assert_string_equal(f.name, "progress");
    for (size_t i = 0; i < LS_COUNT_OF(usual); i++)
        assert_int_equal(sigismember(&f.blocked, usual[i]), 1);
    assert_int_equal(sigismember(&f.blocked, SIGSEGV), 0);
    (void)pthread_sigmask(SIG_SETMASK, NULL, &mine);
    assert_int_equal(sigismember(&mine, SIGTERM), 0);
}

static void a_joined_thread_may_be_started_again(void **state)
{
    facts f = {0};
    ls_thread t = {0};

    LS_UNUSED(state);
    ls_thread_join(&t); // never started
    for (int i = 0; i < 3; i++) {
        assert_ok(ls_thread_start(&t, "a-name-of-more-than-15-bytes", note_facts, &f));
        ls_thread_join(&t);
        ls_thread_join(&t);
    }
    assert_int_equal(f.n_runs, 3);
    assert_string_equal(f.name, "a-name-of-more-");
}

static void missing_memory_for_a_thread_is_reported(void **state)
{
    facts f = {0};
    ls_thread t;

    LS_UNUSED(state);
    ls_alloc_fail_at(1);
    assert_status(ls_thread_start(&t, "x", note_facts, &f), LS_ENOMEM);
    ls_alloc_fail_at(0);
    ls_thread_join(&t);
    assert_int_equal(f.n_runs, 0);
}

/* A channel with one slot: it needs both directions of a condition. */
typedef struct channel {
    ls_mutex m;
    ls_cond changed;
    int value; /* 0 = empty */
    int64_t sum;
} channel;

#define N_VALUES 3000

static void read_values(void *arg)
{
    channel *c = arg;
    bool is_open = true;

    while (is_open) {
        ls_mutex_lock(&c->m);
        while (c->value == 0)
            (void)ls_cond_wait(&c->changed, &c->m, ls_deadline_ms(-1));
        is_open = c->value > 0;
        if (is_open) {
            c->sum += c->value;
            c->value = 0;
        }
        ls_cond_broadcast(&c->changed);
        ls_mutex_unlock(&c->m);
    }
}

static void write_value(channel *c, int value)
{
    ls_mutex_lock(&c->m);
    while (c->value != 0)
        assert_true(ls_cond_wait(&c->changed, &c->m, ls_deadline_ms(60000)));
    c->value = value;
    ls_cond_broadcast(&c->changed);
    ls_mutex_unlock(&c->m);
}

static void nothing_is_lost_between_waiting_threads(void **state)
{
    channel c = {.sum = 0};
    ls_thread readers[3] = {0};

    LS_UNUSED(state);
    ls_mutex_init(&c.m);
    ls_cond_init(&c.changed);
    for (int i = 0; i < 3; i++)
        assert_ok(ls_thread_start(&readers[i], "reader", read_values, &c));
    for (int i = 1; i <= N_VALUES; i++)
        write_value(&c, i);
    write_value(&c, -1);
    for (int i = 0; i < 3; i++)
        ls_thread_join(&readers[i]);
    assert_int_equal(c.sum, (int64_t)N_VALUES * (N_VALUES + 1) / 2);
    ls_cond_destroy(&c.changed);
    ls_mutex_destroy(&c.m);
}

static void a_wait_ends_at_its_deadline(void **state)
{
    const int64_t deadline = ls_deadline_ms(30);
    ls_mutex m;
    ls_cond c;
    bool is_woken = true;

    LS_UNUSED(state);
    ls_mutex_init(&m);
    ls_cond_init(&c);
    ls_mutex_lock(&m);
    while (is_woken)
        is_woken = ls_cond_wait(&c, &m, deadline);
    assert_true(ls_now_ms() >= deadline);
    assert_false(ls_cond_wait(&c, &m, 0));
    ls_cond_signal(&c);
    ls_mutex_unlock(&m);
    ls_cond_destroy(&c);
    ls_mutex_destroy(&m);
}

typedef struct attempt {
    ls_mutex m;
    bool succeeded;
} attempt;

static void try_to_lock(void *arg)
{
    attempt *a = arg;

    a->succeeded = ls_mutex_trylock(&a->m);
}

static void trylock_does_not_wait(void **state)
{
    attempt a = {.succeeded = true};
    ls_thread t;

    LS_UNUSED(state);
    ls_mutex_init(&a.m);
    assert_true(ls_mutex_trylock(&a.m));
    assert_ok(ls_thread_start(&t, "try", try_to_lock, &a));
    ls_thread_join(&t);
    assert_false(a.succeeded);
    ls_mutex_unlock(&a.m);
    ls_mutex_destroy(&a.m);
}

static void usable_cores_follow_the_affinity_mask(void **state)
{
    cpu_set_t before;
    cpu_set_t one;
    uint64_t share_before;
    uint64_t share_one;
    int cpu = 0;

    LS_UNUSED(state);
    if (sched_getaffinity(0, sizeof(before), &before) != 0)
        skip();
    assert_in_range(ls_usable_cores(&share_before), 1, CPU_COUNT(&before));
    while (!CPU_ISSET(cpu, &before))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(ls_usable_cores(&share_one), 1);
    assert_true(CPU_COUNT(&before) == 1 || share_one != share_before);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

static char root[ROOT_FOLDER_BYTES];

static int make_root(void **state)
{
    LS_UNUSED(state);
    root_folder_make(root);
    return 0;
}

static int remove_root(void **state)
{
    LS_UNUSED(state);
    root_folder_remove(root, "");
    return 0;
}

static void put(const char *name, const char *text)
{
    root_folder_put(root, name, text);
}

static int cores_now(void)
{
    char membership[128];

    (void)text_format(membership, sizeof(membership), "%s/membership", root);
    return cores_in_cgroup(membership, root);
}

/* Looks n times, as late as needed for each to read the file. */
static bool look(contention *c, int64_t *now_ns, int n)
{
    bool is_contended = false;

    for (int i = 0; i < n; i++) {
        *now_ns += INT64_C(1000000000);
        is_contended = contention_look(c, *now_ns);
    }
    return is_contended;
}

static void contention_is_what_lasts(void **state)
{
    char path[128];
    contention c = {.path = path, .n_processors = 2};
    int64_t now_ns = 1;

    LS_UNUSED(state);
    (void)text_format(path, sizeof(path), "%s/loadavg", root);
    put("loadavg", "9.99 9.99 9.99 2/300 4711\n");
    assert_false(look(&c, &now_ns, 20));
    put("loadavg", "0.00 0.00 0.00 3/300 4711\n");
    assert_false(look(&c, &now_ns, 1));
    assert_false(contention_look(&c, now_ns)); // too early to read it again
    assert_true(look(&c, &now_ns, 20));
    put("loadavg", "0.00 0.00 0.00 1/300 4711\n");
    assert_true(look(&c, &now_ns, 2));
    assert_false(look(&c, &now_ns, 20));
    contention_lost_time(&c, now_ns);
    assert_true(look(&c, &now_ns, 1));
    assert_false(look(&c, &now_ns, 20));
}

static void without_the_number_of_threads_there_is_no_contention(void **state)
{
    static const char *const texts[] = {"", "\n", "0.1 0.1", "0.1 0.1 0.1 ", "0.1 0.1 0.1 x/y 1"};
    char path[128];
    contention c = {.path = path, .n_processors = 1};
    int64_t now_ns = 1;

    LS_UNUSED(state);
    (void)text_format(path, sizeof(path), "%s/none", root);
    assert_false(look(&c, &now_ns, 20));
    for (size_t i = 0; i < LS_COUNT_OF(texts); i++) {
        put("none", texts[i]);
        assert_false(look(&c, &now_ns, 20));
    }
}

static void a_version_2_quota_of_any_ancestor_counts(void **state)
{
    LS_UNUSED(state);
    put("membership", "0::/job/step\n");
    assert_int_equal(cores_now(), 0);
    put("job/step/cpu.max", "max 100000\n");
    assert_int_equal(cores_now(), 0);
    put("job/cpu.max", "350000 100000\n");
    assert_int_equal(cores_now(), 3);
    put("cpu.max", "200000 100000\n");
    assert_int_equal(cores_now(), 2);
    put("job/step/cpu.max", "50000 100000\n");
    assert_int_equal(cores_now(), 1);
}

static void a_version_1_quota_counts(void **state)
{
    LS_UNUSED(state);
    put("membership", "9:name=systemd:/\n4:cpu,cpuacct:/job\n1:cpuset:/\n");
    assert_int_equal(cores_now(), 0);
    put("cpu/job/cpu.cfs_quota_us", "-1\n");
    put("cpu/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cores_now(), 0);
    put("cpu/job/cpu.cfs_quota_us", "450000\n");
    assert_int_equal(cores_now(), 4);
    put("membership", "4:cpuset,cpuacct:/job\n");
    assert_int_equal(cores_now(), 0);
    put("membership", "4:cpuacct,cpu:/as/seen/from/outside\n");
    put("cpu/cpu.cfs_quota_us", "150000\n");
    put("cpu/cpu.cfs_period_us", "50000\n");
    assert_int_equal(cores_now(), 3);
}

static void broken_cgroup_files_limit_nothing(void **state)
{
    static const char *const broken[] = {"",
                                         "max",
                                         "100000",
                                         "0 100000",
                                         "1 0",
                                         "-5 100000",
                                         "garbage garbage",
                                         " 1 1",
                                         "9e9 1",
                                         "100000 100000 1",
                                         "99999999999999999999 1"};

    LS_UNUSED(state);
    put("membership", "0::/\n");
    for (size_t i = 0; i < LS_COUNT_OF(broken); i++) {
        put("cpu.max", broken[i]);
        (void)ls_fail(LS_EIO, "mine");
        if (cores_now() != 0)
            fail_msg("\"%s\" limits", broken[i]);
        assert_string_equal(ls_last_error(), "mine");
    }
    put("cpu.max", "100000 100000");
    put("membership", "garbage\n::\n:\n\n0:\n0::");
    assert_int_equal(cores_now(), 1);
    put("membership", "");
    assert_int_equal(cores_now(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_has_its_name_and_takes_no_signals),
        cmocka_unit_test(a_joined_thread_may_be_started_again),
        cmocka_unit_test(missing_memory_for_a_thread_is_reported),
        cmocka_unit_test(nothing_is_lost_between_waiting_threads),
        cmocka_unit_test(a_wait_ends_at_its_deadline),
        cmocka_unit_test(trylock_does_not_wait),
        cmocka_unit_test(usable_cores_follow_the_affinity_mask),
        cmocka_unit_test_setup_teardown(contention_is_what_lasts, make_root, remove_root),
        cmocka_unit_test_setup_teardown(without_the_number_of_threads_there_is_no_contention,
                                        make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_version_2_quota_of_any_ancestor_counts, make_root,
                                        remove_root),
        cmocka_unit_test_setup_teardown(a_version_1_quota_counts, make_root, remove_root),
        cmocka_unit_test_setup_teardown(broken_cgroup_files_limit_nothing, make_root, remove_root),
    };

    return cmocka_run_group_tests_name("thread", tests, NULL, NULL);
}
