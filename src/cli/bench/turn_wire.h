/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turn_wire.h - what the ranks of --vs and the process that gives them their turns say to each other: packets over an abstract unix socket.
 *
 *   rank   -> giver   turn_hello, once
 *   giver  -> rank    one byte: your turn
 *   rank 0 -> giver   bench_result
 *
 * Both ends are the same program of the same user, so structs are sent as they are.
 */
#ifndef LS_CLI_BENCH_TURN_WIRE_H
#define LS_CLI_BENCH_TURN_WIRE_H

#include "cli/bench/bench.h"

#define TURN_PACKET 'T'
#define TURN_SIDES  (1 + BENCH_RIVALS_MAX) /* at most 10, as a digit tells a rank its own */

typedef struct turn_hello {
    int side; /* 0: ours, from 1 on theirs */
    int rank;
    int size;
    char backend[32];
    char transport[32];
} turn_hello;

#endif
