// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
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

/// Bytes of a huge page of x86-64, and of 64-bit ARM with pages of 4 KB.
inline constexpr std::size_t huge_page_bytes = std::size_t{1} << 21;

/// Tells the system how memory will be used. The memory begins at a multiple of `huge_page_bytes`, and its contents
/// stay. Returns whether the system took note.
using MemoryAdvice = bool (*)(void* data, std::size_t bytes) noexcept;

/// Whether AddressSanitizer watches the build.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool watches_addresses = true;
#elif defined(__has_feature)
inline constexpr bool watches_addresses = __has_feature(address_sanitizer);
#else
inline constexpr bool watches_addresses = false;
#endif

/// A cache of memory blocks by size class. Each power of two has four classes, so at most a quarter of a block is
/// unused. A returned block is kept for the next request of its class. A loop with equal sizes in each step therefore
/// calls the system's allocator in its first step only. Blocks of `large_block_bytes` or more are cut from regions, one
/// behind another, so they may share huge pages. A tape's pool asks for these (huge_pages.hpp). Thread-safe.
/// Units: bytes. Test: tests/base/memory_test.cpp
class MemoryPool {
public:
    /// Bytes of the smallest class of large blocks, without the header of a tensor.
    static constexpr std::size_t large_block_bytes = std::size_t{1} << 18;

    /// `advice` is given for each region; null: none.
    explicit MemoryPool(MemoryAdvice advice = nullptr) noexcept : advice_(advice) {}
    MemoryPool(const MemoryPool&) = delete;
    MemoryPool& operator=(const MemoryPool&) = delete;
    ~MemoryPool() { trim(); }

    [[nodiscard]] void* allocate(std::size_t bytes) {
        const std::size_t index = class_of(bytes);
        const std::lock_guard lock(mutex_);
        auto& blocks = free_[index];
        void* block = nullptr;
        if (!blocks.empty()) {
            block = blocks.back();
            blocks.pop_back();
        } else {
            blocks.reserve(counts_[index] + 1);  // so that returning a block never allocates
            block = index < first_large ? ::operator new (class_bytes(index), std::align_val_t{buffer_alignment})
                                        : cut(class_bytes(index));
            ++counts_[index];
            ++system_allocations_;
        }
        live_bytes_ += class_bytes(index);
        peak_bytes_ = std::max(peak_bytes_, live_bytes_);
        return block;
    }

    void deallocate(void* block, std::size_t bytes) noexcept {
        const std::size_t index = class_of(bytes);
        const std::lock_guard lock(mutex_);
        live_bytes_ -= class_bytes(index);
        free_[index].push_back(block);
    }

    /// Gives unused blocks back to the system. A large block goes back with its region, once no block of that region is
    /// in use.
    void trim() noexcept {
        const std::lock_guard lock(mutex_);
        for (std::size_t index = 0; index < first_large; ++index) {
            for (void* block : free_[index]) ::operator delete (block, std::align_val_t{buffer_alignment});
            counts_[index] -= free_[index].size();
            free_[index].clear();
        }
        for (Region** link = &regions_; *link != nullptr;) {
            Region* const region = *link;
            std::ptrdiff_t unused = 0;
            for (std::size_t index = first_large; index < free_.size(); ++index)
                for (const void* block : free_[index]) unused += region->holds(block) ? 1 : 0;
            if (unused != region->blocks) {
                link = &region->next;
                continue;
            }
            for (std::size_t index = first_large; index < free_.size(); ++index) {
                auto& blocks = free_[index];
                std::size_t kept = 0;
                for (void* block : blocks)
                    if (!region->holds(block)) blocks[kept++] = block;
                for (; blocks.size() > kept; --counts_[index]) blocks.pop_back();
            }
            region_bytes_ -= region->bytes;
            *link = region->next;
            ::operator delete (region, std::align_val_t{huge_page_bytes});
        }
    }

    /// Bytes handed out now, the most bytes handed out since construction, and the number of blocks requested from the
    /// system or cut from regions.
    [[nodiscard]] std::size_t live_bytes() const noexcept { return locked(live_bytes_); }
    [[nodiscard]] std::size_t peak_bytes() const noexcept { return locked(peak_bytes_); }
    [[nodiscard]] std::size_t system_allocations() const noexcept { return locked(system_allocations_); }

private:
    /// The head of memory that the system gave. The first `used` bytes are this head and blocks.
    struct Region {
        Region* next = nullptr;
        std::size_t bytes = 0, used = buffer_alignment;
        std::ptrdiff_t blocks = 0;

        [[nodiscard]] bool holds(const void* block) const noexcept {
            return reinterpret_cast<std::uintptr_t>(block) - reinterpret_cast<std::uintptr_t>(this) < bytes;
        }
    };
    static_assert(sizeof(Region) <= buffer_alignment);

    /// A block of a region, or of a new one. Each region is at least a quarter of those before, so there are few.
    [[nodiscard]] void* cut(std::size_t bytes) {
        Region* region = regions_;
        while (region != nullptr && region->bytes - region->used < bytes) region = region->next;
        if (region == nullptr) {
            const std::size_t least = std::max(buffer_alignment + bytes, region_bytes_ / 4),
                              pages = (least + huge_page_bytes - 1) / huge_page_bytes;
            // AddressSanitizer knows the end of what the system gave. So each block has a region then.
            const std::size_t size = watches_addresses ? buffer_alignment + bytes : pages * huge_page_bytes;
            void* const memory = ::operator new (size, std::align_val_t{huge_page_bytes});
            if (advice_ != nullptr) advice_(memory, size);
            region = regions_ = ::new (memory) Region{.next = regions_, .bytes = size};
            region_bytes_ += size;
        }
        void* const block = reinterpret_cast<std::byte*>(region) + region->used;
        region->used += bytes;
        ++region->blocks;
        return block;
    }

    std::size_t locked(const std::size_t& count) const noexcept {
        const std::lock_guard lock(mutex_);
        return count;
    }
    // Class 4 e + q holds (4 + q) 2^(e+4) bytes and the header of a tensor, so a tensor of 2^n bytes fills its block.
    static constexpr std::size_t class_bytes(std::size_t index) noexcept {
        return ((4 + index % 4) << (index / 4 + 4)) + buffer_alignment;
    }
    static constexpr std::size_t class_of(std::size_t bytes) noexcept {
        if (bytes <= 64 + buffer_alignment) return 0;
        bytes -= buffer_alignment;
        const auto exponent = static_cast<std::size_t>(std::bit_width(bytes - 1)) - 3;        // exponent of a quarter
        const std::size_t quarters = (bytes + (std::size_t{1} << exponent) - 1) >> exponent;  // 5..8
        return 4 * (exponent - 4) + (quarters - 4);
    }
    static constexpr std::size_t first_large = 4 * (std::bit_width(large_block_bytes) - 7);
    static_assert((std::size_t{4} << (first_large / 4 + 4)) == large_block_bytes);

    mutable std::mutex mutex_;
    std::array<std::vector<void*>, 4 * 56> free_{};
    std::array<std::size_t, 4 * 56> counts_{};
    Region* regions_ = nullptr;
    MemoryAdvice advice_;
    std::size_t region_bytes_ = 0;
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
