/* SPDX-License-Identifier: Apache-2.0 */
/*
 * finding.h - the results of checks: a list of findings, each with a kind, a severity, a text and a
 * command that fixes it. Findings are of this machine, or received from another host.
 *
 * diagnose/: findings, and child processes with a limit (child.h); below are checks/, hosts/ and
 * gpu/. The tool uses checks/check.h and hosts/hosts_check.h.
 */
#ifndef LS_DIAGNOSE_FINDING_H
#define LS_DIAGNOSE_FINDING_H

#include "base/report/json.h"
#include "base/status.h"
#include "base/text.h"

#include <stdbool.h>

typedef enum finding_severity {
    FINDING_OK,
    FINDING_NOTE,    /* unusual, or good to know */
    FINDING_WARNING, /* some programs will fail, or be slow */
    FINDING_ERROR    /* the job will fail */
} finding_severity;

/*
 * Every kind: its name in C, its id, and why it matters ("" for those that are OK).
 * docs/checking.md has a row for each.
 */
#define FINDING_KINDS(X)                                                                           \
    X(NAME_OK, "name-ok", "")                                                                      \
    X(NAME_UNKNOWN, "name-unknown",                                                                \
      "programs that advertise their host name (gloo, Open MPI) cannot be reached by it")          \
    X(NAME_SLOW, "name-slow",                                                                      \
      "every program that resolves its host name waits as long when it starts")                    \
    X(NAME_LOOPBACK, "name-loopback",                                                              \
      "gloo sends other machines to themselves: connection refused on one side, hang on the "      \
      "other")                                                                                     \
    X(NAME_FOREIGN, "name-foreign",                                                                \
      "gloo cannot listen there and falls back to loopback, which no other machine can reach")     \
    X(NAME_SEVERAL, "name-several",                                                                \
      "programs take the first address, which may be on the slower network")                       \
    X(NAME_LOCAL, "name-local",                                                                    \
      "reports and logs of several machines cannot be distinguished, and no machine has this "     \
      "name "                                                                                      \
      "for the others")                                                                            \
    X(NET_OK, "net-ok", "")                                                                        \
    X(NET_NONE, "net-none", "other machines cannot reach this one")                                \
    X(NET_BRIDGE, "net-bridge",                                                                    \
      "all machines with such a bridge have the same address on it, so a connection to another "   \
      "machine reaches the connecting machine itself; Open MPI tries it and hangs")                \
    X(NET_MTU, "net-mtu",                                                                          \
      "a link that carries only smaller packets passes small messages and loses large ones")       \
    X(NET_SLOW, "net-slow", "the gradients of a model of 25 million weights take 8 s on it")       \
    X(NET_FILTER, "net-filter", "no network is left for connections")                              \
    X(NET_VARIABLE, "net-variable", "Gloo and NCCL fail when they find no interface by that name") \
    X(FILES_OK, "files-ok", "")                                                                    \
    X(FILES_LOW, "files-low", "the launcher needs 14 file descriptors for each rank")              \
    X(MEMLOCK_OK, "memlock-ok", "")                                                                \
    X(MEMLOCK_LOW, "memlock-low",                                                                  \
      "InfiniBand needs pinned memory: NCCL and MPI fail or fall back to TCP")                     \
    X(IB_OK, "ib-ok", "")                                                                          \
    X(IB_NONE, "ib-none", "")                                                                      \
    X(IB_DOWN, "ib-down", "NCCL and MPI do not use the port; without another one they use TCP")    \
    X(IB_GID, "ib-gid", "NCCL fails to connect queue pairs, or its packets are not routed")        \
    X(IB_MTU, "ib-mtu", "RDMA then sends packets of 1024 bytes, at a lower rate")                  \
    X(IB_ECN, "ib-ecn",                                                                            \
      "without flow control a switch drops packets of RoCE under load, and the rate collapses")    \
    X(IB_PEER, "ib-peer",                                                                          \
      "without GPUDirect RDMA (or DMA-BUF) data of GPUs goes through host memory")                 \
    X(PROCESSES_OK, "processes-ok", "")                                                            \
    X(PROCESSES_LOW, "processes-low",                                                              \
      "each rank needs 16 or so; fork fails with \"Resource temporarily unavailable\"")            \
    X(CORES_OK, "cores-ok", "")                                                                    \
    X(CORES_FEW, "cores-few", "ranks that share a core wait for each other in every collective")   \
    X(CORES_MASKED, "cores-masked",                                                                \
      "programs that count the cores of the machine start too many ranks or threads")              \
    X(CORES_THREADS, "cores-threads",                                                              \
      "the kernel stops all threads of a group whose quota is used up; threads that share a core " \
      "wait for each other")                                                                       \
    X(NUMA_OK, "numa-ok", "")                                                                      \
    X(NUMA_UNBOUND, "numa-unbound",                                                                \
      "a rank whose threads run on several nodes reads part of its memory at a lower rate")        \
    X(NUMA_MEMORY, "numa-memory", "all memory of these cores is remote")                           \
    X(NUMA_BALANCING, "numa-balancing",                                                            \
      "page faults that find out where memory is used interrupt the ranks")                        \
    X(PAGES_OK, "pages-ok", "")                                                                    \
    X(PAGES_SMALL, "pages-small", "large tensors take more time for address translation")          \
    X(PAGES_STALL, "pages-stall",                                                                  \
      "an allocation of one rank can take milliseconds, and all others wait for it")               \
    X(SHM_OK, "shm-ok", "")                                                                        \
    X(SHM_MISSING, "shm-missing", "NCCL, Open MPI and PyTorch's data loaders need it")             \
    X(SHM_SMALL, "shm-small",                                                                      \
      "NCCL, Open MPI and PyTorch's data loaders die of a bus error when it is full")              \
    X(MEMORY_OK, "memory-ok", "")                                                                  \
    X(MEMORY_LOW, "memory-low", "the kernel kills a rank when memory runs out")                    \
    X(PORT_OK, "port-ok", "")                                                                      \
    X(PORT_HELD, "port-held", "a program that needs it fails with \"Address already in use\"")     \
    X(PORT_RANGE, "port-range",                                                                    \
      "an outgoing connection of any program may hold it when the job starts")                     \
    X(CLOCK_OK, "clock-ok", "")                                                                    \
    X(CLOCK_WRONG, "clock-wrong",                                                                  \
      "time stamps decide which failure was first, and certificates count as not yet valid")       \
    X(CLOCK_ALONE, "clock-alone", "time stamps of several machines cannot be compared")            \
    X(KEY_OK, "key-ok", "")                                                                        \
    X(KEY_MISSING, "key-missing",                                                                  \
      "jobs on several machines without lockstep run need the same key file on all of them")       \
    X(KEY_BAD, "key-bad",                                                                          \
      "programs refuse it; jobs on several machines without lockstep run do not start")            \
    X(KEY_STALE, "key-stale", "left by a program that was killed; no program uses it")             \
    X(KERNEL_OK, "kernel-ok", "")                                                                  \
    X(KERNEL_PIDFD, "kernel-pidfd",                                                                \
      "the end of a process is noticed a little later, by SIGCHLD (Linux before 5.3)")             \
    X(KERNEL_VM, "kernel-vm",                                                                      \
      "Open MPI and MPICH copy large messages within a machine twice, and so does Lockstep for "   \
      "memory that the program allocated itself")                                                  \
    X(KERNEL_USERNS, "kernel-userns", "only root can run jobs with --isolate")                     \
    X(KERNEL_CGROUP, "kernel-cgroup",                                                              \
      "processes of a job are killed one by one, not all at once by the kernel")                   \
    X(SSH_OK, "ssh-ok", "")                                                                        \
    X(SSH_MISSING, "ssh-missing", "jobs cannot be started on other machines from here")            \
    X(SSHD_MISSING, "sshd-missing", "jobs cannot be started here from other machines")             \
    X(GPU_OK, "gpu-ok", "")                                                                        \
    X(GPU_NONE, "gpu-none", "")                                                                    \
    X(GPU_LIBRARY, "gpu-library", "no program can use them")                                       \
    X(GPU_DRIVER, "gpu-driver", "no program can use a GPU")                                        \
    X(GPU_HUNG, "gpu-hung", "programs that query GPUs hang as well, and perhaps cannot be killed") \
    X(GPU_LOST, "gpu-lost", "it no longer answers; every program that uses it fails or hangs")     \
    X(GPU_MISSING, "gpu-missing", "it has failed, or it is reserved for another user")             \
    X(GPU_FEW, "gpu-few", "ranks that share a GPU are slow, and NCCL refuses them")                \
    X(GPU_UNTRIED, "gpu-untried", "faults of these GPUs show only when ranks start")               \
    X(GPU_NCCL, "gpu-nccl", "--backend nccl does not work")                                        \
    X(GPU_VISIBLE, "gpu-visible", "CUDA silently ignores all entries after a wrong one")           \
    X(LEFTOVER_OK, "leftover-ok", "")                                                              \
    X(LEFTOVER, "leftover", "it may hold GPU memory, ports and cores")                             \
    X(LEFTOVER_BLIND, "leftover-blind", "leftover processes of dead jobs cannot be found")         \
    X(VERSION_OK, "version-ok", "")                                                                \
    X(SETTING_OK, "setting-ok", "")                                                                \
    X(SETTING_BAD, "setting-bad", "every program refuses to start with it")

/* Findings of the check of several hosts (hosts_check.h). */
#define FINDING_HOSTS_KINDS(X)                                                                     \
    X(HOST_UNSTARTED, "host-unstarted", "no rank can be started there")                            \
    X(HOST_LOST, "host-lost", "the findings of this host are incomplete")                          \
    X(HOST_FOLDER, "host-folder",                                                                  \
      "lockstep run starts programs in its own working folder, by the same path on all hosts")     \
    X(HOST_BARE, "host-bare",                                                                      \
      "the agent binary that is copied there accepts only numeric addresses and skips GPUs")       \
    X(SAME_OK, "same-ok", "")                                                                      \
    X(BUILD_DIFFERS, "build-differs",                                                              \
      "builds may be incompatible, or add numbers in another order")                               \
    X(KERNEL_DIFFERS, "kernel-differs", "what works on one host may not work on another")          \
    X(LIBC_DIFFERS, "libc-differs",                                                                \
      "a program that was built with the newer one does not start with the older one")             \
    X(SIMD_DIFFERS, "simd-differs",                                                                \
      "kernels are selected by the processor's features: a run that is resumed, or repeated with " \
      "its ranks on other hosts, does not give the same bits")                                     \
    X(PYTHON_DIFFERS, "python-differs", "a rank may be unable to read what another rank pickles")  \
    X(TIME_OK, "time-ok", "")                                                                      \
    X(TIME_APART, "time-apart",                                                                    \
      "time stamps in logs cannot be compared, a later failure is reported as the first one "      \
      "(TORCHELASTIC_ERROR_FILE), make builds too much or too little, and certificates and "       \
      "Kerberos tickets may be refused")                                                           \
    X(PATH_OK, "path-ok", "")                                                                      \
    X(PATH_NONE, "path-none", "a job with both hosts cannot start")                                \
    X(PATH_HERE, "path-here",                                                                      \
      "agents connect to the machine that starts them: no job can be started from here")           \
    X(PATH_BLOCKED, "path-blocked", "programs that do not test networks may use this address")     \
    X(PATH_WRONG, "path-wrong",                                                                    \
      "a connection to it reaches this host or another one; Open MPI tries it and hangs")          \
    X(PATH_MTU, "path-mtu", "small messages arrive there and large ones are lost")                 \
    X(PATH_SLOW, "path-slow", "all ranks of a job wait for the slowest path in every collective")  \
    X(NETWORK_OK, "network-ok", "")                                                                \
    X(NETWORK_NONE, "network-none", "a job on all of these hosts fails before its ranks start")

/* Findings of lockstep check FILE. */
#define FINDING_FILE_KINDS(X)                                                                      \
    X(CHECKPOINT_OK, "checkpoint-ok", "")                                                          \
    X(CHECKPOINT_PLAIN, "checkpoint-plain", "changed bytes of its tensors cannot be detected")     \
    X(CHECKPOINT_BAD, "checkpoint-bad", "programs refuse to load it")

typedef enum finding_kind {
#define FINDING_ENUM(name, id, why) FINDING_##name##_KIND,
    FINDING_KINDS(FINDING_ENUM) FINDING_HOSTS_KINDS(FINDING_ENUM) FINDING_FILE_KINDS(FINDING_ENUM)
#undef FINDING_ENUM
        FINDING_KIND_COUNT
} finding_kind;

#define FINDING_HOSTS_FIRST FINDING_HOST_UNSTARTED_KIND /* kinds before it are of one machine */
#define FINDING_FILES_FIRST FINDING_CHECKPOINT_OK_KIND  /* and kinds from it on of files */

typedef struct finding {
    finding_kind kind;
    finding_severity severity;
    char *what;
    char *fix; /* a command; "" when OK, or when nothing needs to be done */
} finding;

/* Zero-initialise. findings_status() returns an earlier failure to grow. */
typedef struct findings {
    finding *items;
    int n;
    int capacity;
    bool failed;
} findings;

const char *finding_id(finding_kind kind);
bool finding_find_kind(const char *id, finding_kind *out); /* false: an unknown id */
const char *finding_why(finding_kind kind);
const char *finding_severity_text(finding_severity severity); /* "warning" */

/*
 * Appends a finding. The texts may contain names that others have chosen (programs, interfaces):
 * control characters become '?'.
 */
void finding_add(findings *list, finding_kind kind, finding_severity severity, const char *fix,
                 const char *format, ...) LS_PRINTF(5, 6);
LS_MUST_USE ls_status findings_status(const findings *list);
finding_severity findings_worst(const findings *list); /* FINDING_OK for an empty list */
void findings_free(findings *list);

/* Appends [{"host": .., "id": .., "severity": .., "what": .., "why": .., "fix": ..}, ..]. */
void findings_to_json(const findings *list, const char *host, text_buf *out);

/* Writes the objects alone, into an array that the caller has opened. */
void findings_put_json(const findings *list, const char *host, json_writer *w);

/*
 * Appends a line "warning shm-small: /dev/shm has 64 MiB; fix: ..." for each finding of at least
 * this severity.
 */
void findings_to_lines(const findings *list, finding_severity least, text_buf *out);

#endif
