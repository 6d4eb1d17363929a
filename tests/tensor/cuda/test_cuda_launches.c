/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda_launches.c - how many kernels a training step of the CUDA device launches: forward,
 * backward and optimizer, after the first steps. A launch costs the host microseconds, which small
 * networks do not hide.
 */
#include "tensor/cuda/cuda_testing.h"
#include "tensor/testing.h"

#include "models/architectures.h"
#include "models/convnet.h"

#include <lockstep/optim.h>

#include <stdlib.h>

enum { STEPS = 3 };

/* The goals of docs/gpu.md, and the counts when this was written; a step may have fewer. */
enum {
    GOAL_CONVNET = 25,
    GOAL_RESNET = 330,
    MOST_CONVNET_F32 = 23,
    MOST_CONVNET_BF16 = 24,
    MOST_RESNET_F32 = 296,
    MOST_RESNET_BF16 = 298
};
_Static_assert(MOST_CONVNET_F32 <= GOAL_CONVNET && MOST_CONVNET_BF16 <= GOAL_CONVNET,
               "a step of the ConvNet meets the goal");
_Static_assert(MOST_RESNET_F32 <= GOAL_RESNET && MOST_RESNET_BF16 <= GOAL_RESNET,
               "a step of ResNet-50 meets the goal");

typedef struct network_run {
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_optimizer *optimizer;
    ls_tensor *images;
    ls_tensor *targets;
    void *net;
    ls_tensor *(*forward)(void *net, ls_tape *tape, ls_tensor *images);
} network_run;

static void open_run(network_run *r, ls_dtype compute)
{
    *r = (network_run){.device = open_cudahost("cudahost")};
    assert_status(LS_OK, ls_model_create(r->device, 1, &r->model));
    assert_status(LS_OK, ls_tape_create(r->device, &r->tape));
    assert_status(LS_OK, ls_tape_set_compute(r->tape, compute));
}

static void make_batch(network_run *r, int channels, int side)
{
    const int64_t dims[] = {2, channels, side, side};
    const ls_sgd_options sgd = {.size = sizeof(sgd), .lr = 0.01, .momentum = 0.9};
    const ls_named *parameters;
    int n;

    assert_status(LS_OK, ls_model_status(r->model));
    r->images = random_tensor(r->device, LS_F32, 4, dims, 1);
    assert_status(LS_OK, ls_tensor_create(r->device, LS_I64, 1, dims, &r->targets));
    parameters = ls_model_parameters(r->model, &n);
    assert_status(LS_OK, ls_sgd_create(parameters, n, ls_grad, &sgd, &r->optimizer));
}

static void close_run(network_run *r)
{
    ls_tensor_destroy(r->images);
    ls_tensor_destroy(r->targets);
    ls_optimizer_destroy(r->optimizer);
    ls_tape_destroy(r->tape);
    ls_model_destroy(r->model);
    assert_status(LS_OK, ls_device_close(r->device));
}

static void step(network_run *r)
{
    ls_tape_reset(r->tape);
    ls_model_zero_grad(r->model);
    assert_status(
        LS_OK,
        ls_backward(r->tape,
                    ls_cross_entropy(r->tape, r->forward(r->net, r->tape, r->images), r->targets),
                    1));
    assert_status(LS_OK, ls_optimizer_step(r->optimizer));
    assert_status(LS_OK, device_synchronize(r->device, "test: step"));
}

/* A step is one graph, which an earlier step has made; without graphs there is none. */
static void check_graphs(const device_usage *before, const device_usage *after)
{
    const char *setting = getenv("LOCKSTEP_CUDA_GRAPH"); // NOLINT(concurrency-mt-unsafe): never set

    assert_int_equal(after->n_graph_launches - before->n_graph_launches, setting != NULL);
    assert_int_equal(after->n_graphs_made, before->n_graphs_made);
}

/* Of a step, when the packed parameters and the memory of earlier steps exist. */
static uint64_t count_launches(network_run *r)
{
    device_usage before;
    device_usage after;

    for (int i = 0; i < STEPS; i++)
        step(r);
    assert_status(LS_OK, device_get_usage(r->device, &before));
    step(r);
    assert_status(LS_OK, device_get_usage(r->device, &after));
    check_graphs(&before, &after);
    return after.n_launches - before.n_launches;
}

static void a_step_of_the_convnet_has_few_launches(void **state)
{
    static const ls_dtype types[] = {LS_F32, LS_BF16};
    static const uint64_t most[] = {MOST_CONVNET_F32, MOST_CONVNET_BF16};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        convnet net;
        network_run r;
        uint64_t n;

        open_run(&r, types[i]);
        convnet_create(r.model, 10, &net);
        r.net = &net;
        r.forward = convnet_forward;
        make_batch(&r, 1, 28);
        n = count_launches(&r);
        print_message("ConvNet in %s: %d launches a step\n", ls_dtype_name(types[i]), (int)n);
        assert_in_range(n, 1, most[i]);
        close_run(&r);
    }
}

static void a_step_of_resnet50_has_few_launches(void **state)
{
    static const ls_dtype types[] = {LS_F32, LS_BF16};
    static const uint64_t most[] = {MOST_RESNET_F32, MOST_RESNET_BF16};
    char error[ARCHITECTURE_LIST_BYTES + 128];

    LS_UNUSED(state);
    cudahost()->is_dry = true; // the launches are counted, not run
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        network_run r;
        uint64_t n;

        open_run(&r, types[i]);
        r.net = net_create(r.model, architecture_find("resnet50", error, sizeof(error)), 10, 32);
        r.forward = net_forward;
        assert_non_null(r.net);
        make_batch(&r, 3, 32);
        n = count_launches(&r);
        print_message("ResNet-50 in %s: %d launches a step\n", ls_dtype_name(types[i]), (int)n);
        assert_in_range(n, 1, most[i]);
        net_destroy(r.net);
        close_run(&r);
    }
    cudahost()->is_dry = false;
}

/* Of all parameters, one behind the other, after one backward; malloc()ed. */
static float *read_gradients(network_run *r, bool checks_nan, size_t *count)
{
    int n;
    const ls_named *parameters = ls_model_parameters(r->model, &n);
    float *all = NULL;

    ls_tape_reset(r->tape);
    ls_model_zero_grad(r->model);
    ls_tape_check_nan(r->tape, checks_nan);
    assert_status(
        LS_OK,
        ls_backward(r->tape,
                    ls_cross_entropy(r->tape, r->forward(r->net, r->tape, r->images), r->targets),
                    1));
    *count = 0;
    for (int i = 0; i < n; i++) {
        const ls_tensor *g = ls_grad(parameters[i].tensor);
        const size_t more = ls_tensor_count(g);

        all = realloc(all, (*count + more) * sizeof(*all));
        assert_non_null(all);
        assert_status(LS_OK, ls_tensor_read(g, all + *count, more));
        *count += more;
    }
    return all;
}

/* With the check for NaN the gradients at forks are added by operators of their own. */
static void gradients_added_in_backwards_of_relu_have_the_bits_of_sums(void **state)
{
    static const ls_dtype types[] = {LS_F32, LS_BF16};
    char error[ARCHITECTURE_LIST_BYTES + 128];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(types); i++) {
        network_run r;
        float *added;
        float *summed;
        size_t count;

        open_run(&r, types[i]);
        r.net = net_create(r.model, architecture_find("resnet18", error, sizeof(error)), 10, 32);
        r.forward = net_forward;
        assert_non_null(r.net);
        make_batch(&r, 3, 32);
        added = read_gradients(&r, false, &count);
        summed = read_gradients(&r, true, &count);
        assert_memory_equal(added, summed, count * sizeof(*added));
        free(added);
        free(summed);
        net_destroy(r.net);
        close_run(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_of_the_convnet_has_few_launches),
        cmocka_unit_test(a_step_of_resnet50_has_few_launches),
        cmocka_unit_test(gradients_added_in_backwards_of_relu_have_the_bits_of_sums),
    };

    return cmocka_run_group_tests_name("launches", tests, NULL, NULL);
}
