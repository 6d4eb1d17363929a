/* SPDX-License-Identifier: Apache-2.0 */
/* own_data.c - an MLP that classifies the points of two spirals: own data, own model, training. */
#include <lockstep/lockstep.h>
#include <math.h>

enum { POINTS = 2000 };

static ls_status train(ls_run *run, ls_comm *comm, void *arg)
{
    static float points[POINTS][2];
    static int64_t spirals[POINTS];
    const ls_array arrays[] = {{{.name = "x", .type = LS_F32, .n_dims = 1, .dims = {2}}, points},
                               {{.name = "y", .type = LS_I64}, spirals}};
    ls_model *model = ls_run_model(run);
    ls_layer *layers[] = {
        ls_nn_linear(model, "0", 2, 64, 0),  ls_nn_function(model, "1", ls_relu),
        ls_nn_linear(model, "2", 64, 64, 0), ls_nn_function(model, "3", ls_relu),
        ls_nn_linear(model, "4", 64, 2, 0),
    };
    ls_layer *mlp = ls_nn_sequential(model, "mlp", layers, 5);
    ls_dataset *set;
    ls_batch batch;

    for (int i = 0; i < POINTS; i++) { /* two turns; spiral 1 is half a turn ahead */
        const double r = (i + 1.0) / POINTS, angle = 12.566 * r + 3.1416 * (i % 2);
        points[i][0] = (float)(r * cos(angle));
        points[i][1] = (float)(r * sin(angle));
        spirals[i] = i % 2;
    }
    LS_TRY(ls_dataset_from_arrays(arrays, 2, POINTS, &set));
    LS_TRY(ls_run_train_on_take(run, set));
    LS_TRY(ls_run_distribute(run, comm, NULL));
    LS_TRY(ls_run_start(run, NULL, arg));
    while (ls_run_next(run, &batch))
        ls_run_step(run, ls_run_classify(run, ls_forward(ls_run_tape(run), mlp, batch.x), batch.y));
    return LS_OK;
}

int main(int argc, char **argv)
{
    ls_train_flags flags = {.epochs = 60, .batch_size = 50, .optimizer = "adam", .lr = 0.01};
    const ls_train_program program = {sizeof(program), "own_data", "Classifies two spirals.",
                                      &flags, .train = train};
    return ls_train_main(&program, argc, argv);
}
