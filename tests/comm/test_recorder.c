/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_recorder.c - the flight recorder: entries, phases and activity, overwritten and read while
 * they are written.
 */
#include "base/unit.h"
#include "comm/record/recorder.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"

#include <lockstep/comm.h>
#include <lockstep/log.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static op_stamp stamp_of(uint64_t sequence)
{
    op_stamp s = {.group = 7,
                  .sequence = sequence,
                  .kind = COLL_ALL_REDUCE,
                  .dtype = LS_F32,
                  .redop = LS_SUM,
                  .root = -1,
                  .count = 10 * sequence};

    memcpy(s.site, "main+0x1c", 10);
    return s;
}

static void what_was_recorded_is_read_back(void **state)
{
    recorder_entry entries[8];
    recorder *r;
    int fd, n;

    LS_UNUSED(state);
    assert_ok(recorder_create_fd(&fd));
    assert_ok(recorder_open(fd, 3, &r));
    for (uint64_t i = 1; i <= 3; i++) {
        const op_stamp s = stamp_of(i);
        const uint64_t number = recorder_begin(r, &s, 40 * i, (int64_t)(100 * i));

        if (i < 3)
            recorder_end(r, number, i == 2 ? LS_EPEER : LS_OK, i == 2 ? 5 : -1,
                         (int64_t)(100 * i + 7));
    }
    recorder_close(r);
    assert_ok(recorder_read(fd, entries, 8, &n));
    assert_int_equal(n, 3);
    assert_int_equal(entries[0].number, 1);
    assert_int_equal(entries[0].stamp.group, 7);
    assert_int_equal(entries[0].stamp.count, 10);
    assert_int_equal(entries[0].stamp.root, -1);
    assert_string_equal(entries[0].stamp.site, "main+0x1c");
    assert_int_equal(entries[0].end_ns, 107);
    assert_int_equal(entries[1].status, LS_EPEER);
    assert_int_equal(entries[1].peer, 5);
    assert_int_equal(entries[2].end_ns, 0);
    assert_int_equal(entries[2].peer, -1);
    (void)close(fd);
}

static void phases_have_a_ring_of_their_own(void **state)
{
    const uint64_t total = RECORDER_ENTRIES + 5;
    recorder_span *spans = calloc(RECORDER_ENTRIES, sizeof(*spans));
    recorder_entry entry;
    op_stamp s = stamp_of(1);
    recorder *r;
    int fd, n;

    LS_UNUSED(state);
    assert_non_null(spans);
    assert_ok(recorder_create_fd(&fd));
    assert_ok(recorder_open(fd, 0, &r));
    recorder_end(r, recorder_begin(r, &s, 1, 1), LS_OK, -1, 2);
    for (uint64_t i = 1; i <= total; i++)
        recorder_phase(r,
                       i % 2 == 0 ? "backward" : "a name that is longer than the text of an entry",
                       (int64_t)(10 * i), (int64_t)(10 * i + 3));
    recorder_close(r);
    assert_ok(recorder_read_phases(fd, spans, RECORDER_ENTRIES, &n));
    assert_int_equal(n, RECORDER_ENTRIES);
    for (int i = 0; i < n; i++) {
        const uint64_t number = total - RECORDER_ENTRIES + 1 + (uint64_t)i;

        assert_int_equal(spans[i].number, number);
        assert_int_equal(spans[i].start_ns, 10 * number);
        assert_int_equal(spans[i].end_ns, 10 * number + 3);
        assert_string_equal(spans[i].name, number % 2 == 0
                                               ? "backward"
                                               : "a name that is longer than the text of ");
    }
    assert_ok(recorder_read(fd, &entry, 1, &n));
    assert_int_equal(n, 1);
    assert_int_equal(entry.stamp.count, 10);
    free(spans);
    (void)close(fd);
}

static void device_times_are_beside_those_of_the_program(void **state)
{
    recorder_span spans[4];
    recorder_entry entries[2];
    op_stamp s = stamp_of(1);
    uint64_t n_dropped = 0;
    uint64_t number;
    recorder *r;
    int fd, n;

    LS_UNUSED(state);
    assert_ok(recorder_create_fd(&fd));
    assert_ok(recorder_open(fd, 0, &r));
    number = recorder_begin(r, &s, 1, 10);
    recorder_device_time(r, number, 12, 17);
    recorder_device_time(r, number + 1, 99, 99); /* there is no such operation */
    recorder_end(r, number, LS_OK, -1, 18);
    recorder_phase(r, "backward", 1, 2);
    recorder_device_phase(r, "backward", 11, 15);
    recorder_close(r);
    assert_ok(recorder_open(fd, 0, &r)); /* the rank joins again */
    recorder_device_phase(r, "optimizer", 16, 20);
    recorder_drop_device_phase(r);
    recorder_end(r, recorder_begin(r, &s, 1, 21), LS_OK, -1, 22);
    recorder_close(r);
    assert_ok(recorder_read(fd, entries, 2, &n));
    assert_int_equal(n, 2);
    assert_true(entries[0].device_start_ns == 12 && entries[0].device_end_ns == 17);
    assert_true(entries[1].device_start_ns == 0 && entries[1].device_end_ns == 0);
    assert_ok(recorder_read_phases(fd, spans, 4, &n));
    assert_true(n == 1 && spans[0].end_ns == 2);
    assert_ok(recorder_read_device_phases(fd, spans, 4, &n, &n_dropped));
    assert_true(n == 2 && n_dropped == 1);
    assert_string_equal(spans[0].name, "backward");
    assert_true(spans[0].start_ns == 11 && spans[0].end_ns == 15);
    assert_string_equal(spans[1].name, "optimizer");
    assert_true(spans[1].number == 2 && spans[1].start_ns == 16);
    (void)close(fd);
}

static void the_last_ones_are_given_when_the_ring_has_gone_round(void **state)
{
    const uint64_t total = 3 * RECORDER_ENTRIES + 17;
    recorder_entry *entries = calloc(RECORDER_ENTRIES, sizeof(*entries));
    recorder *r;
    int fd, n;

    LS_UNUSED(state);
    assert_non_null(entries);
    assert_ok(recorder_create_fd(&fd));
    assert_ok(recorder_open(fd, 0, &r));
    for (uint64_t i = 1; i <= total; i++) {
        const op_stamp s = stamp_of(i);

        recorder_end(r, recorder_begin(r, &s, 1, 1), LS_OK, -1, 2);
    }
    assert_ok(recorder_read(fd, entries, RECORDER_ENTRIES, &n));
    assert_int_equal(n, RECORDER_ENTRIES);
    assert_int_equal(entries[n - 1].number, total);
    assert_int_equal(entries[0].number, total - RECORDER_ENTRIES + 1);
    assert_ok(recorder_read(fd, entries, 5, &n));
    assert_int_equal(n, 5);
    assert_int_equal(entries[4].stamp.sequence, total);
    recorder_close(r);
    (void)close(fd);
    free(entries);
}

/* Entries that are read while they change must be whole: all their fields belong to one
 * operation. */
static void a_reader_never_sees_half_an_entry(void **state)
{
    recorder_entry entries[64];
    recorder *r;
    pid_t pid;
    int fd, n, n_seen = 0;

    LS_UNUSED(state);
    assert_ok(recorder_create_fd(&fd));
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (recorder_open(fd, 0, &r) != LS_OK)
            _exit(1);
        for (uint64_t i = 1;; i++) {
            const op_stamp s = stamp_of(i);

            recorder_end(r, recorder_begin(r, &s, 40 * i, (int64_t)i), LS_OK, -1, (int64_t)i + 1);
        }
    }
    for (const int64_t end_ms = ls_now_ms() + 200; ls_now_ms() < end_ms;) {
        if (recorder_read(fd, entries, 64, &n) != LS_OK)
            continue; // not begun yet
        for (int i = 0; i < n; i++) {
            assert_int_equal(entries[i].stamp.sequence, entries[i].number);
            assert_int_equal(entries[i].bytes, 40 * entries[i].number);
            assert_int_equal(entries[i].start_ns, entries[i].number);
        }
        n_seen += n;
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    assert_true(n_seen > 0);
    assert_ok(recorder_read(fd, entries, 64, &n)); // what SIGKILL left
    assert_true(n >= 63);
    (void)close(fd);
}

static void other_memory_is_left_alone(void **state)
{
    const int small = memfd_create("small", MFD_CLOEXEC);
    recorder_entry entries[1];
    struct stat info;
    recorder *r;
    int fd, n;

    LS_UNUSED(state);
    assert_ok(recorder_open(small, 0, &r));
    recorder_close(r);
    assert_int_equal(fstat(small, &info), 0);
    assert_int_equal(info.st_size, 0);
    assert_status(recorder_read(small, entries, 1, &n), LS_EFORMAT);
    (void)close(small);
    assert_ok(recorder_open(small, 0, &r)); // closed in between
    recorder_close(r);
    assert_ok(recorder_create_fd(&fd));
    assert_status(recorder_read(fd, entries, 1, &n), LS_EFORMAT);
    (void)close(fd);
}

/* The rank that writes may have overwritten its recorder: readers end, and stay in their memory. */
static void what_a_broken_rank_has_written_does_no_harm(void **state)
{
    static const uint64_t extremes[] = {0, 1, UINT32_MAX, INT64_MAX, UINT64_MAX - 1, UINT64_MAX};
    enum { N = 8, HEAD = 64 }; // words of the head after the two that readers check
    const uint64_t seed = (uint64_t)ls_now_ns();
    recorder_entry entries[N + 1];
    recorder_span spans[N + 1];
    recorder_source sources[N + 1];
    recorder_summary summary;
    text_buf activity = {0};
    struct stat info;
    ls_rng rng;
    uint64_t *words, total;
    recorder *r;
    int fd, n;

    LS_UNUSED(state);
    print_message("seed %llu\n", (unsigned long long)seed);
    ls_rng_seed(&rng, seed);
    assert_ok(recorder_create_fd(&fd));
    assert_ok(recorder_open(fd, 0, &r));
    recorder_close(r);
    assert_int_equal(fstat(fd, &info), 0);
    words = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(words != MAP_FAILED);
    for (int round = 0; round < 200; round++) {
        for (size_t i = 2; i < (size_t)info.st_size / sizeof(*words); i++)
            words[i] = ls_rng_next(&rng);
        for (size_t i = 2; i < HEAD && round > 0; i++)
            words[i] = extremes[ls_rng_below(&rng, LS_COUNT_OF(extremes))];
        assert_ok(recorder_read(fd, entries, N, &n));
        assert_in_range(n, 0, N);
        assert_ok(recorder_read_phases(fd, spans, N, &n));
        assert_in_range(n, 0, N);
        assert_ok(recorder_read_device_phases(fd, spans, N, &n, &total));
        assert_in_range(n, 0, N);
        assert_ok(recorder_read_received(fd, sources, N, &n, &total));
        assert_in_range(n, 0, N);
        assert_ok(recorder_read_summary(fd, &summary));
        assert_true(strlen(summary.warning) < sizeof(summary.warning));
        recorder_read_activity(fd, &activity);
        assert_ok(text_status(&activity));
        text_free(&activity);
    }
    assert_int_equal(munmap(words, (size_t)info.st_size), 0);
    (void)close(fd);
}

static void the_last_activity_is_read_back_printable_and_cut(void **state)
{
    char long_text[200];
    text_buf t = {0};
    recorder *r;
    int fd;

    LS_UNUSED(state);
    memset(long_text, 'x', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = 0;
    assert_ok(recorder_create_fd(&fd));
    recorder_read_activity(fd, &t);
    assert_int_equal(t.length, 0);
    text_free(&t);
    assert_ok(recorder_open(fd, 0, &r));
    recorder_set_activity(r, "saving \x1b[1m");
    recorder_read_activity(fd, &t);
    assert_string_equal(text_str(&t), "saving ?[1m");
    text_free(&t);
    recorder_set_activity(r, long_text);
    recorder_read_activity(fd, &t);
    assert_int_equal(t.length, RECORDER_ACTIVITY_BYTES - 1);
    text_free(&t);
    recorder_set_activity(r, "");
    recorder_close(r);
    recorder_read_activity(fd, &t);
    assert_int_equal(t.length, 0);
    (void)close(fd);
    recorder_read_activity(STDIN_FILENO, &t);
    assert_int_equal(t.length, 0);
    text_free(&t);
}

/* The text of a recorder's last warning is not the log's: it has no head. */
static void progress_warnings_and_sums_are_read_back(void **state)
{
    const recorder_progress first = {.step = 3, .loss = 0.5};
    const recorder_progress last = {.step = 4, .samples = 640, .seconds = {1, 2, 3}};
    const op_stamp s = stamp_of(1);
    recorder_summary out;
    recorder *r;
    int fd;

    LS_UNUSED(state);
    assert_ok(recorder_create_fd(&fd));
    assert_status(recorder_read_summary(fd, &out), LS_EFORMAT);
    assert_ok(recorder_open(fd, 0, &r));
    assert_ok(recorder_read_summary(fd, &out));
    assert_false(out.has_progress);
    assert_string_equal(out.warning, "");
    recorder_set_progress(r, &first);
    recorder_set_progress(r, &last);
    ls_log(LS_LOG_WARN, "test", "disk \x1b %d", 7);
    recorder_end(r, recorder_begin(r, &s, 40, 100), LS_OK, -1, 130);
    (void)recorder_begin(r, &s, 40, 200);
    assert_ok(recorder_read_summary(fd, &out));
    assert_true(out.has_progress);
    assert_int_equal(out.progress.step, 4);
    assert_true(out.progress.samples == 640 && out.progress.seconds[2] == 3);
    assert_string_equal(out.warning, "disk ? 7");
    assert_int_equal(out.n_operations, 2);
    assert_int_equal(out.op_bytes, 40);
    assert_int_equal(out.op_ns, 30);
    recorder_close(r);
    ls_log(LS_LOG_WARN, "test", "after its end");
    assert_ok(recorder_read_summary(fd, &out));
    assert_string_equal(out.warning, "disk ? 7");
    (void)close(fd);
}

static void the_ranks_from_which_most_came_are_found(void **state)
{
    static const uint64_t bytes[] = {10, 0, 20, 20, 0, 50};
    recorder *r;
    recorder_source sources[3];
    uint64_t total;
    int fd;
    int n;

    LS_UNUSED(state);
    assert_ok(recorder_create_fd(&fd));
    assert_ok(recorder_open(fd, 0, &r));
    assert_ok(recorder_read_received(fd, sources, 3, &n, &total));
    assert_int_equal(n, 0);
    for (int i = 0; i < 6; i++)
        *recorder_received(r, i) += bytes[i];
    assert_null(recorder_received(r, RECORDER_RANKS));
    assert_null(recorder_received(r, -1));
    *recorder_received(r, RECORDER_RANKS - 1) += 7;
    assert_ok(recorder_read_received(fd, sources, 3, &n, &total));
    assert_int_equal(n, 3);
    assert_int_equal(total, 10 + 20 + 20 + 50 + 7);
    assert_int_equal(sources[0].rank, 5);
    assert_int_equal(sources[0].bytes, 50);
    assert_int_equal(sources[1].rank, 2); // of equal ones the first
    assert_int_equal(sources[2].rank, 3);
    recorder_close(r);
    assert_ok(recorder_read_received(fd, sources, 1, &n, &total)); // as after its death
    assert_int_equal(n, 1);
    assert_int_equal(sources[0].rank, 5);
    file_close(&fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(progress_warnings_and_sums_are_read_back),
        cmocka_unit_test(what_was_recorded_is_read_back),
        cmocka_unit_test(the_last_activity_is_read_back_printable_and_cut),
        cmocka_unit_test(phases_have_a_ring_of_their_own),
        cmocka_unit_test(device_times_are_beside_those_of_the_program),
        cmocka_unit_test(the_last_ones_are_given_when_the_ring_has_gone_round),
        cmocka_unit_test(a_reader_never_sees_half_an_entry),
        cmocka_unit_test(other_memory_is_left_alone),
        cmocka_unit_test(what_a_broken_rank_has_written_does_no_harm),
        cmocka_unit_test(the_ranks_from_which_most_came_are_found),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
