/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hyperparameters.c - makes optimizer and learning rate schedule from the flags, after checking
 * them. run.c calls it when a run is opened, distributed and started.
 */
#include "train/run/hyperparameters.h"

#include "base/log.h"
#include "base/status.h"
#include "base/text.h"
#include "tensor/device.h"
#include "train/partition.h"
#include "train/run/run_local.h"
#include "train/run/run_power.h"
#include "train/state/state_file.h"

#include <lockstep/log.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* LS_EINVAL unless `value` is an item of the list `values`, or NULL. */
static ls_status check_choice(const char *flag, const char *values, const char *value)
{
    const char *at = values;
    char item[16];

    while (value != NULL && text_next_item(&at, item, sizeof(item)))
        if (text_equal(value, item))
            return LS_OK;
    return value == NULL ? LS_OK
                         : ls_fail(LS_EINVAL, "%s %s: choose one of %s", flag, value, values);
}

static ls_status check_balance(const ls_train_flags *f)
{
    if (f->balance == NULL)
        return LS_OK;
    if (f->balance[0] != 0)
        LS_TRY(check_choice("--balance", "shards, rows", f->balance));
    if (partition_divides_rows(f) && f->shards > 0)
        return ls_fail(LS_EINVAL, "--balance rows does not go with --shards, which ranks get "
                                  "whole: use --balance");
    if (!partition_divides_rows(f) && f->shards == 0)
        return ls_fail(LS_EINVAL, "--balance needs --shards V, with several shards for each rank; "
                                  "without --shards use --balance rows");
    return LS_OK;
}

ls_status hyperparameters_check(const ls_train_flags *f)
{
    const bool has_power = f->compress != NULL && text_starts(f->compress, "powersgd");
    const struct {
        const char *flag, *values, *value;
    } choices[] = {
        {"--optimizer", "sgd, adam, adamw", f->optimizer},
        {"--schedule", "constant, step, multi-step, cosine", f->schedule},
        {"--on-save-error", "continue, stop", f->on_save_error},
        {"--bad-images", "fail, skip", f->bad_images},
        {"--compress", "none, bf16, fp16, int8, int4, powersgd:R", has_power ? NULL : f->compress},
        {"--precision", "fp32, bf16, fp16", f->precision},
        {"--save-dtype", "fp32, fp16, bf16", f->save_dtype},
    };

    LS_TRY(run_power_check(f));
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++)
        LS_TRY(check_choice(choices[i].flag, choices[i].values, choices[i].value));
    if (f->heal && f->check_replicas == 0 && f->audit == 0)
        return ls_fail(LS_EINVAL, "--heal needs --check-replicas K or --audit K");
    if (f->audit > 0 && f->shards == 0)
        return ls_fail(LS_EINVAL, "--audit needs --shards V: only a shard has the same bits on "
                                  "every rank");
    LS_TRY(check_balance(f));
    if (f->skip_mismatched && f->init == NULL)
        return ls_fail(LS_EINVAL, "--skip-mismatched needs --init");
    if (f->accumulate < 0)
        return ls_fail(LS_EINVAL, "--accumulate %" PRId64 ": must be at least 1", f->accumulate);
    if (f->lr_milestones != NULL && (f->schedule == NULL || !text_equal(f->schedule, "multi-step")))
        return ls_fail(LS_EINVAL, "--lr-milestones needs --schedule multi-step");
    if (f->schedule_steps > 0 && (f->schedule == NULL || !text_equal(f->schedule, "cosine")))
        return ls_fail(LS_EINVAL, "--schedule-steps needs --schedule cosine");
    if (f->nesterov && f->optimizer != NULL && !text_equal(f->optimizer, "sgd"))
        return ls_fail(LS_EINVAL, "--nesterov needs --optimizer sgd");
    return run_local_check(f);
}

const char *hyperparameters_precision(const ls_train_flags *f)
{
    return f->precision != NULL ? f->precision : "fp32";
}

static bool is_fp16(const ls_train_flags *f)
{
    return text_equal(hyperparameters_precision(f), "fp16");
}

/* Warns on rank 0 where the device has no kernels for the type. */
static void warn_if_slow(const ls_train_flags *f, const ls_device *device, ls_dtype type)
{
    const char *why = device_slow_type(device, type);

    if (why != NULL && log_rank() == 0)
        ls_log(LS_LOG_WARN, "train", "--precision %s is slower than fp32 here: %s", f->precision,
               why);
}

ls_status hyperparameters_set_precision(const ls_train_flags *f, ls_device *device, ls_tape *tape)
{
    ls_dtype type = LS_F32;

    if (text_equal(hyperparameters_precision(f), "bf16"))
        type = LS_BF16;
    else if (is_fp16(f))
        type = LS_F16;
    if (type != LS_F32)
        warn_if_slow(f, device, type);
    return ls_tape_set_compute(tape, type);
}

/* The gradients of activations are those of a sum over `rows` rows, so that a smaller scale than
 * torch's, for a mean, gives numbers of the same size. */
ls_status hyperparameters_make_scaler(const ls_train_flags *f, int64_t rows,
                                      ls_optimizer *optimizer, ls_grad_scaler **out)
{
    ls_grad_scaler_options opt = {.size = sizeof(opt), .init_scale = 65536};

    if (!is_fp16(f) || f->evaluate)
        return LS_OK;
    for (int64_t n = 1; n < rows && opt.init_scale > 1; n *= 2)
        opt.init_scale /= 2;
    return ls_grad_scaler_create(optimizer, &opt, out);
}

void hyperparameters_set_ddp(const ls_train_flags *f, ls_ddp_options *opt)
{
    static const struct {
        const char *name;
        ls_ddp_hook hook;
    } hooks[] = {{"bf16", LS_DDP_HOOK_BF16},
                 {"fp16", LS_DDP_HOOK_FP16},
                 {"int8", LS_DDP_HOOK_INT8},
                 {"int4", LS_DDP_HOOK_INT4}};
    int rank;

    if (f->check_replicas > 0 && !f->heal)
        opt->check_replicas = (int)f->check_replicas;
    if (f->sync_bn)
        opt->sync_batch_norm = 1;
    for (size_t i = 0; f->compress != NULL && !f->evaluate && i < LS_COUNT_OF(hooks); i++)
        if (text_equal(f->compress, hooks[i].name))
            opt->hook = hooks[i].hook;
    if (!f->evaluate && run_power_rank(f, &rank) == LS_OK && rank > 0) { // it has been checked
        opt->hook = LS_DDP_HOOK_POWERSGD;
        opt->power_rank = rank;
    }
    if (f->shards > 0)
        opt->shards = partition_shards(f);
}

ls_status hyperparameters_count_steps(const char *flag, int64_t n, int64_t epoch_steps,
                                      int64_t *steps)
{
    if (epoch_steps > 0 && n > STEPS_MAX / epoch_steps)
        return ls_fail(LS_EINVAL,
                       "%s %" PRId64 ": with %" PRId64
                       " step%s per epoch this exceeds the limit of "
                       "%" PRId64 " steps",
                       flag, n, epoch_steps, text_plural(epoch_steps), STEPS_MAX);
    *steps = n * epoch_steps;
    return LS_OK;
}

/* "30,60", in epochs, into out->milestones, in steps. */
static ls_status read_milestones(const char *list, int64_t epoch_steps, lr_schedule *out)
{
    const char *at = list;
    char number[24];
    int n;

    if (at == NULL || *at == 0)
        return ls_fail(LS_EINVAL,
                       "--schedule multi-step needs --lr-milestones in epochs, as 30,60");
    for (n = 0; text_next_item(&at, number, sizeof(number)); n++) {
        int64_t epoch;

        if (n == MILESTONES_MAX)
            return ls_fail(LS_EINVAL, "--lr-milestones: more than %d epochs", MILESTONES_MAX);
        LS_TRY(text_parse_int(number, "--lr-milestones", 0, 1 << 30, &epoch));
        out->milestones[n] = epoch * epoch_steps;
    }
    out->schedule.milestones = out->milestones;
    out->schedule.n_milestones = n;
    return LS_OK;
}

static int64_t at_least_1(int64_t x)
{
    return x > 1 ? x : 1;
}

ls_status hyperparameters_make_schedule(const ls_train_flags *f, int64_t epoch_steps,
                                        int64_t all_steps, lr_schedule *out)
{
    const char *name = f->schedule != NULL ? f->schedule : "constant";
    const int64_t period = f->lr_step_size > 0 ? f->lr_step_size : (f->epochs + 2) / 3;
    ls_schedule *s = &out->schedule;

    *s = (ls_schedule){.base_lr = f->lr,
                       .min_lr = f->lr_min,
                       .gamma = f->lr_gamma,
                       .warmup = llround(f->lr_warmup_epochs * (double)epoch_steps),
                       .warmup_factor = f->lr_warmup_factor};
    if (text_equal(name, "step")) {
        s->kind = LS_SCHEDULE_STEP;
        LS_TRY(hyperparameters_count_steps("--lr-step-size", period, epoch_steps, &s->step));
        s->step = at_least_1(s->step);
    } else if (text_equal(name, "multi-step")) {
        s->kind = LS_SCHEDULE_MULTI_STEP;
        return read_milestones(f->lr_milestones, epoch_steps, out);
    } else if (text_equal(name, "cosine")) {
        s->kind = LS_SCHEDULE_COSINE;
        s->total = at_least_1((f->schedule_steps > 0 ? f->schedule_steps : all_steps) - s->warmup);
    }
    return LS_OK;
}

ls_status hyperparameters_make_optimizer(const ls_train_flags *f, ls_model *model,
                                         ls_optimizer **out)
{
    const double lr = f->evaluate ? 1 : f->lr; // an evaluation takes no step
    const ls_sgd_options sgd = {.size = sizeof(sgd),
                                .lr = lr,
                                .momentum = f->momentum,
                                .weight_decay = f->weight_decay,
                                .nesterov = f->nesterov};
    const ls_adam_options adam = {.size = sizeof(adam),
                                  .lr = lr,
                                  .beta1 = f->beta1,
                                  .beta2 = f->beta2,
                                  .eps = f->eps,
                                  .weight_decay = f->weight_decay};
    int n;
    const ls_named *parameters = ls_model_parameters(model, &n);

    if (lr == 0)
        return ls_fail(LS_EINVAL, "--lr is 0 or not given: give a learning rate above 0");
    if (f->optimizer != NULL && text_equal(f->optimizer, "adam"))
        return ls_adam_create(parameters, n, ls_grad, &adam, out);
    if (f->optimizer != NULL && text_equal(f->optimizer, "adamw"))
        return ls_adamw_create(parameters, n, ls_grad, &adam, out);
    return ls_sgd_create(parameters, n, ls_grad, &sgd, out);
}
