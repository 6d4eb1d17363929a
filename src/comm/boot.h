/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boot.h - what a rank knows when its backend opens: who everybody is and how each can be reached.
 *
 * boot.c finds the identity (identity.h), reaches the hub, publishes this rank's boot record and
 * reads all others.
 */
#ifndef LS_COMM_BOOT_H
#define LS_COMM_BOOT_H

#include <lockstep/comm.h>

#include "net/address.h"
#include "net/handshake.h"
#include "store/cause.h"
#include "store/control.h"

#include <sys/types.h>

#define BOOT_ADDRESSES_MAX 16

/* Published by each rank through the store; bounded on the wire. The first version on one node
 * fills in few addresses. */
typedef struct boot_record {
    int rank;
    pid_t pid;
    uint64_t instance; /* random; equal for ranks that are threads of one process */
    uint32_t generation;
    /* abstract unix socket with a nonce: reachable = same host. Its listener is boot->local_fd */
    net_address local;
    int n_addresses; /* of the TCP listener; 0 where TCP is not wanted */
    net_address addresses[BOOT_ADDRESSES_MAX];
    char host[64]; /* for messages only */
} boot_record;

typedef struct comm_boot {
    int rank;
    int size;
    char job[JOB_ID_BYTES];
    uint32_t generation;
    /* NULL: unix sockets of the same uid only; never NULL where TCP is used, unless --insecure */
    const net_key *key;
    net_security security;      /* of the connections between hosts */
    const boot_record *records; /* size entries */
    /* listening abstract unix socket (SOCK_SEQPACKET), -1: none; the backend takes it */
    int local_fd;
    int listen_fd;          /* listening TCP socket, -1: none; the backend takes it */
    int control_fd;         /* to be polled by wait(); stays the engine's */
    const char *transport;  /* "auto", "shm", "tcp" */
    int64_t deadline_ms;    /* ls_deadline_ms() until which joining may take */
    bool shares_cores;      /* the ranks that run on this one's cores are more than these */
    size_t segment_bytes;   /* LOCKSTEP_SEGMENT */
    size_t piece_elements;  /* LOCKSTEP_PIECE */
    int connections;        /* LOCKSTEP_CONNECTIONS; 0 as 1 */
    const char *algorithms; /* LOCKSTEP_ALGORITHMS; NULL as "" */
} comm_boot;

#endif
