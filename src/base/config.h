/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.h - the table of all LOCKSTEP_* settings: name, type, default, bounds and help. Docs and
 * `lockstep check --settings` print it.
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
    CONFIG_MEET_MS,        /* LOCKSTEP_MEET_MS */
    CONFIG_HEARTBEAT_MS,   /* LOCKSTEP_HEARTBEAT_MS: after so long a silent machine is lost */
    CONFIG_SEGMENT_BYTES,  /* LOCKSTEP_SEGMENT: bytes of one pipelined piece */
    CONFIG_PIECE_ELEMENTS, /* LOCKSTEP_PIECE: most elements per call of an MPI library */
    CONFIG_CONNECTIONS,    /* LOCKSTEP_CONNECTIONS: between two ranks of different hosts */
    CONFIG_IFACE,          /* LOCKSTEP_IFACE: network interface or CIDR for data between hosts */
    CONFIG_KEY_FILE,       /* LOCKSTEP_KEY_FILE */
    CONFIG_SECURITY,       /* LOCKSTEP_SECURITY: auth, mac, encrypt */
    CONFIG_DEVICE,         /* LOCKSTEP_DEVICE: cpu, auto, cuda, cuda:N, onednn, ... */
    CONFIG_THREADS,        /* LOCKSTEP_THREADS: compute threads per rank, 0 = all usable cores */
    CONFIG_CONVOLUTIONS,   /* LOCKSTEP_CONVOLUTIONS: own convolution kernels that onednn may use */
    CONFIG_TF32,           /* LOCKSTEP_TF32: where float32 is rounded to TF32 on GPUs */
    CONFIG_DETERMINISTIC,  /* LOCKSTEP_DETERMINISTIC: 1: the same bits in every run on a GPU */
    CONFIG_AUTOTUNE,       /* LOCKSTEP_AUTOTUNE: 1: convolutions are measured on GPUs */
    CONFIG_CUDA_GRAPH,     /* LOCKSTEP_CUDA_GRAPH: 1: GPUs run steps as CUDA graphs */
    CONFIG_NCCL_LIBRARY,   /* LOCKSTEP_NCCL_LIBRARY: read by the module */
    CONFIG_CUDA_LIBRARIES, /* LOCKSTEP_CUDA_LIBRARIES: folders of cuDNN, cuBLASLt, NCCL */
    CONFIG_ALGORITHMS,     /* LOCKSTEP_ALGORITHMS: algorithms of operations within a host */
    CONFIG_METRICS_USERS,  /* LOCKSTEP_METRICS_USERS: users that may read --metrics-port */
    CONFIG_MODULE_DIR,     /* LOCKSTEP_MODULE_DIR: first folder searched for liblockstep_*.so */
    CONFIG_COUNT
} config_id;

typedef enum config_type {
    CONFIG_TYPE_TEXT,
    CONFIG_TYPE_INT,
    CONFIG_TYPE_BYTES,
    CONFIG_TYPE_CHOICE
} config_type;

typedef struct config_entry {
    const char *name; /* the environment variable */
    config_type type;
    const char *default_text; /* default, as text */
    const char *choices;      /* "auto|shm|tcp" for CONFIG_TYPE_CHOICE */
    int64_t min;
    int64_t max;
    const char *help;
} config_entry;

const config_entry *config_table(void); /* CONFIG_COUNT entries */

/* Each reads the environment now. LS_EINVAL names the variable, its value and the allowed
 * values. */
/* *out is borrowed from the environment. */
LS_MUST_USE ls_status config_text(config_id id, const char **out);
LS_MUST_USE ls_status config_int(config_id id, int64_t *out); /* INT and BYTES */
/* "environment" or "default". An empty variable counts as unset. */
const char *config_origin(config_id id);
/* Checks every variable of the table, and logs a warning for unknown LOCKSTEP_* names. */
LS_MUST_USE ls_status config_check(void);

#endif
