/* SPDX-License-Identifier: Apache-2.0 */
/* test_trace.c - the timeline from the flight recorders of several ranks. */
#include "base/unit.h"

#include "base/report/json.h"
#include "cli/trace/trace.h"
#include "comm/record/recorder.h"

#include <lockstep/comm.h>

#include <unistd.h>

#define US 1000 /* ns */

typedef struct scene {
    trace t;
    text_buf text;
    json_value *json;
    const json_value *events;
} scene;

static op_stamp stamp_of(coll_kind kind, uint64_t sequence)
{
    op_stamp s = {.kind = (uint8_t)kind,
                  .sequence = sequence,
                  .dtype = LS_F32,
                  .redop = kind == COLL_ALL_REDUCE ? LS_SUM : 255,
                  .root = kind == COLL_SEND ? 1 : -1,
                  .count = 25};

    memcpy(s.site, "bucket 1/2", 11);
    return s;
}

/* One operation of a rank that is recorded by `record` below. */
typedef struct done {
    coll_kind kind;
    uint64_t sequence;
    int64_t start_us;
    int64_t end_us; /* 0: not finished */
    ls_status status;
    int peer;
} done;

static void record(scene *s, int rank, int64_t behind_us, const done *list, int n)
{
    recorder *r;
    int fd;

    assert_ok(recorder_create_fd(&fd));
    assert_ok(recorder_open(fd, rank, &r));
    for (int i = 0; i < n; i++) {
        const op_stamp stamp = stamp_of(list[i].kind, list[i].sequence);
        const uint64_t number = recorder_begin(r, &stamp, 100, list[i].start_us * US);

        if (list[i].end_us != 0)
            recorder_end(r, number, list[i].status, list[i].peer, list[i].end_us * US);
    }
    recorder_phase(r, "backward", list[0].start_us * US, (list[0].start_us + 7) * US);
    recorder_close(r);
    trace_keep(&s->t, 1, rank, rank == 0 ? "node1" : "no\033[31mde2", behind_us * US, fd);
    (void)close(fd);
}

static void parse(scene *s)
{
    assert_ok(trace_text(&s->t, &s->text));
    assert_ok(json_parse(text_str(&s->text), s->text.length, "trace", &s->json));
    s->events = json_get(s->json, "traceEvents");
}

static void finish(scene *s)
{
    json_free(s->json);
    text_free(&s->text);
    trace_free(&s->t);
}

static const char *text_at(const json_value *e, const char *key)
{
    return json_as_string(json_get(e, key), "");
}

static double real_at(const json_value *e, const char *key)
{
    return json_as_real(json_get(e, key), -1);
}

/* The n-th event of this name of a rank. */
static const json_value *find(const scene *s, const char *name, int rank, int n)
{
    for (size_t i = 0; i < json_size(s->events); i++) {
        const json_value *e = json_at(s->events, i);

        if (text_equal(text_at(e, "name"), name) && json_as_int(json_get(e, "pid"), -1) == rank &&
            n-- == 0)
            return e;
    }
    return NULL;
}

static void ranks_share_one_clock(void **state)
{
    /* rank 1's clock is 500 us behind; it comes 30 us after rank 0 */
    const done first[] = {{COLL_ALL_REDUCE, 1, 1000, 1060, LS_OK, 1}};
    const done second[] = {{COLL_ALL_REDUCE, 1, 530, 561, LS_OK, -1}};
    const json_value *e;
    scene s = {0};

    LS_UNUSED(state);
    record(&s, 0, 0, first, 1);
    record(&s, 1, 500, second, 1);
    parse(&s);
    e = find(&s, "all_reduce", 0, 0);
    assert_non_null(e);
    assert_true(real_at(e, "ts") == 0 && real_at(e, "dur") == 60);
    assert_true(real_at(json_get(e, "args"), "late_us") == 0);
    assert_int_equal(json_as_int(json_get(json_get(e, "args"), "waited_for_rank"), -1), 1);
    assert_int_equal(json_as_int(json_get(json_get(e, "args"), "bytes"), -1), 100);
    assert_string_equal(text_at(json_get(e, "args"), "site"), "bucket 1/2");
    e = find(&s, "all_reduce", 1, 0);
    assert_true(real_at(e, "ts") == 30 && real_at(e, "dur") == 31);
    assert_true(real_at(json_get(e, "args"), "late_us") == 30);
    assert_null(json_get(json_get(e, "args"), "waited_for_rank"));
    e = find(&s, "backward", 1, 0);
    assert_true(real_at(e, "ts") == 30 && real_at(e, "dur") == 7);
    assert_string_equal(text_at(e, "ph"), "X");
    e = find(&s, "process_name", 1, 0);
    assert_string_equal(text_at(json_get(e, "args"), "name"), "rank 1 (no?[31mde2)");
    finish(&s);
}

/* As record(), of a rank with an accelerator: the second operation overlaps the first there, the
 * third was not executed by it. */
static void record_device(scene *s, int rank, int64_t behind_us)
{
    recorder *r;
    int fd;

    assert_ok(recorder_create_fd(&fd));
    assert_ok(recorder_open(fd, rank, &r));
    for (int i = 1; i <= 3; i++) {
        const op_stamp stamp = stamp_of(COLL_ALL_REDUCE, (uint64_t)i);
        const uint64_t number = recorder_begin(r, &stamp, 100, (10 + i) * US);

        if (i < 3)
            recorder_device_time(r, number, 20 * i * US, (20 * i + 30) * US);
        recorder_end(r, number, LS_OK, -1, (70 + i) * US);
    }
    recorder_device_phase(r, "backward", 5 * US, 45 * US);
    recorder_drop_device_phase(r);
    recorder_drop_device_phase(r);
    recorder_close(r);
    trace_keep(&s->t, 1, rank, "node1", behind_us * US, fd);
    (void)close(fd);
}

static const json_value *arg_at(const json_value *e, const char *key)
{
    return json_get(json_get(e, "args"), key);
}

static void work_of_a_device_has_lines_of_its_own(void **state)
{
    const json_value *e;
    scene s = {0};
    int n_device = 0;

    LS_UNUSED(state);
    record_device(&s, 0, 1000);
    parse(&s);
    e = find(&s, "backward", 0, 0);
    assert_true(real_at(e, "ts") == 0 && real_at(e, "dur") == 40);
    assert_string_equal(text_at(e, "cat"), "device");
    for (int i = 0; (e = find(&s, "all_reduce", 0, i)) != NULL; i++) {
        const int64_t lane = json_as_int(json_get(e, "tid"), -1);

        if (!text_equal(text_at(e, "cat"), "device")) {
            assert_true(lane >= 1 && lane <= 3);
            continue;
        }
        assert_int_equal(lane, 66 + n_device);
        assert_true(real_at(e, "ts") == 15 + 20 * n_device && real_at(e, "dur") == 30);
        assert_int_equal(json_as_int(arg_at(e, "sequence"), -1), ++n_device);
        assert_string_equal(json_as_string(arg_at(e, "site"), ""), "bucket 1/2");
    }
    assert_int_equal(n_device, 2);
    e = find(&s, "process_labels", 0, 0);
    assert_string_equal(json_as_string(arg_at(e, "labels"), ""),
                        "2 phases of the device are missing");
    finish(&s);
}

static void concurrent_operations_have_lines_of_their_own(void **state)
{
    const done list[] = {{COLL_ALL_REDUCE, 1, 100, 300, LS_OK, -1},
                         {COLL_ALL_REDUCE, 2, 150, 250, LS_OK, -1},
                         {COLL_BARRIER, 3, 260, 290, LS_OK, -1},
                         {COLL_SEND, 1, 310, 320, LS_OK, 1}};
    scene s = {0};

    LS_UNUSED(state);
    record(&s, 0, 0, list, 4);
    parse(&s);
    assert_int_equal(json_as_int(json_get(find(&s, "backward", 0, 0), "tid"), -1), 0);
    assert_int_equal(json_as_int(json_get(find(&s, "all_reduce", 0, 0), "tid"), -1), 1);
    assert_int_equal(json_as_int(json_get(find(&s, "all_reduce", 0, 1), "tid"), -1), 2);
    assert_int_equal(json_as_int(json_get(find(&s, "barrier", 0, 0), "tid"), -1), 2);
    assert_int_equal(json_as_int(json_get(find(&s, "send", 0, 0), "tid"), -1), 1);
    assert_null(json_get(json_get(find(&s, "send", 0, 0), "args"), "late_us"));
    assert_int_equal(
        json_as_int(json_get(json_get(find(&s, "send", 0, 0), "args"), "peer_rank"), -1), 1);
    finish(&s);
}

static void unfinished_operations_end_with_the_timeline(void **state)
{
    const done first[] = {{COLL_ALL_REDUCE, 1, 100, 200, LS_EPEER, 1},
                          {COLL_ALL_REDUCE, 2, 210, 0, LS_OK, -1}};
    const done second[] = {{COLL_ALL_REDUCE, 1, 120, 400, LS_OK, -1}};
    const json_value *e;
    scene s = {0};

    LS_UNUSED(state);
    record(&s, 0, 0, first, 2);
    record(&s, 1, 0, second, 1);
    parse(&s);
    e = find(&s, "all_reduce", 0, 1);
    assert_true(real_at(e, "ts") == 110 && real_at(e, "dur") == 190);
    assert_string_equal(text_at(json_get(e, "args"), "end"), "not finished");
    e = find(&s, "all_reduce", 0, 0);
    assert_string_equal(text_at(json_get(e, "args"), "end"), ls_status_text(LS_EPEER));
    assert_null(json_get(json_get(find(&s, "all_reduce", 1, 0), "args"), "end"));
    finish(&s);
}

/* Which no clock has, but a recorder may hold. */
static void a_phase_from_time_0_is_where_the_timeline_begins(void **state)
{
    const done list[] = {{COLL_BARRIER, 1, 0, 30, LS_OK, -1}, {COLL_BARRIER, 2, 40, 60, LS_OK, -1}};
    scene s = {0};

    LS_UNUSED(state);
    record(&s, 0, 0, list, 2);
    parse(&s);
    assert_true(real_at(find(&s, "backward", 0, 0), "ts") == 0);
    assert_true(real_at(find(&s, "barrier", 0, 1), "ts") == 40);
    finish(&s);
}

static void a_restart_begins_a_timeline_of_its_own(void **state)
{
    const done list[] = {{COLL_BARRIER, 1, 100, 300, LS_OK, -1}};
    scene s = {0};
    int fd;

    LS_UNUSED(state);
    record(&s, 0, 0, list, 1);
    record(&s, 1, 0, list, 1);
    assert_int_equal(s.t.n, 2);
    assert_ok(recorder_create_fd(&fd));
    trace_keep(&s.t, 2, 0, "node1", 0, fd); /* it has recorded nothing */
    (void)close(fd);
    assert_int_equal(s.t.n, 0);
    finish(&s);
}

static void a_job_without_operations_gives_an_empty_timeline(void **state)
{
    scene s = {0};

    LS_UNUSED(state);
    parse(&s);
    assert_int_equal(json_size(s.events), 0);
    finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_share_one_clock),
        cmocka_unit_test(work_of_a_device_has_lines_of_its_own),
        cmocka_unit_test(concurrent_operations_have_lines_of_their_own),
        cmocka_unit_test(unfinished_operations_end_with_the_timeline),
        cmocka_unit_test(a_phase_from_time_0_is_where_the_timeline_begins),
        cmocka_unit_test(a_restart_begins_a_timeline_of_its_own),
        cmocka_unit_test(a_job_without_operations_gives_an_empty_timeline),
    };

    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
