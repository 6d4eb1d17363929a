/* SPDX-License-Identifier: Apache-2.0 */
/* check_scene.h - a simulated machine, its check, and what the check must have found. */
#ifndef TESTS_DIAGNOSE_CHECK_SCENE_H
#define TESTS_DIAGNOSE_CHECK_SCENE_H

#include "diagnose/fake_machine.h"

#define MIB ((uint64_t)1 << 20)

extern fake_machine machine;
extern check_options options;
extern findings found;                /* by the last look() */
extern bool seen[FINDING_KIND_COUNT]; /* by any test */

/* Before and after each test: a machine without problems. */
int check_begin(void **state);
int check_end(void **state);

/* Checks the machine; each finding has the texts that its kind needs. */
void look(void);
bool has(finding_kind kind);
/* The first of the kind; there must be one. */
const finding *get(finding_kind kind);
/* The only finding that is not OK is of this kind; its text and its fix contain these parts. */
void expect(finding_kind kind, finding_severity severity, const char *what, const char *fix);

/* test_check_hardware.c: runs its tests; how many have failed. */
int check_hardware(void);

#endif
