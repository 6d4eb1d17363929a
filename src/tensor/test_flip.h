/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_flip.h - a test hook: a process whose results are wrong, as on a damaged processor. For
 * tests of --audit only. If LOCKSTEP_TEST_FLIP is set when a host device is opened, the device
 * flips one bit in results of its products (convolutions, linear layers, matrix products, and their
 * backward):
 *
 *     LOCKSTEP_TEST_FLIP=KIND[:FIRST[:LAST[:SEED]]]
 *
 *     weights     in each step, in one gradient of a weight
 *     products    in each step, in one result of any product
 *     always      in each gradient of a weight, always the same bit
 *
 * A step is what lies between two updates by an optimizer, counted from 1 on; FIRST and LAST (1 and
 * all): in which it happens. Result and bit are random, by SEED (1). The place within a step is
 * chosen among as many results as the longest step so far had, so in a shorter one there may be no
 * flip.
 */
#ifndef LS_TENSOR_TEST_FLIP_H
#define LS_TENSOR_TEST_FLIP_H

#include "tensor/device.h"

/* Reads the variable. Unset: *out is NULL. LS_EINVAL: it is wrong, or the device has memory that
 * the host cannot write. */
LS_MUST_USE ls_status test_flip_open(const ls_device *device, struct test_flip **out);

/* After calls of one kind have been run. */
void test_flip_results(struct test_flip *f, const op_call *calls, int n);

#endif
