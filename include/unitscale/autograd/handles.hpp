// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unitscale {

template <class T>
class Tape;

/// The number of handles (`Variable`) of each tensor in a tape's current step. The tape reads here which tensors no
/// handle names any more. A handle that outlives its tape finds here that the tape is gone. Tape and handles own the
/// table together: the last owner deletes it. One thread at a time uses the table, like the tape.
/// Test: tests/autograd/handles_test.cpp
template <class T>
class HandleTable {
public:
    explicit HandleTable(Tape<T>* tape) : tape_(tape) {}
    HandleTable(const HandleTable&) = delete;
    HandleTable& operator=(const HandleTable&) = delete;

    /// The tape; null once it is gone.
    [[nodiscard]] Tape<T>* tape() const noexcept { return tape_; }
    [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

    /// Begins another step: handles of the last step name nothing from now on.
    void begin() noexcept {
        ++generation_;
        entries_.clear();
        unnamed_.clear();
    }
    /// Adds the next tensor of the step. Its memory belongs to tensor `root`: itself, or a tensor that it repeats.
    void add_tensor(std::uint32_t root) {
        entries_.push_back({root, 0});
        unnamed_.reserve(entries_.capacity());  // so that `remove_handle` allocates nothing
    }
    [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
    [[nodiscard]] std::uint32_t root(std::uint32_t tensor) const noexcept { return entries_[tensor].root; }
    /// The number of handles of the tensors that share this root's memory.
    [[nodiscard]] std::uint32_t count(std::uint32_t root) const noexcept { return entries_[root].handles; }

    /// Roots that have lost their last handle since `forget_unnamed`.
    [[nodiscard]] std::span<const std::uint32_t> unnamed() const noexcept { return unnamed_; }
    void forget_unnamed() noexcept { unnamed_.clear(); }

    /// Called when a handle is made, and when a handle is destroyed.
    void add_handle(std::uint32_t tensor, std::uint64_t generation) noexcept {
        ++owners_;
        if (generation == generation_) ++entries_[entries_[tensor].root].handles;
    }
    void remove_handle(std::uint32_t tensor, std::uint64_t generation) noexcept {
        if (generation == generation_) {
            const std::uint32_t root = entries_[tensor].root;
            if (--entries_[root].handles == 0) unnamed_.push_back(root);
        }
        release();
    }
    /// Called when the tape is destroyed.
    void remove_tape() noexcept {
        tape_ = nullptr;
        begin();
        release();
    }

private:
    struct Entry {
        std::uint32_t root = 0, handles = 0;
    };
    ~HandleTable() = default;
    void release() noexcept {
        if (--owners_ == 0) delete this;
    }

    Tape<T>* tape_;
    std::uint64_t generation_ = 0;
    std::size_t owners_ = 1;  ///< the tape and every handle
    std::vector<Entry> entries_{};
    std::vector<std::uint32_t> unnamed_{};
};

}  // namespace unitscale
