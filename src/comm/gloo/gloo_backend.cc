/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/gloo/gloo_backend.h"

#include <gloo/rendezvous/store.h>

#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace
{

constexpr int connect_ms = 60000;    // for the members of a group to come
constexpr int never_ms = 1000000000; // the engine watches over how long operations take
constexpr int end_ms = 500;          // for the threads of a group that broke
constexpr int sleep_ms = 100;        // a wake that another sleeper saw first costs this at most

/* Without the place in Gloo's sources that stands in front. */
std::string words_of(const std::exception &e)
{
    const std::string all = e.what();
    const size_t place = all.compare(0, 1, "[") == 0 ? all.find("] ") : std::string::npos;

    return "Gloo: " + (place == std::string::npos ? all : all.substr(place + 2));
}

// --- what connects a group ---

/* Gloo's store is the job's own; each group has a corner of it. */
class job_store : public gloo::rendezvous::Store
{
  public:
    job_store(const comm_host *h, uint32_t group)
        : host(h), corner("gloo/" + std::to_string(group) + "/")
    {
    }

    void set(const std::string &key, const std::vector<char> &value) override
    {
        if (host->publish(host->self, (corner + key).c_str(), value.data(), value.size()) != LS_OK)
            throw std::runtime_error("the job's store failed");
    }

    std::vector<char> get(const std::string &key) override
    {
        void *value = nullptr;
        size_t bytes = 0;

        if (host->lookup(host->self, (corner + key).c_str(), connect_ms, &value, &bytes) != LS_OK)
            throw std::runtime_error("a rank of the group has not come");
        const std::vector<char> copy(static_cast<char *>(value),
                                     static_cast<char *>(value) + bytes);
        host->free(value);
        return copy;
    }

    void wait(const std::vector<std::string> &keys) override
    {
        for (const std::string &key : keys)
            (void)get(key);
    }

    void wait(const std::vector<std::string> &keys, const std::chrono::milliseconds &) override
    {
        wait(keys);
    }

  private:
    const comm_host *host;
    const std::string corner;
};

/* The interface that was chosen, else the address where this rank expects the others, else this host alone. */
gloo::transport::tcp::attr choose_address(const comm_boot *boot)
{
    const char *name =
        getenv("GLOO_SOCKET_IFNAME"); // NOLINT(concurrency-mt-unsafe): nobody sets it
    const boot_record *own = &boot->records[boot->rank];
    char host[INET6_ADDRSTRLEN] = "127.0.0.1";
    gloo::transport::tcp::attr attr;

    if (name != nullptr && *name != '\0') {
        attr.iface = std::string(name).substr(0, strcspn(name, ","));
        return attr;
    }
    if (own->n_addresses > 0) {
        const sockaddr_storage *at = &own->addresses[0].socket;

        if (at->ss_family == AF_INET)
            (void)inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in *>(at)->sin_addr, host,
                            sizeof(host));
        else
            (void)inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6 *>(at)->sin6_addr, host,
                            sizeof(host));
    }
    attr.hostname = host;
    return attr;
}

// --- threads ---

void notify(const backend_state *s)
{
    const uint64_t one = 1;

    (void)!write(s->wake_fd, &one, sizeof(one)); // full means awake already
}

/* The end of an operation whose group broke is nobody's any more. */
void report(backend_group *g, const gloo_end &end)
{
    std::lock_guard<std::mutex> lock(g->mu);

    if (g->is_ending)
        return;
    g->under_way.erase(std::find(g->under_way.begin(), g->under_way.end(), end.work));
    g->ended.push_back(end);
    notify(g->state);
}

void attempt(backend_group *g, backend_work *work, const std::function<gloo_end()> &run)
{
    gloo_end end;

    try {
        end = run();
    } catch (const std::bad_alloc &) {
        end.status = LS_ENOMEM;
        end.text = "no memory for an operation";
    } catch (const std::exception &e) {
        end.status = LS_EPEER;
        end.text = words_of(e);
    }
    end.work = work;
    report(g, end);
}

void serve(backend_group *g, gloo_worker *w)
{
    std::unique_lock<std::mutex> lock(g->mu);

    (void)pthread_setname_np(pthread_self(), "ls-gloo");
    while (!g->is_ending) {
        if (w->tasks.empty()) {
            w->is_back = true;
            g->changed.wait(lock);
            continue;
        }
        const std::function<void()> task = std::move(w->tasks.front());

        w->tasks.pop_front();
        lock.unlock();
        task();
        lock.lock();
    }
    w->is_back = true;
    g->changed.notify_all();
}

/* Under g->mu. */
void give(backend_group *g, gloo_worker *w, backend_work *work, std::function<gloo_end()> run)
{
    w->tasks.emplace_back([g, work, run = std::move(run)] { attempt(g, work, run); });
    w->is_back = false;
    if (!w->thread.joinable())
        w->thread = std::thread(serve, g, w);
    g->under_way.push_back(work);
    g->changed.notify_all();
}

/* A thread that nobody uses, a new one if there is none. Under g->mu. */
gloo_worker *find_messenger(backend_group *g)
{
    for (gloo_worker &w : g->messengers) {
        if (w.is_back)
            return &w;
    }
    g->messengers.emplace_back();
    return &g->messengers.back();
}

std::vector<gloo_worker *> all_workers(backend_group *g)
{
    std::vector<gloo_worker *> all = {&g->collectives};

    for (gloo_worker &w : g->messengers)
        all.push_back(&w);
    return all;
}

/* Ends all waits: of connections by Gloo's own way when a wait takes too long, of what it then forgets by hand. */
void end_waits(backend_group *g)
{
    for (const std::unique_ptr<gloo_message> &m : g->messages)
        m->give_up();
    if (g->waits_on[0] != nullptr)
        g->waits_on[0]->abortWaitRecv();
    if (g->waits_on[1] != nullptr)
        g->waits_on[1]->abortWaitSend();
    try {
        const gloo_buffer late = g->context->createUnboundBuffer(nullptr, 0);

        late->waitRecv(nullptr, std::chrono::milliseconds(0));
    } catch (const std::exception &) {
        return; // as it should
    }
}

/* False: a thread waits inside Gloo for a message that had begun, and will until the process ends. */
bool end_workers(backend_group *g, bool has_broken)
{
    std::unique_lock<std::mutex> lock(g->mu);
    const std::vector<gloo_worker *> workers = all_workers(g);
    const auto are_back = [&workers] {
        return std::all_of(workers.begin(), workers.end(),
                           [](const gloo_worker *w) { return w->is_back; });
    };

    g->is_ending = true;
    g->changed.notify_all();
    if (has_broken)
        end_waits(g);
    const bool all_back = g->changed.wait_for(lock, std::chrono::milliseconds(end_ms), are_back);
    lock.unlock();
    for (gloo_worker *w : workers) {
        if (!w->thread.joinable())
            continue;
        if (w->is_back)
            w->thread.join();
        else
            w->thread.detach();
    }
    return all_back;
}

// --- life ---

int gloo_probe(const backend_need *need)
{
    if (strcmp(need->transport, "shm") != 0)
        return 2;
    (void)comm_host_fail(need->host, LS_EUNSUPPORTED,
                         "Gloo has no shared memory: transport tcp or auto");
    return 0;
}

void close_listeners(const comm_boot *boot)
{
    if (boot->local_fd >= 0)
        close(boot->local_fd);
    if (boot->listen_fd >= 0)
        close(boot->listen_fd);
}

ls_status gloo_open(const comm_boot *boot, const comm_host *host, backend_state **out)
{
    auto s = std::make_unique<backend_state>();

    close_listeners(boot);
    if (boot->security != NET_AUTH)
        return comm_host_fail(
            host, LS_EUNSUPPORTED,
            "Gloo's connections are not protected, but LOCKSTEP_SECURITY asks for it");
    s->host = host;
    s->control_fd = boot->control_fd;
    try {
        s->device = gloo::transport::tcp::CreateDevice(choose_address(boot));
    } catch (const std::exception &e) {
        return comm_host_fail(host, LS_ESYSTEM, "%s", words_of(e).c_str());
    }
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd < 0)
        return comm_host_fail(host, LS_ESYSTEM, "eventfd: error %d", errno);
    *out = s.release();
    return LS_OK;
}

void gloo_close(backend_state *s, int64_t timeout_ms)
{
    LS_UNUSED(timeout_ms); // what was sent is the kernel's, which delivers it
    s->device.reset();
    close(s->wake_fd);
    delete s;
}

ls_status gloo_open_group(backend_state *s, const group_info *info, backend_group **out)
{
    auto g = std::make_unique<backend_group>();

    g->state = s;
    g->info = info;
    try {
        job_store store(s->host, info->id);

        g->context = std::make_shared<gloo::rendezvous::Context>(info->rank, info->size);
        g->context->setTimeout(std::chrono::milliseconds(connect_ms));
        g->context->connectFullMesh(store, s->device);
        g->context->setTimeout(std::chrono::milliseconds(never_ms));
    } catch (const std::exception &e) {
        return comm_host_fail(s->host, LS_EPEER, "a group of %d ranks: %s", info->size,
                              words_of(e).c_str());
    }
    s->groups.push_back(g.get());
    *out = g.release();
    return LS_OK;
}

void gloo_close_group(backend_group *g)
{
    g->state->groups.remove(g);
    if (!g->is_ending)
        (void)end_workers(g, false);
    if (!g->is_stuck)
        delete g;
}

const char *gloo_transport_name(backend_group *g)
{
    LS_UNUSED(g);
    return "tcp";
}

// --- works ---

gloo_end wait_for_message(backend_group *g, gloo_message *m)
{
    const auto forget = [g, m] {
        std::lock_guard<std::mutex> lock(g->mu);

        if (!g->is_ending) // else whoever ends the group looks at it
            g->messages.remove_if(
                [m](const std::unique_ptr<gloo_message> &each) { return each.get() == m; });
    };

    try {
        const gloo_end end = m->wait();

        forget();
        return end;
    } catch (...) {
        forget();
        throw;
    }
}

void start_message(backend_group *g, backend_work *work)
{
    auto m = std::make_unique<gloo_message>(g, work);
    gloo_message *borrowed = m.get();
    std::lock_guard<std::mutex> lock(g->mu);

    g->messages.push_back(std::move(m));
    give(g, find_messenger(g), work, [g, borrowed] { return wait_for_message(g, borrowed); });
}

void start_collective(backend_group *g, backend_work *work)
{
    std::lock_guard<std::mutex> lock(g->mu);

    give(g, &g->collectives, work, [g, op = work->op] {
        gloo_call_run(g, op);
        return gloo_end{};
    });
}

void gloo_start(backend_group *g, backend_work *work)
{
    const comm_host *host = g->state->host;

    try {
        if (work->op.kind == COLL_SEND || work->op.kind == COLL_RECV)
            start_message(g, work);
        else
            start_collective(g, work);
    } catch (const std::exception &e) {
        host->done(host->self, work, LS_EPEER, words_of(e).c_str());
    }
}

/* The operation that ended first. */
bool take_ended(backend_group *g, gloo_end *out)
{
    std::lock_guard<std::mutex> lock(g->mu);

    if (g->ended.empty())
        return false;
    *out = std::move(g->ended.front());
    g->ended.pop_front();
    return true;
}

bool gloo_progress(backend_state *s)
{
    bool moved = false;
    uint64_t wakes;
    gloo_end end;

    if (read(s->wake_fd, &wakes, sizeof(wakes)) < 0)
        return false;
    for (backend_group *g : s->groups) {
        while (take_ended(g, &end)) {
            moved = true;
            end.work->source = end.source;
            s->host->done(s->host->self, end.work, end.status, end.text.c_str());
        }
    }
    return moved;
}

void gloo_wait(backend_state *s, int timeout_ms)
{
    pollfd fds[2] = {{s->wake_fd, POLLIN, 0}, {s->control_fd, POLLIN, 0}};

    (void)poll(fds, 2, timeout_ms < sleep_ms ? timeout_ms : sleep_ms);
}

void gloo_wake(backend_state *s)
{
    notify(s);
}

/* Nothing of the group touches the caller's memory when this returns: what is stuck only waits, on closed connections. */
void gloo_abort_group(backend_group *g, ls_status status, const char *text)
{
    const comm_host *host = g->state->host;
    std::vector<backend_work *> works;

    {
        std::lock_guard<std::mutex> lock(g->mu);

        works.assign(g->under_way.begin(), g->under_way.end());
        for (const gloo_end &end : g->ended)
            works.push_back(end.work);
    }
    if (works.empty())
        return;
    g->is_stuck = !end_workers(g, true);
    for (backend_work *work : works)
        host->done(host->self, work, status, text);
}

backend_ops make_ops()
{
    backend_ops ops{};

    ops.abi = BACKEND_ABI;
    ops.name = "gloo";
    ops.compares_calls = true;
    ops.probe = gloo_probe;
    ops.open = gloo_open;
    ops.open_group = gloo_open_group;
    ops.close_group = gloo_close_group;
    ops.start = gloo_start;
    ops.progress = gloo_progress;
    ops.wait = gloo_wait;
    ops.wake = gloo_wake;
    ops.abort_group = gloo_abort_group;
    ops.transport = gloo_transport_name;
    ops.close = gloo_close;
    return ops;
}

} // namespace

extern "C" __attribute__((visibility("default"))) const backend_ops lockstep_backend = make_ops();
