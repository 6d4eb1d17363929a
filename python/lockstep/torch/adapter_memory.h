/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adapter_memory.h - tensors as memory: what the PyTorch backend can pass to liblockstep as it is,
 * and which tensors of a call share memory.
 */
#ifndef LOCKSTEP_TORCH_ADAPTER_MEMORY_H
#define LOCKSTEP_TORCH_ADAPTER_MEMORY_H

#include "adapter_refusals.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace lockstep_torch
{

using at::Tensor;
using tensors = std::vector<Tensor>;

inline void check_tensor(const Tensor &t)
{
    check(t.device().is_cpu(), "device", t.device());
    check(t.layout() == at::kStrided, "layout");
}

/* Whether its memory has its elements one after the other, as they are. */
inline bool is_plain(const Tensor &t)
{
    return t.is_contiguous() && !t.is_conj() && !t.is_neg();
}

/* `t`, or a plain copy; copied: always a copy. */
inline Tensor plain(const Tensor &t, bool copied)
{
    return is_plain(t) && !copied ? t : at::empty(t.sizes(), t.options()).copy_(t);
}

/* Copies `from` to a tensor of the same shape. Elements that share one place in an expanded tensor
 * get the value of the first. */
inline void write(Tensor to, Tensor from)
{
    for (int64_t i = 0; i < to.dim(); i++) {
        if (to.stride(i) != 0 || to.size(i) < 2)
            continue;
        to = to.narrow(i, 0, 1);
        from = from.narrow(i, 0, 1);
    }
    to.copy_(from);
}

using extent = std::pair<const char *, const char *>; // of the first element, behind the last

inline void add_extent(std::vector<extent> &to, const Tensor &t)
{
    int64_t last = 0;

    if (!t.defined() || t.numel() == 0 || !t.has_storage())
        return;
    for (int64_t i = 0; i < t.dim(); i++)
        last += (t.size(i) - 1) * t.stride(i);
    const auto *first = static_cast<const char *>(t.const_data_ptr());

    to.emplace_back(first, first + static_cast<size_t>(last + 1) * t.element_size());
}

inline bool overlap(std::vector<extent> all)
{
    std::sort(all.begin(), all.end());
    for (size_t i = 1; i < all.size(); i++)
        if (all[i - 1].second > all[i].first)
            return true;
    return false;
}

/* Whether the memory of one tensor may overlap with that of another. */
inline bool share_memory(const tensors &list)
{
    std::vector<extent> all;

    for (const Tensor &t : list)
        add_extent(all, t);
    return overlap(std::move(all));
}

/* The same for operations; the two tensors of one operation may share memory. */
inline bool pairs_share_memory(const tensors &outs, const tensors &ins)
{
    std::vector<extent> all;

    for (size_t i = 0; i < outs.size(); i++) {
        std::vector<extent> pair;

        add_extent(pair, outs[i]);
        add_extent(pair, ins[i]);
        if (overlap(pair))
            all.emplace_back(std::min(pair[0].first, pair[1].first),
                             std::max(pair[0].second, pair[1].second));
        else
            all.insert(all.end(), pair.begin(), pair.end());
    }
    return overlap(std::move(all));
}

inline tensors joined(const tensors &a, const tensors &b)
{
    tensors all = a;

    all.insert(all.end(), b.begin(), b.end());
    return all;
}

/* The address of a contiguous tensor; never NULL, also without elements. */
inline void *address(const Tensor &t)
{
    static char nothing;

    return t.numel() == 0 ? &nothing : t.mutable_data_ptr();
}

} // namespace lockstep_torch

#endif
