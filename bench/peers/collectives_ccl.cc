/* SPDX-License-Identifier: Apache-2.0 */
/* collectives_ccl FOLDER NAME MAX_BYTES - oneCCL's side of bench/collectives, on the host, with its
 * default transport: a rank of a job of Intel MPI. */
#include "../collective_loop.h"

#include <oneapi/ccl.hpp>
#include <unistd.h>

#include <exception>
#include <memory>
#include <string>

namespace
{

struct engine {
    std::unique_ptr<ccl::communicator> comm;
    float *memory[2];
    size_t bytes;
};

int run(void *self, int op, float *src, float *dst, size_t count)
{
    const engine *c = static_cast<const engine *>(self);
    const ccl::datatype type = ccl::datatype::float32;

    try {
        switch (op) {
        case LOOP_ALL_REDUCE:
            ccl::allreduce(src, src, count, type, ccl::reduction::sum, *c->comm).wait();
            break;
        case LOOP_BROADCAST:
            ccl::broadcast(src, count, type, 0, *c->comm).wait();
            break;
        case LOOP_ALL_GATHER:
            ccl::allgather(src, dst, count, type, *c->comm).wait();
            break;
        case LOOP_REDUCE_SCATTER:
            ccl::reduce_scatter(src, dst, count, type, ccl::reduction::sum, *c->comm).wait();
            break;
        case LOOP_ALL_TO_ALL:
            ccl::alltoall(src, dst, count, type, *c->comm).wait();
            break;
        case LOOP_BARRIER:
            ccl::barrier(*c->comm);
            break;
        default:
            return 1;
        }
    } catch (const std::exception &error) {
        fprintf(stderr, "collectives_ccl: %s\n", error.what());
        return 1;
    }
    return 0;
}

double slowest(void *self, double value)
{
    double result = -1;

    ccl::allreduce(&value, &result, 1, ccl::reduction::max,
                   *static_cast<const engine *>(self)->comm)
        .wait();
    return result;
}

float *memory(void *self, const char *, int which, size_t bytes)
{
    const engine *c = static_cast<const engine *>(self);

    return bytes > c->bytes ? nullptr : c->memory[which];
}

/* Of rank 0, which writes it to a file, for all. */
std::shared_ptr<ccl::kvs> find_store(int rank, const std::string &path)
{
    ccl::kvs::address_type address;
    FILE *file = nullptr;

    if (rank == 0) {
        const std::string unnamed = path + ".new";
        auto store = ccl::create_main_kvs();

        address = store->get_address();
        file = fopen(unnamed.c_str(), "wb");
        if (file == nullptr || fwrite(address.data(), address.size(), 1, file) != 1 ||
            fclose(file) != 0 || rename(unnamed.c_str(), path.c_str()) != 0)
            return nullptr;
        return store;
    }
    while ((file = fopen(path.c_str(), "rb")) == nullptr)
        (void)usleep(10000);
    if (fread(address.data(), address.size(), 1, file) != 1)
        return nullptr;
    (void)fclose(file);
    return ccl::create_kvs(address);
}

} // namespace

int main(int argc, char **argv)
{
    const char *rank = getenv("PMI_RANK");
    const char *size = getenv("PMI_SIZE");
    engine c = {};
    loop_engine e = {&c, run, slowest, memory, 0, 0};

    if (argc != 4 || rank == nullptr || size == nullptr)
        return 2;
    e.rank = std::stoi(rank);
    e.size = std::stoi(size);
    c.bytes = std::stoull(argv[3]);
    loop_bind(e.rank, e.size);
    c.memory[0] = loop_user_memory(c.bytes);
    c.memory[1] = loop_user_memory(c.bytes);
    try {
        ccl::init();
        auto store = find_store(e.rank, std::string(argv[1]) + "/" + argv[2] + ".store");

        if (store == nullptr)
            return 1;
        c.comm =
            std::make_unique<ccl::communicator>(ccl::create_communicator(e.size, e.rank, store));
    } catch (const std::exception &error) {
        fprintf(stderr, "collectives_ccl: %s\n", error.what());
        return 1;
    }
    return loop_serve(&e, argv[1], argv[2]);
}
