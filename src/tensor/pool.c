/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - free lists of memory blocks and tensors by size class, for tensor.c. A class wastes at
 * most an eighth of a block, and batches of nearly the same size share blocks. On host devices all
 * blocks together take at most a sixteenth, or LEAST_SURPLUS, more than was ever in use at a time:
 * otherwise the parts of a step that need different sizes would add up.
 */
#include "tensor/pool.h"

#include "base/alloc.h"
#include "base/text.h"
#include "tensor/device.h"

#include <string.h>

#define MIN_BLOCK_BYTES    64
#define MIN_BLOCK_LOG2     6
#define CLASSES_A_DOUBLING 8
#define LEAST_SURPLUS      ((size_t)32 << 20) /* a small network's step makes no blocks anew */
#define CLASS_COUNT        ((62 - MIN_BLOCK_LOG2) * CLASSES_A_DOUBLING + 1)

struct tensor_pool {
    storage *free_blocks[2][CLASS_COUNT]; /* [1]: of persistent tensors */
    storage *free_borrowed;               /* storage records without memory */
    ls_tensor *free_tensors[2];
    size_t n_live_tensors;
    size_t bytes_in_use[2]; /* of blocks; [1]: of persistent tensors */
    size_t most_in_use;     /* of both, so far */
    size_t bytes_free;      /* of free blocks */
};

#if defined(__SANITIZE_ADDRESS__)
#define POOL_POISONS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POOL_POISONS 1
#endif
#endif

#ifdef POOL_POISONS
#include <sanitizer/asan_interface.h>

/* The sanitizer reports uses of free blocks, and results must not depend on a block's
 * old contents. A stream device's memory is not the host's to touch. */
static void block_poison(const storage *s)
{
    if (s->device->accel == NULL)
        __asan_poison_memory_region(s->data, s->bytes);
}

static void block_unpoison(const storage *s)
{
    if (s->device->accel != NULL)
        return;
    __asan_unpoison_memory_region(s->data, s->bytes);
    memset(s->data, 0xFF, s->bytes); // NaN in every floating type
}
#else
static void block_poison(const storage *s)
{
    LS_UNUSED(s);
}

static void block_unpoison(const storage *s)
{
    LS_UNUSED(s);
}
#endif

/* The class of blocks for `bytes`, at most 2^62; *rounded: the size of its blocks. */
static size_t class_of(size_t bytes, size_t *rounded)
{
    int log2_below; // 2^log2_below < bytes <= 2^(log2_below + 1)
    size_t step;
    size_t n_steps;

    if (bytes <= MIN_BLOCK_BYTES) {
        *rounded = MIN_BLOCK_BYTES;
        return 0;
    }
    log2_below = 63 - __builtin_clzll((unsigned long long)(bytes - 1));
    step = (size_t)1 << (log2_below - 3);
    n_steps = (bytes + step - 1) / step;
    *rounded = n_steps * step;
    return (size_t)(log2_below - MIN_BLOCK_LOG2) * CLASSES_A_DOUBLING + n_steps -
           CLASSES_A_DOUBLING;
}

ls_status pool_create(tensor_pool **out)
{
    LS_TRY(LS_NEW(out, 1, "for a device's pool"));
    return LS_OK;
}

/* Frees the blocks of the list until at most `most` bytes are free. */
static void free_blocks(ls_device *device, storage **list, size_t most)
{
    while (*list != NULL && device->pool->bytes_free > most) {
        storage *s = *list;

        *list = s->next_free;
        device->pool->bytes_free -= s->bytes;
        block_unpoison(s);
        device->ops->free(device->state, s->data, s->bytes);
        ls_free(s);
    }
}

static void free_borrowed(storage *s)
{
    while (s != NULL) {
        storage *next = s->next_free;

        ls_free(s);
        s = next;
    }
}

static void free_list_of_tensors(ls_tensor *t)
{
    while (t != NULL) {
        ls_tensor *next = t->next_free;

        ls_free(t);
        t = next;
    }
}

/* Frees free blocks, large ones first, until at most `most` bytes are free; false: there were none
 * to free. */
static bool trim(ls_device *device, size_t most)
{
    tensor_pool *pool = device->pool;
    const bool found = pool->bytes_free > most;

    for (size_t i = CLASS_COUNT; i-- > 0 && pool->bytes_free > most;) {
        free_blocks(device, &pool->free_blocks[0][i], most);
        free_blocks(device, &pool->free_blocks[1][i], most);
    }
    return found;
}

/* How many bytes may be free beside a new block of `bytes`. A stream device has no bound: it would
 * wait for its queue to free a block. */
static size_t most_free(const ls_device *device, size_t bytes)
{
    const tensor_pool *pool = device->pool;
    const size_t in_use = pool->bytes_in_use[0] + pool->bytes_in_use[1];
    const size_t part = pool->most_in_use / 16;
    const size_t most = pool->most_in_use + (part < LEAST_SURPLUS ? LEAST_SURPLUS : part);

    if (device->accel != NULL)
        return SIZE_MAX;
    return most > in_use + bytes ? most - in_use - bytes : 0;
}

/* The list of class `index`, or where a new block would exceed the bound, of larger blocks of at
 * most twice the size: the pages of a new one would have to be made and cleared. */
static storage **list_for(ls_device *device, bool persistent, size_t index, size_t rounded)
{
    storage **lists = device->pool->free_blocks[persistent];

    if (lists[index] != NULL || device->pool->bytes_free <= most_free(device, rounded))
        return &lists[index];
    for (size_t i = index + 1; i <= index + CLASSES_A_DOUBLING && i < CLASS_COUNT; i++)
        if (lists[i] != NULL)
            return &lists[i];
    return &lists[index];
}

size_t pool_live_tensors(const ls_device *device)
{
    return device->pool->n_live_tensors;
}

void pool_destroy(ls_device *device)
{
    tensor_pool *pool = device->pool;

    if (pool == NULL)
        return;
    (void)trim(device, 0);
    free_list_of_tensors(pool->free_tensors[0]);
    free_list_of_tensors(pool->free_tensors[1]);
    free_borrowed(pool->free_borrowed);
    ls_free(pool);
    device->pool = NULL;
}

/* A new block; NULL: out of memory. */
static storage *make_block(ls_device *device, size_t rounded)
{
    storage *s = ls_calloc(1, sizeof(*s));

    if (s == NULL)
        return NULL;
    s->data = device->ops->alloc(device->state, rounded);
    if (s->data == NULL) {
        ls_free(s);
        return NULL;
    }
    s->device = device;
    s->bytes = rounded;
    return s;
}

/* Names what holds the memory of the card. A card that is lost has none either: that is the error
 * then. */
static ls_status no_card_memory(const ls_device *device, size_t bytes)
{
    const size_t *in_use = device->pool->bytes_in_use;
    char text[6][32];
    size_t free_bytes = 0;
    size_t total = 0;
    size_t others;

    LS_TRY(accel_memory(device->accel, &free_bytes, &total));
    others = total - free_bytes;
    others -= others < in_use[0] + in_use[1] ? others : in_use[0] + in_use[1];
    return ls_fail(
        LS_ENOMEM,
        "out of memory on %s: %s more needed, %s of %s free; in use: %s by parameters, gradients "
        "and optimizer state, %s by activations, %s by libraries, communication and other "
        "processes. Lower --batch-size (--accumulate keeps the samples of a step), or use "
        "--precision bf16",
        device->accel->name, text_bytes(text[0], sizeof(text[0]), bytes),
        text_bytes(text[1], sizeof(text[1]), free_bytes),
        text_bytes(text[2], sizeof(text[2]), total),
        text_bytes(text[3], sizeof(text[3]), in_use[1]),
        text_bytes(text[4], sizeof(text[4]), in_use[0]),
        text_bytes(text[5], sizeof(text[5]), others));
}

static ls_status no_memory(const ls_device *device, size_t bytes)
{
    if (device->accel != NULL)
        return no_card_memory(device, bytes);
    return ls_fail(LS_ENOMEM,
                   "out of memory: no memory for %zu bytes on device %s. Lower --batch-size "
                   "(--accumulate keeps the samples of a step) or --workers, or start fewer ranks "
                   "on this machine",
                   bytes, device->ops->name);
}

ls_status pool_take(ls_device *device, size_t bytes, bool persistent, storage **out)
{
    tensor_pool *pool = device->pool;
    storage **list;
    size_t index;
    size_t rounded;
    storage *s;

    if (bytes > (size_t)1 << 62)
        return no_memory(device, bytes);
    index = class_of(bytes, &rounded);
    list = list_for(device, persistent, index, rounded);
    s = *list;
    if (s != NULL) {
        *list = s->next_free;
        pool->bytes_free -= s->bytes;
    } else {
        (void)trim(device, most_free(device, rounded));
        s = make_block(device, rounded);
    }
    if (s == NULL && trim(device, 0)) // blocks of other sizes are free memory, too
        s = make_block(device, rounded);
    if (s == NULL)
        return no_memory(device, bytes);
    block_unpoison(s);
    s->next_free = NULL;
    s->n_refs = 1;
    s->version++;
    s->writer = NULL;
    s->persistent = persistent;
    pool->bytes_in_use[persistent] += s->bytes;
    if (pool->most_in_use < pool->bytes_in_use[0] + pool->bytes_in_use[1])
        pool->most_in_use = pool->bytes_in_use[0] + pool->bytes_in_use[1];
    *out = s;
    return LS_OK;
}

ls_status device_alloc(ls_device *device, size_t bytes, void **out)
{
    *out = accel_alloc(device->accel, bytes);
    if (*out == NULL && trim(device, 0))
        *out = accel_alloc(device->accel, bytes);
    return *out != NULL ? LS_OK : no_memory(device, bytes);
}

ls_status pool_take_borrowed(ls_device *device, void *data, size_t bytes, storage **out)
{
    storage *s = device->pool->free_borrowed;

    if (s == NULL) {
        LS_TRY(LS_NEW(&s, 1, "for a tensor's storage record"));
    } else {
        device->pool->free_borrowed = s->next_free;
    }
    s->next_free = NULL;
    s->n_refs = 1;
    s->device = device;
    s->data = data;
    s->bytes = bytes;
    s->version++;
    s->writer = NULL;
    s->borrowed = true;
    *out = s;
    return LS_OK;
}

/* A part ends; its whole does with its last user. */
// NOLINTNEXTLINE(misc-no-recursion): once: a whole is no part
static void drop_whole(storage *s)
{
    storage *whole = s->whole;

    s->whole = NULL;
    if (whole != NULL && --whole->n_refs == 0)
        pool_give(whole); // which is no part itself
}

// NOLINTNEXTLINE(misc-no-recursion): see drop_whole()
void pool_give(storage *s)
{
    ls_device *device = s->device;
    storage **list = &device->pool->free_borrowed;

    LS_ASSERT(s->n_refs == 0);
    drop_whole(s);
    if (s->packed != NULL) {
        device->ops->free_packed(device->state, s->packed);
        s->packed = NULL;
    }
    if (s->layout != NULL && device->ops->drop_layout != NULL)
        device->ops->drop_layout(device->state, s->layout);
    s->layout = NULL;
    if (s->borrowed) {
        s->data = NULL;
    } else {
        size_t rounded;

        list = &device->pool->free_blocks[s->persistent][class_of(s->bytes, &rounded)];
        device->pool->bytes_in_use[s->persistent] -= s->bytes;
        device->pool->bytes_free += s->bytes;
        block_poison(s);
    }
    s->next_free = *list;
    *list = s;
}

ls_status pool_take_tensor(ls_device *device, bool persistent, ls_tensor **out)
{
    tensor_pool *pool = device->pool;
    ls_tensor *t = pool->free_tensors[persistent];

    if (t == NULL) {
        LS_TRY(LS_NEW(&t, 1, "for a tensor's record"));
    } else {
        pool->free_tensors[persistent] = t->next_free;
    }
    *t = (ls_tensor){.device = device, .persistent = persistent};
    pool->n_live_tensors++;
    *out = t;
    return LS_OK;
}

void pool_give_tensor(ls_tensor *t)
{
    tensor_pool *pool = t->device->pool;

    t->next_free = pool->free_tensors[t->persistent];
    pool->free_tensors[t->persistent] = t;
    pool->n_live_tensors--;
}
