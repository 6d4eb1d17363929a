/* SPDX-License-Identifier: Apache-2.0 */
/* power_sgd.c - see power_sgd.h. ddp.c, buckets.c and train/run/run_power.c call it. */
#include "ddp/power_sgd.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "base/text.h"
#include "comm/comm.h"
#include "ddp/reducer.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

#include <string.h>

enum { ERROR_TAG = 1 };

/* A parameter of the model. */
typedef struct power_param {
    const char *name;
    const ls_tensor *leaf;
    size_t rows;
    size_t cols;
    ls_tensor *error; /* between a step's start and end m; NULL: it is not compressed */
    ls_tensor *q;
    char *q_name;
} power_param;

/* What is sent of a bucket, in the order of parameters. */
typedef struct power_bucket {
    bool is_compressed; /* a parameter is */
    size_t n_first;
    size_t n_second;
    float *first;  /* p, or the gradients of a parameter that is not compressed; ddp_alloc() */
    float *second; /* q */
} power_bucket;

/* The error of another rank, on rank 0. */
typedef struct power_error {
    char *name;
    ls_tensor *values;
} power_error;

struct power_state {
    int rank;
    int64_t step;
    power_param *params; /* of the model, all */
    int n_params;
    int n_compressed;
    int *of; /* the number in params[] of each parameter of the ddp */
    power_bucket *buckets;
    int n_buckets;

    // files
    int n_ranks;         /* whose errors rank 0 has; 0: none */
    bool is_loaded;      /* they are those of a file */
    power_error *errors; /* of rank k, its j-th: k n_compressed + j; rank 0 has only names */
    ls_named *list;
    int n_list;
};

/* --- life --- */

static ls_status make_matrix(const ls_ddp *ddp, size_t rows, size_t cols, ls_tensor **out)
{
    const int64_t dims[] = {(int64_t)rows, (int64_t)cols};

    LS_TRY(ls_tensor_create(ddp->device, LS_F32, 2, dims, out));
    return ls_tensor_fill(*out, 0);
}

static ls_status open_param(const ls_ddp *ddp, const ls_named *from, power_param *p)
{
    const ls_tensor *t = from->tensor;
    text_buf name = {0};

    *p = (power_param){.name = from->name, .leaf = t};
    if (ls_tensor_dtype(t) != LS_F32 || ls_tensor_n_dims(t) < 2 || ls_tensor_dim(t, 0) == 0)
        return LS_OK;
    p->rows = (size_t)ls_tensor_dim(t, 0);
    p->cols = ls_tensor_count(t) / p->rows;
    if (!low_rank_is_worth(p->rows, p->cols, ddp->power->rank))
        return LS_OK;
    text_append(&name, "%s.q", from->name);
    LS_TRY(text_status(&name));
    p->q_name = name.data;
    LS_TRY(make_matrix(ddp, (size_t)ddp->power->rank, p->cols, &p->q));
    LS_TRY(make_matrix(ddp, p->rows, p->cols, &p->error));
    ddp->power->n_compressed++;
    return LS_OK;
}

ls_status power_open(ls_ddp *ddp)
{
    const ls_ddp_options *o = &ddp->options;
    const ls_named *list;
    int n;

    if (o->hook != LS_DDP_HOOK_POWERSGD)
        return LS_OK;
    if (o->power_rank < 1 || o->power_rank > LOW_RANK_MOST)
        return ls_fail(LS_EINVAL, "PowerSGD of rank %d: must be 1 to %d", o->power_rank,
                       LOW_RANK_MOST);
    if (o->shards > 0)
        return ls_fail(LS_EUNSUPPORTED,
                       "PowerSGD with shards: what is not sent stays on a rank, and would have to "
                       "stay with a shard; leave out --compress powersgd or --shards");
    if (ls_device_queue(ddp->device) != NULL)
        return ls_fail(LS_EUNSUPPORTED, "PowerSGD on device %s: use a device of the host, as cpu",
                       ls_device_name(ddp->device));
    list = ls_model_parameters(ddp->model, &n);
    LS_TRY(LS_NEW(&ddp->power, 1, "for PowerSGD"));
    ddp->power->rank = o->power_rank;
    LS_TRY(LS_NEW(&ddp->power->params, (size_t)n + 1, "for %d parameters", n));
    LS_TRY(LS_NEW(&ddp->power->of, (size_t)n + 1, "for %d parameters", n));
    for (int i = 0; i < n; i++) {
        ddp->power->n_params++;
        LS_TRY(open_param(ddp, &list[i], &ddp->power->params[i]));
    }
    return LS_OK;
}

void power_close(ls_ddp *ddp)
{
    struct power_state *s = ddp->power;

    if (s == NULL)
        return;
    power_drop(ddp);
    power_drop_buckets(ddp);
    for (int i = 0; i < s->n_params; i++) {
        ls_tensor_destroy(s->params[i].error);
        ls_tensor_destroy(s->params[i].q);
        ls_free(s->params[i].q_name);
    }
    ls_free(s->params);
    ls_free(s->of);
    ls_free(s);
    ddp->power = NULL;
}

/* --- buckets --- */

size_t power_count(const ls_ddp *ddp, int i, size_t count)
{
    const power_param *p = ddp->power != NULL ? &ddp->power->params[i] : NULL;

    return p != NULL && p->error != NULL ? (p->rows + p->cols) * (size_t)ddp->power->rank : count;
}

static void find_params(const ls_ddp *ddp)
{
    struct power_state *s = ddp->power;

    for (int i = 0; i < ddp->n_params; i++) {
        int k = 0;

        while (s->params[k].leaf != ddp->params[i].leaf)
            k++;
        s->of[i] = k;
    }
}

ls_status power_make_buckets(ls_ddp *ddp)
{
    struct power_state *s = ddp->power;

    if (s == NULL)
        return LS_OK;
    find_params(ddp);
    LS_TRY(LS_NEW(&s->buckets, (size_t)ddp->n_buckets + 1, "for %d buckets", ddp->n_buckets));
    s->n_buckets = ddp->n_buckets;
    for (int i = 0; i < ddp->n_params; i++) {
        const power_param *p = &s->params[s->of[i]];
        power_bucket *b = &s->buckets[ddp->plan.slots[i].bucket];

        b->is_compressed |= p->error != NULL;
        b->n_first +=
            p->error != NULL ? p->rows * (size_t)s->rank : ls_tensor_count(ddp->params[i].leaf);
        b->n_second += p->error != NULL ? p->cols * (size_t)s->rank : 0;
    }
    for (int i = 0; i < s->n_buckets; i++) {
        power_bucket *b = &s->buckets[i];
        void *first;
        void *second;

        if (!b->is_compressed)
            continue;
        LS_TRY(ddp_alloc(ddp, b->n_first * sizeof(float), &first));
        b->first = first;
        LS_TRY(ddp_alloc(ddp, b->n_second * sizeof(float), &second));
        b->second = second;
    }
    return LS_OK;
}

void power_drop_buckets(ls_ddp *ddp)
{
    struct power_state *s = ddp->power;

    if (s == NULL)
        return;
    for (int i = 0; i < s->n_buckets; i++) {
        ddp_free(ddp, s->buckets[i].first);
        ddp_free(ddp, s->buckets[i].second);
    }
    ls_free(s->buckets);
    s->buckets = NULL;
    s->n_buckets = 0;
}

bool power_has_bucket(const ls_ddp *ddp, int i)
{
    return ddp->power != NULL && ddp->power->buckets[i].is_compressed;
}

/* --- a step --- */

/* A parameter in a bucket, and its places in what is sent. */
typedef struct power_place {
    power_param *p;
    int param; /* of the ddp */
    float *grad;
    size_t n;
    float *first;
    float *second;
} power_place;

/* The next parameter of bucket i, from the one in *at on, which begins with param -1. */
static bool next_place(const ls_ddp *ddp, int i, power_place *at)
{
    struct power_state *s = ddp->power;
    const size_t r = (size_t)s->rank;

    if (at->param < 0) {
        at->first = s->buckets[i].first;
        at->second = s->buckets[i].second;
    } else {
        at->first += at->p->error != NULL ? at->p->rows * r : at->n;
        at->second += at->p->error != NULL ? at->p->cols * r : 0;
    }
    do
        at->param++;
    while (at->param < ddp->n_params && ddp->plan.slots[at->param].bucket != i);
    if (at->param == ddp->n_params)
        return false;
    at->p = &s->params[s->of[at->param]];
    at->grad = (float *)(void *)(ddp->buckets[i].memory + ddp->plan.slots[at->param].offset);
    at->n = ls_tensor_count(at->p->leaf);
    return true;
}

static void divide(const float *from, size_t n, double divisor, bool adds, float *to)
{
    const float by = (float)divisor;

    for (size_t i = 0; i < n; i++)
        to[i] = adds ? to[i] + from[i] / by : from[i] / by;
}

ls_status power_start_bucket(ls_ddp *ddp, int i, double divisor)
{
    struct power_state *s = ddp->power;
    power_place at = {.param = -1};
    char label[48];

    while (next_place(ddp, i, &at)) {
        power_param *p = at.p;
        float *q;

        if (p->error == NULL) {
            divide(at.grad, at.n, divisor, false, at.first);
            continue;
        }
        q = tensor_host_elements(p->q);
        divide(at.grad, at.n, divisor, true, tensor_host_elements(p->error));
        low_rank_fill(q, p->cols, s->rank,
                      ls_hash3((uint64_t)s->step, (uint64_t)s->of[at.param], 2));
        low_rank_project(tensor_host_elements(p->error), p->rows, p->cols, q, s->rank, at.first);
    }
    text_format(label, sizeof(label), "bucket %d/%d, first factors", i + 1, ddp->n_buckets);
    comm_label(ddp->comm, label);
    return ls_all_reduce(ddp->comm, s->buckets[i].first, s->buckets[i].first, s->buckets[i].n_first,
                         LS_F32, LS_SUM, &ddp->buckets[i].work);
}

static ls_status start_second(ls_ddp *ddp, int i)
{
    struct power_state *s = ddp->power;
    power_place at = {.param = -1};
    char label[48];

    while (next_place(ddp, i, &at)) {
        const power_param *p = at.p;

        if (p->error == NULL)
            continue;
        low_rank_orthogonalize(at.first, p->rows, s->rank);
        low_rank_project_back(tensor_host_elements(p->error), p->rows, p->cols, at.first, s->rank,
                              at.second);
    }
    text_format(label, sizeof(label), "bucket %d/%d, second factors", i + 1, ddp->n_buckets);
    comm_label(ddp->comm, label);
    return ls_all_reduce(ddp->comm, s->buckets[i].second, s->buckets[i].second,
                         s->buckets[i].n_second, LS_F32, LS_SUM, &ddp->buckets[i].work);
}

static void end_bucket(ls_ddp *ddp, int i, const double *is_used)
{
    struct power_state *s = ddp->power;
    const float share = 1 / (float)ls_comm_size(ddp->comm);
    power_place at = {.param = -1};

    while (next_place(ddp, i, &at)) {
        const power_param *p = at.p;

        if (p->error == NULL) {
            memcpy(at.grad, at.first, at.n * sizeof(*at.grad));
            continue;
        }
        memcpy(tensor_host_elements(p->q), at.second,
               p->cols * (size_t)s->rank * sizeof(*at.second));
        if (is_used[at.param] > 0 && ddp->total_weight > 0)
            low_rank_restore(at.first, at.second, p->rows, p->cols, s->rank, share,
                             tensor_host_elements(p->error), at.grad);
    }
}

ls_status power_finish(ls_ddp *ddp, const double *is_used)
{
    ls_status st = LS_OK;

    if (ddp->power == NULL)
        return LS_OK;
    for (int i = 0; i < ddp->n_buckets && st == LS_OK; i++)
        if (power_has_bucket(ddp, i))
            st = start_second(ddp, i);
    for (int i = 0; i < ddp->n_buckets; i++) {
        ls_work *work = ddp->buckets[i].work;
        ls_status ended;

        ddp->buckets[i].work = NULL;
        if (work == NULL)
            continue;
        ended = ls_work_wait(work); // also after a failure
        st = st == LS_OK ? ended : st;
        if (st == LS_OK)
            end_bucket(ddp, i, is_used);
    }
    ddp->power->step++;
    return st;
}

/* --- files --- */

int power_rank(const ls_ddp *ddp)
{
    return ddp == NULL || ddp->power == NULL ? 0 : ddp->power->rank;
}

int64_t power_numbers(const ls_ddp *ddp)
{
    int64_t n = 0;

    for (int i = 0; ddp->power != NULL && i < ddp->power->n_params; i++) {
        const power_param *p = &ddp->power->params[i];

        n += p->error != NULL ? (int64_t)(p->rows * p->cols) : 0;
    }
    return n;
}

void power_drop(ls_ddp *ddp)
{
    struct power_state *s = ddp == NULL ? NULL : ddp->power;

    if (s == NULL)
        return;
    for (int i = 0; s->errors != NULL && i < s->n_ranks * s->n_compressed; i++) {
        ls_free(s->errors[i].name);
        if (i >= s->n_compressed)
            ls_tensor_destroy(s->errors[i].values);
    }
    ls_free(s->errors);
    ls_free(s->list);
    s->errors = NULL;
    s->list = NULL;
    s->n_list = s->n_ranks = 0;
    s->is_loaded = false;
}

static ls_status make_error(const ls_ddp *ddp, int rank, const power_param *p, power_error *out)
{
    text_buf name = {0};

    text_append(&name, "error.%d.%s", rank, p->name);
    LS_TRY(text_status(&name));
    out->name = name.data;
    if (rank > 0)
        return make_matrix(ddp, p->rows, p->cols, &out->values);
    out->values = p->error;
    return LS_OK;
}

static ls_status make_errors(ls_ddp *ddp, int ranks)
{
    struct power_state *s = ddp->power;
    const size_t n = (size_t)ranks * (size_t)s->n_compressed;
    power_error *e;

    power_drop(ddp);
    LS_TRY(LS_NEW(&s->errors, n + 1, "for the errors of %d ranks", ranks));
    LS_TRY(LS_NEW(&s->list, n + (size_t)s->n_compressed + 1, "for the errors of %d ranks", ranks));
    s->n_ranks = ranks;
    s->list[s->n_list++] =
        (ls_named){.name = "step", .bytes = &s->step, .n_bytes = sizeof(s->step)};
    for (int i = 0; i < s->n_params; i++)
        if (s->params[i].error != NULL)
            s->list[s->n_list++] =
                (ls_named){.name = s->params[i].q_name, .tensor = s->params[i].q};
    e = s->errors;
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < s->n_params; i++) {
            if (s->params[i].error == NULL)
                continue;
            LS_TRY(make_error(ddp, r, &s->params[i], e));
            s->list[s->n_list++] = (ls_named){.name = e->name, .tensor = e->values};
            e++;
        }
    return LS_OK;
}

ls_status power_make(ls_ddp *ddp, int ranks)
{
    if (power_rank(ddp) == 0)
        return LS_OK;
    LS_TRY(make_errors(ddp, ranks));
    ddp->power->is_loaded = true;
    return LS_OK;
}

const ls_named *power_list(const ls_ddp *ddp, int *n)
{
    *n = power_rank(ddp) == 0 ? 0 : ddp->power->n_list;
    return *n == 0 ? NULL : ddp->power->list;
}

/* One of rank `from`'s errors to rank `to`, into `values`. */
static ls_status pass_error(const ls_ddp *ddp, ls_tensor *values, int from, int to)
{
    const int rank = ls_comm_rank(ddp->comm);
    float *data = values != NULL ? tensor_host_elements(values) : NULL;

    comm_label(ddp->comm, "error of PowerSGD");
    if (from == to || (rank != from && rank != to))
        return LS_OK;
    return rank == from
               ? ls_send(ddp->comm, data, ls_tensor_count(values), LS_F32, to, ERROR_TAG, NULL)
               : ls_recv(ddp->comm, data, ls_tensor_count(values), LS_F32, from, ERROR_TAG, NULL);
}

ls_status power_collect(ls_ddp *ddp)
{
    struct power_state *s = ddp == NULL ? NULL : ddp->power;
    const int size = s == NULL ? 0 : ls_comm_size(ddp->comm);
    const bool is_first = s != NULL && ls_comm_rank(ddp->comm) == 0;

    if (s == NULL)
        return LS_OK;
    if (is_first)
        LS_TRY(make_errors(ddp, size));
    for (int r = 1; r < size; r++)
        for (int i = 0, j = 0; i < s->n_params; i++) {
            if (s->params[i].error == NULL)
                continue;
            LS_TRY(pass_error(
                ddp, is_first ? s->errors[r * s->n_compressed + j].values : s->params[i].error, r,
                0));
            j++;
        }
    return LS_OK;
}

/* Adds the error of rank `of` in the file to that of a rank here, which has had none before if the
 * two have one number. */
static ls_status give_error(ls_ddp *ddp, int of, const power_param *p, ls_tensor *saved)
{
    const int to = of % ls_comm_size(ddp->comm);
    ls_tensor *extra = NULL;
    ls_status st = LS_OK;

    if (ls_comm_rank(ddp->comm) != to)
        return pass_error(ddp, saved, 0, to);
    if (of == to)
        return pass_error(ddp, p->error, 0, to);
    if (to != 0)
        LS_TRY(make_matrix(ddp, p->rows, p->cols, &extra));
    st = pass_error(ddp, extra, 0, to);
    if (st == LS_OK) {
        const float *more = tensor_host_elements(to != 0 ? extra : saved);
        float *own = tensor_host_elements(p->error);

        for (size_t i = 0; i < p->rows * p->cols; i++)
            own[i] += more[i];
    }
    ls_tensor_destroy(extra);
    return st;
}

static ls_status send_q(ls_ddp *ddp)
{
    struct power_state *s = ddp->power;
    const ls_named step = {.name = "step", .bytes = &s->step, .n_bytes = sizeof(s->step)};

    LS_TRY(ddp_send_item(ddp->comm, &step, 0));
    for (int i = 0; i < s->n_params; i++) {
        const ls_named q = {.name = s->params[i].q_name, .tensor = s->params[i].q};

        if (q.tensor != NULL)
            LS_TRY(ddp_send_item(ddp->comm, &q, 0));
    }
    return LS_OK;
}

ls_status power_spread(ls_ddp *ddp)
{
    struct power_state *s = ddp == NULL ? NULL : ddp->power;
    int64_t ranks = s != NULL && s->is_loaded ? s->n_ranks : 0;

    if (s == NULL)
        return LS_OK;
    comm_label(ddp->comm, "errors of PowerSGD");
    LS_TRY(ls_broadcast(ddp->comm, &ranks, &ranks, 1, LS_I64, 0, NULL));
    if (ranks == 0)
        return LS_OK;
    LS_TRY(send_q(ddp));
    for (int r = 0; r < (int)ranks; r++)
        for (int i = 0, j = 0; i < s->n_params; i++) {
            if (s->params[i].error == NULL)
                continue;
            LS_TRY(
                give_error(ddp, r, &s->params[i],
                           s->errors != NULL ? s->errors[r * s->n_compressed + j].values : NULL));
            j++;
        }
    power_drop(ddp);
    return LS_OK;
}
