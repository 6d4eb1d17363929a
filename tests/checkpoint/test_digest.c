/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_digest.c - tests the digests of saved files: what a reader finds when bytes have changed,
 * and files whose digests are wrong, incomplete or of other tensors.
 */
#include "base/unit.h"

#include <lockstep/checkpoint.h>

#include "checkpoint/digest.h"
#include "data/temp_files.h"

#include <stdlib.h>

static temp_folder folder;
static char path[TEMP_PATH_BYTES];

static unsigned char a_bytes[] = {0, 1, 2, 3, 4, 5, 6, 7};
static unsigned char b_bytes[] = {8, 9};
static const ls_named saved[] = {{.name = "a", .bytes = a_bytes, .n_bytes = sizeof(a_bytes)},
                                 {.name = "b", .bytes = b_bytes, .n_bytes = sizeof(b_bytes)}};
static const ls_meta note = {"note", "x"};

enum { N_SAVED = LS_COUNT_OF(saved) };

/* Of Python's hashlib.blake2b(..., digest_size=32): of a_bytes, b_bytes, and
 * "a\0U8\08\0b\0U8\02\0" and the pairs of the metadata. */
#define DIGEST_A "77065d25b622a8251094d869edf6b4e9ba0708a8db1f239cb68e4eeb45851621"
#define DIGEST_B "a2e6c47307d21cedf940ac25234cc93b3fe74c3ab5c0fc684c70638ee4e206e9"
#define DIGEST_H "17acfd1340413385d6d84183a0646efdde1dc573c51c5645b0dec67f61d2561a"

static void save(void)
{
    assert_ok(ls_checkpoint_save(path, saved, N_SAVED, &note, 1));
}

/* Replaces a text of the header in the saved file, and nothing else. */
static void edit(const char *from, const char *to)
{
    size_t bytes;
    unsigned char *file = temp_read(path, &bytes);
    const size_t length = file[0] + 256U * file[1];
    const unsigned char *at = memmem(file, 8 + length, from, strlen(from));
    unsigned char *edited = calloc(bytes + strlen(to), 1);
    size_t before;

    assert_non_null(at);
    assert_non_null(edited);
    before = (size_t)(at - file);
    memcpy(edited, file, before);
    memcpy(edited + before, to, strlen(to));
    memcpy(edited + before + strlen(to), at + strlen(from), bytes - before - strlen(from));
    edited[0] = (unsigned char)(length + strlen(to) - strlen(from));
    edited[1] = (unsigned char)((length + strlen(to) - strlen(from)) / 256);
    temp_write(path, edited, bytes + strlen(to) - strlen(from));
    free(edited);
    free(file);
}

static ls_status load(ls_status (*open)(const char *, ls_checkpoint **), unsigned char *a,
                      unsigned char *b)
{
    const ls_named items[] = {{.name = "a", .bytes = a, .n_bytes = sizeof(a_bytes)},
                              {.name = "b", .bytes = b, .n_bytes = sizeof(b_bytes)}};
    ls_checkpoint *c;
    ls_status st = open(path, &c);

    if (st != LS_OK)
        return st;
    st = ls_checkpoint_load(c, items, N_SAVED, LS_LOAD_STRICT);
    ls_checkpoint_close(c);
    return st;
}

static ls_status verify(int *has_digests)
{
    ls_checkpoint *c;
    ls_status st;

    assert_ok(ls_checkpoint_open(path, &c));
    st = ls_checkpoint_verify(c, has_digests);
    ls_checkpoint_close(c);
    return st;
}

/* Files must stay readable: the values may never change. */
static void digests_are_those_of_other_implementations(void **state)
{
    ls_checkpoint *c;
    int has_digests = 0;

    LS_UNUSED(state);
    save();
    assert_ok(ls_checkpoint_open(path, &c));
    assert_string_equal(ls_checkpoint_meta(c, "lockstep.blake2b:a"), DIGEST_A);
    assert_string_equal(ls_checkpoint_meta(c, "lockstep.blake2b:b"), DIGEST_B);
    assert_string_equal(ls_checkpoint_meta(c, "lockstep.blake2b"), DIGEST_H);
    assert_string_equal(ls_checkpoint_meta(c, "note"), "x");
    assert_ok(ls_checkpoint_verify(c, &has_digests));
    assert_int_equal(has_digests, 1);
    ls_checkpoint_close(c);
}

/* In the header, its padding and the data. */
static void any_changed_bit_is_found_and_a_tensor_is_named(void **state)
{
    const size_t n_data = sizeof(a_bytes) + sizeof(b_bytes);
    unsigned char a[sizeof(a_bytes)];
    unsigned char b[sizeof(b_bytes)];
    unsigned char *file;
    size_t bytes;

    LS_UNUSED(state);
    save();
    file = temp_read(path, &bytes);
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        const size_t at = bit / 8;
        int has_digests;

        memset(a, 0x55, sizeof(a));
        file[at] ^= (unsigned char)(1U << bit % 8);
        temp_write(path, file, bytes);
        assert_status(load(ls_checkpoint_open, a, b), LS_EFORMAT);
        assert_last_error(path);
        assert_int_equal(a[0], 0x55); // nothing is changed
        if (at >= bytes - n_data) {
            assert_last_error(at < bytes - sizeof(b_bytes) ? "the data of a (8) uint8"
                                                           : "the data of b (2) uint8");
            assert_last_error("--no-verify");
            assert_status(verify(&has_digests), LS_EFORMAT);
            assert_last_error("1 of 2 tensors do not match");
            assert_ok(load(ls_checkpoint_open_unverified, a, b));
        }
        file[at] ^= (unsigned char)(1U << bit % 8);
    }
    free(file);
}

static void verification_names_all_damaged_tensors(void **state)
{
    unsigned char *file;
    size_t bytes;
    int has_digests;

    LS_UNUSED(state);
    save();
    file = temp_read(path, &bytes);
    file[bytes - 1] ^= 1;
    file[bytes - sizeof(b_bytes) - 1] ^= 1;
    temp_write(path, file, bytes);
    free(file);
    assert_status(verify(&has_digests), LS_EFORMAT);
    assert_last_error("2 of 2 tensors do not match their digests");
    assert_last_error(": a (8) uint8; b (2) uint8");
}

static void wrong_or_incomplete_digests_are_refused(void **state)
{
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"blake2b:a\"", "blake2b:c\"", "c has a digest and is not in the file"},
        {"\"lockstep.blake2b:a\":\"" DIGEST_A "\",", "", "a has no digest, and other tensors have"},
        {DIGEST_A, "", "lockstep.blake2b:a is not 64 hexadecimal digits in lower case"},
        {DIGEST_A "\",", "0\",", "lockstep.blake2b:a is not 64 hexadecimal digits"},
        {DIGEST_A "\",", DIGEST_A "0\",", "lockstep.blake2b:a is not 64 hexadecimal digits"},
        {"blake2b:b\":\"", "blake2b:b\":\"\\t", "lockstep.blake2b:b is not 64 hexadecimal digits"},
        {DIGEST_B, "G123456789012345678901234567890123456789012345678901234567890123",
         "lockstep.blake2b:b is not 64 hexadecimal digits"},
        {DIGEST_B, "A123456789012345678901234567890123456789012345678901234567890123",
         "lockstep.blake2b:b is not 64 hexadecimal digits"},
        {DIGEST_B, "a123456789012345678901234567890123456789012345678901234567890123",
         "the header (names, types, shapes, metadata) does not match its digest"},
        {DIGEST_H, "a123456789012345678901234567890123456789012345678901234567890123",
         "does not match its digest"},
        {",\"lockstep.blake2b\":\"" DIGEST_H "\"", "", "the header has no digest, and tensors"},
        {DIGEST_H, "none", "lockstep.blake2b is not 64 hexadecimal digits"},
        {"\"note\":\"x\"", "\"note\":\"y\"", "does not match its digest"},
        {"\"note\":\"x\",", "", "does not match its digest"},
        {"\"shape\":[2]", "\"shape\":[1,2]", "does not match its digest"},
        {"\"a\":{\"dtype\":\"U8\"", "\"a\":{\"dtype\":\"I8\"", "does not match its digest"},
    };
    unsigned char a[sizeof(a_bytes)];
    unsigned char b[sizeof(b_bytes)];

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        ls_checkpoint *c;

        save();
        edit(cases[i].from, cases[i].to);
        assert_status(load(ls_checkpoint_open, a, b), LS_EFORMAT);
        assert_last_error(path);
        assert_last_error(cases[i].message);
        assert_last_error("--no-verify");
        assert_ok(ls_checkpoint_open_unverified(path, &c));
        ls_checkpoint_close(c);
    }
}

static void a_header_digest_alone_is_refused_where_there_are_tensors(void **state)
{
    ls_checkpoint *c;

    LS_UNUSED(state);
    save();
    edit("\"lockstep.blake2b:a\":\"" DIGEST_A "\",\"lockstep.blake2b:b\":\"" DIGEST_B "\",", "");
    assert_status(ls_checkpoint_open(path, &c), LS_EFORMAT);
    assert_last_error("the header has a digest, and no tensor has one");
}

/* As earlier versions and other programs write them. */
static void a_file_without_digests_loads(void **state)
{
    unsigned char a[sizeof(a_bytes)];
    unsigned char b[sizeof(b_bytes)];
    int has_digests = 1;

    LS_UNUSED(state);
    save();
    edit(",\"lockstep.blake2b:a\":\"" DIGEST_A "\",\"lockstep.blake2b:b\":\"" DIGEST_B
         "\",\"lockstep.blake2b\":\"" DIGEST_H "\"",
         "");
    assert_ok(load(ls_checkpoint_open, a, b));
    assert_memory_equal(a, a_bytes, sizeof(a));
    assert_ok(verify(&has_digests));
    assert_int_equal(has_digests, 0);
}

/* Another program may write the same content in another order: that is no damage. */
static void the_order_of_the_header_does_not_matter(void **state)
{
    unsigned char a[sizeof(a_bytes)];
    unsigned char b[sizeof(b_bytes)];

    LS_UNUSED(state);
    save();
    edit("{\"note\":\"x\",", "{ ");
    edit(DIGEST_H "\"", DIGEST_H "\", \"note\": \"\\u0078\"");
    assert_ok(load(ls_checkpoint_open, a, b));
}

static void a_file_without_tensors_has_the_digest_of_its_header(void **state)
{
    ls_checkpoint *c;
    int has_digests = 0;

    LS_UNUSED(state);
    assert_ok(ls_checkpoint_save(path, NULL, 0, &note, 1));
    assert_ok(verify(&has_digests));
    assert_int_equal(has_digests, 1);
    edit("\"note\":\"x\"", "\"note\":\"y\"");
    assert_status(ls_checkpoint_open(path, &c), LS_EFORMAT);
}

static void keys_of_digests_are_reserved(void **state)
{
    static const char *const keys[] = {"lockstep.blake2b", "lockstep.blake2b:z"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(keys); i++) {
        assert_status(ls_checkpoint_save(path, saved, N_SAVED, &(ls_meta){keys[i], "0"}, 1),
                      LS_EINVAL);
        assert_last_error("is reserved for digests");
    }
}

/* Larger than three of the pieces in which a file is read. */
static void digests_of_large_tensors_are_of_all_their_bytes(void **state)
{
    const size_t n = (13U << 20) + 1;
    unsigned char *data = malloc(n);
    const ls_named item = {.name = "large", .bytes = data, .n_bytes = n};
    char digits[DIGEST_DIGITS + 1];
    unsigned char *file;
    size_t bytes;
    int has_digests;
    ls_checkpoint *c;
    digest d;

    LS_UNUSED(state);
    assert_non_null(data);
    for (size_t i = 0; i < n; i++)
        data[i] = (unsigned char)(i % 251);
    digest_begin(&d);
    digest_add(&d, data, n);
    digest_end(&d, digits);
    assert_ok(ls_checkpoint_save(path, &item, 1, NULL, 0));
    assert_ok(ls_checkpoint_open(path, &c));
    assert_string_equal(ls_checkpoint_meta(c, "lockstep.blake2b:large"), digits);
    memset(data, 0, n);
    assert_ok(ls_checkpoint_load(c, &item, 1, LS_LOAD_STRICT));
    assert_int_equal(data[n - 1], (n - 1) % 251);
    ls_checkpoint_close(c);
    file = temp_read(path, &bytes);
    for (size_t back = 1; back < n; back += (4U << 20)) {
        file[bytes - back] ^= 0x80;
        temp_write(path, file, bytes);
        assert_status(verify(&has_digests), LS_EFORMAT);
        file[bytes - back] ^= 0x80;
    }
    free(file);
    free(data);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_those_of_other_implementations),
        cmocka_unit_test(any_changed_bit_is_found_and_a_tensor_is_named),
        cmocka_unit_test(verification_names_all_damaged_tensors),
        cmocka_unit_test(wrong_or_incomplete_digests_are_refused),
        cmocka_unit_test(a_header_digest_alone_is_refused_where_there_are_tensors),
        cmocka_unit_test(a_file_without_digests_loads),
        cmocka_unit_test(the_order_of_the_header_does_not_matter),
        cmocka_unit_test(a_file_without_tensors_has_the_digest_of_its_header),
        cmocka_unit_test(keys_of_digests_are_reserved),
        cmocka_unit_test(digests_of_large_tensors_are_of_all_their_bytes),
    };

    return cmocka_run_group_tests(tests, set_up, clean_up);
}
