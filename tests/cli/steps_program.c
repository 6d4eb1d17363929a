/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps_program.c - trains a tiny network until SIGTERM, for tests that watch a job. LATE_RANK and
 * LATE_STEP: that rank stays in front of that step until SIGTERM. Public headers only.
 */
#include <lockstep/lockstep.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROWS = 4, IN = 8 };

static int number(const char *name)
{
    const char *text = getenv(name);

    return text == NULL ? -1 : (int)strtol(text, NULL, 10);
}

static ls_status make_tensor(ls_run *run, ls_tensor **out)
{
    const int64_t dims[] = {ROWS, IN};

    LS_TRY(ls_tensor_create(ls_run_device(run), LS_F32, 2, dims, out));
    return ls_tensor_fill(*out, 0.5);
}

static ls_status train(ls_run *run, ls_comm *comm, void *arg)
{
    ls_tape *tape = ls_run_tape(run);
    ls_layer *layer = ls_nn_linear(ls_run_model(run), "layer", IN, IN, 0);
    ls_run_state state = {.stopping = 0};
    ls_tensor *x = NULL;
    ls_status st;

    (void)arg;
    LS_TRY(ls_run_distribute(run, comm, NULL));
    LS_TRY(ls_run_start(run, NULL, NULL));
    LS_TRY(make_tensor(run, &x));
    while (!state.stopping && ls_run_status(run) == LS_OK) {
        if (ls_comm_rank(comm) == number("LATE_RANK") && state.step == number("LATE_STEP")) {
            ls_log(LS_LOG_WARN, "test", "this rank waits");
            (void)pause();
        }
        ls_tape_reset(tape);
        ls_run_step(run, ls_mse_loss(tape, ls_forward(tape, layer, x), x));
        ls_run_get_state(run, &state);
        (void)usleep(1000);
    }
    st = ls_run_status(run);
    ls_tape_reset(tape);
    ls_tensor_destroy(x);
    return st;
}

int main(int argc, char **argv)
{
    ls_train_flags flags = {.epochs = 1, .batch_size = ROWS, .lr = 0.001, .device = "cpu_ref"};
    const ls_train_program program = {.size = sizeof(program),
                                      .name = "steps_program",
                                      .summary = "Trains until SIGTERM.",
                                      .flags = &flags,
                                      .train = train};

    return ls_train_main(&program, argc, argv);
}
