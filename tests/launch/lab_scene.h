/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lab_scene.h - jobs in a lab of network namespaces: one lab a test, and a user's key for all tests
 * of a program.
 */
#ifndef TESTS_LAUNCH_LAB_SCENE_H
#define TESTS_LAUNCH_LAB_SCENE_H

#include "harness/netlab.h"
#include "launch/job.h"

extern netlab lab;
extern char lab_variable[64]; /* "LS_NETLAB=...", for what runs inside */
extern char key_variable[96]; /* where the key is */

/* Skips the test where the kernel or the rights are missing. */
void lab_build(int n_nodes, const char *options);

/* cmocka's teardown of a test; setup and teardown of those that use the key. */
int lab_clean_up(void **state);
int lab_make_key(void **state);
int lab_remove_key(void **state);

#endif
