// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/statistics_kernels.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace unitscale::analysis {

/// The number of magnitudes in [2^e, 2^(e+1)), for every exponent e of a float, including subnormal numbers.
/// Exponents of doubles beyond an end are counted at that end. Zeros, infinities and NaN are not counted.
struct ExponentHistogram {
    static constexpr int lowest = -149, highest = 127;
    std::array<std::uint64_t, highest - lowest + 1> counts{};

    [[nodiscard]] std::uint64_t& at(int exponent) noexcept {
        return counts[static_cast<std::size_t>(std::clamp(exponent, lowest, highest) - lowest)];
    }
    [[nodiscard]] std::uint64_t at(int exponent) const noexcept {
        return counts[static_cast<std::size_t>(std::clamp(exponent, lowest, highest) - lowest)];
    }
    [[nodiscard]] std::uint64_t total() const noexcept {
        std::uint64_t sum = 0;
        for (const std::uint64_t count : counts) sum += count;
        return sum;
    }
};

/// Statistics of a tensor's values (data times scale). Moments and extremes are taken over the finite elements. They
/// are NaN if there are elements, but no finite one.
struct TensorSummary {
    std::size_t count = 0;
    std::size_t zeros = 0;  ///< -0 included
    std::size_t nans = 0, infinities = 0;
    double mean = 0.0, std = 0.0, rms = 0.0;
    double smallest = 0.0;      ///< smallest magnitude other than zero; 0 if all elements are zero
    double largest = 0.0;       ///< largest magnitude
    std::size_t underflow = 0;  ///< elements other than zero that the format rounds to zero
    std::size_t overflow = 0;   ///< finite elements that round to more than the format's largest number
    double noise = 0.0;         ///< ||Q(x) - x|| / ||x||, with Q rounding to nearest even and saturating
    std::size_t sampled = 0;    ///< elements behind noise and histogram: `count`, or fewer with `sample` > 1

    [[nodiscard]] std::size_t non_finite() const noexcept { return nans + infinities; }
    /// A count as a share of all elements; 0 for an empty tensor.
    [[nodiscard]] double share(std::size_t elements) const noexcept {
        return count == 0 ? 0.0 : static_cast<double>(elements) / static_cast<double>(count);
    }
};

struct TensorStatistics : TensorSummary {
    ExponentHistogram exponents{};
};

struct StatisticsOptions {
    std::optional<FloatFormat> format{};  ///< for underflow, overflow and noise, which stay 0 without a format
    /// Noise and histogram use one of every `sample` blocks of 2048 elements. In the other blocks groups of eight
    /// elements are summed in float (moments to about 1e-7). Counts and extremes use every element.
    std::size_t sample = 1;
    int threads = 1;  ///< the result does not depend on it
};

/// The largest magnitude that nearest even rounds to a number of the format. It is halfway between the largest number
/// and its successor if the layout went on; ties go to the even code.
[[nodiscard]] inline double largest_kept(const FloatFormat& format) noexcept {
    const int last_bit = format.max_exponent() - format.mantissa_bits;
    const double middle = static_cast<double>(format.max()) + compose<double>(false, 1, last_bit - 1);
    return format.max_code() % 2 == 0 ? middle : std::nextafter(middle, 0.0);
}

/// The ends of a format's range, for rounding to nearest even: as doubles, and as bits of float magnitudes for the
/// loops.
class RangeLimits {
public:
    RangeLimits() = default;
    /// Error: an unsigned format, or one without zero.
    explicit RangeLimits(const FloatFormat& format) {
        check(format.is_signed() && format.has_zero(), "tensor_statistics: ", name(format),
              " is not a format for signed numbers");
        to_zero_ = compose<double>(false, 1, format.quantum_exponent() - 1);
        largest_kept_ = unitscale::analysis::largest_kept(format);
        zero_word_ = format.quantum_exponent() > -149 ? word(static_cast<float>(to_zero_)) : 0;
        auto kept = static_cast<float>(std::min(largest_kept_, static_cast<double>(std::numeric_limits<float>::max())));
        if (static_cast<double>(kept) > largest_kept_) kept = std::nextafter(kept, 0.0F);
        kept_word_ = word(kept);
    }

    /// For a finite magnitude other than zero: is it rounded to zero, and does it exceed the range?
    [[nodiscard]] bool underflows(double magnitude) const noexcept { return magnitude <= to_zero_; }
    [[nodiscard]] bool overflows(double magnitude) const noexcept { return magnitude > largest_kept_; }

    /// Bits of the largest float that is rounded to zero.
    [[nodiscard]] std::uint32_t zero_word() const noexcept { return zero_word_; }
    /// Bits of the largest float that does not overflow.
    [[nodiscard]] std::uint32_t kept_word() const noexcept { return kept_word_; }

private:
    static std::uint32_t word(float x) noexcept { return std::bit_cast<std::uint32_t>(x); }

    double to_zero_ = 0.0;
    double largest_kept_ = std::numeric_limits<double>::max();
    std::uint32_t zero_word_ = 0;
    std::uint32_t kept_word_ = infinity_word - 1;
};

/// Sums over a part of a tensor. Parts are added in order.
struct PartStatistics {
    double sum = 0.0, squares = 0.0;
    double noise_squares = 0.0, sampled_squares = 0.0;
    double smallest = std::numeric_limits<double>::infinity(), largest = 0.0;
    std::size_t zeros = 0, nans = 0, infinities = 0, underflow = 0, overflow = 0, sampled = 0;
    ExponentHistogram exponents{};

    void operator+=(const PartStatistics& other) noexcept {
        sum += other.sum;
        squares += other.squares;
        noise_squares += other.noise_squares;
        sampled_squares += other.sampled_squares;
        smallest = std::min(smallest, other.smallest);
        largest = std::max(largest, other.largest);
        zeros += other.zeros;
        nans += other.nans;
        infinities += other.infinities;
        underflow += other.underflow;
        overflow += other.overflow;
        sampled += other.sampled;
        for (std::size_t i = 0; i < exponents.counts.size(); ++i) exponents.counts[i] += other.exponents.counts[i];
    }
};

/// Adds blocks of values to a PartStatistics.
class BlockStatistics {
public:
    explicit BlockStatistics(const std::optional<FloatFormat>& format)
        : format_(format), limits_(format ? RangeLimits(*format) : RangeLimits()) {}

    /// Adds one value at a time, in double: for doubles, and for blocks that `add_block` refuses.
    void add_values(std::span<const double> values, bool sampled, PartStatistics& part) const {
        for (const double x : values) {
            const std::uint64_t bits = std::bit_cast<std::uint64_t>(x) & ~(std::uint64_t{1} << 63);
            constexpr std::uint64_t infinity = std::uint64_t{0x7FF} << 52;
            part.sampled += sampled ? 1U : 0U;
            if (bits >= infinity) {
                ++(bits == infinity ? part.infinities : part.nans);
                continue;
            }
            const double magnitude = std::bit_cast<double>(bits);
            part.sum += x;
            part.squares = multiply_add(x, x, part.squares);
            part.largest = std::max(part.largest, magnitude);
            if (bits == 0) {
                ++part.zeros;
                continue;
            }
            part.smallest = std::min(part.smallest, magnitude);
            if (sampled) ++part.exponents.at(bits >> 52 == 0 ? -1023 : static_cast<int>(bits >> 52) - 1023);
            if (!format_) continue;
            part.underflow += limits_.underflows(magnitude) ? 1U : 0U;
            part.overflow += limits_.overflows(magnitude) ? 1U : 0U;
            if (!sampled) continue;
            const double error = quantise(*format_, x) - x;
            part.noise_squares = multiply_add(error, error, part.noise_squares);
            part.sampled_squares = multiply_add(x, x, part.sampled_squares);
        }
    }

    /// Adds a whole block of floats. The first `used` count; the rest are zeros. Returns false and leaves `part`
    /// unchanged if the block holds NaN or infinity. Without `exact` it also refuses subnormal numbers, which may have
    /// been rounded.
    template <Isa isa>
    [[nodiscard]] bool add_block(const float* in, std::size_t used, bool exact, bool sampled,
                                 PartStatistics& part) const {
        using Kernels = BlockKernels<isa>;
        constexpr std::uint32_t smallest_normal = 0x00800000u;
        alignas(64) std::uint8_t fields[statistics_block];
        BlockScan scan;
        if (sampled || !Kernels::quick_scan(in, scan)) Kernels::scan(in, fields, scan = {});
        if (scan.largest >= infinity_word || (!exact && scan.smallest < smallest_normal)) return false;
        part.sum += scan.sum;
        part.squares += scan.squares;
        part.largest = std::max(part.largest, magnitude(scan.largest));
        if (scan.has_zero) part.zeros += Kernels::between(in, 0, 0) - (statistics_block - used);
        if (sampled) part.sampled += used;
        if (scan.smallest == BlockScan::none) return true;
        part.smallest = std::min(part.smallest, magnitude(scan.smallest));
        if (sampled) add_exponents<isa>(in, fields, scan, part);
        if (!format_) return true;
        if (scan.smallest <= limits_.zero_word()) part.underflow += Kernels::between(in, 1, limits_.zero_word());
        if (scan.largest > limits_.kept_word())
            part.overflow += Kernels::between(in, limits_.kept_word() + 1, infinity_word - 1);
        if (sampled) {
            alignas(64) float rounded[statistics_block];
            quantise_span(isa, *format_, {in, statistics_block}, rounded);
            part.noise_squares += Kernels::distance(in, rounded);
            part.sampled_squares += scan.squares;
        }
        return true;
    }

private:
    static double magnitude(std::uint32_t word) noexcept { return static_cast<double>(std::bit_cast<float>(word)); }

    template <Isa isa>
    static void add_exponents(const float* in, const std::uint8_t* fields, const BlockScan& scan,
                              PartStatistics& part) {
        std::array<std::uint64_t, 256> counts{};
        BlockKernels<isa>::count(fields, std::max<std::size_t>(scan.smallest >> 23, 1), scan.largest >> 23,
                                 counts.data());
        for (std::size_t field = std::max<std::size_t>(scan.smallest >> 23, 1); field <= scan.largest >> 23; ++field)
            part.exponents.at(static_cast<int>(field) - 127) += counts[field];
        if (scan.smallest >> 23 != 0) return;
        for (std::size_t i = 0; i < statistics_block; ++i)  // the few subnormal numbers: position of the leading bit
            if (const std::uint32_t word = std::bit_cast<std::uint32_t>(in[i]) & 0x7FFFFFFFu;
                word != 0 && word >> 23 == 0)
                ++part.exponents.at(static_cast<int>(std::bit_width(word)) - 150);
    }

    std::optional<FloatFormat> format_;
    RangeLimits limits_;
};

/// The statistics of elements [begin, end) of a tensor; `begin` is a multiple of the block size.
template <Isa isa, class T>
[[nodiscard]] PartStatistics part_statistics(const Tensor<T>& tensor, const BlockStatistics& blocks, std::size_t begin,
                                             std::size_t end, std::size_t sample) {
    PartStatistics part;
    const double scale = tensor.scale();
    int exponent = 0;
    const bool power = std::frexp(scale, &exponent) == 0.5 && exponent > -100 && exponent < 100;
    const bool exact = !std::is_same_v<T, double> && scale == 1.0;
    alignas(64) float floats[statistics_block];
    std::array<double, statistics_block> doubles;
    for (std::size_t block = begin; block < end; block += statistics_block) {
        const std::size_t used = std::min(statistics_block, end - block);
        const bool sampled = block / statistics_block % sample == 0;
        const T* in = tensor.data() + block;
        if constexpr (!std::is_same_v<T, double>) {
            const float* values = floats;
            bool direct = false;
            if constexpr (std::is_same_v<T, float>) direct = exact && used == statistics_block;
            if (direct) {
                if constexpr (std::is_same_v<T, float>) values = in;
            } else if (exact || power) {
                for (std::size_t i = 0; i < used; ++i)
                    floats[i] = static_cast<float>(in[i]) * static_cast<float>(scale);
                std::fill(floats + used, floats + statistics_block, 0.0F);
            }
            if ((exact || power) && blocks.add_block<isa>(values, used, exact, sampled, part)) continue;
        }
        for (std::size_t i = 0; i < used; ++i) doubles[i] = static_cast<double>(in[i]) * scale;
        blocks.add_values(std::span(doubles).first(used), sampled, part);
    }
    return part;
}

template <class T>
[[nodiscard]] PartStatistics part_statistics(Isa isa, const Tensor<T>& tensor, const BlockStatistics& blocks,
                                             std::size_t begin, std::size_t end, std::size_t sample) {
#if UNITSCALE_X86
    if (isa == Isa::avx512) return part_statistics<Isa::avx512>(tensor, blocks, begin, end, sample);
    if (isa == Isa::avx2) return part_statistics<Isa::avx2>(tensor, blocks, begin, end, sample);
#endif
    static_cast<void>(isa);
    return part_statistics<Isa::baseline>(tensor, blocks, begin, end, sample);
}

/// The statistics of a tensor's values, data times scale, with the loops of one instruction set. It makes one pass over
/// the memory. Sums are formed in double, over parts of a fixed size: the bits do not depend on the number of threads.
/// T: float, double, Half, BFloat16.
/// Errors: a format that is unsigned or has no zero; sample = 0. Test: tests/analysis/statistics_test.cpp
template <class T>
[[nodiscard]] TensorStatistics tensor_statistics(Isa isa, const Tensor<T>& tensor,
                                                 const StatisticsOptions& options = {}) {
    check(options.sample >= 1, "tensor_statistics: sample is 0; expected at least 1");
    const BlockStatistics blocks(options.format);
    constexpr std::size_t part_size = 32 * statistics_block;
    std::vector<PartStatistics> parts((tensor.size() + part_size - 1) / part_size);
    parallel_for(options.threads, static_cast<std::ptrdiff_t>(parts.size()), 4,
                 [&](std::ptrdiff_t first, std::ptrdiff_t last) {
                     for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i)
                         parts[i] = part_statistics(isa, tensor, blocks, i * part_size,
                                                    std::min(tensor.size(), (i + 1) * part_size), options.sample);
                 });
    PartStatistics all;
    for (const PartStatistics& part : parts) all += part;

    TensorStatistics result;
    result.count = tensor.size();
    result.zeros = all.zeros;
    result.nans = all.nans;
    result.infinities = all.infinities;
    result.largest = all.largest;
    result.smallest = all.smallest <= all.largest ? all.smallest : 0.0;
    result.underflow = all.underflow;
    result.overflow = all.overflow;
    result.sampled = all.sampled;
    result.exponents = all.exponents;
    if (const std::size_t finite = result.count - result.non_finite(); finite > 0) {
        const auto n = static_cast<double>(finite);
        result.mean = all.sum / n;
        result.rms = std::sqrt(all.squares / n);
        result.std = std::sqrt(std::max(multiply_add(-result.mean, result.mean, all.squares / n), 0.0));
    } else if (result.count > 0) {
        constexpr double nan = std::numeric_limits<double>::quiet_NaN();
        result.mean = result.std = result.rms = result.smallest = result.largest = nan;
        return result;
    }
    // For a spread far below the mean, the rounding error of the quick sums exceeds the spread: sum exactly.
    if (options.sample > 1 && result.std < 0.1 * result.rms) {
        const TensorStatistics exact = tensor_statistics(isa, tensor, {.threads = options.threads});
        result.mean = exact.mean;
        result.rms = exact.rms;
        result.std = exact.std;
    }
    if (all.sampled_squares > 0.0) result.noise = std::sqrt(all.noise_squares / all.sampled_squares);
    return result;
}

/// The statistics of a tensor, computed with the widest instruction set of the processor.
template <class T>
[[nodiscard]] TensorStatistics tensor_statistics(const Tensor<T>& tensor, const StatisticsOptions& options = {}) {
    return tensor_statistics(active_isa(), tensor, options);
}

/// The largest magnitude of a tensor's data times scale: infinity if an element is infinite, NaN if an element is NaN.
/// It is cheap enough for every tensor of every step. It compares bits, so that fast-math changes nothing.
template <class T>
[[nodiscard]] double largest_magnitude(const Tensor<T>& tensor) {
    double largest = 0.0;
    if constexpr (std::is_same_v<T, float>) {
        std::uint32_t word = 0;
        const float* in = tensor.data();
        std::size_t i = 0;
        for (const Isa isa = active_isa(); i + statistics_block <= tensor.size(); i += statistics_block)
            word = std::max(word, block_largest(isa, in + i));
        for (; i < tensor.size(); ++i) word = std::max(word, std::bit_cast<std::uint32_t>(in[i]) & 0x7FFFFFFFu);
        largest = static_cast<double>(std::bit_cast<float>(word));
    } else {
        std::uint64_t word = 0;
        for (const T& element : tensor.span())
            word =
                std::max(word, std::bit_cast<std::uint64_t>(static_cast<double>(element)) & ~(std::uint64_t{1} << 63));
        largest = std::bit_cast<double>(word);
    }
    return largest * std::abs(tensor.scale());
}

}  // namespace unitscale::analysis
