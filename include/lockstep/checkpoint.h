/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint.h - named lists in safetensors files, whole or not at all.
 *
 * A file is written to PATH.tmp, synced and renamed, so that a crash at any moment leaves the old or the new
 * one. Format: https://huggingface.co/docs/safetensors (8-byte little-endian header length, JSON header,
 * tensors back to back).
 */
#ifndef LOCKSTEP_CHECKPOINT_H
#define LOCKSTEP_CHECKPOINT_H

#include <lockstep/tensor.h>

LS_BEGIN_DECLS

/* One pair of the file's __metadata__. */
typedef struct ls_meta {
    const char *key;
    const char *value;
} ls_meta;

/* Writes all items (tensors row-major in their own type, plain bytes as U8) and metadata. Blocks until the data is on disk.
 * On failure PATH is what it was. Duplicate names are LS_EINVAL. */
LS_API LS_MUST_USE ls_status ls_checkpoint_save(const char *path, const ls_named *items,
                                                int n_items, const ls_meta *meta, int n_meta);

/* The same, with float32 tensors rounded to `type`: LS_F16 or LS_BF16 (to nearest even); LS_F32 keeps
 * them. Others stay as they are. LS_EINVAL names a tensor with a finite value that fp16 cannot hold. */
LS_API LS_MUST_USE ls_status ls_checkpoint_save_as(const char *path, const ls_named *items,
                                                   int n_items, const ls_meta *meta, int n_meta,
                                                   ls_dtype type);

typedef struct ls_checkpoint ls_checkpoint;

/* Opens and checks a file: header bounded (at most 100 MB and the file's size), every offset inside the file, no overlaps or holes,
 * sizes that fit shapes and types. LS_EFORMAT names file and offset; for a file of torch.save() it has
 * the command that converts it. */
LS_API LS_MUST_USE ls_status ls_checkpoint_open(const char *path, ls_checkpoint **out);
LS_API void ls_checkpoint_close(ls_checkpoint *c); /* NULL is allowed */

typedef struct ls_checkpoint_entry {
    const char *name; /* lives as long as the checkpoint, as dims */
    ls_dtype type;
    int n_dims;
    const int64_t *dims;
} ls_checkpoint_entry;

LS_API int ls_checkpoint_count(const ls_checkpoint *c);
LS_API LS_MUST_USE ls_status ls_checkpoint_entry_at(const ls_checkpoint *c, int i,
                                                    ls_checkpoint_entry *out);
/* The value of a metadata key, NULL when absent. Lives as long as the checkpoint. */
LS_API const char *ls_checkpoint_meta(const ls_checkpoint *c, const char *key);

typedef enum ls_load_mode {
    LS_LOAD_STRICT = 0, /* both sides must have exactly the same names */
    LS_LOAD_SUBSET      /* the file may hold more than is asked for */
} ls_load_mode;

/* Called for each difference between file and list: "conv1.weight is (64, 3, 7, 7) F32 in the file and (16, 1) float32 here". */
typedef void (*ls_checkpoint_difference_fn)(void *arg, const char *text);

/* Compares names, shapes and types, where fp16 and bf16 of the file fit float32 of the list; `each` (may
 * be NULL) gets every difference. *n_differences: how many. Changes nothing. */
LS_API LS_MUST_USE ls_status ls_checkpoint_compare(const ls_checkpoint *c, const ls_named *items,
                                                   int n_items, ls_load_mode mode,
                                                   ls_checkpoint_difference_fn each, void *arg,
                                                   int *n_differences);

/* Fills all items from the file; fp16 and bf16 are widened to float32 items, exactly. First everything
 * is compared: LS_EFORMAT names the missing, unexpected and
 * differing ones with both shapes and types, as many as fit into an error text (ls_checkpoint_compare gives all), and
 * nothing has been changed. */
LS_API LS_MUST_USE ls_status ls_checkpoint_load(ls_checkpoint *c, const ls_named *items,
                                                int n_items, ls_load_mode mode);

/* Why ls_checkpoint_load_fitting() has left something out. */
typedef enum ls_checkpoint_skip {
    LS_SKIP_MISSING = 0,    /* an item whose name is not in the file */
    LS_SKIP_UNEXPECTED = 1, /* an entry of the file that no item asks for (LS_LOAD_STRICT) */
    LS_SKIP_DIFFERENT = 2   /* an item that has another shape or type in the file */
} ls_checkpoint_skip;

/* Called for each name left out; `text` has the shapes, as of ls_checkpoint_difference_fn. */
typedef void (*ls_checkpoint_skip_fn)(void *arg, ls_checkpoint_skip why, const char *name,
                                      const char *text);

/* Fills the items whose name the file has with the same shape and type, and leaves all others as they
 * are, as fine-tuning does with another number of classes. `each` (may be NULL) gets what was left
 * out. *n_loaded: how many items were filled, 0 too. Blocks until the file is read. Where it fails,
 * nothing has been changed. */
LS_API LS_MUST_USE ls_status ls_checkpoint_load_fitting(ls_checkpoint *c, const ls_named *items,
                                                        int n_items, ls_load_mode mode,
                                                        ls_checkpoint_skip_fn each, void *arg,
                                                        int *n_loaded);

LS_END_DECLS

#endif
