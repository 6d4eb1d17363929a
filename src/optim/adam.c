/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adam.c - Adam (Kingma and Ba, 2015) and AdamW (Loshchilov and Hutter, 2019), with the rules of
 * torch.optim; optimizer.c runs the steps.
 */
#include "base/alloc.h"
#include "base/options.h"
#include "optim/exact.h"
#include "optim/optimizer.h"

#include <math.h>

typedef struct adam {
    ls_optimizer common; /* the first member: the two are cast into each other */
    ls_adam_options opt; /* resolved */
    bool decoupled;      /* AdamW */
} adam;

static op_update adam_rates(const ls_optimizer *self, const optimizer_param *p)
{
    const adam *a = (const adam *)self;
    const int64_t t = p->n_updates + 1;
    const double lr = self->lr * p->lr_factor;
    const double decay = p->weight_decay;

    return (op_update){.beta1 = a->opt.beta1,
                       .beta2 = a->opt.beta2,
                       .eps = a->opt.eps,
                       .step_size = lr / (1 - exact_power(a->opt.beta1, t)),
                       .root_scale = sqrt(1 - exact_power(a->opt.beta2, t)),
                       .added_decay = a->decoupled ? 0 : decay,
                       .decay_factor = a->decoupled ? 1 - lr * decay : 1};
}

#define ADAM_RULE                                                                                  \
    .op = OP_ADAM, .rates = adam_rates,                                                            \
    .buffer_names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .count_name = "step",             \
    .count_bytes = 8, .most_updates = INT64_MAX - 1

static const optimizer_ops adam_ops = {.rate_name = "adam.lr", ADAM_RULE};
static const optimizer_ops adamw_ops = {.rate_name = "adamw.lr", ADAM_RULE};

static ls_status resolve_beta(const char *name, const char *which, double given, double standard,
                              double *out)
{
    *out = given == 0 ? standard : given < 0 ? 0 : given;
    if (*out < 1)
        return LS_OK;
    return ls_fail(LS_EINVAL, "%s: %s is %g; it must be below 1", name, which, given);
}

static ls_status resolve(const char *name, const ls_adam_options *given, ls_adam_options *opt)
{
    LS_TRY(ls_context(OPTIONS_COPY(ls_adam_options, given, opt), "%s", name));
    LS_TRY(resolve_beta(name, "beta1", opt->beta1, 0.9, &opt->beta1));
    LS_TRY(resolve_beta(name, "beta2", opt->beta2, 0.999, &opt->beta2));
    opt->eps = opt->eps == 0 ? 1e-8 : opt->eps;
    LS_TRY(optimizer_check_lr(name, opt->lr));
    LS_TRY(optimizer_check_rate(name, "eps", opt->eps));
    return optimizer_check_rate(name, "weight_decay", opt->weight_decay);
}

static ls_status create(const char *name, const optimizer_ops *ops, const ls_named *parameters,
                        int n, ls_grad_of_fn grad_of, const ls_adam_options *opt,
                        ls_optimizer **out)
{
    ls_status st;
    adam *a;

    LS_TRY(optimizer_check(name, parameters, n, grad_of, opt));
    LS_TRY(LS_NEW(&a, 1, "for an optimizer"));
    a->decoupled = ops == &adamw_ops;
    a->common.ops = ops;
    a->common.grad_of = grad_of;
    st = resolve(name, opt, &a->opt);
    if (st == LS_OK) {
        ls_optimizer_set_lr(&a->common, a->opt.lr);
        st = optimizer_init(&a->common, parameters, n, a->opt.weight_decay, a->opt.amsgrad ? 3 : 2);
    }
    if (st != LS_OK) {
        ls_optimizer_destroy(&a->common);
        return st;
    }
    *out = &a->common;
    return LS_OK;
}

ls_status ls_adam_create(const ls_named *parameters, int n, ls_grad_of_fn grad_of,
                         const ls_adam_options *opt, ls_optimizer **out)
{
    LS_TRY(LS_GIVEN(out));
    return create("adam", &adam_ops, parameters, n, grad_of, opt, out);
}

ls_status ls_adamw_create(const ls_named *parameters, int n, ls_grad_of_fn grad_of,
                          const ls_adam_options *opt, ls_optimizer **out)
{
    LS_TRY(LS_GIVEN(out));
    return create("adamw", &adamw_ops, parameters, n, grad_of, opt, out);
}
