/* SPDX-License-Identifier: Apache-2.0 */
/* store_open.c - ls_store_open(): selects the kind of a store by its URL. */
#include "base/options.h"
#include "base/text.h"
#include "hub/hublink.h"
#include "store/store_ops.h"

#include <string.h>

ls_status ls_store_open(const char *url, const ls_store_options *opt, ls_store **out)
{
    ls_store_options o;

    LS_TRY(store_check_handle((ls_store *)(void *)out, url));
    *out = NULL;
    LS_TRY(OPTIONS_COPY(ls_store_options, opt, &o));
    if (text_starts(url, "mem:"))
        return store_memory_open(out);
    if (text_starts(url, "file://"))
        return store_file_open(url + strlen("file://"), out);
    if (text_starts(url, "tcp://") || text_starts(url, "unix:"))
        return store_remote_open(url, &o, out);
    return ls_fail(LS_EINVAL,
                   "store '%s': expected tcp://HOST:PORT, unix:@NAME, file://PATH or mem:", url);
}
