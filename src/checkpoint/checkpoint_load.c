/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint_load.c - fills a list of named tensors, or changes nothing: compares file and list,
 * looks up every destination, reads all bytes into a staging buffer, and only then writes. This
 * needs memory of the size of the list during the call.
 */
#include "checkpoint/checkpoint.h"

#include "base/alloc.h"
#include "base/compute/half.h"
#include "base/file.h"
#include "checkpoint/digest.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#define DIFFERENCES_BYTES 800 /* of the error text, which has a path, too */
#define OMITTED_BYTES     32  /* " and 2147483647 more" */
#define DIFFERENCE_BYTES  480

/* The differences of an error text, as many as fit. */
typedef struct differences {
    char text[DIFFERENCES_BYTES];
    size_t length;
    int n_omitted;
} differences;

/* The callback of each difference, and their number. */
typedef struct listener {
    ls_checkpoint_skip_fn each;            /* may be NULL */
    ls_checkpoint_difference_fn each_text; /* may be NULL */
    void *arg;
    int n;
} listener;

/* Source of an item; zeroed when the item stays unchanged. */
typedef struct load_step {
    const safetensors_entry *entry;
    size_t bytes; /* in the file */
} load_step;

typedef struct load_plan {
    const ls_named *items;
    int n_items;
    load_step *steps;      /* one an item */
    uint8_t *is_requested; /* one an entry of the file */
    uint8_t *staged;       /* all bytes, item after item */
} load_plan;

/* --- comparing --- */

static void collect_difference(void *arg, ls_checkpoint_skip why, const char *name,
                               const char *text)
{
    differences *d = arg;
    const char *separator = d->length > 0 ? "; " : "";

    LS_UNUSED(why);
    LS_UNUSED(name);
    if (d->n_omitted > 0 ||
        d->length + strlen(separator) + strlen(text) + OMITTED_BYTES > sizeof(d->text)) {
        d->n_omitted++;
        return;
    }
    (void)text_format(d->text + d->length, sizeof(d->text) - d->length, "%s%s", separator, text);
    d->length += strlen(d->text + d->length);
}

static void notify(listener *l, ls_checkpoint_skip why, const char *name, const char *text)
{
    l->n++;
    if (l->each != NULL)
        l->each(l->arg, why, name, text);
    if (l->each_text != NULL)
        l->each_text(l->arg, text);
}

/* " and 3 more", or "", into buf, which it returns. */
static const char *omitted_text(char buf[OMITTED_BYTES], const differences *d)
{
    buf[0] = 0;
    if (d->n_omitted > 0)
        text_format(buf, OMITTED_BYTES, " and %d more", d->n_omitted);
    return buf;
}

static ls_status fail_differences(const ls_checkpoint *c, const differences *d)
{
    char omitted[OMITTED_BYTES];

    return ls_fail(LS_EFORMAT, "%s does not match: %s%s", c->path, d->text,
                   omitted_text(omitted, d));
}

/* "(16, 1) float32", into buf, which it returns. */
static const char *item_text(char *buf, size_t n, const ls_named *item)
{
    if (item->tensor != NULL)
        return tensor_text(buf, n, item->tensor);
    return text_format(buf, n, "(%zu) %s", item->n_bytes, ls_dtype_name(LS_U8));
}

/* As PyTorch's load_state_dict() copies them: another floating type than the float32 here, or
 * another type of numbers than the int64 of a counter. */
static bool is_converted(const safetensors_entry *e, const ls_named *item)
{
    const ls_dtype here = item_type(item);

    if (item->tensor == NULL || e->type->type == (int)here)
        return false;
    return (here == LS_F32 && e->type->kind == 'f') || (here == LS_I64 && e->type->kind != 0);
}

static bool fits(const safetensors_entry *e, const ls_named *item)
{
    if (e->type->type != (int)item_type(item) && !is_converted(e, item))
        return false;
    if (item->tensor == NULL)
        return e->n_dims == 1 && e->dims[0] == (int64_t)item->n_bytes;
    if (e->n_dims != ls_tensor_n_dims(item->tensor))
        return false;
    for (int i = 0; i < e->n_dims; i++) {
        if (e->dims[i] != ls_tensor_dim(item->tensor, i))
            return false;
    }
    return true;
}

/* Reports how an item differs from its entry, which is NULL when the file has none. */
static void compare_item(const ls_named *item, const safetensors_entry *e, listener *l)
{
    char name[SAFETENSORS_NAME_BYTES];
    char here[TENSOR_TEXT_BYTES];
    char there[SAFETENSORS_TEXT_BYTES];
    char text[DIFFERENCE_BYTES];

    if (e != NULL && fits(e, item))
        return;
    text_printable(name, sizeof(name), item->name);
    (void)item_text(here, sizeof(here), item);
    if (e == NULL)
        (void)text_format(text, sizeof(text), "%s %s is missing", name, here);
    else
        (void)text_format(text, sizeof(text), "%s is %s in the file and %s here", name,
                          safetensors_entry_text(there, sizeof(there), e), here);
    notify(l, e == NULL ? LS_SKIP_MISSING : LS_SKIP_DIFFERENT, name, text);
}

/* "conv1.weight (16, 1) float32", into buf, which it returns. */
static const char *entry_text(char *buf, size_t n, const safetensors_entry *e)
{
    char name[SAFETENSORS_NAME_BYTES];
    char there[SAFETENSORS_TEXT_BYTES];

    text_printable(name, sizeof(name), e->name);
    return text_format(buf, n, "%s %s", name, safetensors_entry_text(there, sizeof(there), e));
}

static void note_unexpected(const safetensors_entry *e, listener *l)
{
    char name[SAFETENSORS_NAME_BYTES];
    char entry[DIFFERENCE_BYTES];
    char text[DIFFERENCE_BYTES];

    text_printable(name, sizeof(name), e->name);
    notify(
        l, LS_SKIP_UNEXPECTED, name,
        text_format(text, sizeof(text), "%s is unexpected", entry_text(entry, sizeof(entry), e)));
}

static ls_status compare(const ls_checkpoint *c, load_plan *plan, ls_load_mode mode, listener *l)
{
    for (int i = 0; i < plan->n_items; i++) {
        const ls_named *item = &plan->items[i];
        const safetensors_entry *e;

        if (item->name == NULL)
            return ls_fail(LS_EINVAL, "%s: item %d has no name", c->path, i);
        e = safetensors_find(&c->index, item->name);
        compare_item(item, e, l);
        if (e == NULL)
            continue;
        if (plan->is_requested[e - c->index.entries])
            return ls_fail(LS_EINVAL, "%s: two items are named %s", c->path, item->name);
        plan->is_requested[e - c->index.entries] = 1;
        if (fits(e, item))
            plan->steps[i] = (load_step){.entry = e, .bytes = (size_t)(e->end - e->begin)};
    }
    for (int i = 0; mode == LS_LOAD_STRICT && i < c->index.n_entries; i++) {
        if (!plan->is_requested[i])
            note_unexpected(&c->index.entries[i], l);
    }
    return LS_OK;
}

static ls_status make_plan(const ls_checkpoint *c, const ls_named *items, int n_items,
                           load_plan *plan)
{
    *plan = (load_plan){.items = items, .n_items = n_items};
    if (n_items < 0 || (n_items > 0 && items == NULL))
        return ls_fail(LS_EINVAL, "%s: the list of items is NULL", c->path);
    plan->steps = ls_calloc((size_t)n_items, sizeof(*plan->steps));
    plan->is_requested = ls_calloc((size_t)c->index.n_entries, 1);
    if (plan->steps == NULL || plan->is_requested == NULL)
        return ls_fail(LS_ENOMEM, "no memory to load %s", c->path);
    return LS_OK;
}

static void free_plan(load_plan *plan)
{
    ls_free(plan->staged);
    ls_free(plan->is_requested);
    ls_free(plan->steps);
}

ls_status ls_checkpoint_compare(const ls_checkpoint *c, const ls_named *items, int n_items,
                                ls_load_mode mode, ls_checkpoint_difference_fn each, void *arg,
                                int *n_differences)
{
    listener l = {.each_text = each, .arg = arg};
    load_plan plan;
    ls_status st;

    LS_TRY(LS_GIVEN(c));
    LS_TRY(LS_GIVEN(n_differences));
    st = make_plan(c, items, n_items, &plan);
    if (st == LS_OK)
        st = compare(c, &plan, mode, &l);
    free_plan(&plan);
    *n_differences = l.n;
    return st;
}

/* --- reading --- */

/* After this the host can write each item. */
static ls_status find_destinations(const load_plan *plan)
{
    for (int i = 0; i < plan->n_items; i++) {
        const ls_named *item = &plan->items[i];
        void *ignored;

        if (plan->steps[i].entry != NULL && item->tensor != NULL)
            LS_TRY(ls_context(tensor_plain(item->tensor, &ignored), "%s", item->name));
    }
    return LS_OK;
}

/* The header describes the file as it was when it was opened. */
static ls_status check_unchanged(const ls_checkpoint *c)
{
    struct stat info;

    if (fstat(c->fd, &info) != 0)
        return ls_fail_errno("cannot examine %s", c->path);
    if ((uint64_t)info.st_size != c->file_bytes)
        return ls_fail(LS_EFORMAT, "%s had %" PRIu64 " bytes when it was opened, now it has %jd",
                       c->path, c->file_bytes, (intmax_t)info.st_size);
    return LS_OK;
}

enum { PIECE_BYTES = 4 << 20, SCRATCH_BYTES = 2 * PIECE_BYTES };

/* Reads an entry to `dst`, or where `dst` is scratch for two pieces, each piece to one of them.
 * While a piece is read, the digest of the one before is computed. *is_whole: the entry matches
 * its digest, or has none. */
static ls_status read_entry(const ls_checkpoint *c, const safetensors_entry *e, uint8_t *dst,
                            bool is_scratch, bool *is_whole)
{
    char found[DIGEST_DIGITS + 1];
    ls_status st = LS_OK;
    uint64_t at = 0; /* in the entry */
    digest d;

    digest_begin(&d);
    for (; at < e->end - e->begin && st == LS_OK; at += PIECE_BYTES) {
        const uint64_t left = e->end - e->begin - at;
        const size_t bytes = left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
        uint8_t *piece = dst + (is_scratch ? at % SCRATCH_BYTES : at);

        st = file_pread_all(c->fd, c->path, piece, bytes, c->data_offset + e->begin + at);
        if (st == LS_OK && e->digest != NULL)
            digest_start(&d, piece, bytes);
    }
    digest_end(&d, found);
    *is_whole = e->digest == NULL || text_equal(e->digest, found);
    return st;
}

static ls_status read_data(const ls_checkpoint *c, load_plan *plan)
{
    char text[DIFFERENCE_BYTES];
    size_t total = 0;
    uint8_t *at;

    LS_TRY(check_unchanged(c));
    for (int i = 0; i < plan->n_items; i++)
        total += plan->steps[i].bytes; // distinct parts of one file: cannot overflow
    plan->staged = ls_alloc_aligned(64, total);
    if (plan->staged == NULL)
        return ls_fail(LS_ENOMEM, "no memory to read %zu bytes of %s", total, c->path);
    at = plan->staged;
    for (int i = 0; i < plan->n_items; i++) {
        const load_step *step = &plan->steps[i];
        bool is_whole;

        if (step->entry == NULL)
            continue;
        LS_TRY(read_entry(c, step->entry, at, false, &is_whole));
        if (!is_whole)
            return ls_fail(LS_EFORMAT, "%s: the data of %s does not match its digest" DIGEST_ADVICE,
                           c->path, entry_text(text, sizeof(text), step->entry));
        at += step->bytes;
    }
    return LS_OK;
}

/* The next staged bytes of an item, in the file's type. */
typedef struct staged_item {
    const uint8_t *at;
    const safetensors_type *type;
} staged_item;

static void copy_staged(void *arg, void *piece, size_t bytes)
{
    staged_item *from = arg;

    memcpy(piece, from->at, bytes);
    from->at += bytes;
}

static double float_at(const uint8_t *at, const safetensors_type *type)
{
    uint16_t half;
    float single;
    double real;

    if (type->bytes == sizeof(real)) {
        memcpy(&real, at, sizeof(real));
        return real;
    }
    if (type->bytes == sizeof(single)) {
        memcpy(&single, at, sizeof(single));
        return (double)single;
    }
    memcpy(&half, at, sizeof(half));
    return (double)(type->type == (int)LS_BF16 ? ls_bf16_to_f32(half) : ls_f16_to_f32(half));
}

static void convert_to_f32(void *arg, void *piece, size_t bytes)
{
    staged_item *from = arg;
    float *dst = piece;

    for (size_t i = 0; i < bytes / sizeof(*dst); i++, from->at += from->type->bytes)
        dst[i] = (float)float_at(from->at, from->type);
}

/* Little-endian; the sign is extended. A number that is none, or too large, becomes 0. */
static int64_t integer_at(const uint8_t *at, const safetensors_type *type)
{
    const unsigned shift = 64 - 8 * (unsigned)type->bytes;
    uint64_t bits = 0;

    if (type->kind == 'f') {
        const double x = float_at(at, type);
        return fabs(x) < 0x1p62 ? (int64_t)x : 0;
    }
    memcpy(&bits, at, type->bytes);
    return type->kind == 'i' ? (int64_t)(bits << shift) >> shift : (int64_t)bits;
}

static void convert_to_i64(void *arg, void *piece, size_t bytes)
{
    staged_item *from = arg;
    int64_t *dst = piece;

    for (size_t i = 0; i < bytes / sizeof(*dst); i++, from->at += from->type->bytes)
        dst[i] = integer_at(from->at, from->type);
}

static void (*writer_of(const safetensors_entry *e, const ls_named *item))(void *, void *, size_t)
{
    if (!is_converted(e, item))
        return copy_staged;
    return item_type(item) == LS_F32 ? convert_to_f32 : convert_to_i64;
}

static ls_status fill_item(const ls_named *item, const load_step *step, const uint8_t *at)
{
    staged_item from = {.at = at, .type = step->entry->type};

    if (item->tensor != NULL)
        return ls_context(tensor_write_pieces(item->tensor, writer_of(step->entry, item), &from),
                          "%s", item->name);
    if (step->bytes > 0)
        memcpy(item->bytes, at, step->bytes);
    return LS_OK;
}

/* With tensors of host devices nothing can fail from here on. */
static ls_status fill_items(const load_plan *plan)
{
    const uint8_t *at = plan->staged;

    LS_ASSERT(at != NULL);
    for (int i = 0; i < plan->n_items; i++) {
        const load_step *step = &plan->steps[i];

        if (step->entry != NULL)
            LS_TRY(fill_item(&plan->items[i], step, at));
        at += step->bytes;
    }
    return LS_OK;
}

static ls_status read_items(const ls_checkpoint *c, load_plan *plan)
{
    LS_TRY(find_destinations(plan));
    LS_TRY(read_data(c, plan));
    return fill_items(plan);
}

static ls_status load_items(const ls_checkpoint *c, load_plan *plan, ls_load_mode mode)
{
    differences found = {0};
    listener l = {.each = collect_difference, .arg = &found};

    LS_TRY(compare(c, plan, mode, &l));
    if (l.n > 0)
        return fail_differences(c, &found);
    return read_items(c, plan);
}

static int count_steps(const load_plan *plan)
{
    int n = 0;

    for (int i = 0; i < plan->n_items; i++)
        n += plan->steps[i].entry != NULL;
    return n;
}

ls_status ls_checkpoint_load_fitting(ls_checkpoint *c, const ls_named *items, int n_items,
                                     ls_load_mode mode, ls_checkpoint_skip_fn each, void *arg,
                                     int *n_loaded)
{
    listener l = {.each = each, .arg = arg};
    load_plan plan;
    ls_status st;

    LS_TRY(LS_GIVEN(c));
    LS_TRY(LS_GIVEN(n_loaded));
    st = make_plan(c, items, n_items, &plan);
    if (st == LS_OK)
        st = compare(c, &plan, mode, &l);
    if (st == LS_OK)
        st = read_items(c, &plan);
    if (st == LS_OK)
        *n_loaded = count_steps(&plan);
    free_plan(&plan);
    return st;
}

ls_status ls_checkpoint_load(ls_checkpoint *c, const ls_named *items, int n_items,
                             ls_load_mode mode)
{
    load_plan plan;
    ls_status st;

    LS_TRY(LS_GIVEN(c));
    st = make_plan(c, items, n_items, &plan);
    if (st == LS_OK)
        st = load_items(c, &plan, mode);
    free_plan(&plan);
    return st;
}

/* --- verifying --- */

static ls_status find_damaged(const ls_checkpoint *c, uint8_t *scratch, differences *found, int *n)
{
    char text[DIFFERENCE_BYTES];

    LS_TRY(check_unchanged(c));
    for (int i = 0; i < c->index.n_entries; i++) {
        const safetensors_entry *e = &c->index.entries[i];
        bool is_whole;

        LS_TRY(read_entry(c, e, scratch, true, &is_whole));
        if (!is_whole)
            collect_difference(found, LS_SKIP_DIFFERENT, NULL, entry_text(text, sizeof(text), e));
        *n += !is_whole;
    }
    return LS_OK;
}

ls_status ls_checkpoint_verify(const ls_checkpoint *c, int *has_digests)
{
    differences found = {0};
    char omitted[OMITTED_BYTES];
    uint8_t *scratch;
    int n = 0;
    ls_status st;

    LS_TRY(LS_GIVEN(c));
    LS_TRY(LS_GIVEN(has_digests));
    scratch = ls_alloc_aligned(64, SCRATCH_BYTES);
    if (scratch == NULL)
        return ls_fail(LS_ENOMEM, "no memory to verify %s", c->path);
    st = find_damaged(c, scratch, &found, &n);
    ls_free(scratch);
    *has_digests = c->index.has_digests;
    if (st == LS_OK && n > 0)
        st = ls_fail(LS_EFORMAT,
                     "%s: %d of %d tensors do not match their digests" DIGEST_ADVICE ": %s%s",
                     c->path, n, c->index.n_entries, found.text, omitted_text(omitted, &found));
    return st;
}
