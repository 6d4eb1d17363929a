/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_choice_internal.h - what choosing and its texts share.
 */
#ifndef LS_LAUNCH_NET_CHOICE_INTERNAL_H
#define LS_LAUNCH_NET_CHOICE_INTERNAL_H

#include "launch/network/net_choice.h"

/* What came of one address of a peer; NULL: not tried. */
const net_try *net_report_find(const net_report *report, int peer, int address);

/* "10.77.0.0/24 (1.1 GB/s, 85 us): eth0 on nodes 0-1, ens3 on node 2". */
void net_picks_text(const net_pick *picks, int n_nodes, uint64_t bytes_per_s,
                    uint32_t round_trip_us, text_buf *out);

#endif
