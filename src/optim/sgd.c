/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sgd.c - stochastic gradient descent with momentum, with exactly the rule of torch.optim.SGD;
 * optimizer.c runs the steps.
 */
#include "base/alloc.h"
#include "base/options.h"
#include "optim/optimizer.h"

#include <math.h>

typedef struct sgd {
    ls_optimizer common; /* the first member: the two are cast into each other */
    ls_sgd_options opt;
} sgd;

static op_update sgd_rates(const ls_optimizer *self, const optimizer_param *p)
{
    const ls_sgd_options *opt = &((const sgd *)self)->opt;

    return (op_update){.lr = self->lr * p->lr_factor,
                       .momentum = opt->momentum,
                       .dampening = opt->dampening,
                       .weight_decay = p->weight_decay,
                       .nesterov = opt->nesterov != 0,
                       .first = p->n_updates == 0};
}

/* Of the number of updates only 0 or more matters. */
static const optimizer_ops sgd_ops = {.op = OP_SGD,
                                      .rates = sgd_rates,
                                      .rate_name = "sgd.lr",
                                      .buffer_names = {"momentum_buffer"},
                                      .count_name = "momentum_buffer_set",
                                      .count_bytes = 1,
                                      .most_updates = 1};

static ls_status resolve(const ls_sgd_options *given, ls_sgd_options *opt)
{
    LS_TRY(ls_context(OPTIONS_COPY(ls_sgd_options, given, opt), "sgd"));
    LS_TRY(optimizer_check_lr("sgd", opt->lr));
    LS_TRY(optimizer_check_rate("sgd", "momentum", opt->momentum));
    LS_TRY(optimizer_check_rate("sgd", "weight_decay", opt->weight_decay));
    if (!isfinite(opt->dampening))
        return ls_fail(LS_EINVAL, "sgd: dampening is %g; it must be finite", opt->dampening);
    if (opt->nesterov && (opt->momentum <= 0 || opt->dampening != 0))
        return ls_fail(LS_EINVAL, "sgd: nesterov needs a momentum over 0 and no dampening");
    return LS_OK;
}

ls_status ls_sgd_create(const ls_named *parameters, int n, ls_grad_of_fn grad_of,
                        const ls_sgd_options *opt, ls_optimizer **out)
{
    ls_sgd_options resolved;
    ls_status st;
    sgd *s;

    LS_TRY(LS_GIVEN(out));
    LS_TRY(optimizer_check("sgd", parameters, n, grad_of, opt));
    LS_TRY(resolve(opt, &resolved));
    LS_TRY(LS_NEW(&s, 1, "for an optimizer"));
    s->opt = resolved;
    s->common.ops = &sgd_ops;
    s->common.grad_of = grad_of;
    ls_optimizer_set_lr(&s->common, resolved.lr);
    st = optimizer_init(&s->common, parameters, n, resolved.weight_decay,
                        resolved.momentum > 0 ? 1 : 0);
    if (st != LS_OK) {
        ls_optimizer_destroy(&s->common);
        return st;
    }
    *out = &s->common;
    return LS_OK;
}
