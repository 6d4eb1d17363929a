/* SPDX-License-Identifier: Apache-2.0 */
/*
 * values.h - one valid value of each kind that the public functions take. Each is made when it is
 * first asked for, is the same from then on, and is never freed: the tests use them in processes
 * that end without cleaning up. Files are made in the current folder. What cannot be made ends the
 * process with VALUES_FAILED.
 */
#ifndef TESTS_API_VALUES_H
#define TESTS_API_VALUES_H

#include <lockstep/lockstep.h>

enum { VALUES_FAILED = 99 };

/* Ends the process with the library's error text when a value cannot be made. */
void value_needs(ls_status status, const char *what);

ls_device *some_device(void); /* cpu_ref */

ls_tensor *some_tensor(void);      /* (4,2) float32, ones */
ls_tensor *some_targets(void);     /* (4) int64 */
ls_tensor *some_images(void);      /* (4,1,4,4) float32 */
ls_tensor *some_kernel(void);      /* (1,1,3,3) float32 */
ls_tensor *some_sequences(void);   /* (4,1,8) float32 */
ls_tensor *some_taps(void);        /* (1,1,3) float32 */
ls_tensor *some_square(void);      /* (2,2) float32 */
ls_tensor *some_lstm_weight(void); /* (8,2) float32 */
ls_tensor *some_gru_weight(void);  /* (6,2) float32 */
ls_tensor *some_channel(void);     /* (1) float32 */
ls_tensor *some_pair(void);        /* (2) float32 */
ls_tensor *some_leaf(void);        /* (2,2) float64, requires a gradient */
ls_tensor *const *some_leaves(void);
const ls_named *some_items(void);      /* one, "item" */
const ls_named *some_parameters(void); /* of the model: one weight and one bias */

ls_tape *some_tape(void);
ls_tensor *some_loss(void); /* of the model, on the tape */
const ls_op *some_op(void);
const ls_store_callbacks *some_callbacks(void);
void no_stack(void *arg, char *text, size_t bytes);
void ignore_end(void *arg, const ls_work_end *end); /* float64 -> float64; without a backward */
void pass_input(ls_tape *tape, ls_tensor *const *inputs, ls_tensor **outputs, void *arg);
ls_tensor *pass_on(void *arg, ls_tape *tape, ls_tensor *x);
ls_tensor *sum_of_squares(ls_tape *tape, ls_tensor *const *inputs, void *arg);
ls_status ignore_leaf(void *arg, ls_tensor *leaf);
void ignore_difference(void *arg, const char *text);
ls_model *some_model(void);
ls_layer *some_layer(void);
ls_layer *const *some_layers(void);
ls_layer *some_gru(void);  /* 8 inputs */
ls_layer *some_cell(void); /* an LSTM's, 2 inputs */
ls_ddp *some_ddp(void);
ls_optimizer *some_optimizer(void);
ls_local_sgd *some_local_sgd(void);
ls_model *recurrent_model(void); /* without an ls_ddp */
ls_grad_scaler *some_grad_scaler(void);

ls_comm *some_comm(void); /* one rank */
ls_work *some_work(void);
const float *some_floats(void); /* 4 */
float *other_floats(void);      /* 4 */
void *shared_memory(void);      /* of ls_comm_alloc() */
ls_status do_nothing(int local_rank, void *arg);

ls_dataset *some_dataset(void);                       /* 8 images of (1,4,4), 2 classes */
ls_dataset *free_dataset(void);                       /* a further one, which no loader reads */
const ls_array *some_array(void);                     /* float32 (1) "x", for 4 samples */
const ls_dataset_callbacks *sequence_callbacks(void); /* 4 samples of int32 (-1) "tokens" */
const ls_elastic_options *elastic_options(void);      /* with a step */
ls_dataset *sequence_set(void);                       /* made from them */
const ls_batch *some_batch(void);                     /* of sequence_set() */
const char *image_folder(void);                       /* of one JPEG or PNG in one class */
const char *idx_file(int i);                          /* 0: images, 1: labels */
ls_sampler *some_sampler(void);
ls_loader *some_loader(void); /* an epoch has begun */
ls_checkpoint *some_checkpoint(void);
const char *checkpoint_path(void);

ls_store *some_store(void); /* holds the key "key" */
const char *const *some_keys(void);
const ls_flag *some_flag(void);
const ls_flags *some_flags(void);
char **some_argv(void); /* 2 entries: a program and a flag that some_flags() has */

ls_train_flags *some_train_flags(void);
const ls_train_program *some_program(void);
double rate_of(void *arg, int64_t step, int64_t steps);
double same_value(double mean);
ls_run *declaring_run(void);
ls_tensor *lose_nothing(void *arg, ls_run *run, const ls_batch *batch);
ls_status compute_nothing(void *arg, int shard, ls_tape *tape, ls_tensor **loss, int64_t *rows);
ls_status evaluate_nothing(void *arg, ls_run *run, const ls_batch *batch);
ls_run *some_run(void);    /* open */
ls_run *running_run(void); /* started */

#endif
