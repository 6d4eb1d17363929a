/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_no_codecs.c - tests that zlib, libjpeg and libspng are needed only for files of their kind.
 * The program does not link them and runs itself again where they cannot be loaded.
 */
#include "base/unit.h"

#include <lockstep/data.h>

#include "data/images/image.h"
#include "data/temp_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the process without codecs: opening `path` must name the missing `package`. */
static int open_without(const char *path, const char *package)
{
    image_reader r = {0};
    ls_dataset *d;
    const ls_status st = strstr(path, ".gz") != NULL ? ls_dataset_open_idx(path, path, &d)
                                                     : image_open_file(&r, path);

    (void)fprintf(stderr, "%s\n", ls_last_error());
    image_reader_free(&r);
    return st == LS_EUNSUPPORTED && strstr(ls_last_error(), package) != NULL &&
                   strstr(ls_last_error(), path) != NULL
               ? 0
               : 1;
}

/* A broken library of that name is found first and cannot be loaded. */
static void assert_refused_without(const char *library, const char *package, const char *file,
                                   const void *begin, size_t n)
{
    temp_folder folder;
    char broken[TEMP_PATH_BYTES];
    char path[TEMP_PATH_BYTES];
    int status;
    pid_t pid;

    temp_folder_create(&folder);
    temp_write(temp_path(&folder, library, broken), "no library", 10);
    temp_write(temp_path(&folder, file, path), begin, n);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)setenv("LD_LIBRARY_PATH", folder.path, 1);
        (void)execl("/proc/self/exe", "test_data_no_codecs", path, package, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    temp_folder_remove(&folder);
}

static void a_missing_zlib_is_reported(void **state)
{
    LS_UNUSED(state);
    assert_refused_without("libz.so.1", "zlib1g", "images.gz", "\x1F\x8B", 2);
}

static void a_missing_libjpeg_is_reported(void **state)
{
    LS_UNUSED(state);
    assert_refused_without("libjpeg.so.62", "libjpeg62-turbo", "a.png", "\xFF\xD8\xFF\xE0", 4);
}

static void a_missing_libspng_is_reported(void **state)
{
    LS_UNUSED(state);
    assert_refused_without("libspng.so.0", "libspng0", "a.jpg", "\x89PNG\r\n\x1A\n", 8);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_zlib_is_reported),
        cmocka_unit_test(a_missing_libjpeg_is_reported),
        cmocka_unit_test(a_missing_libspng_is_reported),
    };

    if (argc == 3)
        return open_without(argv[1], argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
