/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe.c - what the flags say about learning: optimizer, schedule, and the words that they may be given by.
 */
#include "train/run.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* One of several words for a flag; NULL means the first. */
typedef struct choice {
    const char *flag;
    const char *words[6];
} choice;

static const choice optimizers = {"--optimizer", {"sgd", "adam", "adamw"}};
static const choice schedules = {"--schedule", {"constant", "step", "multi-step", "cosine"}};
static const choice save_errors = {"--on-save-error", {"continue", "stop"}};
static const choice bad_images = {"--bad-images", {"fail", "skip"}};

static const choice compressions = {"--compress", {"none", "bf16", "fp16"}};

static const choice save_dtypes = {"--save-dtype", {"fp32", "fp16", "bf16"}};

static ls_status check_choice(const choice *c, const char *word)
{
    char known[128] = "";
    size_t n = 0;

    for (int i = 0; c->words[i] != NULL; i++) {
        if (word == NULL || text_equal(word, c->words[i]))
            return LS_OK;
        text_format(known + n, sizeof(known) - n, "%s%s", i > 0 ? ", " : "", c->words[i]);
        n = strlen(known);
    }
    return ls_fail(LS_EINVAL, "%s %s: there are %s", c->flag, word, known);
}

ls_status recipe_check(const ls_train_flags *f)
{
    LS_TRY(check_choice(&optimizers, f->optimizer));
    LS_TRY(check_choice(&schedules, f->schedule));
    LS_TRY(check_choice(&save_errors, f->on_save_error));
    LS_TRY(check_choice(&bad_images, f->bad_images));
    LS_TRY(check_choice(&compressions, f->compress));
    LS_TRY(check_choice(&save_dtypes, f->save_dtype));
    if (f->skip_mismatched && f->init == NULL)
        return ls_fail(LS_EINVAL, "--skip-mismatched goes with --init");
    if (f->accumulate < 0)
        return ls_fail(LS_EINVAL, "--accumulate %" PRId64 ": batches of a step, at least 1",
                       f->accumulate);
    if (f->lr_milestones != NULL && (f->schedule == NULL || !text_equal(f->schedule, "multi-step")))
        return ls_fail(LS_EINVAL, "--lr-milestones goes with --schedule multi-step");
    if (f->schedule_steps > 0 && (f->schedule == NULL || !text_equal(f->schedule, "cosine")))
        return ls_fail(LS_EINVAL, "--schedule-steps goes with --schedule cosine");
    if (f->nesterov && f->optimizer != NULL && !text_equal(f->optimizer, "sgd"))
        return ls_fail(LS_EINVAL, "--nesterov goes with --optimizer sgd");
    return LS_OK;
}

void recipe_ask_ddp(const ls_train_flags *f, ls_ddp_options *opt)
{
    if (f->sync_bn)
        opt->sync_batch_norm = 1;
    if (f->compress != NULL && text_equal(f->compress, "bf16"))
        opt->hook = LS_DDP_HOOK_BF16;
    if (f->compress != NULL && text_equal(f->compress, "fp16"))
        opt->hook = LS_DDP_HOOK_FP16;
}

/* --- schedule --- */

/* The steps of n epochs; `flag` is where n comes from. */
static ls_status epochs_to_steps(const ls_run *run, const char *flag, int64_t n, int64_t *steps)
{
    if (run->epoch_steps > 0 && n > STEPS_MAX / run->epoch_steps)
        return ls_fail(LS_EINVAL,
                       "%s %" PRId64 ": with %" PRId64 " step%s an epoch that is more "
                       "than the %" PRId64 " steps that a run may have",
                       flag, n, run->epoch_steps, text_plural(run->epoch_steps), STEPS_MAX);
    *steps = n * run->epoch_steps;
    return LS_OK;
}

/* "30,60" in epochs into run->milestones in steps. */
static ls_status read_milestones(ls_run *run)
{
    const char *at = run->flags->lr_milestones;
    char number[24];
    int n;

    if (at == NULL || *at == 0)
        return ls_fail(LS_EINVAL, "--schedule multi-step needs --lr-milestones: epochs, as 30,60");
    for (n = 0; text_next_item(&at, number, sizeof(number)); n++) {
        int64_t epoch;

        if (n == MILESTONES_MAX)
            return ls_fail(LS_EINVAL, "--lr-milestones: more than %d", MILESTONES_MAX);
        LS_TRY(text_parse_int(number, "--lr-milestones", 0, 1 << 30, &epoch));
        run->milestones[n] = epoch * run->epoch_steps;
    }
    run->schedule.milestones = run->milestones;
    run->schedule.n_milestones = n;
    return LS_OK;
}

static int64_t at_least_1(int64_t x)
{
    return x > 1 ? x : 1;
}

ls_status recipe_count_steps(ls_run *run)
{
    LS_TRY(epochs_to_steps(run, "--epochs", run->flags->epochs, &run->all_steps));
    return epochs_to_steps(run, "--start-epoch", run->flags->start_epoch, &run->at.step);
}

ls_status recipe_make_schedule(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    const char *name = f->schedule != NULL ? f->schedule : "constant";
    const int64_t period = f->lr_step_size > 0 ? f->lr_step_size : (f->epochs + 2) / 3;
    ls_schedule *s = &run->schedule;

    *s = (ls_schedule){.base_lr = f->lr,
                       .min_lr = f->lr_min,
                       .gamma = f->lr_gamma,
                       .warmup = llround(f->lr_warmup_epochs * (double)run->epoch_steps),
                       .warmup_factor = f->lr_warmup_factor};
    if (text_equal(name, "step")) {
        s->kind = LS_SCHEDULE_STEP;
        LS_TRY(epochs_to_steps(run, "--lr-step-size", period, &s->step));
        s->step = at_least_1(s->step);
    } else if (text_equal(name, "multi-step")) {
        s->kind = LS_SCHEDULE_MULTI_STEP;
        return read_milestones(run);
    } else if (text_equal(name, "cosine")) {
        s->kind = LS_SCHEDULE_COSINE;
        s->total =
            at_least_1((f->schedule_steps > 0 ? f->schedule_steps : run->all_steps) - s->warmup);
    }
    return LS_OK;
}

/* --- optimizer --- */

ls_status recipe_make_optimizer(ls_run *run)
{
    const ls_train_flags *f = run->flags;
    const double lr = f->evaluate ? 1 : f->lr; // an evaluation makes no step
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
    const ls_named *parameters = ls_model_parameters(run->model, &n);

    if (lr == 0)
        return ls_fail(LS_EINVAL, "--lr is 0 or not given: nothing would be learnt; give a "
                                  "learning rate over 0");
    if (f->optimizer != NULL && text_equal(f->optimizer, "adam"))
        return ls_adam_create(parameters, n, ls_grad, &adam, &run->optimizer);
    if (f->optimizer != NULL && text_equal(f->optimizer, "adamw"))
        return ls_adamw_create(parameters, n, ls_grad, &adam, &run->optimizer);
    return ls_sgd_create(parameters, n, ls_grad, &sgd, &run->optimizer);
}
