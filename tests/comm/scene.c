/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scene.c - runs ranks whose operations fail, and checks the status, text and delay that each rank
 * reports, for test_deaths.c, test_faults.c, test_mismatch.c and test_waits.c.
 */
#include "comm/scene.h"

#include "base/clock.h"
#include "base/text.h"

#include <sys/mman.h>
#include <unistd.h>

#define FAILS_WITHIN_MS 1000

const char *const scene_transports[SCENE_TRANSPORTS] = {"shm", "tcp"};

scene *scene_create(void)
{
    scene *s = ls_test_shared(sizeof(*s));

    assert_non_null(s);
    return s;
}

void scene_destroy(scene *s)
{
    (void)munmap(s, sizeof(*s));
}

ls_status scene_note(scene *s, int rank, ls_status st)
{
    witness *w = &s->ranks[rank];

    w->failed_ms = ls_now_ms();
    w->status = st;
    text_format(w->text, sizeof(w->text), "%s", st == LS_OK ? "" : ls_last_error());
    return st == LS_OK ? ls_fail(LS_EINTERNAL, "the call did not fail") : LS_OK;
}

bool scene_run(scene *s, int n, ls_test_body body, const char *transport)
{
    const ls_test_job job = {.n = n, .body = body, .arg = s, .transport = transport};

    return ls_test_ranks(&job, NULL);
}

void scene_wait_for_all(const scene *s, int n)
{
    for (int r = 0; r < n; r++) {
        while (atomic_load(&s->pids[r]) == 0)
            (void)usleep(200);
    }
}

void scene_assert_failure(const scene *s, int rank, ls_status status, const char *part)
{
    const witness *w = &s->ranks[rank];

    if (w->status != status || strstr(w->text, part) == NULL)
        fail_msg("rank %d got %d \"%s\", not %d with \"%s\"", rank, (int)w->status, w->text,
                 (int)status, part);
}

void scene_assert_in_time(const scene *s, int rank)
{
    const int64_t took_ms = s->ranks[rank].failed_ms - atomic_load(&s->event_ms);

    if (took_ms > FAILS_WITHIN_MS)
        fail_msg("rank %d failed after %lld ms", rank, (long long)took_ms);
}
