/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_device_close.c - a device that is closed before a group whose operations have used its
 * memory: the group goes on, and an operation that is still pending breaks it.
 */
#include "harness/ranks.h"

#include <lockstep/tensor.h>

#include "base/unit.h"

#include <string.h>

enum { COUNT = 3001 };

/* Opens the device and a tensor of `value`. */
static ls_status open_tensor(float value, ls_device **device, ls_tensor **out)
{
    const ls_device_options options = {.size = sizeof(options), .name = "cudahost"};
    const int64_t dims[] = {COUNT};
    static float values[COUNT];

    for (int i = 0; i < COUNT; i++)
        values[i] = value;
    LS_TRY(ls_device_open(&options, device));
    LS_TRY(ls_tensor_create(*device, LS_F32, 1, dims, out));
    return ls_tensor_write(*out, values, COUNT);
}

static ls_status close_all(ls_device *device, ls_tensor *t)
{
    ls_tensor_destroy(t);
    return ls_device_close(device);
}

/* Sums on a device, closes it, and sums on another one. */
static ls_status closed_body(const ls_test_rank *self, void *arg)
{
    ls_device *device = NULL;
    ls_tensor *t = NULL;
    ls_comm *comm = NULL;
    int one = 1;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    for (int pass = 0; pass < 2; pass++) {
        float values[COUNT];
        void *at;

        LS_TRY(open_tensor(1, &device, &t));
        at = ls_tensor_address(t);
        LS_TRY(ls_all_reduce(comm, at, at, COUNT, LS_F32, LS_SUM, NULL));
        LS_TRY(ls_tensor_read(t, values, COUNT));
        LS_CHECK(values[0] == (float)ls_comm_size(comm));
        LS_CHECK(values[COUNT - 1] == values[0]);
        LS_TRY(close_all(device, t));
        LS_TRY(ls_all_reduce(comm, &one, &one, 1, LS_I32, LS_SUM, NULL));
    }
    ls_comm_destroy(comm);
    return LS_OK;
}

static bool run(int n, ls_test_body body)
{
    return ls_test_ranks(&(ls_test_job){.n = n, .body = body, .timeout_ms = 20000}, NULL);
}

static void a_device_may_be_closed_before_a_group_that_used_it(void **state)
{
    LS_UNUSED(state);
    for (int n = 1; n <= 3; n++)
        assert_true(run(n, closed_body));
}

/* Rank 0 closes its device while its sum waits for rank 1, which never calls it. */
static ls_status pending_body(const ls_test_rank *self, void *arg)
{
    ls_device *device = NULL;
    ls_tensor *t = NULL;
    ls_comm *comm = NULL;
    ls_work *work = NULL;
    ls_status st;

    LS_UNUSED(arg);
    LS_TRY(ls_test_init(self, &comm));
    LS_TRY(open_tensor(1, &device, &t));
    if (ls_comm_rank(comm) == 0) {
        void *at = ls_tensor_address(t);

        LS_TRY(ls_all_reduce(comm, at, at, COUNT, LS_F32, LS_SUM, &work));
        LS_TRY(close_all(device, t));
        st = ls_work_wait(work);
    } else {
        st = ls_recv(comm, ls_tensor_address(t), COUNT, LS_F32, 0, 0, NULL);
        LS_TRY(close_all(device, t));
    }
    LS_CHECK(st != LS_OK);
    LS_CHECK(strstr(ls_last_error(), "was closed before an operation on its memory") != NULL);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void an_operation_that_is_pending_when_its_device_closes_breaks_the_group(void **state)
{
    LS_UNUSED(state);
    assert_true(run(2, pending_body));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_may_be_closed_before_a_group_that_used_it),
        cmocka_unit_test(an_operation_that_is_pending_when_its_device_closes_breaks_the_group),
    };

    return cmocka_run_group_tests_name("closed devices", tests, NULL, NULL);
}
