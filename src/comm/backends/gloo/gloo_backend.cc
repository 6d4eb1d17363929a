/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gloo_backend.cc - opens and closes the Gloo backend and its groups, and runs operations in
 * threads, because Gloo's calls block; the engine calls it through lockstep_backend. A group that
 * has ended never touches the caller's memory.
 */
#include "comm/backends/gloo/gloo_backend.h"

#include <gloo/rendezvous/store.h>

#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <netdb.h>
#include <pthread.h>

namespace
{

constexpr int connect_ms = 60000;    // for the members of a group to join
constexpr int never_ms = 1000000000; // the engine checks timeouts
constexpr int end_ms = 500;          // for the threads of a broken group
constexpr int sleep_ms = 100;        // bounds the delay of a wake that another thread has taken

/* The status and text of the current exception, without the source position of Gloo's own. */
ls_status describe_exception(std::string *text)
{
    try {
        throw;
    } catch (const std::bad_alloc &) {
        *text = "no memory for an operation";
        return LS_ENOMEM;
    } catch (const gloo_mismatch &e) {
        *text = e.what();
        return LS_EMISMATCH;
    } catch (const std::exception &e) {
        const std::string all = e.what();
        const size_t prefix = all.compare(0, 1, "[") == 0 ? all.find("] ") : std::string::npos;

        *text = "Gloo: " + (prefix == std::string::npos ? all : all.substr(prefix + 2));
        return LS_EPEER;
    }
}

// --- connecting a group ---

/* Gloo's store is the job's; each group has a key prefix. */
class job_store : public gloo::rendezvous::Store
{
  public:
    job_store(const comm_host *h, uint32_t group)
        : host(h), prefix("gloo/" + std::to_string(group) + "/")
    {
    }

    void set(const std::string &key, const std::vector<char> &value) override
    {
        if (host->publish(host->self, (prefix + key).c_str(), value.data(), value.size()) != LS_OK)
            throw std::runtime_error("the job's store failed");
    }

    std::vector<char> get(const std::string &key) override
    {
        void *value = nullptr;
        size_t bytes = 0;

        if (host->lookup(host->self, (prefix + key).c_str(), connect_ms, &value, &bytes) != LS_OK)
            throw std::runtime_error("a rank of the group has not joined");
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
    const std::string prefix;
};

/* The requested interface, else the address at which this rank listens, else loopback. */
gloo::transport::tcp::attr choose_address(const comm_boot *boot)
{
    const char *name =
        getenv("GLOO_SOCKET_IFNAME"); // NOLINT(concurrency-mt-unsafe): no thread sets it
    const boot_record *own = &boot->records[boot->rank];
    char host[NI_MAXHOST] = "127.0.0.1";
    gloo::transport::tcp::attr attr;

    if (name != nullptr && *name != '\0') {
        attr.iface = std::string(name).substr(0, strcspn(name, ","));
        return attr;
    }
    if (own->n_addresses > 0) {
        const sockaddr_storage *at = &own->addresses[0].socket;

        (void)getnameinfo(reinterpret_cast<const sockaddr *>(at), sizeof(*at), host, sizeof(host),
                          nullptr, 0, NI_NUMERICHOST);
    }
    attr.hostname = host;
    return attr;
}

// --- threads ---

/* Runs an operation. After its group broke, the result is dropped and the record is invalid. */
void attempt(backend_group *g, gloo_work *record, const gloo_run &run)
{
    gloo_work end;

    try {
        end.source = run();
    } catch (...) {
        end.status = describe_exception(&end.text);
    }
    std::lock_guard<std::mutex> lock(g->mu);

    if (g->is_ending)
        return;
    end.work = record->work;
    end.has_ended = true;
    *record = std::move(end);
    external_wake(&g->state->waker);
}

void serve(backend_group *g, gloo_worker *w)
{
    std::unique_lock<std::mutex> lock(g->mu);

    (void)pthread_setname_np(pthread_self(), "ls-gloo");
    while (!g->is_ending) {
        if (w->tasks.empty()) {
            w->is_idle = true;
            g->changed.wait(lock);
            continue;
        }
        {
            const std::function<void()> task = std::move(w->tasks.front());

            w->tasks.pop_front();
            lock.unlock();
            task();
        }
        lock.lock();
    }
    w->is_idle = true;
    g->changed.notify_all();
}

/* For a message an idle thread, or a new one if there is none. Under g->mu. */
gloo_worker *find_worker(backend_group *g, bool is_message)
{
    if (!is_message)
        return &g->workers.front();
    for (auto w = std::next(g->workers.begin()); w != g->workers.end(); ++w) {
        if (w->is_idle)
            return &*w;
    }
    g->workers.emplace_back();
    return &g->workers.back();
}

void enqueue(backend_group *g, backend_work *work, bool is_message, gloo_run run)
{
    std::lock_guard<std::mutex> lock(g->mu);
    gloo_worker *w = find_worker(g, is_message);

    if (!w->thread.joinable())
        w->thread = std::thread(serve, g, w);
    g->works.emplace_back();
    g->works.back().work = work;
    w->tasks.emplace_back(
        [g, record = &g->works.back(), run = std::move(run)] { attempt(g, record, run); });
    w->is_idle = false;
    g->changed.notify_all();
}

/* Ends all waits: aborts each, and makes Gloo close its connections by a wait that times out. */
void end_waits(backend_group *g)
{
    for (gloo::transport::UnboundBuffer *each : g->transfers) {
        each->abortWaitSend();
        each->abortWaitRecv();
    }
    try {
        const auto late = g->context->createUnboundBuffer(nullptr, 0);

        late->waitRecv(nullptr, std::chrono::milliseconds(0));
    } catch (const std::exception &) {
        return; // expected
    }
}

/* False: a thread waits inside Gloo for the rest of a message until the process exits. */
bool end_workers(backend_group *g, bool has_broken)
{
    std::unique_lock<std::mutex> lock(g->mu);
    std::list<std::thread> to_join;
    const auto are_idle = [g] {
        return std::all_of(g->workers.begin(), g->workers.end(),
                           [](const gloo_worker &w) { return w.is_idle; });
    };

    g->is_ending = true;
    g->changed.notify_all();
    if (has_broken)
        end_waits(g);
    const bool all_idle = g->changed.wait_for(lock, std::chrono::milliseconds(end_ms), are_idle);
    for (gloo_worker &w : g->workers) {
        if (w.is_idle)
            to_join.push_back(std::move(w.thread));
        else
            w.thread.detach();
    }
    lock.unlock();
    for (std::thread &thread : to_join) {
        if (thread.joinable())
            thread.join();
    }
    return all_idle;
}

// --- opening and closing ---

int gloo_probe(const backend_need *need)
{
    if (strcmp(need->transport, "shm") != 0)
        return 2;
    (void)comm_host_fail(need->host, LS_EUNSUPPORTED,
                         "Gloo has no shared memory: use transport tcp or auto");
    return 0;
}

ls_status gloo_open(const comm_boot *boot, const comm_host *host, backend_state **out)
{
    auto s = std::make_unique<backend_state>();
    const ls_status st = external_open(boot, host, "Gloo", &s->waker);
    std::string why;

    if (st != LS_OK)
        return st;
    s->host = host;
    try {
        s->device = gloo::transport::tcp::CreateDevice(choose_address(boot));
    } catch (...) {
        external_close(&s->waker);
        (void)describe_exception(&why);
        return comm_host_fail(host, LS_ESYSTEM, "%s", why.c_str());
    }
    *out = s.release();
    return LS_OK;
}

void gloo_close(backend_state *s, int64_t timeout_ms)
{
    LS_UNUSED(timeout_ms); // the kernel delivers what was sent
    s->device.reset();
    external_close(&s->waker);
    delete s;
}

ls_status gloo_open_group(backend_state *s, const group_info *info, backend_group **out)
{
    auto g = std::make_unique<backend_group>();
    std::string why;

    g->state = s;
    g->info = info;
    try {
        job_store store(s->host, info->id);

        g->context = std::make_shared<gloo::rendezvous::Context>(info->rank, info->size);
        g->context->setTimeout(std::chrono::milliseconds(connect_ms));
        g->context->connectFullMesh(store, s->device);
        g->context->setTimeout(std::chrono::milliseconds(never_ms));
    } catch (...) {
        const ls_status st = describe_exception(&why);

        return comm_host_fail(s->host, st, "a group of %d ranks: %s", info->size, why.c_str());
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

void gloo_start(backend_group *g, backend_work *work)
{
    const comm_host *host = g->state->host;
    const bool is_message = coll_is_message(work->op.kind);
    std::string why;

    try {
        if (is_message)
            enqueue(g, work, true, gloo_call_message(g, work->op));
        else
            enqueue(g, work, false, [g, op = work->op] { return gloo_call_run(g, op); });
    } catch (...) {
        const ls_status st = describe_exception(&why);

        host->done(host->self, work, st, why.c_str());
    }
}

bool take_ended(backend_group *g, gloo_work *out)
{
    std::lock_guard<std::mutex> lock(g->mu);
    const auto it = std::find_if(g->works.begin(), g->works.end(),
                                 [](const gloo_work &w) { return w.has_ended; });

    if (it == g->works.end())
        return false;
    *out = std::move(*it);
    g->works.erase(it);
    return true;
}

bool gloo_progress(backend_state *s)
{
    bool moved = false;
    gloo_work end;

    if (!external_drain(&s->waker))
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
    (void)external_wait(&s->waker, int64_t{1000} * std::min(timeout_ms, sleep_ms));
}

void gloo_wake(backend_state *s)
{
    external_wake(&s->waker);
}

/* After this no thread of the group touches the caller's memory: its connections are closed. */
void gloo_abort_group(backend_group *g, ls_status status, const char *text)
{
    const comm_host *host = g->state->host;

    if (g->works.empty()) // only this thread adds and removes
        return;
    g->is_stuck = !end_workers(g, true);
    for (const gloo_work &w : g->works)
        host->done(host->self, w.work, status, text);
    g->works.clear();
}

} // namespace

extern "C" __attribute__((visibility("default"))) const backend_ops lockstep_backend = {
    .abi = BACKEND_ABI,
    .name = "gloo",
    .compares_calls = true,
    .probe = gloo_probe,
    .open = gloo_open,
    .open_group = gloo_open_group,
    .close_group = gloo_close_group,
    .start = gloo_start,
    .progress = gloo_progress,
    .wait = gloo_wait,
    .wake = gloo_wake,
    .abort_group = gloo_abort_group,
    .transport = gloo_transport_name,
    .close = gloo_close,
};
