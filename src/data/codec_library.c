/* SPDX-License-Identifier: Apache-2.0 */
#include "data/codec_library.h"

#include <dlfcn.h>
#include <string.h>

/* Why the last call of the dynamic loader failed; kept per thread by it. */
static const char *loader_error(void)
{
    return dlerror(); // NOLINT(concurrency-mt-unsafe)
}

ls_status codec_library_open(const char *file, const char *package, const codec_symbol *symbols,
                             size_t n_symbols, void **library)
{
    // It stays when the last user closes it: the next file of its kind may be near.
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

    if (handle == NULL)
        return ls_fail(LS_EUNSUPPORTED, "%s cannot be loaded (%s): install %s", file,
                       loader_error(), package);
    for (size_t i = 0; i < n_symbols; i++) {
        void *symbol = dlsym(handle, symbols[i].name);

        // A function pointer out of dlsym()'s object pointer, which ISO C does not convert.
        memcpy(symbols[i].fn_out, &symbol, sizeof(symbol));
        if (symbol == NULL) {
            const ls_status st =
                ls_fail(LS_EUNSUPPORTED, "%s is not the library of %s that is needed: %s", file,
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
