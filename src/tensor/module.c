/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.c - loads devices from shared objects at first use, so that programs run without the
 * libraries of these devices.
 */
#include "tensor/module.h"

#include "base/alloc.h"
#include "base/compute/accel.h"
#include "base/file.h"
#include "base/module.h"
#include "base/thread.h"

#include <dlfcn.h>
#include <string.h>

static const device_host host = {
    .abi = DEVICE_ABI,
    .vfail = ls_vfail,
    .alloc = ls_calloc,
    .alloc_aligned = ls_alloc_aligned,
    .free = ls_free,
    .tensor_shape = tensor_shape,
    .tensor_destroy = ls_tensor_destroy,
    .tensor_place = tensor_place,
    .tensor_share = tensor_share,
    .tensor_plain = tensor_plain,
    .accel_register = accel_register,
    .accel_unregister = accel_unregister,
    .op_name = device_op_name,
    .file_read = file_read,
    .file_replace = file_replace,
    .device_alloc = device_alloc,
    .block_signals = thread_block_signals,
};

static ls_status check_name(const char *name)
{
    const size_t length = strlen(name);

    if (length > 0 && length <= 32 &&
        strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == length)
        return LS_OK;
    return ls_fail(LS_EINVAL, "device: '%.40s' is not a valid device name", name);
}

ls_status module_check(const char *name)
{
    ls_status st;

    LS_TRY(check_name(name));
    st = module_find(name);
    if (st == LS_ENOTFOUND)
        return ls_fail(LS_EUNSUPPORTED, "device %s is not part of this installation (%.600s)", name,
                       ls_last_error());
    return st;
}

ls_status module_load(const char *name, const device_ops **ops, void **out)
{
    device_entry_fn entry = NULL;
    void *module = NULL;
    void *symbol;

    LS_TRY(module_check(name));
    LS_TRY(ls_context(module_open(name, &module), "device"));
    symbol = dlsym(module, DEVICE_ENTRY);
    memcpy(&entry, &symbol, sizeof(entry)); // C has no conversion between these two
    *ops = entry == NULL ? NULL : entry(&host);
    if (*ops == NULL || (*ops)->abi != DEVICE_ABI) {
        module_unload(module);
        return ls_fail(LS_EUNSUPPORTED,
                       "device: liblockstep_%s.so is not of this version of Lockstep", name);
    }
    *out = module;
    return LS_OK;
}

void module_unload(void *module)
{
    if (module != NULL)
        (void)dlclose(module);
}
