/* SPDX-License-Identifier: Apache-2.0 */
/*
 * learn_peer.c - trains and prints learning rates, for learn_parity.py to compare with PyTorch.
 *
 *     learn_peer train IN OUT [NAME=VALUE]...
 *         trains a small convolutional network as one rank, with weights and batches of IN;
 *         rank 0 writes the state to OUT
 *     learn_peer schedule N kind base min gamma step total warmup factor [MILESTONE]...
 *         prints the first N learning rates, one a line
 */
#include <lockstep/lockstep.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        const ls_status try_status = (expr);                                                       \
        if (try_status != LS_OK)                                                                   \
            return try_status;                                                                     \
    } while (0)

enum { MAX_RANKS = 8, MAX_MILESTONES = 16 };

typedef struct recipe {
    const char *in;
    const char *out;
    const char *device;    /* device=onednn */
    const char *optimizer; /* optimizer=sgd|adam|adamw */
    double lr;
    double momentum; /* of sgd */
    double wd;
    double clip;         /* clip=NORM */
    double smoothing;    /* smoothing=SHARE of labels */
    int hook;            /* hook=1: fp16, 2: bf16 */
    int sync;            /* sync=1: batch norms share their batch */
    int plain;           /* plain=1: mean over ranks */
    int groups;          /* groups=1: no decay of batch norms; fc at half the rate */
    int rows[MAX_RANKS]; /* rows=5 rows=3: of each rank, in order; without them equal shares */
    int n_rows;
} recipe;

static int take_value(recipe *r, const char *name, const char *value)
{
    const struct {
        const char *name;
        double *real;
        int *number;
        const char **text;
    } values[] = {
        {"device", NULL, NULL, &r->device}, {"optimizer", NULL, NULL, &r->optimizer},
        {"lr", &r->lr, NULL, NULL},         {"momentum", &r->momentum, NULL, NULL},
        {"wd", &r->wd, NULL, NULL},         {"clip", &r->clip, NULL, NULL},
        {"hook", NULL, &r->hook, NULL},     {"smoothing", &r->smoothing, NULL, NULL},
        {"sync", NULL, &r->sync, NULL},     {"plain", NULL, &r->plain, NULL},
        {"groups", NULL, &r->groups, NULL}, {"rows", NULL, &r->rows[r->n_rows], NULL},
    };

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        if (strcmp(values[i].name, name) != 0)
            continue;
        if (values[i].text != NULL)
            *values[i].text = value;
        else if (values[i].real != NULL)
            *values[i].real = strtod(value, NULL);
        else
            *values[i].number = (int)strtol(value, NULL, 10);
        if (strcmp(name, "rows") == 0 && r->n_rows + 1 < MAX_RANKS)
            r->n_rows++;
        return 1;
    }
    fprintf(stderr, "there is no value %s\n", name);
    return 0;
}

static int take_recipe(recipe *r, int argc, char **argv)
{
    *r = (recipe){.in = argv[2], .out = argv[3], .device = "onednn", .optimizer = "sgd", .lr = 0.1};
    for (int i = 4; i < argc; i++) {
        char *value = strchr(argv[i], '=');

        if (value == NULL)
            return 0;
        *value = '\0';
        if (!take_value(r, argv[i], value + 1))
            return 0;
    }
    return 1;
}

/* --- the network and its batches --- */

typedef struct net {
    ls_comm *comm;
    ls_device *device;
    ls_model *model;
    ls_tape *tape;
    ls_layer *conv1, *bn1, *conv2, *bn2, *fc;
    ls_ddp *ddp;
    ls_optimizer *optimizer;
    ls_tensor *x; /* (steps, rows, C, H, W) */
    ls_tensor *y; /* (steps, rows) */
} net;

static ls_status make_model(net *n)
{
    const ls_nn_conv2d_options first = {.kernel = {3, 3}, .padding = {1, 1}, .no_bias = 1};
    const ls_nn_conv2d_options second = {
        .kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}, .no_bias = 1};
    const ls_nn_batch_norm_options relu = {.relu = 1};

    TRY(ls_model_create(n->device, 1, &n->model));
    TRY(ls_tape_create(n->device, &n->tape));
    n->conv1 = ls_nn_conv2d(n->model, "conv1", 2, 8, &first);
    n->bn1 = ls_nn_batch_norm2d(n->model, "bn1", 8, &relu);
    n->conv2 = ls_nn_conv2d(n->model, "conv2", 8, 12, &second);
    n->bn2 = ls_nn_batch_norm2d(n->model, "bn2", 12, &relu);
    n->fc = ls_nn_linear(n->model, "fc", 12 * 4 * 4, 5, 0);
    return ls_model_status(n->model);
}

/* A tensor of the shape that the file has. */
static ls_status make_like(net *n, ls_checkpoint *file, const char *name, ls_tensor **out)
{
    for (int i = 0; i < ls_checkpoint_count(file); i++) {
        ls_checkpoint_entry e;

        TRY(ls_checkpoint_entry_at(file, i, &e));
        if (strcmp(e.name, name) == 0)
            return ls_tensor_create(n->device, e.type, e.n_dims, e.dims, out);
    }
    fprintf(stderr, "the input has no %s\n", name);
    return LS_EFORMAT;
}

static ls_status load_from(net *n, ls_checkpoint *file)
{
    int n_state;
    const ls_named *state = ls_model_state(n->model, &n_state);
    ls_named batches[2];

    TRY(make_like(n, file, "x", &n->x));
    TRY(make_like(n, file, "y", &n->y));
    batches[0] = (ls_named){.name = "x", .tensor = n->x};
    batches[1] = (ls_named){.name = "y", .tensor = n->y};
    TRY(ls_checkpoint_load(file, state, n_state, LS_LOAD_SUBSET));
    return ls_checkpoint_load(file, batches, 2, LS_LOAD_SUBSET);
}

static ls_status load(net *n, const char *path)
{
    ls_checkpoint *file;
    ls_status st;

    TRY(ls_checkpoint_open(path, &file));
    st = load_from(n, file);
    ls_checkpoint_close(file);
    return st;
}

/* The groups of learn_parity.py. */
static ls_status make_groups(ls_optimizer *optimizer)
{
    const ls_group_options no_decay = {.size = sizeof(no_decay), .no_weight_decay = 1};
    const ls_group_options half = {.size = sizeof(half), .lr_factor = 0.5, .weight_decay = 0.1};

    TRY(ls_optimizer_group(optimizer, "bn*", &no_decay));
    return ls_optimizer_group(optimizer, "fc.*", &half);
}

static ls_status make_optimizer(net *n, const recipe *r)
{
    const ls_sgd_options sgd = {
        .size = sizeof(sgd), .lr = r->lr, .momentum = r->momentum, .weight_decay = r->wd};
    const ls_adam_options adam = {.size = sizeof(adam), .lr = r->lr, .weight_decay = r->wd};
    int count;
    const ls_named *parameters = ls_model_parameters(n->model, &count);

    if (strcmp(r->optimizer, "adam") == 0)
        TRY(ls_adam_create(parameters, count, ls_grad, &adam, &n->optimizer));
    else if (strcmp(r->optimizer, "adamw") == 0)
        TRY(ls_adamw_create(parameters, count, ls_grad, &adam, &n->optimizer));
    else
        TRY(ls_sgd_create(parameters, count, ls_grad, &sgd, &n->optimizer));
    return r->groups ? make_groups(n->optimizer) : LS_OK;
}

/* --- a step --- */

static ls_status learn(net *n, const recipe *r, ls_tensor *x, ls_tensor *y)
{
    const ls_cross_entropy_params loss = {.label_smoothing = r->smoothing};
    ls_tape *t = n->tape;
    ls_tensor *h = ls_forward(t, n->bn1, ls_forward(t, n->conv1, x));
    ls_ddp_step step;
    int count;
    const ls_named *parameters = ls_model_parameters(n->model, &count);

    h = ls_forward(t, n->fc, ls_flatten(t, ls_forward(t, n->bn2, ls_forward(t, n->conv2, h))));
    TRY(ls_ddp_backward(n->ddp, t, ls_cross_entropy_with(t, h, y, &loss), ls_tensor_dim(x, 0),
                        &step));
    if (r->clip > 0)
        TRY(ls_clip_grad_norm(parameters, count, ls_grad, r->clip, NULL));
    return ls_optimizer_step(n->optimizer);
}

/* This rank's rows of a step: `rows` from `first` on. */
static ls_status train_step(net *n, const recipe *r, int64_t step, int64_t first, int64_t rows)
{
    const int64_t all = ls_tensor_dim(n->x, 1);
    const int64_t dims[] = {rows, ls_tensor_dim(n->x, 2), ls_tensor_dim(n->x, 3),
                            ls_tensor_dim(n->x, 4)};
    const size_t image = (size_t)(dims[1] * dims[2] * dims[3]);
    const size_t at = (size_t)(step * all + first);
    const float *images = ls_tensor_data_const(n->x);
    const int64_t *labels = ls_tensor_data_const(n->y);
    ls_tensor *x = NULL;
    ls_tensor *y = NULL;
    ls_status st;

    TRY(ls_ddp_sync_buffers(n->ddp));
    ls_tape_reset(n->tape);
    TRY(ls_tensor_create(n->device, LS_F32, 4, dims, &x));
    TRY(ls_tensor_create(n->device, LS_I64, 1, dims, &y));
    TRY(ls_tensor_write(x, images + at * image, (size_t)rows * image));
    TRY(ls_tensor_write(y, labels + at, (size_t)rows));
    st = learn(n, r, x, y);
    ls_tape_reset(n->tape);
    ls_tensor_destroy(x);
    ls_tensor_destroy(y);
    return st;
}

static ls_status run(net *n, const recipe *r)
{
    const ls_device_options device = {.size = sizeof(device), .name = r->device, .threads = 1};
    const ls_ddp_options ddp = {.size = sizeof(ddp),
                                .hook = (ls_ddp_hook)r->hook,
                                .sync_batch_norm = r->sync,
                                .plain_mean = r->plain};
    int64_t first = 0;
    int64_t rows;
    const ls_named *state;
    int n_state;
    int rank;

    TRY(ls_init(NULL, &n->comm));
    rank = ls_comm_rank(n->comm);
    TRY(ls_device_open(&device, &n->device));
    TRY(make_model(n));
    TRY(load(n, r->in));
    TRY(ls_ddp_create(n->comm, n->model, &ddp, &n->ddp));
    TRY(make_optimizer(n, r));
    rows = r->n_rows > 0 ? r->rows[rank] : ls_tensor_dim(n->x, 1) / ls_comm_size(n->comm);
    for (int i = 0; i < rank; i++)
        first += r->n_rows > 0 ? r->rows[i] : rows;
    for (int64_t step = 0; step < ls_tensor_dim(n->x, 0); step++)
        TRY(train_step(n, r, step, first, rows));
    state = ls_model_state(n->model, &n_state);
    return rank == 0 ? ls_checkpoint_save(r->out, state, n_state, NULL, 0) : LS_OK;
}

static int train(const recipe *r)
{
    net n;
    ls_status st;

    memset(&n, 0, sizeof(n));
    st = run(&n, r);
    if (st != LS_OK)
        fprintf(stderr, "%s\n", ls_last_error());
    ls_optimizer_destroy(n.optimizer);
    ls_tape_destroy(n.tape);
    ls_ddp_destroy(n.ddp);
    ls_tensor_destroy(n.x);
    ls_tensor_destroy(n.y);
    ls_model_destroy(n.model);
    ls_device_close(n.device);
    ls_comm_destroy(n.comm);
    return st == LS_OK ? 0 : 1;
}

static int schedule(int argc, char **argv)
{
    int64_t milestones[MAX_MILESTONES];
    double v[9];
    ls_schedule s;

    for (int i = 0; i < 9; i++)
        v[i] = strtod(argv[2 + i], NULL);
    s = (ls_schedule){.kind = (ls_schedule_kind)v[1],
                      .base_lr = v[2],
                      .min_lr = v[3],
                      .gamma = v[4],
                      .step = (int64_t)v[5],
                      .total = (int64_t)v[6],
                      .warmup = (int64_t)v[7],
                      .warmup_factor = v[8],
                      .milestones = milestones};
    for (int i = 11; i < argc && s.n_milestones < MAX_MILESTONES; i++)
        milestones[s.n_milestones++] = strtol(argv[i], NULL, 10);
    for (int64_t t = 0; t < (int64_t)v[0]; t++)
        printf("%.17g\n", ls_schedule_lr(&s, t));
    return 0;
}

int main(int argc, char **argv)
{
    recipe r;

    if (argc >= 11 && strcmp(argv[1], "schedule") == 0)
        return schedule(argc, argv);
    if (argc >= 4 && strcmp(argv[1], "train") == 0 && take_recipe(&r, argc, argv))
        return train(&r);
    fprintf(stderr, "learn_peer train IN OUT [NAME=VALUE]..., or learn_peer schedule N ...\n");
    return 2;
}
