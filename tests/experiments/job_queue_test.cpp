// SPDX-License-Identifier: MIT
#include "experiments/job_queue.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace unitscale::experiments;

namespace {

/// A test must not hang when the queue is wrong, so every wait ends after this time. Results do not depend on it.
constexpr std::chrono::seconds patience{30};

/// The state that the jobs of a test share. Jobs that hang keep it alive.
struct Scene {
    JobQueue queue{};
    std::atomic<std::size_t> begun{0}, inside{0}, most_inside{0};
    std::atomic<bool> too_long{false};  ///< a wait was given up
    std::vector<std::atomic<int>> done = std::vector<std::atomic<int>>(100);

    void enter() {
        ++begun;
        const std::size_t beside = ++inside;
        for (std::size_t known = most_inside; beside > known && !most_inside.compare_exchange_weak(known, beside);) {
        }
    }
    /// Called by a job: waits until `condition` holds. An exception of it becomes an exception of the job.
    template <class Condition>
    void wait_for(Condition&& condition) {
        const auto end = std::chrono::steady_clock::now() + patience;
        while (!condition()) {
            if (too_long || std::chrono::steady_clock::now() > end) {
                too_long = true;
                throw std::runtime_error("waited too long");
            }
            std::this_thread::yield();
        }
    }
};

/// Runs the queue in a thread of its own and returns its exception. A queue that does not end fails the test; its
/// thread is abandoned.
std::string run(const std::shared_ptr<Scene>& scene, std::size_t jobs, std::size_t count,
                std::function<void(std::size_t)> work) {
    std::promise<std::string> promise;
    std::future<std::string> future = promise.get_future();
    std::thread thread([scene, jobs, count, work = std::move(work), promise = std::move(promise)]() mutable {
        std::string error;
        try {
            scene->queue.run(jobs, count, work);
        } catch (const std::exception& caught) {
            error = caught.what();
        } catch (...) {
            error = "something else than an exception";
        }
        promise.set_value(error);
    });
    if (future.wait_for(2 * patience) != std::future_status::ready) {
        thread.detach();
        FAIL("the queue does not end: of " << count << " jobs " << scene->begun << " have begun, " << scene->inside
                                           << " have not ended");
    }
    thread.join();
    if (scene->too_long)
        FAIL("a job waited for what did not happen: of " << count << " jobs " << scene->begun << " have begun");
    return future.get();
}

}  // namespace

TEST_CASE("job queue: every job runs once, and the requested number of jobs run side by side") {
    constexpr std::size_t count = 20;
    for (const std::size_t jobs : {1u, 3u, 50u}) {
        const std::size_t beside = std::min(jobs, count);
        const auto scene = std::make_shared<Scene>();
        const std::string error = run(scene, jobs, count, [s = scene.get(), beside](std::size_t i) {
            s->enter();
            if (i < beside) {
                s->wait_for([&] { return s->begun >= beside; });  // each of the first jobs waits for the others
                for (int turn = 0; turn < 2000; ++turn)
                    std::this_thread::yield();  // a queue without a limit would begin further jobs in this time
            }
            ++s->done[i];
            --s->inside;
        });
        INFO(jobs << " jobs side by side");
        CHECK(error.empty());
        for (std::size_t i = 0; i < scene->done.size(); ++i) {
            INFO("job " << i);
            CHECK(scene->done[i] == (i < count ? 1 : 0));
        }
        CHECK(scene->most_inside == beside);
        CHECK(scene->inside == 0);
    }
}

TEST_CASE("job queue: it can be used again, and with nothing to do") {
    const auto scene = std::make_shared<Scene>();
    const auto order = std::make_shared<std::vector<std::size_t>>();
    const auto note = [order](std::size_t i) { order->push_back(i); };
    CHECK(run(scene, 1, 3, note).empty());
    CHECK(run(scene, 2, 0, note).empty());
    CHECK(run(scene, 1, 2, note).empty());
    CHECK(*order == std::vector<std::size_t>{0, 1, 2, 0, 1});
}

TEST_CASE("job queue: the first error stops the jobs under way where they ask, and is thrown") {
    const auto scene = std::make_shared<Scene>();
    const std::string error = run(scene, 2, 100, [s = scene.get()](std::size_t i) {
        s->enter();
        try {
            s->wait_for([&] { return s->begun >= 2; });
            if (i == 1) throw std::runtime_error("job 1");
            s->wait_for([&] {  // the error of job 1 ends this wait
                s->queue.leave_if_stopped();
                return false;
            });
        } catch (...) {
            --s->inside;
            throw;
        }
    });
    CHECK(error == "job 1");
    CHECK(scene->begun == 2);
    CHECK(scene->inside == 0);  // all jobs have ended before the error is thrown
}

TEST_CASE("job queue: errors of other jobs after the first error are dropped") {
    const auto scene = std::make_shared<Scene>();
    const std::string error = run(scene, 2, 100, [s = scene.get()](std::size_t i) {
        s->enter();
        s->wait_for([&] { return s->begun >= 2; });
        if (i == 0) throw std::runtime_error("job 0");
        s->wait_for([&] {
            try {
                s->queue.leave_if_stopped();
            } catch (...) {
                return true;
            }
            return false;
        });
        throw std::runtime_error("job 1");
    });
    CHECK(error == "job 0");
    CHECK(scene->begun == 2);
}
