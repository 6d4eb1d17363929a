/* SPDX-License-Identifier: Apache-2.0 */
/*
 * architectures.c - the list of all families, and the creation of a net from an entry. The programs
 * in examples/ call it.
 */
#include "models/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_COLUMNS = 78 };

static const net_family *const families[] = {
    &alexnet_family,      &convnext_family,  &densenet_family, &efficientnet_family,
    &googlenet_family,    &inception_family, &mnasnet_family,  &mobilenet_v2_family,
    &mobilenet_v3_family, &regnet_family,    &resnet_family,   &shufflenet_family,
    &squeezenet_family,   &vgg_family,       &vit_family,
};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

/* The table entry of an index; NULL after the last one. */
static const void *entry_at(int number, const net_family **family)
{
    for (int i = 0; i < N_FAMILIES && number >= 0; i++) {
        *family = families[i];
        if (number < families[i]->n_entries)
            return (const char *)families[i]->table + (size_t)number * families[i]->entry_bytes;
        number -= families[i]->n_entries;
    }
    return NULL;
}

const char *architecture_name(int number)
{
    const net_family *family;
    const void *entry = entry_at(number, &family);

    return entry == NULL ? NULL : *(const char *const *)entry;
}

/* Length of the prefix that names share: up to the last "_", else up to the digits. */
static size_t stem_of(const char *name)
{
    const char *end = strrchr(name, '_');

    return end != NULL ? (size_t)(end - name) + 1 : strcspn(name, "0123456789");
}

static bool has_stem_of(const char *name, const char *before)
{
    const size_t stem = stem_of(name);

    return name[stem] != '\0' && stem_of(before) == stem && strncmp(name, before, stem) == 0;
}

void architecture_list(char *text, size_t n)
{
    const char *before = NULL;
    size_t used = 0;

    for (int i = 0; architecture_name(i) != NULL && used < n; i++) {
        const char *name = architecture_name(i);
        const bool is_joined = before != NULL && has_stem_of(name, before);
        const char *between = is_joined ? "|" : before != NULL ? ", " : "";

        used += (size_t)snprintf(text + used, n - used, "%s%s", between,
                                 is_joined ? name + stem_of(name) : name);
        before = name;
    }
}

/* Breaks the text at spaces into lines of at most LINE_COLUMNS. */
static void wrap(char *text)
{
    char *line = text;
    char *space = NULL;

    for (char *at = text; *at != '\0'; at++) {
        if (*at == ' ')
            space = at;
        if (at - line >= LINE_COLUMNS && space > line) {
            *space = '\n';
            line = space + 1;
        }
    }
}

int architecture_find(const char *name, char *error, size_t n)
{
    char list[ARCHITECTURE_LIST_BYTES];

    for (int i = 0; architecture_name(i) != NULL; i++) {
        if (strcmp(architecture_name(i), name) == 0)
            return i;
    }
    architecture_list(list, sizeof(list));
    wrap(list);
    (void)snprintf(error, n, "unknown architecture \"%.40s\"; choose one of\n%s", name, list);
    return -1;
}

network *net_create(ls_model *model, int number, int classes, int side)
{
    const net_family *family;
    const void *entry = entry_at(number, &family);
    network *n = entry == NULL ? NULL : calloc(1, sizeof(*n));

    if (n == NULL)
        return NULL;
    n->model = model;
    n->channels[0] = 3;
    n->side = side;
    family->build(n, entry, classes);
    n->readers[n->n_ops]++; /* the caller reads the logits */
    return n;
}

void net_destroy(network *n)
{
    free(n);
}
