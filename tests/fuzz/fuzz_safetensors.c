/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_safetensors.c - opens the bytes as a checkpoint, walks it, and loads its byte entries. */
#include "fuzz/fuzz.h"

#include <lockstep/checkpoint.h>

#include "base/alloc.h"

#define MAX_LOADED 16

/* Loads an entry as plain bytes: an accepted file must contain all of them. */
static void load_bytes(ls_checkpoint *c, const ls_checkpoint_entry *e)
{
    const size_t bytes = (size_t)e->dims[0];
    ls_named item = {.name = e->name, .bytes = ls_calloc(bytes, 1), .n_bytes = bytes};

    if (item.bytes != NULL && ls_checkpoint_load(c, &item, 1, LS_LOAD_SUBSET) != LS_OK)
        __builtin_trap();
    ls_free(item.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ls_named missing = {.name = "weight"};
    ls_checkpoint *c;
    fuzz_file file;

    fuzz_file_open(&file, data, size);
    if (ls_checkpoint_open(file.path, &c) == LS_OK) {
        (void)ls_checkpoint_meta(c, "format");
        for (int i = 0; i < ls_checkpoint_count(c) && i < MAX_LOADED; i++) {
            ls_checkpoint_entry e;

            if (ls_checkpoint_entry_at(c, i, &e) == LS_OK && e.type == LS_U8 && e.n_dims == 1)
                load_bytes(c, &e);
        }
        if (ls_checkpoint_load(c, &missing, 1, LS_LOAD_STRICT) == LS_OK && missing.n_bytes > 0)
            __builtin_trap();
        ls_checkpoint_close(c);
    }
    fuzz_file_close(&file);
    return 0;
}
