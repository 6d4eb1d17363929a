/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refuse_calls.c - refuse_calls ERROR NAMES PROGRAM [ARGUMENTS]: runs a program for which the
 * kernel refuses these system calls (separated by commas) with this error (a number), as containers
 * do.
 * Ends with 77 where filters cannot be set.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
    const char *name;
    uint32_t number;
} calls[] = {
    {"memfd_create", SYS_memfd_create},
    {"pidfd_open", SYS_pidfd_open},
    {"pidfd_send_signal", SYS_pidfd_send_signal},
    {"process_vm_readv", SYS_process_vm_readv},
    {"process_vm_writev", SYS_process_vm_writev},
    {"ioprio_set", SYS_ioprio_set},
    {"close_range", SYS_close_range},
    {"clone3", SYS_clone3},
    {"setpriority", SYS_setpriority},
    {"sched_setaffinity", SYS_sched_setaffinity},
    {"unshare", SYS_unshare},
    {"mbind", SYS_mbind},
    {"io_uring_setup", SYS_io_uring_setup},
};

#define CALLS_MAX (sizeof(calls) / sizeof(calls[0]))

static int fill(struct sock_filter *code, char *names, uint32_t error)
{
    int n = 0;

    code[n++] =
        (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (char *save = NULL, *name = strtok_r(names, ",", &save); name != NULL;
         name = strtok_r(NULL, ",", &save)) {
        size_t i = 0;

        while (i < CALLS_MAX && strcmp(calls[i].name, name) != 0)
            i++;
        if (i == CALLS_MAX) {
            fprintf(stderr, "unknown call: %s\n", name);
            exit(2);
        }
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K,
                                                 SECCOMP_RET_ERRNO | (error & SECCOMP_RET_DATA));
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    return n;
}

int main(int argc, char **argv)
{
    struct sock_filter code[2 + 2 * CALLS_MAX];
    struct sock_fprog program = {.filter = code};

    if (argc < 4)
        return 2;
    program.len = (unsigned short)fill(code, argv[2], (uint32_t)strtoul(argv[1], NULL, 10));
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return 77;
    execvp(argv[3], argv + 3);
    fprintf(stderr, "%s: %s\n", argv[3], strerror(errno));
    return 127;
}
