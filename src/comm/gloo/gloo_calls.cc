/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One collective as Gloo's calls.
 *
 * Gloo of 2022 has no reduce_scatter, no variants with counts that we could use for all, and no arithmetic of ours. Its
 * reductions are given our kernels; fp16 and bf16 are reduced as float32 and rounded once; reduce_scatter is an exchange,
 * added up by the owner of each part along our tree; what has counts goes as messages.
 *
 * The tag of a call is a digest of what was called. Ranks that call different things do not understand each other and wait,
 * until the hub, which compares what ranks wait for, says so; with equal tags Gloo would end the process.
 */
#include "comm/gloo/gloo_backend.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>
#include <gloo/types.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace
{

constexpr uint8_t exchange_prefix = 0x40; // Gloo's own are below

using bytes_buffer = std::unique_ptr<char[]>;

struct call {
    backend_group *group;
    const coll *op;
    uint32_t tag;
    size_t size; // of an element
};

size_t size_of(ls_dtype type)
{
    switch (type) {
    case LS_I8:
    case LS_U8:
        return 1;
    case LS_F16:
    case LS_BF16:
        return 2;
    case LS_I32:
    case LS_F32:
        return 4;
    default:
        return 8;
    }
}

bool is_half(ls_dtype type)
{
    return type == LS_F16 || type == LS_BF16;
}

size_t partial_size(ls_dtype type)
{
    return is_half(type) ? sizeof(float) : size_of(type);
}

/* FNV-1a over everything that ranks must agree on. */
uint32_t digest(const op_stamp &s)
{
    const uint64_t words[] = {
        s.sequence, s.kind, s.dtype, s.redop, s.vector, static_cast<uint64_t>(s.root), s.count};
    uint32_t hash = 2166136261U;

    for (const uint64_t word : words) {
        for (int i = 0; i < 64; i += 8)
            hash = (hash ^ static_cast<uint32_t>((word >> i) & 0xFF)) * 16777619U;
    }
    return hash;
}

size_t part_count(const coll *op, const size_t *counts, int r)
{
    return counts == nullptr ? op->count : counts[r];
}

size_t part_offset(const coll *op, const size_t *counts, int r)
{
    size_t elements = 0;

    for (int i = 0; i < r; i++)
        elements += part_count(op, counts, i);
    return elements;
}

bytes_buffer make_bytes(size_t bytes)
{
    return bytes_buffer(new char[bytes > 0 ? bytes : 1]);
}

char *data(const void *p)
{
    return static_cast<char *>(const_cast<void *>(p));
}

// --- reductions ---

/* A group that ends has no use for more, and its caller's memory is about to go. */
void check_group(backend_group *g)
{
    std::lock_guard<std::mutex> lock(g->mu);

    if (g->is_ending)
        throw std::runtime_error("aborted");
}

/* out = a op b, of partial results. */
gloo::AllreduceOptions::Func combiner(const call &c)
{
    backend_group *g = c.group;
    const ls_dtype type = is_half(c.op->dtype) ? LS_F32 : c.op->dtype;
    const ls_reduce_op op = c.op->redop;

    return [g, type, op](void *out, const void *a, const void *b, size_t n) {
        const reduce_operand both[2] = {{a, 0, 1, true}, {b, 1, 1, true}};

        check_group(g);
        g->state->host->reduce(out, both, 2, n, type, op, false, 1);
    };
}

/* The element's size is all that Gloo wants of a type. */
template <class options, class element>
void reduce_as(const call &c, options &o, const void *src, void *dst, size_t count)
{
    if (src != dst)
        o.setInput(static_cast<element *>(const_cast<void *>(src)), count);
    o.setOutput(static_cast<element *>(dst), count);
    o.setReduceFunction(combiner(c));
    o.setTag(c.tag);
}

template <class options> void set_reduction(const call &c, options &o, const void *src, void *dst)
{
    switch (partial_size(c.op->dtype)) {
    case 1:
        return reduce_as<options, uint8_t>(c, o, src, dst, c.op->count);
    case 4:
        return reduce_as<options, uint32_t>(c, o, src, dst, c.op->count);
    default:
        return reduce_as<options, uint64_t>(c, o, src, dst, c.op->count);
    }
}

/* What all ranks' reduction is in dst: rounded and divided. */
void finish(const call &c, const void *partial)
{
    const coll *op = c.op;
    const reduce_operand all = {partial, 0, c.group->info->size, true};

    if (is_half(op->dtype) || op->redop == LS_AVG)
        c.group->state->host->reduce(op->dst, &all, 1, op->count, op->dtype, op->redop, true,
                                     op->divisor);
}

/* All_reduce and reduce; ranks other than root need room for what passes through them. */
void reduce(const call &c)
{
    const coll *op = c.op;
    const size_t bytes = op->count * partial_size(op->dtype);
    const bool has_result = op->kind == COLL_ALL_REDUCE || op->root == c.group->info->rank;
    const bool is_apart = is_half(op->dtype) || !has_result;
    const reduce_operand own = {op->src, 0, 1, false};
    const bytes_buffer room = is_apart ? make_bytes(bytes) : nullptr;
    const bytes_buffer wide = is_half(op->dtype) ? make_bytes(bytes) : nullptr;
    const void *src = op->src;
    void *dst = is_apart ? room.get() : op->dst;

    if (wide != nullptr) {
        c.group->state->host->reduce(wide.get(), &own, 1, op->count, op->dtype, op->redop, false,
                                     1);
        src = wide.get();
    }
    if (op->kind == COLL_ALL_REDUCE) {
        gloo::AllreduceOptions o(c.group->context);

        set_reduction(c, o, src, dst);
        gloo::allreduce(o);
    } else {
        gloo::ReduceOptions o(c.group->context);

        set_reduction(c, o, src, dst);
        o.setRoot(op->root);
        gloo::reduce(o);
    }
    if (has_result)
        finish(c, dst);
}

// --- messages ---

/* What one rank has for another: where in its buffer, and how much. */
struct part {
    size_t offset;
    size_t bytes;
};

/* Shows the buffers to whoever ends the group meanwhile, so that it can end these waits. */
void show_waits(backend_group *g, gloo::transport::UnboundBuffer *in,
                gloo::transport::UnboundBuffer *out)
{
    std::lock_guard<std::mutex> lock(g->mu);

    g->waits_on[0] = in;
    g->waits_on[1] = out;
    if (g->is_ending && in != nullptr)
        throw std::runtime_error("aborted");
}

void wait_for(backend_group *g, gloo::transport::UnboundBuffer *in, int n_in,
              gloo::transport::UnboundBuffer *out, int n_out)
{
    bool is_aborted = false;

    show_waits(g, in, out);
    try {
        while (n_in-- > 0 && !is_aborted)
            is_aborted = !in->waitRecv();
        while (n_out-- > 0 && !is_aborted)
            is_aborted = !out->waitSend();
    } catch (...) {
        show_waits(g, nullptr, nullptr);
        throw;
    }
    show_waits(g, nullptr, nullptr);
    if (is_aborted)
        throw std::runtime_error("aborted");
}

/* Every rank's part of `out` goes to it, every rank's part of `in` comes from it; parts of 0 bytes do not travel. */
void exchange(const call &c, char *out, const std::vector<part> &to, char *in,
              const std::vector<part> &from)
{
    const int n = c.group->info->size;
    const int me = c.group->info->rank;
    const uint64_t slot = gloo::Slot::build(exchange_prefix, c.tag);
    const auto end_of = [](const std::vector<part> &parts) {
        size_t end = 0;

        for (const part &p : parts)
            end = std::max(end, p.offset + p.bytes);
        return end;
    };
    const auto out_buffer = c.group->context->createUnboundBuffer(out, end_of(to));
    const auto in_buffer = c.group->context->createUnboundBuffer(in, end_of(from));
    int n_out = 0;
    int n_in = 0;

    if (from[me].bytes > 0 && in + from[me].offset != out + to[me].offset)
        memcpy(in + from[me].offset, out + to[me].offset, from[me].bytes);
    for (int i = 1; i < n; i++) {
        const int source = (me + n - i) % n;
        const int target = (me + i) % n;

        if (from[source].bytes > 0 && ++n_in > 0)
            in_buffer->recv(source, slot, from[source].offset, from[source].bytes);
        if (to[target].bytes > 0 && ++n_out > 0)
            out_buffer->send(target, slot, to[target].offset, to[target].bytes);
    }
    wait_for(c.group, in_buffer.get(), n_in, out_buffer.get(), n_out);
}

/* The parts of a buffer that is cut by rank (is_cut), or is the same for all. `with`: which ranks have one. */
template <class predicate>
std::vector<part> parts_of(const call &c, bool is_cut, const size_t *counts, predicate with)
{
    std::vector<part> parts;
    const int me = c.group->info->rank;

    for (int r = 0; r < c.group->info->size; r++) {
        const size_t offset = is_cut ? part_offset(c.op, counts, r) : 0;

        parts.push_back(
            {offset * c.size, with(r) ? part_count(c.op, counts, is_cut ? r : me) * c.size : 0});
    }
    return parts;
}

void exchange_counts(const call &c)
{
    const coll *op = c.op;
    const int me = c.group->info->rank;
    const auto always = [](int) { return true; };
    const auto if_root = [op](int r) { return r == op->root; };
    const auto if_i_am_root = [op, me](int) { return me == op->root; };
    char *src = data(op->src);
    char *dst = data(op->dst);

    switch (op->kind) {
    case COLL_ALL_GATHER:
        return exchange(c, src, parts_of(c, false, op->dst_counts, always), dst,
                        parts_of(c, true, op->dst_counts, always));
    case COLL_GATHER:
        return exchange(c, src, parts_of(c, false, op->dst_counts, if_root), dst,
                        parts_of(c, true, op->dst_counts, if_i_am_root));
    case COLL_SCATTER:
        return exchange(c, src, parts_of(c, true, op->src_counts, if_i_am_root), dst,
                        parts_of(c, false, op->src_counts, if_root));
    default:
        return exchange(c, src, parts_of(c, true, op->src_counts, always), dst,
                        parts_of(c, true, op->dst_counts, always));
    }
}

/* Each owner has all contributions to its part and adds them along the tree: the bits of the native backend. */
void reduce_scatter(const call &c)
{
    const coll *op = c.op;
    const int n = c.group->info->size;
    const size_t own = part_count(op, op->src_counts, c.group->info->rank);
    const bytes_buffer all = make_bytes(own * c.size * static_cast<size_t>(n));
    std::vector<reduce_operand> operands;
    std::vector<part> from;

    for (int r = 0; r < n; r++) {
        from.push_back({own * c.size * static_cast<size_t>(r), own * c.size});
        operands.push_back({all.get() + from.back().offset, r, 1, false});
    }
    exchange(c, data(op->src), parts_of(c, true, op->src_counts, [](int) { return true; }),
             all.get(), from);
    c.group->state->host->reduce(op->dst, operands.data(), n, own, op->dtype, op->redop, true,
                                 op->divisor);
}

// --- Gloo's own movers, which see bytes ---

void all_gather(const call &c)
{
    const coll *op = c.op;
    const size_t bytes = op->count * c.size;
    gloo::AllgatherOptions o(c.group->context);

    if (data(op->src) != data(op->dst) + bytes * static_cast<size_t>(c.group->info->rank))
        o.setInput(data(op->src), bytes);
    o.setOutput(data(op->dst), bytes * static_cast<size_t>(c.group->info->size));
    o.setTag(c.tag);
    gloo::allgather(o);
}

void gather(const call &c)
{
    const coll *op = c.op;
    const size_t bytes = op->count * c.size;
    gloo::GatherOptions o(c.group->context);

    o.setInput(data(op->src), bytes);
    if (op->root == c.group->info->rank)
        o.setOutput(data(op->dst), bytes * static_cast<size_t>(c.group->info->size));
    o.setRoot(op->root);
    o.setTag(c.tag);
    gloo::gather(o);
}

void scatter(const call &c)
{
    const coll *op = c.op;
    const size_t bytes = op->count * c.size;
    gloo::ScatterOptions o(c.group->context);
    std::vector<char *> parts;

    for (int r = 0; r < c.group->info->size && op->root == c.group->info->rank; r++)
        parts.push_back(data(op->src) + bytes * static_cast<size_t>(r));
    if (!parts.empty())
        o.setInputs(parts, bytes);
    o.setOutput(data(op->dst), bytes);
    o.setRoot(op->root);
    o.setTag(c.tag);
    gloo::scatter(o);
}

void broadcast(const call &c)
{
    const coll *op = c.op;
    gloo::BroadcastOptions o(c.group->context);

    if (op->root == c.group->info->rank && op->src != op->dst)
        o.setInput(data(op->src), op->count * c.size);
    o.setOutput(data(op->dst), op->count * c.size);
    o.setRoot(op->root);
    o.setTag(c.tag);
    gloo::broadcast(o);
}

void all_to_all(const call &c)
{
    const coll *op = c.op;
    const size_t bytes = op->count * c.size * static_cast<size_t>(c.group->info->size);
    gloo::AlltoallOptions o(c.group->context);

    o.setInput(data(op->src), bytes);
    o.setOutput(data(op->dst), bytes);
    o.setTag(c.tag);
    gloo::alltoall(o);
}

void barrier(const call &c)
{
    gloo::BarrierOptions o(c.group->context);

    o.setTag(c.tag);
    gloo::barrier(o);
}

} // namespace

void gloo_call_run(backend_group *g, const coll &described)
{
    const coll *op = &described;
    const call c = {g, op, digest(op->stamp), size_of(op->dtype)};
    const bool has_counts = op->src_counts != nullptr || op->dst_counts != nullptr;

    switch (op->kind) {
    case COLL_ALL_REDUCE:
    case COLL_REDUCE:
        return reduce(c);
    case COLL_REDUCE_SCATTER:
        return reduce_scatter(c);
    case COLL_BROADCAST:
        return broadcast(c);
    case COLL_BARRIER:
        return barrier(c);
    default:
        break;
    }
    if (has_counts)
        return exchange_counts(c);
    switch (op->kind) {
    case COLL_ALL_GATHER:
        return all_gather(c);
    case COLL_GATHER:
        return gather(c);
    case COLL_SCATTER:
        return scatter(c);
    default:
        return all_to_all(c);
    }
}
