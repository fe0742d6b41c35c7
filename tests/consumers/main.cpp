// SPDX-License-Identifier: MIT
#include <unitscale/unitscale.hpp>

#include <iostream>

int main() {
    unitscale::Tensor<float> x({2, 2}, {0.3f, 1000.0f, -17.0f, 2.0f});
    unitscale::quantise(unitscale::e4m3, x.span(), x.span());
    std::cout << x(0, 0) << ' ' << x(0, 1) << ' ' << x(1, 0) << ' ' << x(1, 1) << '\n';
}
