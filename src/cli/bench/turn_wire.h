/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turn_wire.h - the packets between the ranks of --vs and the process of vs.c, over an abstract
 * unix socket.
 *
 *   rank   -> vs.c   turn_hello, once
 *   vs.c   -> rank   one byte: start your turn
 *   rank 0 -> vs.c   bench_result
 *
 * Both ends run the same program as the same user, so structs are sent without encoding.
 */
#ifndef LS_CLI_BENCH_TURN_WIRE_H
#define LS_CLI_BENCH_TURN_WIRE_H

#include "cli/bench/bench.h"

#define TURN_PACKET 'T'
#define TURN_SIDES  (1 + BENCH_PEERS_MAX) /* at most 10: --turn has one digit for the side */

typedef struct turn_hello {
    int side; /* 0: our backend, from 1 on: the peers */
    int rank;
    int size;
    char backend[32];
    char transport[32];
} turn_hello;

#endif
