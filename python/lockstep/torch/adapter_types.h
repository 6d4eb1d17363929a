/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adapter_types.h - PyTorch's element types and reductions in those of liblockstep. The table is
 * _types.py's, which also drives the Python form.
 */
#ifndef LOCKSTEP_TORCH_ADAPTER_TYPES_H
#define LOCKSTEP_TORCH_ADAPTER_TYPES_H

#include "adapter_python.h"
#include "adapter_refusals.h"

#include <lockstep/comm.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <string>
#include <utility>
#include <vector>

namespace lockstep_torch
{

using at::Tensor;

/* What liblockstep does with a type: _types.py's table, of which set_type() gets each row. */
struct plan {
    ls_dtype type = LS_U8;
    int64_t each = 1; // elements of `type` in one of the tensor's
    ls_reduce_op op = LS_SUM;
    bool is_divided = false;              // afterwards, by the number of ranks
    at::ScalarType computes = at::kFloat; // the tensor is converted to it and back
    std::string refusal = "lockstep: unknown element type"; // "" where it is possible
};

inline constexpr int N_REDUCTIONS = c10d::ReduceOp::PREMUL_SUM + 1;
inline constexpr int N_TYPES = static_cast<int>(at::ScalarType::NumOptions);

inline plan moves[N_TYPES];
inline plan reductions[N_TYPES][N_REDUCTIONS];

/* A row; how: the reduction, or -1 for moves. */
inline void set_type(at::ScalarType of, int64_t how, at::ScalarType computes,
                     std::vector<int64_t> numbers, std::string refusal)
{
    const auto type = static_cast<int>(of);
    plan &p = how < 0 ? moves[type] : reductions[type][how];

    p.type = static_cast<ls_dtype>(numbers[0]);
    p.each = numbers[1];
    p.op = static_cast<ls_reduce_op>(numbers[2]);
    p.is_divided = numbers[3] != 0;
    p.computes = computes;
    p.refusal = std::move(refusal);
}

inline const plan &allowed(const plan &p)
{
    TORCH_CHECK_VALUE(p.refusal.empty(), p.refusal);
    return p;
}

inline const plan &move_of(at::ScalarType of)
{
    return allowed(moves[static_cast<int>(of)]);
}

inline const plan &plan_of(at::ScalarType of, const c10d::ReduceOp &how)
{
    const auto kind = static_cast<c10d::ReduceOp::RedOpType>(how);

    static_cast<void>(move_of(of));
    TORCH_INTERNAL_ASSERT(kind < N_REDUCTIONS); // PyTorch has no others
    return allowed(reductions[static_cast<int>(of)][kind]);
}

inline int64_t number_of(const c10d::ReduceOp &how)
{
    return static_cast<c10d::ReduceOp::RedOpType>(how);
}

/* The number by which PREMUL_SUM multiplies. */
inline c10::Scalar factor_of(const c10d::ReduceOp &how)
{
    static const auto number = in_python<c10::Scalar(const Tensor &)>("lockstep::factor");
    const auto *by = dynamic_cast<c10d::NCCLPreMulSumSupplement *>(how.supplement_.get());

    TORCH_INTERNAL_ASSERT(by != nullptr); // PyTorch makes none without it
    const Tensor &t = by->tensor_factor;

    return t.defined() ? number.call(t) : c10::Scalar(by->double_factor);
}

/* A tensor as elements that operations move: their type and number. */
struct elements {
    ls_dtype type;
    size_t count;

    explicit elements(const Tensor &t)
    {
        const plan &moved = move_of(t.scalar_type());

        type = moved.type;
        count = static_cast<size_t>(t.numel() * moved.each);
    }
};

} // namespace lockstep_torch

#endif
