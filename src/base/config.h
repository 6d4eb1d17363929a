/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - every LOCKSTEP_* setting stands in one table: name, type, default, bounds, help, and
 * where its value came from. The table is what docs and `lockstep check --settings` print.
 */
#ifndef LS_BASE_CONFIG_H
#define LS_BASE_CONFIG_H

#include "base/status.h"
#include "base/text.h"

typedef enum config_id {
    CONFIG_LOG,            /* LOCKSTEP_LOG */
    CONFIG_TRANSPORT,      /* LOCKSTEP_TRANSPORT: auto, shm, tcp */
    CONFIG_BACKEND,        /* LOCKSTEP_BACKEND: auto, native, ... */
    CONFIG_JOIN_MS,        /* LOCKSTEP_JOIN_TIMEOUT_MS */
    CONFIG_OP_MS,          /* LOCKSTEP_OP_TIMEOUT_MS */
    CONFIG_LATE_MS,        /* LOCKSTEP_LATE_MS */
    CONFIG_SEGMENT_BYTES,  /* LOCKSTEP_SEGMENT: bytes of one pipelined piece */
    CONFIG_PIECE_ELEMENTS, /* LOCKSTEP_PIECE: elements that one call of a foreign engine is given */
    CONFIG_CONNECTIONS,    /* LOCKSTEP_CONNECTIONS: of two ranks of different hosts */
    CONFIG_IFACE,          /* LOCKSTEP_IFACE: network interface or CIDR for data between hosts */
    CONFIG_KEY_FILE,       /* LOCKSTEP_KEY_FILE */
    CONFIG_SECURITY,       /* LOCKSTEP_SECURITY: auth, mac, encrypt */
    CONFIG_DEVICE,         /* LOCKSTEP_DEVICE: cpu, onednn, cpu_ref or another module */
    CONFIG_THREADS,        /* LOCKSTEP_THREADS: compute threads a rank, 0 = from the cores */
    CONFIG_CONVOLUTIONS,   /* LOCKSTEP_CONVOLUTIONS: which convolutions of ours onednn may use */
    CONFIG_ALGORITHMS, /* LOCKSTEP_ALGORITHMS: which algorithm serves which operation on a host */
    CONFIG_MODULE_DIR, /* LOCKSTEP_MODULE_DIR: where liblockstep_*.so are looked for first */
    CONFIG_COUNT
} config_id;

typedef enum config_type {
    CONFIG_TYPE_TEXT,
    CONFIG_TYPE_INT,
    CONFIG_TYPE_BYTES,
    CONFIG_TYPE_CHOICE
} config_type;

typedef struct config_entry {
    const char *name; /* the variable */
    config_type type;
    const char *default_text; /* default, as text */
    const char *choices;      /* "auto|shm|tcp" for a choice */
    int64_t min;
    int64_t max;
    const char *help;
} config_entry;

const config_entry *config_table(void); /* CONFIG_COUNT entries */

/* Each reads the environment now; a bad value is LS_EINVAL naming variable, value and what is
 * allowed. */
LS_MUST_USE ls_status config_text(config_id id,
                                  const char **out);          /* borrowed from the environment */
LS_MUST_USE ls_status config_int(config_id id, int64_t *out); /* INT and BYTES */
/* "environment" or "default". An empty variable counts as not set. */
const char *config_origin(config_id id);
/* Checks every variable of the table, and warns about unknown LOCKSTEP_* names. */
LS_MUST_USE ls_status config_check(void);

#endif
