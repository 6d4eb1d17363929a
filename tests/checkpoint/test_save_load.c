/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_save_load.c - tests saving and loading lists of tensors: the same bits, differences, partial
 * loads, full disks.
 */
#include "base/unit.h"

#include <lockstep/checkpoint.h>

#include "base/alloc.h"
#include "base/compute/half.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "data/temp_files.h"
#include "tensor/device.h"
#include "tensor/suite_device.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_ITEMS   10
#define MAX_BYTES 1024 /* of a tensor */

static ls_device *device;
static temp_folder folder;
static char path[TEMP_PATH_BYTES];

static ls_status open_device(void)
{
    return ls_device_open(&(ls_device_options){.size = sizeof(ls_device_options),
                                               .name = test_device_name(),
                                               .threads = 1},
                          &device);
}

/* A tensor whose bytes count up from `first`. */
static ls_tensor *make_tensor(ls_dtype type, int n_dims, const int64_t *dims, int first)
{
    ls_tensor *t = NULL;
    unsigned char data[MAX_BYTES];

    assert_ok(ls_tensor_create(device, type, n_dims, dims, &t));
    assert_true(tensor_bytes(t) <= sizeof(data));
    for (size_t i = 0; i < tensor_bytes(t); i++)
        data[i] = (unsigned char)(first + (int)i);
    assert_ok(ls_tensor_write(t, data, ls_tensor_count(t)));
    return t;
}

/* One tensor of every type, with shapes of every kind, and plain bytes. */
typedef struct model {
    ls_named items[N_ITEMS];
    unsigned char raw[5];
} model;

static void make_model(model *m, int first)
{
    static const char *const names[] = {
        "i8", "u8", "num_batches_tracked", "i64", "f16", "bf16", "f32", "f64", "nothing"};
    static const int64_t dims[] = {3, 2, 5};

    memset(m, 0, sizeof(*m));
    for (int i = 0; i < 8; i++)
        m->items[i] = (ls_named){.name = names[i],
                                 .tensor = make_tensor((ls_dtype)i, i % 4, dims, first + i)};
    m->items[8] =
        (ls_named){.name = names[8], .tensor = make_tensor(LS_F32, 2, (int64_t[]){4, 0}, first)};
    for (size_t i = 0; i < sizeof(m->raw); i++)
        m->raw[i] = (unsigned char)(first * 3 + (int)i);
    m->items[9] =
        (ls_named){.name = "optimizer \"state\" \xC3\xA9\n", .bytes = m->raw, .n_bytes = 5};
}

static void free_model(model *m)
{
    for (int i = 0; i < N_ITEMS; i++)
        ls_tensor_destroy(m->items[i].tensor);
}

/* Copies what the item holds to `data` and returns how many bytes that are. */
static size_t content(const ls_named *item, void *data)
{
    const size_t bytes = item->tensor != NULL ? tensor_bytes(item->tensor) : item->n_bytes;

    assert_true(bytes <= MAX_BYTES);
    if (item->tensor != NULL)
        assert_ok(ls_tensor_read(item->tensor, data, ls_tensor_count(item->tensor)));
    else if (bytes > 0)
        memcpy(data, item->bytes, bytes);
    return bytes;
}

static bool same_content(const ls_named *a, const ls_named *b)
{
    unsigned char x[MAX_BYTES];
    unsigned char y[MAX_BYTES];
    const size_t bytes = content(a, x);

    return bytes == content(b, y) && memcmp(x, y, bytes) == 0;
}

static bool same_models(const model *a, const model *b)
{
    for (int i = 0; i < N_ITEMS; i++) {
        if (!same_content(&a->items[i], &b->items[i]))
            return false;
    }
    return true;
}

static ls_status load(const char *from, const ls_named *items, int n, ls_load_mode mode)
{
    ls_checkpoint *c;
    ls_status st = ls_checkpoint_open(from, &c);

    if (st != LS_OK)
        return st;
    st = ls_checkpoint_load(c, items, n, mode);
    ls_checkpoint_close(c);
    return st;
}

static void a_saved_list_loads_with_the_same_bits(void **state)
{
    const ls_meta meta[] = {{"format", "pt"}, {"note", "a \"quoted\" \xE2\x82\xAC"}};
    model a;
    model b;
    ls_checkpoint *c;

    LS_UNUSED(state);
    make_model(&a, 1);
    make_model(&b, 101);
    assert_ok(ls_checkpoint_save(path, a.items, N_ITEMS, meta, 2));
    assert_false(same_models(&a, &b));
    assert_ok(load(path, b.items, N_ITEMS, LS_LOAD_STRICT));
    assert_true(same_models(&a, &b));
    assert_ok(ls_checkpoint_open(path, &c));
    assert_string_equal(ls_checkpoint_meta(c, "format"), "pt");
    assert_string_equal(ls_checkpoint_meta(c, "note"), meta[1].value);
    assert_int_equal(ls_checkpoint_count(c), N_ITEMS);
    for (int i = 0; i < N_ITEMS; i++) {
        ls_checkpoint_entry e;

        assert_ok(ls_checkpoint_entry_at(c, i, &e));
        assert_string_equal(e.name, a.items[i].name);
    }
    ls_checkpoint_close(c);
    free_model(&a);
    free_model(&b);
}

/* Readers map the file and look at tensors in place. */
static void every_tensor_is_aligned_in_the_file(void **state)
{
    ls_checkpoint *c;
    model a;

    LS_UNUSED(state);
    make_model(&a, 1);
    assert_ok(ls_checkpoint_save(path, a.items, N_ITEMS, NULL, 0));
    assert_ok(ls_checkpoint_open(path, &c));
    assert_int_equal(c->data_offset % 8, 0);
    for (int i = 0; i < c->index.n_entries; i++) {
        const safetensors_entry *e = &c->index.entries[i];

        assert_int_equal(e->begin % e->type->bytes, 0);
    }
    ls_checkpoint_close(c);
    free_model(&a);
}

static void the_same_state_gives_the_same_file(void **state)
{
    char other[TEMP_PATH_BYTES];
    unsigned char *x;
    unsigned char *y;
    size_t n;
    size_t m;
    model a;

    LS_UNUSED(state);
    make_model(&a, 1);
    assert_ok(ls_checkpoint_save(path, a.items, N_ITEMS, NULL, 0));
    assert_ok(ls_checkpoint_save(temp_path(&folder, "other", other), a.items, N_ITEMS, NULL, 0));
    x = temp_read(path, &n);
    y = temp_read(other, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
    free_model(&a);
}

static void loading_invalidates_copies(void **state)
{
    model a;
    uint64_t version;

    LS_UNUSED(state);
    make_model(&a, 1);
    assert_ok(ls_checkpoint_save(path, a.items, N_ITEMS, NULL, 0));
    version = a.items[6].tensor->storage->version;
    assert_ok(load(path, a.items, N_ITEMS, LS_LOAD_STRICT));
    assert_true(a.items[6].tensor->storage->version > version);
    free_model(&a);
}

static void every_difference_is_listed_and_nothing_changes(void **state)
{
    model a;
    model b;
    model b_before;

    LS_UNUSED(state);
    make_model(&a, 1);
    make_model(&b, 101);
    make_model(&b_before, 101);
    assert_ok(ls_checkpoint_save(path, a.items, N_ITEMS, NULL, 0));
    b.items[3].name = "fc.weight";           // was i64
    b.items[9].n_bytes = 4;                  // was 5
    b.items[2].name = "f32";                 // was int32 (3, 2)
    b.items[6].name = "num_batches_tracked"; // was float32 (3, 2)
    assert_status(load(path, b.items, N_ITEMS, LS_LOAD_STRICT), LS_EFORMAT);
    assert_last_error(path);
    assert_last_error("fc.weight (3, 2, 5) int64 is missing");
    assert_last_error("i64 (3, 2, 5) int64 is unexpected");
    assert_last_error("is (5) uint8 in the file and (4) uint8 here");
    assert_last_error("f32 is (3, 2) float32 in the file and (3, 2) int32 here");
    assert_last_error("num_batches_tracked is (3, 2) int32 in the file and (3, 2) float32 here");
    b.items[9].n_bytes = 5;
    assert_true(same_models(&b, &b_before));
    free_model(&a);
    free_model(&b);
    free_model(&b_before);
}

static void count_difference(void *arg, const char *text)
{
    int *n = arg;
    char want[80];

    (void)snprintf(want, sizeof(want), "layer%d.with.a.long.name.weight (1) uint8 is missing", *n);
    assert_string_equal(text, want);
    ++*n;
}

static void differences_beyond_the_limit_are_counted(void **state)
{
    ls_checkpoint *file;
    int n_calls = 0;
    int n_differences = 0;
    enum { N = 300 };
    static char names[N][64];
    static ls_named items[N];
    unsigned char byte = 1;

    LS_UNUSED(state);
    for (int i = 0; i < N; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "layer%d.with.a.long.name.weight", i);
        items[i] = (ls_named){.name = names[i], .bytes = &byte, .n_bytes = 1};
    }
    assert_ok(ls_checkpoint_save(path, NULL, 0, NULL, 0));
    assert_status(load(path, items, N, LS_LOAD_STRICT), LS_EFORMAT);
    assert_last_error("layer0.with.a.long.name.weight (1) uint8 is missing; layer1.");
    assert_last_error(" more");
    assert_true(strlen(ls_last_error()) < LS_ERROR_BYTES - 10);
    assert_ok(ls_checkpoint_open(path, &file));
    assert_ok(ls_checkpoint_compare(file, items, N, LS_LOAD_STRICT, count_difference, &n_calls,
                                    &n_differences));
    assert_int_equal(n_calls, N); // each of them, in order
    assert_int_equal(n_differences, N);
    ls_checkpoint_close(file);
}

static void subset_mode_ignores_other_entries(void **state)
{
    model a;
    model b;

    LS_UNUSED(state);
    make_model(&a, 1);
    make_model(&b, 101);
    assert_ok(ls_checkpoint_save(path, a.items, N_ITEMS, NULL, 0));
    assert_status(load(path, &b.items[6], 2, LS_LOAD_STRICT), LS_EFORMAT);
    assert_last_error("unexpected");
    assert_ok(load(path, &b.items[6], 2, LS_LOAD_SUBSET));
    assert_true(same_content(&a.items[6], &b.items[6]));
    assert_true(same_content(&a.items[7], &b.items[7]));
    assert_false(same_content(&a.items[5], &b.items[5]));
    b.items[6].name = "not there";
    assert_status(load(path, &b.items[6], 2, LS_LOAD_SUBSET), LS_EFORMAT);
    assert_last_error("not there (3, 2) float32 is missing");
    assert_ok(load(path, NULL, 0, LS_LOAD_SUBSET));
    free_model(&a);
    free_model(&b);
}

/* --- 16 bits --- */

static const float exact[] = {0.0F, -1.5F, 0.099975586F, 65504.0F, -5.9604645e-8F, INFINITY, 2.0F};
enum { N_EXACT = sizeof(exact) / sizeof(exact[0]) };

static ls_tensor *make_floats(const float *values)
{
    ls_tensor *t = NULL;

    assert_ok(ls_tensor_create(device, LS_F32, 1, (int64_t[]){N_EXACT}, &t));
    if (values != NULL)
        assert_ok(ls_tensor_write(t, values, N_EXACT));
    return t;
}

static void halves_of_a_file_are_widened_to_float32(void **state)
{
    static const ls_dtype types[] = {LS_F16, LS_BF16};
    float read[N_EXACT];

    LS_UNUSED(state);
    for (size_t k = 0; k < LS_COUNT_OF(types); k++) {
        ls_named stored = {.name = "w"};
        ls_named wanted = {.name = "w", .tensor = make_floats(NULL)};
        uint16_t halves[N_EXACT];

        assert_ok(ls_tensor_create(device, types[k], 1, (int64_t[]){N_EXACT}, &stored.tensor));
        for (int i = 0; i < N_EXACT; i++)
            halves[i] = types[k] == LS_F16 ? ls_f32_to_f16(exact[i]) : ls_f32_to_bf16(exact[i]);
        assert_ok(ls_tensor_write(stored.tensor, halves, N_EXACT));
        assert_ok(ls_checkpoint_save(path, &stored, 1, NULL, 0));
        assert_ok(load(path, &wanted, 1, LS_LOAD_STRICT));
        assert_ok(ls_tensor_read(wanted.tensor, read, N_EXACT));
        for (int i = 0; i < N_EXACT; i++)
            assert_true(read[i] == (types[k] == LS_F16 ? exact[i] : ls_bf16_to_f32(halves[i])));
        assert_status(
            load(path, &(ls_named){.name = "w", .bytes = read, .n_bytes = 4}, 1, LS_LOAD_STRICT),
            LS_EFORMAT);
        ls_tensor_destroy(stored.tensor);
        ls_tensor_destroy(wanted.tensor);
    }
}

static void fill(ls_tensor *t, int byte)
{
    unsigned char data[MAX_BYTES];

    assert_true(tensor_bytes(t) <= sizeof(data));
    memset(data, byte, sizeof(data));
    assert_ok(ls_tensor_write(t, data, ls_tensor_count(t)));
}

static void float32_can_be_saved_as_16_bits(void **state)
{
    static const ls_dtype types[] = {LS_F16, LS_BF16};
    model a;
    model b;

    LS_UNUSED(state);
    for (size_t k = 0; k < LS_COUNT_OF(types); k++) {
        ls_checkpoint *c;
        ls_checkpoint_entry e;
        ls_named item = {.name = "w", .tensor = make_floats(exact)};
        float read[N_EXACT];

        make_model(&a, 1);
        make_model(&b, 101);
        fill(a.items[6].tensor, 0x3f);
        assert_ok(ls_checkpoint_save_as(path, a.items, N_ITEMS, NULL, 0, types[k]));
        assert_ok(ls_checkpoint_open(path, &c));
        for (int i = 0; i < N_ITEMS; i++) {
            assert_ok(ls_checkpoint_entry_at(c, i, &e));
            assert_int_equal(e.type, i == 6 || i == 8 ? types[k] : (ls_dtype)(i == 9 ? LS_U8 : i));
        }
        assert_ok(ls_checkpoint_load(c, b.items, N_ITEMS, LS_LOAD_STRICT));
        ls_checkpoint_close(c);
        for (int i = 0; i < N_ITEMS; i++)
            assert_true(i == 6 || same_content(&a.items[i], &b.items[i]));
        free_model(&a);
        free_model(&b);
        assert_ok(ls_checkpoint_save_as(path, &item, 1, NULL, 0, types[k]));
        fill(item.tensor, 0);
        assert_ok(load(path, &item, 1, LS_LOAD_STRICT));
        assert_ok(ls_tensor_read(item.tensor, read, N_EXACT));
        for (int i = 0; i < N_EXACT; i++)
            assert_true(types[k] == LS_F16 ? read[i] == exact[i]
                                           : read[i] == ls_bf16_to_f32(ls_f32_to_bf16(exact[i])));
        ls_tensor_destroy(item.tensor);
    }
}

static void a_value_that_overflows_fp16_leaves_the_old_file(void **state)
{
    const float values[N_EXACT] = {1, 2, 70000.0F};
    ls_named item = {.name = "running_var", .tensor = make_floats(exact)};
    float read[N_EXACT];

    LS_UNUSED(state);
    assert_ok(ls_checkpoint_save_as(path, &item, 1, NULL, 0, LS_F16));
    assert_ok(ls_tensor_write(item.tensor, values, N_EXACT));
    assert_status(ls_checkpoint_save_as(path, &item, 1, NULL, 0, LS_F16), LS_EINVAL);
    assert_last_error("running_var: the value 70000 is too large for fp16");
    assert_ok(load(path, &item, 1, LS_LOAD_STRICT));
    assert_ok(ls_tensor_read(item.tensor, read, N_EXACT));
    assert_true(read[3] == exact[3]);
    assert_status(ls_checkpoint_save_as(path, &item, 1, NULL, 0, LS_I32), LS_EINVAL);
    ls_tensor_destroy(item.tensor);
}

/* --- loading what fits --- */

static void note_skip(void *arg, ls_checkpoint_skip why, const char *name, const char *text)
{
    char *notes = arg;

    assert_non_null(strstr(text, name));
    (void)text_format(notes + strlen(notes), 256 - strlen(notes), "%d %s;", (int)why, name);
}

static void matching_tensors_are_loaded_and_others_listed(void **state)
{
    model a;
    model b;
    model before;
    ls_checkpoint *c;
    char notes[256] = "";
    int n = -1;

    LS_UNUSED(state);
    make_model(&a, 1);
    make_model(&b, 101);
    make_model(&before, 101);
    assert_ok(ls_checkpoint_save(path, a.items, N_ITEMS, NULL, 0));
    assert_ok(ls_checkpoint_open(path, &c));
    b.items[0].name = "of the model only";
    b.items[9].n_bytes = 4;
    assert_ok(
        ls_checkpoint_load_fitting(c, b.items, N_ITEMS, LS_LOAD_STRICT, note_skip, notes, &n));
    assert_int_equal(n, N_ITEMS - 2);
    assert_string_equal(notes, "0 of the model only;2 optimizer \"state\" \xC3\xA9?;1 i8;");
    for (int i = 1; i < 9; i++)
        assert_true(same_content(&a.items[i], &b.items[i]));
    assert_true(same_content(&before.items[0], &b.items[0]));
    assert_memory_equal(b.raw, before.raw, sizeof(b.raw));
    notes[0] = 0;
    assert_ok(ls_checkpoint_load_fitting(c, b.items, 1, LS_LOAD_SUBSET, note_skip, notes, &n));
    assert_int_equal(n, 0);
    assert_string_equal(notes, "0 of the model only;");
    assert_ok(ls_checkpoint_load_fitting(c, b.items, N_ITEMS, LS_LOAD_STRICT, NULL, NULL, &n));
    assert_ok(ls_checkpoint_compare(c, b.items, N_ITEMS, LS_LOAD_STRICT, NULL, NULL, &n));
    assert_int_equal(n, 3);
    ls_checkpoint_close(c);
    free_model(&a);
    free_model(&b);
    free_model(&before);
}

static void a_file_that_shrinks_after_open_changes_nothing(void **state)
{
    model a;
    model b;
    model b_before;
    ls_checkpoint *c;

    LS_UNUSED(state);
    make_model(&a, 1);
    make_model(&b, 101);
    make_model(&b_before, 101);
    assert_ok(ls_checkpoint_save(path, a.items, N_ITEMS, NULL, 0));
    assert_ok(ls_checkpoint_open(path, &c));
    assert_int_equal(truncate(path, 900), 0);
    assert_status(ls_checkpoint_load(c, b.items, N_ITEMS, LS_LOAD_STRICT), LS_EFORMAT);
    assert_last_error("when it was opened");
    assert_true(same_models(&b, &b_before));
    ls_checkpoint_close(c);
    free_model(&a);
    free_model(&b);
    free_model(&b_before);
}

static void invalid_lists_are_refused(void **state)
{
    unsigned char byte = 1;
    const ls_named twice[] = {{.name = "a", .bytes = &byte, .n_bytes = 1},
                              {.name = "a", .bytes = &byte, .n_bytes = 1}};
    const ls_named reserved = {.name = "__metadata__", .bytes = &byte, .n_bytes = 1};
    const ls_named latin = {.name = "caf\xE9", .bytes = &byte, .n_bytes = 1};
    const ls_named unnamed = {.bytes = &byte, .n_bytes = 1};
    const ls_named empty = {.name = "a"};
    const ls_meta meta_twice[] = {{"k", "1"}, {"k", "2"}};
    const ls_meta half = {"k", NULL};

    LS_UNUSED(state);
    temp_write(path, "old", 3);
    assert_status(ls_checkpoint_save(path, twice, 2, NULL, 0), LS_EINVAL);
    assert_last_error("two items are named a");
    assert_status(ls_checkpoint_save(path, &reserved, 1, NULL, 0), LS_EINVAL);
    assert_last_error("__metadata__");
    assert_status(ls_checkpoint_save(path, &latin, 1, NULL, 0), LS_EINVAL);
    assert_last_error("not UTF-8");
    assert_status(ls_checkpoint_save(path, &unnamed, 1, NULL, 0), LS_EINVAL);
    assert_status(ls_checkpoint_save(path, &empty, 1, NULL, 0), LS_EINVAL);
    assert_status(ls_checkpoint_save(path, twice, 1, meta_twice, 2), LS_EINVAL);
    assert_status(ls_checkpoint_save(path, twice, 1, &half, 1), LS_EINVAL);
    assert_status(ls_checkpoint_save(NULL, twice, 1, NULL, 0), LS_EINVAL);
    assert_status(ls_checkpoint_save(path, NULL, 1, NULL, 0), LS_EINVAL);
    // None of these has touched the file.
    assert_status(load(path, NULL, 0, LS_LOAD_SUBSET), LS_EFORMAT);
    assert_ok(ls_checkpoint_save(path, twice, 1, NULL, 0));
    assert_status(load(path, twice, 2, LS_LOAD_STRICT), LS_EINVAL);
    assert_last_error("two items are named a");
    assert_status(load(path, NULL, 1, LS_LOAD_STRICT), LS_EINVAL);
    assert_status(load(path, &unnamed, 1, LS_LOAD_STRICT), LS_EINVAL);
}

static void no_memory_is_an_error_at_every_allocation_of_a_load(void **state)
{
    model a;
    model b;
    model b_before;
    ls_checkpoint *c;
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    make_model(&a, 1);
    make_model(&b, 101);
    make_model(&b_before, 101);
    assert_ok(ls_checkpoint_save(path, a.items, N_ITEMS, NULL, 0));
    assert_ok(ls_checkpoint_open(path, &c));
    do {
        ls_alloc_fail_at(++n);
        st = ls_checkpoint_load(c, b.items, N_ITEMS, LS_LOAD_STRICT);
        ls_alloc_fail_at(0);
        if (st != LS_OK) {
            assert_status(st, LS_ENOMEM);
            // Memory for a copy to a stream device may be missing in the middle of the load.
            assert_true(device->accel != NULL || same_models(&b, &b_before));
        }
        assert_true(n < 100);
    } while (st != LS_OK);
    assert_true(n > 3 && same_models(&a, &b));
    ls_checkpoint_close(c);
    free_model(&a);
    free_model(&b);
    free_model(&b_before);
}

static void no_memory_is_an_error_at_every_allocation_of_a_save(void **state)
{
    model a;
    model b;
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    make_model(&a, 1);
    make_model(&b, 101);
    assert_ok(ls_checkpoint_save(path, a.items, N_ITEMS, NULL, 0));
    do {
        ls_alloc_fail_at(++n);
        st = ls_checkpoint_save(path, b.items, N_ITEMS, NULL, 0);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
        assert_ok(load(path, b.items, N_ITEMS, LS_LOAD_STRICT));
        assert_true(st == LS_OK || same_models(&a, &b));
        free_model(&b);
        make_model(&b, 101);
        assert_true(n < 1000);
    } while (st != LS_OK);
    assert_true(n > 5);
    free_model(&a);
    free_model(&b);
}

/* --- full disks --- */

/* In a child: a device of its own, as it has none of its parent's threads, and models on it. */
static void begin_child(model *a, model *b)
{
    if (open_device() != LS_OK)
        _exit(4);
    make_model(a, 1);
    make_model(b, 101);
}

/* In a child: saving over the old file must fail with LS_EIO, and the old file must be there. */
static void save_to_a_full_disk(const char *where, const model *old, model *new)
{
    char tmp[TEMP_PATH_BYTES + 8];
    ls_status st;

    st = ls_checkpoint_save(where, new->items, N_ITEMS, NULL, 0);
    (void)fprintf(stderr, "%s\n", ls_last_error());
    (void)snprintf(tmp, sizeof(tmp), "%s.tmp", where);
    if (st != LS_EIO || access(tmp, F_OK) == 0 || strstr(ls_last_error(), where) == NULL)
        _exit(1);
    _exit(load(where, new->items, N_ITEMS, LS_LOAD_STRICT) == LS_OK && same_models(old, new) ? 0
                                                                                             : 2);
}

static void assert_child_succeeded(pid_t pid)
{
    int status;

    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_file_size_limit_leaves_the_old_file(void **state)
{
    model a;
    model b;
    pid_t pid;

    LS_UNUSED(state);
    make_model(&a, 1);
    make_model(&b, 101);
    assert_ok(ls_checkpoint_save(path, a.items, N_ITEMS, NULL, 0));
    pid = fork();
    if (pid == 0) {
        begin_child(&a, &b);
        (void)signal(SIGXFSZ, SIG_IGN);
        (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 700, .rlim_max = 700});
        save_to_a_full_disk(path, &a, &b);
    }
    assert_child_succeeded(pid);
    free_model(&a);
    free_model(&b);
}

static void map_id(const char *file, unsigned id)
{
    char line[64];

    temp_write(file, line, strlen(text_format(line, sizeof(line), "%u %u 1", id, id)));
}

/* In a child: namespaces of its own, in which this user and group exist and can create files. */
static bool enter_namespaces(void)
{
    const unsigned user = geteuid();
    const unsigned group = getegid();

    if (user == 0)
        return unshare(CLONE_NEWNS) == 0;
    if (unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0)
        return false;
    temp_write("/proc/self/setgroups", "deny", strlen("deny"));
    map_id("/proc/self/uid_map", user);
    map_id("/proc/self/gid_map", group);
    return true;
}

/* In a child: mounts a private file system of 16 KiB at the test's folder. */
static void mount_small_disk(void)
{
    if (!enter_namespaces() || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder.path, "tmpfs", 0, "size=16k") != 0) {
        (void)fprintf(stderr, "cannot mount a small disk here: %s\n", strerror(errno));
        _exit(77);
    }
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    static unsigned char ballast[8192];
    char other[TEMP_PATH_BYTES];
    model a;
    model b;
    pid_t pid;

    LS_UNUSED(state);
    make_model(&a, 1);
    make_model(&b, 101);
    pid = fork();
    if (pid == 0) {
        begin_child(&a, &b);
        mount_small_disk();
        if (ls_checkpoint_save(path, a.items, N_ITEMS, NULL, 0) != LS_OK)
            _exit(3);
        temp_write(temp_path(&folder, "ballast", other), ballast, sizeof(ballast));
        temp_write(temp_path(&folder, "more", other), ballast, 4096);
        save_to_a_full_disk(path, &a, &b);
    }
    assert_child_succeeded(pid);
    free_model(&a);
    free_model(&b);
}

static void a_missing_folder_is_reported(void **state)
{
    char other[TEMP_PATH_BYTES];

    LS_UNUSED(state);
    assert_status(ls_checkpoint_save(temp_path(&folder, "no/where", other), NULL, 0, NULL, 0),
                  LS_ENOTFOUND);
    assert_last_error(other);
}

static int set_up(void **state)
{
    LS_UNUSED(state);
    temp_folder_create(&folder);
    (void)temp_path(&folder, "model.safetensors", path);
    return open_device() == LS_OK ? 0 : -1;
}

static int clean_up(void **state)
{
    LS_UNUSED(state);
    ls_device_close(device);
    temp_folder_remove(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_saved_list_loads_with_the_same_bits),
        cmocka_unit_test(every_tensor_is_aligned_in_the_file),
        cmocka_unit_test(the_same_state_gives_the_same_file),
        cmocka_unit_test(loading_invalidates_copies),
        cmocka_unit_test(every_difference_is_listed_and_nothing_changes),
        cmocka_unit_test(differences_beyond_the_limit_are_counted),
        cmocka_unit_test(subset_mode_ignores_other_entries),
        cmocka_unit_test(halves_of_a_file_are_widened_to_float32),
        cmocka_unit_test(float32_can_be_saved_as_16_bits),
        cmocka_unit_test(a_value_that_overflows_fp16_leaves_the_old_file),
        cmocka_unit_test(matching_tensors_are_loaded_and_others_listed),
        cmocka_unit_test(a_file_that_shrinks_after_open_changes_nothing),
        cmocka_unit_test(invalid_lists_are_refused),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation_of_a_load),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation_of_a_save),
        cmocka_unit_test(a_file_size_limit_leaves_the_old_file),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(a_missing_folder_is_reported),
    };

    return cmocka_run_group_tests(tests, set_up, clean_up);
}
