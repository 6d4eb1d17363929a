/* SPDX-License-Identifier: Apache-2.0 */
/* test_flip.c - see test_flip.h. device_open.c and device.c call it. */
#include "tensor/test_flip.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "base/text.h"
#include "tensor/op_cost.h"

#include <stdlib.h>
#include <string.h>

#define VARIABLE "LOCKSTEP_TEST_FLIP"

typedef enum flip_kind { FLIP_WEIGHTS, FLIP_PRODUCTS, FLIP_ALWAYS } flip_kind;

struct test_flip {
    flip_kind kind;
    int64_t first;
    int64_t last;
    int64_t seed;
    int64_t step;   /* from 1 on */
    int64_t n;      /* results of this step so far */
    int64_t n_most; /* of the longest step so far */
};

static ls_status read_kind(const char *text, flip_kind *out)
{
    static const char *const names[] = {"weights", "products", "always"};

    for (size_t i = 0; i < LS_COUNT_OF(names); i++)
        if (text_equal(text, names[i])) {
            *out = (flip_kind)i;
            return LS_OK;
        }
    return ls_fail(LS_EINVAL, VARIABLE ": %s is not weights, products or always", text);
}

static ls_status read_variable(const char *text, struct test_flip *f)
{
    int64_t *const numbers[] = {&f->first, &f->last, &f->seed};
    char item[24];

    text_format(item, sizeof(item), "%.*s", (int)strcspn(text, ":"), text);
    LS_TRY(read_kind(item, &f->kind));
    text += strcspn(text, ":");
    for (size_t i = 0; i < LS_COUNT_OF(numbers) && *text != '\0'; i++) {
        text++;
        text_format(item, sizeof(item), "%.*s", (int)strcspn(text, ":"), text);
        LS_TRY(text_parse_int(item, VARIABLE, 1, INT64_MAX, numbers[i]));
        text += strcspn(text, ":");
    }
    return *text == '\0' ? LS_OK : ls_fail(LS_EINVAL, VARIABLE ": nothing may follow the seed");
}

ls_status test_flip_open(const ls_device *device, struct test_flip **out)
{
    const char *text = getenv(VARIABLE); // NOLINT(concurrency-mt-unsafe): no thread sets it
    struct test_flip *f;
    ls_status st;

    *out = NULL;
    if (text == NULL)
        return LS_OK;
    if (device->accel != NULL)
        return ls_fail(LS_EINVAL, VARIABLE ": not on device %s", ls_device_name(device));
    LS_TRY(LS_NEW(&f, 1, "for " VARIABLE));
    *f = (struct test_flip){.first = 1, .last = INT64_MAX, .seed = 1, .step = 1};
    st = read_variable(text, f);
    if (st != LS_OK) {
        ls_free(f);
        return st;
    }
    *out = f;
    return LS_OK;
}

static void flip_bit(const ls_tensor *t, uint64_t bit)
{
    unsigned char *bytes = t->storage->layout == NULL ? tensor_elements(t) : t->storage->data;

    bytes[bit / 8] ^= (unsigned char)(1U << bit % 8);
}

/* Bits of the elements; in a layout of the device some may be of its padding. */
static uint64_t bits_of(const ls_tensor *t)
{
    return 8 * (uint64_t)(t->storage->layout == NULL ? tensor_bytes(t) : t->storage->bytes);
}

static bool is_hit(struct test_flip *f, const op_call *call)
{
    const cost_rule rule = op_cost_rule(call->op);
    const uint64_t most = (uint64_t)(f->n_most > 0 ? f->n_most : 1);

    if (rule != PRODUCT_WEIGHTS && (f->kind != FLIP_PRODUCTS || rule == PER_ELEMENT))
        return false;
    if (call->out[0] == NULL || call->out[0]->storage == NULL || bits_of(call->out[0]) == 0)
        return false;
    f->n++;
    if (f->step < f->first || f->step > f->last)
        return false;
    return f->kind == FLIP_ALWAYS ||
           (uint64_t)f->n - 1 == ls_hash3((uint64_t)f->seed, (uint64_t)f->step, 0) % most;
}

static void end_step(struct test_flip *f)
{
    f->n_most = f->n > f->n_most ? f->n : f->n_most;
    f->step += f->n > 0;
    f->n = 0;
}

void test_flip_results(struct test_flip *f, const op_call *calls, int n)
{
    for (int i = 0; i < n; i++) {
        const op_call *call = &calls[i];

        if (call->op == OP_SGD || call->op == OP_ADAM)
            end_step(f);
        else if (is_hit(f, call))
            flip_bit(call->out[0], f->kind == FLIP_ALWAYS
                                       ? 20
                                       : ls_hash3((uint64_t)f->seed, (uint64_t)f->step, 1) %
                                             bits_of(call->out[0]));
    }
}
