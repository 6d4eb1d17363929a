/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_program.c - the file of a program to start, whose headers show which libraries it is linked
 * to.
 */
#include "fuzz/fuzz.h"

#include "host/program.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file f;

    fuzz_file_open(&f, data, size);
    (void)program_needs(f.path, "libmpi.so.");
    fuzz_file_close(&f);
    return 0;
}
