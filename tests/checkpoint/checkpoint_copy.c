/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checkpoint_copy.c - loads all of one checkpoint and saves it as another: IN OUT [METADATA KEY].
 * The interoperability test looks at what comes out.
 */
#include <lockstep/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>

static int fail(void)
{
    (void)fprintf(stderr, "%s\n", ls_last_error());
    return 1;
}

static ls_status make_items(ls_device *device, const ls_checkpoint *c, ls_named *items, int n)
{
    for (int i = 0; i < n; i++) {
        ls_checkpoint_entry e;
        ls_status st = ls_checkpoint_entry_at(c, i, &e);

        if (st == LS_OK)
            st = ls_tensor_create(device, e.type, e.n_dims, e.dims, &items[i].tensor);
        if (st != LS_OK)
            return st;
        items[i].name = e.name;
    }
    return LS_OK;
}

static ls_status copy(ls_device *device, ls_checkpoint *c, const char *to, const char *key)
{
    const ls_meta meta = {key, ls_checkpoint_meta(c, key)};
    const int n = ls_checkpoint_count(c);
    ls_named *items = calloc((size_t)n + 1, sizeof(*items));
    ls_status st = items != NULL ? make_items(device, c, items, n) : LS_ENOMEM;

    if (st == LS_OK)
        st = ls_checkpoint_load(c, items, n, LS_LOAD_STRICT);
    if (st == LS_OK)
        st = ls_checkpoint_save(to, items, n, &meta, meta.value != NULL ? 1 : 0);
    for (int i = 0; items != NULL && i < n; i++)
        ls_tensor_destroy(items[i].tensor);
    free(items);
    return st;
}

int main(int argc, char **argv)
{
    const ls_device_options opt = {.size = sizeof(opt), .name = "cpu_ref", .threads = 1};
    ls_device *device = NULL;
    ls_checkpoint *c = NULL;
    ls_status st;

    if (argc < 3) {
        (void)fprintf(stderr, "usage: checkpoint_copy IN OUT [METADATA KEY]\n");
        return 2;
    }
    st = ls_device_open(&opt, &device);
    if (st == LS_OK)
        st = ls_checkpoint_open(argv[1], &c);
    if (st == LS_OK)
        st = copy(device, c, argv[2], argc > 3 ? argv[3] : "format");
    ls_checkpoint_close(c);
    ls_device_close(device);
    return st == LS_OK ? 0 : fail();
}
