/* SPDX-License-Identifier: Apache-2.0 */
/*
 * network_plans.c - plans all graphs of cuDNN that training steps of networks need, without a card,
 * and prints a table: the graphs, those with a plan within the device's workspace, the largest
 * workspace, and which have none.
 *
 *     network_plans [--sm 80|90|100]... [--type bf16|fp16|tf32|float32]... [--batch N] [NETWORK...]
 *
 * Without arguments: sm_90, all types, batch 256, all networks. "float32" is deterministic and
 * without TF32. Exits with 1 if a graph has no plan, with 77 if the build has no cuDNN.
 */
#include <stdio.h>

#ifdef HAS_CUDNN
#include "tensor/cuda/network_graphs.h"
#include "tensor/cuda/planning.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

typedef struct precision {
    const char *name;
    ls_dtype type;
    dnn_limits limits;
} precision;

static const precision precisions[] = {
    {"bf16", LS_BF16, {.tf32 = true, .workspace_bytes = WORKSPACE_BYTES}},
    {"fp16", LS_F16, {.tf32 = true, .workspace_bytes = WORKSPACE_BYTES}},
    {"tf32", LS_F32, {.tf32 = true, .workspace_bytes = WORKSPACE_BYTES}},
    {"float32", LS_F32, {.deterministic = true, .workspace_bytes = WORKSPACE_BYTES}},
};

enum { N_PRECISIONS = LS_COUNT_OF(precisions), SMS_MOST = 3, ANSWERS_MOST = 8192 };

typedef struct settings {
    bool uses[N_PRECISIONS];
    int sms[SMS_MOST];
    int n_sms;
    int64_t batch;
    char **networks;
    int n_networks;
} settings;

/* --- plans --- */

/* What cuDNN has answered, as networks share graphs. */
typedef struct answer {
    dnn_graph graph;
    char *why; /* there is no plan; NULL: there is */
    size_t workspace_bytes;
} answer;

/* Of one card and type. */
typedef struct table {
    const precision *precision;
    int sm;
    dnn_planner *planner;
    answer *answers;
    size_t n_answers;
} table;

static void ask(const table *t, answer *a)
{
    dnn_plan *plan;
    int n = 0;

    if (dnn_plans_create(t->planner, &a->graph, &t->precision->limits, 1, &plan, &n) != LS_OK) {
        a->why = strdup(ls_last_error());
        return;
    }
    a->workspace_bytes = dnn_plan_workspace_bytes(plan);
    dnn_plan_destroy(plan);
}

static const answer *answer_for(table *t, const dnn_graph *g)
{
    answer *a = t->answers;

    while (a < &t->answers[t->n_answers] && memcmp(&a->graph, g, sizeof(*g)) != 0)
        a++;
    if (a == &t->answers[t->n_answers]) {
        if (t->n_answers == ANSWERS_MOST)
            abort();
        t->n_answers++;
        a->graph = *g;
        ask(t, a);
    }
    return a;
}

/* Prints the network's line; the number of graphs without a plan. */
static size_t plan_graphs(table *t, const char *name, const graph_list *l)
{
    size_t n_missing = 0;
    size_t most = 0;

    for (size_t i = 0; i < l->n; i++) {
        const answer *a = answer_for(t, &l->graphs[i]);

        n_missing += a->why != NULL;
        most = a->workspace_bytes > most ? a->workspace_bytes : most;
    }
    printf("%-20s sm_%-4d %-8s %6zu %8zu %9.1f MiB\n", name, t->sm, t->precision->name, l->n,
           l->n - n_missing, (double)most / (1 << 20));
    for (size_t i = 0; i < l->n && n_missing > 0; i++) {
        const answer *a = answer_for(t, &l->graphs[i]);

        if (a->why != NULL)
            printf("    %s\n", a->why);
    }
    (void)fflush(stdout);
    return n_missing;
}

static ls_status plan_network(table *t, const char *name, int64_t batch, size_t *n_missing)
{
    graph_list graphs = {.graphs = NULL};
    ls_status st = network_graphs(name, t->precision->type, batch, &graphs);

    if (st == LS_OK)
        *n_missing += plan_graphs(t, name, &graphs);
    else
        fprintf(stderr, "network_plans: %s: %s\n", name, ls_last_error());
    ls_free(graphs.graphs);
    return st;
}

static ls_status plan_networks(table *t, const settings *s, size_t *n_missing)
{
    ls_status st = LS_OK;

    if (s->n_networks == 0) {
        for (int i = 0; network_name(i) != NULL && st == LS_OK; i++)
            st = plan_network(t, network_name(i), s->batch, n_missing);
    }
    for (int i = 0; i < s->n_networks && st == LS_OK; i++)
        st = plan_network(t, s->networks[i], s->batch, n_missing);
    return st;
}

static ls_status make_table(int sm, const precision *p, const settings *s, size_t *n_missing)
{
    table t = {.precision = p, .sm = sm};
    ls_status st = open_profile(sm, &t.planner);

    if (st != LS_OK) {
        fprintf(stderr, "network_plans: %s\n", ls_last_error());
        return st;
    }
    t.answers = ls_calloc(ANSWERS_MOST, sizeof(*t.answers));
    if (t.answers == NULL)
        abort();
    st = plan_networks(&t, s, n_missing);
    for (size_t i = 0; i < t.n_answers; i++)
        free(t.answers[i].why);
    ls_free(t.answers);
    dnn_planner_close(t.planner);
    return st;
}

/* --- the command --- */

static bool set_flag(settings *s, const char *flag, const char *value)
{
    if (strcmp(flag, "--batch") == 0) {
        s->batch = strtoll(value, NULL, 10);
        return s->batch > 0;
    }
    if (strcmp(flag, "--sm") == 0 && s->n_sms < SMS_MOST) {
        s->sms[s->n_sms++] = (int)strtol(value, NULL, 10);
        return true;
    }
    for (int i = 0; i < N_PRECISIONS; i++) {
        if (strcmp(flag, "--type") == 0 && strcmp(value, precisions[i].name) == 0)
            return s->uses[i] = true;
    }
    return false;
}

static bool parse(settings *s, int argc, char **argv)
{
    bool uses_any = false;
    int i = 1;

    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i += 2) {
        if (i + 1 == argc || !set_flag(s, argv[i], argv[i + 1]))
            return false;
    }
    s->networks = &argv[i];
    s->n_networks = argc - i;
    if (s->n_sms == 0)
        s->sms[s->n_sms++] = 90;
    for (int p = 0; p < N_PRECISIONS; p++)
        uses_any |= s->uses[p];
    for (int p = 0; p < N_PRECISIONS; p++)
        s->uses[p] |= !uses_any;
    return true;
}

int main(int argc, char **argv)
{
    settings s = {.batch = 256};
    size_t n_missing = 0;
    ls_status st = LS_OK;

    if (!parse(&s, argc, argv)) {
        fprintf(stderr, "usage: network_plans [--sm 80|90|100]... "
                        "[--type bf16|fp16|tf32|float32]... [--batch N] [NETWORK...]\n");
        return 2;
    }
    (void)setenv("LOCKSTEP_AUTOTUNE", "0", 1); // the device reads and writes no files of plans
    printf("%-20s %-7s %-8s %6s %8s  largest workspace\n", "network", "card", "type", "graphs",
           "planned");
    for (int i = 0; i < s.n_sms; i++) {
        for (int p = 0; p < N_PRECISIONS && st == LS_OK; p++) {
            if (s.uses[p])
                st = make_table(s.sms[i], &precisions[p], &s, &n_missing);
        }
    }
    return st == LS_OK && n_missing == 0 ? 0 : 1;
}
#else
int main(void)
{
    printf("skipped: no CUDA toolkit\n");
    return 77;
}
#endif
