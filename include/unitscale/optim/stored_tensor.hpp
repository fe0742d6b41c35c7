// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/scaling/power_of_two.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/scaling/storage.hpp>
#include <unitscale/scaling/tensor_scale.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace unitscale::optim {

/// The largest magnitude of n numbers; NaN if one is NaN; 0 for n = 0. It compares bit patterns, in lanes.
template <std::floating_point A>
[[nodiscard]] A largest_of(const A* x, std::ptrdiff_t n) noexcept {
    using Bits = std::conditional_t<sizeof(A) == 8, std::uint64_t, std::uint32_t>;
    constexpr Bits all_but_sign = ~Bits{0} >> 1;
    constexpr auto lanes = static_cast<std::ptrdiff_t>(kernels::group_size);
    std::array<Bits, kernels::group_size> most{};
    std::ptrdiff_t i = 0;
    for (; i + lanes <= n; i += lanes)
        for (std::size_t l = 0; l < kernels::group_size; ++l) {
            const Bits bits = std::bit_cast<Bits>(x[i + static_cast<std::ptrdiff_t>(l)]) & all_but_sign;
            most[l] = bits > most[l] ? bits : most[l];
        }
    for (; i < n; ++i) most[0] = std::max(most[0], std::bit_cast<Bits>(x[i]) & all_but_sign);
    return std::bit_cast<A>(*std::max_element(most.begin(), most.end()));
}

/// A tensor that lives from update to update, kept as its StateFormat says.
/// It is kept as computed, in A (float or double), or as codes of a format times a scale: code scale ~ value.
///   scale = 2^-b      b = floor(log2(max / amax)), clamped to [-126,126]; scale = 1 where amax is 0 or not finite
/// The largest magnitude is then close to the format's largest number, and nothing overflows.
///
/// A scale of the whole tensor is found from the new values, not from the stored ones:
/// `expect` takes their largest magnitude, `store` writes them, `finish` ends the update.
/// A block's scale is found when the block is stored.
/// A propagated scale follows from the formula of the update: `expect_sum` states it in place of `expect`.
/// Without a scale that fits, a value out of range becomes the format's largest number.
///
/// `keep_positive`: a positive value that would round to zero becomes the smallest positive number instead.
/// It is for divisors: with a second moment of 0, Adam's step is the first moment times 1 / epsilon, without bound.
///
/// Chunks begin at multiples of `chunk`; several threads may load and store different chunks.
/// Unit: the unit of the value. Errors: the errors of StateFormat. Test: tests/optim/stored_tensor_test.cpp
template <std::floating_point A>
class StoredTensor {
public:
    static constexpr std::ptrdiff_t chunk = StateFormat::most_block;
    using Chunk = std::array<A, static_cast<std::size_t>(chunk)>;

    StoredTensor() = default;
    /// A tensor of zeros.
    StoredTensor(const Shape& shape, const StateFormat& how, bool keep_positive = false,
                 const std::shared_ptr<MemoryPool>& pool = nullptr)
        : how_(how), keep_positive_(keep_positive) {
        how.validate("StoredTensor");
        use_tensor(*this, [&]<class E>(Tensor<E>& tensor) {
            tensor = Tensor<E>(shape, pool);
            std::fill_n(tensor.data(), tensor.size(), E{0});
        });
        if (!how.format || how.block == 0) return;
        scales_ = Tensor<float>(Shape{(element_count(shape) + how.block - 1) / how.block}, pool);
        std::fill_n(scales_.data(), scales_.size(), 1.0f);
    }

    [[nodiscard]] const StateFormat& how() const noexcept { return how_; }
    [[nodiscard]] std::size_t size() const {
        std::size_t size = 0;
        use_tensor(*this, [&](const auto& tensor) { size = tensor.size(); });
        return size;
    }
    [[nodiscard]] bool empty() const { return size() == 0; }
    /// Whether the values are kept as computed; `computed` then holds them.
    [[nodiscard]] bool is_computed() const noexcept { return !how_.format.has_value(); }
    [[nodiscard]] Tensor<A>& computed() { return values_; }
    /// Whether `store` needs an `expect` before it.
    [[nodiscard]] bool scaled_as_whole() const noexcept { return has_one_scale() && !how_.propagated; }
    /// Whether `store` needs an `expect_sum` before it.
    [[nodiscard]] bool is_propagated() const noexcept { return how_.propagated; }
    /// The scale of the whole tensor.
    [[nodiscard]] double scale() const {
        double scale = 1.0;
        use_tensor(*this, [&](const auto& tensor) { scale = tensor.scale(); });
        return scale;
    }

    /// out[0 .. count) = the values from `begin` on.
    void load(std::ptrdiff_t begin, std::ptrdiff_t count, Chunk& out) const {
        use_tensor(*this, [&](const auto& tensor) { read(tensor, begin, count, tensor.scale(), out); });
    }
    /// out[0 .. count) = the stored values from `begin` on, between `store` and `finish`.
    void load_stored(std::ptrdiff_t begin, std::ptrdiff_t count, Chunk& out) const {
        use_tensor(*this, [&](const auto& tensor) { read(tensor, begin, count, next_scale_, out); });
    }

    /// States that all values of the coming calls of `store` are at most `largest` in magnitude.
    void expect(A largest) noexcept { next_scale_ = scale_of(largest); }
    /// States that the coming values are keep x + y, with x the stored values and y of the scale `added`. Scalify's
    /// rules give the scale (scaling/propagate.hpp): a constant counts as the power of two next below it, and a sum as
    /// (a^2 + b^2)^1/2, rounded down. `first`: x is still 0, which takes any scale.
    void expect_sum(double keep, double added, bool first) noexcept {
        const double kept = first || keep == 0.0 ? 0.0 : scale() * pow2_down(keep);
        next_scale_ = clamped(sum_scale(ScaleRounding::down, kept, added));
    }
    /// Stochastic rounding takes piece i of the stream `key` (random_piece) for the i-th value of the tensor.
    void store(std::ptrdiff_t begin, std::ptrdiff_t count, const Chunk& values, RandomKey key = {}) {
        use_tensor(*this, [&](auto& tensor) { write(tensor, begin, count, values, key); });
    }
    void finish() {
        if (has_one_scale()) use_tensor(*this, [this](auto& tensor) { tensor.set_scale(next_scale_); });
    }

    /// Divides all values by a power of two: in the scales where there are scales, else in the numbers.
    void divide(double power) {
        if (how_.format && how_.scaled) {
            for (float& scale : scales_.span()) scale = static_cast<float>(clamped(scale / power));
            if (has_one_scale()) next_scale_ = clamped(scale() / power);
            return finish();
        }
        rewrite([power](A x) { return static_cast<A>(x / power); });
    }
    /// Brings the codes of a propagated tensor to unit size: the scale is multiplied by the power of two below the rms
    /// of the codes' numbers (`rescaling`), and values stay. It is exact short of the format's subnormal numbers.
    void rescale() {
        if (!is_propagated()) return;
        double squares = 0.0;
        Chunk numbers{};
        for_chunks(size(), [&](std::ptrdiff_t begin, std::ptrdiff_t count) {
            load(begin, count, numbers);
            for (std::ptrdiff_t i = 0; i < count; ++i) {
                const double x = static_cast<double>(numbers[static_cast<std::size_t>(i)]) / scale();
                squares = multiply_add(x, x, squares);
            }
        });
        next_scale_ = clamped(scale() * rms_rescaling(squares, size()));
        if (next_scale_ != scale()) rewrite([](A x) { return x; });
    }

    /// All values, decoded.
    [[nodiscard]] Tensor<A> values() const {
        Tensor<A> all;
        use_tensor(*this, [&](const auto& tensor) { all = Tensor<A>(tensor.shape()); });
        Chunk decoded{};
        for_chunks(all.size(), [&](std::ptrdiff_t begin, std::ptrdiff_t count) {
            load(begin, count, decoded);
            std::copy_n(decoded.begin(), count, all.data() + begin);
        });
        return all;
    }
    /// Replaces all values, with scales of their own. Values that the tensor itself gave are kept exactly.
    /// `key` as in `store`. Error: another number of values.
    void assign(std::span<const A> values, RandomKey key = {}) {
        check(values.size() == size(), "StoredTensor: ", values.size(), " values for ", size());
        if (has_one_scale()) expect(largest_of(values.data(), static_cast<std::ptrdiff_t>(values.size())));
        Chunk given{};
        for_chunks(values.size(), [&](std::ptrdiff_t begin, std::ptrdiff_t count) {
            std::copy_n(values.data() + begin, count, given.begin());
            store(begin, count, given, key);
        });
        finish();
    }

    /// Names the tensor to a visitor: visitor.stored(name, StoredTensor&), where the visitor has this function. Else:
    /// Values kept as computed: visitor.tensor(name, Tensor<A>&).
    /// Codes: visitor.codes(name, format, Tensor&), of std::uint8_t up to 8 bits per code, else of std::uint16_t.
    /// A scale of the whole tensor is the scale of that Tensor.
    /// Scales of blocks come before the codes: visitor.tensor(name + ".scale", Tensor<float>&).
    /// Error: the visitor has no such function.
    template <class Visitor>
    void visit_state(Visitor&& visitor, const std::string& name) {
        if constexpr (requires { visitor.stored(name, *this); }) return visitor.stored(name, *this);
        else visit_tensors(visitor, name);
    }

private:
    template <class Visitor>
    void visit_tensors(Visitor&& visitor, const std::string& name) {
        const auto show = [&](const std::string& what, auto& tensor) {
            if constexpr (requires { visitor.tensor(what, tensor); }) visitor.tensor(what, tensor);
            else fail("optimiser state ", what, ": this visitor takes no tensor of its type");
        };
        const auto show_codes = [&](auto& tensor) {
            if constexpr (requires { visitor.codes(name, *how_.format, tensor); })
                visitor.codes(name, *how_.format, tensor);
            else fail("optimiser state ", name, ": this visitor takes no codes");
        };
        if (!scales_.empty()) show(name + ".scale", scales_);
        if (is_computed()) show(name, values_);
        else if (how_.format->code_bits() <= 8) show_codes(bytes_);
        else show_codes(words_);
    }

    /// Calls use(begin, count) for each chunk of `size` values, in turn.
    template <class Use>
    static void for_chunks(std::size_t size, const Use& use) {
        const auto n = static_cast<std::ptrdiff_t>(size);
        for (std::ptrdiff_t begin = 0; begin < n; begin += chunk) use(begin, std::min(chunk, n - begin));
    }

    /// Calls use(tensor) with the tensor that holds the numbers of `self`, a StoredTensor.
    template <class Self, class Use>
    static void use_tensor(Self& self, const Use& use) {
        if (self.is_computed()) use(self.values_);
        else if (self.how_.format->code_bits() <= 8) use(self.bytes_);
        else use(self.words_);
    }

    [[nodiscard]] bool has_one_scale() const noexcept { return how_.format && how_.scaled && how_.block == 0; }

    [[nodiscard]] double scale_of(A largest) const noexcept {
        // kernels::amax rounds a double up to float.
        const int bias = amax_bias(*how_.format, kernels::amax(Execution{}, &largest, 1), 0);
        return scale_of_exponent<double>(-std::clamp(bias, -126, 126));
    }
    [[nodiscard]] static double clamped(double scale) noexcept { return std::clamp(scale, 0x1p-126, 0x1p126); }

    /// Stores change(x) for every value x, to nearest.
    template <class Change>
    void rewrite(const Change& change) {
        Chunk changed{};
        for_chunks(size(), [&](std::ptrdiff_t begin, std::ptrdiff_t count) {
            load(begin, count, changed);
            for (std::ptrdiff_t i = 0; i < count; ++i)
                changed[static_cast<std::size_t>(i)] = change(changed[static_cast<std::size_t>(i)]);
            store(begin, count, changed);
        });
        finish();
    }

    template <class Element>
    void read(const Tensor<Element>& tensor, std::ptrdiff_t begin, std::ptrdiff_t count, double scale,
              Chunk& out) const {
        const auto size = static_cast<std::size_t>(count);
        if constexpr (std::same_as<Element, A>) {
            std::copy_n(tensor.data() + begin, size, out.begin());
        } else {
            decode_elements(tensor.span().subspan(static_cast<std::size_t>(begin), size), out);
            if (!how_.scaled) return;
            for_pieces(begin, count, [&](std::ptrdiff_t at, std::ptrdiff_t length, std::size_t block) {
                const auto factor =
                    static_cast<A>(how_.block == 0 ? scale : static_cast<double>(scales_.data()[block]));
                A* piece = out.data() + at;
                kernels::for_lanes(length, [&](std::size_t l) { piece[l] *= factor; });
            });
        }
    }

    template <class Element>
    void write(Tensor<Element>& tensor, std::ptrdiff_t begin, std::ptrdiff_t count, const Chunk& values,
               RandomKey key) {
        const auto size = static_cast<std::size_t>(count);
        if constexpr (std::same_as<Element, A>) {
            std::copy_n(values.begin(), size, tensor.data() + begin);
        } else {
            Chunk scaled;
            scale_down(begin, count, values, scaled);
            encode_elements(scaled, begin, key, tensor.span().subspan(static_cast<std::size_t>(begin), size));
        }
    }

    /// scaled = values / scale. Sets the scales of blocks.
    /// Under `keep_positive`, positive values are at least the format's smallest number.
    void scale_down(std::ptrdiff_t begin, std::ptrdiff_t count, const Chunk& values, Chunk& scaled) {
        const A least = keep_positive_ ? static_cast<A>(how_.format->min_subnormal()) : A(0);
        for_pieces(begin, count, [&](std::ptrdiff_t at, std::ptrdiff_t length, std::size_t block) {
            const A* piece = values.data() + at;
            A* to = scaled.data() + at;
            double scale = next_scale_;
            if (how_.block != 0) {
                scale = scale_of(largest_of(piece, length));
                scales_.data()[block] = static_cast<float>(scale);
            }
            const auto factor = static_cast<A>(1.0 / scale);
            kernels::for_lanes(length, [&](std::size_t l) {
                const A y = piece[l] * factor;
                to[l] = ((piece[l] > A(0)) & (y < least)) ? least : y;
            });
        });
    }

    template <CodeWord Code>
    void decode_elements(std::span<const Code> codes, Chunk& out) const {
        if constexpr (std::same_as<A, float>) {
            decode(*how_.format, codes, std::span<float>(out).first(codes.size()));
        } else {
            std::array<float, static_cast<std::size_t>(chunk)> values;
            decode(*how_.format, codes, std::span<float>(values).first(codes.size()));
            std::copy_n(values.begin(), codes.size(), out.begin());
        }
    }

    template <CodeWord Code>
    void encode_elements(const Chunk& values, std::ptrdiff_t begin, RandomKey key, std::span<Code> codes) const {
        QuantiseOptions options{.rounding = how_.rounding, .key = key};
        const auto first = static_cast<std::uint64_t>(begin);
        if constexpr (std::same_as<A, float>) {
            options.first_index = first;
            encode(*how_.format, std::span<const float>(values).first(codes.size()), codes, options);
        } else {
            for (std::size_t i = 0; i < codes.size(); ++i)
                codes[i] = static_cast<Code>(encode(*how_.format, values[i], options, first + i));
        }
    }

    /// Calls use(at, length, block) for each part of a chunk that shares a scale; `at` counts from the chunk's begin.
    template <class Use>
    void for_pieces(std::ptrdiff_t begin, std::ptrdiff_t count, Use&& use) const {
        const std::ptrdiff_t step = how_.block == 0 ? chunk : static_cast<std::ptrdiff_t>(how_.block);
        for (std::ptrdiff_t at = 0; at < count; at += step)
            use(at, std::min(step, count - at), static_cast<std::size_t>((begin + at) / step));
    }

    StateFormat how_{};
    bool keep_positive_ = false;
    double next_scale_ = 1.0;
    Tensor<A> values_{};             ///< values kept as computed; of these three tensors one is in use
    Tensor<std::uint8_t> bytes_{};   ///< codes of at most 8 bits
    Tensor<std::uint16_t> words_{};  ///< longer codes
    Tensor<float> scales_{};         ///< scales of blocks
};

}  // namespace unitscale::optim
