/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message_passing.c - rank 0 sends a number to every other rank.
 *
 *   lockstep run --nproc-per-node 2 message_passing
 *   mpirun -np 2 message_passing
 */
#include <lockstep/comm.h>
#include <lockstep/train.h>

#include <stdio.h>
#include <stdlib.h>

static ls_status pass_messages(ls_comm *comm)
{
    const int rank = ls_comm_rank(comm);
    float number = 0.0F;
    ls_status st = LS_OK;

    if (rank == 0) {
        number = 1.0F;
        for (int peer = 1; peer < ls_comm_size(comm) && st == LS_OK; peer++) {
            st = ls_send(comm, &number, 1, LS_F32, peer, 0, NULL);
            if (st == LS_OK)
                printf("Rank 0 has sent data to rank %d.\n", peer);
        }
    } else {
        st = ls_recv(comm, &number, 1, LS_F32, 0, 0, NULL);
        if (st == LS_OK)
            printf("Rank %d has received %g from rank 0.\n", rank, (double)number);
    }
    return st;
}

int main(int argc, char **argv)
{
    ls_train_flags flags = {.epochs = 1};
    ls_init_options options = {.size = sizeof(options)};
    ls_comm *comm = NULL;
    ls_status st;

    st = ls_train_parse("message_passing", "Rank 0 sends to every rank.", argc, argv, &flags, NULL,
                        0);
    if (st == LS_OK && flags.help)
        return EXIT_SUCCESS;
    if (st == LS_OK) {
        options.backend = flags.backend;
        st = ls_init(&options, &comm);
    }
    if (st == LS_OK)
        st = pass_messages(comm);
    ls_comm_destroy(comm);
    return ls_train_exit("message_passing", st);
}
