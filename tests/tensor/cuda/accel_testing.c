/* SPDX-License-Identifier: Apache-2.0 */
/* accel_testing.c - see accel_testing.h. */
#include "tensor/cuda/accel_testing.h"

#include "base/alloc.h"

#include <string.h>

static const char *op_name(op_kind op)
{
    return op == OP_NLL ? "nll" : "?";
}

static const device_host host = {
    .vfail = ls_vfail,
    .alloc = ls_calloc,
    .alloc_aligned = ls_alloc_aligned,
    .free = ls_free,
    .accel_register = accel_register,
    .accel_unregister = accel_unregister,
    .op_name = op_name,
};
const device_host *cu_host = &host;

void cu_note(ls_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)ls_vfail(status, format, args);
    va_end(args);
}

gpu_host *gpu;
static gpu_host at_first;

void accel_testing_begin(void)
{
    gpu = gpu_host_state();
    at_first = *gpu;
}

int accel_testing_reset(void **state)
{
    LS_UNUSED(state);
    *gpu = at_first;
    return 0;
}

void assert_failed(ls_status want, ls_status got, const char *text)
{
    assert_int_equal(want, got);
    if (strstr(ls_last_error(), text) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", ls_last_error(), text);
}

cuda_accel *accel_testing_open(int index, bool graphs)
{
    const gpu_properties card = {.name = "host memory", .bus_id = "0000:01:00.0"};
    cuda_accel *a = NULL;

    assert_ok(cuda_accel_open(index, &card, graphs, &a));
    return a;
}

void close_accel(cuda_accel *a)
{
    cuda_accel_close(a);
    assert_int_equal(gpu->used_bytes, 0);
    assert_int_equal(gpu->n_pinned, 0);
    assert_int_equal(gpu->n_streams, 0);
    assert_int_equal(gpu->n_events, 0);
    assert_int_equal(gpu->n_graphs, 0);
}
