/* SPDX-License-Identifier: Apache-2.0 */
/* collectives_gloo FOLDER NAME MAX_BYTES RANK SIZE - gloo's side of bench/collectives: TCP on
 * loopback, all_reduce and barrier. */
#include "../collective_loop.h"

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>

namespace
{

struct engine {
    std::shared_ptr<gloo::rendezvous::Context> context;
    float *memory[2];
    size_t bytes;
};

template <typename T> void sum(void *c, const void *a, const void *b, size_t n)
{
    gloo::sum<T>(c, a, b, n);
}

void largest(void *c, const void *a, const void *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        static_cast<double *>(c)[i] =
            std::max(static_cast<const double *>(a)[i], static_cast<const double *>(b)[i]);
}

int run(void *self, int op, float *src, float *, size_t count)
{
    const engine *c = static_cast<const engine *>(self);

    try {
        if (op == LOOP_ALL_REDUCE) {
            gloo::AllreduceOptions options(c->context);

            options.setOutput(src, count);
            options.setReduceFunction(sum<float>);
            gloo::allreduce(options);
        } else if (op == LOOP_BARRIER) {
            gloo::BarrierOptions options(c->context);

            gloo::barrier(options);
        } else {
            return 1;
        }
    } catch (const std::exception &error) {
        fprintf(stderr, "collectives_gloo: %s\n", error.what());
        return 1;
    }
    return 0;
}

double slowest(void *self, double value)
{
    gloo::AllreduceOptions options(static_cast<const engine *>(self)->context);

    options.setOutput(&value, 1);
    options.setReduceFunction(largest);
    gloo::allreduce(options);
    return value;
}

float *memory(void *self, const char *, int which, size_t bytes)
{
    const engine *c = static_cast<const engine *>(self);

    return bytes > c->bytes ? nullptr : c->memory[which];
}

} // namespace

int main(int argc, char **argv)
{
    engine c = {};
    loop_engine e = {&c, run, slowest, memory, 0, 0};

    if (argc != 6)
        return 2;
    e.rank = std::stoi(argv[4]);
    e.size = std::stoi(argv[5]);
    c.bytes = std::stoull(argv[3]);
    loop_bind(e.rank, e.size);
    c.memory[0] = loop_user_memory(c.bytes);
    c.memory[1] = loop_user_memory(c.bytes);
    try {
        gloo::rendezvous::FileStore store(std::string(argv[1]) + "/" + argv[2] + ".store");
        auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");

        c.context = std::make_shared<gloo::rendezvous::Context>(e.rank, e.size);
        c.context->connectFullMesh(store, device);
    } catch (const std::exception &error) {
        fprintf(stderr, "collectives_gloo: %s\n", error.what());
        return 1;
    }
    return loop_serve(&e, argv[1], argv[2]);
}
