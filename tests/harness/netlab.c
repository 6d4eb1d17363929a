/* SPDX-License-Identifier: Apache-2.0 */
/*
 * netlab.c - starts and stops netlab.sh, and programs on its nodes. Every child is killed with this
 * process.
 */
#include "harness/netlab.h"

#include "base/text.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define ARGS_MAX 32

int netlab_up(netlab *lab, int n, const char *options)
{
    char command[512];
    FILE *output;
    int status;

    memset(lab, 0, sizeof(*lab));
    text_format(command, sizeof(command), "%s up %d --owner %d %s", LS_NETLAB_SH, n, (int)getpid(),
                options);
    output = popen(command, "r");
    if (output == NULL)
        return 1;
    if (fgets(lab->name, sizeof(lab->name), output) == NULL)
        lab->name[0] = 0;
    lab->name[strcspn(lab->name, "\n")] = 0;
    status = pclose(output);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

void netlab_down(netlab *lab)
{
    char command[256];

    if (lab->name[0] == 0)
        return;
    text_format(command, sizeof(command), "%s down %s", LS_NETLAB_SH, lab->name);
    if (system(command) != 0)
        fprintf(stderr, "the lab %s could not be taken away\n", lab->name);
    lab->name[0] = 0;
}

bool netlab_plug(const netlab *lab, int node, bool is_plugged)
{
    char command[256];

    text_format(command, sizeof(command), "LS_NETLAB=%s %s %s %d", lab->name, LS_NETLAB_SH,
                is_plugged ? "plug" : "unplug", node);
    return system(command) == 0;
}

static void become(const netlab *lab, int node, const char *const *argv)
{
    const char *all[ARGS_MAX] = {LS_NETLAB_SH, "exec"};
    char number[16];
    int n = 2;

    all[n++] = text_format(number, sizeof(number), "%d", node);
    while (*argv != NULL && n < ARGS_MAX - 1)
        all[n++] = *argv++;
    setenv("LS_NETLAB", lab->name, 1);
    execv(all[0], (char *const *)(void *)all);
    _exit(127);
}

pid_t netlab_start(const netlab *lab, int node, const char *const *argv, int in_fd, int out_fd)
{
    const pid_t starter = getpid();
    const pid_t pid = fork();

    if (pid != 0)
        return pid;
    // The setting survives exec, because no program in between changes the user.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != starter ||
        (in_fd >= 0 && dup2(in_fd, 0) < 0) || (out_fd >= 0 && dup2(out_fd, 1) < 0))
        _exit(127);
    become(lab, node, argv);
    return -1;
}

bool netlab_run(const netlab *lab, int node, const char *command)
{
    const char *const argv[] = {"sh", "-c", command, NULL};
    const pid_t pid = netlab_start(lab, node, argv, -1, -1);
    int status = 1;

    return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}
