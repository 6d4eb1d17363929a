#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""null_calls.py INCLUDE-FOLDER OUT.c: writes a call of each public function for each of its pointer
parameters, with NULL in that parameter and valid values in all others, and what the call must give.

The rule of base.h holds unless NULL_GIVES has an entry: a function with a status gives LS_EINVAL
with a text; others give 0 or NULL. It ends with an error when a parameter has no value in VALUES,
and when an entry of its own tables fits no function."""
import sys

import headers

# What a parameter gets when it is not the one under test: by function and name, by type and name,
# by type.
VALUES = {
    ("ls_adaptive_avg_pool2d", "x"): "some_images()", ("ls_avg_pool2d", "x"): "some_images()",
    ("ls_max_pool2d", "x"): "some_images()", ("ls_conv2d", "x"): "some_images()",
    ("ls_conv2d", "weight"): "some_kernel()", ("ls_conv2d", "bias"): "some_channel()",
    ("ls_conv1d", "x"): "some_sequences()", ("ls_conv1d", "weight"): "some_taps()",
    ("ls_conv1d", "bias"): "some_channel()",
    **{(f"ls_conv_transpose{n}d", "bias"): "some_channel()" for n in (1, 2)},
    ("ls_conv_transpose1d", "x"): "some_sequences()",
    ("ls_conv_transpose1d", "weight"): "some_taps()",
    ("ls_conv_transpose2d", "x"): "some_images()",
    ("ls_conv_transpose2d", "weight"): "some_kernel()",
    ("ls_group_norm", "x"): "some_tensor()", ("ls_nn_group_norm", "name"): '"groups"',
    **{(f"ls_{name}", "x"): "some_tensor()" for name in ("batch_norm", "bn_relu", "bn_add")},
    ("ls_bn_add", "added"): "some_tensor()",
    ("ls_linear", "weight"): "some_square()", ("ls_reshape", "n_dims"): "1",
    ("ls_reshape", "dims"): "eight", ("ls_backward", "loss"): "some_loss()",
    ("ls_ddp_backward", "loss"): "some_loss()", ("ls_ddp_accumulate", "loss"): "some_loss()",
    ("ls_dropout", "p"): "0.5", ("ls_dropout_always", "p"): "0.5",
    ("ls_require_grad", "t"): "some_leaf()",
    ("ls_grad", "t"): "some_leaf()", ("ls_zero_grad", "t"): "some_leaf()",
    ("ls_grad_check", "inputs"): "some_leaves()", ("ls_top_k_correct", "k"): "ones",
    ("ls_clip_grad_value", "limit"): "1", ("ls_checkpoint_save", "path"): '"new"',
    ("ls_checkpoint_open", "path"): "checkpoint_path()", ("ls_checkpoint_meta", "key"): '"absent"',
    ("ls_checkpoint_open_unverified", "path"): "checkpoint_path()",
    ("ls_checkpoint_conversion", "from"): '"a"', ("ls_checkpoint_conversion", "to"): '"b"',
    ("ls_checkpoint_conversion", "buf"): "(char *)eight_floats",
    ("ls_checkpoint_conversion", "n"): "sizeof(float)",
    ("ls_checkpoint_save_as", "path"): '"new"', ("ls_checkpoint_save_as", "n_meta"): "1",
    ("ls_checkpoint_save", "n_meta"): "1", ("ls_comm_free", "memory"): "shared_memory()",
    ("ls_recv", "dst"): "other_floats()",
    ("ls_comm_abort", "reason"): '"a test"', ("ls_work_wait_for", "timeout_ms"): "-1",
    ("ls_work_set_timeout", "timeout_ms"): "-1",
    ("ls_dataset_open_idx", "images"): "idx_file(0)",
    ("ls_dataset_open_idx", "labels"): "idx_file(1)",
    ("ls_dataset_open_mnist", "dir"): "mnist_folder()",
    ("ls_dataset_open_mnist", "split"): '"t10k"',
    ("ls_dataset_open_cifar", "dir"): "mnist_folder()",
    ("ls_dataset_open_cifar", "split"): '"test"',
    ("ls_dataset_open_folder", "dir"): "image_folder()",
    ("ls_dataset_open_folder", "like"): "folder_set()", ("ls_dataset_close", "d"): "free_dataset()",
    ("ls_dataset_augment", "d"): "free_dataset()", ("ls_augment_imagenet", "image_size"): "224",
    ("ls_dataset_lengths", "d"): "sequence_set()", ("ls_dataset_lengths", "name"): '"tokens"',
    ("ls_dataset_from_arrays", "arrays"): "some_array()", ("ls_dataset_from_arrays", "n"): "1",
    "const ls_elastic_options *": "elastic_options()",
    "const ls_dataset_callbacks *": "sequence_callbacks()", "const ls_batch *": "some_batch()",
    ("const char *", "name"): '"tokens"', ("ls_run_bucket_by_length", "field"): '"x"',
    ("ls_flags_free", "text"): "NULL", ("ls_store_free", "value"): "NULL",
    ("ls_loader_start", "epoch"): "1", ("ls_flags_parse", "argc"): "2",
    ("ls_train_parse", "argc"): "2", ("ls_log", "component"): '"test"',
    ("ls_log", "format"): '"text"', ("ls_log_enabled", "component"): '"test"',
    ("ls_nn_conv2d", "name"): '"conv"', ("ls_nn_conv1d", "name"): '"conv1"',
    ("ls_nn_batch_norm1d", "name"): '"bn1"', ("ls_nn_batch_norm2d", "name"): '"bn"',
    ("ls_nn_linear", "name"): '"linear"', ("ls_nn_layer_norm", "name"): '"norm"',
    ("ls_nn_self_attention", "name"): '"attention"', ("ls_nn_parameter", "name"): '"token"',
    ("ls_model_freeze", "pattern"): '"*"', ("ls_model_freeze", "frozen"): "0",
    ("ls_model_freeze", "model"): "((void)some_layer(), some_model())",
    ("ls_nn_buffer", "name"): '"count"', ("ls_nn_layer", "name"): '"own"',
    ("ls_nn_layer", "arg_bytes"): "0", ("ls_nn_sequential", "name"): '"sequential"',
    ("ls_nn_function", "name"): '"relu"', ("ls_nn_dropout", "name"): '"dropout"',
    ("ls_nn_max_pool2d", "name"): '"pool"', ("ls_nn_avg_pool2d", "name"): '"pool"',
    ("ls_nn_adaptive_avg_pool2d", "name"): '"pool"', "ls_layer_fn": "pass_on",
    "ls_unary_fn": "ls_relu", "ls_layer *const *": "some_layers()",
    ("ls_layer_tensor", "name"): '"weight"', ("ls_model_init", "pattern"): '"*"',
    "const ls_nn_init_options *": "&nn_init",
    **{(f"ls_{cell}_cell", name): f"some_{cell}_weight()" for cell in ("lstm", "gru")
       for name in ("w_ih", "w_hh")},
    **{(f"ls_{cell}_cell", name): "NULL" for cell in ("lstm", "gru") for name in ("b_ih", "b_hh")},
    ("ls_nn_lstm", "name"): '"lstm"', ("ls_nn_gru", "name"): '"gru"',
    ("ls_nn_lstm_cell", "name"): '"cell"', ("ls_nn_gru_cell", "name"): '"cell"',
    ("ls_forward_sequence", "layer"): "some_gru()",
    ("ls_forward_sequence", "x"): "some_sequences()",
    ("ls_forward_sequence", "lengths"): "some_targets()",
    ("ls_forward_cell", "layer"): "some_cell()",
    ("ls_optimizer_group", "pattern"): '"*"', ("ls_run_group", "pattern"): '"*"',
    "const ls_group_options *": "&group",
    ("ls_stack", "x"): "some_leaves()", ("ls_nn_embedding", "name"): '"embedding"',
    ("ls_padding_mask", "lengths"): "some_targets()", ("ls_set_error", "format"): '"text"',
    ("ls_set_error", "status"): "LS_EINVAL", ("ls_concat", "x"): "some_leaves()",
    ("ls_permute", "order"): "ones",
    ("ls_tape_checkpoint", "inputs"): "some_leaves()", ("ls_tape_checkpoint", "arg_bytes"): "0",
    ("ls_op_run", "inputs"): "some_leaves()", ("ls_op_run", "attrs_bytes"): "0",
    ("ls_op_run", "attrs"): "NULL",
    "const ls_op *": "some_op()", "const ls_store_callbacks *": "some_callbacks()",
    "ls_work_end_fn": "ignore_end", "ls_stack_fn": "no_stack",
    ("ls_memory_free", "memory"): "NULL", ("ls_comm_create_group", "ranks"): "(const int[]){0}",
    "void *const *": "(void *const[]){other_floats()}",
    "const void *const *": "(const void *const[]){some_floats()}",
    ("ls_comm_set_site", "text"): '"site"',
    "ls_activation": "LS_ACT_SILU", ("ls_sgd_create", "n"): "2", ("ls_adam_create", "n"): "2",
    ("ls_adamw_create", "n"): "2", ("ls_store_open", "url"): '"mem:"',
    ("ls_store_prefix", "prefix"): '"a/"', ("ls_store_get", "timeout_ms"): "0",
    ("ls_store_compare_set", "expected"): '"7"', ("ls_store_compare_set", "expected_bytes"): "1",
    ("ls_store_compare_set", "desired"): '"8"', ("ls_store_compare_set", "desired_bytes"): "1",
    ("ls_store_set", "value"): '"8"', ("ls_store_set", "bytes"): "1",
    ("ls_item", "t"): "some_loss()",
    ("ls_tensor_copy", "src"): "other_tensor()", ("ls_tensor_wrap", "data"): "other_floats()",
    ("ls_tensor_wrap", "n_dims"): "1", ("ls_tensor_wrap", "dims"): "fours",
    ("ls_tensor_read", "dst"): "eight_floats", ("ls_tensor_write", "src"): "eight_floats",
    ("ls_tensor_read", "count"): "8", ("ls_tensor_write", "count"): "8",
    ("ls_tensor_view", "n_dims"): "1", ("ls_tensor_view", "dims"): "eight",
    ("ls_tensor_destroy", "t"): "NULL", ("ls_train_parse", "program"): '"program"',
    ("ls_train_parse", "summary"): '"Does nothing."', ("ls_train_main", "argc"): "1",
    "const ls_train_program *": "some_program()",
    ("ls_run_train_on_take", "set"): "free_dataset()",
    ("ls_run_test_on_take", "set"): "free_dataset()", ("ls_run_next", "run"): "running_run()",
    ("ls_run_step", "run"): "running_run()", ("ls_run_classify", "run"): "running_run()",
    ("ls_run_weigh", "run"): "running_run()",
    "ls_lr_fn": "rate_of", "ls_loss_fn": "lose_nothing", "ls_shard_fn": "compute_nothing",
    ("ls_run_train", "run"): "running_run()", ("ls_run_save_also", "items"): "some_items()",
    ("ls_run_declare", "name"): '"value"', ("ls_run_declare_with", "name"): '"value"',
    "ls_value_fn": "same_value", ("ls_run_add", "run"): "declaring_run()",
    ("ls_run_add", "name"): '"value"', ("ls_run_add_number", "run"): "declaring_run()",
    ("ls_run_image", "name"): '"value"', ("ls_run_image", "png"): '"8"',
    ("ls_run_image", "bytes"): "1",
    ("ls_run_add_number", "name"): '"value"', ("ls_run_value", "name"): '"value"',
    ("ls_run_evaluate_with", "run"): "declaring_run()",
    ("ls_run_evaluate_with", "best"): '"value"', "ls_evaluate_fn": "evaluate_nothing",
    ("ls_run_step", "loss"): "some_loss()", ("ls_train_refuse", "format"): '"text"',
    ("ls_train_exit", "program"): '"program"', ("ls_train_exit", "status"): "LS_EINVAL",

    ("ls_tensor *", "targets"): "some_targets()",
    ("const ls_tensor *", "targets"): "some_targets()", ("ls_tensor *", "weight"): "some_pair()",
    ("ls_tensor *", "bias"): "some_pair()", ("ls_tensor *", "running_mean"): "some_pair()",
    ("ls_tensor *", "running_var"): "some_pair()", ("const char *", "key"): '"key"',
    ("int", "n_dims"): "2", ("int", "root"): "0", ("int", "peer"): "0", ("int", "tag"): "0",
    ("int", "i"): "0", ("int", "label"): "0", ("int", "key"): "0", ("int", "color"): "0",
    ("size_t", "index"): "0", ("size_t", "i"): "0", ("size_t", "first_batch"): "0",
    ("size_t", "count"): "4", ("size_t", "bytes"): "64", ("const void *", "src"): "some_floats()",
    ("void *", "dst"): "other_floats()",

    "ls_tape *": "some_tape()", "const ls_tape *": "some_tape()", "ls_tensor *": "some_tensor()",
    "const ls_tensor *": "some_tensor()", "ls_device *": "some_device()",
    "const ls_device *": "some_device()", "ls_model *": "some_model()",
    "const ls_model *": "some_model()", "ls_layer *": "some_layer()",
    "const ls_layer *": "some_layer()", "ls_ddp *": "some_ddp()",
    "const ls_ddp *": "some_ddp()", "ls_optimizer *": "some_optimizer()",
    "const ls_optimizer *": "some_optimizer()",
    "ls_local_sgd *": "some_local_sgd()", "const ls_local_sgd *": "some_local_sgd()",
    "const ls_local_sgd_options *": "&local_sgd",
    ("ls_local_sgd_enter", "island"): "0",
    "ls_grad_scaler *": "some_grad_scaler()", "const ls_grad_scaler *": "some_grad_scaler()",
    "ls_comm *": "some_comm()",
    "const ls_comm *": "some_comm()", "ls_work *": "some_work()", "const ls_work *": "some_work()",
    "const ls_dataset *": "some_dataset()", "ls_sampler *": "some_sampler()",
    "const ls_sampler *": "some_sampler()", "ls_loader *": "some_loader()",
    "const ls_loader *": "some_loader()", "ls_checkpoint *": "some_checkpoint()",
    "const ls_checkpoint *": "some_checkpoint()", "ls_store *": "some_store()",
    "const ls_store *": "some_store()", "ls_run *": "some_run()", "const ls_run *": "some_run()",
    "const ls_flag *": "some_flag()", "const ls_flags *": "some_flags()",
    "ls_train_flags *": "some_train_flags()", "const ls_train_flags *": "some_train_flags()",
    "const ls_meta *": "&meta", "const char *const *": "some_keys()", "const size_t *": "counts",
    # Not looked into: this process has no accelerator.
    "ls_queue *": "(ls_queue *)(void *)eight_floats",
    "const int *": "ones",
    "const int64_t *": "twos", "char **": "some_argv()", "int": "1", "int64_t": "1",
    "uint64_t": "1", "double": "1", "ls_dtype": "LS_F32", "ls_reduce_op": "LS_SUM",
    "ls_status": "LS_OK", "ls_log_level": "LS_LOG_ERROR", "ls_load_mode": "LS_LOAD_STRICT",
    "void *": "NULL", "ls_grad_of_fn": "ls_grad", "ls_grad_ready_fn": "ignore_leaf",
    "ls_grad_check_fn": "sum_of_squares", "ls_tape_checkpoint_fn": "pass_input",
    "ls_checkpoint_difference_fn": "ignore_difference",
    "ls_spawn_fn": "do_nothing", "ls_forward_fn": "NULL", "const ls_schedule *": "&schedule",
    "const ls_conv1d_params *": "NULL", "const ls_conv_transpose1d_params *": "NULL",
    "const ls_conv_transpose2d_params *": "NULL",
    "const ls_nn_conv_transpose1d_options *": "&nn_up1",
    "const ls_nn_conv_transpose2d_options *": "&nn_up",
    **{(f"ls_nn_conv_transpose{n}d", "name"): f'"up{n}"' for n in (1, 2)},
    "const ls_nn_conv1d_options *": "&nn_conv1",
    "const ls_conv2d_params *": "&conv", "const ls_pool2d_params *": "&pool",
    "const ls_nn_conv2d_options *": "&nn_conv", "const ls_batch_norm_sync *": "NULL",
    "const ls_sgd_options *": "&sgd", "const ls_adam_options *": "&adam",
    "const ls_sampler_options *": "&sampling", "const ls_augment *": "NULL",
    "const ls_loader_options *": "loading()", "const ls_named *": "some_parameters()",
    ("ls_checkpoint_save", "items"): "some_items()",
    ("ls_checkpoint_compare", "items"): "some_items()",
    ("ls_checkpoint_load", "items"): "some_items()",
    ("ls_checkpoint_load", "c"): "some_checkpoint()",
    ("ls_checkpoint_save_as", "items"): "some_items()",
    ("ls_checkpoint_load_fitting", "items"): "some_items()", "ls_checkpoint_skip_fn": "NULL",
}
# Pointers to which a function writes: each gets zeroed memory of its own.
OUT = {f"ls_{name} **" for name in (
    "tensor", "tape", "device", "model", "ddp", "comm", "work", "dataset", "sampler", "loader",
    "checkpoint", "store", "run", "optimizer", "grad_scaler", "local_sgd")}
OUT |= {f"ls_{name} *" for name in ("batch", "ddp_step", "ddp_stats", "run_state", "recovery",
                                    "checkpoint_entry", "augment", "rnn_state")}
OUT |= {"void **", "const int64_t **", "int *", "int64_t *", "size_t *", "double *"}
OUT_TEXT = {("ls_flags_help", "out")}  # char **, which elsewhere is argv
# A type whose only valid value in these calls is "all default".
OPTIONAL = {f"const ls_{name} *" for name in (
    "init_options", "ddp_options", "spawn_options", "store_options", "device_options",
    "attention_params", "synthetic_options", "batch_norm_params", "cross_entropy_params",
    "loss_params", "nn_batch_norm_options",
    "nn_layer_norm_options", "nn_rnn_options", "rnn_state", "grad_scaler_options")}

ANY = "anything"  # something but NULL
NULL_GIVES = {
    # Documented as "NULL is allowed", or with what NULL gives.
    ("ls_device_close", "device"): "LS_OK",
    ("ls_store_get", "bytes"): "LS_OK", ("ls_store_add", "out"): "LS_OK",
    ("ls_store_compare_set", "swapped"): "LS_OK", ("ls_store_delete", "existed"): "LS_OK",
    **{(f"ls_conv{kind}d", p): ANY for kind in ("1", "2", "_transpose1", "_transpose2")
       for p in ("bias", "params")}, ("ls_linear", "bias"): ANY,
    **{(f"ls_{name}", "params"): ANY for name in ("batch_norm", "bn_relu", "bn_add")},
    ("ls_cross_entropy_with", "params"): ANY, ("ls_nn_batch_norm1d", "opt"): ANY,
    ("ls_nn_batch_norm2d", "opt"): ANY,
    **{(f"ls_{name}", "params"): ANY for name in (
        "l1_loss", "smooth_l1_loss", "mse_loss_with", "bce_with_logits")},
    ("ls_attention", "params"): ANY,
    ("ls_softmax_over", "mask"): ANY, ("ls_log_softmax_over", "mask"): ANY,
    ("ls_nn_layer_norm", "opt"): ANY, ("ls_nn_layer", "arg"): ANY,
    ("ls_model_summary", "arg"): "LS_OK",
    ("ls_model_freeze", "n_matched"): "LS_OK",
    **{("ls_gru_cell", name): ANY for name in ("h", "b_ih", "b_hh")},
    ("ls_nn_lstm", "opt"): ANY, ("ls_nn_gru", "opt"): ANY,
    **{("ls_forward_sequence", name): ANY for name in ("lengths", "first", "last")},
    **{(f"ls_{kind}_norm", p): ANY for kind in ("layer", "group") for p in ("weight", "bias")},
    ("ls_grad_check", "arg"): "LS_OK", ("ls_grad_check", "worst"): "LS_OK",
    ("ls_checkpoint_load_fitting", "each"): "LS_OK",
    ("ls_checkpoint_load_fitting", "arg"): "LS_OK",
    ("ls_checkpoint_compare", "each"): "LS_OK", ("ls_checkpoint_compare", "arg"): "LS_OK",
    ("ls_backend_check", "name"): "LS_OK",
    ("ls_init", "opt"): "LS_OK", ("ls_ddp_create", "opt"): "LS_OK", ("ls_spawn", "arg"): "LS_OK",
    ("ls_work_then", "arg"): "LS_OK", ("ls_comm_set_stack", "fn"): "LS_OK",
    ("ls_comm_set_stack", "arg"): "LS_OK",
    ("ls_dataset_lengths", "name"): "LS_OK",
    ("ls_spawn", "opt"): "LS_OK", ("ls_dataset_open_folder", "like"): "LS_OK",
    ("ls_dataset_open_synthetic", "opt"): "LS_OK", ("ls_dataset_augment", "augment"): "LS_OK",
    ("ls_flags_parse", "rest"): "LS_OK", ("ls_clip_grad_norm", "norm"): "LS_OK",
    ("ls_store_open", "opt"): "LS_OK", ("ls_device_open", "opt"): "LS_OK",
    ("ls_device_count", "opt"): "LS_OK",
    ("ls_run_distribute", "opt"): "LS_OK", ("ls_grad_scaler_create", "opt"): "LS_OK",
    ("ls_run_start", "forward"): "LS_OK",
    ("ls_run_schedule_with", "arg"): "LS_OK", ("ls_run_evaluate_with", "arg"): "LS_OK",
    ("ls_run_start", "arg"): "LS_OK", ("ls_run_close", "run"): "LS_OK", ("ls_store_url", "s"): ANY,
    ("ls_tensor_dtype", "t"): "LS_DTYPE_COUNT", ("ls_comm_rank", "comm"): "-1",
    ("ls_comm_local_rank", "comm"): "-1", ("ls_work_test", "work"): "1",
    ("ls_local_sgd_island", "local"): "-1",
    ("ls_work_source", "work"): "-1", ("ls_dataset_label", "d"): "-1",
    ("ls_train_exit", "program"): "1", ("ls_train_main", "program"): "1",
    ("ls_train_main", "argv"): "1",
    ("ls_tape_training", "tape"): "0", ("ls_tape_compute", "tape"): "LS_F32",
    **{(f"ls_{name}", "out"): "LS_OK" for name in (
        "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter",
        "all_to_all", "all_gather_list", "gather_list", "scatter_list", "reduce_scatter_list",
        "all_to_all_list", "all_gather_v", "gather_v", "scatter_v",
        "reduce_scatter_v", "all_to_all_v",
        "barrier")},
}

HEAD = """/* Made by null_calls.py from the public headers. */
#include "api/null_calls.h"
#include "api/values.h"

#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
#pragma GCC diagnostic ignored "-Wunused-variable"
"""


def key_of(function, p):
    """The entry that says what the parameter gets; None: there is none."""
    if (function.name, p.name) in OUT_TEXT:
        return (function.name, p.name)
    keys = ((function.name, p.name), (p.type, p.name), p.type)
    return next((key for key in keys if key in VALUES or key in OUT or key in OPTIONAL), None)


def local(function, p, tested):
    """The lines that declare a parameter's argument."""
    key = key_of(function, p)
    declared = p.type if p.type.endswith("*") else p.type + " "
    if p is tested or key in OPTIONAL:
        return [f"    {declared}{p.name}_ = NULL;"]
    if key is None:
        raise SystemExit(f"null_calls.py: no value for '{p.type} {p.name}' of {function.name}: "
                         "add it to VALUES")
    if key in VALUES:
        return [f"    {declared}{p.name}_ = {VALUES[key]};"]
    target = p.type[:-1].strip()
    gap = "" if target.endswith("*") else " "
    return [f"    static {target}{gap}{p.name}_out;", f"    {declared}{p.name}_ = &{p.name}_out;"]


def check(function, tested, call):
    """The statement that makes the call and checks what it gives."""
    wanted = NULL_GIVES.get((function.name, tested.name))
    if function.returns == "void":
        return f"    {call};\n    return 1;"
    if wanted == ANY:
        return f"    return {call} != NULL;"
    if function.returns == "ls_status":
        return f"    return gives_status({call}, {wanted or 'LS_EINVAL'});"
    if function.returns.endswith("*"):
        return f"    return {call} == NULL;"
    return f"    return {call} == ({function.returns}){wanted or '0'};"


def one(number, function, tested):
    lines = [f"static int call_{number}(void)", "{"]
    for p in function.parameters:
        lines += local(function, p, tested)
    call = f"{function.name}({', '.join(p.name + '_' for p in function.parameters)})"
    return "\n".join([*lines, "", "    forget_error();", check(function, tested, call), "}", ""])


def main(include, out):
    functions, _ = headers.read(include)
    pairs = [(f, p) for f in functions for p in f.parameters if p.is_pointer]
    used = {key_of(f, p) for f in functions for p in f.parameters}
    text = [HEAD] + [one(i, f, p) for i, (f, p) in enumerate(pairs)]
    rows = [f'    {{"{f.name}", "{p.name}", call_{i}}},' for i, (f, p) in enumerate(pairs)]
    stale = [key for key in {*VALUES, *OUT, *OUT_TEXT, *OPTIONAL} - used]
    stale += [key for key in NULL_GIVES if key not in {(f.name, p.name) for f, p in pairs}]
    if stale:
        raise SystemExit(f"null_calls.py: entries that fit no parameter: {stale}")
    text += ["const null_call null_calls[] = {", *rows, "};",
             f"const int n_null_calls = {len(rows)};", ""]
    with open(out, "w", encoding="utf-8") as f:
        f.write("\n".join(text))


main(*sys.argv[1:])
