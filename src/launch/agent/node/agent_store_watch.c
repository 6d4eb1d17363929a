/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_store_watch.c - notices a PyTorch script that waits at an address of its own
 * (os.environ["MASTER_ADDR"] = ..., or tcp:// with PyTorch before 2.15), where no rank listens,
 * because TORCHELASTIC_USE_AGENT_STORE makes every rank a client.
 *
 * On node 0 only: rank 0 and its descendants have loaded PyTorch and use no processor, and no
 * connection has come to the store. Driven by a timer.
 */
#include "launch/agent/node/agent_store.h"

#include "base/clock.h"
#include "host/process_tree.h"

enum { LOOK_MS = 1000, IDLE_TICKS = 2 /* between two looks */ };

static void look(void *arg);

static void look_again(agent_store *s)
{
    const int64_t setting_ms = wait_report_setting_ms();

    poller_timer_set(s->link->ctx->poller, &s->watch.look,
                     ls_now_ms() + (setting_ms < LOOK_MS ? setting_ms : LOOK_MS), look, s);
}

/* One rank without children that use PyTorch waits for no other rank. */
static bool waits_for_others(const agent_context *ctx, const process_tree *tree)
{
    const int n = process_tree_count_mapped(tree, "libtorch_cpu.so");

    return n > 1 || (n == 1 && ctx->place.place.world_size > 1);
}

static void note_wait(const agent_store *s)
{
    char host[NET_ADDRESS_TEXT_MAX];

    agent_note(s->link->ctx,
               "rank 0 (pid %d) has loaded PyTorch and has been idle for %.1f s, and no rank has "
               "connected to PyTorch's store at %s port %d (MASTER_ADDR, MASTER_PORT): a script "
               "that sets its own MASTER_ADDR, or init_method tcp://, needs --store none",
               (int)*s->watch.pid, wait_report_seconds(&s->watch.quiet),
               agent_store_host(s, host, sizeof(host)), s->watch.port);
}

static void look(void *arg)
{
    agent_store *s = arg;
    store_watch *w = &s->watch;
    process_tree tree;

    if (s->link->ctx->phase != AGENT_RUNNING || s->is_used ||
        (s->link->head != NULL && head_store_was_used(s->link->head)))
        return;
    process_tree_read(*w->pid, &tree);
    if (*w->pid <= 0 || !tree.all_sleep || tree.n != w->tree_n ||
        tree.cpu_ticks - w->cpu_ticks > IDLE_TICKS)
        w->quiet = wait_report_begin(wait_report_setting_ms());
    w->tree_n = tree.n;
    w->cpu_ticks = tree.cpu_ticks;
    if (wait_report_is_due(&w->quiet) && waits_for_others(s->link->ctx, &tree)) {
        note_wait(s);
        return;
    }
    look_again(s);
}

void agent_store_begin_watch(agent_store *s, int port, const pid_t *pid)
{
    const agent_context *ctx = s->link->ctx;

    s->is_used = false;
    s->watch = (store_watch){
        .pid = pid, .port = port, .quiet = wait_report_begin(wait_report_setting_ms())};
    if (ctx->place.has_store && ctx->place.place.node == 0 && ctx->spec->job->argv != NULL)
        look_again(s);
}

void agent_store_end_watch(agent_store *s)
{
    poller_timer_cancel(&s->watch.look);
}
