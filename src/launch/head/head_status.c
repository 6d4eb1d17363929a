/* SPDX-License-Identifier: Apache-2.0 */
/*
 * head_status.c - passes the question of `lockstep top` to the other nodes, and their answers to
 * the agent of this process (agent_status.c).
 */
#include "launch/head/head_internal.h"

int head_ask_status(head *h, uint32_t question, int rank)
{
    int n = 0;

    list_for_each_entry (head_node, node, &h->nodes, node) {
        wire_writer w = {0};

        if (node->is_own || node->place == NULL || node->close_wait.is_set)
            continue;
        wire_write_u32(&w, question);
        wire_write_u32(&w, (uint32_t)rank);
        head_send_free(node, NODE_STATUS_ASK, &w);
        n++;
    }
    return n;
}

ls_status head_handle_status(head_node *node, const frame *f)
{
    const head *h = node->owner;

    return h->opt.take_status != NULL && node->place != NULL ? h->opt.take_status(h->opt.self, f)
                                                             : LS_OK;
}
