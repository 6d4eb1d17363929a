/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_stores.c - the contract of all kinds of store, run for each kind, with two handles of one
 * store where that is possible.
 */
#include "base/unit.h"

#include <lockstep/store.h>

#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define SOON 20000

static char folder[64];

/* A kind of store: how to open it once more, given the first handle. */
typedef struct store_kind {
    const char *name;
    const char *url;    /* for the first; NULL: made per test */
    int serve;          /* the first one serves */
    bool is_one_handle; /* mem: a second open is another store */
    bool is_prefixed;
} store_kind;

static const store_kind kinds[] = {
    {.name = "mem", .url = "mem:", .is_one_handle = true},
    {.name = "file"},
    {.name = "tcp", .url = "tcp://127.0.0.1:0", .serve = 1},
    {.name = "unix", .serve = 1},
    {.name = "prefix", .url = "tcp://127.0.0.1:0", .serve = 1, .is_prefixed = true},
};

typedef struct pair {
    ls_store *a;
    ls_store *b;
    ls_store *under[2]; /* of prefixed ones */
} pair;

static int n_made;

static pair open_pair(const store_kind *kind)
{
    ls_store_options opt = {.size = sizeof(opt), .serve = kind->serve, .timeout_ms = SOON};
    char url[128] = "";
    pair p = {0};

    if (text_equal(kind->name, "file"))
        text_format(url, sizeof(url), "file://%s/store%d", folder, n_made++);
    else if (text_equal(kind->name, "unix"))
        text_format(url, sizeof(url), "unix:@lockstep-test-%d-%d", (int)getpid(), n_made++);
    else
        text_format(url, sizeof(url), "%s", kind->url);
    assert_ok(ls_store_open(url, &opt, &p.a));
    opt.serve = 0;
    if (kind->is_one_handle)
        p.b = p.a;
    else
        assert_ok(ls_store_open(ls_store_url(p.a), &opt, &p.b));
    if (kind->is_prefixed) {
        p.under[0] = p.a;
        p.under[1] = p.b;
        assert_ok(ls_store_prefix(p.under[0], "job 7/", &p.a));
        assert_ok(ls_store_prefix(p.under[1], "job 7/", &p.b));
    }
    return p;
}

static void close_pair(pair *p)
{
    if (p->b != p->a)
        ls_store_close(p->b);
    ls_store_close(p->a);
    ls_store_close(p->under[1]);
    ls_store_close(p->under[0]);
}

static void must_hold(ls_store *s, const char *key, const char *value)
{
    void *got = NULL;
    size_t bytes = 999;

    assert_ok(ls_store_get(s, key, SOON, &got, &bytes));
    assert_int_equal(bytes, strlen(value));
    assert_string_equal(got, value);
    ls_store_free(got);
}

static void set(ls_store *s, const char *key, const char *value)
{
    assert_ok(ls_store_set(s, key, value, strlen(value)));
}

/* --- single operations --- */

static void check_values(const store_kind *kind)
{
    pair p = open_pair(kind);
    void *got = NULL;
    size_t bytes;
    int existed = -1;
    int64_t count = -1;
    uint8_t binary[256];

    set(p.a, "k", "one");
    must_hold(p.b, "k", "one");
    set(p.b, "k", "two, and longer");
    must_hold(p.a, "k", "two, and longer");
    set(p.a, "k", "");
    must_hold(p.b, "k", "");
    for (int i = 0; i < 256; i++)
        binary[i] = (uint8_t)i;
    assert_ok(ls_store_set(p.a, "binary", binary, sizeof(binary)));
    assert_ok(ls_store_get(p.b, "binary", 0, &got, &bytes));
    assert_int_equal(bytes, sizeof(binary));
    assert_memory_equal(got, binary, sizeof(binary));
    ls_store_free(got);
    assert_ok(ls_store_count(p.b, &count));
    assert_int_equal(count, 2);
    assert_ok(ls_store_delete(p.b, "k", &existed));
    assert_int_equal(existed, 1);
    assert_ok(ls_store_delete(p.a, "k", &existed));
    assert_int_equal(existed, 0);
    assert_status(ls_store_get(p.a, "k", 0, &got, &bytes), LS_ETIMEOUT);
    assert_last_error("k'");
    assert_null(got);
    close_pair(&p);
}

static void check_counters(const store_kind *kind)
{
    pair p = open_pair(kind);
    int64_t sum = 0;

    assert_ok(ls_store_add(p.a, "n", 5, &sum));
    assert_int_equal(sum, 5);
    assert_ok(ls_store_add(p.b, "n", -7, &sum));
    assert_int_equal(sum, -2);
    must_hold(p.a, "n", "-2"); // decimal text
    set(p.b, "n", "41");
    assert_ok(ls_store_add(p.a, "n", 1, NULL));
    must_hold(p.a, "n", "42");
    set(p.a, "text", "4x");
    assert_status(ls_store_add(p.b, "text", 1, &sum), LS_EINVAL);
    assert_last_error("'");
    set(p.a, "top", "9223372036854775807");
    assert_status(ls_store_add(p.b, "top", 1, &sum), LS_EINVAL);
    assert_last_error("overflow");
    must_hold(p.b, "top", "9223372036854775807");
    close_pair(&p);
}

static void check_compare_set(const store_kind *kind)
{
    pair p = open_pair(kind);
    int swapped = -1;

    assert_ok(ls_store_compare_set(p.a, "c", "x", 1, "y", 1, &swapped));
    assert_int_equal(swapped, 0); // absent is not "x"
    assert_ok(ls_store_compare_set(p.a, "c", NULL, 0, "first", 5, &swapped));
    assert_int_equal(swapped, 1);
    assert_ok(ls_store_compare_set(p.b, "c", NULL, 0, "second", 6, &swapped));
    assert_int_equal(swapped, 0);
    must_hold(p.b, "c", "first");
    assert_ok(ls_store_compare_set(p.b, "c", "firs", 4, "second", 6, &swapped));
    assert_int_equal(swapped, 0);
    assert_ok(ls_store_compare_set(p.b, "c", "first", 5, "second", 6, &swapped));
    assert_int_equal(swapped, 1);
    must_hold(p.a, "c", "second");
    close_pair(&p);
}

static void check_waits(const store_kind *kind)
{
    static const char *const keys[] = {"w/0", "w/1", "w/2", "w/3", "w/4", "w/5"};
    pair p = open_pair(kind);
    int all = -1;

    set(p.a, "w/1", "x");
    assert_status(ls_store_wait(p.b, keys, 6, 20), LS_ETIMEOUT);
    assert_last_error("w/0'");
    assert_last_error("and 1 more");
    assert_null(strstr(ls_last_error(), "w/1'"));
    assert_ok(ls_store_check(p.b, keys, 6, &all));
    assert_int_equal(all, 0);
    for (int i = 0; i < 6; i++)
        set(p.a, keys[i], "x");
    assert_ok(ls_store_wait(p.b, keys, 6, 0));
    assert_ok(ls_store_check(p.b, keys, 6, &all));
    assert_int_equal(all, 1);
    close_pair(&p);
}

static void check_limits(const store_kind *kind)
{
    pair p = open_pair(kind);
    static char key[LS_STORE_KEY_MAX + 2];
    char *value = calloc(LS_STORE_VALUE_MAX + 1, 1);
    void *got = NULL;
    size_t bytes = 0;

    assert_non_null(value);
    memset(key, 'k', sizeof(key) - 1);
    assert_status(ls_store_set(p.a, key, "v", 1), LS_EINVAL);
    assert_last_error("8193 bytes");
    key[LS_STORE_KEY_MAX - (kind->is_prefixed ? 6 : 0)] = 0;
    assert_ok(ls_store_set(p.a, key, "v", 1));
    must_hold(p.b, key, "v");
    assert_status(ls_store_set(p.a, "", "v", 1), LS_EINVAL);
    assert_status(ls_store_set(p.a, "k", value, LS_STORE_VALUE_MAX + 1), LS_EINVAL);
    assert_status(ls_store_set(p.a, "k", NULL, 1), LS_EINVAL);
    assert_status(ls_store_set(NULL, "k", NULL, 0), LS_EINVAL);
    value[LS_STORE_VALUE_MAX - 1] = 'z';
    assert_ok(ls_store_set(p.a, "large", value, LS_STORE_VALUE_MAX));
    assert_ok(ls_store_get(p.b, "large", SOON, &got, &bytes));
    assert_int_equal(bytes, LS_STORE_VALUE_MAX);
    assert_memory_equal(got, value, LS_STORE_VALUE_MAX);
    ls_store_free(got);
    free(value);
    close_pair(&p);
}

/* --- two at once --- */

typedef struct helper {
    ls_store *s;
    ls_status st;
} helper;

static void set_later(void *arg)
{
    helper *h = arg;

    poll(NULL, 0, 30);
    h->st = ls_store_set(h->s, "late", "value", 5);
}

static void check_wake_ups(const store_kind *kind)
{
    pair p = open_pair(kind);
    helper h = {.s = p.a};
    ls_thread thread = {0};

    assert_ok(ls_thread_start(&thread, "setter", set_later, &h));
    must_hold(p.b, "late", "value");
    ls_thread_join(&thread);
    assert_ok(h.st);
    close_pair(&p);
}

static void add_often(void *arg)
{
    helper *h = arg;

    for (int i = 0; i < 200 && h->st == LS_OK; i++)
        h->st = ls_store_add(h->s, "sum", 1, NULL);
}

static void check_concurrent_adds(const store_kind *kind)
{
    pair p = open_pair(kind);
    helper h = {.s = p.a};
    helper own = {.s = p.b};
    ls_thread thread = {0};

    assert_ok(ls_thread_start(&thread, "adder", add_often, &h));
    add_often(&own);
    ls_thread_join(&thread);
    assert_ok(h.st);
    assert_ok(own.st);
    must_hold(p.b, "sum", "400");
    close_pair(&p);
}

/* --- over all kinds --- */

static void for_each_kind(void (*check)(const store_kind *kind))
{
    for (size_t i = 0; i < LS_COUNT_OF(kinds); i++) {
        check(&kinds[i]);
    }
}

static void values_are_set_read_replaced_and_deleted(void **state)
{
    LS_UNUSED(state);
    for_each_kind(check_values);
}

static void counters_are_decimal_text_and_never_overflow(void **state)
{
    LS_UNUSED(state);
    for_each_kind(check_counters);
}

static void compare_set_swaps_only_what_is_expected(void **state)
{
    LS_UNUSED(state);
    for_each_kind(check_compare_set);
}

static void a_wait_that_times_out_names_what_is_missing(void **state)
{
    LS_UNUSED(state);
    for_each_kind(check_waits);
}

static void keys_and_values_have_limits(void **state)
{
    LS_UNUSED(state);
    for_each_kind(check_limits);
}

static void set_wakes_a_waiting_get(void **state)
{
    LS_UNUSED(state);
    for_each_kind(check_wake_ups);
}

static void adds_of_two_at_once_are_all_counted(void **state)
{
    LS_UNUSED(state);
    for_each_kind(check_concurrent_adds);
}

/* --- opening --- */

static void bad_urls_and_options_are_refused(void **state)
{
    static const char *const urls[] = {
        "",       "http://x:1", "tcp://",   "tcp://127.0.0.1", "tcp://127.0.0.1:99999",
        "unix:x", "file://",    "redis://x"};
    ls_store_options opt = {.size = 3};
    ls_store *s = NULL;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(urls); i++) {
        assert_status(ls_store_open(urls[i], NULL, &s), LS_EINVAL);
        assert_null(s);
    }
    assert_status(ls_store_open("mem:", &opt, &s), LS_EINVAL);
    assert_last_error("size");
    ls_store_close(NULL);
    ls_store_free(NULL);
}

static void open_without_a_server_fails_at_the_deadline(void **state)
{
    const ls_store_options opt = {.size = sizeof(opt), .timeout_ms = 50};
    ls_store *s = NULL;

    LS_UNUSED(state);
    assert_status(ls_store_open("unix:@lockstep-no-server-here", &opt, &s), LS_EPEER);
    assert_last_error("unix:@lockstep-no-server-here");
    assert_last_error("refused");
}

static void another_users_key_opens_nothing(void **state)
{
    ls_store_options opt = {.size = sizeof(opt), .serve = 1, .timeout_ms = SOON};
    char path[128];
    FILE *f;
    ls_store *a = NULL;
    ls_store *b = NULL;

    LS_UNUSED(state);
    assert_ok(ls_store_open("tcp://127.0.0.1:0", &opt, &a));
    text_format(path, sizeof(path), "%s/other-key", folder);
    f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 64; i++)
        (void)fputc('a', f);
    (void)fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
    opt = (ls_store_options){.size = sizeof(opt), .key_file = path, .timeout_ms = SOON};
    assert_status(ls_store_open(ls_store_url(a), &opt, &b), LS_EAUTH);
    assert_last_error("other-key");
    opt = (ls_store_options){.size = sizeof(opt), .insecure = 1, .timeout_ms = SOON};
    assert_status(ls_store_open(ls_store_url(a), &opt, &b), LS_EAUTH);
    ls_store_close(a);
    opt.serve = 1;
    assert_ok(ls_store_open("tcp://127.0.0.1:0", &opt, &a));
    opt.serve = 0;
    assert_ok(ls_store_open(ls_store_url(a), &opt, &b));
    ls_store_close(b);
    ls_store_close(a);
}

static void prefixes_keep_jobs_apart(void **state)
{
    ls_store *base;
    ls_store *one;
    ls_store *two;
    static char too_long[LS_STORE_KEY_MAX + 1];
    int64_t count;

    LS_UNUSED(state);
    assert_ok(ls_store_open("mem:", NULL, &base));
    assert_ok(ls_store_prefix(base, "a/", &one));
    assert_ok(ls_store_prefix(one, "b/", &two));
    set(one, "k", "1");
    set(two, "k", "2");
    must_hold(base, "a/k", "1");
    must_hold(base, "a/b/k", "2");
    must_hold(one, "b/k", "2");
    assert_ok(ls_store_count(two, &count));
    assert_int_equal(count, 2);
    ls_store_close(two);
    ls_store_close(one);
    memset(too_long, 'p', LS_STORE_KEY_MAX);
    assert_status(ls_store_prefix(base, too_long, &one), LS_EINVAL);
    assert_last_error("leaves no space for keys");
    ls_store_close(base);
}

static int make_folder(void **state)
{
    LS_UNUSED(state);
    text_format(folder, sizeof(folder), "/tmp/lockstep-store-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    unsetenv("LOCKSTEP_KEY_FILE");
    setenv("LOCKSTEP_LOG", "error", 1);
    return setenv("HOME", folder, 1);
}

static int remove_folder(void **state)
{
    char command[128];

    LS_UNUSED(state);
    text_format(command, sizeof(command), "rm -rf %s", folder);
    return system(command) == 0 ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_set_read_replaced_and_deleted),
        cmocka_unit_test(counters_are_decimal_text_and_never_overflow),
        cmocka_unit_test(compare_set_swaps_only_what_is_expected),
        cmocka_unit_test(a_wait_that_times_out_names_what_is_missing),
        cmocka_unit_test(keys_and_values_have_limits),
        cmocka_unit_test(set_wakes_a_waiting_get),
        cmocka_unit_test(adds_of_two_at_once_are_all_counted),
        cmocka_unit_test(bad_urls_and_options_are_refused),
        cmocka_unit_test(open_without_a_server_fails_at_the_deadline),
        cmocka_unit_test(another_users_key_opens_nothing),
        cmocka_unit_test(prefixes_keep_jobs_apart),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
