/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adapter.cpp - the C++ form of the PyTorch backend: a c10d::Backend over liblockstep's collectives
 * for tensors in host memory. It is compiled once per minor version of PyTorch and links no Python:
 * _cpp.py joins the job and gives the group to lockstep::wrap().
 */
#include "adapter_site.h"
#include "adapter_types.h"
#include "adapter_work.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <numeric>

/* std::shared_ptr reads this variable of glibc 2.32, which PyTorch does not need. 0: there are
 * several threads. */
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;

namespace lockstep_torch
{
namespace
{

using c10d::OpType;
using c10d::ReduceOp;
using tensor_lists = std::vector<tensors>;
using work_ptr = c10::intrusive_ptr<c10d::Work>;

// --- the group ---

/* A function of _cpp.py, which owns the groups. */
using ended_fn = void (*)(int64_t comm, bool in_callback);

ended_fn ended_in_python; // this and the next one are set once, by begin_groups()
call_sites *sites;

/* liblockstep's group. It ends with its backend, or at the end of the interpreter. */
class group
{
  public:
    explicit group(ls_comm *joined) : handle(joined)
    {
    }

    group(const group &) = delete;
    group &operator=(const group &) = delete;

    ~group()
    {
        end();
    }

    ls_comm *comm() const
    {
        return handle;
    }

    /* From any thread: end() waits for it. */
    void abort()
    {
        const std::lock_guard<std::mutex> guard(used);

        ls_comm_abort(handle, "the program aborted the process group");
    }

    bool works()
    {
        const std::lock_guard<std::mutex> guard(used);

        return handle != nullptr && ls_comm_status(handle) == LS_OK;
    }

    /* In a callback Python ends the group later: liblockstep's thread cannot wait for itself. */
    void end()
    {
        ls_comm *ended;
        {
            const std::lock_guard<std::mutex> guard(used);

            ended = handle.exchange(nullptr);
        }
        if (ended != nullptr)
            ended_in_python(reinterpret_cast<intptr_t>(ended), callbacks::is_inside());
    }

  private:
    std::mutex used; // by another thread than that which ends it
    std::atomic<ls_comm *> handle;
};

std::mutex groups_lock;
std::vector<std::weak_ptr<group>> groups; // of this process

const Tensor &only(const tensors &list)
{
    check(list.size() == 1, "tensors", list.size());
    return list[0];
}

/* The reduction of the tensors of one rank; in Python, as for the Python form. */
Tensor folded(const tensors &list, const ReduceOp &how)
{
    static const auto fold = in_python<Tensor(at::TensorList, int64_t)>("lockstep::folded");

    return list.size() == 1 ? list[0] : fold.call(list, number_of(how));
}

std::shared_ptr<group> own_group(ls_comm *joined)
{
    const auto made = std::make_shared<group>(joined);
    const std::lock_guard<std::mutex> guard(groups_lock);

    groups.erase(std::remove_if(groups.begin(), groups.end(),
                                [](const std::weak_ptr<group> &g) { return g.expired(); }),
                 groups.end());
    groups.push_back(made);
    return made;
}

class backend : public c10d::Backend
{
  public:
    backend(ls_comm *joined, std::chrono::milliseconds timeout, std::string name)
        : Backend(ls_comm_rank(joined), ls_comm_size(joined)), of(own_group(joined)),
          called(std::move(name)), timeout_ms(timeout.count())
    {
    }

    const std::string getBackendName() const override
    {
        return called;
    }

    // --- reductions ---

    work_ptr allreduce(tensors &list, const c10d::AllreduceOptions &opts) override
    {
        check(!list.empty(), "none", "all_reduce");
        if (list[0].layout() != at::kStrided)
            return reduce_sparse(list, opts);
        const operation_ptr op = begin(list, opts);

        check_sizes(list, list[0], "all_reduce");
        const Tensor t = folded(list, opts.reduceOp);

        start_all_reduce(op, t, opts.reduceOp);
        copy_to_others(op, list, t);
        return started(op, OpType::ALLREDUCE, "all_reduce", list);
    }

    work_ptr allreduce_sparse(tensors &list, const c10d::AllreduceOptions &opts) override
    {
        return reduce_sparse(list, opts);
    }

    work_ptr allreduce_coalesced(tensors &list,
                                 const c10d::AllreduceCoalescedOptions &opts) override
    {
        const operation_ptr op = begin(list, opts);

        op->is_apart = share_memory(list);
        for (const Tensor &t : list)
            start_all_reduce(op, t, opts.reduceOp);
        return started(op, OpType::ALLREDUCE_COALESCED, "all_reduce", list);
    }

    work_ptr reduce(tensors &list, const c10d::ReduceOptions &opts) override
    {
        const operation_ptr op = begin(list, opts);
        const Tensor t = only(list);
        const int root = static_cast<int>(opts.rootRank);
        const reduction r = reduction_of(op, t, opts.reduceOp);
        const Tensor out = root == rank_ ? reduced(op, t, r) : Tensor();

        start(op, [&](ls_work **part) {
            return ls_reduce(comm(), address(r.in), out.defined() ? address(out) : nullptr, r.count,
                             r.by->type, r.by->op, root, part);
        });
        return started(op, OpType::REDUCE, "reduce", list);
    }

    work_ptr reduce_scatter(tensors &outs, tensor_lists &ins,
                            const c10d::ReduceScatterOptions &opts) override
    {
        const operation_ptr op = begin(outs, opts);
        const tensors &list = list_for_ranks(only_list(ins), "reduce_scatter");
        std::vector<const void *> from;
        reduction r;

        if (!have_one_size(list)) {
            start_uneven_reduce_scatter(op, only(outs), list, opts.reduceOp);
            return started(op, OpType::REDUCE_SCATTER, "reduce_scatter", list);
        }
        check_sizes(list, only(outs), "reduce_scatter");
        for (const Tensor &t : list) {
            r = reduction_of(op, t, opts.reduceOp);
            from.push_back(address(r.in));
        }
        const Tensor out = reduced(op, outs[0], r);

        start(op, [&](ls_work **part) {
            return ls_reduce_scatter_list(comm(), from.data(), address(out), r.count, r.by->type,
                                          r.by->op, part);
        });
        return started(op, OpType::REDUCE_SCATTER, "reduce_scatter", list);
    }

    work_ptr _reduce_scatter_base(Tensor &out, Tensor &in,
                                  const c10d::ReduceScatterOptions &opts) override
    {
        const operation_ptr op = begin({out}, opts);

        start_reduce_scatter(op, out, in, opts.reduceOp);
        return started(op, OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base", {in});
    }

    work_ptr reduce_scatter_tensor_coalesced(tensors &outs, tensors &ins,
                                             const c10d::ReduceScatterOptions &opts) override
    {
        const operation_ptr op = begin(outs, opts);

        check_same_length(outs, ins, "reduce_scatter_tensor_coalesced");
        op->is_apart = pairs_share_memory(outs, ins);
        for (size_t i = 0; i < outs.size(); i++)
            start_reduce_scatter(op, outs[i], ins[i], opts.reduceOp);
        return started(op, OpType::COALESCED, "reduce_scatter_tensor_coalesced", ins);
    }

    // --- moves ---

    work_ptr broadcast(tensors &list, const c10d::BroadcastOptions &opts) override
    {
        const operation_ptr op = begin(list, opts);
        const int root = static_cast<int>(opts.rootRank);
        check(!list.empty(), "none", "broadcast");
        const auto chosen = root == rank_ ? static_cast<size_t>(opts.rootTensor) : 0;

        check(chosen < list.size(), "root", chosen, list.size());
        check_sizes(list, list[0], "broadcast");
        const Tensor t = list[chosen];
        const Tensor data = root == rank_ ? op->source_of(t) : op->result_of(t);
        const elements e(data);

        copy_to_others(op, list, t);
        start(op, [&](ls_work **part) {
            return ls_broadcast(comm(), address(data), address(data), e.count, e.type, root, part);
        });
        return started(op, OpType::BROADCAST, "broadcast", list);
    }

    work_ptr allgather(tensor_lists &outs, tensors &ins,
                       const c10d::AllgatherOptions &opts) override
    {
        check(!ins.empty(), "none", "all_gather");
        check(outs.size() == ins.size(), "lengths", "all_gather", outs.size(), ins.size());
        const operation_ptr op = begin(outs[0], opts);

        if (ins.size() == 1) {
            start_gather_list(op, outs[0], ins[0], -1, "all_gather");
        } else {
            op->result = c10::IValue(outs);
            start_gather_of_several(op, outs, ins);
        }
        return started(op, OpType::ALLGATHER, "all_gather", ins);
    }

    work_ptr allgather_coalesced(tensor_lists &outs, tensors &ins,
                                 const c10d::AllgatherOptions &opts) override
    {
        tensors all;

        for (const tensors &list : outs) {
            check_same_length(list, ins, "all_gather_coalesced");
            all.insert(all.end(), list.begin(), list.end());
        }
        const operation_ptr op = begin(all, opts);

        all.insert(all.end(), ins.begin(), ins.end());
        op->is_apart = share_memory(all);
        for (size_t i = 0; i < ins.size(); i++) {
            tensors list;

            for (const tensors &of_rank : outs)
                list.push_back(of_rank[i]);
            start_gather_list(op, list, ins[i], -1, "all_gather");
        }
        return started(op, OpType::ALLGATHER_COALESCED, "all_gather", ins);
    }

    work_ptr _allgather_base(Tensor &out, Tensor &in, const c10d::AllgatherOptions &opts) override
    {
        const operation_ptr op = begin({out}, opts);

        start_all_gather(op, out, in);
        return started(op, OpType::_ALLGATHER_BASE, "_all_gather_base", {in});
    }

    work_ptr allgather_into_tensor_coalesced(tensors &outs, tensors &ins,
                                             const c10d::AllgatherOptions &opts) override
    {
        const operation_ptr op = begin(outs, opts);

        check_same_length(outs, ins, "all_gather_into_tensor_coalesced");
        op->is_apart = pairs_share_memory(outs, ins);
        for (size_t i = 0; i < outs.size(); i++)
            start_all_gather(op, outs[i], ins[i]);
        return started(op, OpType::COALESCED, "all_gather_into_tensor_coalesced", ins);
    }

    work_ptr gather(tensor_lists &outs, tensors &ins, const c10d::GatherOptions &opts) override
    {
        const int root = static_cast<int>(opts.rootRank);
        const tensors list = root == rank_ ? only_list(outs) : tensors();
        const operation_ptr op = begin(list, opts, &only(ins));

        start_gather_list(op, list, only(ins), root, "gather");
        return started(op, OpType::GATHER, "gather", ins);
    }

    work_ptr scatter(tensors &outs, tensor_lists &ins, const c10d::ScatterOptions &opts) override
    {
        const int root = static_cast<int>(opts.rootRank);
        const operation_ptr op = begin(outs, opts);
        const Tensor out = op->result_of(only(outs));
        std::vector<const void *> from;

        if (root == rank_) {
            check_sizes(list_for_ranks(only_list(ins), "scatter"), out, "scatter");
            for (const Tensor &t : ins[0])
                from.push_back(address(op->source_of(t)));
        }
        const elements e(out);

        start(op, [&](ls_work **part) {
            return ls_scatter_list(comm(), from.empty() ? nullptr : from.data(), address(out),
                                   e.count, e.type, root, part);
        });
        return started(op, OpType::SCATTER, "scatter", outs);
    }

    work_ptr alltoall_base(Tensor &out, Tensor &in, std::vector<int64_t> &out_splits,
                           std::vector<int64_t> &in_splits,
                           const c10d::AllToAllOptions &opts) override
    {
        const operation_ptr op = begin({out}, opts);

        check_same_type(in, out, "all_to_all");
        const Tensor from = op->source_of(in);
        const Tensor to = op->result_of(out);
        const std::vector<size_t> in_counts = counts_of(from, in_splits);
        const std::vector<size_t> out_counts = counts_of(to, out_splits);

        check_own_part(in_counts, out_counts, from);
        start(op, [&](ls_work **part) {
            return ls_all_to_all_v(comm(), address(from), in_counts.data(), address(to),
                                   out_counts.data(), elements(from).type, part);
        });
        return started(op, OpType::ALLTOALL_BASE, "all_to_all", {in});
    }

    work_ptr alltoall(tensors &outs, tensors &ins, const c10d::AllToAllOptions &opts) override
    {
        const operation_ptr op = begin(outs, opts);
        std::vector<const void *> from;
        std::vector<void *> to;
        std::vector<size_t> in_counts;
        std::vector<size_t> out_counts;

        list_for_ranks(ins, "all_to_all");
        list_for_ranks(outs, "all_to_all");
        for (const Tensor &t : joined(outs, ins))
            check_same_type(t, outs[0], "all_to_all");
        op->is_apart = share_memory(joined(outs, ins));
        for (int r = 0; r < size_; r++) {
            from.push_back(address(op->source_of(ins[r])));
            to.push_back(address(op->result_of(outs[r])));
            in_counts.push_back(elements(ins[r]).count);
            out_counts.push_back(elements(outs[r]).count);
        }
        check_own_part(in_counts, out_counts, outs[0]);
        start(op, [&](ls_work **part) {
            return ls_all_to_all_list(comm(), from.data(), in_counts.data(), to.data(),
                                      out_counts.data(), elements(outs[0]).type, part);
        });
        return started(op, OpType::ALLTOALL, "all_to_all", ins);
    }

    // --- messages ---

    work_ptr send(tensors &list, int to, int tag) override
    {
        const operation_ptr op = begin(list);
        const Tensor data = op->source_of(only(list));
        const elements e(data);

        start(op, [&](ls_work **part) {
            return ls_send(comm(), address(data), e.count, e.type, to, tag, part);
        });
        return started(op, OpType::SEND, "send", list);
    }

    work_ptr recv(tensors &list, int from, int tag) override
    {
        return receive(list, from, tag, OpType::RECV, "recv");
    }

    work_ptr recvAnysource(tensors &list, int tag) override
    {
        return receive(list, LS_ANY_SOURCE, tag, OpType::RECVANYSOURCE, "recvAnySource");
    }

    // --- the group ---

    work_ptr barrier(const c10d::BarrierOptions &opts) override
    {
        const operation_ptr op = begin({}, opts);

        start(op, [&](ls_work **part) { return ls_barrier(comm(), part); });
        return started(op, OpType::BARRIER, "barrier", {});
    }

    void monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all) override
    {
        static const auto barrier =
            in_python<void(int64_t, int64_t, bool)>("lockstep::monitored_barrier");

        barrier.call(reinterpret_cast<intptr_t>(comm()), opts.timeout.count(), wait_all);
    }

    void setTimeout(std::chrono::milliseconds timeout) override
    {
        timeout_ms = timeout.count();
        ls_comm_set_timeout(comm(), timeout_ms);
    }

    bool supportsSplitting() const override
    {
        return true;
    }

    c10::intrusive_ptr<Options> getBackendOptions() override
    {
        return c10::make_intrusive<Options>(called, std::chrono::milliseconds(timeout_ms));
    }

    /* The group of the ranks in `ranks` of this one, which alone get it. */
    c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store> & /* store */,
                                      const std::vector<int> &ranks,
                                      const c10::intrusive_ptr<Options> &opts) override
    {
        static const auto create =
            in_python<int64_t(int64_t, at::IntArrayRef, std::string, int64_t)>("lockstep::split");

        if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end())
            return nullptr;
        const std::vector<int64_t> members(ranks.begin(), ranks.end());
        const int64_t made = create.call(reinterpret_cast<intptr_t>(comm()), members,
                                         opts->group_name, opts->timeout.count());

        return c10::make_intrusive<backend>(reinterpret_cast<ls_comm *>(made), opts->timeout,
                                            called);
    }

    void setSequenceNumberForGroup() override
    {
    }

    uint64_t getSequenceNumberForGroup() override
    {
        return n_started;
    }

    Tensor allocateTensor(long size, at::TensorOptions options) override
    {
        const auto bytes = static_cast<size_t>(size) * options.dtype().itemsize();
        void *memory = nullptr;

        must(ls_comm_alloc(comm(), bytes, &memory));
        return at::from_blob(memory, {size}, ls_memory_free, options);
    }

    bool supportsTensorAlloc(c10::DeviceIndex /* device */) override
    {
        return true;
    }

    c10d::ErrorType getError() override
    {
        return of->works() ? c10d::ErrorType::SUCCESS : c10d::ErrorType::COMM_ERROR;
    }

    void abort() override
    {
        of->abort();
    }

    void shutdown() override
    {
        of->end();
    }

  private:
    /* What liblockstep gets of a reduction. */
    struct reduction {
        Tensor in;
        const plan *by = nullptr;
        size_t count = 0;
    };

    ls_comm *comm() const
    {
        ls_comm *const c = of->comm();

        if (c == nullptr)
            callbacks::stay_if_over();
        TORCH_CHECK(c != nullptr, "lockstep: the process group has ended");
        return c;
    }

    /* An operation of a call with these options. `shown`: the tensor whose shape messages show; by
     * default the first result. */
    template <typename O>
    operation_ptr begin(const tensors &results, const O &opts, const Tensor *shown = nullptr) const
    {
        // The profiler's event ends with the work, which the caller must get then.
        return begin(results, opts.timeout, !opts.asyncOp && !at::hasCallbacks(), shown);
    }

    operation_ptr begin(const tensors &results) const
    {
        return begin(results, c10d::kUnsetTimeout, false, nullptr);
    }

    operation_ptr begin(const tensors &results, std::chrono::milliseconds timeout, bool is_waited,
                        const Tensor *shown) const
    {
        if (shown == nullptr && !results.empty())
            shown = &results[0];
        sites->mark(shown);
        return std::make_shared<operation>(c10::IValue(results), timeout, is_waited);
    }

    template <typename F> void start(const operation_ptr &op, const F &start_part)
    {
        const std::lock_guard<std::mutex> guard(starting);
        ls_work *part = nullptr;

        must(start_part(op->is_waited ? ls_work_waited(&part) : &part));
        op->add_part(part);
        if (op->timeout.count() > 0 && op->timeout.count() != timeout_ms)
            ls_work_set_timeout(part, op->timeout.count());
        n_started++;
    }

    /* Returns the work; none when the operation has ended, as for the NCCL backend. */
    work_ptr started(const operation_ptr &op, OpType type, const char *name, const tensors &inputs)
    {
        if (op->is_waited) {
            op->wait_at_once();
            return nullptr;
        }
        const std::string title = at::hasCallbacks() ? called + ":" + name : "";

        return c10::make_intrusive<work>(rank_, type, title.empty() ? nullptr : title.c_str(),
                                         inputs, op);
    }

    // --- arguments ---

    static const tensors &only_list(const tensor_lists &lists)
    {
        check(lists.size() == 1, "lists", lists.size());
        return lists[0];
    }

    const tensors &list_for_ranks(const tensors &list, const char *name) const
    {
        check(list.size() == static_cast<size_t>(size_), "list", name, list.size(), size_);
        return list;
    }

    static void check_same_length(const tensors &a, const tensors &b, const char *name)
    {
        check(a.size() == b.size(), "lengths", name, a.size(), b.size());
    }

    static void check_same_type(const Tensor &a, const Tensor &b, const char *name)
    {
        check_tensor(a);
        check_tensor(b);
        check(a.scalar_type() == b.scalar_type(), "types", name);
    }

    /* `whole` has the elements of each rank's `part`. */
    void check_whole(const Tensor &whole, const Tensor &part, const char *name) const
    {
        check_same_type(whole, part, name);
        check(whole.numel() == part.numel() * size_, "whole", name, whole.numel(), part.numel(),
              size_);
    }

    static void check_sizes(const tensors &list, const Tensor &one, const char *name)
    {
        for (const Tensor &t : list) {
            check_same_type(t, one, name);
            check(t.numel() == one.numel(), "sizes", name, t.numel(), one.numel());
        }
    }

    /* What this rank sends to itself in all_to_all; the others' parts are compared on the way. */
    void check_own_part(const std::vector<size_t> &in, const std::vector<size_t> &out,
                        const Tensor &t) const
    {
        const auto each = static_cast<size_t>(move_of(t.scalar_type()).each);

        check(in[rank_] == out[rank_], "sizes", "all_to_all", in[rank_] / each, out[rank_] / each);
    }

    static bool have_one_size(const tensors &list)
    {
        return std::all_of(list.begin(), list.end(),
                           [&](const Tensor &t) { return t.numel() == list[0].numel(); });
    }

    /* The elements for each rank: rows of the first dimension, or equal parts. */
    std::vector<size_t> counts_of(const Tensor &t, const std::vector<int64_t> &splits) const
    {
        const int64_t rows = t.dim() == 0 ? t.numel() : t.size(0);
        const size_t row = rows == 0 ? 0 : elements(t).count / static_cast<size_t>(rows);
        std::vector<size_t> counts;
        int64_t left = rows;
        bool fits = splits.empty() || splits.size() == static_cast<size_t>(size_);

        check(!splits.empty() || rows % size_ == 0, "rows", rows, size_);
        for (int r = 0; r < size_ && fits; r++) {
            const int64_t split = splits.empty() ? rows / size_ : splits[r];

            left -= split;
            fits = split >= 0;
            counts.push_back(static_cast<size_t>(split) * row);
        }
        check(fits && left == 0, "splits", at::IntArrayRef(splits), size_, rows);
        return counts;
    }

    // --- starting parts ---

    reduction reduction_of(const operation_ptr &op, const Tensor &t, const ReduceOp &how)
    {
        check_tensor(t);
        const plan &p = plan_of(t.scalar_type(), how);
        Tensor in = plain(t, op->is_apart).to(p.computes);

        if (how == ReduceOp::PREMUL_SUM)
            in = at::mul(in, factor_of(how));
        op->keep(in);
        return {in, &p, static_cast<size_t>(in.numel() * p.each)};
    }

    /* Where the reduction of `t` goes: `t` itself if that is possible. */
    Tensor reduced(const operation_ptr &op, const Tensor &t, const reduction &r)
    {
        check_tensor(t);
        const bool fits = is_plain(t) && r.by->computes == t.scalar_type() && !op->is_apart;
        const Tensor place = fits ? t : at::empty(t.sizes(), t.options().dtype(r.by->computes));

        op->keep(place);
        if (r.by->is_divided)
            op->divide_at_end(place, size_);
        op->copy_at_end(t, place);
        return place;
    }

    void start_all_reduce(const operation_ptr &op, const Tensor &t, const ReduceOp &how)
    {
        const reduction r = reduction_of(op, t, how);
        const Tensor out = reduced(op, t, r);

        start(op, [&](ls_work **part) {
            return ls_all_reduce(comm(), address(r.in), address(out), r.count, r.by->type, r.by->op,
                                 part);
        });
    }

    void start_reduce_scatter(const operation_ptr &op, const Tensor &to, const Tensor &from,
                              const ReduceOp &how)
    {
        check_whole(from, to, "reduce_scatter");
        const reduction r = reduction_of(op, from, how);
        const Tensor out = reduced(op, to, r);

        start(op, [&](ls_work **part) {
            return ls_reduce_scatter(comm(), address(r.in), address(out), r.count / size_,
                                     r.by->type, r.by->op, part);
        });
    }

    void start_uneven_reduce_scatter(const operation_ptr &op, const Tensor &to, const tensors &list,
                                     const ReduceOp &how)
    {
        std::vector<size_t> counts;
        tensors parts;

        for (const Tensor &t : list) {
            check_same_type(t, to, "reduce_scatter");
            parts.push_back(t.reshape({-1}));
        }
        check_sizes({list[rank_]}, to, "reduce_scatter");
        const reduction r = reduction_of(op, at::cat(parts), how);
        const Tensor out = reduced(op, to, r);

        for (const Tensor &t : list)
            counts.push_back(static_cast<size_t>(t.numel() * r.by->each));
        start(op, [&](ls_work **part) {
            return ls_reduce_scatter_v(comm(), address(r.in), address(out), counts.data(),
                                       r.by->type, r.by->op, part);
        });
    }

    void start_all_gather(const operation_ptr &op, const Tensor &to, const Tensor &from)
    {
        check_whole(to, from, "all_gather");
        const Tensor in = op->source_of(from);
        const Tensor out = op->result_of(to);
        const elements e(in);

        start(op, [&](ls_work **part) {
            return ls_all_gather(comm(), address(in), address(out), e.count, e.type, part);
        });
    }

    /* Old calls have several tensors, which all get the result. */
    static void copy_to_others(const operation_ptr &op, const tensors &list, const Tensor &from)
    {
        for (const Tensor &t : list)
            op->copy_at_end(t, from);
    }

    /* Each list in `outs` gets all tensors of rank 0, then those of rank 1, and so on. */
    void start_gather_of_several(const operation_ptr &op, const tensor_lists &outs,
                                 const tensors &ins)
    {
        check_sizes(ins, ins[0], "all_gather");
        const Tensor from = at::stack(ins);
        tensors of_ranks(size_);

        for (Tensor &t : of_ranks)
            t = at::empty_like(from);
        start_gather_list(op, of_ranks, from, -1, "all_gather");
        for (const tensors &list : outs) {
            check(list.size() == size_ * ins.size(), "list", "all_gather", list.size(), size_);
            check_sizes(list, ins[0], "all_gather");
            for (size_t i = 0; i < list.size(); i++)
                op->copy_at_end(list[i], of_ranks[i / ins.size()][i % ins.size()]);
        }
    }

    /* The parts of the ranks have different sizes. */
    void start_uneven_all_gather(const operation_ptr &op, const tensors &list, const Tensor &from)
    {
        const Tensor in = op->source_of(from);
        std::vector<int64_t> sizes;
        std::vector<size_t> counts;

        check_sizes({list[rank_]}, in, "all_gather");
        for (const Tensor &t : list) {
            check_same_type(t, in, "all_gather");
            sizes.push_back(t.numel());
            counts.push_back(elements(t).count);
        }
        const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
        const Tensor out = at::empty({total}, in.options());
        const tensors parts = out.split_with_sizes(sizes);

        op->keep(out);
        for (size_t i = 0; i < list.size(); i++)
            op->copy_at_end(list[i], parts[i].view(list[i].sizes()));
        start(op, [&](ls_work **part) {
            return ls_all_gather_v(comm(), address(in), address(out), counts.data(),
                                   elements(in).type, part);
        });
    }

    /* With root -1 all ranks have `list`, otherwise the root alone. */
    void start_gather_list(const operation_ptr &op, const tensors &list, const Tensor &from,
                           int root, const char *name)
    {
        for (const Tensor &t : list)
            check_same_type(t, from, name);
        if (root < 0 && !have_one_size(list_for_ranks(list, name))) {
            start_uneven_all_gather(op, list, from);
            return;
        }
        std::vector<void *> to;
        const bool is_in_place =
            !list.empty() && address(list_for_ranks(list, name)[rank_]) == address(from);

        if (!op->is_apart)
            op->is_apart = share_memory(is_in_place ? list : joined(list, {from}));
        const Tensor in = op->source_of(from);
        const elements e(in);

        if (root < 0 || root == rank_) {
            check_sizes(list_for_ranks(list, name), in, name);
            for (const Tensor &t : list)
                to.push_back(address(op->result_of(t)));
        }
        start(op, [&](ls_work **part) {
            if (root < 0)
                return ls_all_gather_list(comm(), address(in), to.data(), e.count, e.type, part);
            return ls_gather_list(comm(), address(in), to.empty() ? nullptr : to.data(), e.count,
                                  e.type, root, part);
        });
    }

    work_ptr receive(tensors &list, int from, int tag, OpType type, const char *name)
    {
        const operation_ptr op = begin(list);
        const Tensor data = op->result_of(only(list));
        const elements e(data);

        start(op, [&](ls_work **part) {
            return ls_recv(comm(), address(data), e.count, e.type, from, tag, part);
        });
        return started(op, type, name, list);
    }

    /* Sums sparse tensors; in Python, as for the Python form. Blocks. */
    work_ptr reduce_sparse(const tensors &list, const c10d::AllreduceOptions &opts)
    {
        static const auto reduce =
            in_python<void(int64_t, at::TensorList, int64_t, int64_t)>("lockstep::reduce_sparse");

        reduce.call(reinterpret_cast<intptr_t>(comm()), list, number_of(opts.reduceOp),
                    opts.timeout.count());
        const operation_ptr op = begin(list);
        return started(op, OpType::_ALLREDUCE_SPARSE, "all_reduce_sparse", {});
    }

    const std::shared_ptr<group> of;
    const std::string called;
    std::atomic<int64_t> timeout_ms; // of operations without one of their own
    std::mutex starting;             // the operations of a group have one order
    std::atomic<uint64_t> n_started = 0;
};

/* Before the first group: the address of _cpp.py's function, and the folders whose files are not
 * the program's. */
void begin_groups(int64_t ended, std::vector<std::string> own)
{
    ended_in_python = reinterpret_cast<ended_fn>(ended);
    sites = new call_sites(std::move(own));
}

/* A process group whose backend for CPU tensors works with the group `comm` of this process. */
c10::intrusive_ptr<c10d::ProcessGroup> wrap(int64_t comm, int64_t timeout_ms, std::string name)
{
    auto *joined = reinterpret_cast<ls_comm *>(static_cast<intptr_t>(comm));
    const auto made = c10::make_intrusive<backend>(joined, std::chrono::milliseconds(timeout_ms),
                                                   std::move(name));
    const auto holder =
        c10::make_intrusive<c10d::ProcessGroup>(ls_comm_rank(joined), ls_comm_size(joined));

    holder->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, made);
    return holder;
}

/* Afterwards no function of Python is called. */
void end_all()
{
    std::vector<std::weak_ptr<group>> all;

    callbacks::begin_end();
    {
        const std::lock_guard<std::mutex> guard(groups_lock);

        all.swap(groups);
    }
    for (const std::weak_ptr<group> &g : all)
        if (const std::shared_ptr<group> owner = g.lock())
            owner->end();
    callbacks::finish_end();
}

} // namespace

TORCH_LIBRARY(lockstep, library)
{
    library.def("begin_groups(int ended, str[] own) -> ()", begin_groups);
    library.def("set_refusal(str name, str text) -> ()", set_refusal);
    // In Python (_cpp.py):
    library.def("run_signal_handlers() -> ()");
    library.def("folded(Tensor[] tensors, int how) -> Tensor");
    library.def("reduce_sparse(int comm, Tensor[] tensors, int how, int timeout_ms) -> ()");
    library.def("monitored_barrier(int comm, int timeout_ms, bool wait_all) -> ()");
    library.def("split(int comm, int[] ranks, str name, int timeout_ms) -> int");
    library.def("factor(Tensor given) -> Scalar");
    library.def("set_type(ScalarType of, int how, ScalarType computes, int[] numbers, "
                "str refusal) -> ()",
                set_type);
    library.def("wrap(int comm, int timeout_ms, str name) -> "
                "__torch__.torch.classes.c10d.ProcessGroup",
                wrap);
    library.def("end_all() -> ()", end_all);
}

} // namespace lockstep_torch
