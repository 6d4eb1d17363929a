/* SPDX-License-Identifier: Apache-2.0 */
/* test_user_store.c - stores of the program: what its functions get, and how failures show. */
#include "base/unit.h"

#include <lockstep/store.h>

#include "base/status.h"
#include "base/text.h"

#include <string.h>

/* A store over that of another library, here one of "mem:", and how it fails. */
typedef struct relay {
    ls_store *to;
    char *value; /* of the last get */
    ls_status fails_with;
    const char *text; /* of a failure; NULL: none */
    bool is_null;     /* get gives no value */
    size_t bytes;     /* get says so many, 0: the value's */
    int n_closed;
} relay;

static ls_status end_of(const relay *r)
{
    if (r->fails_with != LS_OK && r->text != NULL)
        return ls_fail(r->fails_with, "%s", r->text);
    return r->fails_with;
}

static ls_status relay_set(void *arg, const char *key, const void *value, size_t bytes)
{
    relay *r = arg;

    LS_TRY(end_of(r));
    return ls_store_set(r->to, key, value, bytes);
}

static ls_status relay_get(void *arg, const char *key, int64_t timeout_ms, const void **value,
                           size_t *bytes)
{
    relay *r = arg;
    void *got;

    LS_TRY(end_of(r));
    LS_TRY(ls_store_get(r->to, key, timeout_ms, &got, bytes));
    ls_store_free(r->value);
    r->value = got;
    *value = r->is_null ? NULL : got;
    *bytes = r->bytes > 0 ? r->bytes : *bytes;
    return LS_OK;
}

static ls_status relay_add(void *arg, const char *key, int64_t delta, int64_t *out)
{
    relay *r = arg;

    LS_TRY(end_of(r));
    return ls_store_add(r->to, key, delta, out);
}

static void relay_close(void *arg)
{
    relay *r = arg;

    ls_store_free(r->value);
    ls_store_close(r->to);
    r->n_closed++;
}

static ls_store *open_relay(relay *r)
{
    const ls_store_callbacks callbacks = {.size = sizeof(callbacks),
                                          .name = "of a test",
                                          .arg = r,
                                          .set = relay_set,
                                          .get = relay_get,
                                          .add = relay_add,
                                          .close = relay_close};
    ls_store *s;

    *r = (relay){0};
    assert_ok(ls_store_open("mem:", NULL, &r->to));
    assert_ok(ls_store_create(&callbacks, &s));
    return s;
}

static void assert_value(ls_store *s, const char *key, const char *want)
{
    size_t bytes;
    void *got;

    assert_ok(ls_store_get(s, key, 0, &got, &bytes));
    assert_int_equal(bytes, strlen(want));
    assert_string_equal(got, want);
    ls_store_free(got);
}

static void functions_of_the_program_are_a_store(void **state)
{
    const char *const keys[] = {"a", "empty", "count"};
    relay r;
    ls_store *s = open_relay(&r);
    ls_store *prefixed;
    int64_t sum;
    int all;

    LS_UNUSED(state);
    assert_string_equal(ls_store_url(s), "of a test");
    assert_ok(ls_store_check(s, keys, 3, &all));
    assert_int_equal(all, 0);
    assert_ok(ls_store_set(s, "a", "value", 5));
    assert_ok(ls_store_set(s, "empty", NULL, 0));
    assert_ok(ls_store_add(s, "count", 40, NULL));
    assert_ok(ls_store_add(s, "count", 2, &sum));
    assert_int_equal(sum, 42);
    assert_value(s, "a", "value");
    assert_value(s, "empty", "");
    assert_value(s, "count", "42");
    assert_ok(ls_store_wait(s, keys, 3, 0));
    assert_ok(ls_store_check(s, keys, 3, &all));
    assert_int_equal(all, 1);
    assert_ok(ls_store_prefix(s, "job/", &prefixed));
    assert_ok(ls_store_set(prefixed, "a", "other", 5));
    assert_value(s, "job/a", "other");
    ls_store_close(prefixed);
    ls_store_close(s);
    assert_int_equal(r.n_closed, 1);
}

static void a_key_that_is_not_set_times_out(void **state)
{
    const char *const keys[] = {"absent"};
    relay r;
    ls_store *s = open_relay(&r);
    void *got;

    LS_UNUSED(state);
    assert_status(ls_store_get(s, "absent", 20, &got, NULL), LS_ETIMEOUT);
    assert_last_error("key 'absent' is not set");
    assert_status(ls_store_wait(s, keys, 1, 20), LS_ETIMEOUT);
    assert_last_error("key 'absent' is not set");
    ls_store_close(s);
}

static void failures_of_functions_name_store_key_and_reason(void **state)
{
    relay r;
    ls_store *s = open_relay(&r);
    void *got;

    LS_UNUSED(state);
    r.fails_with = LS_EPEER;
    assert_status(ls_store_set(s, "k", "x", 1), LS_EPEER);
    assert_last_error("store of a test, key 'k': the set function returned -21");
    assert_status(ls_store_add(s, "k", 1, NULL), LS_EPEER);
    assert_last_error("store of a test, key 'k': the add function returned -21");
    r.text = "the database is gone";
    assert_status(ls_store_get(s, "k", 0, &got, NULL), LS_EPEER);
    assert_null(got);
    assert_last_error("store of a test, key 'k': the database is gone");
    r.fails_with = LS_OK;
    assert_ok(ls_store_set(s, "k", "x", 1));
    r.bytes = LS_STORE_VALUE_MAX + 1;
    assert_status(ls_store_get(s, "k", 0, &got, NULL), LS_EFORMAT);
    assert_last_error("the value has 8388609 bytes, at most 8388608 are allowed");
    r.bytes = 1;
    r.is_null = true;
    assert_status(ls_store_get(s, "k", 0, &got, NULL), LS_EINVAL);
    assert_last_error("the value is NULL");
    ls_store_close(s);
}

static void what_such_a_store_lacks_is_named(void **state)
{
    relay r;
    ls_store *s = open_relay(&r);
    int64_t n;

    LS_UNUSED(state);
    assert_status(ls_store_compare_set(s, "k", NULL, 0, "x", 1, NULL), LS_EUNSUPPORTED);
    assert_last_error("store of a test has no compare-and-set");
    assert_status(ls_store_delete(s, "k", NULL), LS_EUNSUPPORTED);
    assert_status(ls_store_count(s, &n), LS_EUNSUPPORTED);
    ls_store_close(s);
}

static void a_store_needs_its_functions(void **state)
{
    ls_store_callbacks c = {
        .size = sizeof(c), .set = relay_set, .get = relay_get, .add = relay_add};
    ls_store *s;

    LS_UNUSED(state);
    c.get = NULL;
    assert_status(ls_store_create(&c, &s), LS_EINVAL);
    assert_last_error("a store needs the functions set, get and add");
    assert_null(s);
    c.get = relay_get;
    assert_ok(ls_store_create(&c, &s));
    assert_string_equal(ls_store_url(s), "callbacks");
    ls_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_of_the_program_are_a_store),
        cmocka_unit_test(a_key_that_is_not_set_times_out),
        cmocka_unit_test(failures_of_functions_name_store_key_and_reason),
        cmocka_unit_test(what_such_a_store_lacks_is_named),
        cmocka_unit_test(a_store_needs_its_functions),
    };

    return cmocka_run_group_tests_name("stores of the program", tests, NULL, NULL);
}
