/* SPDX-License-Identifier: Apache-2.0 */
/* planning.c - see planning.h. */
#include "tensor/cuda/planning.h"

#include "base/alloc.h"
#include "base/file.h"
#include "tensor/devices/cuda/runtime/cuda_internal.h"

#include <stdio.h>

/* What the module gets from the core. */
static const device_host host = {.vfail = ls_vfail, .alloc = ls_calloc, .free = ls_free};
const device_host *cu_host = &host;

void cu_note(ls_status status, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)cu_host->vfail(status, format, args);
    va_end(args);
}

ls_status open_profile(int sm, dnn_planner **out)
{
    char path[sizeof(PROFILE_FOLDER) + 32];
    char *json;
    size_t bytes;
    ls_status st;

    (void)snprintf(path, sizeof(path), "%s/sm%d.json", PROFILE_FOLDER, sm);
    LS_TRY(file_read(path, 1 << 16, &json, &bytes));
    st = dnn_planner_open_profile(json, bytes, out);
    ls_free(json);
    return st;
}
