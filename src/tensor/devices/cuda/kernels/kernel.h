/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernel.h - what the bodies of kernels are written with. The .cu files are compiled twice: for the
 * card, and as C for tests (tests/devices/), where the blocks run one after the other, each with
 * one thread or with several that run in turn.
 *
 * Results depend on the arguments alone, not on the number of blocks: sums have a fixed order, and
 * no kernel adds floating-point numbers atomically.
 */
#ifndef LS_TENSOR_DEVICES_CUDA_KERNELS_KERNEL_H
#define LS_TENSOR_DEVICES_CUDA_KERNELS_KERNEL_H

#include "tensor/devices/cuda/kernels/kernel_args.h"

#include <math.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define KERNEL_ON_CARD 1
#else
#define KERNEL_ON_CARD 0
#endif

#if KERNEL_ON_CARD
#ifdef __HIPCC__
#include <hip/hip_runtime.h> /* the headers below need it */

#include <hip/hip_cooperative_groups.h>
#include <hip/hip_fp16.h>
#define KERNEL_ARGS
#define LANES 64 /* threads that run in step: a wavefront */
#else
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define KERNEL_ARGS __grid_constant__
#define LANES       32 /* a warp */
#endif
#define KERNEL_FN   static __device__ __forceinline__
#define SHARED      __shared__
#define KERNEL_LINK extern "C"
#else
#include "base/compute/half.h"
#include "tensor/devices/cuda/runtime/gpu.h"

#define KERNEL_FN   static inline __attribute__((always_inline))
#define SHARED      static /* one kernel runs at a time */
#define LANES       32
#define KERNEL_LINK extern
#endif

/* Threads of a block at most: the size of shared arrays. */
#define KERNEL_THREADS 256

/* The calling thread. n_threads is 1 or a power of two that is a multiple of LANES. */
typedef struct kernel_place {
    unsigned block;
    unsigned n_blocks;
    unsigned thread;
    unsigned n_threads;
} kernel_place;

/* Defines kernel NAME, whose body follows; it sees `const ARGS *a` and `kernel_place at`. */
#if KERNEL_ON_CARD
#define KERNEL(NAME, ARGS) KERNEL_OF(NAME, ARGS, KERNEL_THREADS)
/* Of THREADS at most, which then may have more registers. */
#define KERNEL_OF(NAME, ARGS, THREADS) KERNEL_DEFINED(NAME, ARGS, THREADS)
#define KERNEL_DEFINED(NAME, ARGS, THREADS)                                                        \
    KERNEL_FN void NAME##_body(const ARGS *a, const kernel_place at);                              \
    static __global__ void __launch_bounds__(THREADS) NAME##_on_card(const KERNEL_ARGS ARGS args)  \
    {                                                                                              \
        const kernel_place at = {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};                  \
                                                                                                   \
        NAME##_body(&args, at);                                                                    \
    }                                                                                              \
    KERNEL_LINK const gpu_kernel NAME = {#NAME, (gpu_function)NAME##_on_card, NULL, sizeof(ARGS)}; \
    KERNEL_FN void NAME##_body(const ARGS *a, const kernel_place at)
#else
#define KERNEL(NAME, ARGS) KERNEL_OF(NAME, ARGS)
#define KERNEL_OF(NAME, ARGS)                                                                      \
    KERNEL_FN void NAME##_body(const ARGS *a, const kernel_place at);                              \
    static void NAME##_on_host(const void *args, unsigned block, unsigned n_blocks,                \
                               unsigned thread, unsigned n_threads)                                \
    {                                                                                              \
        const kernel_place at = {block, n_blocks, thread, n_threads};                              \
                                                                                                   \
        NAME##_body((const ARGS *)args, at);                                                       \
    }                                                                                              \
    extern const gpu_kernel NAME;                                                                  \
    const gpu_kernel NAME = {#NAME, (gpu_function)NAME##_on_host, NULL, sizeof(ARGS)};             \
    KERNEL_FN void NAME##_body(const ARGS *a, const kernel_place at)
#endif

/* Kernel NAME where it cannot be compiled; it is not launched there. */
#define KERNEL_MISSING(NAME, ARGS)    KERNEL_MISSING_OF(NAME, ARGS)
#define KERNEL_MISSING_OF(NAME, ARGS) const gpu_kernel NAME = {#NAME, NULL, NULL, sizeof(ARGS)};

/* Defines kernel NAME of two others with these arguments: all blocks run the body of FIRST, then
 * all that of SECOND, which sees what the others have written. */
#define KERNEL_OF_TWO(NAME, ARGS, FIRST, SECOND) KERNEL_JOINED(NAME, ARGS, FIRST, SECOND)
#if KERNEL_ON_CARD
#define KERNEL_JOINED(NAME, ARGS, FIRST, SECOND)                                                   \
    static __global__ void __launch_bounds__(KERNEL_THREADS, 2)                                    \
        NAME##_on_card(const KERNEL_ARGS ARGS args)                                                \
    {                                                                                              \
        const kernel_place at = {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x};                  \
                                                                                                   \
        FIRST##_body(&args, at);                                                                   \
        cooperative_groups::this_grid().sync();                                                    \
        SECOND##_body(&args, at);                                                                  \
    }                                                                                              \
    KERNEL_LINK const gpu_kernel NAME = {#NAME, (gpu_function)NAME##_on_card,                      \
                                         (gpu_function)NAME##_on_card, sizeof(ARGS)};
#else
#define KERNEL_JOINED(NAME, ARGS, FIRST, SECOND)                                                   \
    extern const gpu_kernel NAME;                                                                  \
    const gpu_kernel NAME = {#NAME, (gpu_function)FIRST##_on_host, (gpu_function)SECOND##_on_host, \
                             sizeof(ARGS)};
#endif

/* --- element types: f32, f64, bf16, f16 --- */

typedef float f32;
typedef double f64;
typedef uint16_t bf16;
typedef uint16_t f16;

KERNEL_FN float widen_f32(f32 v)
{
    return v;
}

KERNEL_FN f32 narrow_f32(float v)
{
    return v;
}

KERNEL_FN double widen_f64(f64 v)
{
    return v;
}

KERNEL_FN f64 narrow_f64(double v)
{
    return v;
}

#if KERNEL_ON_CARD
KERNEL_FN float widen_bf16(bf16 v)
{
    return __uint_as_float((unsigned)v << 16);
}

KERNEL_FN bf16 narrow_bf16(float v)
{
#ifdef __HIPCC__
    const unsigned bits = __float_as_uint(v);

    return isnan(v) ? (bf16)(bits >> 16 | 0x40) : (bf16)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
#else
    return __bfloat16_as_ushort(__float2bfloat16_rn(v));
#endif
}

KERNEL_FN float widen_f16(f16 v)
{
    return __half2float(__ushort_as_half(v));
}

KERNEL_FN f16 narrow_f16(float v)
{
    return __half_as_ushort(__float2half_rn(v));
}
#else
KERNEL_FN float widen_bf16(bf16 v)
{
    return ls_bf16_to_f32(v);
}

KERNEL_FN bf16 narrow_bf16(float v)
{
    return ls_f32_to_bf16(v);
}

KERNEL_FN float widen_f16(f16 v)
{
    return ls_f16_to_f32(v);
}

KERNEL_FN f16 narrow_f16(float v)
{
    return ls_f32_to_f16(v);
}
#endif

/* The elements that one access of 16 bytes moves. */
typedef struct pack_f32 {
    f32 e[4];
} __attribute__((aligned(16))) pack_f32;
typedef struct pack_f64 {
    f64 e[2];
} __attribute__((aligned(16))) pack_f64;
typedef struct pack_bf16 {
    bf16 e[8];
} __attribute__((aligned(16))) pack_bf16;
typedef pack_bf16 pack_f16;

/* In the .inc files, which are compiled for each type: name_TYPE. */
#define GLUE(name, type)   name##_##type
#define EXPAND(name, type) GLUE(name, type)
#define OF(name)           EXPAND(name, TYPE)

/* Element i of an array whose type is an argument. */
KERNEL_FN double scalar_at(const void *p, size_t i, kernel_type type)
{
    switch (type) {
    case KERNEL_F32:
        return (double)((const f32 *)p)[i];
    case KERNEL_F64:
        return ((const f64 *)p)[i];
    case KERNEL_BF16:
        return (double)widen_bf16(((const bf16 *)p)[i]);
    default:
        return (double)widen_f16(((const f16 *)p)[i]);
    }
}

KERNEL_FN void scalar_put(void *p, size_t i, kernel_type type, double v)
{
    switch (type) {
    case KERNEL_F32:
        ((f32 *)p)[i] = (f32)v;
        break;
    case KERNEL_F64:
        ((f64 *)p)[i] = v;
        break;
    case KERNEL_BF16:
        ((bf16 *)p)[i] = narrow_bf16((float)v);
        break;
    default:
        ((f16 *)p)[i] = narrow_f16((float)v);
    }
}

/* a / b; a division of 32 bits is several times as fast. */
KERNEL_FN size_t divide(size_t a, size_t b)
{
    return (a | b) >> 32 == 0 ? (size_t)((uint32_t)a / (uint32_t)b) : a / b;
}

/* i if it is below n, else `other`: what threads read in turns, they read without a branch, so that
 * all loads of a turn are under way before the first is used. */
KERNEL_FN size_t inside_or(size_t i, size_t n, size_t other)
{
    return i < n ? i : other;
}

/* In front of a loop that shall stay one. */
#if KERNEL_ON_CARD
#define NOT_UNROLLED _Pragma("unroll 1")
#else
#define NOT_UNROLLED
#endif

/* --- random numbers --- */

/* ls_mix() and LS_GOLDEN of base/rng.h. */
#define GOLDEN 0x9E3779B97F4A7C15U

KERNEL_FN uint64_t mix(uint64_t v)
{
    v = (v ^ v >> 30) * 0xBF58476D1CE4E5B9U;
    v = (v ^ v >> 27) * 0x94D049BB133111EBU;
    return v ^ v >> 31;
}

/* device_drops(), with the limit ceil(drop 2^53). */
KERNEL_FN bool drops(uint64_t random, uint64_t number, uint64_t limit)
{
    return mix(mix(mix(random + GOLDEN) + number + GOLDEN) + GOLDEN) >> 11 < limit;
}

/* --- blocks --- */

KERNEL_FN void block_sync(void)
{
#if KERNEL_ON_CARD
    __syncthreads();
#else
    gpu_host_barrier();
#endif
}

/* Defines NAME(v, distance, at): the value of the lane `distance` behind the calling one. */
#if KERNEL_ON_CARD
#ifdef __HIPCC__
#define SHUFFLE(v, distance) __shfl_down(v, distance)
#else
#define SHUFFLE(v, distance) __shfl_down_sync(~0U, v, distance)
#endif
#define LANE_BEHIND(NAME, T)                                                                       \
    KERNEL_FN T NAME(T v, unsigned distance, const kernel_place at)                                \
    {                                                                                              \
        (void)at;                                                                                  \
        return SHUFFLE(v, distance);                                                               \
    }
#else
#define LANE_BEHIND(NAME, T)                                                                       \
    KERNEL_FN T NAME(T v, unsigned distance, const kernel_place at)                                \
    {                                                                                              \
        static T values[KERNEL_THREADS];                                                           \
        const bool is_inside = at.thread % LANES + distance < LANES;                               \
                                                                                                   \
        values[at.thread] = v;                                                                     \
        block_sync();                                                                              \
        v = is_inside ? values[at.thread + distance] : v;                                          \
        block_sync();                                                                              \
        return v;                                                                                  \
    }
#endif

#define COMBINE_SUM(a, b)  ((a) + (b))
#define COMBINE_MOST(a, b) ((a) > (b) ? (a) : (b))

/* Defines NAME(v, at): combines v of all threads of the block, in one order; each gets the result.
 * Its last barrier is for the next call, which writes `parts`; it is not needed, so tests do not
 * miss it, where there is none or another barrier comes between, as block_sum()'s in softmax. */
#define BLOCK_REDUCTION(NAME, T, COMBINE) BLOCK_REDUCTION_OF(NAME, T, COMBINE)
#define BLOCK_REDUCTION_OF(NAME, T, COMBINE)                                                       \
    LANE_BEHIND(NAME##_behind, T)                                                                  \
    KERNEL_FN T NAME(T v, const kernel_place at)                                                   \
    {                                                                                              \
        SHARED T parts[KERNEL_THREADS / LANES];                                                    \
                                                                                                   \
        if (at.n_threads == 1)                                                                     \
            return v;                                                                              \
        for (unsigned distance = LANES / 2; distance > 0; distance /= 2) {                         \
            const T other = NAME##_behind(v, distance, at);                                        \
                                                                                                   \
            v = COMBINE(v, other);                                                                 \
        }                                                                                          \
        if (at.thread % LANES == 0)                                                                \
            parts[at.thread / LANES] = v;                                                          \
        block_sync();                                                                              \
        v = parts[0];                                                                              \
        for (unsigned i = 1; i < at.n_threads / LANES; i++)                                        \
            v = COMBINE(v, parts[i]);                                                              \
        block_sync();                                                                              \
        return v;                                                                                  \
    }

/* The sum of v of the threads whose numbers are equal modulo `lanes`, in one order. */
KERNEL_FN double block_sum_of_lane(double v, unsigned lanes, const kernel_place at)
{
    SHARED double parts[KERNEL_THREADS];

    parts[at.thread] = v;
    block_sync();
    for (unsigned half = at.n_threads / 2; half >= lanes; half /= 2) {
        if (at.thread < half)
            parts[at.thread] += parts[at.thread + half];
        block_sync();
    }
    v = parts[at.thread % lanes];
    block_sync();
    return v;
}

/* --- failures --- */

/* Reports a failure, if none is reported yet: see failure.h. */
KERNEL_FN void report_failure(op_failure *f, int op, int64_t row, int64_t value, int64_t limit)
{
#if KERNEL_ON_CARD
    if (atomicCAS(&f->state, FAILURE_NONE, FAILURE_WRITING) != FAILURE_NONE)
        return;
#else
    if (f->state != FAILURE_NONE)
        return;
#endif
    f->op = op;
    f->row = row;
    f->value = value;
    f->limit = limit;
#if KERNEL_ON_CARD
    __threadfence_system();
#endif
    *(volatile int32_t *)&f->state = FAILURE_WRITTEN;
}

/* --- the last block --- */

/* Orders the memory operations of a thread for all blocks. */
KERNEL_FN void memory_fence(void)
{
#if KERNEL_ON_CARD
    __threadfence();
#endif
}

/* The ticket's new value. */
KERNEL_FN unsigned add_to_ticket(unsigned *ticket)
{
#if KERNEL_ON_CARD
    return atomicAdd(ticket, 1) + 1;
#else
    return ++*ticket; // the blocks run one after the other
#endif
}

/* Adds 1 to *ticket after all memory operations of the block; true in all threads of the block that
 * makes it `n`, which then sees what the others have written, and *ticket is 0 again. The first
 * barrier is not needed where thread 0 alone has written what is read, as in losses. */
KERNEL_FN bool is_last_block(unsigned *ticket, unsigned n, const kernel_place at)
{
    SHARED bool is_last;

    memory_fence();
    block_sync();
    if (at.thread == 0) {
        is_last = add_to_ticket(ticket) == n;
        if (is_last)
            *ticket = 0;
    }
    block_sync();
    memory_fence();
    return is_last;
}

#endif
