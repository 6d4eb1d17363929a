/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_own_data.c - own data: the bytes are fields (types, dimensions, padding) and the lengths
 * that a callback gives. A set that is accepted is read in batches of two samples.
 */
#include "fuzz/fuzz.h"

#include <lockstep/data.h>

#include <stdbool.h>
#include <string.h>

enum { SAMPLES = 5, FIELDS = 4, LARGE = 1 << 16 };

typedef struct input {
    const uint8_t *data;
    size_t left;
    ls_field fields[FIELDS];
    int n_fields;
    int64_t longest; /* of the lengths that were given */
} input;

/* The next number: small ones in one byte, any other in nine. */
static int64_t next(input *in)
{
    int64_t number = 0;

    if (in->left == 0)
        return 0;
    in->left--;
    if (*in->data != 0x80)
        return (int8_t)*in->data++;
    in->data++;
    for (int i = 0; i < 8 && in->left > 0; i++, in->left--)
        number = (int64_t)((uint64_t)number << 8 | *in->data++);
    return number;
}

static void read_fields(input *in)
{
    static const char *const names[] = {"x", "y", "x", ""};

    in->n_fields = (int)((uint64_t)next(in) % (FIELDS + 1));
    for (int i = 0; i < in->n_fields; i++) {
        ls_field *f = &in->fields[i];

        f->name = names[(uint64_t)next(in) % 4];
        f->type = (ls_dtype)(next(in) % 16);
        f->n_dims = (int)next(in);
        f->padding = (double)next(in);
        for (int d = 0; d < f->n_dims && d < LS_MAX_DIMS - 1; d++)
            f->dims[d] = next(in);
    }
}

static int count_lengths(const input *in)
{
    int n = 0;

    for (int i = 0; i < in->n_fields; i++)
        for (int d = 0; d < in->fields[i].n_dims && d < LS_MAX_DIMS - 1; d++)
            n += in->fields[i].dims[d] == -1;
    return n;
}

static ls_status lengths(void *arg, size_t index, int64_t *out)
{
    input *in = arg;

    LS_UNUSED(index);
    for (int i = 0; i < count_lengths(in); i++) {
        out[i] = next(in);
        in->longest = out[i] > in->longest ? out[i] : in->longest;
    }
    return LS_OK;
}

/* Writes each byte of the sample. */
static ls_status read_sample(void *arg, const ls_sample_request *request, void *const *values)
{
    const input *in = arg;
    int at = 0;

    for (int i = 0; i < in->n_fields; i++) {
        size_t bytes = ls_dtype_size(in->fields[i].type);

        for (int d = 0; d < in->fields[i].n_dims; d++)
            bytes *= (size_t)(in->fields[i].dims[d] >= 0 ? in->fields[i].dims[d]
                                                         : request->lengths[at++]);
        memset(values[i], 1, bytes);
    }
    return LS_OK;
}

/* Whether padded samples are small: the loader is right to ask for the memory of large ones. */
static bool is_small(const input *in)
{
    double bytes = 0;

    for (int i = 0; i < in->n_fields; i++) {
        double field = 8;

        for (int d = 0; d < in->fields[i].n_dims; d++)
            field *= (double)(in->fields[i].dims[d] >= 0 ? in->fields[i].dims[d] : in->longest);
        bytes += field;
    }
    return bytes < LARGE;
}

static ls_device *reference(void)
{
    static ls_device *device;
    const ls_device_options opt = {.size = sizeof(opt), .name = "cpu_ref", .threads = 1};

    if (device == NULL && ls_device_open(&opt, &device) != LS_OK)
        __builtin_trap();
    return device;
}

/* Reads an epoch, whose batches have all samples. */
static void read_epoch(ls_dataset *set)
{
    const ls_sampler_options order = {.size = sizeof(order), .count = SAMPLES, .seed = 1};
    ls_loader_options opt = {
        .size = sizeof(opt), .device = reference(), .dataset = set, .batch_size = 2, .threads = -1};
    ls_loader *loader = NULL;
    ls_batch batch;
    int64_t rows = 0;

    if (ls_sampler_create(&order, &opt.sampler) != LS_OK ||
        ls_loader_create(&opt, &loader) != LS_OK || ls_loader_start(loader, 0, 0) != LS_OK)
        __builtin_trap();
    do {
        if (ls_loader_next(loader, &batch) != LS_OK)
            __builtin_trap();
        rows += batch.rows;
    } while (batch.rows > 0);
    if (rows != SAMPLES)
        __builtin_trap();
    ls_loader_destroy(loader);
    ls_sampler_destroy(opt.sampler);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {.data = data, .left = size};
    ls_dataset_callbacks own = {.size = sizeof(own),
                                .count = SAMPLES,
                                .fields = in.fields,
                                .lengths = lengths,
                                .read = read_sample,
                                .arg = &in};
    ls_dataset *set;

    read_fields(&in);
    own.n_fields = in.n_fields;
    if (ls_dataset_create(&own, &set) != LS_OK)
        return 0;
    if (is_small(&in))
        read_epoch(set);
    ls_dataset_close(set);
    return 0;
}
