/* SPDX-License-Identifier: Apache-2.0 */
/*
 * finding.h - what a check found: one list of small texts, from this machine or from another one.
 */
#ifndef LS_DIAGNOSE_FINDING_H
#define LS_DIAGNOSE_FINDING_H

#include "base/json.h"
#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>

typedef enum finding_severity {
    FINDING_OK,
    FINDING_NOTE,    /* odd, or good to know */
    FINDING_WARNING, /* some programs will fail, or be slow */
    FINDING_ERROR    /* this job will fail */
} finding_severity;

/* Every kind: its name in C, its id, and why it matters ("": it is as it should be). docs/checking.md has a row for each. */
#define FINDING_KINDS(X)                                                                           \
    X(NAME_OK, "name-ok", "")                                                                      \
    X(NAME_UNKNOWN, "name-unknown",                                                                \
      "programs that tell others their own name (gloo, Open MPI) cannot be reached by it")         \
    X(NAME_SLOW, "name-slow",                                                                      \
      "every program that asks for its own name waits as long when it starts")                     \
    X(NAME_LOOPBACK, "name-loopback",                                                              \
      "gloo tells other machines to connect there, and they reach themselves: connection refused " \
      "on one side, waiting for ever on the other")                                                \
    X(NAME_FOREIGN, "name-foreign",                                                                \
      "gloo cannot listen there and falls back to loopback, which other machines cannot reach")    \
    X(NAME_SEVERAL, "name-several",                                                                \
      "programs that go by names take the first one, which may lie on the slower network")         \
    X(NET_OK, "net-ok", "")                                                                        \
    X(NET_NONE, "net-none", "other machines cannot reach this one")                                \
    X(NET_BRIDGE, "net-bridge",                                                                    \
      "every machine with such a bridge has the same address, so whoever connects there reaches "  \
      "itself; Open MPI tries it and hangs")                                                       \
    X(NET_MTU, "net-mtu",                                                                          \
      "where one part of the way carries smaller packets, small messages arrive and large ones "   \
      "never do")                                                                                  \
    X(NET_SLOW, "net-slow", "the gradients of a model of 25 million weights take 8 s there")       \
    X(NET_FILTER, "net-filter", "no network is left to connect through")                           \
    X(NET_VARIABLE, "net-variable",                                                                \
      "Gloo and NCCL end a program when they find no interface by that name")                      \
    X(FILES_OK, "files-ok", "")                                                                    \
    X(FILES_LOW, "files-low", "each rank needs 14 descriptors of its launcher")                    \
    X(MEMLOCK_OK, "memlock-ok", "")                                                                \
    X(MEMLOCK_LOW, "memlock-low",                                                                  \
      "InfiniBand needs memory that stays in its place: NCCL and MPI fail or fall back to TCP")    \
    X(PROCESSES_OK, "processes-ok", "")                                                            \
    X(PROCESSES_LOW, "processes-low",                                                              \
      "a rank needs two processes, its threads and its data loaders; fork fails with \"Resource "  \
      "temporarily unavailable\"")                                                                 \
    X(CORES_OK, "cores-ok", "")                                                                    \
    X(CORES_FEW, "cores-few", "ranks that share a core wait for each other in every collective")   \
    X(CORES_MASKED, "cores-masked",                                                                \
      "programs that count the cores of the machine start too many ranks or threads")              \
    X(SHM_OK, "shm-ok", "")                                                                        \
    X(SHM_MISSING, "shm-missing", "NCCL, Open MPI and PyTorch's data loaders need it")             \
    X(SHM_SMALL, "shm-small",                                                                      \
      "NCCL, Open MPI and PyTorch's data loaders end with a bus error when it is full "            \
      "(Lockstep's "                                                                               \
      "own ranks do not use it)")                                                                  \
    X(MEMORY_OK, "memory-ok", "")                                                                  \
    X(MEMORY_LOW, "memory-low", "the kernel kills a rank when memory runs out")                    \
    X(PORT_OK, "port-ok", "")                                                                      \
    X(PORT_HELD, "port-held", "a program that wants it ends with \"Address already in use\"")      \
    X(PORT_RANGE, "port-range",                                                                    \
      "an outgoing connection of any program may have it just when the job starts")                \
    X(CLOCK_OK, "clock-ok", "")                                                                    \
    X(CLOCK_WRONG, "clock-wrong",                                                                  \
      "which failure came first is read from clocks, and certificates count as not yet valid")     \
    X(CLOCK_ALONE, "clock-alone", "the times in the logs of several machines cannot be compared")  \
    X(KEY_OK, "key-ok", "")                                                                        \
    X(KEY_MISSING, "key-missing",                                                                  \
      "jobs without a launcher of ours between machines need the same one everywhere")             \
    X(KEY_BAD, "key-bad", "it is refused, and nothing starts between machines without a launcher") \
    X(KEY_STALE, "key-stale", "a program was killed while it made the key; nobody uses that file") \
    X(KERNEL_OK, "kernel-ok", "")                                                                  \
    X(KERNEL_PIDFD, "kernel-pidfd",                                                                \
      "the end of a process is noticed a little later, by SIGCHLD (Linux before 5.3)")             \
    X(KERNEL_VM, "kernel-vm",                                                                      \
      "large messages within a machine are copied twice by Open MPI, MPICH and, from memory of "   \
      "the program's own, by Lockstep")                                                            \
    X(KERNEL_USERNS, "kernel-userns", "only root can run jobs with --isolate")                     \
    X(KERNEL_CGROUP, "kernel-cgroup",                                                              \
      "a job is ended process by process, without the kernel's help")                              \
    X(SSH_OK, "ssh-ok", "")                                                                        \
    X(SSH_MISSING, "ssh-missing", "jobs cannot be started on other machines from here")            \
    X(SSHD_MISSING, "sshd-missing", "jobs cannot be started here from other machines")             \
    X(GPU_OK, "gpu-ok", "")                                                                        \
    X(GPU_NONE, "gpu-none", "")                                                                    \
    X(GPU_LIBRARY, "gpu-library", "no program can use them")                                       \
    X(GPU_DRIVER, "gpu-driver", "no program can use a GPU")                                        \
    X(GPU_HUNG, "gpu-hung",                                                                        \
      "programs that ask for GPUs will wait as well, and perhaps cannot be killed")                \
    X(GPU_LOST, "gpu-lost",                                                                        \
      "it does not answer on the bus any more; every program that touches it fails or hangs")      \
    X(GPU_MISSING, "gpu-missing",                                                                  \
      "the driver does not list it: it has failed, or is kept for somebody else")                  \
    X(GPU_FEW, "gpu-few", "ranks that share a GPU are slow, and NCCL refuses them")                \
    X(GPU_UNTRIED, "gpu-untried", "what is wrong with them shows only when ranks start")           \
    X(GPU_VISIBLE, "gpu-visible", "what stands behind a wrong entry is ignored without a word")    \
    X(LEFTOVER_OK, "leftover-ok", "")                                                              \
    X(LEFTOVER, "leftover", "it may hold GPU memory, ports and cores")                             \
    X(LEFTOVER_BLIND, "leftover-blind", "processes of earlier jobs cannot be seen")                \
    X(VERSION_OK, "version-ok", "")                                                                \
    X(SETTING_OK, "setting-ok", "")                                                                \
    X(SETTING_BAD, "setting-bad", "every program refuses to start with it")

/* What only shows when several machines are looked at together (hosts_check.h). */
#define FINDING_HOSTS_KINDS(X)                                                                     \
    X(HOST_UNSTARTED, "host-unstarted", "no rank can be started there")                            \
    X(HOST_LOST, "host-lost", "what is told about it is not all that there is to tell")            \
    X(HOST_FOLDER, "host-folder",                                                                  \
      "lockstep run starts programs in the folder that it was started in, by the same name")       \
    X(HOST_BARE, "host-bare",                                                                      \
      "the agent that travels there instead knows addresses in numbers only, and nothing of GPUs") \
    X(SAME_OK, "same-ok", "")                                                                      \
    X(BUILD_DIFFERS, "build-differs",                                                              \
      "parts of different builds may not understand each other, or add in another order")          \
    X(KERNEL_DIFFERS, "kernel-differs", "what works on one host may not work on another")          \
    X(LIBC_DIFFERS, "libc-differs",                                                                \
      "a program that was built with the newer one does not start with the older one")             \
    X(SIMD_DIFFERS, "simd-differs",                                                                \
      "kernels are chosen by what the processor can: a run that is resumed, or repeated with its " \
      "ranks on other hosts, does not give the same bits")                                         \
    X(PYTHON_DIFFERS, "python-differs",                                                            \
      "what one rank pickles or sends, another one may not be able to read")                       \
    X(TIME_OK, "time-ok", "")                                                                      \
    X(TIME_APART, "time-apart",                                                                    \
      "times in logs cannot be compared, the first of several failures (TORCHELASTIC_ERROR_FILE) " \
      "is taken for a later one, make builds too much or too little, and certificates and "        \
      "Kerberos tickets may be refused")                                                           \
    X(PATH_OK, "path-ok", "")                                                                      \
    X(PATH_NONE, "path-none", "a job with both of them cannot start")                              \
    X(PATH_HERE, "path-here", "agents call the machine that starts them: no job starts from here") \
    X(PATH_BLOCKED, "path-blocked", "programs that do not try their ways first may take this one") \
    X(PATH_WRONG, "path-wrong",                                                                    \
      "whoever connects there reaches itself or another host; Open MPI tries it and hangs")        \
    X(PATH_MTU, "path-mtu", "small messages arrive there and large ones never do")                 \
    X(PATH_SLOW, "path-slow", "all ranks of a job wait for the slowest way in every collective")   \
    X(NETWORK_OK, "network-ok", "")                                                                \
    X(NETWORK_NONE, "network-none", "a job on all of these hosts ends before its ranks start")

typedef enum finding_kind {
#define FINDING_ENUM(name, id, why) FINDING_##name##_KIND,
    FINDING_KINDS(FINDING_ENUM) FINDING_HOSTS_KINDS(FINDING_ENUM)
#undef FINDING_ENUM
        FINDING_KIND_COUNT
} finding_kind;

#define FINDING_HOSTS_FIRST FINDING_HOST_UNSTARTED_KIND /* those before it are of one machine */

typedef struct finding {
    finding_kind kind;
    finding_severity severity;
    char *what;
    char *mend; /* a command, or ""; for what is not OK */
} finding;

/* Zero-initialise. A failure to grow is remembered and given by findings_status(). */
typedef struct findings {
    finding *items;
    int n;
    int capacity;
    bool failed;
} findings;

const char *finding_id(finding_kind kind);
bool finding_find_kind(const char *id, finding_kind *out); /* false: this build knows no such id */
const char *finding_why(finding_kind kind);
const char *finding_severity_text(finding_severity severity); /* "warning" */

/* Adds one. Both texts may hold what others have chosen (names of programs): what a terminal would obey becomes '?'. */
void finding_add(findings *list, finding_kind kind, finding_severity severity, const char *mend,
                 const char *format, ...) LS_PRINTF(5, 6);
LS_MUST_USE ls_status findings_status(const findings *list);
finding_severity findings_worst(const findings *list); /* FINDING_OK for an empty list */
void findings_free(findings *list);

/* Appends [{"host": .., "id": .., "severity": .., "what": .., "why": .., "mend": ..}, ..]. */
void findings_to_json(const findings *list, const char *host, text_buf *out);

/* The objects alone, into an array that is open. */
void findings_put_json(const findings *list, const char *host, json_writer *w);

/* Appends "warning shm-small: /dev/shm has 64 MiB; mend: ..." for each that is at least as bad, a line each. */
void findings_to_lines(const findings *list, finding_severity least, text_buf *out);

#endif
