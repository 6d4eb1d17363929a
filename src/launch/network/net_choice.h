/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_choice.h - selects the network that the nodes of a job use: pure functions from test results
 * to the selection.
 *
 *     each node   net_probe_open()     its addresses ........... net_offer  --> head
 *     the head    net_peers_of()       the peers to test ....... net_peer[] --> that node
 *     each node   net_probe_start()    the results ............. net_report --> head
 *     the head    net_choose()         the node's selection .... net_pick   --> that node
 *     each node   net_pick_variables() variables for its ranks
 *
 * A network is one address of each node, all of one family, such that every pair of nodes that
 * needs a path has one in both directions. Addresses of one subnet are preferred, but a network may
 * be routed. No function here does I/O or reads a clock.
 *
 * launch/network/: which network the nodes use: tests and choice. Called by agents, the head and
 * diagnose/hosts.
 */
#ifndef LS_LAUNCH_NETWORK_NET_CHOICE_H
#define LS_LAUNCH_NETWORK_NET_CHOICE_H

#include "base/text.h"
#include "net/interface.h"
#include "net/messages/wire_fields.h"

#define NET_NODES_MAX     4096
#define NET_ADDRESSES_MAX 16 /* of one node */
#define NET_HOST_BYTES    65
#define NET_FULL_MESH     16 /* up to this many nodes every pair is tested */
#define NET_PEERS_MAX     32 /* 23 for NET_NODES_MAX */
#define NET_TRIES_MAX     (NET_PEERS_MAX * NET_ADDRESSES_MAX)
#define NET_PICKS_MAX     4

/* The addresses at which a node accepts connections. */
typedef struct net_offer {
    char host[NET_HOST_BYTES]; /* for messages */
    uint64_t machine;          /* net_host_value(): two nodes on one machine need no network */
    bool is_filtered;          /* by the node's own filter */
    int n;
    net_interface at[NET_ADDRESSES_MAX]; /* in order of preference, with the listening port */
} net_offer;

/* A peer that a node tests. */
typedef struct net_peer {
    int node;
    bool measure; /* measure bandwidth too: the next node in the ring */
    net_offer offer;
} net_peer;

typedef struct net_peers {
    int n; /* at most NET_PEERS_MAX */
    net_peer *list;
} net_peers;

/* The result of testing one address of one peer. The values are part of the wire format. */
typedef enum net_outcome {
    NET_UNTRIED = 0,
    NET_OK,
    NET_REFUSED,
    NET_TIMED_OUT,
    NET_UNREACHABLE, /* no route, or permission denied */
    NET_WRONG_NODE,  /* another node answers, or this node has the same address */
    NET_BLACK_HOLE,  /* small messages pass, full packets are lost */
    NET_OTHER_KEY,   /* the peer has another key */
    NET_BROKEN       /* the connection closed before authentication */
} net_outcome;
#define NET_OUTCOME_COUNT 9

typedef struct net_try {
    uint16_t peer;          /* node */
    uint8_t address;        /* index in the peer's offer */
    int8_t local;           /* index of the source address in this node's offer; -1: unknown */
    uint8_t outcome;        /* net_outcome */
    uint32_t round_trip_us; /* NET_OK */
    uint64_t bytes_per_s;   /* NET_OK; 0: not measured */
} net_try;

/* All tests of one node, strictly ascending by (peer, address). */
typedef struct net_report {
    int n; /* 0: no report */
    net_try *tries;
} net_report;

/* The selection for one node. */
typedef struct net_pick {
    net_address head; /* node 0's address on the same network, port 0: MASTER_ADDR */
    int n;
    /* [0] is the selection, the others are equally good and of other interfaces; port 0. */
    net_interface at[NET_PICKS_MAX];
} net_pick;

typedef struct net_choice {
    int n_nodes;
    net_pick *picks; /* of each node; NULL when no network works */
    text_buf text;   /* the selection in one line; without one the matrix and advice */
} net_choice;

/*
 * The peers that `node` must reach: up to NET_FULL_MESH nodes all others, beyond that those at
 * distance 1, 2, 4, ..., which rings and trees need. Nodes on the same machine are left out.
 * Ascending; returns the number, at most NET_PEERS_MAX.
 */
int net_peers_of(int node, const net_offer *offers, int n_nodes, int out[NET_PEERS_MAX]);

/* Whether `peer` is the next node in the ring, to which bandwidth is measured. */
bool net_peer_is_next(int node, int peer, int n_nodes);

/*
 * Selects a network for all nodes. `filter` is the head's --net (net/interface.h), for nodes
 * without a filter of their own; NULL or "": none. Nodes that are all on one machine get its
 * loopback, unless there is a filter.
 *
 * The highest measured bandwidth wins: that of the slowest pair, the better of IPv4 and IPv6 on the
 * same interfaces, or the link speed where nothing was measured. Bandwidths within a factor of 1.5
 * are equal; then IPv4 precedes IPv6, then the shorter round trip wins (again within 1.5), then
 * node 0's order. Networks with a bridge (docker0) are selected only when no other works; an
 * address where any node met a wrong node is never selected.
 *
 * LS_EPEER: no network works, out->text has the details. LS_EINVAL: the filter. LS_EPROTO: a report
 * does not match the offers.
 */
LS_MUST_USE ls_status net_choose(const net_offer *offers, const net_report *reports, int n_nodes,
                                 const char *filter, net_choice *out);
void net_choice_free(net_choice *c); /* leaves it empty */

/*
 * Selects for a node that comes after the others have been tested, without a test: the loopback
 * where that was selected, else its first address in the network of node 0's selection, else its
 * first one of that family. offers: of all nodes. LS_EPEER: it has none.
 */
LS_MUST_USE ls_status net_choose_late(const net_choice *c, const net_offer *offers, int node,
                                      net_pick *out);

/* Appends all tests by address, and advice for each kind of failure. */
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
 * The variables that make Gloo, NCCL, Horovod, Open MPI, MPICH and this library use the selection,
 * except those that `inherited` ("NAME=value" ..., NULL: none) has already: the user's settings
 * stay. LOCKSTEP_IFACE is always set, because the user's value was the filter of this selection.
 * has_rdma: the machine has devices that UCX prefers. Returns the number of variables.
 */
int net_pick_variables(const net_pick *pick, char *const *inherited, bool has_rdma,
                       net_variable out[NET_VARIABLES_MAX]);

/* --- over the wire --- */

/* Each reader fails (wire_reader_end) on data that no writer produces. */
WIRE_PART_FUNCTIONS(net_offer_write, net_offer_read, net_offer)
WIRE_PART_FUNCTIONS(net_peer_write, net_peer_read, net_peer)
WIRE_PART_FUNCTIONS(net_peers_write, net_peers_read, net_peers)
WIRE_PART_FUNCTIONS(net_pick_write, net_pick_read, net_pick)
WIRE_PART_FUNCTIONS(net_report_write, net_report_read, net_report)
void net_report_free(net_report *report); /* leaves it empty */
void net_peers_free(net_peers *peers);

/*
 * Whether a name is safe in variables and messages: 1 to 15 printable characters without blank , /
 * ^ =
 */
bool net_interface_name_is_plain(const char *name);

#endif
