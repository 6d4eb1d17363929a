/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clip.c - clips gradients before a step, as torch.nn.utils.clip_grad_norm_ and clip_grad_value_
 * do.
 */
#include <lockstep/optim.h>

#include "optim/optim_kernel.h"
#include "optim/optimizer.h"
#include "tensor/tensor.h"

#include <math.h>

/* A function that is applied to every gradient. */
typedef struct clip_pass {
    void (*fn)(const optim_loops *loops, const grad_range *g, double *value);
    double value; /* the argument of fn */
    bool writes;
} clip_pass;

static void add_squares(const optim_loops *loops, const grad_range *g, double *value)
{
    *value += loops->sum_of_squares(g);
}

// NOLINTNEXTLINE(readability-non-const-parameter): a clip_pass has one type of function
static void scale(const optim_loops *loops, const grad_range *g, double *value)
{
    loops->scale(g, *value);
}

// NOLINTNEXTLINE(readability-non-const-parameter): a clip_pass has one type of function
static void clamp(const optim_loops *loops, const grad_range *g, double *value)
{
    loops->clamp(g, *value);
}

static ls_status pass_over(const ls_named *parameters, int n, ls_grad_of_fn grad_of,
                           clip_pass *pass)
{
    const optim_kernels *kernels = optim_kernels_at(0);

    for (int i = 0; i < n; i++) {
        ls_tensor *grad = grad_of(parameters[i].tensor);
        grad_range g;

        if (grad == NULL)
            continue;
        LS_TRY(optimizer_grad(&parameters[i], grad, &g.values));
        g.count = ls_tensor_count(grad);
        if (ls_tensor_dtype(grad) == LS_F32)
            pass->fn(&kernels->f32, &g, &pass->value);
        else if (ls_tensor_dtype(grad) == LS_F64)
            pass->fn(&kernels->f64, &g, &pass->value);
        else
            return ls_fail(LS_EUNSUPPORTED, "gradient of %s is %s; it must be float32 or float64",
                           parameters[i].name, ls_dtype_name(ls_tensor_dtype(grad)));
        if (pass->writes)
            tensor_written(grad);
    }
    return LS_OK;
}

static ls_status check(const char *name, const ls_named *parameters, int n, ls_grad_of_fn grad_of)
{
    if (grad_of == NULL || n < 0 || (n > 0 && parameters == NULL))
        return ls_fail(LS_EINVAL, "%s: grad_of and parameters must not be NULL", name);
    return LS_OK;
}

ls_status ls_clip_grad_norm(const ls_named *parameters, int n, ls_grad_of_fn grad_of,
                            double max_norm, double *norm)
{
    clip_pass sum = {.fn = add_squares};
    clip_pass rescale = {.fn = scale, .writes = true};
    double total;

    LS_TRY(check("clip_grad_norm", parameters, n, grad_of));
    if (!(max_norm > 0))
        return ls_fail(LS_EINVAL, "clip_grad_norm: max_norm is %g; it must be over 0", max_norm);
    LS_TRY(pass_over(parameters, n, grad_of, &sum));
    total = sqrt(sum.value);
    rescale.value = max_norm / (total + 1e-6);
    // A NaN in one gradient makes all of them NaN.
    if (!(rescale.value >= 1))
        LS_TRY(pass_over(parameters, n, grad_of, &rescale));
    if (norm != NULL)
        *norm = total;
    return LS_OK;
}

ls_status ls_clip_grad_value(const ls_named *parameters, int n, ls_grad_of_fn grad_of, double limit)
{
    clip_pass bound = {.fn = clamp, .value = limit, .writes = true};

    LS_TRY(check("clip_grad_value", parameters, n, grad_of));
    if (!(limit >= 0))
        return ls_fail(LS_EINVAL, "clip_grad_value: limit is %g; it must be at least 0", limit);
    return pass_over(parameters, n, grad_of, &bound);
}
