/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adapter_condition.h - a condition variable whose waits follow the monotonic clock. Those of
 * std::condition_variable do so only with newer versions of libstdc++ and glibc than PyTorch needs.
 */
#ifndef LOCKSTEP_TORCH_ADAPTER_CONDITION_H
#define LOCKSTEP_TORCH_ADAPTER_CONDITION_H

#include <chrono>
#include <mutex>

#include <pthread.h>

namespace lockstep_torch
{

class condition
{
  public:
    using clock = std::chrono::steady_clock; // CLOCK_MONOTONIC

    condition()
    {
        pthread_condattr_t attributes;

        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&variable, &attributes);
        pthread_condattr_destroy(&attributes);
    }

    condition(const condition &) = delete;
    condition &operator=(const condition &) = delete;

    ~condition()
    {
        pthread_cond_destroy(&variable);
    }

    void notify_all()
    {
        pthread_cond_broadcast(&variable);
    }

    void wait(std::unique_lock<std::mutex> &guard)
    {
        pthread_cond_wait(&variable, guard.mutex()->native_handle());
    }

    /* False when the time is over. */
    bool wait_until(std::unique_lock<std::mutex> &guard, clock::time_point end)
    {
        const auto ns = std::chrono::nanoseconds(end.time_since_epoch()).count();
        const timespec at = {static_cast<time_t>(ns / 1000000000),
                             static_cast<long>(ns % 1000000000)};

        return pthread_cond_timedwait(&variable, guard.mutex()->native_handle(), &at) == 0;
    }

  private:
    pthread_cond_t variable;
};

} // namespace lockstep_torch

#endif
