/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ddp_recorded.c - the order of a step's communication and computation, as the flight recorder
 * of a rank has it: the sum of weights, and with --trace the work of a device.
 */
#include "ddp/two_layers.h"

#include "base/clock.h"
#include "base/text.h"
#include "comm/record/recorder.h"
#include "harness/ranks.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- the sum of weights --- */

/* The operations "ddp weight" of this rank so far. */
static int weights_in(int ring, recorder_entry *last)
{
    static recorder_entry entries[RECORDER_ENTRIES];
    int n_weights = 0;
    int n = 0;

    if (recorder_read(ring, entries, RECORDER_ENTRIES, &n) != LS_OK)
        return -1;
    for (int i = 0; i < n; i++) {
        if (strcmp(entries[i].stamp.site, "ddp weight") == 0) {
            *last = entries[i];
            n_weights++;
        }
    }
    return n_weights;
}

static int64_t last_backward_ns(int ring)
{
    static recorder_span spans[RECORDER_ENTRIES];
    int64_t start_ns = 0;
    int n = 0;

    if (recorder_read_phases(ring, spans, RECORDER_ENTRIES, &n) != LS_OK)
        return -1;
    for (int i = 0; i < n; i++) {
        if (strcmp(spans[i].name, "backward") == 0)
            start_ns = spans[i].start_ns;
    }
    return start_ns;
}

/* A group whose flight recorder this process reads. */
static ls_status init_recorded(const ls_test_rank *self, ls_comm **comm, int *ring)
{
    char number[16];

    LS_TRY(recorder_create_fd(ring));
    text_format(number, sizeof(number), "%d", *ring);
    LS_CHECK(setenv("LOCKSTEP_RING_FD", number, 1) == 0);
    return ls_test_init(self, comm);
}

static ls_status body_weight_first(const ls_test_rank *self, void *arg)
{
    const int64_t deadline_ms = ls_now_ms() + 30000;
    recorder_entry weight = {0};
    ls_comm *comm;
    ls_ddp_step step;
    small_net n;
    int ring;

    LS_UNUSED(arg);
    LS_TRY(init_recorded(self, &comm, &ring));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, NULL));
    for (int i = 1; i <= 3; i++) {
        LS_TRY(ls_ddp_begin(n.ddp, 2));
        LS_CHECK(weights_in(ring, &weight) == i);
        while (weights_in(ring, &weight) == i && weight.end_ns == 0) {
            LS_CHECK(ls_now_ms() < deadline_ms);
            sched_yield();
        }
        LS_TRY(rows_through(&n, ddp_backward, i, 2 * self->rank, 2, &step));
        LS_CHECK(step.weight == 4 && weights_in(ring, &weight) == i);
        LS_CHECK(weight.end_ns <= last_backward_ns(ring));
    }
    LS_TRY(ls_ddp_begin(n.ddp, 2)); /* a step that all begin and none ends */
    small_net_close(&n);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void weights_are_summed_before_backward_starts(void **state)
{
    (void)state;
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2, .body = body_weight_first}, NULL));
}

/* --- the work of a device, with --trace --- */

enum { TRACED_STEPS = 40 };

typedef struct device_work {
    recorder_span backward[TRACED_STEPS];
    int n_backward;
    recorder_entry buckets[2][TRACED_STEPS]; /* the first and the second of each step */
    int n_buckets[2];
} device_work;

static ls_status read_device_work(int ring, device_work *w)
{
    static recorder_entry entries[RECORDER_ENTRIES];
    uint64_t n_dropped;
    int n = 0;

    memset(w, 0, sizeof(*w));
    LS_TRY(
        recorder_read_device_phases(ring, w->backward, TRACED_STEPS, &w->n_backward, &n_dropped));
    LS_TRY(recorder_read(ring, entries, RECORDER_ENTRIES, &n));
    for (int i = 0; i < n; i++) {
        const char *site = entries[i].stamp.site;
        const int which = strncmp(site, "bucket ", 7) == 0 ? site[7] - '1' : -1;

        if (which < 0 || which > 1 || entries[i].device_end_ns == 0)
            continue;
        LS_CHECK(w->n_buckets[which] < TRACED_STEPS);
        w->buckets[which][w->n_buckets[which]++] = entries[i];
    }
    return LS_OK;
}

/* A bucket holds the gradients of one layer. How soon the first is reduced differs from step to
 * step: the host copies it while the device goes on. */
static ls_status body_device_work(const ls_test_rank *self, void *arg)
{
    const ls_ddp_options options = {
        .size = sizeof(options), .first_bucket_bytes = 1, .bucket_bytes = 1};
    static device_work w;
    ls_comm *comm;
    ls_ddp_step step;
    small_net n;
    int n_overlaps = 0;
    int ring;

    LS_UNUSED(arg);
    LS_TRY(init_recorded(self, &comm, &ring));
    LS_TRY(net_open(&n, 1));
    LS_TRY(net_join(&n, comm, &options));
    for (int i = 0; i < TRACED_STEPS; i++)
        LS_TRY(rows_through(&n, ddp_backward, i, 2 * self->rank, 2, &step));
    if (ls_device_queue(n.device) == NULL) {
        LS_TRY(read_device_work(ring, &w));
        LS_CHECK(w.n_backward == 0 && w.n_buckets[0] == 0);
        small_net_close(&n);
        ls_comm_destroy(comm);
        return LS_OK;
    }
    small_net_close(&n);
    LS_TRY(read_device_work(ring, &w));
    LS_CHECK(w.n_backward == TRACED_STEPS);
    LS_CHECK(w.n_buckets[0] == TRACED_STEPS && w.n_buckets[1] == TRACED_STEPS);
    for (int i = 0; i < TRACED_STEPS; i++) {
        const recorder_entry *first = &w.buckets[0][i];

        LS_CHECK(w.backward[i].start_ns <= w.backward[i].end_ns);
        LS_CHECK(w.backward[i].start_ns <= first->device_start_ns);
        LS_CHECK(first->device_start_ns <= first->device_end_ns);
        LS_CHECK(first->device_end_ns <= w.buckets[1][i].device_start_ns);
        if (i + 1 < TRACED_STEPS)
            LS_CHECK(w.buckets[1][i].device_end_ns <= w.backward[i + 1].start_ns);
        n_overlaps += first->device_start_ns < w.backward[i].end_ns;
    }
    LS_CHECK(n_overlaps > 0);
    ls_comm_destroy(comm);
    return LS_OK;
}

static void reductions_on_a_device_overlap_its_backward(void **state)
{
    (void)state;
    assert_true(ls_test_ranks(&(ls_test_job){.n = 2,
                                             .body = body_device_work,
                                             .env = {"LOCKSTEP_TRACE=1", "GPU_HOST_DELAY_US=100"}},
                              NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_summed_before_backward_starts),
        cmocka_unit_test(reductions_on_a_device_overlap_its_backward),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
