/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_join.c - ranks that join through a store of the program (ls_store_create()), several
 * groups at once and one after the other, as torch.distributed makes them.
 */
#include "base/unit.h"

#include "base/text.h"
#include "harness/ranks.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 3, ROUNDS = 3 };

static char folder[64];

/* A part of a store that all ranks open, as PyTorch's PrefixStore. */
typedef struct relay {
    ls_store *file;
    ls_store *part;
    char *value;
} relay;

static ls_status relay_set(void *arg, const char *key, const void *value, size_t bytes)
{
    const relay *r = arg;

    return ls_store_set(r->part, key, value, bytes);
}

static ls_status relay_get(void *arg, const char *key, int64_t timeout_ms, const void **value,
                           size_t *bytes)
{
    relay *r = arg;
    void *got;

    LS_TRY(ls_store_get(r->part, key, timeout_ms, &got, bytes));
    ls_store_free(r->value);
    r->value = got;
    *value = got;
    return LS_OK;
}

static ls_status relay_add(void *arg, const char *key, int64_t delta, int64_t *out)
{
    const relay *r = arg;

    return ls_store_add(r->part, key, delta, out);
}

static void relay_close(void *arg)
{
    const relay *r = arg;

    ls_store_free(r->value);
    ls_store_close(r->part);
    ls_store_close(r->file);
}

static ls_status open_part(relay *r, const char *prefix, ls_store **out)
{
    const ls_store_callbacks callbacks = {.size = sizeof(callbacks),
                                          .arg = r,
                                          .set = relay_set,
                                          .get = relay_get,
                                          .add = relay_add,
                                          .close = relay_close};
    char url[96];

    *r = (relay){0};
    text_format(url, sizeof(url), "file://%s/store", folder);
    LS_TRY(ls_store_open(url, NULL, &r->file));
    LS_TRY(ls_store_prefix(r->file, prefix, &r->part));
    return ls_store_create(&callbacks, out);
}

static ls_status expect_sum(ls_comm *comm, int32_t value, int32_t want)
{
    int32_t sum;

    LS_TRY(ls_all_reduce(comm, &value, &sum, 1, LS_I32, LS_SUM, NULL));
    LS_CHECK(sum == want);
    return LS_OK;
}

/* A group of all ranks and one of ranks 1 and 2, each in its part of the store. */
static ls_status groups_body(const ls_test_rank *self, void *arg)
{
    const char *transport = arg;

    for (int round = 0; round < ROUNDS; round++) {
        relay relays[2];
        ls_store *stores[2] = {0};
        ls_comm *world;
        ls_comm *part = NULL;
        ls_init_options opt = {.size = sizeof(opt), .transport = transport};

        LS_TRY(open_part(&relays[0], "world/", &stores[0]));
        opt.store = stores[0];
        opt.rank = self->rank;
        opt.world_size = self->size;
        LS_TRY(comm_init_in(self->env, &opt, &world));
        if (self->rank > 0) {
            LS_TRY(open_part(&relays[1], "part/", &stores[1]));
            opt.store = stores[1];
            opt.rank = self->rank - 1;
            opt.world_size = self->size - 1;
            LS_TRY(comm_init_in(self->env, &opt, &part));
            LS_TRY(expect_sum(part, self->rank, 3));
        }
        LS_TRY(expect_sum(world, self->rank + round, 3 + 3 * round));
        LS_TRY(ls_barrier(world, NULL));
        ls_comm_destroy(part);
        ls_comm_destroy(world);
        ls_store_close(stores[1]);
        ls_store_close(stores[0]);
    }
    return LS_OK;
}

static void groups_join_through_stores_of_the_program(void **state)
{
    static char transports[][4] = {"shm", "tcp"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(transports); i++) {
        const ls_test_job job = {
            .n = RANKS, .body = groups_body, .arg = transports[i], .transport = transports[i]};

        assert_true(ls_test_ranks(&job, NULL));
    }
}

/* Rank 2 has another key, or none. */
static ls_status keys_body(const ls_test_rank *self, void *arg)
{
    static const char *const keys[] = {"0123456789abcdef", "0123456789abcdeF"};
    const char *prefix = arg;
    const bool is_other = self->rank == 2 && !text_equal(prefix, "same/");
    const char *key = keys[is_other ? 1 : 0];
    ls_init_options opt = {.size = sizeof(opt),
                           .transport = self->job->transport,
                           .rank = self->rank,
                           .world_size = self->size,
                           .key = key,
                           .key_bytes = 16};
    ls_comm *comm = NULL;
    relay r;
    ls_status st;

    if (is_other && text_equal(prefix, "none/")) {
        opt.key = NULL;
        opt.key_bytes = 0;
    }
    LS_TRY(open_part(&r, prefix, &opt.store));
    st = comm_init_in(self->env, &opt, &comm);
    if (text_equal(prefix, "same/")) {
        LS_TRY(st);
        LS_TRY(expect_sum(comm, 1, 3));
        LS_TRY(ls_barrier(comm, NULL));
    } else {
        LS_CHECK(st != LS_OK);
        LS_CHECK(self->rank == 2 || strstr(ls_last_error(), "rank 2 could not join") != NULL);
        LS_CHECK(strstr(ls_last_error(), "does not have this job's key") != NULL);
        LS_CHECK(self->rank == 1 || st == LS_EAUTH);
    }
    ls_comm_destroy(comm);
    ls_store_close(opt.store);
    return LS_OK;
}

static void all_ranks_get_the_failure_of_a_rank_with_another_key(void **state)
{
    static char prefixes[][8] = {"same/", "other/", "none/"};
    static const char *const transports[] = {"shm", "tcp"};

    LS_UNUSED(state);
    for (size_t i = 0; i < 2 * LS_COUNT_OF(prefixes); i++) {
        const ls_test_job job = {
            .n = RANKS, .body = keys_body, .arg = prefixes[i / 2], .transport = transports[i % 2]};

        assert_true(ls_test_ranks(&job, NULL));
    }
}

static void keys_that_are_too_short_are_refused(void **state)
{
    ls_init_options opt = {.size = sizeof(opt), .rank = 0, .world_size = 1, .key = "short"};
    ls_comm *comm;

    LS_UNUSED(state);
    assert_status(ls_init(&opt, &comm), LS_EINVAL);
    opt.key_bytes = 5;
    assert_status(ls_init(&opt, &comm), LS_EINVAL);
    assert_last_error("a key of 5 bytes: it must have at least 16");
}

/* A value that no rank of this job has written ends the join with the name of its key. */
static void the_value_of_another_program_is_refused(void **state)
{
    ls_init_options opt = {.size = sizeof(opt), .rank = 1, .world_size = 2};
    relay r;
    ls_comm *comm;

    LS_UNUSED(state);
    assert_ok(open_part(&r, "foreign/", &opt.store));
    assert_ok(ls_store_set(opt.store, "ls1/hub", "unix:@elsewhere", 15));
    assert_status(ls_init(&opt, &comm), LS_EPROTO);
    assert_last_error("key 'ls1/hub' of store callbacks: 'unix:@elsewhere' does not begin with");
    ls_store_close(opt.store);
}

static int make_folder(void **state)
{
    LS_UNUSED(state);
    text_format(folder, sizeof(folder), "/tmp/lockstep-store-XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : setenv("HOME", folder, 1);
}

static int remove_folder(void **state)
{
    char command[96];

    LS_UNUSED(state);
    text_format(command, sizeof(command), "rm -rf %s", folder);
    return system(command) == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_join_through_stores_of_the_program),
        cmocka_unit_test(all_ranks_get_the_failure_of_a_rank_with_another_key),
        cmocka_unit_test(keys_that_are_too_short_are_refused),
        cmocka_unit_test(the_value_of_another_program_is_refused),
    };

    return cmocka_run_group_tests_name("joining through a store", tests, make_folder,
                                       remove_folder);
}
