/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_null.c - makes every call of null_calls.py in a process of its own. A call that crashes,
 * does not end, is reported by a sanitizer or gives something else than it must fails the test,
 * which names all of them.
 */
#include "api/null_calls.h"
#include "api/values.h"
#include "base/unit.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AT_MOST_S = 120, WRONG_RESULT = 98 };

static char folder[] = "/tmp/ls-null-XXXXXX";
static const char no_error[] = "(no text)";

void forget_error(void)
{
    if (ls_train_refuse("%s", no_error) != LS_EINVAL)
        _exit(VALUES_FAILED);
}

int gives_status(ls_status got, ls_status wanted)
{
    const bool has_text = ls_last_error()[0] != '\0' && strcmp(ls_last_error(), no_error) != 0;

    if (got == wanted && (got == LS_OK || has_text))
        return 1;
    (void)fprintf(stderr, "status %d, not %d, with text: %s\n", (int)got, (int)wanted,
                  ls_last_error());
    return 0;
}

const int64_t twos[] = {2, 2};
const int64_t fours[] = {4, 2};
const int64_t eight[] = {8};
const int ones[] = {1};
const size_t counts[] = {4};
float eight_floats[8];
const ls_meta meta = {.key = "key", .value = "value"};
const ls_schedule schedule = {.base_lr = 1};
const ls_conv2d_params conv = {.padding = {1, 1}};
const ls_pool2d_params pool = {.kernel = {2, 2}};
const ls_nn_conv1d_options nn_conv1 = {.kernel = 1};
const ls_nn_conv2d_options nn_conv = {.kernel = {1, 1}};
const ls_nn_init_options nn_init = {.kind = LS_INIT_NORMAL};
const ls_group_options group = {.size = sizeof(group), .lr_factor = 0.5};
const ls_nn_conv_transpose1d_options nn_up1 = {.kernel = 2};
const ls_nn_conv_transpose2d_options nn_up = {.kernel = {2, 2}};
const ls_sgd_options sgd = {.size = sizeof(sgd), .lr = 0.1};
const ls_local_sgd_options local_sgd = {.size = sizeof(local_sgd), .every = 2};
const ls_adam_options adam = {.size = sizeof(adam), .lr = 0.1};
const ls_sampler_options sampling = {.size = sizeof(sampling), .count = 8};

const ls_loader_options *loading(void)
{
    static ls_loader_options opt = {.size = sizeof(opt), .batch_size = 4, .threads = -1};

    opt.device = some_device();
    opt.dataset = some_dataset();
    opt.sampler = some_sampler();
    return &opt;
}

const char *mnist_folder(void)
{
    (void)idx_file(0);
    (void)idx_file(1);
    return ".";
}

ls_dataset *folder_set(void)
{
    static ls_dataset *set;

    value_needs(ls_dataset_open_folder(image_folder(), NULL, &set), "folder");
    return set;
}

ls_tensor *other_tensor(void)
{
    static ls_tensor *tensor;

    value_needs(ls_tensor_create(some_device(), LS_F32, 2, fours, &tensor), "tensor");
    return tensor;
}

static void run_child(const null_call *c)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);

    for (size_t i = 0; i < LS_COUNT_OF(crashes); i++) // cmocka's handlers would go on with the test
        (void)signal(crashes[i], SIG_DFL);
    (void)alarm(AT_MOST_S);
    (void)dup2(nowhere, STDOUT_FILENO);
    if (chdir(folder) != 0)
        _exit(VALUES_FAILED);
    _exit(c->call() ? 0 : WRONG_RESULT);
}

static bool call_holds(const null_call *c)
{
    const pid_t pid = fork();
    int status = -1;

    if (pid == 0)
        run_child(c);
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (status == 0)
        return true;
    if (WIFSIGNALED(status))
        print_error("%s(%s = NULL) was ended by signal %d (%s)\n", c->function, c->parameter,
                    WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) == WRONG_RESULT)
        print_error("%s(%s = NULL) gave a wrong result\n", c->function, c->parameter);
    else
        print_error("%s(%s = NULL) ended with code %d\n", c->function, c->parameter,
                    WEXITSTATUS(status));
    return false;
}

static void every_function_takes_null_in_every_pointer(void **state)
{
    int n_failed = 0;

    LS_UNUSED(state);
    for (int i = 0; i < n_null_calls; i++)
        n_failed += !call_holds(&null_calls[i]);
    if (n_failed > 0)
        fail_msg("%d of %d calls failed", n_failed, n_null_calls);
}

static int make_folder(void **state)
{
    static const char *const identity[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCKSTEP_RANK",
                                           "LOCKSTEP_WORLD_SIZE"};

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(identity); i++)
        (void)unsetenv(identity[i]);
    return mkdtemp(folder) == NULL || setenv("LOCKSTEP_DEVICE", "cpu_ref", 1) != 0;
}

static int remove_folder(void **state)
{
    char command[64];

    LS_UNUSED(state);
    (void)snprintf(command, sizeof(command), "rm -rf %s", folder);
    return system(command) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_function_takes_null_in_every_pointer),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
