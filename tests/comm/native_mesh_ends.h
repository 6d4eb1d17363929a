/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_mesh_ends.h - ends of message links over socket pairs, in one thread, that record what
 * they receive.
 */
#ifndef TESTS_COMM_NATIVE_MESH_ENDS_H
#define TESTS_COMM_NATIVE_MESH_ENDS_H

#include "comm/backends/native/link/link.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define SEED        20240
#define PLACE_BYTES (1U << 20)

/* What end_open_pair() and end_add_stream() make. */
extern net_security end_security;
extern int end_streams; /* of each link of a pair */

/* One end: what it has received, in order. */
typedef struct end {
    peer_link *link;
    message last;
    uint8_t *target; /* NULL: payloads are dropped */
    size_t n_begun;
    size_t n_ended;
    size_t n_sent;
    bool refuses;
    uint64_t sum; /* of payload bytes with their position */
} end;

/* Over fd, in the clear, or sealed as one side (0) or the other (1); or of n streams that are still
 * to be added. */
void end_open(end *e, int fd);
void end_open_sealed(end *e, int fd, int which);
void end_open_striped(end *e, int n);
void end_add_stream(end *e, int number, int fd, int which);
void end_close(end *e);

/* Two that are connected; buffer_bytes 0: the system's default. */
void end_open_pair(end ends[2], int buffer_bytes);
void end_sockets(int fds[2], int buffer_bytes);

link_sink end_sink(end *e);
seal_pair end_seals(net_security mode, int which);
link_item *end_item(const uint8_t *payload, size_t bytes);
uint64_t end_sum(const uint8_t *payload, size_t bytes);
void end_move_all(end ends[2]); /* until nothing moves */

#endif
