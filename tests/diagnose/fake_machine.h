/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_machine.h - a simulated machine for checks: a root folder and a few fields. fake_start()
 * makes one without problems.
 */
#ifndef TESTS_DIAGNOSE_FAKE_MACHINE_H
#define TESTS_DIAGNOSE_FAKE_MACHINE_H

#include "base/unit.h"

#include "diagnose/checks/check_sources.h"
#include "harness/root_folder.h"

#define FAKE_SPACE "4026531836"
#define FAKE_MOST  8

typedef struct fake_machine {
    char root[ROOT_FOLDER_BYTES];
    check_sources sources;
    const char *host;                 /* its name */
    const char *addresses[FAKE_MOST]; /* of the host name, up to a NULL */
    ls_status resolve_status;         /* the resolver's failure, or LS_OK */
    net_interface ifaces[FAKE_MOST];
    int n_ifaces;
    const char *variables[FAKE_MOST]; /* NAME=VALUE, up to a NULL */
    struct rlimit files;
    struct rlimit memlock;
    struct rlimit processes;
    uint64_t shm_total; /* 0: no /dev/shm */
    uint64_t shm_free;
    int64_t seconds;
    bool clock_is_synchronized;
    bool has_pidfd;
    bool has_vm_read;
    char key[128];
    gpu_list gpus;
    ls_status gpu_status; /* the driver's failure, or LS_OK */
    gpu_trials trials;
    ls_status trial_status; /* the failure of gpu_try(), or LS_OK */
    ls_status nccl_status;  /* the failure of nccl_try(), or LS_OK */
} fake_machine;

void fake_start(fake_machine *m);
void fake_end(fake_machine *m); /* removes the folder */

/* Writes, replaces or removes a file; `path` begins with a slash. */
void fake_put(const fake_machine *m, const char *path, const char *text);
void fake_put_bytes(const fake_machine *m, const char *path, const char *bytes, size_t n);
void fake_link(const fake_machine *m, const char *path, const char *to);
void fake_remove(const fake_machine *m, const char *path);

void fake_add_iface(fake_machine *m, const char *name, const char *address, int prefix);

/*
 * Adds a process with environment "A=1\0B=2\0" of n bytes. A pid above 4194304 exists on no real
 * machine.
 */
void fake_add_process(const fake_machine *m, int pid, unsigned uid, uint64_t start,
                      const char *environment, size_t n);

#endif
