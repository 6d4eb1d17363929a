/* SPDX-License-Identifier: Apache-2.0 */
/* step_files.c - reads weights and batches and writes results, for resnet_gradients.c and
 * gpt_gradients.c. */
#include "step_files.h"

#include <stdio.h>
#include <string.h>

enum { MAX_ITEMS = 1024, NAME_BYTES = 128 };

/* Fills `items` from the file, which has nothing else. */
static ls_status load(const char *path, const ls_named *items, int n)
{
    ls_checkpoint *file = NULL;
    ls_status st = ls_checkpoint_open(path, &file);

    if (st == LS_OK)
        st = ls_checkpoint_load(file, items, n, LS_LOAD_STRICT);
    ls_checkpoint_close(file);
    return st;
}

ls_status step_load_state(ls_model *model, const char *path)
{
    int n;
    const ls_named *state = ls_model_state(model, &n);

    return load(path, state, n);
}

/* A tensor with the type and shape of an entry. */
static ls_status tensor_for(ls_device *device, const ls_checkpoint *file, const char *name,
                            ls_tensor **out)
{
    for (int i = 0; i < ls_checkpoint_count(file); i++) {
        ls_checkpoint_entry e;

        LS_TRY(ls_checkpoint_entry_at(file, i, &e));
        if (strcmp(e.name, name) == 0)
            return ls_tensor_create(device, e.type, e.n_dims, e.dims, out);
    }
    return LS_ENOTFOUND;
}

ls_status step_load_batch(ls_device *device, const char *path, const char *const *names,
                          ls_tensor **tensors, int n)
{
    ls_named items[8];
    ls_checkpoint *file = NULL;
    ls_status st = n <= 8 ? ls_checkpoint_open(path, &file) : LS_EINVAL;

    for (int i = 0; i < n; i++)
        tensors[i] = NULL;
    for (int i = 0; i < n && st == LS_OK; i++) {
        st = tensor_for(device, file, names[i], &tensors[i]);
        items[i] = (ls_named){.name = names[i], .tensor = tensors[i]};
    }
    ls_checkpoint_close(file);
    return st == LS_OK ? load(path, items, n) : st;
}

ls_status step_save_state(const ls_model *model, const char *path)
{
    int n;
    const ls_named *state = ls_model_state(model, &n);

    return ls_checkpoint_save(path, state, n, NULL, 0);
}

ls_status step_save_result(const ls_model *model, const ls_named *values, int n, const char *path)
{
    static ls_named items[MAX_ITEMS];
    static char names[MAX_ITEMS][NAME_BYTES];
    int n_parameters;
    const ls_named *p = ls_model_parameters(model, &n_parameters);

    if (n + n_parameters > MAX_ITEMS)
        return LS_EINVAL;
    memcpy(items, values, (size_t)n * sizeof(items[0]));
    for (int i = 0; i < n_parameters; i++) {
        (void)snprintf(names[i], NAME_BYTES, "grad.%s", p[i].name);
        items[n + i] = (ls_named){.name = names[i], .tensor = ls_grad(p[i].tensor)};
    }
    return ls_checkpoint_save(path, items, n + n_parameters, NULL, 0);
}
