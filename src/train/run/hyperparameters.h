/* SPDX-License-Identifier: Apache-2.0 */
/* hyperparameters.h - optimizer, learning rate schedule and communication hook from the flags. */
#ifndef LS_TRAIN_RUN_HYPERPARAMETERS_H
#define LS_TRAIN_RUN_HYPERPARAMETERS_H

#include <lockstep/train.h>

enum { MILESTONES_MAX = 64 };

typedef struct lr_schedule {
    ls_schedule schedule;
    int64_t milestones[MILESTONES_MAX]; /* of the schedule, in steps */
} lr_schedule;

/* LS_EINVAL names a flag with an invalid value, or one that needs another flag. */
LS_MUST_USE ls_status hyperparameters_check(const ls_train_flags *flags);
/* "fp32", "bf16", "fp16": --precision. */
const char *hyperparameters_precision(const ls_train_flags *flags);
/* Sets the tape's compute type. Rank 0 logs a warning where the device is slow with it. */
LS_MUST_USE ls_status hyperparameters_set_precision(const ls_train_flags *flags, ls_device *device,
                                                    ls_tape *tape);
/* The scaler of the gradients with fp16; *out stays as it is otherwise. rows: that the gradients of
 * activations are added up over, as in ls_ddp_backward(); 1 for those of a mean. */
LS_MUST_USE ls_status hyperparameters_make_scaler(const ls_train_flags *flags, int64_t rows,
                                                  ls_optimizer *optimizer, ls_grad_scaler **out);
/* Sets --check-replicas, --sync-bn and --compress. */
void hyperparameters_set_ddp(const ls_train_flags *flags, ls_ddp_options *opt);
/* Steps of n epochs. LS_EINVAL names `flag`, where n comes from, for more than STEPS_MAX. */
LS_MUST_USE ls_status hyperparameters_count_steps(const char *flag, int64_t n, int64_t epoch_steps,
                                                  int64_t *steps);
/* all_steps: of --epochs. */
LS_MUST_USE ls_status hyperparameters_make_schedule(const ls_train_flags *flags,
                                                    int64_t epoch_steps, int64_t all_steps,
                                                    lr_schedule *out);
LS_MUST_USE ls_status hyperparameters_make_optimizer(const ls_train_flags *flags, ls_model *model,
                                                     ls_optimizer **out);

#endif
