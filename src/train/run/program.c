/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.c - ls_train_main(): a training program from its flags to its exit code. Everything that
 * fails before `train` fails on this path, so all programs print the same errors.
 */
#include <lockstep/train.h>

#include "base/options.h"
#include "train/run/run.h"

#include <stdlib.h>

static ls_status check_program(const ls_train_program *given, ls_train_program *out)
{
    LS_TRY(LS_GIVEN(given));
    LS_TRY(OPTIONS_COPY(ls_train_program, given, out));
    if (out->name == NULL || out->summary == NULL || out->flags == NULL || out->train == NULL)
        return ls_fail(LS_EINVAL, "ls_train_program needs name, summary, flags and train");
    return LS_OK;
}

static ls_status join(const ls_train_program *p, ls_comm **comm)
{
    ls_init_options init;

    LS_TRY(OPTIONS_COPY(ls_init_options, p->init, &init));
    if (p->flags->backend != NULL)
        init.backend = p->flags->backend;
    return ls_init(&init, comm);
}

/* One rank: joins the job, trains, leaves. */
static ls_status run_program(int local_rank, void *arg)
{
    const ls_train_program *p = arg;
    ls_comm *comm = NULL;
    ls_run *run = NULL;
    ls_status st = join(p, &comm);

    LS_UNUSED(local_rank); // ls_init() finds the rank
    if (st == LS_OK)
        st = ls_run_open(p->flags, &run);
    if (st == LS_OK) {
        run->program = p;
        st = p->train(run, comm, p->arg);
    }
    st = ls_run_close(run, st);
    ls_comm_destroy(comm);
    return st;
}

static ls_status place_ranks(const ls_train_program *p, ls_spawn_options *spawn, int *n)
{
    if (p->place != NULL)
        return p->place(p->arg, spawn, n);
    LS_TRY(ls_train_local_ranks(p->flags, n));
    spawn->nodes = (int)p->flags->nodes;
    spawn->per_node = p->flags->per_node;
    spawn->node = (int)p->flags->node_id;
    spawn->master = p->flags->master;
    return LS_OK;
}

static ls_status start(ls_train_program *p, int argc, char **argv)
{
    ls_spawn_options spawn = {.size = sizeof(spawn)};
    int n = 0;

    LS_TRY(ls_train_parse(p->name, p->summary, argc, argv, p->flags, p->own, p->n_own));
    if (p->flags->help)
        return LS_OK;
    if (p->check != NULL)
        LS_TRY(p->check(p->arg));
    LS_TRY(place_ranks(p, &spawn, &n));
    return n > 0 ? ls_spawn(run_program, n, p, &spawn) : run_program(0, p);
}

int ls_train_main(const ls_train_program *program, int argc, char **argv)
{
    ls_train_program p = {.name = NULL};
    ls_status st = check_program(program, &p);

    if (st == LS_OK)
        st = start(&p, argc, argv);
    return ls_train_exit(p.name, st);
}
