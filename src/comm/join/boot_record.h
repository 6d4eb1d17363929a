/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boot_record.h - the record that a joining rank publishes, and the settings that ranks must share.
 */
#ifndef LS_COMM_JOIN_BOOT_RECORD_H
#define LS_COMM_JOIN_BOOT_RECORD_H

#include "comm/join/boot.h"

#define BOOT_RECORD_VERSION   3
#define BOOT_RECORD_MAX_BYTES 8192
#define BOOT_NAME_BYTES       32
#define BOOT_HOST_BYTES       64
#define BOOT_ROWS_BYTES       1024

/* A record, and the settings that must be the same everywhere. */
typedef struct boot_publication {
    boot_record record; /* without `addresses` and `host`, which are: */
    net_address addresses[BOOT_ADDRESSES_MAX];
    char host_name[BOOT_HOST_BYTES];
    uint64_t host;        /* equal for ranks of one kernel and network namespace */
    uint64_t core_share;  /* equal for ranks of a host that run on the same cores */
    uint32_t world_group; /* id of the world's group; valid from rank 0 */
    char backend[BOOT_NAME_BYTES];
    char transport[BOOT_NAME_BYTES];
    uint64_t segment_bytes;
    char algorithms[BOOT_ROWS_BYTES]; /* LOCKSTEP_ALGORITHMS */
    net_security security;
    int connections; /* LOCKSTEP_CONNECTIONS */
} boot_publication;

LS_MUST_USE ls_status boot_record_encode(const boot_publication *p, wire_writer *out);
/* The data may be hostile: every field is bounded. LS_EPROTO names the rank. */
LS_MUST_USE ls_status boot_record_decode(const void *data, size_t bytes, int rank,
                                         boot_publication *out);

/* LS_EMISMATCH names the setting, both ranks and both values. */
LS_MUST_USE ls_status boot_record_compare(const boot_publication *own,
                                          const boot_publication *other);

#endif
