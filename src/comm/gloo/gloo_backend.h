/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gloo_backend.h - Gloo's collectives over its TCP transport behind our contract. The one folder in
 * C++, as Gloo is.
 *
 *   gloo_backend.cc  life, groups, what connects them, and the threads in which Gloo's calls block
 *   gloo_calls.cc    one operation
 */
#ifndef LS_GLOO_BACKEND_H
#define LS_GLOO_BACKEND_H

extern "C" {
#include "comm/compose.h"
#include "comm/foreign.h"
}

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

/* What runs an operation to its end and throws what Gloo throws; of a receive it gives the rank
 * that sent. */
using gloo_run = std::function<int()>;

/* The peer's message is another than this rank expects. */
class gloo_mismatch : public std::runtime_error
{
    using std::runtime_error::runtime_error;
};

struct backend_state {
    const comm_host *host = nullptr;
    foreign_waker waker{};
    std::shared_ptr<gloo::transport::Device> device;
    std::list<backend_group *> groups;
};

/* One operation under way, and how it has ended. */
struct gloo_work {
    backend_work *work = nullptr;
    bool has_ended = false;
    ls_status status = LS_OK;
    std::string text;
    int source = -1;
};

/*
 * A thread "ls-gloo", which does what it is given, one after the other: a group's first one its
 * collectives, each other one a message at a time, so that none waits for another.
 */
struct gloo_worker {
    std::thread thread;
    std::deque<std::function<void()>> tasks;
    bool is_back = true; // waits for a task, or has ended
};

struct backend_group {
    backend_state *state = nullptr;
    const group_info *info = nullptr;
    std::shared_ptr<gloo::rendezvous::Context> context;
    bool is_stuck = false; // a thread of it stays inside Gloo

    std::mutex mu; // guards what follows; leaf
    std::condition_variable changed;
    bool is_ending = false;
    std::set<gloo::transport::UnboundBuffer *> transfers; // of ours, in which threads may wait
    std::list<gloo_work> works;
    std::list<gloo_worker> workers = std::list<gloo_worker>(1);
};

/* Runs one collective to its end. */
int gloo_call_run(backend_group *g, const coll &op);
/* Starts a send or receive without blocking; gives what waits for its end. */
gloo_run gloo_call_message(backend_group *g, const coll &op);

#endif
