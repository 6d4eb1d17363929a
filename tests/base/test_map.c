/* SPDX-License-Identifier: Apache-2.0 */
/* test_map.c - the hash map against a naive implementation, without memory, and the list. */
#include "base/unit.h"

#include "base/alloc.h"
#include "base/map.h"
#include "base/rng.h"

#define MODEL_KEYS 200

/* The naive map: one slot for each key of a fixed alphabet, keys of 0 to 6 bytes. */
typedef struct model {
    unsigned char key[MODEL_KEYS][6];
    size_t key_bytes[MODEL_KEYS];
    void *value[MODEL_KEYS];
    size_t count;
} model;

static void make_keys(model *m, ls_rng *rng)
{
    *m = (model){0};
    for (size_t i = 0; i < MODEL_KEYS; i++) {
        // The index makes keys differ; zeros and prefixes of other keys are among them.
        m->key_bytes[i] = i == 0 ? 0 : 1 + (size_t)ls_rng_below(rng, 6);
        if (m->key_bytes[i] < 2 && i > 0)
            m->key_bytes[i] = 2;
        m->key[i][0] = (unsigned char)(i & 15);
        m->key[i][1] = (unsigned char)(i >> 4);
    }
}

static void compare(const byte_map *map, const model *m)
{
    size_t cursor = 0;
    size_t seen = 0;
    const void *key;
    size_t key_bytes;
    void *value;

    assert_int_equal(map->count, m->count);
    for (size_t i = 0; i < MODEL_KEYS; i++)
        assert_ptr_equal(byte_map_get(map, m->key[i], m->key_bytes[i]), m->value[i]);
    while (byte_map_next(map, &cursor, &key, &key_bytes, &value)) {
        assert_ptr_equal(byte_map_get(map, key, key_bytes), value);
        seen++;
    }
    assert_int_equal(seen, m->count);
    assert_false(byte_map_next(map, &cursor, &key, &key_bytes, &value));
}

static void set_both(byte_map *map, model *m, size_t i, void *value)
{
    void *old = &old;

    assert_ok(byte_map_set(map, m->key[i], m->key_bytes[i], value, &old));
    assert_ptr_equal(old, m->value[i]);
    m->count += m->value[i] == NULL;
    m->value[i] = value;
}

static void remove_both(byte_map *map, model *m, size_t i)
{
    assert_ptr_equal(byte_map_remove(map, m->key[i], m->key_bytes[i]), m->value[i]);
    m->count -= m->value[i] != NULL;
    m->value[i] = NULL;
}

static void map_agrees_with_a_naive_implementation(void **state)
{
    static char values[100];

    LS_UNUSED(state);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        byte_map map = {0};
        model m;
        ls_rng rng;

        ls_rng_seed(&rng, seed);
        make_keys(&m, &rng);
        for (int step = 0; step < 5000; step++) {
            const size_t i = (size_t)ls_rng_below(&rng, MODEL_KEYS);

            // Phases of mostly growing and mostly shrinking.
            if (ls_rng_below(&rng, 10) < (step / 1000 % 2 == 0 ? 7U : 3U))
                set_both(&map, &m, i, &values[ls_rng_below(&rng, sizeof(values))]);
            else
                remove_both(&map, &m, i);
            if (step % 250 == 0)
                compare(&map, &m);
        }
        compare(&map, &m);
        byte_map_free(&map);
        assert_int_equal(map.count, 0);
        assert_null(byte_map_get(&map, "x", 1));
    }
}

static void an_empty_map_has_nothing(void **state)
{
    byte_map map = {0};
    size_t cursor = 0;
    const void *key;
    size_t key_bytes;
    void *value;

    LS_UNUSED(state);
    assert_null(byte_map_get(&map, "x", 1));
    assert_null(byte_map_remove(&map, "x", 1));
    assert_false(byte_map_next(&map, &cursor, &key, &key_bytes, &value));
    byte_map_free(&map);
}

static void a_steady_churn_does_not_grow_the_table(void **state)
{
    byte_map map = {0};
    int x = 0;

    LS_UNUSED(state);
    for (uint32_t i = 0; i < 20000; i++) {
        assert_ok(byte_map_set(&map, &i, sizeof(i), &x, NULL));
        if (i >= 10) {
            const uint32_t gone = i - 10;

            assert_ptr_equal(byte_map_remove(&map, &gone, sizeof(gone)), &x);
        }
    }
    assert_int_equal(map.count, 10);
    assert_true(map.n_slots <= 64);
    byte_map_free(&map);
}

static void keys_are_copied(void **state)
{
    byte_map map = {0};
    char key[] = "rank/3";
    int x = 0;

    LS_UNUSED(state);
    assert_ok(byte_map_set(&map, key, 6, &x, NULL));
    memset(key, 'z', sizeof(key));
    assert_ptr_equal(byte_map_get(&map, "rank/3", 6), &x);
    assert_null(byte_map_get(&map, "rank/", 5));
    byte_map_free(&map);
}

static void without_memory_the_map_stays_as_it_was(void **state)
{
    LS_UNUSED(state);
    for (uint64_t n = 1; n <= 25; n++) {
        byte_map map = {0};
        int x = 0;
        int n_failed = 0;

        ls_alloc_fail_at(n);
        for (uint32_t i = 0; i < 20; i++) {
            const ls_status st = byte_map_set(&map, &i, sizeof(i), &x, NULL);

            assert_true(st == LS_OK || st == LS_ENOMEM);
            if (st != LS_OK) {
                n_failed++;
                assert_null(byte_map_get(&map, &i, sizeof(i)));
                assert_ok(byte_map_set(&map, &i, sizeof(i), &x, NULL));
            }
        }
        ls_alloc_fail_at(0);
        // 20 keys and tables of 8, 16 and 32 slots: 23 allocations.
        assert_int_equal(n_failed, n <= 23 ? 1 : 0);
        assert_int_equal(map.count, 20);
        for (uint32_t i = 0; i < 20; i++)
            assert_ptr_equal(byte_map_get(&map, &i, sizeof(i)), &x);
        byte_map_free(&map);
    }
}

typedef struct item {
    int number;
    list_node node;
} item;

static void a_list_keeps_its_order_through_removals(void **state)
{
    item items[10];
    list_node head;
    int expected = 1;

    LS_UNUSED(state);
    list_init(&head);
    assert_true(list_empty(&head));
    for (int i = 0; i < 10; i++) {
        items[i].number = i;
        list_append(&head, &items[i].node);
    }
    for (int i = 0; i < 10; i += 2)
        list_remove(&items[i].node);
    // A removed node is a ring of its own: removing it again is harmless.
    list_remove(&items[0].node);
    list_for_each (it, &head) {
        assert_int_equal(list_entry(it, item, node)->number, expected);
        expected += 2;
    }
    assert_int_equal(expected, 11);
    for (int i = 1; i < 10; i += 2)
        list_remove(&items[i].node);
    assert_true(list_empty(&head));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(map_agrees_with_a_naive_implementation),
        cmocka_unit_test(an_empty_map_has_nothing),
        cmocka_unit_test(a_steady_churn_does_not_grow_the_table),
        cmocka_unit_test(keys_are_copied),
        cmocka_unit_test(without_memory_the_map_stays_as_it_was),
        cmocka_unit_test(a_list_keeps_its_order_through_removals),
    };

    return cmocka_run_group_tests_name("map", tests, NULL, NULL);
}
