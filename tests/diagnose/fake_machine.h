/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_machine.h - a machine made up of a folder and a few fields, for checks to look at. As it starts, nothing is wrong with it.
 */
#ifndef TESTS_DIAGNOSE_FAKE_MACHINE_H
#define TESTS_DIAGNOSE_FAKE_MACHINE_H

#include "base/unit.h"

#include "diagnose/check_sources.h"

#define FAKE_SPACE "4026531836"
#define FAKE_MOST  8

typedef struct fake_machine {
    char root[64];
    check_sources sources;
    const char *addresses[FAKE_MOST]; /* of its own name, up to a NULL */
    ls_status resolve_status;         /* unless OK: what the resolver answers */
    net_interface faces[FAKE_MOST];
    int n_faces;
    const char *variables[FAKE_MOST]; /* NAME=VALUE, up to a NULL */
    struct rlimit files;
    struct rlimit memlock;
    struct rlimit processes;
    uint64_t shm_total; /* 0: there is none */
    uint64_t shm_free;
    int64_t seconds;
    bool clock_is_kept;
    bool has_pidfd;
    bool has_vm_read;
    char key[128];
    gpu_list gpus;
    ls_status gpu_status; /* unless OK: what the driver answers */
    gpu_trials trials;
    ls_status trial_status; /* unless OK: there is no library to try them with */
} fake_machine;

void fake_start(fake_machine *m);
void fake_end(fake_machine *m); /* removes the folder */

/* Writes, replaces or removes a file; `path` begins with a slash. */
void fake_put(const fake_machine *m, const char *path, const char *text);
void fake_put_bytes(const fake_machine *m, const char *path, const char *bytes, size_t n);
void fake_link(const fake_machine *m, const char *path, const char *to);
void fake_remove(const fake_machine *m, const char *path);

void fake_add_face(fake_machine *m, const char *name, const char *address, int prefix);

/* A process of this user: environment "A=1\0B=2\0" of n bytes. Numbers above 4194304 are nobody's on the real machine. */
void fake_add_process(const fake_machine *m, int pid, unsigned uid, uint64_t start,
                      const char *environment, size_t n);

#endif
