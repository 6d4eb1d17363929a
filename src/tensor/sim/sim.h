/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - what tests control and count in the simulated stream device: the module
 * liblockstep_sim.so exports one table, SIM_CONTROL. The module is built with the tests only.
 *
 * The device "sim" computes with cpu_ref's kernels, so that its results have cpu_ref's bits, in
 * memory that the host cannot read: a host dereference is a SIGSEGV whose text names the block. Its
 * three queues are threads that execute their work at once, delayed, as late as possible or after
 * the other queues, as seeded random numbers decide: a missing wait becomes a wrong result.
 * New and freed device memory has the bytes 0xFF, NaN in every floating type.
 *
 * LOCKSTEP_SIM_SEED, LOCKSTEP_SIM_DELAY_US and LOCKSTEP_SIM_DROP (the name of a wait) are read when
 * a device is opened, for programs that have no access to the table.
 */
#ifndef LS_TENSOR_SIM_SIM_H
#define LS_TENSOR_SIM_SIM_H

#include <stddef.h>
#include <stdint.h>

/* What all simulated devices of the process did since the last reset(). */
typedef struct sim_counts {
    uint64_t operators;     /* queued */
    uint64_t copies;        /* queued, fills included */
    uint64_t host_bytes;    /* of the copies from and to host memory */
    uint64_t calls;         /* of functions, queued */
    uint64_t allocations;   /* of device memory */
    uint64_t lost_failures; /* that no wait had returned when the device was closed */
    uint64_t host_waits;    /* calls that blocked the host, or would have on a slower device */
} sim_counts;

/* All functions may be called from any thread. */
typedef struct sim_control {
    /* Counters to 0; no failures; all waits work; seed and delay from the environment. */
    void (*reset)(void);
    sim_counts (*counts)(void);

    /* Of devices that are opened from now on. delay_us 0: queues execute at once. */
    void (*pace)(uint64_t seed, int64_t delay_us);

    /* The n-th allocation of device memory from now fails, once; 0: none. */
    void (*fail_allocation)(uint64_t n);
    /* The device is lost when its queues have executed n items from now; 0: never. */
    void (*lose_after)(uint64_t n);
    /* Waits of this name do nothing from now on; NULL: all work. */
    void (*drop_wait)(const char *what);
    /* The names of the waits since the last reset(): writes at most `max`, returns how many. */
    size_t (*wait_names)(const char **names, size_t max);
    /* How often the wait of this name was called since then. */
    uint64_t (*waits_of)(const char *what);

    /* Where a function that a queue calls (accel_call) reads and writes `bytes` of device memory;
     * NULL when they are not within one block. */
    void *(*host_address)(const void *p, size_t bytes);
} sim_control;

#define SIM_CONTROL "lockstep_sim_control"

#endif
