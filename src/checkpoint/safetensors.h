/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors.h - parses and checks the header of a safetensors file, so that its users need no
 * further checks.
 */
#ifndef LS_CHECKPOINT_SAFETENSORS_H
#define LS_CHECKPOINT_SAFETENSORS_H

#include "base/map.h"
#include "base/report/json.h"
#include "base/status.h"

#define SAFETENSORS_LENGTH_BYTES 8         /* in front of the header: its length, little-endian */
#define SAFETENSORS_MAX_HEADER   100000000 /* as the format's own implementation */
#define SAFETENSORS_META         "__metadata__"
#define SAFETENSORS_NAME_BYTES   96 /* of a name in a message */

/* An element type of the format; `type` is one of ours or -1. `kind`: 'f' floating, 'i' signed or
 * 'u' unsigned, 0 for what is not converted. */
typedef struct safetensors_type {
    const char *name;
    size_t bytes;
    int type;
    char kind;
} safetensors_type;

typedef struct safetensors_entry {
    const char *name;
    const safetensors_type *type;
    int n_dims;
    const int64_t *dims;
    uint64_t begin; /* in the data section, which follows the header */
    uint64_t end;
    const char *digest; /* of its bytes, set by digest_find_all(); NULL: none */
} safetensors_entry;

typedef struct safetensors_index {
    json_value *root;           /* owns names and metadata */
    safetensors_entry *entries; /* in the order of the header */
    int n_entries;
    int64_t *dims;    /* of all entries */
    byte_map by_name; /* to safetensors_entry */
    bool has_digests;
} safetensors_index;

/* Parses `bytes` bytes of header of data_bytes bytes of data. LS_EFORMAT unless every entry is well
 * formed and all entries cover the data without overlap or gap. `path` is for messages. */
LS_MUST_USE ls_status safetensors_parse(const char *header, size_t bytes, uint64_t data_bytes,
                                        const char *path, safetensors_index *out);
void safetensors_free(safetensors_index *index); /* zeroed is allowed */

const safetensors_entry *safetensors_find(const safetensors_index *index, const char *name);

/* The format's name of a type; never NULL for a valid one. */
const char *safetensors_type_name(ls_dtype type);

#define SAFETENSORS_TEXT_BYTES 160
/* "(16, 1, 5, 5) float32", into buf, which it returns. */
const char *safetensors_entry_text(char *buf, size_t n, const safetensors_entry *e);

#endif
