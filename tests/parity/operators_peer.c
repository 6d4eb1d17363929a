/* SPDX-License-Identifier: Apache-2.0 */
/*
 * operators_peer.c CASES RESULTS - runs one operator for each case of a safetensors file, on the
 * default device, for operators_parity.py.
 *
 * The tensors of a case are "NUMBER OPERATOR ARGUMENTS/in0", "/in1", ... and "/goal" of the
 * result's shape. RESULTS gets "/y" and, with the sum of y * goal as loss, "/grad0", ... for each
 * floating-point input of the first three.
 */
#include <lockstep/autograd.h>
#include <lockstep/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CASES = 2048, MAX_INPUTS = 4, MAX_LEAVES = 3, NAME_BYTES = 160, MAX_ARGS = 9 };

typedef struct parity_case {
    char name[NAME_BYTES]; /* without the tensor's */
    char op[32];
    double args[MAX_ARGS];
    int n_args;
    ls_tensor *in[MAX_INPUTS];
    ls_tensor *goal;
    ls_tape *tape; /* owns the result */
} parity_case;

typedef struct work {
    ls_device *device;
    parity_case cases[MAX_CASES];
    int n_cases;
    ls_named results[MAX_CASES * (1 + MAX_LEAVES)];
    char names[MAX_CASES * (1 + MAX_LEAVES)][NAME_BYTES + 8];
    int n_results;
} work;

/* --- operators --- */

typedef struct function_of_two {
    const char *name;
    ls_tensor *(*run)(ls_tape *tape, ls_tensor *a, ls_tensor *b);
} function_of_two;

static const function_of_two of_two[] = {{"add", ls_add},         {"sub", ls_sub},
                                         {"mul", ls_mul},         {"div", ls_div},
                                         {"maximum", ls_maximum}, {"minimum", ls_minimum}};

typedef struct function_of_one {
    const char *name;
    ls_tensor *(*run)(ls_tape *tape, ls_tensor *x);
} function_of_one;

static const function_of_one of_one[] = {
    {"sigmoid", ls_sigmoid}, {"silu", ls_silu},     {"gelu", ls_gelu},
    {"tanh", ls_tanh},       {"exp", ls_exp},       {"log", NULL},
    {"sqrt", ls_sqrt},       {"rsqrt", ls_rsqrt},   {"abs", ls_abs},
    {"square", ls_square},   {"sin", ls_sin},       {"cos", ls_cos},
    {"relu", ls_relu},       {"log_softmax", NULL}, {"reciprocal", ls_reciprocal}};

typedef struct reduction {
    const char *name;
    ls_tensor *(*run)(ls_tape *tape, ls_tensor *x, const int *axes, int n_axes, int keepdim);
} reduction;

/* Arguments: keepdim, axes. */
static const reduction reductions[] = {
    {"sum", ls_sum}, {"mean", ls_mean}, {"amax", ls_max}, {"amin", ls_min}};

typedef struct loss {
    const char *name;
    ls_tensor *(*run)(ls_tape *tape, ls_tensor *prediction, ls_tensor *target,
                      const ls_loss_params *params);
} loss;

/* Arguments: sum, beta. */
static const loss losses[] = {{"l1", ls_l1_loss},
                              {"smooth_l1", ls_smooth_l1_loss},
                              {"mse", ls_mse_loss_with},
                              {"bce", ls_bce_with_logits}};

static ls_tensor *reduce(const parity_case *c, const reduction *r)
{
    int axes[MAX_ARGS];

    for (int i = 1; i < c->n_args; i++)
        axes[i - 1] = (int)c->args[i];
    return r->run(c->tape, c->in[0], axes, c->n_args - 1, (int)c->args[0]);
}

static ls_tensor *pad(const parity_case *c)
{
    int64_t padding[MAX_ARGS];

    for (int i = 1; i < c->n_args; i++)
        padding[i - 1] = (int64_t)c->args[i];
    return ls_pad(c->tape, c->in[0], padding, c->n_args - 1, c->args[0]);
}

/* Arguments: stride, padding, dilation, groups. */
static ls_tensor *conv1d(const parity_case *c)
{
    const ls_conv1d_params params = {.stride = (int)c->args[0],
                                     .padding = (int)c->args[1],
                                     .dilation = (int)c->args[2],
                                     .groups = (int)c->args[3]};

    return ls_conv1d(c->tape, c->in[0], c->in[1], c->in[2], &params);
}

/* Arguments: stride, padding, output padding, dilation, each of all axes; groups. */
static ls_tensor *conv_transpose1d(const parity_case *c)
{
    const double *a = c->args;
    const ls_conv_transpose1d_params params = {(int)a[0], (int)a[1], (int)a[2], (int)a[3],
                                               (int)a[4]};

    return ls_conv_transpose1d(c->tape, c->in[0], c->in[1], c->in[2], &params);
}

static ls_tensor *conv_transpose2d(const parity_case *c)
{
    const double *a = c->args;
    const ls_conv_transpose2d_params params = {{(int)a[0], (int)a[1]},
                                               {(int)a[2], (int)a[3]},
                                               {(int)a[4], (int)a[5]},
                                               {(int)a[6], (int)a[7]},
                                               (int)a[8]};

    return ls_conv_transpose2d(c->tape, c->in[0], c->in[1], c->in[2], &params);
}

/* With running statistics of its own, as many as channels. */
static ls_tensor *batch_norm(const parity_case *c)
{
    ls_tensor *mean = ls_scale(c->tape, c->in[1], 0, 0);
    ls_tensor *variance = ls_scale(c->tape, c->in[1], 0, 1);

    return ls_batch_norm(c->tape, c->in[0], c->in[1], c->in[2], mean, variance, NULL);
}

static ls_tensor *bn_add(const parity_case *c)
{
    ls_tensor *mean = ls_scale(c->tape, c->in[2], 0, 0);
    ls_tensor *variance = ls_scale(c->tape, c->in[2], 0, 1);

    return ls_bn_add(c->tape, c->in[0], c->in[1], c->in[2], c->in[3], mean, variance,
                     &(ls_batch_norm_params){.relu = 1});
}

static ls_tensor *attend(const parity_case *c)
{
    const ls_attention_params params = {
        .causal = c->args[0] != 0, .scale = c->args[1], .mask = c->in[3]};

    return ls_attention(c->tape, c->in[0], c->in[1], c->in[2], &params);
}

static ls_tensor *run_other(const parity_case *c)
{
    ls_tensor *x = c->in[0];
    const double *a = c->args;

    if (strcmp(c->op, "log") == 0)
        return ls_activate(c->tape, x, LS_ACT_LOG);
    if (strcmp(c->op, "gelu_tanh") == 0)
        return ls_activate(c->tape, x, LS_ACT_GELU_TANH);
    if (strcmp(c->op, "leaky_relu") == 0)
        return ls_leaky_relu(c->tape, x, a[0]);
    if (strcmp(c->op, "elu") == 0)
        return ls_elu(c->tape, x, a[0]);
    if (strcmp(c->op, "softplus") == 0)
        return ls_softplus(c->tape, x, a[0], a[1]);
    if (strcmp(c->op, "clamp") == 0)
        return ls_clamp(c->tape, x, a[0], a[1]);
    if (strcmp(c->op, "pow") == 0)
        return ls_pow(c->tape, x, a[0]);
    if (strcmp(c->op, "scale") == 0)
        return ls_scale(c->tape, x, a[0], a[1]);
    if (strcmp(c->op, "cumsum") == 0)
        return ls_cumsum(c->tape, x, (int)a[0]);
    if (strcmp(c->op, "var") == 0)
        return ls_var(c->tape, x, (int[]){(int)a[0]}, 1, 0, (int)a[1]);
    if (strcmp(c->op, "softmax") == 0)
        return ls_softmax_over(c->tape, x, (int)a[0], c->in[1]);
    if (strcmp(c->op, "log_softmax") == 0)
        return ls_log_softmax_over(c->tape, x, (int)a[0], c->in[1]);
    if (strcmp(c->op, "masked_fill") == 0)
        return ls_masked_fill(c->tape, x, c->in[1], a[0]);
    if (strcmp(c->op, "where") == 0)
        return ls_where(c->tape, c->in[2], x, c->in[1]);
    if (strcmp(c->op, "embedding") == 0)
        return ls_embedding(c->tape, x, c->in[1], (int64_t)a[0]);
    if (strcmp(c->op, "matmul") == 0)
        return ls_matmul(c->tape, x, c->in[1], (int)a[0]);
    if (strcmp(c->op, "attention") == 0)
        return attend(c);
    if (strcmp(c->op, "pad") == 0)
        return pad(c);
    if (strcmp(c->op, "conv1d") == 0)
        return conv1d(c);
    if (strcmp(c->op, "conv_transpose1d") == 0)
        return conv_transpose1d(c);
    if (strcmp(c->op, "conv_transpose2d") == 0)
        return conv_transpose2d(c);
    if (strcmp(c->op, "group_norm") == 0)
        return ls_group_norm(c->tape, x, (int)a[0], c->in[1], c->in[2], 0);
    if (strcmp(c->op, "layer_norm") == 0)
        return ls_layer_norm(c->tape, x, c->in[1], c->in[2], 0);
    if (strcmp(c->op, "batch_norm") == 0)
        return batch_norm(c);
    if (strcmp(c->op, "bn_add") == 0)
        return bn_add(c);
    if (strcmp(c->op, "transpose") == 0)
        return ls_transpose(c->tape, x, (int)a[0], (int)a[1]);
    return NULL;
}

#define RUN_NAMED(TABLE, CALL)                                                                     \
    for (size_t i = 0; i < sizeof(TABLE) / sizeof((TABLE)[0]); i++) {                              \
        if (strcmp(c->op, (TABLE)[i].name) == 0)                                                   \
            return CALL;                                                                           \
    }

static ls_tensor *run_operator(const parity_case *c)
{
    const ls_loss_params params = {.sum = c->n_args > 0 && c->args[0] > 0,
                                   .beta = c->n_args > 1 ? c->args[1] : 0,
                                   .weight = c->in[2]};

    RUN_NAMED(of_two, of_two[i].run(c->tape, c->in[0], c->in[1]))
    RUN_NAMED(of_one, of_one[i].run == NULL ? run_other(c) : of_one[i].run(c->tape, c->in[0]))
    RUN_NAMED(reductions, reduce(c, &reductions[i]))
    RUN_NAMED(losses, losses[i].run(c->tape, c->in[0], c->in[1], &params))
    return run_other(c);
}

/* --- files --- */

/* The case whose name is that of the entry up to the slash. */
static parity_case *case_of(work *w, const char *entry)
{
    const size_t length = (size_t)(strchr(entry, '/') - entry);
    parity_case *c = &w->cases[w->n_cases];
    char *rest;

    for (int i = 0; i < w->n_cases; i++) {
        if (strncmp(w->cases[i].name, entry, length) == 0 && w->cases[i].name[length] == '\0')
            return &w->cases[i];
    }
    if (w->n_cases == MAX_CASES || length >= NAME_BYTES - 8)
        return NULL;
    memcpy(c->name, entry, length);
    if (sscanf(c->name, "%*d %31s", c->op) != 1)
        return NULL;
    rest = strstr(c->name, c->op) + strlen(c->op);
    while (*rest == ' ' && c->n_args < MAX_ARGS)
        c->args[c->n_args++] = strtod(rest, &rest);
    w->n_cases++;
    return c;
}

static ls_status load(work *w, const char *path)
{
    ls_checkpoint *file = NULL;
    ls_status st = ls_checkpoint_open(path, &file);

    for (int i = 0; st == LS_OK && i < ls_checkpoint_count(file); i++) {
        ls_checkpoint_entry e;
        ls_tensor **into;
        parity_case *c;
        const char *slash;

        st = ls_checkpoint_entry_at(file, i, &e);
        if (st != LS_OK)
            break;
        slash = strchr(e.name, '/');
        c = slash == NULL ? NULL : case_of(w, e.name);
        if (c == NULL || slash[1] == '\0')
            return LS_EFORMAT;
        into = slash[1] == 'g' ? &c->goal : &c->in[(slash[3] - '0') % MAX_INPUTS];
        st = ls_tensor_create(w->device, e.type, e.n_dims, e.dims, into);
        if (st == LS_OK)
            st = ls_checkpoint_load(file, &(ls_named){.name = e.name, .tensor = *into}, 1,
                                    LS_LOAD_SUBSET);
    }
    ls_checkpoint_close(file);
    return st;
}

static void add_result(work *w, const parity_case *c, const char *name, ls_tensor *t)
{
    (void)snprintf(w->names[w->n_results], sizeof(w->names[0]), "%s/%s", c->name, name);
    w->results[w->n_results] = (ls_named){.name = w->names[w->n_results], .tensor = t};
    w->n_results++;
}

static ls_status run(work *w, parity_case *c)
{
    static const char *const names[MAX_LEAVES] = {"grad0", "grad1", "grad2"};
    ls_status st = ls_tape_create(w->device, &c->tape);
    ls_tensor *y;

    for (int i = 0; i < MAX_LEAVES && st == LS_OK; i++) {
        if (c->in[i] != NULL && ls_tensor_dtype(c->in[i]) == LS_F32)
            st = ls_require_grad(c->in[i]);
    }
    if (st != LS_OK)
        return st;
    y = run_operator(c);
    ls_tape_keep(c->tape, y);
    st = ls_backward(c->tape, ls_sum(c->tape, ls_mul(c->tape, y, c->goal), NULL, 0, 0), 1);
    if (st != LS_OK)
        return st;
    add_result(w, c, "y", y);
    for (int i = 0; i < MAX_LEAVES; i++) {
        if (c->in[i] != NULL && ls_grad(c->in[i]) != NULL)
            add_result(w, c, names[i], ls_grad(c->in[i]));
    }
    return LS_OK;
}

static void close_all(work *w)
{
    for (int i = 0; i < w->n_cases; i++) {
        ls_tape_destroy(w->cases[i].tape);
        for (int k = 0; k < MAX_INPUTS; k++)
            ls_tensor_destroy(w->cases[i].in[k]);
        ls_tensor_destroy(w->cases[i].goal);
    }
    (void)ls_device_close(w->device);
}

int main(int argc, char **argv)
{
    static work w;
    const char *at = "loading";
    ls_status st;

    if (argc != 3)
        return 2;
    st = ls_device_open(NULL, &w.device);
    if (st == LS_OK)
        st = load(&w, argv[1]);
    for (int i = 0; i < w.n_cases && st == LS_OK; i++) {
        at = w.cases[i].name;
        st = run(&w, &w.cases[i]);
    }
    if (st == LS_OK)
        st = ls_checkpoint_save(argv[2], w.results, w.n_results, NULL, 0);
    if (st != LS_OK)
        fprintf(stderr, "operators_peer: %s: %s\n", at, ls_last_error());
    close_all(&w);
    return st == LS_OK ? 0 : 1;
}
