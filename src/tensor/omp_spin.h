/* SPDX-License-Identifier: Apache-2.0 */
/*
 * omp_spin.h - how long the threads of GNU OpenMP spin for each other before they sleep.
 *
 * libgomp reads this from the environment once, when it is loaded: with the first module of a
 * device. Its default, 300,000 rounds or some 10 ms, makes training many times slower where cores
 * are shared: a thread that spins holds the core which the thread that it waits for needs. 3000
 * rounds, some 0.1 ms, last from one operator of a step to the next, so that threads with cores of
 * their own do not sleep.
 */
#ifndef LS_TENSOR_OMP_SPIN_H
#define LS_TENSOR_OMP_SPIN_H

#include <stdint.h>

/* GOMP_SPINCOUNT for `threads` of each rank, whose share are `cores`; 0 with more ranks than cores.
 * "0" when they cannot all run at once. */
const char *omp_spin_count(int64_t threads, int64_t cores);

/*
 * From now to omp_spin_leave() the environment has GOMP_SPINCOUNT=`count`, unless the user has set
 * that or OMP_WAIT_POLICY, or an earlier call has been here. Gives what omp_spin_leave() needs.
 * Other threads may read the environment meanwhile.
 */
char **omp_spin_enter(const char *count);
void omp_spin_leave(char **before);

#endif
