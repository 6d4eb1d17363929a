/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grad_scaler.c - gradient scaling for float16: the rule of torch.amp.GradScaler. Whether a step is
 * skipped is decided in the memory of the device; the host learns it in ls_grad_scaler_update().
 */
#include "base/alloc.h"
#include "base/options.h"
#include "optim/optimizer.h"
#include "optim/saved_scalar.h"

#include <math.h>

/* The scalars of the state list, in its order. */
enum { SCALE, GROWTH, STEPS, SKIPPED, SKIPPED_IN_ROW, N_SCALARS };

static const char *const scalar_names[N_SCALARS] = {
    "grad_scaler.scale", "grad_scaler.growth_tracker", "grad_scaler.steps", "grad_scaler.skipped",
    "grad_scaler.skipped_in_row"};

typedef struct scaler_values {
    double scale;
    int64_t counts[N_SCALARS]; /* from GROWTH on */
} scaler_values;

typedef enum scaler_phase {
    SCALER_SCALED,   /* the gradients are those of the scaled loss */
    SCALER_UNSCALED, /* they are divided by the scale */
    SCALER_STEPPED   /* the optimizer has updated the parameters, or will skip that */
} scaler_phase;

struct ls_grad_scaler {
    ls_optimizer *optimizer;
    ls_grad_scaler_options opt; /* resolved */
    scaler_values now;
    uint8_t saved[N_SCALARS][SAVED_BYTES];
    ls_named state[N_SCALARS];
    scaler_phase phase;
    ls_tensor *found; /* float32 scalar: not 0 when a gradient is not finite */
    /* of a stream device: a copy of found for the host, and when it is complete */
    float *found_copy;
    accel_event *copied;
};

/* --- making one --- */

static ls_status resolve(const ls_grad_scaler_options *given, ls_grad_scaler_options *opt)
{
    LS_TRY(ls_context(OPTIONS_COPY(ls_grad_scaler_options, given, opt), "grad scaler"));
    opt->init_scale = opt->init_scale == 0 ? 65536 : opt->init_scale;
    opt->growth_factor = opt->growth_factor == 0 ? 2 : opt->growth_factor;
    opt->backoff_factor = opt->backoff_factor == 0 ? 0.5 : opt->backoff_factor;
    opt->growth_interval = opt->growth_interval == 0 ? 2000 : opt->growth_interval;
    opt->max_skipped = opt->max_skipped == 0 ? 100 : opt->max_skipped;
    if (!isfinite((float)opt->init_scale) || !((float)opt->init_scale > 0))
        return ls_fail(LS_EINVAL, "grad scaler: init_scale is %g; it must be a float32 over 0",
                       opt->init_scale);
    if (!isfinite(opt->growth_factor) || !(opt->growth_factor > 1))
        return ls_fail(LS_EINVAL, "grad scaler: growth_factor is %g; it must be over 1",
                       opt->growth_factor);
    if (!(opt->backoff_factor > 0 && opt->backoff_factor < 1))
        return ls_fail(LS_EINVAL,
                       "grad scaler: backoff_factor is %g; it must be over 0 and below 1",
                       opt->backoff_factor);
    if (opt->growth_interval < 1 || opt->max_skipped < 1)
        return ls_fail(LS_EINVAL,
                       "grad scaler: growth_interval is %lld and max_skipped %lld; they must be at "
                       "least 1",
                       (long long)opt->growth_interval, (long long)opt->max_skipped);
    return LS_OK;
}

static void save_values(ls_grad_scaler *s)
{
    save_double(s->saved[SCALE], s->now.scale);
    for (int i = GROWTH; i < N_SCALARS; i++)
        save_u64(s->saved[i], (uint64_t)s->now.counts[i]);
}

/* The flag, and on a stream device what brings it to the host. */
static ls_status make_flag(ls_grad_scaler *s)
{
    ls_device *device = s->optimizer->device;

    LS_TRY(ls_tensor_create(device, LS_F32, 0, NULL, &s->found));
    if (device->accel == NULL)
        return LS_OK;
    s->found_copy = accel_alloc_host(device->accel, sizeof(*s->found_copy));
    if (s->found_copy == NULL)
        return ls_fail(LS_ENOMEM, "grad scaler: no page-locked memory");
    return accel_event_create(device->accel, false, &s->copied);
}

ls_status ls_grad_scaler_create(ls_optimizer *optimizer, const ls_grad_scaler_options *opt,
                                ls_grad_scaler **out)
{
    ls_grad_scaler_options resolved;
    ls_grad_scaler *s;
    ls_status st;

    LS_TRY(LS_GIVEN(optimizer));
    LS_TRY(LS_GIVEN(out));
    LS_TRY(resolve(opt, &resolved));
    if (optimizer->n_params == 0)
        return ls_fail(LS_EINVAL, "grad scaler: the optimizer has no parameters");
    LS_TRY(LS_NEW(&s, 1, "for a grad scaler"));
    s->optimizer = optimizer;
    s->opt = resolved;
    s->now.scale = (double)(float)resolved.init_scale;
    for (int i = 0; i < N_SCALARS; i++)
        s->state[i] =
            (ls_named){.name = scalar_names[i], .bytes = s->saved[i], .n_bytes = SAVED_BYTES};
    save_values(s);
    st = make_flag(s);
    if (st != LS_OK) {
        ls_grad_scaler_destroy(s);
        return st;
    }
    *out = s;
    return LS_OK;
}

/* Waits for the flag of the last step. */
static ls_status read_flag(const ls_grad_scaler *s, bool *is_skipped)
{
    const float *found = s->found_copy;

    if (found == NULL)
        found = tensor_host_elements(s->found);
    else
        LS_TRY(accel_event_wait(s->copied, "optim: whether gradients are finite"));
    *is_skipped = *found != 0;
    return LS_OK;
}

void ls_grad_scaler_destroy(ls_grad_scaler *s)
{
    ls_status ignored;
    bool is_skipped;

    if (s == NULL)
        return;
    if (s->phase == SCALER_STEPPED) {
        ignored = read_flag(s, &is_skipped); // before its memory is freed
        LS_UNUSED(ignored);
    }
    if (s->found_copy != NULL)
        accel_free_host(s->optimizer->device->accel, s->found_copy);
    accel_event_destroy(s->copied);
    ls_tensor_destroy(s->found);
    ls_free(s);
}

/* --- a step --- */

double ls_grad_scaler_scale(const ls_grad_scaler *s)
{
    return s == NULL ? 0 : s->now.scale;
}

int64_t ls_grad_scaler_skipped(const ls_grad_scaler *s)
{
    return s == NULL ? 0 : s->now.counts[SKIPPED];
}

/* The calls that divide every gradient; *n of them. The reciprocal is rounded once, as in torch. */
static ls_status prepare(const ls_grad_scaler *s, op_call **calls, int *n)
{
    const ls_optimizer *o = s->optimizer;
    const op_call like = {.op = OP_UNSCALE,
                          .attrs = {.scale = (double)(float)(1 / s->now.scale)},
                          .n_in = 1,
                          .n_out = 2,
                          .out = {NULL, s->found}};

    *n = 0;
    LS_TRY(device_calls(o->device, o->n_params, calls));
    for (int i = 0; i < o->n_params; i++) {
        op_call *call = &(*calls)[*n];
        bool has_grad;

        LS_TRY(optimizer_grad_call(o->params[i].name, o->params[i].tensor, o->grad_of, &like, call,
                                   &has_grad));
        if (has_grad) {
            call->out[0] = call->in[0];
            (*n)++;
        }
    }
    return LS_OK;
}

ls_status ls_grad_scaler_unscale(ls_grad_scaler *s)
{
    ls_device *device;
    op_call *calls;
    int n;

    LS_TRY(LS_GIVEN(s));
    device = s->optimizer->device;
    if (s->phase != SCALER_SCALED)
        return ls_fail(LS_EINVAL, "grad scaler: the gradients are already unscaled; "
                                  "ls_grad_scaler_update() ends a step");
    LS_TRY(prepare(s, &calls, &n));
    LS_TRY(device_fill(device, tensor_elements(s->found), 0, sizeof(float)));
    LS_TRY(device_run_many(device, calls, n));
    s->phase = SCALER_UNSCALED;
    return LS_OK;
}

/* Brings the flag of a stream device to the host. */
static ls_status send_flag(ls_grad_scaler *s)
{
    ls_device *device = s->optimizer->device;
    ls_queue *queue;

    if (device->accel == NULL)
        return LS_OK;
    queue = accel_queue(device->accel, ACCEL_COMPUTE);
    LS_TRY(
        accel_copy(queue, s->found_copy, tensor_elements(s->found), sizeof(float), ACCEL_TO_HOST));
    return accel_event_record(s->copied, queue);
}

ls_status ls_grad_scaler_step(ls_grad_scaler *s)
{
    LS_TRY(LS_GIVEN(s));
    if (s->phase == SCALER_STEPPED)
        return ls_fail(LS_EINVAL, "grad scaler: a step needs ls_grad_scaler_update() before the "
                                  "next one");
    if (s->phase == SCALER_SCALED)
        LS_TRY(ls_grad_scaler_unscale(s));
    LS_TRY(optimizer_update(s->optimizer, s->found));
    LS_TRY(send_flag(s));
    s->phase = SCALER_STEPPED;
    return LS_OK;
}

/* --- the rule of the scale --- */

/* As torch._amp_update_scale_: the scale is a float32. */
static void grow(scaler_values *v, const ls_grad_scaler_options *opt)
{
    const float grown = (float)(v->scale * opt->growth_factor);

    v->counts[SKIPPED_IN_ROW] = 0;
    v->counts[GROWTH]++;
    if (v->counts[GROWTH] < opt->growth_interval)
        return;
    v->counts[GROWTH] = 0;
    if (isfinite(grown))
        v->scale = (double)grown;
}

static void back_off(scaler_values *v, const ls_grad_scaler_options *opt)
{
    v->scale = (double)(float)(v->scale * opt->backoff_factor);
    v->counts[GROWTH] = 0;
    v->counts[SKIPPED]++;
    v->counts[SKIPPED_IN_ROW]++;
}

ls_status ls_grad_scaler_update(ls_grad_scaler *s)
{
    bool is_skipped;
    double used;

    LS_TRY(LS_GIVEN(s));
    if (s->phase != SCALER_STEPPED)
        return ls_fail(LS_EINVAL, "grad scaler: ls_grad_scaler_step() comes before the update");
    LS_TRY(read_flag(s, &is_skipped));
    s->phase = SCALER_SCALED;
    s->now.counts[STEPS]++;
    used = s->now.scale;
    if (is_skipped) {
        back_off(&s->now, &s->opt);
    } else {
        optimizer_count(s->optimizer);
        grow(&s->now, &s->opt);
    }
    save_values(s);
    if (s->now.counts[SKIPPED_IN_ROW] < s->opt.max_skipped)
        return LS_OK;
    return ls_fail(
        LS_EINVAL,
        "grad scaler: at step %lld the gradients are not finite with a loss scale of %g; "
        "%lld steps in a row were skipped and nothing is learnt: train in bfloat16, "
        "lower the learning rate, or look for NaN and infinity in the data",
        (long long)s->now.counts[STEPS], used, (long long)s->now.counts[SKIPPED_IN_ROW]);
}

/* --- state --- */

const ls_named *ls_grad_scaler_state(ls_grad_scaler *s, int *n)
{
    if (n == NULL)
        return NULL;
    *n = s == NULL ? 0 : N_SCALARS;
    return s == NULL ? NULL : s->state;
}

static ls_status check_loaded(const ls_grad_scaler *s, scaler_values *out)
{
    out->scale = saved_double(s->saved[SCALE]);
    if (!isfinite(out->scale) || !(out->scale > 0) || (double)(float)out->scale != out->scale)
        return ls_fail(LS_EFORMAT, "%s is %g, not a float32 over 0", scalar_names[SCALE],
                       out->scale);
    for (int i = GROWTH; i < N_SCALARS; i++) {
        const uint64_t count = saved_u64(s->saved[i]);

        if (count >= INT64_MAX)
            return ls_fail(LS_EFORMAT, "%s is %llu, not a count", scalar_names[i],
                           (unsigned long long)count);
        out->counts[i] = (int64_t)count;
    }
    return LS_OK;
}

ls_status ls_grad_scaler_loaded(ls_grad_scaler *s)
{
    scaler_values loaded = {0};
    ls_status st;

    LS_TRY(LS_GIVEN(s));
    if (s->phase != SCALER_SCALED)
        st = ls_fail(LS_EINVAL, "grad scaler: ls_grad_scaler_update() comes before a load");
    else
        st = check_loaded(s, &loaded);
    if (st == LS_OK)
        s->now = loaded;
    else
        save_values(s);
    return st;
}
