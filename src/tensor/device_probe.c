/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_probe.c - whether a device can be used, before a program starts ranks or waits for others.
 * A child process loads the module and asks it: GPU runtimes do not survive a fork, and the calling
 * process may start its ranks that way. The training programs call it when they read their flags,
 * and ask for the number of cards.
 */
#include "tensor/device.h"

#include "base/options.h"
#include "base/text.h"
#include "tensor/device_open.h"
#include "tensor/module.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the child sends. */
typedef struct probe_answer {
    ls_status status;
    int n_cards;
    char text[LS_ERROR_BYTES];
} probe_answer;

/* What the child does. *n: cards. */
typedef ls_status (*question)(const device_choice *choice, int *n);

static ls_status probe(const device_choice *choice, int *n)
{
    const device_ops *ops;
    void *module;

    *n = 0;
    LS_TRY(device_load(choice, &ops, &module));
    return ops->probe == NULL ? LS_OK : ops->probe(&choice->settings);
}

static ls_status count(const device_choice *choice, int *n)
{
    const device_ops *ops;
    void *module;

    *n = 0;
    LS_TRY(device_load(choice, &ops, &module));
    return ops->count == NULL ? LS_OK : ops->count(n);
}

/* The child: sends the answer, and exits without the parent's exit handlers. */
static void answer_and_exit(question ask, const device_choice *choice, int fd)
{
    probe_answer answer = {.n_cards = 0};

    answer.status = ask(choice, &answer.n_cards);
    (void)text_format(answer.text, sizeof(answer.text), "%s", ls_last_error());
    _exit(write(fd, &answer, sizeof(answer)) == sizeof(answer) ? 0 : 1);
}

/* The answer of child `pid` from `fd`. */
static ls_status receive(pid_t pid, int fd, const char *name, int *n)
{
    probe_answer answer;
    ssize_t got;
    int how = 0;

    do {
        got = read(fd, &answer, sizeof(answer));
    } while (got < 0 && errno == EINTR);
    while (waitpid(pid, &how, 0) < 0 && errno == EINTR)
        continue;
    *n = got == sizeof(answer) ? answer.n_cards : 0;
    if (got == sizeof(answer))
        return answer.status == LS_OK ? LS_OK : ls_fail(answer.status, "%s", answer.text);
    if (WIFSIGNALED(how))
        return ls_fail(LS_EUNSUPPORTED,
                       "device %s: its libraries fail with signal %d when they start", name,
                       WTERMSIG(how));
    return ls_fail(LS_EUNSUPPORTED, "device %s: its libraries end the process when they start",
                   name);
}

static ls_status ask_in_child(question ask, const device_choice *choice, int *n)
{
    int fds[2];
    ls_status st;
    pid_t pid;

    if (pipe2(fds, O_CLOEXEC) != 0)
        return ls_fail_errno("cannot make a pipe to check device %s", choice->name);
    pid = fork();
    if (pid == 0)
        answer_and_exit(ask, choice, fds[1]);
    (void)close(fds[1]);
    st = pid < 0 ? ls_fail_errno("cannot start a process to check device %s", choice->name)
                 : receive(pid, fds[0], choice->name, n);
    (void)close(fds[0]);
    return st;
}

ls_status device_check(const ls_device_options *options)
{
    device_choice choice;
    ls_status st;
    int n;

    LS_TRY(device_choose(options, &choice));
    if (device_is_cpu(&choice) || text_equal(choice.name, "auto"))
        return LS_OK;
    st = ask_in_child(probe, &choice, &n);
    return st == LS_OK ? LS_OK : device_fail_with_alternatives(st);
}

ls_status ls_device_count(const ls_device_options *opt, int *n)
{
    ls_device_options o;
    device_choice choice;
    bool is_auto;
    ls_status st;

    LS_TRY(LS_GIVEN(n));
    *n = 0;
    LS_TRY(ls_context(OPTIONS_COPY(ls_device_options, opt, &o), "device"));
    LS_TRY(device_choose(&o, &choice));
    is_auto = text_equal(choice.name, "auto");
    if (device_is_cpu(&choice))
        return LS_OK;
    if (is_auto)
        (void)text_format(choice.name, sizeof(choice.name), "cuda");
    st = ask_in_child(count, &choice, n);
    if (st == LS_EUNSUPPORTED && is_auto)
        return LS_OK;
    return st == LS_OK ? LS_OK : device_fail_with_alternatives(st);
}
