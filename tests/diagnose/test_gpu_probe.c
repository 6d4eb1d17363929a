/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gpu_probe.c - listing and testing GPUs with libraries that work, fail, crash and hang; the
 * helper processes of child.h; and how CUDA reads its list of devices.
 */
#include "base/unit.h"

#include "base/clock.h"
#include "base/text.h"
#include "diagnose/child.h"
#include "diagnose/gpu/gpu_probe.h"
#include "diagnose/gpu/gpu_try.h"
#include "diagnose/gpu/nccl_try.h"
#include "diagnose/gpu/visible_devices.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_MS 20000

static ls_status ask(const char *how, int64_t limit_ms, gpu_list *out)
{
    assert_int_equal(setenv("FAKE_NVML", how, 1), 0);
    return gpu_probe(FAKE_NVML_LIBRARY, limit_ms, out);
}

static void gpus_are_listed(void **state)
{
    gpu_list list;

    LS_UNUSED(state);
    assert_ok(ask("0", LONG_MS, &list));
    assert_int_equal(list.n, 0);
    assert_ok(ask("2", LONG_MS, &list));
    assert_int_equal(list.n, 2);
    assert_true(list.gpus[0].is_usable);
    assert_string_equal(list.gpus[0].bus, "00000000:80:00.0");
    assert_string_equal(list.gpus[0].name, "NVIDIA ?H200");
    assert_string_equal(list.gpus[0].uuid, "GPU-8932f937");
    assert_false(list.gpus[1].is_usable);
    assert_string_equal(list.gpus[1].bus, "");
    assert_string_equal(list.gpus[1].name, "GPU is lost");
    assert_ok(ask("4000000000", LONG_MS, &list));
    assert_int_equal(list.n, GPU_MOST);
}

static void missing_or_failing_library_is_reported(void **state)
{
    gpu_list list;

    LS_UNUSED(state);
    assert_status(gpu_probe("libnothing-of-that-name.so.1", LONG_MS, &list), LS_ENOTFOUND);
    assert_last_error("libnothing-of-that-name.so.1");
    assert_status(gpu_probe("libm.so.6", LONG_MS, &list), LS_ESYSTEM);
    assert_last_error("unsupported version");
    assert_status(ask("fails", LONG_MS, &list), LS_ESYSTEM);
    assert_last_error("Driver Not Loaded");
    assert_int_equal(list.n, 0);
}

static void library_that_crashes_or_hangs_does_not_affect_the_caller(void **state)
{
    const int64_t since_ms = ls_now_ms();
    gpu_list list;

    LS_UNUSED(state);
    assert_status(ask("crashes", LONG_MS, &list), LS_ESYSTEM);
    assert_last_error("signal 6 (SIGABRT)");
    assert_status(ask("hangs", 100, &list), LS_ETIMEOUT);
    assert_last_error("no answer within 0.1 s");
    assert_true(ls_now_ms() - since_ms < LONG_MS);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

/* --- tests of GPUs --- */

static void add(gpu_list *list, const char *uuid)
{
    gpu_seen *gpu = &list->gpus[list->n++];

    gpu->is_usable = true;
    text_format(gpu->uuid, sizeof(gpu->uuid), "%s", uuid);
}

static void expect_trial(const gpu_trial *t, ls_status status, const char *why)
{
    if (t->status != status || strstr(t->why, why) == NULL)
        fail_msg("%d: %s", (int)t->status, t->why);
}

static void faulty_gpu_hides_nothing_of_the_others(void **state)
{
    static gpu_list list;
    static gpu_trials t;
    const int64_t since_ms = ls_now_ms();

    LS_UNUSED(state);
    add(&list, "GPU-hangs");
    add(&list, "GPU-good");
    add(&list, "GPU-crashes");
    add(&list, "GPU-lost");
    add(&list, "GPU-full");
    add(&list, "GPU-worn");
    add(&list, "");
    add(&list, "GPU-good");
    list.gpus[7].is_usable = false;
    add(&list, "GPU-old");
    add(&list, "GPU-faulty");
    add(&list, "GPU-idle");
    assert_ok(gpu_try(FAKE_CUDA_LIBRARY, 8000, &list, &t));
    assert_int_equal(t.n, 11);
    expect_trial(&t.gpus[0], LS_ETIMEOUT, "no answer within 8.0 s");
    expect_trial(&t.gpus[1], LS_OK, "");
    expect_trial(&t.gpus[2], LS_ESYSTEM, "SIGABRT");
    expect_trial(&t.gpus[3], LS_ESYSTEM, "starting CUDA fails: unknown error (CUDA error 999)");
    expect_trial(&t.gpus[4], LS_ESYSTEM, "allocating 16 MiB of its memory fails: out of memory");
    expect_trial(&t.gpus[5], LS_ESYSTEM, "after a write its memory has other values");
    expect_trial(&t.gpus[6], LS_ENOTFOUND, "not tested");
    expect_trial(&t.gpus[7], LS_ENOTFOUND, "not tested");
    expect_trial(&t.gpus[8], LS_ESYSTEM, "compiling a kernel fails");
    expect_trial(&t.gpus[9], LS_ESYSTEM, "running a kernel fails: unknown error (CUDA error 719)");
    expect_trial(&t.gpus[10], LS_ESYSTEM, "after a kernel its memory has other values");
    assert_true(ls_now_ms() - since_ms < LONG_MS);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
    assert_null(getenv("CUDA_VISIBLE_DEVICES"));
}

/* One trial with the fault `how`. */
static ls_status reduce_with(const char *how, nccl_trial *out)
{
    char gpus[32];
    ls_status st;

    text_format(gpus, sizeof(gpus), "GPU-%s", how);
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", gpus, 1), 0);
    st = nccl_try(FAKE_CUDA_LIBRARY, FAKE_NCCL_LIBRARY, strcmp(how, "stuck") == 0 ? 2000 : LONG_MS,
                  out);
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    return st;
}

static void nccl_reduces_over_all_gpus_or_its_warning_is_explained(void **state)
{
    nccl_trial t;

    LS_UNUSED(state);
    assert_ok(reduce_with("good", &t));
    assert_status(reduce_with("single", &t), LS_EUNSUPPORTED);
    assert_status(reduce_with("wrong", &t), LS_ESYSTEM);
    assert_non_null(strstr(t.why, "the all-reduce gives 2 on GPU 1 instead of 3"));
    assert_status(reduce_with("stuck", &t), LS_ETIMEOUT);
    assert_status(reduce_with("shm", &t), LS_ESYSTEM);
    assert_non_null(strstr(t.why, "creating a communicator fails: unhandled system error; NCCL: "
                                  "Error while creating shared memory segment /dev/shm"));
    assert_non_null(strstr(t.fix, "--shm-size"));
    assert_status(nccl_try(FAKE_CUDA_LIBRARY, "libnothing-of-that-name.so.1", LONG_MS, &t),
                  LS_ENOTFOUND);
    assert_null(getenv("NCCL_DEBUG_FILE"));
}

static void usual_errors_of_nccl_are_explained(void **state)
{
    static const char *const texts[][2] = {
        {"Bootstrap : no socket interface found", "unset NCCL_SOCKET_IFNAME"},
        {"Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 4000", "start one rank"},
        {"Error: failed to extend /dev/shm/nccl-a1b2c3 to 33030532 bytes", "--shm-size"},
        {"Call to posix_fallocate failed: No space left on device", "--shm-size"},
        {"CUDA driver version is insufficient for CUDA runtime version", "the driver is too old"},
        {"peer access is not supported between these two devices", "NCCL_P2P_DISABLE=1"},
        {"P2P is disabled between NVLINK connected GPUs 1 and 0", "NCCL_P2P_DISABLE=1"},
        {"Cuda failure 2 'out of memory'", "nvidia-smi"},
        {"connect returned Connection refused", "set NCCL_SOCKET_IFNAME"},
        {"an error of another kind", "NCCL_DEBUG=INFO"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(texts); i++)
        assert_non_null(strstr(nccl_fix(texts[i][0]), texts[i][1]));
}

static void no_gpu_is_tested_without_cuda(void **state)
{
    static gpu_list list;
    static gpu_trials t;

    LS_UNUSED(state);
    assert_ok(gpu_try("libnothing-of-that-name.so.1", LONG_MS, &list, &t));
    add(&list, "GPU-good");
    assert_status(gpu_try("libnothing-of-that-name.so.1", LONG_MS, &list, &t), LS_ENOTFOUND);
    assert_last_error("libnothing-of-that-name.so.1");
    assert_ok(gpu_try("libm.so.6", LONG_MS, &list, &t));
    expect_trial(&t.gpus[0], LS_ESYSTEM, "unsupported version");
}

/* --- programs --- */

static ls_status run(const char *script, int64_t limit_ms, char *out, size_t n)
{
    char *const argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c",
                          (char *)(uintptr_t)script, NULL};

    return child_run("it", argv, limit_ms, out, n);
}

static void output_of_a_program_is_read_until_the_limit(void **state)
{
    char *const missing[] = {(char *)(uintptr_t) "no-program-of-that-name", NULL};
    char out[8];

    LS_UNUSED(state);
    assert_ok(run("echo out; echo err >&2", LONG_MS, out, sizeof(out)));
    assert_string_equal(out, "out\n");
    // It ends some time after its output.
    assert_ok(run("echo out; exec >&- 2>&-; sleep 0.5", LONG_MS, out, sizeof(out)));
    assert_ok(run("seq 100000", LONG_MS, out, sizeof(out)));
    assert_string_equal(out, "1\n2\n3\n4");
    assert_status(run("echo out; exit 3", LONG_MS, out, sizeof(out)), LS_ENOTFOUND);
    assert_status(child_run("it", missing, LONG_MS, out, sizeof(out)), LS_ENOTFOUND);
    assert_status(run("sleep 1000 & sleep 1000", 100, out, sizeof(out)), LS_ETIMEOUT);
    assert_last_error("it: did not exit within 0.1 s");
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

/* --- child processes --- */

static ls_status answer_much(void *arg, void *answer)
{
    memset(answer, *(const char *)arg, 1000000);
    return LS_OK;
}

static ls_status end_silently(void *arg, void *answer)
{
    LS_UNUSED(arg);
    LS_UNUSED(answer);
    _Exit(3);
}

static void answers_may_be_long_or_missing(void **state)
{
    static char answer[1000000];
    char letter = 'z';

    LS_UNUSED(state);
    assert_ok(child_ask("it", LONG_MS, answer_much, &letter, answer, sizeof(answer)));
    assert_int_equal(answer[0], 'z');
    assert_int_equal(answer[sizeof(answer) - 1], 'z');
    assert_status(child_ask("it", LONG_MS, end_silently, NULL, answer, sizeof(answer)), LS_ESYSTEM);
    assert_last_error("it: the child process exited with code 3");
}

static volatile sig_atomic_t n_alarms;

static void count_alarm(int number)
{
    LS_UNUSED(number);
    n_alarms++;
}

static ls_status never_answer(void *arg, void *answer)
{
    LS_UNUSED(arg);
    LS_UNUSED(answer);
    (void)pause();
    return LS_OK;
}

/* The second signal, much later, would end a read that must not begin. */
static void signal_does_not_extend_the_limit(void **state)
{
    const struct itimerval twice = {.it_value = {.tv_usec = 50000}, .it_interval = {.tv_sec = 20}};
    const struct itimerval off = {.it_value = {0}};
    struct sigaction count = {.sa_handler = count_alarm};
    struct sigaction before;
    char answer[8];

    LS_UNUSED(state);
    assert_int_equal(sigaction(SIGALRM, &count, &before), 0);
    for (int is_program = 0; is_program < 2; is_program++) {
        n_alarms = 0;
        assert_int_equal(setitimer(ITIMER_REAL, &twice, NULL), 0);
        assert_status(is_program ? run("sleep 1000", 500, answer, sizeof(answer))
                                 : child_ask("it", 500, never_answer, NULL, answer, sizeof(answer)),
                      LS_ETIMEOUT);
        assert_int_equal(setitimer(ITIMER_REAL, &off, NULL), 0);
        assert_int_equal(n_alarms, 1);
    }
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
}

/* --- CUDA_VISIBLE_DEVICES --- */

static void device_list_ends_at_the_first_wrong_entry(void **state)
{
    static const struct {
        const char *text;
        int n_gpus;
        int n;
        const char *bad; /* NULL: none */
    } cases[] = {
        {"0", 2, 1, NULL},
        {"0,1", 2, 2, NULL},
        {"1,0", 2, 2, NULL},
        {" 1 , 0 ", 2, 2, NULL},
        {"4,5,6,7", 8, 4, NULL},
        {"4,5,6,7", -1, 4, NULL},
        {"0,9,1", 2, 1, "9"},
        {"", 2, 0, ""},
        {"-1", 2, 0, "-1"},
        {"0,-1,1", 2, 1, "-1"},
        {"none", 2, 0, "none"},
        {"0,", 2, 1, ""},
        {",0", 2, 0, ""},
        {"0,1,0", 2, 0, "0"},
        {"GPU-8932f937-d72c-4106-c12f-20bd9faed9f6,1", 2, 2, NULL},
        {"GPU-89,GPU-90", 2, 2, NULL},
        {"GPU-", 2, 0, "GPU-"},
        {"GPU-xyz", 2, 0, "GPU-xyz"},
        {"MIG-GPU-89/1/0", 2, 1, NULL},
        {"MIG-89abcdef", 2, 1, NULL},
        {"99999999999999999999", -1, 0, "99999999999999999999"},
        {"0;1", 2, 0, "0;1"},
        {"\033[2J", 2, 0, "?[2J"},
    };

    LS_UNUSED(state);
    for (size_t i = 0; i < LS_COUNT_OF(cases); i++) {
        visible_devices v;
        visible_devices_read(cases[i].text, cases[i].n_gpus, &v);
        if (v.n != cases[i].n || (v.why == NULL) != (cases[i].bad == NULL) ||
            (v.why != NULL && !text_equal(v.bad, cases[i].bad)))
            fail_msg("\"%s\": %d, \"%s\", %s", cases[i].text, v.n, v.bad,
                     v.why != NULL ? v.why : "no error");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_are_listed),
        cmocka_unit_test(missing_or_failing_library_is_reported),
        cmocka_unit_test(library_that_crashes_or_hangs_does_not_affect_the_caller),
        cmocka_unit_test(faulty_gpu_hides_nothing_of_the_others),
        cmocka_unit_test(nccl_reduces_over_all_gpus_or_its_warning_is_explained),
        cmocka_unit_test(usual_errors_of_nccl_are_explained),
        cmocka_unit_test(no_gpu_is_tested_without_cuda),
        cmocka_unit_test(output_of_a_program_is_read_until_the_limit),
        cmocka_unit_test(answers_may_be_long_or_missing),
        cmocka_unit_test(signal_does_not_extend_the_limit),
        cmocka_unit_test(device_list_ends_at_the_first_wrong_entry),
    };

    return cmocka_run_group_tests_name("gpu probe", tests, NULL, NULL);
}
