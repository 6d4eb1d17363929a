/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_nccl.c - NCCL for two ranks in one process whose memory is host memory, with faults: the
 * part of CUDA_VISIBLE_DEVICES behind the last "-" names the fault. Loaded by test_gpu_probe.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

SHOWN int ncclCommInitAll(void **comms, int n, const int *devices);
SHOWN int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm,
                        void *stream);
SHOWN int ncclGroupStart(void);
SHOWN int ncclGroupEnd(void);
SHOWN const char *ncclGetErrorString(int code);

static char comm[2];
static unsigned *words[2];
static size_t n_words;
static int n_calls = -1; /* since ncclGroupStart(); -1: outside of a group */

static int is(const char *how)
{
    const char *gpu = getenv("CUDA_VISIBLE_DEVICES");
    const char *dash = gpu != NULL ? strrchr(gpu, '-') : NULL;

    return dash != NULL && strcmp(dash + 1, how) == 0;
}

/* Writes a line of NCCL's log to NCCL_DEBUG_FILE. */
static void warn(const char *text)
{
    const char *path = getenv("NCCL_DEBUG_FILE");
    FILE *log = path != NULL ? fopen(path, "w") : NULL;

    if (log == NULL)
        return;
    fprintf(log, "host:1:1 [0] NCCL INFO starting\nhost:1:1 [0] misc.cc:1 NCCL WARN %s\n", text);
    fclose(log);
}

int ncclCommInitAll(void **comms, int n, const int *devices)
{
    if (is("shm"))
        warn("Error while creating shared memory segment /dev/shm/nccl-1 (size 9)");
    if (is("shm"))
        return 2;
    for (int i = 0; i < n; i++)
        comms[i] = &comm[i];
    return n == 2 && devices[0] == 0 && devices[1] == 1 ? 0 : 4;
}

int ncclGroupStart(void)
{
    n_calls = 0;
    return 0;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *which,
                  void *stream)
{
    if (n_calls < 0 || n_calls > 1 || from != to || type != 2 || op != 0 ||
        which != &comm[n_calls] || stream == NULL)
        return 4;
    words[n_calls++] = to;
    n_words = count;
    return 0;
}

int ncclGroupEnd(void)
{
    if (is("stuck"))
        for (;;)
            (void)pause();
    if (n_calls != 2)
        return 5;
    for (size_t i = 0; i < n_words; i++)
        words[0][i] = words[1][i] = words[0][i] + words[1][i];
    words[1][n_words - 1] ^= (unsigned)is("wrong");
    n_calls = -1;
    return 0;
}

const char *ncclGetErrorString(int code)
{
    return code == 2 ? "unhandled system error" : "invalid usage";
}
