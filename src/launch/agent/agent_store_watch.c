/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_store_watch.c - notices a PyTorch script that waits at an address of its own
 * (os.environ["MASTER_ADDR"] = ..., or tcp:// with PyTorch before 2.15), where no rank listens,
 * because TORCHELASTIC_USE_AGENT_STORE makes every rank a client.
 *
 * On node 0 only: rank 0 and its descendants have loaded PyTorch and use no processor, and no
 * connection has come to the store.
 */
#include "launch/agent/agent.h"

#include "base/clock.h"
#include "launch/process/process_tree.h"

enum { LOOK_MS = 1000, IDLE_TICKS = 2 /* between two looks */ };

static void look(void *arg);

static void look_again(agent *a)
{
    const int64_t late_ms = wait_report_setting_ms();

    poller_timer_set(a->poller, &a->store_look,
                     ls_now_ms() + (late_ms < LOOK_MS ? late_ms : LOOK_MS), look, a);
}

static bool is_used(const agent *a)
{
    return a->store_is_used || (a->head != NULL && head_store_was_used(a->head));
}

/* One rank without children that use PyTorch has no others to meet. */
static bool waits_for_others(const agent *a, const process_tree *tree)
{
    const int n = process_tree_count_mapped(tree, "libtorch_cpu.so");

    return n > 1 || (n == 1 && a->place.place.world_size > 1);
}

static void note_wait(agent *a)
{
    char host[NET_ADDRESS_TEXT_MAX];

    agent_note(a,
               "rank 0 (pid %d) has loaded PyTorch and has been idle for %.1f s, and no rank has "
               "connected to PyTorch's store at %s port %d (MASTER_ADDR, MASTER_PORT): a script "
               "that sets its own MASTER_ADDR, or init_method tcp://, needs --store none",
               (int)a->ranks[0].pid, wait_report_seconds(&a->store_quiet),
               agent_master_host(a, host, sizeof(host)), a->ranks_port);
}

static void look(void *arg)
{
    agent *a = arg;
    process_tree tree;

    if (a->phase != AGENT_RUNNING || a->ranks[0].ended || is_used(a))
        return;
    process_tree_read(a->ranks[0].pid, &tree);
    if (a->ranks[0].pid <= 0 || !tree.all_sleep || tree.n != a->store_tree_n ||
        tree.cpu_ticks - a->store_tree_ticks > IDLE_TICKS)
        a->store_quiet = wait_report_begin(wait_report_setting_ms());
    a->store_tree_n = tree.n;
    a->store_tree_ticks = tree.cpu_ticks;
    if (wait_report_is_due(&a->store_quiet) && waits_for_others(a, &tree)) {
        note_wait(a);
        return;
    }
    look_again(a);
}

void agent_watch_store(agent *a, int port)
{
    a->store_is_used = false;
    a->store_tree_n = 0;
    a->store_tree_ticks = 0;
    a->store_quiet = wait_report_begin(wait_report_setting_ms());
    a->ranks_port = port;
    if (a->place.has_store && a->place.place.node == 0 && a->spec->argv != NULL)
        look_again(a);
}
