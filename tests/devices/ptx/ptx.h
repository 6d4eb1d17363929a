/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx.h - between the kernels that translate.py writes, ptx_run.c, which runs them on the CPU, and
 * gpu_host_ptx.c, which launches them. A module of kernels exports ptx_kernels and ptx_constants.
 */
#ifndef TESTS_DEVICES_PTX_PTX_H
#define TESTS_DEVICES_PTX_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a kernel knows of the thread that runs it. */
typedef struct ptx_thread {
    const void *args;
    uint32_t thread;
    uint32_t n_threads;
    uint32_t block;
    uint32_t n_blocks;
    uint64_t workspace; /* the address of what cooperative groups use */
} ptx_thread;

typedef struct ptx_kernel {
    const char *name; /* NULL: the end of a table */
    void (*run)(ptx_thread *t);
    size_t args_bytes;
    size_t shared_bytes;
} ptx_kernel;

/* Memory that kernels may read and, but for constants, write. */
typedef struct ptx_range {
    const void *start; /* NULL: the end of a table */
    size_t bytes;
} ptx_range;

typedef struct ptx_launch {
    const ptx_kernel *kernel;
    const void *args;
    uint32_t n_blocks;
    uint32_t n_threads;
    bool is_cooperative;     /* all blocks at once: at most PTX_RESIDENT */
    const ptx_range *ranges; /* ascending */
    size_t n_ranges;
    uint64_t seed; /* of the order of blocks and warps */
} ptx_launch;

enum { PTX_RESIDENT = 8, PTX_THREADS = 256, PTX_LANES = 32 };

/* Runs all blocks. False, with the first fault in `text`: an access outside of the ranges, of an
 * address that is not aligned or of shared memory that was not written; a race; threads that do not
 * meet at a barrier or an instruction of their warp. One call at a time. */
bool ptx_run(const ptx_launch *l, char *text, size_t n);
typedef bool (*ptx_run_fn)(const ptx_launch *l, char *text, size_t n);

/* --- instructions that ptx_run.c executes; `line` is that of the PTX file --- */

typedef enum ptx_strength { PTX_WEAK, PTX_VOLATILE, PTX_ACQUIRE } ptx_strength;

void load_global(ptx_thread *t, int line, uint64_t address, void *out, size_t bytes,
                 ptx_strength strength);
void store_global(ptx_thread *t, int line, uint64_t address, const void *v, size_t bytes,
                  ptx_strength strength);
void load_shared(ptx_thread *t, int line, uint64_t offset, void *out, size_t bytes,
                 ptx_strength strength);
void store_shared(ptx_thread *t, int line, uint64_t offset, const void *v, size_t bytes,
                  ptx_strength strength);
uint32_t atom_global_add_u32(ptx_thread *t, int line, uint64_t address, uint32_t v);
uint32_t atom_global_cas_b32(ptx_thread *t, int line, uint64_t address, uint32_t old, uint32_t v);
uint32_t atom_add_release_gpu_u32(ptx_thread *t, int line, uint64_t address, uint32_t v);
void membar_gl(ptx_thread *t, int line);
void membar_sys(ptx_thread *t, int line);
void bar_sync(ptx_thread *t, int line, uint32_t number);
void barrier_sync(ptx_thread *t, int line, uint32_t number);
uint32_t shfl_sync_down_b32(ptx_thread *t, int line, uint32_t v, uint32_t distance, uint32_t last,
                            uint32_t mask, bool *is_inside);
uint32_t shfl_sync_bfly_b32(ptx_thread *t, int line, uint32_t v, uint32_t lanes, uint32_t last,
                            uint32_t mask, bool *is_inside);

/* Copies of `bytes`, of which the first `filled` come from global memory, the others are 0. Until
 * the thread waits, no byte of `to` may be read or written. */
void cp_async_cg_shared_global(ptx_thread *t, int line, uint64_t to, uint64_t from, uint32_t bytes,
                               uint32_t filled);
void cp_async_ca_shared_global(ptx_thread *t, int line, uint64_t to, uint64_t from, uint32_t bytes,
                               uint32_t filled);
void cp_async_wait_all(ptx_thread *t, int line);

/* Instructions of a warp on matrices, in `out` the registers of the result: ptx_matrix.c. */
void ldmatrix_sync_aligned_m8n8_x4_shared_b16(ptx_thread *t, int line, uint64_t row, uint32_t *out);
void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(ptx_thread *t, int line, uint64_t row,
                                                    uint32_t *out);
/* in: 4 registers of A, 2 of B, 4 of C */
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(ptx_thread *t, int line,
                                                         const uint32_t *in, uint32_t *out);
void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(ptx_thread *t, int line, const uint32_t *in,
                                                       uint32_t *out);
void trap(ptx_thread *t, int line);

#endif
