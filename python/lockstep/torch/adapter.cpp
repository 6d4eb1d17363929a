/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adapter.cpp - the C++ form of the PyTorch backend: a c10d::Backend over liblockstep's collectives
 * for tensors in host memory. It is compiled once per minor version of PyTorch and links no Python:
 * _cpp.py joins the job and gives the group to lockstep::wrap().
 */
#include "adapter_work.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

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

// --- tensors as memory ---

/* How a reduction computes with a tensor's elements. */
struct arithmetic {
    ls_dtype type;
    at::ScalarType computes; // the tensor is converted to it and back
};

bool native_type(at::ScalarType scalar, ls_dtype *type)
{
    switch (scalar) {
    case at::kChar:
        *type = LS_I8;
        return true;
    case at::kByte:
    case at::kBool:
        *type = LS_U8;
        return true;
    case at::kInt:
        *type = LS_I32;
        return true;
    case at::kLong:
        *type = LS_I64;
        return true;
    case at::kHalf:
        *type = LS_F16;
        return true;
    case at::kBFloat16:
        *type = LS_BF16;
        return true;
    case at::kFloat:
        *type = LS_F32;
        return true;
    case at::kDouble:
        *type = LS_F64;
        return true;
    default:
        return false;
    }
}

/* Elements without a kernel of their own are converted to a wider type, and back. */
arithmetic arithmetic_of(at::ScalarType scalar)
{
    arithmetic a{LS_I64, scalar};

    if (native_type(scalar, &a.type))
        return a;
    a.computes = c10::isIntegralType(scalar, false) ? at::kLong : at::kFloat;
    a.type = a.computes == at::kLong ? LS_I64 : LS_F32;
    TORCH_CHECK_TYPE(a.computes == at::kLong || c10::isFloatingType(scalar),
                     "lockstep: no reduction of tensors of type ", scalar);
    return a;
}

ls_reduce_op reduce_op(const ReduceOp &op, at::ScalarType scalar)
{
    static const ls_reduce_op all[] = {LS_SUM, LS_AVG,  LS_PROD, LS_MIN,
                                       LS_MAX, LS_BAND, LS_BOR,  LS_BXOR};
    const auto kind = static_cast<ReduceOp::RedOpType>(op);

    if (kind == ReduceOp::PREMUL_SUM)
        return LS_SUM;
    TORCH_CHECK_VALUE(kind < sizeof(all) / sizeof(all[0]), "lockstep: unknown reduction");
    if (scalar != at::kBool)
        return all[kind];
    // True is 1: sum and maximum are "or", product and minimum "and".
    TORCH_CHECK_TYPE(kind != ReduceOp::AVG, "lockstep: no average of bool tensors");
    if (kind == ReduceOp::SUM || kind == ReduceOp::MAX)
        return LS_BOR;
    return kind == ReduceOp::PRODUCT || kind == ReduceOp::MIN ? LS_BAND : all[kind];
}

/* The address of a contiguous tensor; never NULL, also without elements. */
void *address(const Tensor &t)
{
    static char nothing;

    return t.numel() == 0 ? &nothing : t.mutable_data_ptr();
}

/* A tensor as elements that operations move: their type and number. */
struct elements {
    ls_dtype type = LS_U8;
    size_t count;
    int64_t each = 1; // elements of `type` in one of the tensor

    explicit elements(const Tensor &t)
    {
        const at::ScalarType scalar = c10::toRealValueType(t.scalar_type());

        if (native_type(scalar, &type))
            each = t.is_complex() ? 2 : 1;
        else
            each = static_cast<int64_t>(t.element_size());
        count = static_cast<size_t>(t.numel() * each);
    }
};

// --- the group ---

/* Functions of _cpp.py, which owns the groups. */
using ended_fn = void (*)(int64_t comm);
using monitor_fn = int (*)(int64_t comm, int64_t timeout_ms, int wait_all, char *text,
                           size_t text_bytes);

/* liblockstep's group. It ends after its backend and the memory that came from it, or at the end of
 * the interpreter. */
class group
{
  public:
    group(ls_comm *joined, ended_fn ended) : at_end(ended), handle(joined)
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

    void end()
    {
        ls_comm *const ended = handle.exchange(nullptr);

        if (ended != nullptr)
            at_end(reinterpret_cast<intptr_t>(ended));
    }

  private:
    const ended_fn at_end;
    std::atomic<ls_comm *> handle;
};

std::mutex groups_lock;
std::vector<std::weak_ptr<group>> groups; // of this process

int64_t numel_of(const tensors &list)
{
    int64_t sum = 0;

    for (const Tensor &t : list)
        sum += t.numel();
    return sum;
}

const Tensor &only(const tensors &list)
{
    TORCH_CHECK_VALUE(list.size() == 1, "lockstep: one tensor a call, not ", list.size());
    return list[0];
}

/* A row for each rank, in which its tensor lies without gaps. */
Tensor rows_like(const Tensor &t, int size)
{
    std::vector<int64_t> sizes = t.sizes().vec();

    sizes.insert(sizes.begin(), size);
    return at::empty(sizes, t.options());
}

class backend : public c10d::Backend
{
  public:
    backend(std::shared_ptr<group> joined, monitor_fn monitor, int rank, int size, std::string name)
        : Backend(rank, size), of(std::move(joined)), monitored(monitor), called(std::move(name))
    {
    }

    const std::string getBackendName() const override
    {
        return called;
    }

    // --- reductions ---

    work_ptr allreduce(tensors &list, const c10d::AllreduceOptions &opts) override
    {
        if (only(list).layout() == at::kSparse)
            return reduce_sparse(list[0], opts.reduceOp);
        const operation_ptr op = begin(list);

        start_all_reduce(op, list[0], opts.reduceOp);
        return started(op, OpType::ALLREDUCE, "all_reduce", list);
    }

    work_ptr allreduce_sparse(tensors &list, const c10d::AllreduceOptions &opts) override
    {
        return reduce_sparse(only(list), opts.reduceOp);
    }

    work_ptr allreduce_coalesced(tensors &list,
                                 const c10d::AllreduceCoalescedOptions &opts) override
    {
        const operation_ptr op = begin(list);

        for (const Tensor &t : list)
            start_all_reduce(op, t, opts.reduceOp);
        return started(op, OpType::ALLREDUCE_COALESCED, "all_reduce", list);
    }

    work_ptr reduce(tensors &list, const c10d::ReduceOptions &opts) override
    {
        const operation_ptr op = begin(list);
        const Tensor t = only(list);
        const int root = static_cast<int>(opts.rootRank);
        const reduction r = reduction_of(op, t, opts.reduceOp);
        const Tensor out = root == rank_ ? reduced(op, t, r) : Tensor();

        start(op, [&](ls_work **part) {
            return ls_reduce(comm(), address(r.in), out.defined() ? address(out) : nullptr, r.count,
                             r.type, r.op, root, part);
        });
        return started(op, OpType::REDUCE, "reduce", list);
    }

    work_ptr reduce_scatter(tensors &outs, tensor_lists &ins,
                            const c10d::ReduceScatterOptions &opts) override
    {
        const tensors &list = list_for_ranks(only_list(ins), "reduce_scatter");
        const Tensor all = at::empty({numel_of(list)}, only(outs).options());
        const operation_ptr op = begin(outs);

        check_sizes(list, outs[0], "reduce_scatter");
        fill(all, list);
        start_reduce_scatter(op, outs[0], all, opts.reduceOp);
        return started(op, OpType::REDUCE_SCATTER, "reduce_scatter", list);
    }

    work_ptr _reduce_scatter_base(Tensor &out, Tensor &in,
                                  const c10d::ReduceScatterOptions &opts) override
    {
        const operation_ptr op = begin({out});

        start_reduce_scatter(op, out, in, opts.reduceOp);
        return started(op, OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base", {in});
    }

    work_ptr reduce_scatter_tensor_coalesced(tensors &outs, tensors &ins,
                                             const c10d::ReduceScatterOptions &opts) override
    {
        const operation_ptr op = begin(outs);

        check_same_length(outs, ins, "reduce_scatter_tensor_coalesced");
        for (size_t i = 0; i < outs.size(); i++)
            start_reduce_scatter(op, outs[i], ins[i], opts.reduceOp);
        return started(op, OpType::COALESCED, "reduce_scatter_tensor_coalesced", ins);
    }

    // --- moves ---

    work_ptr broadcast(tensors &list, const c10d::BroadcastOptions &opts) override
    {
        const operation_ptr op = begin(list);
        const int root = static_cast<int>(opts.rootRank);
        const Tensor t = only(list);
        const Tensor data = root == rank_ ? op->source_of(t) : op->result_of(t);
        const elements e(data);

        start(op, [&](ls_work **part) {
            return ls_broadcast(comm(), address(data), address(data), e.count, e.type, root, part);
        });
        return started(op, OpType::BROADCAST, "broadcast", list);
    }

    work_ptr allgather(tensor_lists &outs, tensors &ins,
                       const c10d::AllgatherOptions & /* opts */) override
    {
        const operation_ptr op = begin(only_list(outs));

        start_gather_list(op, outs[0], only(ins), -1, "all_gather");
        return started(op, OpType::ALLGATHER, "all_gather", ins);
    }

    work_ptr allgather_coalesced(tensor_lists &outs, tensors &ins,
                                 const c10d::AllgatherOptions & /* opts */) override
    {
        tensors all;

        for (const tensors &list : outs)
            all.insert(all.end(), list.begin(), list.end());
        const operation_ptr op = begin(all);

        for (size_t i = 0; i < ins.size(); i++) {
            tensors list;

            for (const tensors &of_rank : outs) {
                check_same_length(of_rank, ins, "all_gather_coalesced");
                list.push_back(of_rank[i]);
            }
            start_gather_list(op, list, ins[i], -1, "all_gather_coalesced");
        }
        return started(op, OpType::ALLGATHER_COALESCED, "all_gather", ins);
    }

    work_ptr _allgather_base(Tensor &out, Tensor &in,
                             const c10d::AllgatherOptions & /* opts */) override
    {
        const operation_ptr op = begin({out});

        start_all_gather(op, out, in);
        return started(op, OpType::_ALLGATHER_BASE, "_all_gather_base", {in});
    }

    work_ptr allgather_into_tensor_coalesced(tensors &outs, tensors &ins,
                                             const c10d::AllgatherOptions & /* opts */) override
    {
        const operation_ptr op = begin(outs);

        check_same_length(outs, ins, "all_gather_into_tensor_coalesced");
        for (size_t i = 0; i < outs.size(); i++)
            start_all_gather(op, outs[i], ins[i]);
        return started(op, OpType::COALESCED, "all_gather_into_tensor_coalesced", ins);
    }

    work_ptr gather(tensor_lists &outs, tensors &ins, const c10d::GatherOptions &opts) override
    {
        const int root = static_cast<int>(opts.rootRank);
        const tensors list = root == rank_ ? only_list(outs) : tensors();
        const operation_ptr op = begin(list);

        start_gather_list(op, list, only(ins), root, "gather");
        return started(op, OpType::GATHER, "gather", ins);
    }

    work_ptr scatter(tensors &outs, tensor_lists &ins, const c10d::ScatterOptions &opts) override
    {
        const int root = static_cast<int>(opts.rootRank);
        const operation_ptr op = begin(outs);
        const Tensor out = op->result_of(only(outs));
        const elements e(out);
        Tensor all;

        if (root == rank_) {
            check_sizes(list_for_ranks(only_list(ins), "scatter"), out, "scatter");
            all = rows_like(out, size_);
            fill(all.view({-1}), ins[0]);
            op->keep(all);
        }
        start(op, [&](ls_work **part) {
            return ls_scatter(comm(), all.defined() ? address(all) : nullptr, address(out), e.count,
                              e.type, root, part);
        });
        return started(op, OpType::SCATTER, "scatter", outs);
    }

    work_ptr alltoall_base(Tensor &out, Tensor &in, std::vector<int64_t> &out_splits,
                           std::vector<int64_t> &in_splits,
                           const c10d::AllToAllOptions & /* opts */) override
    {
        const operation_ptr op = begin({out});
        const Tensor from = op->source_of(in);
        const Tensor to = op->result_of(out);
        const std::vector<size_t> in_counts = counts_of(from, in_splits);
        const std::vector<size_t> out_counts = counts_of(to, out_splits);

        check_same_type(in, out);
        start(op, [&](ls_work **part) {
            return ls_all_to_all_v(comm(), address(from), in_counts.data(), address(to),
                                   out_counts.data(), elements(from).type, part);
        });
        return started(op, OpType::ALLTOALL_BASE, "all_to_all", {in});
    }

    work_ptr alltoall(tensors &outs, tensors &ins,
                      const c10d::AllToAllOptions & /* opts */) override
    {
        const operation_ptr op = begin(outs);
        const Tensor from =
            at::empty({numel_of(list_for_ranks(ins, "all_to_all"))}, ins[0].options());
        const Tensor to =
            at::empty({numel_of(list_for_ranks(outs, "all_to_all"))}, outs[0].options());
        std::vector<size_t> in_counts;
        std::vector<size_t> out_counts;
        int64_t at = 0;

        check_same_type(ins[0], outs[0]);
        fill(from, ins);
        op->keep(from);
        for (int r = 0; r < size_; r++) {
            in_counts.push_back(elements(ins[r]).count);
            out_counts.push_back(elements(outs[r]).count);
            check_same_type(outs[0], outs[r]);
            op->copy_at_end(outs[r], to.narrow(0, at, outs[r].numel()).view(outs[r].sizes()));
            at += outs[r].numel();
        }
        start(op, [&](ls_work **part) {
            return ls_all_to_all_v(comm(), address(from), in_counts.data(), address(to),
                                   out_counts.data(), elements(from).type, part);
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

    work_ptr barrier(const c10d::BarrierOptions & /* opts */) override
    {
        const operation_ptr op = begin({});

        start(op, [&](ls_work **part) { return ls_barrier(comm(), part); });
        return started(op, OpType::BARRIER, "barrier", {});
    }

    void monitoredBarrier(const c10d::BarrierOptions &opts, bool wait_all) override
    {
        char text[1024] = "";

        if (monitored(reinterpret_cast<intptr_t>(comm()), opts.timeout.count(), wait_all, text,
                      sizeof(text)) != 0)
            std::rethrow_exception(failure(LS_EPEER, text));
    }

    void setTimeout(std::chrono::milliseconds timeout) override
    {
        ls_comm_set_timeout(comm(), timeout.count());
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
        const std::shared_ptr<group> owner = of;
        void *memory = nullptr;

        must(ls_comm_alloc(comm(), bytes, &memory));
        return at::from_blob(
            memory, {size},
            [owner](void *m) {
                if (owner->comm() != nullptr)
                    ls_comm_free(owner->comm(), m);
            },
            options);
    }

    bool supportsTensorAlloc(c10::DeviceIndex /* device */) override
    {
        return true;
    }

    c10d::ErrorType getError() override
    {
        const bool works = of != nullptr && of->comm() != nullptr;

        return works && ls_comm_status(of->comm()) == LS_OK ? c10d::ErrorType::SUCCESS
                                                            : c10d::ErrorType::COMM_ERROR;
    }

    void abort() override
    {
        if (of != nullptr && of->comm() != nullptr)
            ls_comm_abort(of->comm(), "the program aborted the process group");
    }

    void shutdown() override
    {
        of.reset();
    }

  private:
    /* What liblockstep gets of a reduction. */
    struct reduction {
        Tensor in;
        ls_dtype type;
        ls_reduce_op op;
        size_t count;
        at::ScalarType computes;
    };

    ls_comm *comm() const
    {
        ls_comm *const c = of != nullptr ? of->comm() : nullptr;

        TORCH_CHECK(c != nullptr, "lockstep: the process group has ended");
        return c;
    }

    static operation_ptr begin(const tensors &results)
    {
        return std::make_shared<operation>(c10::IValue(results));
    }

    template <typename F> void start(const operation_ptr &op, const F &call)
    {
        const std::lock_guard<std::mutex> guard(starting);
        ls_work *part = nullptr;

        must(call(&part));
        op->add_part(part);
        n_started++;
    }

    work_ptr started(const operation_ptr &op, OpType type, const char *name, const tensors &inputs)
    {
        const std::string title = at::hasCallbacks() ? called + ":" + name : "";

        return c10::make_intrusive<work>(rank_, type, title.empty() ? nullptr : title.c_str(),
                                         inputs, op);
    }

    // --- arguments ---

    static const tensors &only_list(const tensor_lists &lists)
    {
        TORCH_CHECK_VALUE(lists.size() == 1, "lockstep: one list of tensors a call, not ",
                          lists.size());
        return lists[0];
    }

    const tensors &list_for_ranks(const tensors &list, const char *name) const
    {
        TORCH_CHECK_VALUE(list.size() == static_cast<size_t>(size_), "lockstep: ", name,
                          " needs a tensor for each of the ", size_, " ranks, not ", list.size());
        return list;
    }

    static void check_same_length(const tensors &a, const tensors &b, const char *name)
    {
        TORCH_CHECK_VALUE(a.size() == b.size(), "lockstep: ", name, " got ", a.size(), " and ",
                          b.size(), " tensors");
    }

    static void check_same_type(const Tensor &a, const Tensor &b)
    {
        TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), "lockstep: tensors of types ",
                         a.scalar_type(), " and ", b.scalar_type(), " in one call");
    }

    static void check_sizes(const tensors &list, const Tensor &one, const char *name)
    {
        for (const Tensor &t : list) {
            check_tensor(t);
            check_same_type(t, one);
            TORCH_CHECK_VALUE(t.numel() == one.numel(), "lockstep: ", name, " with tensors of ",
                              t.numel(), " and ", one.numel(), " elements");
        }
    }

    /* Copies the list to `all` (one dimension), one tensor behind the other. */
    static void fill(const Tensor &all, const tensors &list)
    {
        int64_t at = 0;

        for (const Tensor &t : list) {
            check_tensor(t);
            check_same_type(t, all);
            all.narrow(0, at, t.numel()).view(t.sizes()).copy_(t);
            at += t.numel();
        }
    }

    /* The elements for each rank: rows of the first dimension, or equal parts. */
    std::vector<size_t> counts_of(const Tensor &t, const std::vector<int64_t> &splits) const
    {
        const int64_t rows = t.dim() == 0 ? t.numel() : t.size(0);
        const size_t row = rows == 0 ? 0 : elements(t).count / static_cast<size_t>(rows);
        std::vector<size_t> counts;
        int64_t sum = 0;

        TORCH_CHECK_VALUE(splits.empty() ? rows % size_ == 0
                                         : splits.size() == static_cast<size_t>(size_),
                          "lockstep: all_to_all of ", rows, " rows and ", splits.size(),
                          " split sizes over ", size_, " ranks");
        for (int r = 0; r < size_; r++) {
            const int64_t split = splits.empty() ? rows / size_ : splits[r];

            TORCH_CHECK_VALUE(split >= 0, "lockstep: a split size is ", split);
            counts.push_back(static_cast<size_t>(split) * row);
            sum += split;
        }
        TORCH_CHECK_VALUE(sum == rows, "lockstep: the split sizes add up to ", sum,
                          ", the first dimension has ", rows);
        return counts;
    }

    // --- starting parts ---

    reduction reduction_of(const operation_ptr &op, const Tensor &t, const ReduceOp &how)
    {
        check_tensor(t);
        const bool is_complex = t.is_complex();
        TORCH_CHECK_TYPE(!is_complex || c10d::isComplexViewAsRealAllowed(how),
                         "lockstep: no such reduction of complex tensors");
        const Tensor dense = t.contiguous();
        Tensor in = is_complex ? at::view_as_real(dense) : dense;
        const arithmetic a = arithmetic_of(in.scalar_type());

        in = in.to(a.computes);
        if (how == ReduceOp::PREMUL_SUM)
            in = premultiplied(in, how);
        op->keep(in);
        return {in, a.type, reduce_op(how, t.scalar_type()), static_cast<size_t>(in.numel()),
                a.computes};
    }

    static Tensor premultiplied(const Tensor &t, const ReduceOp &how)
    {
        const auto *by = dynamic_cast<c10d::NCCLPreMulSumSupplement *>(how.supplement_.get());

        TORCH_CHECK_VALUE(by != nullptr, "lockstep: PREMUL_SUM without a factor");
        return by->tensor_factor.defined() ? at::mul(t, by->tensor_factor)
                                           : at::mul(t, by->double_factor);
    }

    /* Where the reduction of `t` goes: `t` itself if that is possible. */
    static Tensor reduced(const operation_ptr &op, const Tensor &t, const reduction &r)
    {
        check_tensor(t);
        const bool fits = t.is_contiguous() && (t.is_complex() || r.computes == t.scalar_type());
        const Tensor place = fits ? t : at::empty(t.sizes(), t.options().dtype(computed(t, r)));

        op->keep(place);
        op->copy_at_end(t, place);
        return place;
    }

    static at::ScalarType computed(const Tensor &t, const reduction &r)
    {
        return t.is_complex() ? t.scalar_type() : r.computes;
    }

    void start_all_reduce(const operation_ptr &op, const Tensor &t, const ReduceOp &how)
    {
        const reduction r = reduction_of(op, t, how);
        const Tensor out = reduced(op, t, r);

        start(op, [&](ls_work **part) {
            return ls_all_reduce(comm(), address(r.in), address(out), r.count, r.type, r.op, part);
        });
    }

    void start_reduce_scatter(const operation_ptr &op, const Tensor &to, const Tensor &from,
                              const ReduceOp &how)
    {
        const reduction r = reduction_of(op, from, how);
        const Tensor out = reduced(op, to, r);

        check_same_type(to, from);
        TORCH_CHECK_VALUE(from.numel() == to.numel() * size_, "lockstep: reduce_scatter of ",
                          from.numel(), " elements to ", to.numel(), " on each of ", size_,
                          " ranks");
        start(op, [&](ls_work **part) {
            return ls_reduce_scatter(comm(), address(r.in), address(out), r.count / size_, r.type,
                                     r.op, part);
        });
    }

    void start_all_gather(const operation_ptr &op, const Tensor &to, const Tensor &from)
    {
        const Tensor in = op->source_of(from);
        const Tensor out = op->result_of(to);
        const elements e(in);

        check_same_type(to, from);
        TORCH_CHECK_VALUE(to.numel() == from.numel() * size_, "lockstep: all_gather of ",
                          from.numel(), " elements of each of ", size_, " ranks to ", to.numel());
        start(op, [&](ls_work **part) {
            return ls_all_gather(comm(), address(in), address(out), e.count, e.type, part);
        });
    }

    /* With root -1 all ranks have `list`, otherwise the root alone. */
    void start_gather_list(const operation_ptr &op, const tensors &list, const Tensor &from,
                           int root, const char *name)
    {
        const Tensor in = op->source_of(from);
        const elements e(in);
        Tensor all;

        if (root < 0 || root == rank_) {
            all = rows_like(in, size_);
            op->keep(all);
            check_sizes(list_for_ranks(list, name), in, name);
            for (int r = 0; r < size_; r++)
                op->copy_at_end(list[r], all.select(0, r).view(list[r].sizes()));
        }
        start(op, [&](ls_work **part) {
            if (root < 0)
                return ls_all_gather(comm(), address(in), address(all), e.count, e.type, part);
            return ls_gather(comm(), address(in), all.defined() ? address(all) : nullptr, e.count,
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

    /* Sums sparse tensors: all ranks get the indices and values of all. Blocks. */
    work_ptr reduce_sparse(const Tensor &t, const ReduceOp &how)
    {
        TORCH_CHECK_VALUE(how == ReduceOp::SUM, "lockstep: sparse tensors can be summed only");
        TORCH_CHECK_TYPE(t.device().is_cpu() && t.layout() == at::kSparse,
                         "lockstep: not a sparse tensor in host memory");
        const Tensor in = t.coalesce();
        const Tensor lengths = gather_rows(at::full({1}, in._nnz(), at::kLong), {}).reshape({-1});
        const Tensor indices = gather_rows(in.indices().t(), lengths).t();
        const Tensor values = gather_rows(in.values(), lengths);
        const Tensor sum =
            at::sparse_coo_tensor(indices, values, t.sizes(), t.options()).coalesce();

        t.copy_(sum);
        const operation_ptr op = begin({t});
        return started(op, OpType::_ALLREDUCE_SPARSE, "all_reduce_sparse", {});
    }

    /* The rows of all ranks in their order; lengths: of each rank, undefined where each has 1. */
    Tensor gather_rows(const Tensor &rows, const Tensor &lengths)
    {
        const operation_ptr op = begin({});
        const Tensor in = op->source_of(rows);
        std::vector<int64_t> sizes = in.sizes().vec();
        std::vector<size_t> counts;

        sizes[0] = lengths.defined() ? lengths.sum().item<int64_t>() : size_;
        const Tensor out = at::empty(sizes, in.options());
        const size_t row = sizes[0] == 0 ? 0 : elements(out).count / static_cast<size_t>(sizes[0]);

        for (int r = 0; r < size_; r++) {
            const int64_t n = lengths.defined() ? lengths[r].item<int64_t>() : 1;

            counts.push_back(static_cast<size_t>(n) * row);
        }
        start(op, [&](ls_work **part) {
            return ls_all_gather_v(comm(), address(in), address(out), counts.data(),
                                   elements(in).type, part);
        });
        op->wait(kNoTimeout);
        return out;
    }

    std::shared_ptr<group> of;
    const monitor_fn monitored;
    const std::string called;
    std::mutex starting; // the operations of a group have one order
    std::atomic<uint64_t> n_started = 0;
};

/* A process group whose backend for CPU tensors works with the group `comm` of this process.
 * `ended` and `monitor` are addresses of functions. */
c10::intrusive_ptr<c10d::ProcessGroup> wrap(int64_t comm, int64_t ended, int64_t monitor,
                                            std::string name)
{
    auto *joined = reinterpret_cast<ls_comm *>(static_cast<intptr_t>(comm));
    const int rank = ls_comm_rank(joined);
    const int size = ls_comm_size(joined);
    const auto owner = std::make_shared<group>(joined, reinterpret_cast<ended_fn>(ended));
    const auto made = c10::make_intrusive<backend>(owner, reinterpret_cast<monitor_fn>(monitor),
                                                   rank, size, std::move(name));
    const auto holder = c10::make_intrusive<c10d::ProcessGroup>(rank, size);

    holder->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, made);
    const std::lock_guard<std::mutex> guard(groups_lock);
    groups.erase(std::remove_if(groups.begin(), groups.end(),
                                [](const std::weak_ptr<group> &g) { return g.expired(); }),
                 groups.end());
    groups.push_back(owner);
    return holder;
}

/* Afterwards no function of Python is called. */
void end_all()
{
    std::vector<std::weak_ptr<group>> all;
    {
        const std::lock_guard<std::mutex> guard(groups_lock);

        all.swap(groups);
    }
    for (const std::weak_ptr<group> &g : all)
        if (const std::shared_ptr<group> owner = g.lock())
            owner->end();
}

} // namespace

TORCH_LIBRARY(lockstep, library)
{
    library.def("wrap(int comm, int ended, int monitor, str name) -> "
                "__torch__.torch.classes.c10d.ProcessGroup",
                wrap);
    library.def("end_all() -> ()", end_all);
}

} // namespace lockstep_torch
