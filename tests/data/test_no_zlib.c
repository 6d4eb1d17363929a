/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_no_zlib.c - zlib is only needed by who opens a compressed file. This program does not link it,
 * and runs itself again where the library cannot be loaded.
 */
#include "base/unit.h"

#include <lockstep/data.h>

#include "data/temp_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int open_without_zlib(const char *images)
{
    ls_dataset *d;
    const ls_status st = ls_dataset_open_idx(images, images, &d);

    (void)fprintf(stderr, "%s\n", ls_last_error());
    return st == LS_EUNSUPPORTED && strstr(ls_last_error(), "zlib1g") != NULL ? 0 : 1;
}

static void a_missing_zlib_is_told(void **state)
{
    temp_folder folder;
    char library[TEMP_PATH_BYTES];
    char images[TEMP_PATH_BYTES];
    int status;
    pid_t pid;

    LS_UNUSED(state);
    temp_folder_create(&folder);
    // A broken library of that name, found first, is as good as none.
    temp_write(temp_path(&folder, "libz.so.1", library), "no library", 10);
    temp_write(temp_path(&folder, "images.gz", images), "\x1F\x8B", 2);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)setenv("LD_LIBRARY_PATH", folder.path, 1);
        (void)execl("/proc/self/exe", "test_data_no_zlib", images, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    temp_folder_remove(&folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_zlib_is_told),
    };

    if (argc == 2)
        return open_without_zlib(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
