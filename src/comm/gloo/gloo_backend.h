/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gloo_backend.h - Gloo's collectives over its TCP transport behind our contract. The one folder in C++, as Gloo is.
 *
 *   gloo_backend.cc   life, groups, what connects them, and the threads in which Gloo's calls block
 *   gloo_calls.cc     one collective
 *   gloo_messages.cc  one send or receive
 */
#ifndef LS_GLOO_BACKEND_H
#define LS_GLOO_BACKEND_H

extern "C" {
#include "comm/backend.h"
}

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using gloo_buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

struct backend_state {
    const comm_host *host = nullptr;
    int control_fd = -1;
    int wake_fd = -1;
    std::shared_ptr<gloo::transport::Device> device;
    std::list<backend_group *> groups;
};

/* How one operation has ended. */
struct gloo_end {
    backend_work *work = nullptr;
    ls_status status = LS_OK;
    std::string text;
    int source = -1;
};

/* A thread "ls-gloo", which does what it is given, one after the other. */
struct gloo_worker {
    std::thread thread;
    std::deque<std::function<void()>> tasks;
    bool is_back = true; // waits for a task, or has ended
};

class gloo_message;

struct backend_group {
    backend_state *state = nullptr;
    const group_info *info = nullptr;
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::list<std::unique_ptr<gloo_message>> messages;

    std::mutex mu; // guards what follows; leaf
    std::condition_variable changed;
    gloo_worker collectives;           // in their order
    std::list<gloo_worker> messengers; // one for each message at a time: none waits for another
    std::deque<backend_work *> under_way;
    std::deque<gloo_end> ended;
    gloo::transport::UnboundBuffer *waits_on[2] = {}; // buffers of ours in which a collective waits
    bool is_ending = false;

    bool is_stuck = false; // a thread of it stays inside Gloo
};

/* Runs one collective to its end; throws what Gloo throws. */
void gloo_call_run(backend_group *g, const coll &op);

/* One send or receive under way. The constructor starts it and does not block. */
class gloo_message
{
  public:
    gloo_message(backend_group *g, backend_work *work);
    /* Waits for its end; throws what Gloo throws. */
    gloo_end wait();
    /* Ends wait() in another thread. */
    void give_up();

  private:
    struct header {
        uint64_t count;
        uint64_t sequence;
        uint64_t dtype;
    };
    void carry(int peer, uint64_t sequence, void *at);
    std::string misfit(int source) const;
    void wait_on(gloo::transport::UnboundBuffer *buffer, int *source);

    backend_group *const group;
    backend_work *const work;
    const coll op;
    header head{};
    gloo_buffer head_buffer;
    std::mutex mu;           // guards what follows
    gloo_buffer body_buffer; // NULL: not asked for yet, or nothing to carry
    bool is_aborted = false;
};

#endif
