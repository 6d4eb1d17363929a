/* SPDX-License-Identifier: Apache-2.0 */
/*
 * on_device.h - runs a suite on device memory: included in front of a file of the conformance
 * suite, it replaces each collective by one that copies its buffers to the simulated device, calls
 * the collective there, and copies the result back.
 *
 * The copies to the device are queued only, so that the collective must wait for them. A handle is
 * ended by ls_work_wait() and ls_work_wait_on() in turn. Device blocks have guards like host ones.
 */
#ifndef TESTS_COMM_ON_DEVICE_H
#define TESTS_COMM_ON_DEVICE_H

#include "base/compute/accel.h"
#include "comm/comm.h"

/* The accelerator of this process, opened by the first call; NULL with the reason in
 * ls_last_error(). */
accel *on_device_accel(void);
/* Closes the device; there is no other in this process. */
ls_status on_device_close(void);

ls_status on_device_all_reduce(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_reduce_op op, ls_work **out);
ls_status on_device_average(ls_comm *comm, void *data, size_t count, ls_dtype type, double divisor,
                            ls_work **out);
ls_status on_device_reduce(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                           ls_reduce_op op, int root, ls_work **out);
ls_status on_device_broadcast(ls_comm *comm, const void *src, void *dst, size_t count,
                              ls_dtype type, int root, ls_work **out);
ls_status on_device_all_gather(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_work **out);
ls_status on_device_gather(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                           int root, ls_work **out);
ls_status on_device_scatter(ls_comm *comm, const void *src, void *dst, size_t count, ls_dtype type,
                            int root, ls_work **out);
ls_status on_device_reduce_scatter(ls_comm *comm, const void *src, void *dst, size_t count,
                                   ls_dtype type, ls_reduce_op op, ls_work **out);
ls_status on_device_all_to_all(ls_comm *comm, const void *src, void *dst, size_t count,
                               ls_dtype type, ls_work **out);
ls_status on_device_all_gather_v(ls_comm *comm, const void *src, void *dst, const size_t *counts,
                                 ls_dtype type, ls_work **out);
ls_status on_device_gather_v(ls_comm *comm, const void *src, void *dst, const size_t *counts,
                             ls_dtype type, int root, ls_work **out);
ls_status on_device_scatter_v(ls_comm *comm, const void *src, void *dst, const size_t *counts,
                              ls_dtype type, int root, ls_work **out);
ls_status on_device_reduce_scatter_v(ls_comm *comm, const void *src, void *dst,
                                     const size_t *counts, ls_dtype type, ls_reduce_op op,
                                     ls_work **out);
ls_status on_device_all_to_all_v(ls_comm *comm, const void *src, const size_t *src_counts,
                                 void *dst, const size_t *dst_counts, ls_dtype type, ls_work **out);
ls_status on_device_send(ls_comm *comm, const void *src, size_t count, ls_dtype type, int peer,
                         int tag, ls_work **out);
ls_status on_device_recv(ls_comm *comm, void *dst, size_t count, ls_dtype type, int peer, int tag,
                         ls_work **out);
ls_status on_device_wait(ls_work *work);

#ifdef TESTS_COMM_ON_DEVICE
#define ls_all_reduce       on_device_all_reduce
#define comm_average        on_device_average
#define ls_reduce           on_device_reduce
#define ls_broadcast        on_device_broadcast
#define ls_all_gather       on_device_all_gather
#define ls_gather           on_device_gather
#define ls_scatter          on_device_scatter
#define ls_reduce_scatter   on_device_reduce_scatter
#define ls_all_to_all       on_device_all_to_all
#define ls_all_gather_v     on_device_all_gather_v
#define ls_gather_v         on_device_gather_v
#define ls_scatter_v        on_device_scatter_v
#define ls_reduce_scatter_v on_device_reduce_scatter_v
#define ls_all_to_all_v     on_device_all_to_all_v
#define ls_send             on_device_send
#define ls_recv             on_device_recv
#define ls_work_wait        on_device_wait
#endif

#endif
