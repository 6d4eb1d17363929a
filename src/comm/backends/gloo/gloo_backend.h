/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gloo_backend.h - Gloo's collectives over its TCP transport as a backend. This is the only folder
 * in C++, because Gloo is C++.
 *
 *   gloo_backend.cc  opening and closing, groups and their connections, threads
 *   gloo_calls.cc    one operation
 */
#ifndef LS_COMM_BACKENDS_GLOO_GLOO_BACKEND_H
#define LS_COMM_BACKENDS_GLOO_GLOO_BACKEND_H

extern "C" {
#include "comm/backends/external/compose.h"
#include "comm/backends/external/external.h"
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

/* Runs an operation to its end and throws Gloo's exceptions; returns the sender of a receive. */
using gloo_run = std::function<int()>;

/* The peer's message differs from the receive. */
class gloo_mismatch : public std::runtime_error
{
    using std::runtime_error::runtime_error;
};

struct backend_state {
    const comm_host *host = nullptr;
    external_waker waker{};
    std::shared_ptr<gloo::transport::Device> device;
    std::list<backend_group *> groups;
};

/* One operation under way, and its result. */
struct gloo_work {
    backend_work *work = nullptr;
    bool has_ended = false;
    ls_status status = LS_OK;
    std::string text;
    int source = -1;
};

/*
 * A thread "ls-gloo", which runs its tasks in order: the first thread of a group runs the
 * collectives, each other one a message at a time, so that no message waits for another operation.
 */
struct gloo_worker {
    std::thread thread;
    std::deque<std::function<void()>> tasks;
    bool is_idle = true; // waits for a task, or has ended
};

struct backend_group {
    backend_state *state = nullptr;
    const group_info *info = nullptr;
    std::shared_ptr<gloo::rendezvous::Context> context;
    bool is_stuck = false; // a thread remains inside Gloo

    std::mutex mu; // guards the following members; leaf
    std::condition_variable changed;
    bool is_ending = false;
    std::set<gloo::transport::UnboundBuffer *> transfers; // in which threads may wait
    std::list<gloo_work> works;
    std::list<gloo_worker> workers = std::list<gloo_worker>(1);
};

/* Runs one collective to its end. */
int gloo_call_run(backend_group *g, const coll &op);
/* Starts a send or receive without blocking; returns the function that waits for its end. */
gloo_run gloo_call_message(backend_group *g, const coll &op);

#endif
