/* SPDX-License-Identifier: Apache-2.0 */
/* card.c - see card.h. The faults are those of devices/gpu_host.h; small_run.c and test_card.c call
 * it in the process of the rank. */
#include "train/card.h"

#include "devices/cudahost.h"

ls_status card_lose(void)
{
    LS_TRY(cudahost() == NULL ? LS_EINTERNAL : LS_OK);
    cudahost()->lose_at = 3;
    return LS_OK;
}

ls_status card_set_memory(size_t bytes)
{
    LS_TRY(cudahost() == NULL ? LS_EINTERNAL : LS_OK);
    cudahost()->total_bytes = bytes;
    return LS_OK;
}

ls_status card_delay(uint64_t seed, uint64_t most_us)
{
    LS_TRY(cudahost() == NULL ? LS_EINTERNAL : LS_OK);
    cudahost()->seed = seed;
    cudahost()->delay_us = most_us;
    return LS_OK;
}

ls_status card_count_graphs(uint64_t *n)
{
    LS_TRY(cudahost() == NULL ? LS_EINTERNAL : LS_OK);
    *n = cudahost()->n_graph_launches;
    return LS_OK;
}
