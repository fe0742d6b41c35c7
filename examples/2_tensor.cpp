// SPDX-License-Identifier: MIT
// 2. A tensor is data and one scale: its value is data * scale. So a tensor of numbers of any size fits 8 bits.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/2_tensor.cpp && ./a.out

#include <unitscale/formats/minifloat.hpp>
#include <unitscale/scaling/power_of_two.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/print.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/tensor/view.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iostream>

using namespace unitscale;
using E4m3 = Minifloat<e4m3>;  // one byte

/// A tensor prints its values. To see the data, print it without the scale.
template <class T>
void show(const char* title, Tensor<T> tensor) {
    std::cout << "\n" << title << ": " << tensor << '\n';
    if (tensor.scale() == 1.0) return;
    tensor.set_scale(1.0);  // unlike set_scaling below this leaves the data alone, and so changes the value
    std::cout << "of which the data: " << tensor << '\n';
}

int main() {
    const Tensor<float> x({2, 3}, {3.1e-6f, -1.7e-5f, 4.4e-5f, 0.0f, 2.6e-5f, -9.0e-6f});
    show("a small tensor", x);

    // Its numbers are far below 2^-9, the smallest of e4m3: a cast loses them all.
    show("cast to e4m3", cast<E4m3>(x));

    // Move a factor from the data to the scale, and the value stays; with a power of two nothing is rounded. Now it
    // fits.
    const Tensor<float> balanced = rebalance(x, 0x1p-17);
    std::cout << "\nrebalanced by 2^-17 and back: "
              << (value(balanced).array() == x.array() ? "the same numbers\n" : "CHANGED\n");
    const Tensor<E4m3> small = cast<E4m3>(balanced);
    show("rebalanced, then cast", small);

    // A scale that was measured: the smallest power of two with which the largest magnitude does not saturate.
    // set_scaling names the scale that is wanted where rebalance names the change.
    float largest = 0.0f;
    for (const float element : x.span()) largest = std::max(largest, std::abs(element));
    const double measured = 1.0 / static_cast<double>(pow2_down(e4m3.max() / largest));
    show("by its largest magnitude", cast<E4m3>(set_scaling(x, measured)));

    // The plain tensor again, in a type that holds the values; and how far 8 bits were from x.
    const Tensor<float> back = value<float>(small);
    double error = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i)
        error = std::max(error, static_cast<double>(std::abs(back.data()[i] - x.data()[i]) / largest));
    std::cout << "\nlargest error of e4m3, relative to the largest magnitude: " << std::round(1000.0 * error) / 10.0
              << " %\n";

    // Views share the tensor's memory and know its scale: what is assigned is converted to it. A 1 repeats along an
    // axis.
    Tensor<float> changed = balanced;
    assign(view(changed).slice({{}, {.start = 1}}), Tensor<float>({2, 1}, {1e-5f, 2e-5f}));
    show("the last two columns set, transposed", copy_of(view(changed).transpose()));

    // Random tensors are functions of a key: the same key, the same numbers, in every element type up to its rounding.
    std::cout << "\nunit normal: " << normal<E4m3>({100, 100}, {.seed = 1, .stream = 2}) << '\n';
}
