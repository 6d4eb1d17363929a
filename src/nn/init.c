/* SPDX-License-Identifier: Apache-2.0 */
/*
 * init.c - initial values of parameters, with the formulas of torch.nn.init. Random numbers come
 * from the model's generator, in the order of calls and row-major. The files that create layers
 * call it, and programs ls_model_init().
 */
#include "nn/model.h"

#include "base/alloc.h"
#include "base/text.h"
#include "tensor/device.h"

#include <math.h>

static ls_status fill_constant(ls_model *model, ls_tensor *t, double value)
{
    const op_call call = {.op = OP_FILL, .attrs = {.value = value}, .n_out = 1, .out = {t}};

    return device_run(model->device, &call);
}

static ls_status fill_uniform(ls_model *model, ls_tensor *t, double center, double bound)
{
    return tensor_draw(t, random_uniform, &(random_source){&model->rng, center, bound});
}

static ls_status fill_normal(ls_model *model, ls_tensor *t, double mean, double deviation)
{
    return tensor_draw(t, random_normal, &(random_source){&model->rng, mean, deviation});
}

void model_fill_constant(ls_model *model, ls_tensor *t, double value)
{
    const ls_status st = fill_constant(model, t, value);

    if (st != LS_OK)
        (void)model_fail(model, st);
}

void model_fill_uniform(ls_model *model, ls_tensor *t, double bound)
{
    const ls_status st = fill_uniform(model, t, 0, bound);

    if (st != LS_OK)
        (void)model_fail(model, st);
}

void model_fill_normal(ls_model *model, ls_tensor *t, double deviation)
{
    const ls_status st = fill_normal(model, t, 0, deviation);

    if (st != LS_OK)
        (void)model_fail(model, st);
}

/* --- truncated normal --- */

typedef struct truncated {
    random_source source;
    double low; /* in standard deviations from the mean */
    double high;
} truncated;

/* By rejection (Robert, "Simulation of truncated normal variables", 1995): from a uniform
 * distribution for a narrow interval, else from the normal one. */
static double draw_truncated(const truncated *t)
{
    const double nearest = fmin(fmax(0, t->low), t->high);
    double z;

    if (t->high - t->low < 2) {
        do {
            z = t->low + (t->high - t->low) * ls_rng_double(t->source.rng);
        } while (ls_rng_double(t->source.rng) > exp((nearest * nearest - z * z) / 2));
    } else {
        do {
            z = ls_rng_normal(t->source.rng);
        } while (z < t->low || z > t->high);
    }
    return t->source.mean + t->source.scale * z;
}

static void next_truncated(void *arg, double *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = draw_truncated(arg);
}

/* Only intervals that rejection is quick for; torch.nn.init warns beyond them. */
static ls_status fill_truncated(ls_model *model, ls_tensor *t, const ls_nn_init_options *o,
                                double deviation)
{
    const bool is_given = o->low != 0 || o->high != 0;
    const truncated source = {
        .source = {&model->rng, o->mean, deviation},
        .low = ((is_given ? o->low : -2) - o->mean) / deviation,
        .high = ((is_given ? o->high : 2) - o->mean) / deviation,
    };

    if (!(source.low < source.high) || source.low > 2 || source.high < -2)
        return ls_fail(LS_EINVAL,
                       "truncated normal: low %g and high %g of mean %g and deviation %g; the mean "
                       "must be within 2 deviations of the interval",
                       o->low, o->high, o->mean, deviation);
    return tensor_draw(t, next_truncated, (void *)(uintptr_t)&source);
}

/* --- matrices --- */

/* Elements of a matrix, which is n_vectors rows of v, or its columns; without v the identity. */
typedef struct matrix {
    const double *v;
    size_t rows;
    size_t columns;
    size_t at; /* the next element, row-major */
    double gain;
} matrix;

static double next_element(matrix *m)
{
    const size_t row = m->at / m->columns;
    const size_t column = m->at % m->columns;

    m->at++;
    if (m->v == NULL)
        return row == column;
    return m->gain *
           m->v[m->rows < m->columns ? row * m->columns + column : column * m->rows + row];
}

static void next_elements(void *arg, double *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = next_element(arg);
}

static double dot(const double *a, const double *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/*
 * n_vectors orthonormal vectors of `length` elements: normal ones after Gram and Schmidt's
 * orthogonalization, done twice (Giraud, Langou and Rozloznik, "The loss of orthogonality in the
 * Gram-Schmidt orthogonalization process", 2005). That is Q of a QR decomposition whose R has
 * a positive diagonal, as torch.nn.init.orthogonal_ makes it.
 */
static void draw_orthonormal(ls_rng *rng, double *v, size_t n_vectors, size_t length)
{
    for (size_t j = 0; j < n_vectors; j++) {
        double *const x = v + j * length;
        double before;
        double norm;

        do {
            ls_rng_normals(rng, x, length);
            before = sqrt(dot(x, x, length));
            for (size_t k = 0; k < 2 * j; k++) {
                const double *const other = v + k % j * length;
                const double along = dot(x, other, length);

                for (size_t i = 0; i < length; i++)
                    x[i] -= along * other[i];
            }
            norm = sqrt(dot(x, x, length));
        } while (norm < 1e-8 * before);
        for (size_t i = 0; i < length; i++)
            x[i] /= norm;
    }
}

static ls_status fill_orthogonal(ls_model *model, ls_tensor *t, double gain)
{
    matrix m = {.gain = gain, .rows = (size_t)t->dims[0]};
    const size_t count = ls_tensor_count(t);
    double *v;
    ls_status st;

    if (count == 0)
        return LS_OK;
    m.columns = count / m.rows;
    LS_TRY(LS_NEW(&v, count, "for an orthogonal matrix of %zu elements", count));
    if (m.rows < m.columns)
        draw_orthonormal(&model->rng, v, m.rows, m.columns);
    else
        draw_orthonormal(&model->rng, v, m.columns, m.rows);
    m.v = v;
    st = tensor_draw(t, next_elements, &m);
    ls_free(v);
    return st;
}

/* --- the rules --- */

/* torch.nn.init._calculate_fan_in_and_fan_out: of (O,I,...) I and O times the other dimensions. */
static double fan_of(const ls_tensor *t, int dim)
{
    double fan = (double)t->dims[dim];

    for (int d = 2; d < t->n_dims; d++)
        fan *= (double)t->dims[d];
    return fan;
}

/* The variance of Glorot and Bengio, 2010. */
static double xavier_variance(const ls_tensor *t, const ls_nn_init_options *o)
{
    const double gain = o->gain == 0 ? 1 : o->gain;

    return gain * gain * 2 / (fan_of(t, 0) + fan_of(t, 1));
}

/* The variance of He et al., 2015. */
static double kaiming_variance(const ls_tensor *t, const ls_nn_init_options *o)
{
    const double square = o->gain == 0 ? 2 / (1 + o->a * o->a) : o->gain * o->gain;

    return square / fan_of(t, o->fan_out ? 0 : 1);
}

static ls_status check_dims(const ls_tensor *t, ls_nn_init kind)
{
    const bool is_simple = kind == LS_INIT_CONSTANT || kind == LS_INIT_UNIFORM ||
                           kind == LS_INIT_NORMAL || kind == LS_INIT_TRUNC_NORMAL;

    if (is_simple || (kind == LS_INIT_EYE ? t->n_dims == 2 : t->n_dims >= 2))
        return LS_OK;
    return ls_fail(LS_EINVAL, "%d dimensions; these initial values need %s2", t->n_dims,
                   kind == LS_INIT_EYE ? "" : "at least ");
}

static ls_status fill(ls_model *model, ls_tensor *t, const ls_nn_init_options *o)
{
    const double deviation = o->std == 0 ? 1 : o->std;
    const double high = o->low == 0 && o->high == 0 ? 1 : o->high;

    LS_TRY(check_dims(t, o->kind));
    switch (o->kind) {
    case LS_INIT_CONSTANT:
        return fill_constant(model, t, o->value);
    case LS_INIT_UNIFORM:
        return fill_uniform(model, t, (o->low + high) / 2, (high - o->low) / 2);
    case LS_INIT_NORMAL:
        return fill_normal(model, t, o->mean, deviation);
    case LS_INIT_TRUNC_NORMAL:
        return fill_truncated(model, t, o, deviation);
    case LS_INIT_XAVIER_UNIFORM:
        return fill_uniform(model, t, 0, sqrt(3 * xavier_variance(t, o)));
    case LS_INIT_XAVIER_NORMAL:
        return fill_normal(model, t, 0, sqrt(xavier_variance(t, o)));
    case LS_INIT_KAIMING_UNIFORM:
        return fill_uniform(model, t, 0, sqrt(3 * kaiming_variance(t, o)));
    case LS_INIT_KAIMING_NORMAL:
        return fill_normal(model, t, 0, sqrt(kaiming_variance(t, o)));
    case LS_INIT_ORTHOGONAL:
        return fill_orthogonal(model, t, o->gain == 0 ? 1 : o->gain);
    case LS_INIT_EYE:
        return tensor_draw(t, next_elements, &(matrix){.columns = (size_t)t->dims[1]});
    default:
        return ls_fail(LS_EINVAL, "%d is not an ls_nn_init of ls_model_init()", (int)o->kind);
    }
}

static ls_status check_numbers(const ls_nn_init_options *o)
{
    const double all[] = {o->value, o->low, o->high, o->mean, o->std, o->gain, o->a};

    for (size_t i = 0; i < LS_COUNT_OF(all); i++) {
        if (!isfinite(all[i]))
            return ls_fail(LS_EINVAL, "%g is not finite", all[i]);
    }
    if (o->std < 0 || o->high < o->low)
        return ls_fail(LS_EINVAL, "std %g, low %g, high %g: std must be at least 0, high low",
                       o->std, o->low, o->high);
    return LS_OK;
}

static ls_status fill_matching(ls_model *model, const char *pattern, const ls_nn_init_options *o)
{
    int n = 0;

    LS_TRY(LS_GIVEN(pattern));
    LS_TRY(LS_GIVEN(o));
    LS_TRY(check_numbers(o));
    for (int i = 0; i < model->parameters.n; i++) {
        const ls_named *p = &model->parameters.items[i];

        if (!text_matches(p->name, pattern))
            continue;
        n++;
        LS_TRY(ls_context(fill(model, p->tensor, o), "%s", p->name));
    }
    return n > 0 ? LS_OK : ls_fail(LS_ENOTFOUND, "no parameter matches %s", pattern);
}

void ls_model_init(ls_model *model, const char *pattern, const ls_nn_init_options *opt)
{
    ls_status st;

    if (!model_can_add(model))
        return;
    st = fill_matching(model, pattern, opt);
    if (st != LS_OK)
        (void)model_fail(model, ls_context(st, "init"));
}
