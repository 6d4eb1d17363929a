/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_safetensors.c - opens the bytes as a checkpoint, walks it, verifies it, and loads its byte
 * entries. */
#include "fuzz/fuzz.h"

#include <lockstep/checkpoint.h>

#include "base/alloc.h"

#include <stdbool.h>

#define MAX_LOADED 16

/* Loads an entry as plain bytes: an accepted file must contain all of them, and only a digest may
 * refuse them. */
static void load_bytes(ls_checkpoint *c, const ls_checkpoint_entry *e, bool may_refuse)
{
    const size_t bytes = (size_t)e->dims[0];
    ls_named item = {.name = e->name, .bytes = ls_calloc(bytes, 1), .n_bytes = bytes};

    if (item.bytes != NULL && ls_checkpoint_load(c, &item, 1, LS_LOAD_SUBSET) != LS_OK &&
        !may_refuse)
        __builtin_trap();
    ls_free(item.bytes);
}

static void walk(ls_checkpoint *c, bool is_damaged)
{
    ls_named missing = {.name = "weight"};

    (void)ls_checkpoint_meta(c, "format");
    for (int i = 0; i < ls_checkpoint_count(c) && i < MAX_LOADED; i++) {
        ls_checkpoint_entry e;

        if (ls_checkpoint_entry_at(c, i, &e) == LS_OK && e.type == LS_U8 && e.n_dims == 1)
            load_bytes(c, &e, is_damaged);
    }
    if (ls_checkpoint_load(c, &missing, 1, LS_LOAD_STRICT) == LS_OK && missing.n_bytes > 0)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int has_digests = 0;
    ls_checkpoint *c;
    fuzz_file file;

    fuzz_file_open(&file, data, size);
    if (ls_checkpoint_open_unverified(file.path, &c) == LS_OK) {
        walk(c, false);
        ls_checkpoint_close(c);
    }
    if (ls_checkpoint_open(file.path, &c) == LS_OK) {
        const bool is_damaged = ls_checkpoint_verify(c, &has_digests) != LS_OK;

        if (is_damaged && !has_digests)
            __builtin_trap();
        walk(c, is_damaged);
        ls_checkpoint_close(c);
    }
    fuzz_file_close(&file);
    return 0;
}
