/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_sgd.h - steps without communication: each island of ranks trains alone, and every H steps
 * the mean of their parameter differences goes through an outer optimizer, Nesterov momentum
 * (DiLoCo, Douillard et al. 2023, arXiv 2311.08105); docs/elastic.md. A rank is an island:
 *
 *     ls_local_sgd_create(comm, model, optimizer, &options, &local);   once
 *     ls_backward(tape, loss, 1);  ls_optimizer_step(optimizer);       each step, as on one rank
 *     ls_local_sgd_step(local);                                        after each step
 *     ls_local_sgd_show(local);                       before an evaluation, a save, and at the end
 *
 * Where an island has several ranks (options.islands) each step is one of an ls_ddp of
 * ls_local_sgd_group(). All ranks of an island hold the same bits, which depend on its ranks.
 *
 * Threads    One thread at a time, that of the model.
 * Failure    As a group's; it reaches all islands when the failed rank destroys its groups.
 */
#ifndef LOCKSTEP_LOCAL_SGD_H
#define LOCKSTEP_LOCAL_SGD_H

#include <lockstep/ddp.h>
#include <lockstep/optim.h>

LS_BEGIN_DECLS

typedef struct ls_local_sgd ls_local_sgd;
#define LS_ISLANDS_OF_HOSTS (-1) /* of ls_local_sgd_options.islands */

/* Every field but `size` and `every` may be 0, which means the default. */
typedef struct ls_local_sgd_options {
    size_t size;           /* sizeof(ls_local_sgd_options) */
    int64_t every;         /* H, at least 1: steps from one mean of a parameter to the next */
    double outer_lr;       /* 0.7 */
    double outer_momentum; /* 0.9; below 0: none. With outer_lr 1: post-local SGD */
    int fragments;    /* 1; at most H: groups of parameters, whose means are H / n steps apart */
    ls_ddp_hook hook; /* type in which differences are sent */
    /* Of all ranks, each counted once in a mean; one a rank. Fewer: of contiguous ranks, as equally
     * many as possible, or LS_ISLANDS_OF_HOSTS: those of each host. More: several on a rank. */
    int islands;
    int delay; /* 0; at most H / fragments: steps that are trained while a mean is sent */
} ls_local_sgd_options;

/* All islands begin with rank 0's parameters and buffers. Parameters are float32; frozen ones
 * (ls_model_freeze()) stay as they are, and may not change afterwards. comm, model and optimizer
 * must outlive it. LS_EUNSUPPORTED on stream devices. Collective; blocks. */
LS_API LS_MUST_USE ls_status ls_local_sgd_create(ls_comm *comm, ls_model *model,
                                                 ls_optimizer *optimizer,
                                                 const ls_local_sgd_options *opt,
                                                 ls_local_sgd **out);
LS_API void ls_local_sgd_destroy(ls_local_sgd *local); /* NULL is allowed */

/* The ranks of this rank's island, borrowed, for an ls_ddp that is destroyed before `local`; NULL:
 * no island has several, and there is no ls_ddp. The first island of this rank; -1 for NULL. */
LS_API ls_comm *ls_local_sgd_group(const ls_local_sgd *local);
LS_API int ls_local_sgd_island(const ls_local_sgd *local);

/* Model and optimizer get the state of island `island`: for a rank with several, before each one's
 * part of a step. ls_shard_range() divides them; LS_EINVAL for those of other ranks. */
LS_API LS_MUST_USE ls_status ls_local_sgd_enter(ls_local_sgd *local, int island);

/* A step is complete on all islands of this rank. Where a mean is due it is collective and blocks;
 * a difference that is NaN or infinite is LS_EFORMAT on all ranks, with its parameter. With a delay
 * it blocks where the mean is applied, to 0.5 x what each island has then + 0.5 x the mean. */
LS_API LS_MUST_USE ls_status ls_local_sgd_step(ls_local_sgd *local);

/* The model gets the parameters of the last mean and the buffers of island 0, the same on all
 * ranks, until ls_local_sgd_enter(). Training goes on as if it had not been called. Collective. */
LS_API LS_MUST_USE ls_status ls_local_sgd_show(ls_local_sgd *local);

LS_END_DECLS

#endif
