/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_docs_loop.c - runs the loop of docs/models.md, section "Without ls_run", on 2 ranks;
 * doc_program.py takes it from the page.
 */
#include "api/values.h"
#include "base/unit.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The page's. */
ls_status train(ls_comm *comm, ls_tape *tape, ls_model *model, ls_layer *net, ls_loader *loader,
                ls_optimizer *optimizer);

static const char real_data[] = "/usr/share/datasets/fashion-mnist";

enum { RANKS = 2, BATCH = 100 };

typedef struct scene {
    ls_comm *comm;
    ls_dataset *set;
    ls_sampler *sampler;
    ls_loader *loader;
    ls_model *model;
    ls_layer *net;
    ls_optimizer *adam;
} scene;

/* This rank's part of the job. */
static void set_up(scene *s, ls_dataset *set, int n_inputs)
{
    const ls_adam_options adam = {.size = sizeof(adam), .lr = 0.001, .weight_decay = 0.01};
    ls_sampler_options sampling = {.size = sizeof(sampling), .count = ls_dataset_count(set)};
    ls_loader_options loading = {.size = sizeof(loading), .batch_size = BATCH, .dataset = set};
    const ls_named *parameters;
    int n;

    *s = (scene){.comm = some_comm(), .set = set, .model = some_model()};
    sampling.rank = ls_comm_rank(s->comm);
    sampling.world_size = ls_comm_size(s->comm);
    value_needs(ls_sampler_create(&sampling, &s->sampler), "sampler");
    loading.sampler = s->sampler;
    loading.device = some_device();
    value_needs(ls_loader_create(&loading, &s->loader), "loader");
    s->net = ls_nn_linear(s->model, "fc", n_inputs, 10, 0);
    parameters = ls_model_parameters(s->model, &n);
    value_needs(ls_adam_create(parameters, n, ls_grad, &adam, &s->adam), "optimizer");
}

static void clean_up(const scene *s)
{
    ls_tape_destroy(some_tape());
    ls_optimizer_destroy(s->adam);
    ls_loader_destroy(s->loader);
    ls_sampler_destroy(s->sampler);
    ls_dataset_close(s->set);
    ls_model_destroy(s->model);
    value_needs(ls_device_close(some_device()), "a device without users");
    ls_comm_destroy(s->comm);
}

/* Mean loss over the first batch of an epoch. */
static float first_loss(const scene *s)
{
    float loss = -1;
    ls_batch batch;

    ls_tape_set_training(some_tape(), 0);
    value_needs(ls_loader_start(s->loader, 1, 0), "epoch");
    value_needs(ls_loader_next(s->loader, &batch), "batch");
    value_needs(ls_tensor_read(ls_cross_entropy(some_tape(),
                                                ls_forward(some_tape(), s->net,
                                                           ls_flatten(some_tape(), batch.x)),
                                                batch.y),
                               &loss, 1),
                "loss");
    ls_tape_set_training(some_tape(), 1);
    return loss;
}

/* How many steps the optimizer has made with the first parameter. */
static int64_t steps_made(const scene *s)
{
    int n;
    const ls_named *state = ls_optimizer_state(s->adam, &n);

    for (int i = 0; i < n; i++) {
        int64_t steps;

        if (strcmp(state[i].name, "fc.weight.step") != 0)
            continue;
        memcpy(&steps, state[i].bytes, sizeof(steps));
        return steps;
    }
    return -1;
}

/* Whether all ranks hold the same weights. */
static bool ranks_agree(const scene *s)
{
    const ls_named *fc = ls_model_parameters(s->model, &(int){0});
    const size_t count = ls_tensor_count(fc->tensor);
    const float *mine = ls_tensor_data_const(fc->tensor);
    float *of_root = malloc(count * sizeof(*of_root));
    int32_t same;

    if (of_root == NULL)
        return false;
    memcpy(of_root, mine, count * sizeof(*of_root));
    value_needs(ls_broadcast(s->comm, of_root, of_root, count, LS_F32, 0, NULL), "weights");
    same = memcmp(of_root, mine, count * sizeof(*of_root)) == 0;
    free(of_root);
    value_needs(ls_all_reduce(s->comm, &same, &same, 1, LS_I32, LS_MIN, NULL), "comparison");
    return same != 0;
}

/* Trains, and checks what that has changed. */
static ls_status check_training(const scene *s)
{
    const float before = first_loss(s);
    float after;

    LS_TRY(train(s->comm, some_tape(), s->model, s->net, s->loader, s->adam));
    after = first_loss(s);
    if (!(after < before * 0.7F))
        return ls_train_refuse("the loss was %g and is %g", (double)before, (double)after);
    if (steps_made(s) != (int64_t)ls_loader_batches(s->loader))
        return ls_train_refuse("%lld optimizer steps in %zu batches", (long long)steps_made(s),
                               ls_loader_batches(s->loader));
    return ranks_agree(s) ? LS_OK : ls_train_refuse("the ranks' weights differ");
}

static ls_status learn(int local_rank, void *arg)
{
    ls_dataset *set;
    scene s;
    ls_status st;

    LS_UNUSED(local_rank);
    LS_UNUSED(arg);
    value_needs(ls_dataset_open_mnist(real_data, "t10k", &set), real_data);
    set_up(&s, set, 784);
    st = check_training(&s);
    clean_up(&s);
    return st;
}

static void loop_learns_on_two_ranks(void **state)
{
    LS_UNUSED(state);
    if (access(real_data, R_OK) != 0) {
        print_message("dataset-fashion-mnist is not installed\n");
        skip();
    }
    assert_ok(ls_spawn(learn, RANKS, NULL, NULL));
}

/* Trains on a folder whose only image is broken. */
static ls_status fail_to_load(int local_rank, void *arg)
{
    const ls_augment small = {.size = sizeof(small), .height = 4, .channels = 3};
    ls_dataset *set;
    scene s;
    ls_status st;

    LS_UNUSED(local_rank);
    LS_UNUSED(arg);
    value_needs(ls_dataset_open_folder("set", NULL, &set), "folder");
    value_needs(ls_dataset_augment(set, &small), "augmentation");
    set_up(&s, set, 48);
    st = train(s.comm, some_tape(), s.model, s.net, s.loader, s.adam);
    if (st != LS_EFORMAT || steps_made(&s) != 0)
        st = LS_OK;
    clean_up(&s);
    return st;
}

static void loop_reports_a_file_that_its_loader_cannot_read(void **state)
{
    char folder[] = "/tmp/ls-loop-XXXXXX";
    char command[64];

    LS_UNUSED(state);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    (void)image_folder();
    assert_status(ls_spawn(fail_to_load, RANKS, NULL, NULL), LS_EPEER);
    assert_last_error("set/class/a.png");
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loop_learns_on_two_ranks),
        cmocka_unit_test(loop_reports_a_file_that_its_loader_cannot_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
