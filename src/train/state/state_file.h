/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state_file.h - names and paths of saved files, and what save.c writes and resume.c reads.
 *
 * NAME.safetensors          the weights alone, named as in PyTorch's state_dict
 * NAME.best.safetensors     the weights of the best evaluation so far (or --save-best)
 * NAME.resume.safetensors   the whole state of a run in one file: weights ("model."), optimizer
 *                           ("optimizer."), gradient scaler of fp16 ("grad_scaler."), state of the
 *                           program ("program."), history ("history.") and position (metadata)
 *
 * train/state/: saved files of runs, for train/run.
 */
#ifndef LS_TRAIN_STATE_STATE_FILE_H
#define LS_TRAIN_STATE_STATE_FILE_H

#include <lockstep/checkpoint.h>
#include <lockstep/train.h>

#include "train/rank_sums.h"

#define STATE_HISTORY "history."
#define STATE_SCALER  "grad_scaler."

/* The most steps of a run: numbers up to it are exact as doubles, and the sum of two fits. */
#define STEPS_MAX (INT64_C(1) << 53)

enum { STATE_PATH_BYTES = 4096 };

/* False for NULL and for "", which overrides a program's default. */
bool state_path_is_set(const char *path);
/* NAME.safetensors -> NAME.WORD.safetensors; `out` has STATE_PATH_BYTES. */
LS_MUST_USE ls_status state_path(const char *path, const char *word, char *out);

/* Opens a saved file; with --no-verify its digests are ignored. */
LS_MUST_USE ls_status state_open(const ls_train_flags *flags, const char *path,
                                 ls_checkpoint **out);

/* Values of a file's metadata. LS_EFORMAT: there is none; a number as by text_parse_int(). */
LS_MUST_USE ls_status state_meta_text(const ls_checkpoint *file, const char *key, const char **out);
LS_MUST_USE ls_status state_meta_int(const ls_checkpoint *file, const char *key, int64_t least,
                                     int64_t most, int64_t *out);

/* Tensors and bytes of several lists under longer names. Zero-initialise. */
typedef struct name_list {
    ls_named *items;
    int n;
    int capacity;
} name_list;

LS_MUST_USE ls_status name_list_add(name_list *list, const char *prefix, const ls_named *from,
                                    int n);
void name_list_free(name_list *list);

/* Model, optimizer and scaler (NULL: none), and the program's n_own items, under their names in the
 * state file. */
LS_MUST_USE ls_status state_list(ls_model *model, ls_optimizer *optimizer, ls_grad_scaler *scaler,
                                 const ls_named *own, int n_own, name_list *list);

enum { STATE_SETTINGS_MAX = 8, STATE_SETTING_BYTES = 512, STATE_SUMS = 5 };

/* A setting that decides the order of samples or their augmentation. */
typedef struct state_setting {
    const char *key;                 /* in the metadata */
    const char *flag;                /* for messages */
    char value[STATE_SETTING_BYTES]; /* printable */
} state_setting;

/* Lists the settings of a run over `set` (may be NULL); returns their number. */
int state_settings(const ls_train_flags *flags, const ls_dataset *set, bool has_buckets,
                   state_setting list[STATE_SETTINGS_MAX]);

/* A sum of the current epoch and its key in the metadata. */
typedef struct state_sum {
    const char *key;
    double *value;
} state_sum;

void state_sums(rank_sums *sums, state_sum list[STATE_SUMS]);

#endif
