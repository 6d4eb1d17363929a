/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adapter_work.h - an operation of the PyTorch backend from its start to its end, and its
 * c10d::Work.
 *
 * Work::wait() drives the operation in the waiting thread. getFuture(), and dropping the work, give
 * it to ls_work_then(), whose function completes the future without a waiting thread.
 */
#ifndef LOCKSTEP_TORCH_ADAPTER_WORK_H
#define LOCKSTEP_TORCH_ADAPTER_WORK_H

#include "adapter_callback.h"
#include "adapter_memory.h"

#include <lockstep/comm.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace lockstep_torch
{

// --- errors ---

/* The words of a timeout are those that programs for PyTorch search for. */
inline std::exception_ptr failure(ls_status status, const std::string &text)
{
    const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
    const char *prefix = status == LS_EDEADLINE ? "lockstep: Timed out : " : "lockstep: ";

    return std::make_exception_ptr(c10::DistBackendError(here, prefix + text));
}

inline void must(ls_status status)
{
    if (status != LS_OK)
        std::rethrow_exception(failure(status, ls_last_error()));
}

// --- operations ---

/* An operation from its start to its end: its parts in liblockstep, the tensors that they use, and
 * the copies that remain at the end. Owned by its work and by the functions of ls_work_then(). */
class operation : public std::enable_shared_from_this<operation>
{
  public:
    /* wait_now: the thread that starts it waits for it at once. */
    operation(c10::IValue value, std::chrono::milliseconds limit, bool wait_now)
        : result(std::move(value)), timeout(limit), is_waited(wait_now)
    {
    }

    operation(const operation &) = delete;
    operation &operator=(const operation &) = delete;

    /* Only a start that threw leaves parts behind; they may still use the tensors. */
    ~operation()
    {
        for (ls_work *part : parts) {
            const ls_status ignored = ls_work_wait(part);

            static_cast<void>(ignored);
        }
    }

    // --- by the thread that starts it ---

    void keep(const Tensor &t)
    {
        used.push_back(t);
    }

    /* `t`, or a plain copy of it, for the time of the operation. */
    Tensor source_of(const Tensor &t)
    {
        check_tensor(t);
        keep(plain(t, is_apart));
        return used.back();
    }

    /* Memory for a result that is copied to `t` at the end, where `t` itself is not plain. */
    Tensor result_of(const Tensor &t)
    {
        check_tensor(t);
        keep(is_plain(t) && !is_apart ? t : at::empty(t.sizes(), t.options()));
        copy_at_end(t, used.back());
        return used.back();
    }

    void copy_at_end(const Tensor &to, const Tensor &from)
    {
        if (!to.is_same(from))
            copies.emplace_back(to, from);
    }

    /* Toward zero; before the copies. */
    void divide_at_end(const Tensor &t, int64_t by)
    {
        quotients.push_back(t);
        divisor = by;
    }

    void add_part(ls_work *part)
    {
        parts.push_back(part);
    }

    /* As wait(), for an operation without a work. */
    void wait_at_once()
    {
        try {
            wait(kNoTimeout);
        } catch (...) {
            const error_aside aside;

            release();
            throw;
        }
    }

    // --- by any thread ---

    /* Throws the operation's failure. A timeout ends the group, since one rank cannot undo an
     * operation alone; after an exception of a signal handler the operation goes on. */
    void wait(std::chrono::milliseconds timeout)
    {
        try {
            wait_for_end(timeout);
        } catch (const std::exception &) {
            callbacks::stay_if_over();
            throw;
        }
        callbacks::stay_if_over();
    }

    /* Whether this thread ends the parts from now on. */
    bool claim()
    {
        const std::lock_guard<std::mutex> guard(lock);

        if (state != STARTED)
            return false;
        state = CLAIMED;
        return true;
    }

    bool has_ended()
    {
        if (is_over())
            end_parts();
        const std::lock_guard<std::mutex> guard(lock);

        return state == DONE;
    }

    /* In a callback of another future, which may wait for this one on the thread that progresses
     * the operations, this ends the operation first. */
    c10::intrusive_ptr<c10::ivalue::Future> future()
    {
        c10::intrusive_ptr<c10::ivalue::Future> made;

        const bool ends_here = callbacks::is_inside() ? claim() : callbacks::is_deep() && is_over();

        if (ends_here) {
            const unlocked other_threads_run;

            end_parts();
        }
        {
            const std::lock_guard<std::mutex> guard(lock);

            if (!promise)
                promise = c10::make_intrusive<c10::ivalue::Future>(result.type());
            made = promise;
            if (state == CLAIMED)
                return made;
        }
        release();
        if (ends_here && callbacks::is_deep())
            callbacks::defer([self = shared_from_this()] { self->resolve(); });
        else
            resolve();
        return made;
    }

    /* Nothing waits for the operation: its end is noted by the thread that sees it. */
    void release()
    {
        {
            const std::lock_guard<std::mutex> guard(lock);

            if (state != STARTED)
                return;
            state = CLAIMED;
            n_left = parts.size();
        }
        if (parts.empty())
            finish();
        else
            call_at_end();
    }

    std::exception_ptr exception()
    {
        const std::lock_guard<std::mutex> guard(lock);

        return error;
    }

    c10::IValue result;
    const std::chrono::milliseconds timeout;
    const bool is_waited;
    bool is_apart = false;        // tensors share memory: all are read before a result is written
    std::function<void()> at_end; // PyTorch's profiler
    std::atomic<int> from_rank = -1; // of a received message

  private:
    enum state { STARTED, CLAIMED, DONE }; // CLAIMED: one thread has the parts

    /* Whether all parts have ended; then this thread ends them from now on. */
    bool is_over()
    {
        const std::lock_guard<std::mutex> guard(lock);

        if (state != STARTED)
            return false;
        for (ls_work *part : parts)
            if (ls_work_test(part) == 0)
                return false;
        state = CLAIMED;
        return true;
    }

    void wait_for_end(std::chrono::milliseconds timeout)
    {
        const std::chrono::milliseconds longest = std::chrono::hours(24 * 365 * 100);
        // PyTorch's conversion of a very long time gives a negative one.
        const auto limit = timeout <= kNoTimeout ? longest : std::min(timeout, longest);
        const auto end = condition::clock::now() + limit;
        std::unique_lock<std::mutex> guard(lock);

        while (state != DONE) {
            if (state == STARTED) {
                state = CLAIMED;
                guard.unlock();
                wait_for_parts(end);
                end_parts();
                guard.lock();
                continue;
            }
            const auto now = condition::clock::now();

            if (now >= end + FAILURE_MOST)
                std::rethrow_exception(failure(LS_EDEADLINE, "the operation has not ended"));
            if (now >= end)
                end_handed();
            const auto slice = now + WAIT_SLICE;

            if (changed.wait_until(guard, now < end ? std::min(end, slice) : slice) ||
                state == DONE)
                continue;
            guard.unlock();
            callbacks::run_signal_handlers();
            guard.lock();
        }
        if (error)
            std::rethrow_exception(error);
    }

    static constexpr std::chrono::milliseconds WAIT_SLICE{200}; // between looks at signals
    static constexpr std::chrono::seconds FAILURE_MOST{10};     // from a timeout to its failure

    static int64_t slice_until(condition::clock::time_point end)
    {
        const std::chrono::milliseconds one(1);
        const auto left =
            std::chrono::ceil<std::chrono::milliseconds>(end - condition::clock::now());

        return std::clamp(left, one, std::chrono::milliseconds(WAIT_SLICE)).count();
    }

    /* Waits without ending the parts, which can be claimed again after an exception. At `end` they
     * time out, if they have not done so before. */
    void wait_for_parts(condition::clock::time_point end)
    {
        for (ls_work *part : parts) {
            while (ls_work_wait_for(part, slice_until(end)) == LS_ETIMEOUT &&
                   ls_work_test(part) == 0) {
                if (condition::clock::now() >= end)
                    ls_work_set_timeout(part, 0);
                try {
                    callbacks::run_signal_handlers();
                } catch (...) {
                    const error_aside aside;

                    unclaim();
                    throw;
                }
            }
        }
    }

    void unclaim()
    {
        bool has_future;
        {
            const std::lock_guard<std::mutex> guard(lock);

            state = STARTED;
            changed.notify_all();
            has_future = promise.defined();
        }
        if (has_future)
            release();
    }

    void end_parts()
    {
        for (ls_work *part : parts) {
            // The sender is known from the end of the operation to ls_work_wait().
            const ls_status ended = ls_work_wait_for(part, -1);
            const int from = ls_work_source(part);
            const ls_status status = ls_work_wait(part);

            static_cast<void>(ended);
            note_end(status, ls_last_error(), from);
        }
        parts.clear();
        finish();
    }

    /* A part of ls_work_then(). */
    struct handed_part {
        std::shared_ptr<operation> of;
        ls_work *part;
    };

    void call_at_end()
    {
        std::vector<ls_work *> all;
        {
            const std::lock_guard<std::mutex> guard(lock);

            all.swap(parts);
            handed = all;
        }
        for (ls_work *part : all) {
            auto given = std::make_unique<handed_part>(handed_part{shared_from_this(), part});

            if (ls_work_then(part, part_ended, given.get()) == LS_OK) {
                (void)given.release();
                continue;
            }
            const ls_work_end end = {LS_EINTERNAL, ls_last_error(), -1};

            part_ended(given.release(), &end);
        }
    }

    static void part_ended(void *arg, const ls_work_end *end)
    {
        const std::unique_ptr<handed_part> ended(static_cast<handed_part *>(arg));
        operation &of = *ended->of;

        of.take_back(ended->part);
        of.note_end(end->status, end->text, end->source);
        if (--of.n_left != 0)
            return;
        callbacks::run([&of] { of.finish(); });
    }

    void take_back(ls_work *part)
    {
        const std::lock_guard<std::mutex> guard(lock);

        handed.erase(std::find(handed.begin(), handed.end(), part));
    }

    /* What ls_work_then() has times out; under the lock, so that no part is freed meanwhile. */
    void end_handed()
    {
        for (ls_work *part : handed)
            ls_work_set_timeout(part, 0);
    }

    void note_end(ls_status status, const char *text, int from)
    {
        const std::lock_guard<std::mutex> guard(lock);

        from_rank = from;
        if (status != LS_OK && !error)
            error = failure(status, text);
    }

    void write_results()
    {
        const at::AutoDispatchBelowADInplaceOrView no_autograd;

        for (Tensor &t : quotients)
            t.div_(divisor, "trunc");
        for (const auto &copy : copies)
            write(copy.first, copy.second);
    }

    /* By the thread that has seen the end of the last part. */
    void finish()
    {
        try {
            if (!error)
                write_results();
        } catch (...) { // the program may have changed the shape of a tensor
            const std::lock_guard<std::mutex> guard(lock);

            error = std::current_exception();
        }
        quotients.clear();
        copies.clear();
        used.clear();
        if (at_end)
            at_end();
        {
            const std::lock_guard<std::mutex> guard(lock);

            state = DONE;
            changed.notify_all();
        }
        resolve();
    }

    /* Completes the future, if there is one and the operation has ended. */
    void resolve()
    {
        c10::intrusive_ptr<c10::ivalue::Future> made;
        {
            const std::lock_guard<std::mutex> guard(lock);

            if (state != DONE || !promise || is_resolved)
                return;
            is_resolved = true;
            made = promise;
        }
        if (error)
            made->setError(error);
        else
            made->markCompleted(result);
    }

    std::mutex lock; // guards the state and what is written by several threads
    condition changed;
    state state = STARTED;
    bool is_resolved = false;
    std::atomic<size_t> n_left = 0;
    std::exception_ptr error;
    c10::intrusive_ptr<c10::ivalue::Future> promise;
    std::vector<ls_work *> parts;
    std::vector<ls_work *> handed; // to ls_work_then()
    tensors used;
    tensors quotients;
    int64_t divisor = 1;
    std::vector<std::pair<Tensor, Tensor>> copies;
};

using operation_ptr = std::shared_ptr<operation>;

/* What PyTorch gets from a call. */
class work : public c10d::Work
{
  public:
    work(int rank, c10d::OpType type, const char *title, const tensors &inputs,
         operation_ptr operation)
        : Work(rank, type, title, inputs), op(std::move(operation))
    {
        op->at_end = std::move(recordFunctionEndCallback_);
    }

    ~work() override
    {
        op->release();
    }

    bool isCompleted() override
    {
        return op->has_ended();
    }

    bool isSuccess() const override
    {
        return op->has_ended() && op->exception() == nullptr;
    }

    std::exception_ptr exception() const override
    {
        return op->exception();
    }

    int sourceRank() const override
    {
        return op->from_rank;
    }

    std::vector<Tensor> result() override
    {
        TORCH_CHECK(op->result.isTensorList(), "lockstep: this operation has no list of results");
        return op->result.toTensorVector();
    }

    void synchronize() override
    {
        const unlocked other_threads_run;

        op->wait(kNoTimeout);
    }

    bool wait(std::chrono::milliseconds timeout) override
    {
        op->wait(timeout);
        return true;
    }

    void abort() override
    {
        TORCH_CHECK(false, "lockstep: abort the group, not a single operation");
    }

    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override
    {
        return op->future();
    }

  private:
    const operation_ptr op;
};

} // namespace lockstep_torch

#endif
