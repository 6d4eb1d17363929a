/* SPDX-License-Identifier: Apache-2.0 */
/*
 * boot.h - the job and the records of all ranks, which a backend gets when it opens.
 *
 * join.c fills it in.
 */
#ifndef LS_COMM_JOIN_BOOT_H
#define LS_COMM_JOIN_BOOT_H

#include <lockstep/comm.h>

#include "host/topology.h"
#include "hub/cause.h"
#include "hub/control.h"
#include "net/address.h"
#include "net/auth/handshake.h"

#include <sys/types.h>

#define BOOT_ADDRESSES_MAX 2

/* Published by each rank through the hub's store; bounded on the wire. Each rank has those of all,
 * so it is small. */
typedef struct boot_record {
    int rank;
    pid_t pid;
    uint64_t instance; /* random; equal for ranks that are threads of one process */
    uint32_t generation;
    int n_addresses; /* 0 without TCP */
    /* abstract unix socket with a nonce, reachable on the same host; listener: boot->local_fd */
    net_address local;
    const net_address *addresses; /* of the TCP listener */
    const char *host;             /* for messages only; ranks of one host may share it */
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
    int control_fd;         /* for wait() to poll; the engine owns it */
    const char *transport;  /* "auto", "shm", "tcp" */
    int64_t deadline_ms;    /* of joining (ls_deadline_ms()) */
    int ranks_per_core;     /* that run on this rank's cores, rounded up; 0 as 1 */
    topology_place place;   /* of this rank */
    size_t segment_bytes;   /* LOCKSTEP_SEGMENT */
    size_t piece_elements;  /* LOCKSTEP_PIECE */
    int connections;        /* LOCKSTEP_CONNECTIONS; 0 as 1 */
    const char *algorithms; /* LOCKSTEP_ALGORITHMS; NULL as "" */
} comm_boot;

#endif
