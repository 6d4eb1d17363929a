/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message_passing.c - rank 0 sends a number to every other rank.
 *
 *   lockstep run --nproc-per-node 2 message_passing
 *   mpirun -np 2 message_passing
 */
#include <lockstep/lockstep.h>

#include <stdio.h>
#include <stdlib.h>

/* The number is a tensor in the memory of the device. */
static ls_status pass_messages(ls_comm *comm, ls_tensor *number)
{
    const int rank = ls_comm_rank(comm);
    float value = rank == 0 ? 1.0F : 0.0F;
    ls_status st = ls_tensor_write(number, &value, 1);

    if (rank == 0) {
        for (int peer = 1; peer < ls_comm_size(comm) && st == LS_OK; peer++) {
            st = ls_send(comm, ls_tensor_address(number), 1, LS_F32, peer, 0, NULL);
            if (st == LS_OK)
                printf("Rank 0 has sent data to rank %d.\n", peer);
        }
        return st;
    }
    if (st == LS_OK)
        st = ls_recv(comm, ls_tensor_address(number), 1, LS_F32, 0, 0, NULL);
    if (st == LS_OK)
        st = ls_tensor_read(number, &value, 1);
    if (st == LS_OK)
        printf("Rank %d has received %g from rank 0.\n", rank, (double)value);
    return st;
}

static ls_status run_rank(const ls_train_flags *flags)
{
    const ls_device_options where = {
        .size = sizeof(where), .name = flags->device, .share_gpu = flags->share_gpu};
    const ls_init_options options = {.size = sizeof(options), .backend = flags->backend};
    ls_device *device = NULL;
    ls_tensor *number = NULL;
    ls_comm *comm = NULL;
    ls_status st = ls_init(&options, &comm);

    if (st == LS_OK)
        st = ls_device_open(&where, &device);
    if (st == LS_OK)
        st = ls_tensor_create(device, LS_F32, 0, NULL, &number);
    if (st == LS_OK)
        st = pass_messages(comm, number);
    ls_tensor_destroy(number);
    if (st == LS_OK)
        st = ls_device_close(device);
    ls_comm_destroy(comm);
    return st;
}

int main(int argc, char **argv)
{
    ls_train_flags flags = {.epochs = 1};
    ls_status st;

    st = ls_train_parse("message_passing", "Rank 0 sends to every rank.", argc, argv, &flags, NULL,
                        0);
    if (st == LS_OK && flags.help)
        return EXIT_SUCCESS;
    if (st == LS_OK)
        st = run_rank(&flags);
    return ls_train_exit("message_passing", st);
}
