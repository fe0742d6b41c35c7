// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/vector_math.hpp>

#include <numbers>

namespace unitscale::kernels {

/// Strides of a [B, T, H, d] array: element (b, t, h, 0) is at b batch_stride + t time_stride + h head_stride. The last
/// axis is contiguous. So q, k and v inside one [B, T, 3, H, d] array have three such strides.
struct HeadStrides {
    std::ptrdiff_t batch_stride = 0;
    std::ptrdiff_t time_stride = 0;
    std::ptrdiff_t head_stride = 0;
};

/// Slower angles for texts longer than those of the first training.
///   none     f_i = base^(-2 i / d)
///   linear   f_i / factor: positions are divided by the factor
///   llama3   by the wavelength w_i = 2 pi / f_i and L = original_length, with l and h the two frequency factors:
///              w_i < L / h          f_i
///              w_i > L / l          f_i / factor
///              otherwise            s f_i + (1 - s) f_i / factor,   s = (L / w_i - l) / (h - l)
enum class RotaryScalingKind { none, linear, llama3 };

/// References: Chen et al. 2023, arXiv:2306.15595 (linear); the Llama 3.1 models, as in the function
/// `_compute_llama3_parameters` of the Python package transformers.
struct RotaryScaling {
    RotaryScalingKind kind = RotaryScalingKind::none;
    double factor = 1.0;
    double low_frequency_factor = 1.0;   ///< l
    double high_frequency_factor = 4.0;  ///< h, above l
    double original_length = 8192.0;     ///< L: positions of the first training

    friend bool operator==(const RotaryScaling&, const RotaryScaling&) = default;
};

/// Sizes, first position, base and scaling of a rotary embedding. width (d) is even.
struct RotarySizes {
    std::ptrdiff_t batch = 0;
    std::ptrdiff_t time = 0;
    std::ptrdiff_t heads = 0;
    std::ptrdiff_t width = 0;
    std::ptrdiff_t first_position = 0;
    double base = 10000.0;
    RotaryScaling scaling{};
};

/// The angle of pair i per position: f_i = base^(-2 i / width), scaled (RotaryScalingKind).
[[nodiscard]] inline double rotary_frequency(const RotarySizes& sizes, std::ptrdiff_t i) noexcept {
    const RotaryScaling& scaling = sizes.scaling;
    const double frequency = std::pow(sizes.base, -2.0 * static_cast<double>(i) / static_cast<double>(sizes.width));
    if (scaling.kind == RotaryScalingKind::none) return frequency;
    const double slow = frequency / scaling.factor;
    if (scaling.kind == RotaryScalingKind::linear) return slow;
    const double low = scaling.low_frequency_factor, high = scaling.high_frequency_factor;
    const double turns = scaling.original_length * frequency / (2.0 * std::numbers::pi);  // L / w_i
    if (turns > high) return frequency;
    if (turns < low) return slow;
    const double share = (turns - low) / (high - low);
    return share * frequency + (1.0 - share) * slow;
}

/// cosines and sines [time, width / 2] of (first_position + t) rotary_frequency(i), and a row of scratch [2 width] in
/// double. Positions that are multiples of 64 use the library's cosines. The others follow by the angle-sum formula in
/// double, which adds an error under 2e-14. So an entry depends on its position alone, not on the start of the array.
template <class A>
void rotary_table(const RotarySizes& sizes, A* cosines, A* sines, double* scratch) noexcept {
    const std::ptrdiff_t half = sizes.width / 2;
    double *const c = scratch, *const s = scratch + half, *const c_step = s + half, *const s_step = c_step + half;
    for (std::ptrdiff_t i = 0; i < half; ++i) {
        const double step = rotary_frequency(sizes, i);
        c_step[i] = std::cos(step);
        s_step[i] = std::sin(step);
    }
    const std::ptrdiff_t end = sizes.first_position + sizes.time;
    for (std::ptrdiff_t position = sizes.first_position / 64 * 64; position < end; ++position) {
        for (std::ptrdiff_t i = 0; i < half; ++i) {
            if (position % 64 == 0) {
                const double angle = static_cast<double>(position) * rotary_frequency(sizes, i);
                c[i] = std::cos(angle);
                s[i] = std::sin(angle);
            } else {
                const double next = multiply_add(c[i], c_step[i], -(s[i] * s_step[i]));
                s[i] = multiply_add(s[i], c_step[i], c[i] * s_step[i]);
                c[i] = next;
            }
        }
        const std::ptrdiff_t t = position - sizes.first_position;
        if (t < 0) continue;
        for (std::ptrdiff_t i = 0; i < half; ++i) {
            cosines[t * half + i] = static_cast<A>(c[i]);
            sines[t * half + i] = static_cast<A>(s[i]);
        }
    }
}

/// Rotates every pair (x_i, x_{i + d/2}) by sign times its angle, and multiplies by `scale`. y may be x (with equal
/// strides).
template <class T>
void rotate_pairs(const Execution& execution, const T* x, const HeadStrides& x_strides, T* y,
                  const HeadStrides& y_strides, const RotarySizes& sizes, Accum<T> sign, Accum<T> scale) {
    using A = Accum<T>;
    const std::ptrdiff_t half = sizes.width / 2;
    Scratch<A> table(execution, static_cast<std::size_t>(2 * sizes.time * half));
    Scratch<double> rows(execution, static_cast<std::size_t>(2 * sizes.width));
    A* const cosines = table.data();
    A* const sines = cosines + sizes.time * half;
    rotary_table(sizes, cosines, sines, rows.data());
    parallel_for(execution.threads, sizes.batch * sizes.time, row_grain(sizes.heads * sizes.width),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     Block<A> first, second, cosine, sine;
                     for (std::ptrdiff_t row = begin; row < end; ++row)
                         for (std::ptrdiff_t i = 0; i < half; i += block_size) {
                             const std::ptrdiff_t b = row / sizes.time, t = row % sizes.time,
                                                  count = std::min(block_size, half - i);
                             load_block(cosines + t * half + i, count, cosine);
                             load_block(sines + t * half + i, count, sine);
                             for_lanes(count, [&](std::size_t l) {
                                 cosine[l] *= scale;
                                 sine[l] *= scale * sign;
                             });
                             for (std::ptrdiff_t h = 0; h < sizes.heads; ++h) {
                                 const T* const in = x + b * x_strides.batch_stride + t * x_strides.time_stride +
                                                     h * x_strides.head_stride + i;
                                 T* const out = y + b * y_strides.batch_stride + t * y_strides.time_stride +
                                                h * y_strides.head_stride + i;
                                 load_block(in, count, first);
                                 load_block(in + half, count, second);
                                 for_lanes(count, [&](std::size_t l) {
                                     const A u = first[l], v = second[l];
                                     first[l] = multiply_add(u, cosine[l], -(v * sine[l]));
                                     second[l] = multiply_add(v, cosine[l], u * sine[l]);
                                 });
                                 store_block(first, count, out);
                                 store_block(second, count, out + half);
                             }
                         }
                 });
}

/// Rotary position embedding, for i < d/2, at position p = first_position + t, with angle = p base^(-2 i / d), or
/// the angle that RotaryScaling makes of it:
///   y_i = alpha (x_i cos - x_{i+d/2} sin)      y_{i+d/2} = alpha (x_{i+d/2} cos + x_i sin)
/// Reference: Su et al. 2021, arXiv:2104.09864, with the pairs of the common implementations.
/// Test: tests/kernels/rotary_test.cpp
template <class T>
void rotary_forward(const Execution& execution, const T* x, const HeadStrides& x_strides, T* y,
                    const HeadStrides& y_strides, const RotarySizes& sizes, Accum<T> alpha) {
    rotate_pairs(execution, x, x_strides, y, y_strides, sizes, Accum<T>(1), alpha);
}

/// Backward pass: the transpose of the rotation is the rotation by the opposite angle:  dx = beta R(-angle) dy.
template <class T>
void rotary_backward(const Execution& execution, const T* dy, const HeadStrides& dy_strides, T* dx,
                     const HeadStrides& dx_strides, const RotarySizes& sizes, Accum<T> beta) {
    rotate_pairs(execution, dy, dy_strides, dx, dx_strides, sizes, Accum<T>(-1), beta);
}

}  // namespace unitscale::kernels
