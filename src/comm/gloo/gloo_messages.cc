/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and receives. A message is a header, which says what comes, and the data, which the receiver asks for once it knows that
 * it fits: Gloo would end the process of a receiver that gets more than it expects.
 */
#include "comm/gloo/gloo_backend.h"

#include <stdexcept>

namespace
{

constexpr uint64_t header_prefix = 0x41; // Gloo's own are below, gloo_calls.cc has 0x40
constexpr uint64_t data_prefix = 0x42;

struct type_facts {
    size_t size;
    const char *name;
};
const type_facts types[LS_DTYPE_COUNT] = {{1, "int8"},    {1, "uint8"},   {4, "int32"},
                                          {8, "int64"},   {2, "float16"}, {2, "bfloat16"},
                                          {4, "float32"}, {8, "float64"}};

/* Numbers of messages come back after 16 Mi of one tag; none lives so long. */
uint64_t slot_of(uint64_t prefix, int tag, uint64_t sequence)
{
    return prefix << 56 | static_cast<uint64_t>(tag) << 24 | (sequence & 0xFFFFFF);
}

} // namespace

gloo_message::gloo_message(backend_group *g, backend_work *w)
    : group(g), work(w), op(w->op),
      head_buffer(g->context->createUnboundBuffer(&head, sizeof(head)))
{
    const uint64_t slot = slot_of(header_prefix, op.tag, 0);
    std::vector<int> others;

    if (op.kind == COLL_SEND) {
        head = {op.count, op.stamp.sequence, static_cast<uint64_t>(op.dtype)};
        head_buffer->send(op.root, slot);
        if (op.count > 0)
            carry(op.root, op.stamp.sequence, const_cast<void *>(op.src));
        return;
    }
    if (op.root != LS_ANY_SOURCE) {
        head_buffer->recv(op.root, slot);
        return;
    }
    for (int r = 0; r < group->info->size; r++) {
        if (r != group->info->rank)
            others.push_back(r);
    }
    head_buffer->recv(others, slot);
}

/* The data itself: out of a send, into a receive. */
void gloo_message::carry(int peer, uint64_t sequence, void *at)
{
    const uint64_t slot = slot_of(data_prefix, op.tag, sequence);
    std::lock_guard<std::mutex> lock(mu);

    if (is_aborted)
        throw std::runtime_error("aborted");
    body_buffer = group->context->createUnboundBuffer(at, op.count * types[op.dtype].size);
    if (op.kind == COLL_SEND)
        body_buffer->send(peer, slot);
    else
        body_buffer->recv(peer, slot);
}

/* "": what comes is what this rank expects. */
std::string gloo_message::misfit(int source) const
{
    const auto text = [this](const char *what, int rank, uint64_t count, uint64_t type) {
        return "rank " + std::to_string(group->info->members[rank]) + ": " + what + " (" +
               std::to_string(count) + " " + (type < LS_DTYPE_COUNT ? types[type].name : "?") +
               ", tag " + std::to_string(op.tag) + ")";
    };
    const uint64_t dtype = static_cast<uint64_t>(op.dtype);

    if (head.count == op.count && head.dtype == dtype)
        return "";
    return text("send", source, head.count, head.dtype) + "; " +
           text("recv", group->info->rank, op.count, dtype);
}

void gloo_message::wait_on(gloo::transport::UnboundBuffer *buffer, int *source)
{
    if (!(op.kind == COLL_SEND ? buffer->waitSend() : buffer->waitRecv(source)))
        throw std::runtime_error("aborted");
}

gloo_end gloo_message::wait()
{
    int source = -1;
    gloo_end end;

    end.work = work;
    wait_on(head_buffer.get(), &source);
    if (op.kind == COLL_RECV) {
        end.source = source;
        end.text = misfit(source);
        end.status = end.text.empty() ? LS_OK : LS_EMISMATCH;
        if (end.status == LS_OK && op.count > 0)
            carry(source, head.sequence, op.dst);
    }
    if (body_buffer != nullptr)
        wait_on(body_buffer.get(), &source);
    return end;
}

void gloo_message::give_up()
{
    std::lock_guard<std::mutex> lock(mu);

    is_aborted = true;
    for (const gloo_buffer *b : {&head_buffer, &body_buffer}) {
        if (*b == nullptr)
            continue;
        (*b)->abortWaitSend();
        (*b)->abortWaitRecv();
    }
}
