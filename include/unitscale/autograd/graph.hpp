// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/op_info.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace unitscale {

/// Memory for objects that are destroyed together. Blocks are kept from one use to the next.
/// Test: tests/autograd/graph_test.cpp
class Arena {
public:
    template <class Object>
    [[nodiscard]] Object* make(Object&& object) {
        return ::new (allocate(sizeof(Object), alignof(Object))) Object(std::move(object));
    }

    /// Gives up all objects made so far; the owner has destroyed them.
    void reset() noexcept { block_ = used_ = 0; }

private:
    static constexpr std::size_t block_bytes = std::size_t{1} << 16;

    void* allocate(std::size_t bytes, std::size_t alignment) {
        check(bytes + alignment <= block_bytes, "arena: an object of ", bytes, " bytes does not fit a block of ",
              block_bytes);
        std::size_t start = (used_ + alignment - 1) / alignment * alignment;
        if (block_ < blocks_.size() && start + bytes > block_bytes) {
            ++block_;
            start = 0;
        }
        if (block_ == blocks_.size()) blocks_.push_back(std::make_unique<Block>());
        used_ = start + bytes;
        return blocks_[block_]->bytes + start;
    }

    struct alignas(64) Block {
        std::byte bytes[block_bytes];
    };
    std::vector<std::unique_ptr<Block>> blocks_{};
    std::size_t block_ = 0;
    std::size_t used_ = 0;
};

/// How a backward function reads a value that it needs only rounded: as codes of a format of at most 8 bits. `encode`
/// (kernels::encode) writes the codes. Stochastic rounding takes piece i of the stream `key` for element i.
template <class T>
struct Rounding8 {
    Quantiser quantiser{};
    RandomKey key{};
    void (*encode)(const Execution&, const T* in, std::uint8_t* codes, std::ptrdiff_t n, const Quantiser&,
                   RandomKey) = nullptr;

    /// Whether both give equal codes.
    [[nodiscard]] bool same(const Rounding8& other) const noexcept {
        return encode == other.encode && quantiser == other.quantiser &&
               (quantiser.rounding != unitscale::Rounding::stochastic || key == other.key);
    }
};

/// One tensor of a step. Slots are reused from step to step. `owned` is empty if the value lives elsewhere: in a
/// parameter, or in the root, a slot that this slot repeats. The root counts the readers of both.
template <class T>
struct Slot {
    static constexpr std::uint32_t no_producer = 0xFFFFFFFF, none = 0xFFFFFFFF;
    const char* origin = "";           ///< op that made it, "input" or "parameter"
    const Tensor<T>* value = nullptr;  ///< null once freed
    Shape shape{};                     ///< of the value, also when it is freed
    Tensor<T> owned{};
    mutable Tensor<T> plain{};               ///< the value as plain numbers (see Variable::value), made on first use
    Tensor<std::uint8_t> codes{};            ///< kept instead of the value if its readers need only codes
    std::optional<Rounding8<T>> rounding{};  ///< how the codes are, or would be, made
    double scale = 1.0;                      ///< of the value, also when it is freed or kept as codes
    std::optional<double> item{};            ///< of a loss: its value before rounding to T
    Tensor<T> gradient{};
    std::uint32_t root = 0;                ///< the slot that owns the value
    std::uint32_t next_repeat = none;      ///< the next slot that repeats the root; in a root, the first
    std::uint32_t readers = 0;             ///< backward functions that will read the value
    std::uint32_t rounded_readers = 0;     ///< backward functions for which the codes suffice
    Parameter<T>* parameter = nullptr;     ///< the trained parameter, which holds the slot's gradient
    const Parameter<T>* source = nullptr;  ///< the parameter that holds the value, frozen or not
    std::uint64_t version = 0;             ///< of the source, when the step first used it
    std::uint32_t uses = 0;                ///< edges from this tensor to ops
    std::uint32_t passed = 0;              ///< of these, the edges that the backward pass has left behind
    std::uint32_t producer = no_producer;  ///< the node that has this tensor as an output
    bool requires_gradient = false;
    bool has_gradient = false;
    bool leaf = false;  ///< input or parameter: the backward pass frees nothing

    /// The codes of a parameter that keeps its value so (`Parameter::keep_coded`), while `value` is null; else null.
    [[nodiscard]] const CodedWeight* coded_value() const noexcept {
        return source != nullptr ? source->coded_value() : nullptr;
    }
};

/// The only element of a slot's value as a plain number; for a loss, its value before rounding to T.
template <class T>
[[nodiscard]] double only_element(const Slot<T>& slot) {
    check(slot.value->size() == 1, "item: a value of shape ", shape_text(slot.shape), " has ", slot.value->size(),
          " elements, not one");
    return slot.item ? *slot.item : static_cast<double>(slot.value->data()[0]) * slot.value->scale();
}
/// The gradient of a slot. Error: it has none.
template <class T>
[[nodiscard]] const Tensor<T>& gradient_of(const Slot<T>& slot) {
    if (slot.parameter != nullptr) return std::as_const(*slot.parameter).gradient();
    check(slot.has_gradient, "gradient: the output of ", slot.origin,
          " has none; run backward(), with begin_step({.retain = true}) for the gradients of ops");
    return slot.gradient;
}
/// Whether `gradient_of` has something to return.
template <class T>
[[nodiscard]] bool holds_gradient(const Slot<T>& slot) {
    return slot.parameter != nullptr ? slot.parameter->has_gradient() : slot.has_gradient;
}

/// The value of a slot as plain numbers (see Variable::value): the value itself if its scale is 1, else a copy.
template <class T>
[[nodiscard]] const Tensor<T>& plain_value(const Slot<T>& slot, const std::shared_ptr<MemoryPool>& pool) {
    if (slot.value->scale() == 1.0) return *slot.value;
    if (slot.plain.shape() != slot.shape) multiply_out(*slot.value, slot.plain = Tensor<T>(slot.shape, pool));
    return slot.plain;
}

template <class T>
class BackwardContext;

/// One op of a step: a vertex of the recorded graph. betas[i] multiplies the gradient that the unscaled op would give
/// for inputs[i]. output_weights[i] multiplies the gradient that arrives at outputs[i].
template <class T>
struct Node {
    const char* op = "";
    Site site{};
    double alpha = 1.0;
    std::vector<double> betas{};
    std::vector<double> output_weights{};  ///< empty: all 1
    std::vector<std::uint32_t> inputs{};
    std::vector<std::uint32_t> outputs{};
    std::vector<EdgeKind> edges{};  ///< one per input, once the cut-edges are found
    JoinedBy joined_by = JoinedBy::plan;
    std::uint64_t multiply_adds = 0;
    Reads reads{};
    bool propagates = false;
    std::optional<double> item{};  ///< of the output
    void* closure = nullptr;       ///< in the arena; null when no input needs a gradient
    void (*run)(void*, BackwardContext<T>&) = nullptr;
    void (*destroy)(void*) = nullptr;

    void drop_closure() noexcept {
        if (closure != nullptr) destroy(closure);
        closure = nullptr;
    }
};

/// Objects with stable addresses, reused from step to step. `clear` forgets the objects and keeps their memory.
template <class Object>
class ReusedList {
public:
    [[nodiscard]] Object& add() {
        if (size_ == objects_.size()) objects_.push_back(std::make_unique<Object>());
        return *objects_[size_++];
    }
    void clear() noexcept { size_ = 0; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] Object& operator[](std::size_t i) noexcept { return *objects_[i]; }
    [[nodiscard]] const Object& operator[](std::size_t i) const noexcept { return *objects_[i]; }

private:
    std::vector<std::unique_ptr<Object>> objects_{};
    std::size_t size_ = 0;
};

}  // namespace unitscale
