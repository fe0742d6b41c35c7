// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace unitscale {

/// Alignment of every buffer of the library: a cache line, and a 512-bit vector.
inline constexpr std::size_t buffer_alignment = 64;

/// A cache of memory blocks by size class. Each power of two has four classes, so at most a quarter of a block is
/// unused. A returned block is kept for the next request of its class. A loop with equal sizes in each step therefore
/// calls the system's allocator in its first step only. Thread-safe.
/// Units: bytes. Test: tests/base/memory_test.cpp
class MemoryPool {
public:
    MemoryPool() = default;
    MemoryPool(const MemoryPool&) = delete;
    MemoryPool& operator=(const MemoryPool&) = delete;
    ~MemoryPool() { trim(); }

    [[nodiscard]] void* allocate(std::size_t bytes) {
        const std::size_t index = class_of(bytes);
        {
            const std::lock_guard lock(mutex_);
            live_bytes_ += class_bytes(index);
            if (live_bytes_ > peak_bytes_) peak_bytes_ = live_bytes_;
            auto& blocks = free_[index];
            if (!blocks.empty()) {
                void* block = blocks.back();
                blocks.pop_back();
                return block;
            }
            ++counts_[index];
            blocks.reserve(counts_[index]);  // so that returning a block never allocates
            ++system_allocations_;
        }
        return ::operator new (class_bytes(index), std::align_val_t{buffer_alignment});
    }

    void deallocate(void* block, std::size_t bytes) noexcept {
        const std::size_t index = class_of(bytes);
        const std::lock_guard lock(mutex_);
        live_bytes_ -= class_bytes(index);
        free_[index].push_back(block);
    }

    /// Gives every unused block back to the system.
    void trim() noexcept {
        const std::lock_guard lock(mutex_);
        for (std::size_t index = 0; index < free_.size(); ++index) {
            for (void* block : free_[index]) ::operator delete (block, std::align_val_t{buffer_alignment});
            counts_[index] -= free_[index].size();
            free_[index].clear();
        }
    }

    /// Bytes handed out now, the most bytes handed out since construction, and the number of blocks requested from the
    /// system.
    [[nodiscard]] std::size_t live_bytes() const noexcept { return locked(live_bytes_); }
    [[nodiscard]] std::size_t peak_bytes() const noexcept { return locked(peak_bytes_); }
    [[nodiscard]] std::size_t system_allocations() const noexcept { return locked(system_allocations_); }

private:
    std::size_t locked(const std::size_t& count) const noexcept {
        const std::lock_guard lock(mutex_);
        return count;
    }
    // Class 4 e + q holds (4 + q) 2^(e+4) bytes: 64, 80, 96, 112, 128, 160, ...
    static constexpr std::size_t class_bytes(std::size_t index) noexcept { return (4 + index % 4) << (index / 4 + 4); }
    static constexpr std::size_t class_of(std::size_t bytes) noexcept {
        if (bytes <= 64) return 0;
        const auto exponent = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 3;        // exponent of a quarter
        const std::size_t quarters = (bytes + (std::size_t{1} << exponent) - 1) >> exponent;  // 5..8
        return 4 * (exponent - 4) + (quarters - 4);
    }

    mutable std::mutex mutex_;
    std::array<std::vector<void*>, 4 * 56> free_{};
    std::array<std::size_t, 4 * 56> counts_{};
    std::size_t live_bytes_ = 0;
    std::size_t peak_bytes_ = 0;
    std::size_t system_allocations_ = 0;
};

/// The allocator of tensors, aligned to 64 bytes. Memory comes from a pool if the allocator has one, else from the
/// system. Each block carries its pool (shared ownership) in a header of one cache line, so any allocator returns any
/// block to its origin. Containers may therefore mix up the allocators of two operands, as xtensor's do on assignment.
/// A tensor may outlive the tape that made it. Elements are left uninitialised.
template <class T>
class PoolAllocator {
    using Header = std::shared_ptr<MemoryPool>;
    static_assert(sizeof(Header) <= buffer_alignment && alignof(T) <= buffer_alignment);

public:
    using value_type = T;
    using is_always_equal = std::true_type;

    PoolAllocator() = default;
    explicit PoolAllocator(std::shared_ptr<MemoryPool> pool) noexcept : pool_(std::move(pool)) {}
    template <class U>
    PoolAllocator(const PoolAllocator<U>& other) noexcept : pool_(other.pool()) {}

    [[nodiscard]] T* allocate(std::size_t count) {
        const std::size_t bytes = buffer_alignment + count * sizeof(T);
        void* raw = pool_ ? pool_->allocate(bytes) : ::operator new (bytes, std::align_val_t{buffer_alignment});
        ::new (raw) Header(pool_);
        return reinterpret_cast<T*>(static_cast<std::byte*>(raw) + buffer_alignment);
    }

    void deallocate(T* block, std::size_t count) noexcept {
        void* raw = reinterpret_cast<std::byte*>(block) - buffer_alignment;
        Header& header = *std::launder(static_cast<Header*>(raw));
        const Header pool = std::move(header);
        header.~Header();
        if (pool) pool->deallocate(raw, buffer_alignment + count * sizeof(T));
        else ::operator delete (raw, std::align_val_t{buffer_alignment});
    }

    /// A copied tensor belongs to the user: it does not grow a tape's pool.
    [[nodiscard]] PoolAllocator select_on_container_copy_construction() const { return PoolAllocator(); }

    [[nodiscard]] const std::shared_ptr<MemoryPool>& pool() const noexcept { return pool_; }
    template <class U>
    friend bool operator==(const PoolAllocator&, const PoolAllocator<U>&) noexcept {
        return true;
    }

private:
    std::shared_ptr<MemoryPool> pool_;
};

/// How a kernel runs: the threads of this call, and the pool of its scratch memory (null: the system's allocator).
struct Execution {
    int threads = 1;
    MemoryPool* pool = nullptr;
};

/// A kernel's scratch buffer of `count` elements: uninitialised, aligned, returned when it leaves scope.
template <class T>
class Scratch {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>);

public:
    Scratch(const Execution& execution, std::size_t count) : pool_(execution.pool), count_(count) {
        const std::size_t bytes = count * sizeof(T);
        data_ = static_cast<T*>(pool_ != nullptr ? pool_->allocate(bytes)
                                                 : ::operator new (bytes, std::align_val_t{buffer_alignment}));
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() {
        if (pool_ != nullptr) pool_->deallocate(data_, count_ * sizeof(T));
        else ::operator delete (data_, std::align_val_t{buffer_alignment});
    }

    [[nodiscard]] T* data() noexcept { return data_; }
    [[nodiscard]] std::span<T> span() noexcept { return {data_, count_}; }

private:
    MemoryPool* pool_;
    std::size_t count_;
    T* data_ = nullptr;
};

}  // namespace unitscale
