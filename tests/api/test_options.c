/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_options.c - every options struct of the public headers, as programs pass it that were built
 * against an older or a newer header. options_list.py lists the structs: one without a fill_ and a
 * use_ function here does not compile.
 */
#include "api/values.h"
#include "base/unit.h"

#include <stdlib.h>

/* fill_TYPE makes options with which use_TYPE succeeds; their last field is 0. use_TYPE passes them
   to the library. */

static void fill_ls_init_options(ls_init_options *o)
{
    o->transport = "shm";
}

static ls_status use_ls_init_options(const ls_init_options *o)
{
    ls_comm *comm = NULL;
    const ls_status st = ls_init(o, &comm);

    ls_comm_destroy(comm);
    return st;
}

static void fill_ls_synthetic_options(ls_synthetic_options *o)
{
    o->classes = 3;
}

static ls_status use_ls_synthetic_options(const ls_synthetic_options *o)
{
    ls_dataset *set = NULL;
    const ls_status st = ls_dataset_open_synthetic(o, &set);

    if (st == LS_OK)
        assert_int_equal(ls_dataset_classes(set), 3);
    ls_dataset_close(set);
    return st;
}

static void fill_ls_dataset_callbacks(ls_dataset_callbacks *o)
{
    *o = *sequence_callbacks();
}

static ls_status use_ls_dataset_callbacks(const ls_dataset_callbacks *o)
{
    ls_dataset *set = NULL;
    const ls_status st = ls_dataset_create(o, &set);

    if (st == LS_OK)
        assert_int_equal(ls_dataset_count(set), 4);
    ls_dataset_close(set);
    return st;
}

static void fill_ls_augment(ls_augment *o)
{
    o->height = 2;
}

static ls_status use_ls_augment(const ls_augment *o)
{
    return ls_dataset_augment(free_dataset(), o);
}

static void fill_ls_op(ls_op *o)
{
    *o = *some_op();
}

static ls_status use_ls_op(const ls_op *o)
{
    ls_tensor *y = NULL;
    ls_status st;

    ls_tape_reset(some_tape());
    ls_op_run(some_tape(), o, NULL, 0, some_leaves(), 1, &y, 1);
    st = ls_tape_status(some_tape());
    assert_int_equal(y != NULL, st == LS_OK);
    ls_tape_reset(some_tape());
    return st;
}

static void fill_ls_sampler_options(ls_sampler_options *o)
{
    o->count = 8;
    o->world_size = 2;
}

static ls_status use_ls_sampler_options(const ls_sampler_options *o)
{
    ls_sampler *s = NULL;
    const ls_status st = ls_sampler_create(o, &s);

    if (st == LS_OK)
        assert_int_equal(ls_sampler_count(s), 4);
    ls_sampler_destroy(s);
    return st;
}

static void fill_ls_loader_options(ls_loader_options *o)
{
    o->device = some_device();
    o->dataset = some_dataset();
    o->sampler = some_sampler();
    o->batch_size = 4;
    o->threads = -1;
}

static ls_status use_ls_loader_options(const ls_loader_options *o)
{
    ls_loader *l = NULL;
    const ls_status st = ls_loader_create(o, &l);

    if (st == LS_OK)
        assert_int_equal(ls_loader_batches(l), 2);
    ls_loader_destroy(l);
    return st;
}

static void fill_ls_ddp_options(ls_ddp_options *o)
{
    o->hook = LS_DDP_HOOK_BF16;
}

static ls_status use_ls_ddp_options(const ls_ddp_options *o)
{
    ls_ddp *ddp = NULL;
    const ls_status st = ls_ddp_create(some_comm(), some_model(), o, &ddp);

    ls_ddp_destroy(ddp);
    return st;
}

static void fill_ls_local_sgd_options(ls_local_sgd_options *o)
{
    o->every = 3;
    o->fragments = 2;
}

static ls_status use_ls_local_sgd_options(const ls_local_sgd_options *o)
{
    ls_local_sgd *local = NULL;
    const ls_status st =
        ls_local_sgd_create(some_comm(), recurrent_model(), some_optimizer(), o, &local);

    ls_local_sgd_destroy(local);
    return st;
}

static void fill_ls_elastic_options(ls_elastic_options *o)
{
    static int64_t step;

    o->step = &step;
}

static ls_status use_ls_elastic_options(const ls_elastic_options *o)
{
    ls_ddp *ddp = NULL;
    ls_status st = ls_ddp_create(some_comm(), some_model(), NULL, &ddp);

    if (st == LS_OK)
        st = ls_ddp_elastic(ddp, o);
    ls_ddp_destroy(ddp);
    return st;
}

static void fill_ls_flags(ls_flags *o)
{
    *o = *some_flags();
}

static ls_status use_ls_flags(const ls_flags *o)
{
    char *help = NULL;
    const ls_status st = ls_flags_help(o, &help);

    ls_flags_free(help);
    assert_int_equal(ls_flags_parse(o, 2, some_argv(), NULL), st);
    return st;
}

static void fill_ls_train_program(ls_train_program *o)
{
    *o = *some_program();
}

static ls_status use_ls_train_program(const ls_train_program *o)
{
    char name[] = "program";
    char help[] = "--help";
    char *argv[] = {name, help, NULL};

    return ls_train_main(o, 2, argv) == 0 ? LS_OK : LS_EINVAL;
}

static void fill_ls_spawn_options(ls_spawn_options *o)
{
    o->nodes = 1;
}

static ls_status use_ls_spawn_options(const ls_spawn_options *o)
{
    return ls_spawn(do_nothing, 1, NULL, o);
}

static void fill_ls_sgd_options(ls_sgd_options *o)
{
    o->lr = 0.5;
}

static ls_status use_ls_sgd_options(const ls_sgd_options *o)
{
    ls_optimizer *sgd = NULL;
    const ls_status st = ls_sgd_create(some_parameters(), 2, ls_grad, o, &sgd);

    if (st == LS_OK)
        assert_true(ls_optimizer_lr(sgd) == 0.5);
    ls_optimizer_destroy(sgd);
    return st;
}

static void fill_ls_adam_options(ls_adam_options *o)
{
    o->lr = 0.5;
}

static ls_status use_ls_adam_options(const ls_adam_options *o)
{
    ls_optimizer *adam = NULL;
    ls_optimizer *adamw = NULL;
    const ls_status st = ls_adam_create(some_parameters(), 2, ls_grad, o, &adam);

    assert_int_equal(ls_adamw_create(some_parameters(), 2, ls_grad, o, &adamw), st);
    if (st == LS_OK)
        assert_true(ls_optimizer_lr(adam) == 0.5);
    ls_optimizer_destroy(adam);
    ls_optimizer_destroy(adamw);
    return st;
}

static void fill_ls_group_options(ls_group_options *o)
{
    o->lr_factor = 0.5;
}

static ls_status use_ls_group_options(const ls_group_options *o)
{
    return ls_optimizer_group(some_optimizer(), "*", o);
}

static void fill_ls_grad_scaler_options(ls_grad_scaler_options *o)
{
    o->init_scale = 8;
}

static ls_status use_ls_grad_scaler_options(const ls_grad_scaler_options *o)
{
    ls_grad_scaler *scaler = NULL;
    const ls_status st = ls_grad_scaler_create(some_optimizer(), o, &scaler);

    if (st == LS_OK)
        assert_true(ls_grad_scaler_scale(scaler) == 8);
    ls_grad_scaler_destroy(scaler);
    return st;
}

static void fill_ls_store_callbacks(ls_store_callbacks *o)
{
    *o = *some_callbacks();
}

static ls_status use_ls_store_callbacks(const ls_store_callbacks *o)
{
    ls_store *store = NULL;
    const ls_status st = ls_store_create(o, &store);

    ls_store_close(store);
    return st;
}

static void fill_ls_store_options(ls_store_options *o)
{
    o->insecure = 1;
}

static ls_status use_ls_store_options(const ls_store_options *o)
{
    ls_store *store = NULL;
    const ls_status st = ls_store_open("mem:", o, &store);

    ls_store_close(store);
    return st;
}

static void fill_ls_device_options(ls_device_options *o)
{
    o->name = "cpu_ref";
}

static ls_status use_ls_device_options(const ls_device_options *o)
{
    ls_device *device = NULL;
    const ls_status st = ls_device_open(o, &device);

    ls_device_close(device);
    return st;
}

/* --- the structs as one table --- */

#define OPTIONS(type, last)                                                                        \
    static void fill_any_##type(void *o)                                                           \
    {                                                                                              \
        fill_##type(o);                                                                            \
    }                                                                                              \
    static ls_status use_any_##type(const void *o)                                                 \
    {                                                                                              \
        return use_##type(o);                                                                      \
    }
#include "options_list.inc"
#undef OPTIONS

static const struct {
    const char *name;
    size_t bytes;
    size_t bytes_before; /* of the header before the last field was added */
    void (*fill)(void *o);
    ls_status (*use)(const void *o);
} structs[] = {
#define OPTIONS(type, last)                                                                        \
    {#type, sizeof(type), offsetof(type, last), fill_any_##type, use_any_##type},
#include "options_list.inc"
#undef OPTIONS
};

enum { MAX_BYTES = 512 };

/* Passes the first `bytes` bytes of filled options, with `mark` in the last of them where that is
 * behind the known fields. Nothing behind these bytes may be read: it is not ours. */
static ls_status pass(size_t i, size_t bytes, size_t size, char mark)
{
    size_t whole[MAX_BYTES / sizeof(size_t)] = {0};
    char *given = malloc(bytes);
    ls_status st;

    assert_true(bytes <= MAX_BYTES && given != NULL);
    structs[i].fill(whole);
    whole[0] = size;
    memcpy(given, whole, bytes);
    if (bytes > structs[i].bytes)
        given[bytes - 1] = mark;
    st = structs[i].use(given);
    free(given);
    return st;
}

static void options_of_an_older_header_are_accepted(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(structs); i++)
        assert_ok(pass(i, structs[i].bytes_before, structs[i].bytes_before, 0));
}

static void options_of_this_header_are_accepted(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(structs); i++)
        assert_ok(pass(i, structs[i].bytes, structs[i].bytes, 0));
}

static void longer_options_are_accepted_while_unknown_fields_are_zero(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(structs); i++)
        assert_ok(pass(i, structs[i].bytes + 24, structs[i].bytes + 24, 0));
}

static void an_unknown_field_that_is_set_is_refused(void **state)
{
    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(structs); i++) {
        assert_status(pass(i, structs[i].bytes + 24, structs[i].bytes + 24, 1), LS_EINVAL);
        assert_last_error(structs[i].name);
        assert_last_error("newer header");
    }
}

static void a_size_that_is_not_set_is_refused(void **state)
{
    static const size_t sizes[] = {0, 1, sizeof(size_t) - 1, 1 << 20, SIZE_MAX};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(structs); i++) {
        for (size_t k = 0; k < LS_COUNT_OF(sizes); k++) {
            assert_status(pass(i, structs[i].bytes, sizes[k], 0), LS_EINVAL);
            assert_last_error(structs[i].name);
            assert_last_error("must be sizeof");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_an_older_header_are_accepted),
        cmocka_unit_test(options_of_this_header_are_accepted),
        cmocka_unit_test(longer_options_are_accepted_while_unknown_fields_are_zero),
        cmocka_unit_test(an_unknown_field_that_is_set_is_refused),
        cmocka_unit_test(a_size_that_is_not_set_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
