/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step_loop.h - what the programs that time training steps share: batches in memory, forward,
 * backward, the optimizer's step, the report.
 *
 *     NAME_step [--batch N] [--side N] [--steps N] [--warmup N] [--read-every N] [--threads N]
 *               [--device NAME] [--precision fp32|bf16|fp16] [--ddp [--shards V] | --barrier]
 *               [--json]
 *
 * The loss is read after every --read-every steps (default 1), of which then the mean is one time.
 * On a stream device a read waits for the device. With --ddp the process is a rank of a job, and
 * every rank reports its own rate; with --shards V its rows are divided among its shards. With
 * --barrier the ranks train independently and call a barrier before each step.
 */
#ifndef BENCH_STEP_LOOP_H
#define BENCH_STEP_LOOP_H

#include <lockstep/comm.h>
#include <lockstep/ddp.h>
#include <lockstep/optim.h>

/* A network, and what its program does when no flag says otherwise. */
typedef struct step_program {
    const char *name; /* of the program */
    int channels;
    int side;      /* of the images; tokens of a sample */
    int classes;   /* tokens of the vocabulary */
    int is_tokens; /* 1: samples are token ids, each with a target, and the optimizer is AdamW */
    int n_batches; /* in memory, used in turn */
    int batch;
    int steps;
    int warmup;
    double momentum;
    const char *arch; /* NULL: there is one network and no flag --arch */
    void *net;
    /* Adds the layers; non-zero after it has printed what is wrong with `arch`. */
    int (*create)(ls_model *model, struct step_program *p);
    ls_tensor *(*forward)(void *net, ls_tape *tape, ls_tensor *samples);
} step_program;

/* The program's main; gives its exit code. Flags change *p. */
int step_main(step_program *p, int argc, char **argv);

#endif
