/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_folder.c - tests image folders: which files become which samples, and errors of folders
 * without images.
 */
#include "base/unit.h"

#include <lockstep/data.h>

#include "base/alloc.h"
#include "data/sample.h"
#include "data/temp_files.h"

#include <stdio.h>
#include <unistd.h>

static temp_folder folder;

static void make_file(const char *name)
{
    char path[TEMP_PATH_BYTES];

    temp_write(temp_path(&folder, name, path), "", 0);
}

static ls_status open_folder(const char *name, const ls_dataset *like, ls_dataset **out)
{
    char path[TEMP_PATH_BYTES];

    return ls_dataset_open_folder(temp_path(&folder, name, path), like, out);
}

/* The file of a sample: an empty one fails with its name. */
static void assert_file(const ls_dataset *d, size_t index, int64_t label, const char *name)
{
    image_reader r = {0};

    assert_int_equal(ls_dataset_label(d, index), label);
    assert_status(d->images->open(d, index, &r), LS_EFORMAT);
    assert_last_error(name);
    image_reader_free(&r);
}

static void files_are_found_as_by_torchvision(void **state)
{
    static const char *const folders[] = {"set",          "set/zebra",       "set/ant",
                                          "set/ant/deep", "set/ant/deep/er", "set/.hidden"};
    static const char *const files[] = {
        "set/readme.txt",        "set/zebra/2.png",   "set/zebra/10.png",   "set/ant/b.JPEG",
        "set/ant/a.jpg",         "set/ant/Z.PNG",     "set/ant/notes.txt",  "set/ant/deep/0.jpg",
        "set/ant/deep/er/0.jpg", "set/.hidden/x.jpg", "set/ant/.b.jpg.swp", "set/ant/x.gif",
        "set/zebra/noextension"};
    ls_dataset *d;

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(folders); i++)
        temp_folder_make(&folder, folders[i]);
    for (size_t i = 0; i < LS_COUNT_OF(files); i++)
        make_file(files[i]);
    assert_ok(open_folder("set", NULL, &d));
    assert_int_equal(ls_dataset_count(d), 7);
    assert_int_equal(ls_dataset_classes(d), 2);
    assert_string_equal(ls_dataset_class_name(d, 0), "ant");
    assert_string_equal(ls_dataset_class_name(d, 1), "zebra");
    assert_file(d, 0, 0, "set/ant/Z.PNG is empty");
    assert_file(d, 1, 0, "set/ant/a.jpg is empty");
    assert_file(d, 2, 0, "set/ant/b.JPEG is empty");
    assert_file(d, 3, 0, "set/ant/deep/0.jpg is empty");
    assert_file(d, 4, 0, "set/ant/deep/er/0.jpg is empty");
    assert_file(d, 5, 1, "set/zebra/10.png is empty");
    assert_file(d, 6, 1, "set/zebra/2.png is empty");
    assert_int_equal(d->n_others, 3);
    assert_int_equal(d->n_beside, 1);
    assert_memory_equal(ls_dataset_sample_dims(d), ((int64_t[]){3, 0, 0}), 24);
    ls_dataset_close(d);
}

static void assert_refused(const char *name, ls_status status, const char *message)
{
    ls_dataset *d;

    assert_status(open_folder(name, NULL, &d), status);
    assert_last_error(name);
    assert_last_error(message);
}

static void folders_without_images_are_refused(void **state)
{
    LS_UNUSED(state);
    assert_refused("nothing", LS_ENOTFOUND, "cannot open folder");
    temp_folder_make(&folder, "empty");
    assert_refused("empty", LS_EFORMAT, "has no class folders (0 files, 0 dangling links)");
    temp_folder_make(&folder, "flat");
    make_file("flat/a.jpg");
    make_file("flat/b.jpg");
    assert_refused("flat", LS_EFORMAT, "has no class folders (2 files, 0 dangling links)");
    temp_folder_make(&folder, "half");
    temp_folder_make(&folder, "half/full");
    make_file("half/full/a.jpg");
    temp_folder_make(&folder, "half/void");
    make_file("half/void/a.bmp");
    assert_refused("half", LS_EFORMAT, "half/void has no .jpg, .jpeg or .png file (1 other files)");
}

static void link_loops_are_refused(void **state)
{
    char path[TEMP_PATH_BYTES];

    LS_UNUSED(state);
    temp_folder_make(&folder, "set");
    temp_folder_make(&folder, "set/a");
    make_file("set/a/a.jpg");
    assert_int_equal(symlink("..", temp_path(&folder, "set/a/back", path)), 0);
    assert_refused("set", LS_EINVAL, "(a link loop?)");
}

/* Links are followed; a dangling link is a file that cannot be read. */
static void links_are_followed(void **state)
{
    char path[TEMP_PATH_BYTES];
    image_reader r = {0};
    ls_dataset *d;

    LS_UNUSED(state);
    temp_folder_make(&folder, "real");
    make_file("real/b.jpg");
    temp_folder_make(&folder, "set");
    assert_int_equal(symlink("../real", temp_path(&folder, "set/a", path)), 0);
    assert_int_equal(symlink("nowhere", temp_path(&folder, "real/c.jpg", path)), 0);
    assert_ok(open_folder("set", NULL, &d));
    assert_int_equal(ls_dataset_count(d), 2);
    assert_file(d, 0, 0, "set/a/b.jpg is empty");
    assert_status(d->images->open(d, 1, &r), LS_ENOTFOUND);
    assert_last_error("set/a/c.jpg: it is a link to nowhere, which does not exist");
    image_reader_free(&r);
    ls_dataset_close(d);
}

static void both_splits_must_have_the_same_classes(void **state)
{
    ls_dataset *train;
    ls_dataset *val;
    const ls_synthetic_options few = {.size = sizeof(few), .classes = 3};

    LS_UNUSED(state);
    for (int i = 0; i < 2; i++) {
        static const char *const names[2][4] = {{"t", "t/a", "t/b", "t/c"},
                                                {"v", "v/a", "v/b", "v/c"}};
        for (int k = 0; k < 4; k++) {
            char file[32];

            temp_folder_make(&folder, names[i][k]);
            (void)snprintf(file, sizeof(file), "%s/x.jpg", names[i][k]);
            make_file(file);
        }
    }
    assert_ok(open_folder("t", NULL, &train));
    assert_ok(open_folder("v", train, &val));
    ls_dataset_close(val);
    temp_folder_make(&folder, "v/bb");
    make_file("v/bb/x.jpg");
    assert_status(open_folder("v", train, &val), LS_EFORMAT);
    assert_last_error("has a class bb, which the other set does not have");
    ls_dataset_close(train);
    assert_ok(open_folder("v", NULL, &train));
    assert_status(open_folder("t", train, &val), LS_EFORMAT);
    assert_last_error("has no class bb, which the other set has");
    ls_dataset_close(train);
    assert_ok(ls_dataset_open_synthetic(&few, &train));
    assert_status(open_folder("t", train, &val), LS_EINVAL);
    ls_dataset_close(train);
}

static void many_files_keep_their_order(void **state)
{
    ls_dataset *d;

    LS_UNUSED(state);
    temp_folder_make(&folder, "set");
    temp_folder_make(&folder, "set/a");
    for (int i = 0; i < 300; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "set/a/%03d.png", i * 7 % 300);
        make_file(name);
    }
    assert_ok(open_folder("set", NULL, &d));
    assert_int_equal(ls_dataset_count(d), 300);
    for (size_t i = 0; i < 300; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "set/a/%03zu.png", i);
        assert_file(d, i, 0, name);
    }
    ls_dataset_close(d);
}

static void no_memory_is_an_error_at_every_allocation(void **state)
{
    uint64_t n = 0;
    ls_status st;

    LS_UNUSED(state);
    temp_folder_make(&folder, "set");
    temp_folder_make(&folder, "set/a");
    temp_folder_make(&folder, "set/a/deep");
    make_file("set/a/a.png");
    make_file("set/a/deep/a.png");
    do {
        ls_dataset *d = NULL;

        ls_alloc_fail_at(++n);
        st = open_folder("set", NULL, &d);
        ls_alloc_fail_at(0);
        if (st != LS_OK)
            assert_status(st, LS_ENOMEM);
        ls_dataset_close(d);
        assert_true(n < 200);
    } while (st != LS_OK);
    assert_true(n > 10);
}

static int make_folder(void **state)
{
    LS_UNUSED(state);
    temp_folder_create(&folder);
    return 0;
}

static int remove_folder(void **state)
{
    LS_UNUSED(state);
    temp_folder_remove(&folder);
    return 0;
}

#define test(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(files_are_found_as_by_torchvision),
        test(folders_without_images_are_refused),
        test(link_loops_are_refused),
        test(links_are_followed),
        test(both_splits_must_have_the_same_classes),
        test(many_files_keep_their_order),
        test(no_memory_is_an_error_at_every_allocation),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
