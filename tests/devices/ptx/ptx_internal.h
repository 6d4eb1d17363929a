/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_internal.h - what ptx_run.c and ptx_memory.c share. */
#ifndef TESTS_DEVICES_PTX_PTX_INTERNAL_H
#define TESTS_DEVICES_PTX_PTX_INTERNAL_H

#include "devices/ptx/ptx.h"

#include <setjmp.h>

typedef enum fiber_state {
    FIBER_READY,
    FIBER_SPINS, /* ready, and waits for memory to change */
    FIBER_AT_BARRIER,
    FIBER_AT_EXCHANGE,
    FIBER_DONE
} fiber_state;

enum { MAX_COPIES = 64 }; /* of a thread at a time */

/* A copy to shared memory (cp.async) that has begun. */
typedef struct copy {
    uint32_t offset;
    uint32_t bytes;
    unsigned char data[16];
} copy;

typedef struct fiber fiber;

/* An instruction that the lanes of a warp execute together: `run` has all operands, and writes
 * their results. */
typedef struct exchange {
    void (*run)(fiber *lanes);
    const uint32_t *in;
    uint32_t *out;
} exchange;

/* A thread of a block that runs. */
struct fiber {
    ptx_thread seen; /* first: kernels hand it back */
    struct block *block;
    uint32_t number; /* of the thread among all of the launch */
    fiber_state state;
    int line; /* where it stopped */
    exchange exchange;
    int n_copies;
    copy copies[MAX_COPIES];
    jmp_buf context;
    void *stack;
    bool is_started;
};

/* The last access of a byte. A segment is the time of one block between two barriers. */
typedef struct access {
    uint32_t thread;
    uint32_t segment; /* 0: none */
    uint32_t clock;
    bool by_several; /* threads of this segment */
} access;

typedef struct cell {
    access write;
    access read;
    bool is_pending; /* a copy to it has begun */
} cell;

typedef struct block {
    uint32_t number;
    bool is_live;
    bool is_done;
    uint32_t segment;
    uint32_t observed; /* the clock at its last atomic, */
    uint32_t acquired; /* and at its last load that acquires */
    unsigned char *shared;
    cell *cells; /* of `shared` */
    size_t shared_bytes;
    fiber fibers[PTX_THREADS];
} block;

/* Of the launch that runs. */
typedef struct ptx_state {
    const ptx_launch *of;
    char *text; /* of the fault */
    size_t text_bytes;
    bool has_failed;
    uint64_t random;
    uint32_t n_segments; /* since the process began */
    _Alignas(64) unsigned char workspace[64];
} ptx_state;

extern ptx_state run;

/* Ends the launch; does not return. */
void ptx_fault(fiber *f, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Other threads may run before it returns. */
void ptx_let_others_run(fiber *f, int line);

/* The same, and if all threads wait so, the launch hangs. */
void ptx_wait_for_memory(fiber *f, int line);

/* Executes an instruction of the warp, at this line, together with its other lanes. */
void ptx_exchange(fiber *f, int line, exchange e);

/* --- ptx_memory.c --- */

void ptx_begin_memory(void); /* of a launch */
void ptx_end_memory(void);

#endif
