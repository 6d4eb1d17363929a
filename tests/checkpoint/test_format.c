/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_format.c - tests opening safetensors files from other programs: types, truncated and
 * malformed headers, files of torch.save().
 */
#include "base/unit.h"

#include <lockstep/checkpoint.h>

#include "base/alloc.h"
#include "data/temp_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static temp_folder folder;
static char path[TEMP_PATH_BYTES];

/* Writes length, header and n_data bytes 0, 1, 2, ... */
static void write_checkpoint(const char *header, size_t n_data)
{
    const size_t length = strlen(header);
    unsigned char *file = calloc(8 + length + n_data, 1);

    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < n_data; i++)
        file[8 + length + i] = (unsigned char)i;
    temp_write(path, file, 8 + length + n_data);
    free(file);
}

static void assert_refused(const char *message)
{
    ls_checkpoint *c;

    assert_status(ls_checkpoint_open(path, &c), LS_EFORMAT);
    assert_last_error(path);
    assert_last_error(message);
}

#define ENTRY(name, dtype, shape, offsets)                                                         \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" offsets "]}"

static const char two_entries[] = "{\"__metadata__\":{\"format\":\"pt\",\"epoch\":\"3\"}," ENTRY(
    "w", "F32", "2,3", "4,28") "," ENTRY("raw", "U8", "4", "0,4") "}   ";

static void entries_and_metadata_are_returned(void **state)
{
    ls_checkpoint_entry e;
    ls_checkpoint *c;

    LS_UNUSED(state);
    write_checkpoint(two_entries, 28);
    assert_ok(ls_checkpoint_open(path, &c));
    assert_int_equal(ls_checkpoint_count(c), 2);
    assert_ok(ls_checkpoint_entry_at(c, 0, &e));
    assert_string_equal(e.name, "w");
    assert_int_equal(e.type, LS_F32);
    assert_int_equal(e.n_dims, 2);
    assert_int_equal(e.dims[0], 2);
    assert_int_equal(e.dims[1], 3);
    assert_ok(ls_checkpoint_entry_at(c, 1, &e));
    assert_string_equal(e.name, "raw");
    assert_int_equal(e.type, LS_U8);
    assert_status(ls_checkpoint_entry_at(c, 2, &e), LS_EINVAL);
    assert_status(ls_checkpoint_entry_at(c, -1, &e), LS_EINVAL);
    assert_string_equal(ls_checkpoint_meta(c, "epoch"), "3");
    assert_null(ls_checkpoint_meta(c, "nothing"));
    ls_checkpoint_close(c);
    write_checkpoint("{}", 0);
    assert_ok(ls_checkpoint_open(path, &c));
    assert_int_equal(ls_checkpoint_count(c), 0);
    assert_null(ls_checkpoint_meta(c, "epoch"));
    ls_checkpoint_close(c);
    ls_checkpoint_close(NULL);
}

static void every_type_has_its_name_in_the_format(void **state)
{
    static const struct {
        const char *header;
        ls_dtype type;
        size_t bytes;
    } cases[] = {
        {"{" ENTRY("t", "F16", "1", "0,2") "}", LS_F16, 2},
        {"{" ENTRY("t", "BF16", "1", "0,2") "}", LS_BF16, 2},
        {"{" ENTRY("t", "F32", "1", "0,4") "}", LS_F32, 4},
        {"{" ENTRY("t", "F64", "1", "0,8") "}", LS_F64, 8},
        {"{" ENTRY("t", "I8", "1", "0,1") "}", LS_I8, 1},
        {"{" ENTRY("t", "U8", "1", "0,1") "}", LS_U8, 1},
        {"{" ENTRY("t", "I32", "1", "0,4") "}", LS_I32, 4},
        {"{" ENTRY("t", "I64", "1", "0,8") "}", LS_I64, 8},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        ls_checkpoint_entry e;
        ls_checkpoint *c;

        write_checkpoint(cases[i].header, cases[i].bytes);
        assert_ok(ls_checkpoint_open(path, &c));
        assert_ok(ls_checkpoint_entry_at(c, 0, &e));
        assert_int_equal(e.type, cases[i].type);
        ls_checkpoint_close(c);
    }
}

static void unsupported_types_fail_only_when_loaded(void **state)
{
    unsigned char raw[2] = {0, 0};
    const ls_named good = {.name = "u", .bytes = raw, .n_bytes = 2};
    const ls_named bad = {.name = "ma\x1bsk", .bytes = raw, .n_bytes = 2};
    ls_checkpoint_entry e;
    ls_checkpoint *c;

    LS_UNUSED(state);
    write_checkpoint(
        "{" ENTRY("ma\\u001bsk", "BOOL", "2", "0,2") "," ENTRY("u", "U8", "2", "2,4") "}", 4);
    assert_ok(ls_checkpoint_open(path, &c));
    assert_status(ls_checkpoint_entry_at(c, 0, &e), LS_EUNSUPPORTED);
    assert_last_error("type BOOL of ma?sk is not supported");
    assert_ok(ls_checkpoint_load(c, &good, 1, LS_LOAD_SUBSET));
    assert_memory_equal(raw, "\2\3", 2);
    assert_status(ls_checkpoint_load(c, &bad, 1, LS_LOAD_SUBSET), LS_EFORMAT);
    assert_last_error("ma?sk is (2) BOOL in the file and (2) uint8 here");
    ls_checkpoint_close(c);
}

static void a_file_cut_at_any_byte_is_refused(void **state)
{
    unsigned char *file;
    size_t bytes;

    LS_UNUSED(state);
    write_checkpoint(two_entries, 28);
    file = temp_read(path, &bytes);
    for (size_t n = 0; n < bytes; n++) {
        temp_write(path, file, n);
        assert_refused(path);
    }
    free(file);
}

/* Opens what is at `path` and loads all of it that is bytes: anything but a crash is right. */
static void open_and_load(void)
{
    ls_checkpoint *c;
    ls_status st = ls_checkpoint_open(path, &c);

    if (st != LS_OK) {
        assert_status(st, LS_EFORMAT);
        assert_last_error(path);
        return;
    }
    for (int i = 0; i < ls_checkpoint_count(c); i++) {
        ls_checkpoint_entry e;

        st = ls_checkpoint_entry_at(c, i, &e);
        if (st == LS_OK && e.type == LS_U8 && e.n_dims == 1) {
            ls_named item = {.name = e.name, .n_bytes = (size_t)e.dims[0]};

            item.bytes = calloc(item.n_bytes + 1, 1);
            assert_ok(ls_checkpoint_load(c, &item, 1, LS_LOAD_SUBSET));
            free(item.bytes);
        }
    }
    ls_checkpoint_close(c);
}

static void a_changed_bit_never_crashes(void **state)
{
    unsigned char *file;
    size_t bytes;

    LS_UNUSED(state);
    write_checkpoint(two_entries, 28);
    file = temp_read(path, &bytes);
    for (size_t bit = 0; bit < (bytes - 28) * 8; bit++) {
        file[bit / 8] ^= (unsigned char)(1U << bit % 8);
        temp_write(path, file, bytes);
        open_and_load();
        file[bit / 8] ^= (unsigned char)(1U << bit % 8);
    }
    free(file);
}

static void a_longer_file_is_refused(void **state)
{
    LS_UNUSED(state);
    write_checkpoint(two_entries, 29);
    assert_refused("the entries cover 28 bytes, the data has 29");
}

static void a_header_cannot_be_longer_than_the_file_or_the_limit(void **state)
{
    static const unsigned char lengths[][8] = {
        {3, 0, 0, 0, 0, 0, 0, 0},
        {0xFF, 0xFF, 0xFF, 0x7F, 0, 0, 0, 0},
        {0, 0, 0, 0, 0, 0, 0, 0x80},
        {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(lengths); i++) {
        unsigned char file[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};

        memcpy(file, lengths[i], 8);
        temp_write(path, file, sizeof(file));
        assert_refused("offset 0: header length ");
    }
    // A file of holes is long enough for it, but the format is not.
    temp_write(path, (unsigned char[]){1, 0xE1, 0xF5, 5, 0, 0, 0, 0, '{', '}'}, 10);
    assert_int_equal(truncate(path, 200000000), 0);
    assert_refused("header length 100000001 exceeds");
}

static void malformed_headers_are_refused(void **state)
{
    static const struct {
        const char *header;
        size_t n_data;
        const char *message;
    } cases[] = {
        {"", 0, "offset 8: the header does not begin with {"},
        {" {}", 0, "does not begin with {"},
        {"[]", 0, "does not begin with {"},
        {"{\"a\":", 0, "header at offset 8"},
        {"{} {}", 0, "header at offset 8"},
        {"{\"a\":7}", 0, "entry \"a\": it is not an object"},
        {"{\"a\":{}}", 0, "it has no dtype"},
        {"{\"a\":{\"dtype\":4}}", 0, "it has no dtype"},
        {"{" ENTRY("a", "F4", "2", "0,1") "}", 1, "unknown dtype F4"},
        {"{\"a\":{\"dtype\":\"U8\"}}", 0, "its shape"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":4}}", 0, "its shape"},
        {"{" ENTRY("a", "U8", "-1", "0,1") "}", 1, "its shape holds values that are not sizes"},
        {"{" ENTRY("a", "U8", "1.0", "0,1") "}", 1, "its shape holds values that are not sizes"},
        {"{" ENTRY("a", "U8", "\\\"1\\\"", "0,1") "}", 1, "header at offset 8"},
        {"{" ENTRY("a", "U8", "99999999999999999999", "0,1") "}", 1, "header at offset 8"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "its data_offsets"},
        {"{" ENTRY("a", "U8", "1", "0") "}", 1, "its data_offsets"},
        {"{" ENTRY("a", "U8", "1", "0,1,2") "}", 1, "its data_offsets"},
        {"{" ENTRY("a", "U8", "1", "1,0") "}", 1, "its data_offsets"},
        {"{" ENTRY("a", "U8", "1", "-1,0") "}", 1, "its data_offsets"},
        {"{" ENTRY("a", "U8", "2", "0,1") "}", 1, "1 bytes for (2) uint8"},
        {"{" ENTRY("a", "F32", "3,1", "0,8") "}", 8, "8 bytes for (3, 1) float32"},
        {"{" ENTRY("a", "F64", "4611686018427387904,4611686018427387904", "0,0") "}", 0,
         "0 bytes for (4611686018427387904"},
        {"{" ENTRY("a", "U8", "2305843009213693952", "0,2305843009213693952") "}", 1,
         "it ends at 2305843009213693952, the data has 1 bytes"},
        {"{" ENTRY("a", "U8", "4", "0,4") "," ENTRY("b", "U8", "4", "2,6") "}", 6,
         "entry \"b\": it begins at 2, inside the one that ends at 4"},
        {"{" ENTRY("b", "U8", "4", "6,10") "," ENTRY("a", "U8", "4", "0,4") "}", 10,
         "entry \"b\": it begins at 6, leaving a hole from 4"},
        {"{" ENTRY("a", "U8", "4", "1,5") "}", 5, "leaving a hole from 0"},
        {"{" ENTRY("a", "U8", "1", "0,1") "," ENTRY("a", "U8", "1", "0,1") "}", 1,
         "header at offset 8"},
        {"{\"__metadata__\":7}", 0, "__metadata__"},
        {"{\"__metadata__\":{\"epoch\":7}}", 0, "values that are not strings"},
        {"{\"\\u0000\":{}}", 0, "header at offset 8"},
        {"{\"\xFF\":{}}", 0, "header at offset 8"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        write_checkpoint(cases[i].header, cases[i].n_data);
        assert_refused(cases[i].message);
    }
}

static void empty_tensors_occupy_no_data(void **state)
{
    ls_checkpoint *c;

    LS_UNUSED(state);
    write_checkpoint(
        "{" ENTRY("a", "U8", "4", "0,4") "," ENTRY("none", "F32", "0,7", "4,4") "," ENTRY(
            "b", "U8", "1", "4,5") "," ENTRY("last", "F64", "3,0", "5,5") "}",
        5);
    assert_ok(ls_checkpoint_open(path, &c));
    ls_checkpoint_close(c);
    // Its size is 0 whatever the other sizes are.
    write_checkpoint("{" ENTRY("a", "F64", "4611686018427387904,4611686018427387904,0", "0,0") "}",
                     0);
    assert_ok(ls_checkpoint_open(path, &c));
    ls_checkpoint_close(c);
}

static void many_dimensions_are_refused(void **state)
{
    char header[512] = "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1],\"shape\":[1";

    LS_UNUSED(state);
    for (int i = 0; i < 64; i++)
        (void)strcat(header, ",1");
    (void)strcat(header, "]}}");
    write_checkpoint(header, 1);
    assert_refused("at most 64");
}

static void deep_headers_are_refused(void **state)
{
    char header[2048] = "{\"a\":";

    LS_UNUSED(state);
    memset(header + 5, '[', 1000);
    memset(header + 1005, ']', 1000);
    header[2005] = '}';
    write_checkpoint(header, 0);
    assert_refused("header at offset 8");
}

/* As torch.save() writes them: a zip archive, or a pickle of protocol 2. */
static void a_file_of_torch_save_gets_a_conversion_command(void **state)
{
    static const unsigned char zip[] = "PK\3\4\0\0\x08\x08\0\0 archive/data.pkl";
    static const unsigned char pickle[] = "\x80\2\x8a\nl\xfc\x9c\x46\xf9 \x6a\xa8P\x19.\x80\2M";
    char odd[TEMP_PATH_BYTES];
    ls_checkpoint *c;

    LS_UNUSED(state);
    temp_write(path, zip, sizeof(zip));
    assert_refused("is a file of torch.save()");
    assert_last_error("python3 '");
    assert_last_error("/lib/convert.py' '");
    temp_write(path, pickle, sizeof(pickle));
    assert_refused("is a file of torch.save()");
    temp_write(temp_path(&folder, "model best.pth.tar", odd), zip, sizeof(zip));
    assert_status(ls_checkpoint_open(odd, &c), LS_EFORMAT);
    assert_last_error("/model best.pth.tar' '");
    assert_last_error("/model best-weights.safetensors'");
}

static void paths_that_are_no_regular_files_are_refused(void **state)
{
    char other[TEMP_PATH_BYTES];
    ls_checkpoint *c;

    LS_UNUSED(state);
    assert_status(ls_checkpoint_open(temp_path(&folder, "nowhere", other), &c), LS_ENOTFOUND);
    assert_last_error(other);
    assert_status(ls_checkpoint_open(folder.path, &c), LS_EIO);
    assert_last_error("not a regular file");
    assert_int_equal(mkfifo(temp_path(&folder, "pipe", other), 0600), 0);
    assert_status(ls_checkpoint_open(other, &c), LS_EIO);
    assert_status(ls_checkpoint_open(NULL, &c), LS_EINVAL);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    ls_checkpoint *c = NULL;
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    write_checkpoint(two_entries, 28);
    do {
        ls_alloc_fail_at(++n);
        st = ls_checkpoint_open(path, &c);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
        assert_true(n < 1000);
    } while (st != LS_OK);
    assert_true(n > 5);
    ls_checkpoint_close(c);
}

static int set_up(void **state)
{
    LS_UNUSED(state);
    temp_folder_create(&folder);
    (void)temp_path(&folder, "model.safetensors", path);
    return 0;
}

static int clean_up(void **state)
{
    LS_UNUSED(state);
    temp_folder_remove(&folder);
    return 0;
}

static void metadata_may_be_null(void **state)
{
    ls_checkpoint *c;

    LS_UNUSED(state);
    write_checkpoint("{\"__metadata__\":null," ENTRY("raw", "U8", "4", "0,4") "}", 4);
    assert_ok(ls_checkpoint_open(path, &c));
    assert_null(ls_checkpoint_meta(c, "format"));
    assert_int_equal(ls_checkpoint_count(c), 1);
    ls_checkpoint_close(c);
}

/* The bytes of the data are 0, 1, 2, ... */
static void counters_of_other_types_are_converted(void **state)
{
    static const struct {
        const char *header;
        size_t n_data;
        int64_t value;
    } cases[] = {
        {"{" ENTRY("raw", "U8", "1", "0,1") "," ENTRY("n", "I32", "", "1,5") "}", 5, 0x04030201},
        {"{" ENTRY("raw", "U8", "1", "0,1") "," ENTRY("n", "I16", "", "1,3") "}", 3, 0x0201},
        {"{" ENTRY("raw", "U8", "3", "0,3") "," ENTRY("n", "U8", "", "3,4") "}", 4, 3},
        {"{" ENTRY("raw", "U8", "3", "0,3") "," ENTRY("n", "I8", "", "3,4") "}", 4, 3},
        {"{" ENTRY("raw", "U8", "1", "0,1") "," ENTRY("n", "U64", "", "1,9") "}", 9,
         0x0807060504030201},
        {"{" ENTRY("raw", "U8", "62", "0,62") "," ENTRY("n", "BF16", "", "62,64") "}", 64, 0},
    };
    ls_device *device;
    ls_named item = {.name = "n"};

    LS_UNUSED(state);
    assert_ok(ls_device_open(NULL, &device));
    assert_ok(ls_tensor_create(device, LS_I64, 0, NULL, &item.tensor));
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        int64_t value = -1;
        ls_checkpoint *c;

        write_checkpoint(cases[i].header, cases[i].n_data);
        assert_ok(ls_checkpoint_open(path, &c));
        assert_ok(ls_checkpoint_load(c, &item, 1, LS_LOAD_SUBSET));
        assert_ok(ls_tensor_read(item.tensor, &value, 1));
        assert_int_equal(value, cases[i].value);
        ls_checkpoint_close(c);
    }
    ls_tensor_destroy(item.tensor);
    assert_ok(ls_device_close(device));
}

static void what_a_download_leaves_instead_of_weights_is_named(void **state)
{
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    static const char *const texts[] = {"{\"error\":\"Invalid username or password.\"}",
                                        "Not Found"};
    static const char *const pages[] = {"<!DOCTYPE html><html></html>", "\xef\xbb\xbf\n <HTML>",
                                        "<html>"};

    LS_UNUSED(state);
    temp_write(path, lfs, strlen(lfs));
    assert_refused("is a pointer of Git LFS");
    for (size_t i = 0; i < LS_COUNT_OF(pages); i++) {
        temp_write(path, pages[i], strlen(pages[i]));
        assert_refused("is an HTML page");
    }
    for (size_t i = 0; i < LS_COUNT_OF(texts); i++) {
        temp_write(path, texts[i], strlen(texts[i]));
        assert_refused("is text, not a file of weights: it begins with ");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_and_metadata_are_returned),
        cmocka_unit_test(metadata_may_be_null),
        cmocka_unit_test(counters_of_other_types_are_converted),
        cmocka_unit_test(what_a_download_leaves_instead_of_weights_is_named),
        cmocka_unit_test(every_type_has_its_name_in_the_format),
        cmocka_unit_test(unsupported_types_fail_only_when_loaded),
        cmocka_unit_test(a_file_cut_at_any_byte_is_refused),
        cmocka_unit_test(a_changed_bit_never_crashes),
        cmocka_unit_test(a_longer_file_is_refused),
        cmocka_unit_test(a_header_cannot_be_longer_than_the_file_or_the_limit),
        cmocka_unit_test(malformed_headers_are_refused),
        cmocka_unit_test(empty_tensors_occupy_no_data),
        cmocka_unit_test(many_dimensions_are_refused),
        cmocka_unit_test(deep_headers_are_refused),
        cmocka_unit_test(a_file_of_torch_save_gets_a_conversion_command),
        cmocka_unit_test(paths_that_are_no_regular_files_are_refused),
        cmocka_unit_test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, set_up, clean_up);
}
