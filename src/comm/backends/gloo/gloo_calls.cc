/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gloo_calls.cc - one operation as calls of Gloo, for the threads of gloo_backend.cc.
 *
 * Gloo runs all_reduce and reduce, with Lockstep's kernels, broadcast and barrier. Operations on
 * buffers divided by rank exchange messages in one step instead of Gloo's ring (and Gloo of 2022
 * has no reduce_scatter).
 *
 * The tag of a call is a digest of the operation. Ranks that call different operations therefore
 * wait, until the hub compares their waits and breaks the group; with equal tags Gloo would end the
 * process.
 *
 * A send is a header and the data. The receiver receives the data only if the header fits, because
 * Gloo would end the process of a receiver that gets more than it expects.
 */
#include "comm/backends/gloo/gloo_backend.h"

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/reduce.h>
#include <gloo/types.h>

#include <vector>

namespace
{

constexpr uint8_t exchange_prefix = 0x40; // Gloo's own prefixes are below
constexpr uint64_t header_prefix = 0x41;
constexpr uint64_t data_prefix = 0x42;

/* A send or receive of Lockstep's memory. The end of the group ends the wait for it. */
class transfer
{
  public:
    transfer(backend_group *g, const void *at, size_t bytes)
        : group(g), buffer(g->context->createUnboundBuffer(const_cast<void *>(at), bytes))
    {
        std::lock_guard<std::mutex> lock(group->mu);

        if (group->is_ending)
            throw std::runtime_error("aborted");
        group->transfers.insert(buffer.get());
    }

    transfer(const transfer &) = delete;
    transfer &operator=(const transfer &) = delete;

    ~transfer()
    {
        std::lock_guard<std::mutex> lock(group->mu);

        group->transfers.erase(buffer.get());
    }

    void send(int to, uint64_t slot)
    {
        is_out = true;
        buffer->send(to, slot);
    }

    /* from: a rank, or several of which any may send. */
    template <class ranks> void recv(const ranks &from, uint64_t slot)
    {
        buffer->recv(from, slot);
    }

    /* Returns the sender. */
    int wait()
    {
        int source = -1;

        if (!(is_out ? buffer->waitSend() : buffer->waitRecv(&source)))
            throw std::runtime_error("aborted");
        return source;
    }

  private:
    backend_group *const group;
    const std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    bool is_out = false;
};

// --- collectives ---

/* FNV-1a over everything that ranks must agree on. */
uint32_t digest(const op_stamp &s)
{
    const uint64_t words[] = {
        s.sequence, s.kind, s.dtype, s.redop, s.form, static_cast<uint64_t>(s.root), s.count};
    uint32_t hash = 2166136261U;

    for (const uint64_t word : words) {
        for (int i = 0; i < 64; i += 8)
            hash = (hash ^ static_cast<uint32_t>((word >> i) & 0xFF)) * 16777619U;
    }
    return hash;
}

/* A group that ends must not touch the caller's memory. */
void check_group(backend_group *g)
{
    std::lock_guard<std::mutex> lock(g->mu);

    if (g->is_ending)
        throw std::runtime_error("aborted");
}

template <class element, class options> void set_buffers(const composed &c, options &o)
{
    if (c.in != c.out)
        o.setInput(static_cast<element *>(const_cast<void *>(c.in)), c.op->count);
    o.setOutput(static_cast<element *>(c.out), c.op->count);
}

/* all_reduce and reduce. Gloo needs only the size of an element. */
template <class options> void set_reduction(backend_group *g, const composed &c, options &o)
{
    const ls_dtype type = compose_partial(c.op->dtype);
    const ls_reduce_op op = c.op->redop;

    switch (compose_size(type)) {
    case 1:
        set_buffers<uint8_t>(c, o);
        break;
    case 4:
        set_buffers<uint32_t>(c, o);
        break;
    default:
        set_buffers<uint64_t>(c, o);
        break;
    }
    o.setReduceFunction([g, type, op](void *out, const void *a, const void *b, size_t n) {
        const reduce_operand both[2] = {{a, 0, 1, true}, {b, 1, 1, true}};

        check_group(g);
        g->state->host->reduce(out, both, 2, n, type, op, false, 1);
    });
}

void exchange(backend_group *g, const composed &c, uint32_t tag)
{
    const size_t size = compose_size(c.op->dtype);
    const uint64_t slot = gloo::Slot::build(exchange_prefix, tag);
    std::list<transfer> transfers;

    compose_copy_own(&c);
    for (int i = 1; i < g->info->size; i++) {
        const compose_exchange x = compose_exchange_at(&c, i);

        if (x.n_in > 0)
            transfers.emplace_back(g, x.in, x.n_in * size).recv(x.from, slot);
        if (x.n_out > 0)
            transfers.emplace_back(g, x.out, x.n_out * size).send(x.to, slot);
    }
    for (transfer &t : transfers)
        (void)t.wait();
}

void run(backend_group *g, const composed &c, uint32_t tag)
{
    switch (c.op->kind) {
    case COLL_ALL_REDUCE: {
        gloo::AllreduceOptions o(g->context);

        set_reduction(g, c, o);
        o.setTag(tag);
        return gloo::allreduce(o);
    }
    case COLL_REDUCE: {
        gloo::ReduceOptions o(g->context);

        set_reduction(g, c, o);
        o.setRoot(c.op->root);
        o.setTag(tag);
        return gloo::reduce(o);
    }
    case COLL_BROADCAST: {
        gloo::BroadcastOptions o(g->context);

        o.setOutput(static_cast<char *>(c.out), c.op->count * compose_size(c.op->dtype));
        o.setRoot(c.op->root);
        o.setTag(tag);
        return gloo::broadcast(o);
    }
    case COLL_BARRIER: {
        gloo::BarrierOptions o(g->context);

        o.setTag(tag);
        return gloo::barrier(o);
    }
    default:
        return exchange(g, c, tag);
    }
}

// --- messages ---

/* Numbers repeat after 16 Mi messages of one tag, which are never pending at the same time. */
uint64_t slot_of(uint64_t prefix, int tag, uint64_t sequence)
{
    return prefix << 56 | static_cast<uint64_t>(tag) << 24 | (sequence & 0xFFFFFF);
}

/* One send or receive under way. The constructor starts it and does not block. */
class message
{
  public:
    message(backend_group *g, const coll &described)
        : group(g), op(described), head_transfer(g, &head, sizeof(head))
    {
        const uint64_t slot = slot_of(header_prefix, op.tag, 0);

        if (op.kind == COLL_SEND) {
            head = {op.count, op.stamp.sequence, static_cast<uint64_t>(op.dtype)};
            head_transfer.send(op.root, slot);
            if (op.count > 0)
                start_body().send(op.root, data_slot());
        } else if (op.root != LS_ANY_SOURCE) {
            head_transfer.recv(op.root, slot);
        } else {
            head_transfer.recv(others(), slot);
        }
    }

    int wait()
    {
        const int source = head_transfer.wait();

        if (op.kind == COLL_RECV) {
            check_fit(source);
            if (op.count > 0)
                start_body().recv(source, data_slot());
        }
        if (body != nullptr)
            (void)body->wait();
        return source;
    }

  private:
    struct header {
        uint64_t count;
        uint64_t sequence;
        uint64_t dtype;
    };

    uint64_t data_slot() const
    {
        return slot_of(data_prefix, op.tag, head.sequence);
    }

    transfer &start_body()
    {
        const void *at = op.kind == COLL_SEND ? op.src : op.dst;

        body = std::make_unique<transfer>(group, at, op.count * compose_size(op.dtype));
        return *body;
    }

    std::vector<int> others() const
    {
        std::vector<int> ranks;

        for (int r = 0; r < group->info->size; r++) {
            if (r != group->info->rank)
                ranks.push_back(r);
        }
        return ranks;
    }

    std::string side(const char *what, int rank, uint64_t count, uint64_t dtype) const
    {
        static const char *const names[LS_DTYPE_COUNT] = {
            "int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"};

        return "rank " + std::to_string(group->info->members[rank]) + ": " + what + " (" +
               std::to_string(count) + " " + (dtype < LS_DTYPE_COUNT ? names[dtype] : "?") +
               ", tag " + std::to_string(op.tag) + ")";
    }

    void check_fit(int source) const
    {
        const uint64_t dtype = static_cast<uint64_t>(op.dtype);

        if (head.count != op.count || head.dtype != dtype)
            throw gloo_mismatch(side("send", source, head.count, head.dtype) + "; " +
                                side("recv", group->info->rank, op.count, dtype));
    }

    backend_group *const group;
    const coll op;
    header head{};
    transfer head_transfer;
    std::unique_ptr<transfer> body; // NULL: not started yet, or no data
};

} // namespace

int gloo_call_run(backend_group *g, const coll &op)
{
    composed c{};
    const std::unique_ptr<composed, void (*)(composed *)> freed(&c, compose_free);

    if (!compose_begin(&c, g->state->host, g->info, &op, COMPOSE_IN_AND_OUT))
        throw std::bad_alloc();
    run(g, c, digest(op.stamp));
    check_group(g);
    compose_finish(&c);
    return -1;
}

gloo_run gloo_call_message(backend_group *g, const coll &op)
{
    return [m = std::make_shared<message>(g, op)] { return m->wait(); };
}
