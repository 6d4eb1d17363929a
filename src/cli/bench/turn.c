/* SPDX-License-Identifier: Apache-2.0 */
/* turn.c - a rank of `--vs`: it connects to the process of vs.c and sleeps until its turn. */
#include "cli/bench/turn_wire.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "net/socket.h"

#include <string.h>

#define GIVER      "lockstep bench --vs"
#define CONNECT_MS 30000

struct bench_turn {
    int fd;
    int rank;
};

/* at: "0:unix:@name", the side and the address at which vs.c listens. */
static ls_status connect_to(const char *at, int *side, int *fd)
{
    net_address address;

    if (at[0] < '0' || at[0] >= '0' + TURN_SIDES || at[1] != ':')
        return ls_fail(LS_EINVAL, "--turn %.80s: for internal use by --vs", at);
    *side = at[0] - '0';
    LS_TRY(net_address_decode(at + 2, &address));
    return net_connect(&address, NET_PACKET, ls_deadline_ms(CONNECT_MS), fd);
}

static ls_status say_hello(const bench_turn *t, int side, ls_comm *comm)
{
    turn_hello hello;

    memset(&hello, 0, sizeof(hello)); // also the padding
    hello.side = side;
    hello.rank = t->rank;
    hello.size = ls_comm_size(comm);
    text_format(hello.backend, sizeof(hello.backend), "%s", ls_comm_backend(comm));
    text_format(hello.transport, sizeof(hello.transport), "%s", ls_comm_transport(comm));
    return net_send_all(t->fd, GIVER, &hello, sizeof(hello), ls_deadline_ms(CONNECT_MS));
}

ls_status bench_turn_open(const char *at, ls_comm *comm, bench_turn **out)
{
    bench_turn *t;
    int side = 0;
    ls_status st;

    LS_TRY(LS_NEW(&t, 1, "for a turn"));
    t->fd = -1;
    t->rank = ls_comm_rank(comm);
    st = connect_to(at, &side, &t->fd);
    if (st == LS_OK)
        st = say_hello(t, side, comm);
    if (st == LS_OK)
        *out = t;
    else
        bench_turn_close(t);
    return st;
}

void bench_turn_close(bench_turn *t)
{
    if (t == NULL)
        return;
    file_close(&t->fd);
    ls_free(t);
}

ls_status bench_turn_wait(bench_turn *t, bool *has_turn)
{
    char packet;
    const ls_status st = net_recv_all(t->fd, GIVER, &packet, 1, ls_deadline_ms(-1));

    *has_turn = st == LS_OK;
    return st == LS_EPEER ? LS_OK : st; // that process has printed the reason
}

ls_status bench_turn_end(bench_turn *t, const bench_result *r)
{
    if (t->rank != 0)
        return LS_OK;
    return net_send_all(t->fd, GIVER, r, sizeof(*r), ls_deadline_ms(CONNECT_MS));
}
