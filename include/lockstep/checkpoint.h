/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.h - saves and loads lists of named tensors in safetensors files.
 *
 * A file is written to PATH.tmp, synced and renamed: after a crash at any moment the old or the new
 * file is complete. Format: https://huggingface.co/docs/safetensors (8-byte little-endian header
 * length, JSON header, contiguous tensors). Its metadata has digests of the header and of each
 * tensor (docs/training.md), which opening and loading compare. Files of other programs have none.
 */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/tensor.h>

LS_BEGIN_DECLS

/* A pair of the file's __metadata__. */
typedef struct ls_meta {
    const char *key;
    const char *value;
} ls_meta;

/* Writes all items (tensors row-major in their own type, plain bytes as U8) and metadata. Blocks
 * until the data is on disk. On failure PATH is unchanged. LS_EINVAL: duplicate names, or a
 * metadata key that begins with "lockstep.blake2b". */
LS_API LS_MUST_USE ls_status ls_checkpoint_save(const char *path, const ls_named *items,
                                                int n_items, const ls_meta *meta, int n_meta);

/* The same, with float32 tensors rounded (to nearest even) to `type`: LS_F16, LS_BF16 or LS_F32.
 * Other types are not changed. LS_EINVAL names a tensor with a finite value that overflows fp16. */
LS_API LS_MUST_USE ls_status ls_checkpoint_save_as(const char *path, const ls_named *items,
                                                   int n_items, const ls_meta *meta, int n_meta,
                                                   ls_dtype type);

typedef struct ls_checkpoint ls_checkpoint;

/* Opens and checks a file: size of the header (at most 100 MB and the file's size), offsets inside
 * the file without overlap or gap, sizes according to shapes and types, digest of the header.
 * LS_EFORMAT names file and offset; for a file of torch.save() it names the command that converts
 * it. */
LS_API LS_MUST_USE ls_status ls_checkpoint_open(const char *path, ls_checkpoint **out);
/* The same, but digests are ignored, now and when tensors are loaded: --no-verify. */
LS_API LS_MUST_USE ls_status ls_checkpoint_open_unverified(const char *path, ls_checkpoint **out);
/* Reads all tensors, which need not fit in memory, and compares them with their digests. LS_EFORMAT
 * names those that differ. *has_digests: 0 for a file without any. Blocks until it is read. */
LS_API LS_MUST_USE ls_status ls_checkpoint_verify(const ls_checkpoint *c, int *has_digests);
LS_API void ls_checkpoint_close(ls_checkpoint *c); /* NULL is allowed */

/* Writes to `buf` the shell command that converts `from`, a file of torch.save() or (as
 * "torchvision:resnet18") the weights of torchvision, to the safetensors file `to`, with a Python
 * that has torch. Returns `buf`, or NULL if an argument is NULL. */
LS_API const char *ls_checkpoint_conversion(const char *from, const char *to, char *buf, size_t n);

typedef struct ls_checkpoint_entry {
    const char *name; /* valid until the checkpoint is closed, like dims */
    ls_dtype type;
    int n_dims;
    const int64_t *dims;
} ls_checkpoint_entry;

LS_API int ls_checkpoint_count(const ls_checkpoint *c);
/* LS_EUNSUPPORTED: ls_dtype lacks the type; *out has all but that. */
LS_API LS_MUST_USE ls_status ls_checkpoint_entry_at(const ls_checkpoint *c, int i,
                                                    ls_checkpoint_entry *out);
/* The value of a metadata key, or NULL. Valid until the checkpoint is closed. */
LS_API const char *ls_checkpoint_meta(const ls_checkpoint *c, const char *key);

typedef enum ls_load_mode {
    LS_LOAD_STRICT = 0, /* file and list must have exactly the same names */
    LS_LOAD_SUBSET      /* the file may have more names than the list */
} ls_load_mode;

/* Called for each difference between file and list, with a text such as "conv1.weight is (64, 3, 7,
 * 7) float32 in the file and (16, 1) float32 here". */
typedef void (*ls_checkpoint_difference_fn)(void *arg, const char *text);

/* Compares names, shapes, types; all floating types match float32 of the list, all numbers int64.
 * Calls `each` (may be NULL) for every difference. *n_differences: how many. Changes nothing. */
LS_API LS_MUST_USE ls_status ls_checkpoint_compare(const ls_checkpoint *c, const ls_named *items,
                                                   int n_items, ls_load_mode mode,
                                                   ls_checkpoint_difference_fn each, void *arg,
                                                   int *n_differences);

/* Fills all items from the file; converts to float32 (fp16 and bf16 exactly) and int64. Compares
 * first: LS_EFORMAT names missing, unexpected and different entries with shapes and types, as many
 * as an error text holds (ls_checkpoint_compare() reports all), or the first tensor that does not
 * match its digest. On failure nothing is changed. */
LS_API LS_MUST_USE ls_status ls_checkpoint_load(ls_checkpoint *c, const ls_named *items,
                                                int n_items, ls_load_mode mode);

/* Why ls_checkpoint_load_fitting() has skipped a name. */
typedef enum ls_checkpoint_skip {
    LS_SKIP_MISSING = 0,    /* an item without an entry in the file */
    LS_SKIP_UNEXPECTED = 1, /* an entry of the file without an item (LS_LOAD_STRICT) */
    LS_SKIP_DIFFERENT = 2   /* shape or type differ */
} ls_checkpoint_skip;

/* Called for each skipped name; `text` as of ls_checkpoint_difference_fn. */
typedef void (*ls_checkpoint_skip_fn)(void *arg, ls_checkpoint_skip why, const char *name,
                                      const char *text);

/* Fills the items whose entry in the file has the same shape and type, and leaves the others
 * unchanged: for fine-tuning with another number of classes. Calls `each` (may be NULL) for the
 * others. *n_loaded: the number of filled items, possibly 0. Blocks until the file is read. On
 * failure nothing is changed. */
LS_API LS_MUST_USE ls_status ls_checkpoint_load_fitting(ls_checkpoint *c, const ls_named *items,
                                                        int n_items, ls_load_mode mode,
                                                        ls_checkpoint_skip_fn each, void *arg,
                                                        int *n_loaded);

LS_END_DECLS

#endif
