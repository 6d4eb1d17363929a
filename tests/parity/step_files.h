/* SPDX-License-Identifier: Apache-2.0 */
/* step_files.h - what programs of one training step read and write as safetensors files: weights, a
 * batch, gradients. */
#ifndef TESTS_PARITY_STEP_FILES_H
#define TESTS_PARITY_STEP_FILES_H

#include <lockstep/lockstep.h>

/* Fills all of the model's state from a file with exactly these names. */
LS_MUST_USE ls_status step_load_state(ls_model *model, const char *path);

/* tensors[i]: the entry names[i] of a file that has only these; the caller destroys them, also on
 * failure. */
LS_MUST_USE ls_status step_load_batch(ls_device *device, const char *path, const char *const *names,
                                      ls_tensor **tensors, int n);

LS_MUST_USE ls_status step_save_state(const ls_model *model, const char *path);

/* Saves the values, and the gradient of each parameter as "grad.NAME". */
LS_MUST_USE ls_status step_save_result(const ls_model *model, const ls_named *values, int n,
                                       const char *path);

#endif
