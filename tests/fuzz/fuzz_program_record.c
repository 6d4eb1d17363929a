/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_program_record.c - arbitrary metadata of a capsule: what lockstep replay would start. */
#include "fuzz/fuzz.h"

#include "checkpoint/program_record.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    text_buf text = {0};
    program_record r;

    text_append(&text, "%.*s", (int)size, (const char *)data);
    if (program_record_read(text_str(&text), &r) == LS_OK) {
        if (r.argc < 1 || r.argv[r.argc] != NULL || r.executable[0] == 0 || r.folder[0] == 0)
            __builtin_trap();
        program_record_free(&r);
    } else if (strlen(ls_last_error()) == 0 || r.argv != NULL) {
        __builtin_trap();
    }
    text_free(&text);
    return 0;
}
