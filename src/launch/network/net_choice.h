/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_choice.h - which network the nodes of a job use: pure functions from what was tried to what is taken.
 *
 *   each node   net_probe_open()     its addresses ............ net_offer  --> head
 *   the head    net_peers_of()       whom a node is to try .... net_peer[] --> that node
 *   each node   net_probe_start()    what came of it .......... net_report --> head
 *   the head    net_choose()         what each node uses ...... net_pick   --> that node
 *   each node   net_pick_variables() what its ranks are told
 *
 * A network is one address of each node, all of one family, such that every pair of nodes that needs a path has one in both
 * directions. Addresses of one subnet come first, but a network may also be routed. Nothing here opens, waits or reads a clock.
 */
#ifndef LS_LAUNCH_NET_CHOICE_H
#define LS_LAUNCH_NET_CHOICE_H

#include "base/text.h"
#include "net/interface.h"
#include "net/wire.h"

#define NET_NODES_MAX     4096
#define NET_ADDRESSES_MAX 16 /* of one node */
#define NET_HOST_BYTES    65
#define NET_FULL_MESH     64 /* up to so many nodes every pair is tried */
#define NET_PEERS_MAX     (NET_FULL_MESH - 1)
#define NET_TRIES_MAX     (NET_PEERS_MAX * NET_ADDRESSES_MAX)
#define NET_PICKS_MAX     4

/* Where a node can be called. */
typedef struct net_offer {
    char host[NET_HOST_BYTES]; /* for texts */
    uint64_t machine;          /* net_host_value(): two nodes on one machine need no network */
    bool is_filtered;          /* this is what passes a filter of the node's own */
    int n;
    net_interface
        at[NET_ADDRESSES_MAX]; /* the best hints first; with the port that listens there */
} net_offer;

/* A node that another one is to try. */
typedef struct net_peer {
    int node;
    bool measure; /* the next one in the ring: measure bandwidth too */
    net_offer offer;
} net_peer;

/* What came of trying one address of one peer. The values go over the wire. */
typedef enum net_outcome {
    NET_UNTRIED = 0,
    NET_OK,
    NET_REFUSED,
    NET_TIMED_OUT,
    NET_UNREACHABLE, /* no route, or forbidden */
    NET_WRONG_NODE, /* somebody else of the job answers there, or this node owns that address too */
    NET_BLACK_HOLE, /* small messages pass, full packets do not */
    NET_OTHER_KEY,  /* who answers has another key */
    NET_BROKEN      /* connected, then ended before it had said who it is */
} net_outcome;
#define NET_OUTCOME_COUNT 9

typedef struct net_try {
    uint16_t peer;   /* node */
    uint8_t address; /* index in the peer's offer */
    int8_t local; /* index in the own offer of the address that the kernel chose; -1: not known */
    uint8_t outcome;        /* net_outcome */
    uint32_t round_trip_us; /* NET_OK */
    uint64_t bytes_per_s;   /* NET_OK; 0: not measured */
} net_try;

/* Everything that one node tried, strictly ascending by (peer, address). */
typedef struct net_report {
    int n; /* 0: it has told nothing */
    net_try *tries;
} net_report;

/* What one node uses. */
typedef struct net_pick {
    net_address head; /* node 0's address on the same network, port 0: MASTER_ADDR */
    int n;
    net_interface at
        [NET_PICKS_MAX]; /* [0] is the choice, the others are as good and of other interfaces; port 0 */
} net_pick;

typedef struct net_choice {
    int n_nodes;
    net_pick *picks; /* one a node; NULL when nothing works */
    text_buf text;   /* what was chosen, in one line; else the matrix and what to do, in several */
} net_choice;

/*
 * Whom `node` has to reach: up to NET_FULL_MESH nodes all others, beyond that those 1, 2, 4, ... places away, which is what rings
 * and trees need. Nodes on its own machine are left out. Ascending; returns how many, at most NET_PEERS_MAX.
 */
int net_peers_of(int node, const net_offer *offers, int n_nodes, int out[NET_PEERS_MAX]);

/* Whether `peer`, one of net_peers_of(node), is the next one in the ring, towards which bandwidth is measured. */
bool net_peer_is_next(int node, int peer, int n_nodes);

/*
 * Chooses for all nodes. `filter` is the head's --net (net/interface.h), for nodes that have none of their own, where interfaces may
 * have other names; NULL or "": none. Nodes that are all on one machine get its loopback, unless there is a filter.
 *
 * Best measured bandwidth first (the slowest pair counts, and of IPv4 and IPv6 on the same interfaces the better; where none was
 * measured, what the drivers say); among those within a
 * factor of 1.5 IPv4 before IPv6, then the round trip, of which a factor of 1.5 counts as equal too, then what node 0 listed
 * first. Networks with a bridge in them (docker0) are used only when there is no other; an address at which anybody met a wrong
 * node never is.
 *
 * LS_EPEER: no network works; out->text says all about it. LS_EINVAL: the filter. LS_EPROTO: a report that does not fit the offers.
 */
LS_MUST_USE ls_status net_choose(const net_offer *offers, const net_report *reports, int n_nodes,
                                 const char *filter, net_choice *out);
void net_choice_free(net_choice *c); /* leaves it empty */

/* All that was tried, address by address, and what to do about what failed: of net_choose() when nothing works, and of checks. */
void net_matrix_text(const net_offer *offers, const net_report *reports, int n_nodes,
                     text_buf *out);

const char *net_outcome_text(net_outcome o); /* "timed out" */

/* The test of one address of a peer; NULL when it was not tested. */
const net_try *net_report_find(const net_report *report, int peer, int address);

/* Appends "10.77.0.0/24 (1.1 GB/s, 85 us): eth0 on nodes 0-1, ens3 on node 2". */
void net_picks_text(const net_pick *picks, int n_nodes, uint64_t bytes_per_s,
                    uint32_t round_trip_us, text_buf *out);

/* --- for the ranks --- */

#define NET_VARIABLES_MAX 9

typedef struct net_variable {
    const char *name;
    char value[80];
} net_variable;

/*
 * The variables that make Gloo, NCCL, Horovod, Open MPI, MPICH and this library use the pick, without those that `inherited`
 * ("NAME=value" ..., NULL: none) has already: what the user has set stays. LOCKSTEP_IFACE is always among them: what the user set
 * there was the filter of this choice. has_rdma: the machine has devices that UCX would rather use. Returns how many.
 */
int net_pick_variables(const net_pick *pick, char *const *inherited, bool has_rdma,
                       net_variable out[NET_VARIABLES_MAX]);

/* --- over the wire --- */

/* Each reader fails (wire_reader_end) on what the writer could not have written. */
void net_offer_write(wire_writer *w, const net_offer *offer);
void net_offer_read(wire_reader *r, net_offer *out);
void net_peer_write(wire_writer *w, const net_peer *peer);
void net_peer_read(wire_reader *r, net_peer *out);
void net_pick_write(wire_writer *w, const net_pick *pick);
void net_pick_read(wire_reader *r, net_pick *out);
void net_report_write(wire_writer *w, const net_report *report);
/* LS_ENOMEM; no more memory than the bytes that are there can fill. */
LS_MUST_USE ls_status net_report_read(wire_reader *r, net_report *out);
void net_report_free(net_report *report); /* leaves it empty */

/* Whether a name may stand in variables and messages: 1 to 15 printable characters, none of them blank, ',', '/', '^' or '='. */
bool net_interface_name_is_plain(const char *name);

#endif
