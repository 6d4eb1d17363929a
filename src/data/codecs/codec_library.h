/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_library.h - loads a third-party codec library when the first file needs it.
 *
 * data/codecs/: libraries of codecs, loaded at first use, for data/images and data/formats.
 */
#ifndef LS_DATA_CODECS_CODEC_LIBRARY_H
#define LS_DATA_CODECS_CODEC_LIBRARY_H

#include "base/status.h"

/* One function of a library, and where its address goes: a pointer to a function pointer. */
typedef struct codec_symbol {
    const char *name;
    void *fn_out;
} codec_symbol;

/* Loads `file` ("libz.so.1") and resolves all symbols; *library is for codec_library_close().
 * LS_EUNSUPPORTED when the library is missing; the message names Debian's `package` to install. */
LS_MUST_USE ls_status codec_library_open(const char *file, const char *package,
                                         const codec_symbol *symbols, size_t n_symbols,
                                         void **library);
void codec_library_close(void *library); /* NULL is allowed */

#endif
