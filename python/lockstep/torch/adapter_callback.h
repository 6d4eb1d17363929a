/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adapter_callback.h - callbacks of futures that start further operations, and threads that wait at
 * the end of the interpreter.
 *
 * PyTorch calls a callback at once where its future is complete already. In a chain in which each
 * callback starts an operation and gives its future the next callback, each would run inside the
 * one before. So from a certain depth on a future is completed after the outermost callback has
 * returned, or, where that one waits for the future itself, by a thread that sleeps meanwhile.
 */
#ifndef LOCKSTEP_TORCH_ADAPTER_CALLBACK_H
#define LOCKSTEP_TORCH_ADAPTER_CALLBACK_H

#include "adapter_condition.h"
#include "adapter_python.h"

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep_torch
{

class callbacks
{
  public:
    using action = std::function<void()>;

    /* Whether this thread is in a callback that the library has called. */
    static bool is_inside()
    {
        return outermost != nullptr;
    }

    /* Whether callbacks are nested so far in this thread that no further one may be. */
    static bool is_deep()
    {
        const char here = 0;
        const char *&base = is_inside() ? outermost : shallowest;

        if (base == nullptr || &here > base)
            base = &here;
        return base - &here > NESTED_BYTES;
    }

    /* Calls it as the outermost callback, and what it defers. */
    static void run(const action &callback)
    {
        const char here = 0;
        const char *const before = outermost;

        if (before == nullptr)
            outermost = &here;
        callback();
        if (before == nullptr)
            all().call_those_until(clock::time_point::max());
        outermost = before;
    }

    /* Calls it after the outermost callback, or by another thread, outside of one at once. */
    static void defer(action later)
    {
        const auto pause = is_inside() ? PAUSE : std::chrono::milliseconds(0);
        callbacks &own = all();
        const std::lock_guard<std::mutex> guard(own.lock);

        own.deferred.emplace_back(clock::now() + pause, std::move(later));
        if (own.n_idle == 0) { // the others may wait for what is deferred
            own.n_idle++;
            std::thread([&own] { own.call_deferred(); }).detach();
        }
        own.changed.notify_all();
    }

    /* The interpreter ends, and with it the groups. */
    static void begin_end()
    {
        const std::lock_guard<std::mutex> guard(all().lock);

        all().is_over = true;
    }

    /* The groups have ended: waits until nothing is called any more. */
    static void finish_end()
    {
        callbacks &own = all();
        const auto until = clock::now() + END_MOST;
        std::unique_lock<std::mutex> guard(own.lock);

        while ((own.n_calling > 0 || !own.deferred.empty()) && own.changed.wait_until(guard, until))
            continue;
    }

    /* A daemon thread of Python may not return to the interpreter when that has ended: Python would
     * end the thread, and with it the process, because C++ does not expect that. The main thread
     * and callbacks, for which the end waits, return. */
    static void stay_if_over()
    {
        bool stays;
        {
            const std::lock_guard<std::mutex> guard(all().lock);

            stays = all().is_over && !is_main_thread() && !is_inside();
        }
        while (stays)
            std::this_thread::sleep_for(std::chrono::hours(24));
    }

    /* Python runs signal handlers in its main thread. The others need not wait for the interpreter,
     * which may be ending. */
    static void run_signal_handlers()
    {
        if (is_main_thread())
            python::here().run_signal_handlers();
    }

  private:
    using clock = condition::clock;

    static constexpr ptrdiff_t NESTED_BYTES = 65536; // of the stack
    static constexpr std::chrono::milliseconds PAUSE{20};
    static constexpr std::chrono::seconds END_MOST{5};

    static bool is_main_thread()
    {
        return syscall(SYS_gettid) == getpid();
    }

    /* Not freed: its thread may run until the end of the process. */
    static callbacks &all()
    {
        static auto *const made = new callbacks;

        return *made;
    }

    void call_those_until(clock::time_point due)
    {
        std::unique_lock<std::mutex> guard(lock);

        while (!deferred.empty() && deferred.front().first <= due) {
            {
                const action next = std::move(deferred.front().second);

                deferred.pop_front();
                guard.unlock();
                next();
            } // what it owns may need the interpreter: it is freed without the lock
            guard.lock();
        }
    }

    /* A thread: what an outermost callback has not called soon. One idle thread is left. */
    void call_deferred()
    {
        std::unique_lock<std::mutex> guard(lock);

        do {
            while (deferred.empty() || clock::now() < deferred.front().first) {
                if (deferred.empty())
                    changed.wait(guard);
                else
                    changed.wait_until(guard, clock::now() + PAUSE);
            }
            n_idle--;
            n_calling++;
            guard.unlock();
            run([this] { call_those_until(clock::now()); });
            guard.lock();
            n_calling--;
            changed.notify_all();
        } while (n_idle++ == 0);
        n_idle--;
    }

    static inline thread_local const char *outermost = nullptr;  // of the stack, inside
    static inline thread_local const char *shallowest = nullptr; // of the stack, otherwise

    std::mutex lock;
    condition changed;
    std::deque<std::pair<clock::time_point, action>> deferred;
    int n_idle = 0;    // threads
    int n_calling = 0; // of them
    bool is_over = false;
};

/* While this thread waits, others can run Python: PyTorch calls some functions with the GIL. */
class unlocked
{
  public:
    unlocked() : state(py.knows_this_thread() && py.has_lock() != 0 ? py.unlock() : nullptr)
    {
    }

    unlocked(const unlocked &) = delete;
    unlocked &operator=(const unlocked &) = delete;

    ~unlocked()
    {
        if (state == nullptr)
            return;
        callbacks::stay_if_over();
        py.lock(state);
    }

  private:
    const python &py = python::here();
    void *const state;
};

} // namespace lockstep_torch

#endif
