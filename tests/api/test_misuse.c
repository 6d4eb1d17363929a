/* SPDX-License-Identifier: Apache-2.0 */
/* test_misuse.c - uses of the library that gave wrong results without an error. */
#include "api/values.h"
#include "base/unit.h"

/* --- dropout without random numbers of the rank's own --- */

static void dropout_without_random_numbers_of_its_own_is_refused(void **state)
{
    ls_tape *tape;

    LS_UNUSED(state);
    assert_ok(ls_tape_create(some_device(), &tape));
    assert_ptr_equal(ls_dropout(tape, some_tensor(), 0), some_tensor());
    assert_null(ls_dropout(tape, some_tensor(), 0.5));
    assert_status(ls_tape_status(tape), LS_EINVAL);
    assert_last_error("dropout");
    assert_last_error("ls_tape_set_random()");
    ls_tape_reset(tape);
    ls_tape_set_random(tape, 1, 0);
    assert_non_null(ls_dropout(tape, some_tensor(), 0.5));
    ls_tape_reset(tape);
    assert_non_null(ls_dropout(tape, some_tensor(), 0.5)); // the reset forgets operators only
    ls_tape_set_training(tape, 0);
    assert_ptr_equal(ls_dropout(tape, some_tensor(), 0.5), some_tensor());
    ls_tape_destroy(tape);
}

/* --- what backward reads is what forward has read --- */

typedef struct net {
    ls_tape *tape;
    ls_tensor *x;
    ls_tensor *weight; /* a leaf */
    ls_tensor *bias;   /* a leaf */
    ls_tensor *hidden;
    ls_tensor *loss;
} net;

static void net_forward(net *n)
{
    n->hidden = ls_relu(n->tape, ls_linear(n->tape, n->x, n->weight, n->bias));
    n->loss = ls_cross_entropy(n->tape, ls_linear(n->tape, n->hidden, n->weight, n->bias),
                               some_targets());
    assert_ok(ls_tape_status(n->tape));
}

static net net_make(void)
{
    const int64_t dims[] = {4, 2};
    net n = {0};

    assert_ok(ls_tape_create(some_device(), &n.tape));
    assert_ok(ls_tensor_create(some_device(), LS_F32, 2, dims, &n.x));
    assert_ok(ls_tensor_create(some_device(), LS_F32, 2, (const int64_t[]){2, 2}, &n.weight));
    assert_ok(ls_tensor_create(some_device(), LS_F32, 1, (const int64_t[]){2}, &n.bias));
    assert_ok(ls_require_grad(n.weight));
    assert_ok(ls_require_grad(n.bias));
    net_forward(&n);
    return n;
}

static void net_free(net *n)
{
    ls_tape_destroy(n->tape);
    ls_tensor_destroy(n->x);
    ls_tensor_destroy(n->weight);
    ls_tensor_destroy(n->bias);
}

/* Backward fails and names the operator, what it cannot read, and what wrote that. */
static void assert_refused(net *n, const char *operator_name, const char *what, const char *writer)
{
    assert_status(ls_backward(n->tape, n->loss, 1), LS_EINVAL);
    assert_last_error(operator_name);
    assert_last_error(what);
    assert_last_error("was overwritten after forward by");
    assert_last_error(writer);
    ls_tape_reset(n->tape);
    net_forward(n); // the next step works
    assert_ok(ls_backward(n->tape, n->loss, 1));
    ls_tape_reset(n->tape);
    net_forward(n);
}

static void backward_names_an_input_that_was_overwritten(void **state)
{
    static const float eight[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const int64_t labels[4] = {1, 0, 1, 0};
    net n = net_make();
    ls_tensor *view;

    LS_UNUSED(state);
    assert_ok(ls_tensor_write(n.x, eight, 8));
    assert_refused(&n, "linear backward", "input (4, 2) float32", "by ls_tensor_write();");
    assert_ok(ls_tensor_write(n.weight, eight, 4));
    assert_refused(&n, "linear backward", "weight (2, 2) float32", "by ls_tensor_write();");
    assert_ok(ls_tensor_view(n.weight, 1, (const int64_t[]){4}, &view));
    assert_ok(ls_tensor_write(view, eight, 4));
    assert_refused(&n, "linear backward", "weight (2, 2) float32", "by ls_tensor_write();");
    ls_tensor_destroy(view);
    assert_ok(ls_tensor_write(some_targets(), labels, 4));
    assert_refused(&n, "cross_entropy backward", "targets (4) int64", "by ls_tensor_write();");
    assert_non_null(ls_tensor_data(n.hidden));
    assert_refused(&n, "linear backward", "input (4, 2) float32", "by ls_tensor_data();");
    net_free(&n);
}

static void an_optimizer_step_between_forward_and_backward_is_named(void **state)
{
    const ls_sgd_options opt = {.size = sizeof(opt), .lr = 0.1};
    net n = net_make();
    const ls_named weight = {.name = "weight", .tensor = n.weight};
    ls_optimizer *sgd;

    LS_UNUSED(state);
    assert_ok(ls_sgd_create(&weight, 1, ls_grad, &opt, &sgd));
    assert_ok(ls_backward(n.tape, n.loss, 1));
    ls_tape_reset(n.tape);
    net_forward(&n);
    assert_ok(ls_optimizer_step(sgd));
    assert_refused(&n, "linear backward", "weight (2, 2) float32", "by sgd;");
    ls_optimizer_destroy(sgd);
    net_free(&n);
}

static void backward_names_an_input_that_was_destroyed(void **state)
{
    net n = net_make();

    LS_UNUSED(state);
    ls_tensor_destroy(n.x);
    assert_status(ls_backward(n.tape, n.loss, 1), LS_EINVAL);
    assert_last_error("linear backward");
    assert_last_error("was destroyed after forward");
    n.x = NULL;
    net_free(&n);
}

static void writes_that_no_backward_reads_are_allowed(void **state)
{
    const float two[2] = {1, 2};
    net n = net_make();

    LS_UNUSED(state);
    assert_ok(ls_tensor_write(n.bias, two, 2));
    assert_non_null(ls_tensor_data(n.loss));
    assert_non_null(ls_tensor_data_const(n.x));
    assert_ok(ls_backward(n.tape, n.loss, 1));
    net_free(&n);
}

static void a_batch_is_void_after_the_next_call_on_its_loader(void **state)
{
    ls_loader *loader = some_loader();
    ls_batch batch;
    ls_batch next;
    net n = net_make();
    ls_tensor *x;

    LS_UNUSED(state);
    assert_ok(ls_loader_next(loader, &batch));
    assert_ok(ls_require_grad(some_kernel()));
    x = ls_flatten(n.tape, ls_conv2d(n.tape, batch.x, some_kernel(), NULL, NULL));
    n.loss = ls_cross_entropy(n.tape, x, batch.y);
    assert_ok(ls_tape_status(n.tape));
    assert_ok(ls_loader_next(loader, &next));
    assert_status(ls_backward(n.tape, n.loss, 1), LS_EINVAL);
    assert_last_error("cross_entropy backward");
    assert_last_error("was overwritten after forward by the next batch");
    net_free(&n);
}

/* --- settings that do nothing --- */

static void a_learning_rate_that_is_not_set_is_refused(void **state)
{
    const ls_sgd_options sgd = {.size = sizeof(sgd), .momentum = 0.9};
    const ls_adam_options adam = {.size = sizeof(adam)};
    ls_optimizer *o;

    LS_UNUSED(state);
    assert_status(ls_sgd_create(some_parameters(), 2, ls_grad, &sgd, &o), LS_EINVAL);
    assert_last_error("sgd: lr is 0 or not set");
    assert_status(ls_adam_create(some_parameters(), 2, ls_grad, &adam, &o), LS_EINVAL);
    assert_last_error("adam: lr is 0 or not set");
    assert_status(ls_adamw_create(some_parameters(), 2, ls_grad, &adam, &o), LS_EINVAL);
    assert_last_error("adamw: lr is 0 or not set");
    assert_ok(ls_sgd_create(some_parameters(), 2, ls_grad,
                            &(ls_sgd_options){.size = sizeof(sgd), .lr = 1}, &o));
    ls_optimizer_set_lr(o, 0); // set explicitly
    assert_true(ls_optimizer_lr(o) == 0);
    assert_ok(ls_optimizer_step(o));
    ls_optimizer_destroy(o);
}

static void augmentation_is_refused_while_a_loader_reads_the_set(void **state)
{
    const ls_augment larger = {.size = sizeof(larger), .height = 64};
    ls_loader_options opt = {.size = sizeof(opt), .batch_size = 4, .threads = -1};
    ls_loader *loader;
    ls_batch batch;

    LS_UNUSED(state);
    opt.device = some_device();
    opt.dataset = free_dataset();
    opt.sampler = some_sampler();
    assert_ok(ls_loader_create(&opt, &loader));
    assert_ok(ls_loader_start(loader, 0, 0));
    assert_status(ls_dataset_augment(free_dataset(), &larger), LS_EINVAL);
    assert_last_error("a loader is using the data set");
    assert_status(ls_dataset_augment(free_dataset(), NULL), LS_EINVAL);
    assert_int_equal(ls_dataset_sample_dims(free_dataset())[1], 4);
    assert_ok(ls_loader_next(loader, &batch));
    assert_int_equal(ls_tensor_dim(batch.x, 2), 4);
    ls_loader_destroy(loader);
    assert_ok(ls_dataset_augment(free_dataset(), &larger));
    assert_int_equal(ls_dataset_sample_dims(free_dataset())[1], 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropout_without_random_numbers_of_its_own_is_refused),
        cmocka_unit_test(backward_names_an_input_that_was_overwritten),
        cmocka_unit_test(an_optimizer_step_between_forward_and_backward_is_named),
        cmocka_unit_test(backward_names_an_input_that_was_destroyed),
        cmocka_unit_test(writes_that_no_backward_reads_are_allowed),
        cmocka_unit_test(a_batch_is_void_after_the_next_call_on_its_loader),
        cmocka_unit_test(a_learning_rate_that_is_not_set_is_refused),
        cmocka_unit_test(augmentation_is_refused_while_a_loader_reads_the_set),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
