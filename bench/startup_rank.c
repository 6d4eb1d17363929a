/* SPDX-License-Identifier: Apache-2.0 */
/* startup_rank - joins, meets, leaves: what every job pays. Our side of bench/startup. */
#include "startup_peak.h"

#include <lockstep/comm.h>

int main(void)
{
    ls_comm *comm = NULL;

    if (ls_init(NULL, &comm) != LS_OK || ls_barrier(comm, NULL) != LS_OK) {
        fprintf(stderr, "startup_rank: %s\n", ls_last_error());
        return 1;
    }
    ls_comm_destroy(comm);
    print_peak();
    return 0;
}
