/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_library.c - libraries are found in the folders of Python's packages, in order. An empty
 * library with the SONAME libfake.so.9 is installed in several of them.
 */
#include "base/unit.h"

#include "base/file.h"
#include "base/library.h"
#include "base/module.h"
#include "base/text.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define SONAME "libfake.so.9"
#define ROOT   FAKE_FOLDER "/library_root"

static int remove_root(void **state)
{
    LS_UNUSED(state);
    return system("/bin/rm -rf " ROOT);
}

static void install_as(const char *folder, const char *name)
{
    char command[3 * PATH_MAX];

    (void)text_format(command, sizeof(command),
                      "mkdir -p %s && cp " FAKE_FOLDER "/" SONAME " %s/%s", folder, folder, name);
    assert_int_equal(system(command), 0);
}

static void install(const char *folder)
{
    install_as(folder, SONAME);
}

static void set_variables(void)
{
    (void)setenv("HOME", ROOT "/home", 1);
    (void)setenv("PATH", "/nothing:" ROOT "/conda/bin:" ROOT "/usr/bin", 1);
    (void)setenv("VIRTUAL_ENV", ROOT "/venv", 1);
    (void)setenv("PYTHONPATH", ":relative:/nothing:" ROOT "/target", 1);
    (void)setenv("LOCKSTEP_CUDA_LIBRARIES", "/nothing:" ROOT "/named", 1);
}

/* In a new process, since a library that is loaded stays. */
static bool is_loaded_from(const char *folder)
{
    char wanted[PATH_MAX];
    char found[PATH_MAX];
    struct link_map *loaded;
    void *library;

    set_variables();
    library_prefer(SONAME);
    library = dlopen(SONAME, RTLD_NOW);
    if (library == NULL || folder == NULL)
        return library == NULL && folder == NULL;
    (void)text_format(wanted, sizeof(wanted), "%s/" SONAME, folder);
    return dlinfo(library, RTLD_DI_LINKMAP, &loaded) == 0 &&
           realpath(loaded->l_name, found) != NULL && strcmp(found, wanted) == 0;
}

/* `folder` NULL: the library is not found. */
static void expect(const char *folder)
{
    const pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(!is_loaded_from(folder));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void folders_are_searched_in_order(void **state)
{
    // The last one first: each is preferred to those before.
    static const char *const folders[] = {
        ROOT "/home/.local/lib/python3.12/site-packages/nvidia/fake/lib",
        ROOT "/usr/local/lib/python3.11/dist-packages/nvidia/fake/lib",
        ROOT "/conda/lib64/python3.13/site-packages/nvidia/cu13/lib",
        ROOT "/venv/lib/python3.12/site-packages/nvidia/fake/lib",
        ROOT "/target/nvidia/fake/lib",
        ROOT "/named",
    };

    LS_UNUSED(state);
    install(ROOT "/conda/bin"); // the places of the Pythons, without packages
    install(ROOT "/usr/bin");
    expect(NULL);
    for (size_t i = 0; i < LS_COUNT_OF(folders); i++) {
        install(folders[i]);
        expect(folders[i]);
    }
}

static void a_file_that_cannot_be_loaded_is_passed_over(void **state)
{
    LS_UNUSED(state);
    assert_ok(file_replace(ROOT "/named/" SONAME, "no library", 10));
    expect(ROOT "/target/nvidia/fake/lib");
}

static void a_library_that_is_loaded_already_stays(void **state)
{
    void *before = dlopen(ROOT "/usr/bin/" SONAME, RTLD_NOW);

    LS_UNUSED(state);
    assert_non_null(before);
    expect(ROOT "/usr/bin");
    (void)dlclose(before);
}

static bool is_loaded(const char *path)
{
    return dlopen(path, RTLD_NOW | RTLD_NOLOAD) != NULL;
}

/* The modules are copies of the library, too. */
static void modules_get_their_libraries(void **state)
{
    void *module;

    LS_UNUSED(state);
    install_as(ROOT "/modules", "liblockstep_cuda.so");
    install_as(ROOT "/modules", "liblockstep_nccl.so");
    install_as(ROOT "/named", "libcublasLt.so.13");
    install_as(ROOT "/named", "libcudnn.so.9");
    install_as(ROOT "/named", "libnccl.so.2");
    set_variables();
    (void)setenv("LOCKSTEP_MODULE_DIR", ROOT "/modules", 1);
    assert_ok(module_open("nccl", &module));
    assert_true(is_loaded(ROOT "/named/libnccl.so.2"));
    assert_false(is_loaded(ROOT "/named/libcudnn.so.9"));
    assert_ok(module_open("cuda", &module));
    assert_true(is_loaded(ROOT "/named/libcudnn.so.9"));
    assert_true(is_loaded(ROOT "/named/libcublasLt.so.13"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_are_searched_in_order),
        cmocka_unit_test(a_file_that_cannot_be_loaded_is_passed_over),
        cmocka_unit_test(a_library_that_is_loaded_already_stays),
        cmocka_unit_test(modules_get_their_libraries),
    };

    return cmocka_run_group_tests(tests, remove_root, remove_root);
}
