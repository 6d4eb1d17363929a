/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_library.c - loads zlib, libjpeg-turbo and libspng with dlopen() when the first file needs
 * them, so that a program starts where they are not installed. The image and gzip readers call it.
 */
#include "data/codecs/codec_library.h"

#include <dlfcn.h>
#include <string.h>

/* Why the last call of the dynamic loader failed; it keeps the text per thread. */
static const char *loader_error(void)
{
    return dlerror(); // NOLINT(concurrency-mt-unsafe)
}

ls_status codec_library_open(const char *file, const char *package, const codec_symbol *symbols,
                             size_t n_symbols, void **library)
{
    // RTLD_NODELETE: the next file may need it again.
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

    if (handle == NULL)
        return ls_fail(LS_EUNSUPPORTED, "%s cannot be loaded (%s): install %s", file,
                       loader_error(), package);
    for (size_t i = 0; i < n_symbols; i++) {
        void *symbol = dlsym(handle, symbols[i].name);

        // A function pointer out of dlsym()'s object pointer, which ISO C does not convert.
        memcpy(symbols[i].fn_out, &symbol, sizeof(symbol));
        if (symbol == NULL) {
            const ls_status st = ls_fail(LS_EUNSUPPORTED, "%s does not match package %s: %s", file,
                                         package, loader_error());

            (void)dlclose(handle);
            return st;
        }
    }
    *library = handle;
    return LS_OK;
}

void codec_library_close(void *library)
{
    if (library != NULL)
        (void)dlclose(library);
}
