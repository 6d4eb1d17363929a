/* SPDX-License-Identifier: Apache-2.0 */
/* optim_scene.c - parameters, gradients and checks that the tests of optimizers share. */
#include "optim/optim_scene.h"

#include "base/alloc.h"
#include "tensor/device.h"
#include "devices/cudahost.h"
#include "tensor/suite_device.h"

enum { MAX_ELEMENTS = 16 };

ls_device *device;
scene_grad grads[MAX_PARAMS];

int open_device(void **state)
{
    LS_UNUSED(state);
    return ls_device_open(&(ls_device_options){.size = sizeof(ls_device_options),
                                               .name = test_device_name(),
                                               .threads = 1},
                          &device) == LS_OK
               ? 0
               : -1;
}

int close_device(void **state)
{
    LS_UNUSED(state);
    ls_device_close(device);
    return 0;
}

uint64_t count_allocations(void)
{
    return device->accel == NULL ? ls_alloc_count() : cudahost()->n_allocations;
}

ls_tensor *grad_of(const ls_tensor *parameter)
{
    for (int i = 0; i < MAX_PARAMS; i++) {
        if (grads[i].parameter == parameter)
            return grads[i].grad;
    }
    return NULL;
}

ls_tensor *make_tensor(ls_dtype type, int64_t n)
{
    ls_tensor *t = NULL;

    assert_ok(ls_tensor_create(device, type, 1, &n, &t));
    return t;
}

void set_values(ls_tensor *t, const double *values)
{
    const size_t n = ls_tensor_count(t);
    float rounded[MAX_ELEMENTS];

    assert_true(n <= LS_COUNT_OF(rounded));
    for (size_t i = 0; i < n; i++)
        rounded[i] = (float)values[i];
    assert_ok(ls_tensor_write(t, ls_tensor_dtype(t) == LS_F32 ? (const void *)rounded : values, n));
}

double value_at(const ls_tensor *t, size_t i)
{
    double values[MAX_ELEMENTS];

    assert_true(i < ls_tensor_count(t) && ls_tensor_count(t) <= MAX_ELEMENTS);
    assert_ok(ls_tensor_read(t, values, ls_tensor_count(t)));
    return ls_tensor_dtype(t) == LS_F32 ? (double)((const float *)(const void *)values)[i]
                                        : values[i];
}

void copy_items(const ls_named *src, int n, const ls_named *dst, int n_dst)
{
    assert_int_equal(n, n_dst);
    for (int i = 0; i < n; i++) {
        assert_string_equal(src[i].name, dst[i].name);
        if (src[i].tensor != NULL)
            assert_ok(ls_tensor_copy(dst[i].tensor, src[i].tensor));
        else
            memcpy(dst[i].bytes, src[i].bytes, src[i].n_bytes);
    }
}

void copy_state(ls_optimizer *from, ls_optimizer *to)
{
    int n = 0;
    int n_to = 0;
    const ls_named *src = ls_optimizer_state(from, &n);
    const ls_named *dst = ls_optimizer_state(to, &n_to);

    copy_items(src, n, dst, n_to);
}

fixture setup(ls_dtype type, const double start[3], make_optimizer_fn make, const void *arg)
{
    fixture f = {.p = make_tensor(type, 3), .g = make_tensor(type, 3)};
    const ls_named named = {.name = "p", .tensor = f.p};

    set_values(f.p, start);
    grads[0] = (scene_grad){.parameter = f.p, .grad = f.g};
    assert_ok(make(&named, arg, &f.o));
    return f;
}

void teardown(fixture *f)
{
    ls_optimizer_destroy(f->o);
    ls_tensor_destroy(f->p);
    ls_tensor_destroy(f->g);
    memset(grads, 0, sizeof(grads));
}

static void take_over_after(int n_before, const double start[3], const double gradients[4][3],
                            make_optimizer_fn make, const void *arg)
{
    fixture f = setup(LS_F32, start, make, arg);
    const ls_named named = {.name = "p", .tensor = f.p};
    ls_optimizer *other;
    float kept[3];
    float whole[3];

    ls_optimizer_set_lr(f.o, 0.07);
    for (int step = 0; step < 4; step++) {
        if (step == n_before) {
            assert_ok(make(&named, arg, &other));
            copy_state(f.o, other);
            assert_ok(ls_optimizer_loaded(other));
            assert_ok(ls_tensor_read(f.p, kept, 3));
        }
        set_values(f.g, gradients[step]);
        assert_ok(ls_optimizer_step(f.o));
    }
    assert_ok(ls_tensor_read(f.p, whole, 3));
    assert_ok(ls_tensor_write(f.p, kept, 3));
    for (int step = n_before; step < 4; step++) {
        set_values(f.g, gradients[step]);
        assert_ok(ls_optimizer_step(other));
    }
    assert_ok(ls_tensor_read(f.p, kept, 3));
    assert_memory_equal(kept, whole, sizeof(whole));
    assert_true(ls_optimizer_lr(other) == 0.07);
    ls_optimizer_destroy(other);
    teardown(&f);
}

void check_continuing(const double start[3], const double gradients[4][3], make_optimizer_fn make,
                      const void *arg)
{
    for (int n_before = 0; n_before < 4; n_before++)
        take_over_after(n_before, start, gradients, make, arg);
}
